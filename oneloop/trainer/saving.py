"""What goes into a checkpoint, and when."""

import contextlib
import copy
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import randomness
from ..checkpoint import store
from ..checkpoint.contents import Contents, room_for
from ..checkpoint.tensors import from_numpy
from ..errors import CheckpointError, DiskError
from ..losses import accepts
from ..state import ExportableState
from .parts import TrainerParts

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
STATE = "trainer_state.json"
RUN = "run.json"
ARGUMENTS = "training_args.json"

BUFFER = "buffer/"  # beside a process's streams: tensors of its own

DATA_STATES = ("data", "collator", "dataset")  # of a position: what each process has its own of

# Arguments that change how a run goes, beside those that _course names.
COURSE = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("label_smoothing_factor", "neftune_noise_alpha", "bf16", "fp16", "fp16_opt_level", "dataloader_drop_last"),
)


def write_json(path: Path, data: Any) -> None:
    """A whole file or none: written beside its place and moved there."""
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        unfinished.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(directory: Any) -> Iterator[None]:
    """What the disk does not take is said in words."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise DiskError(
            error.errno,
            f"{str(directory)!r} cannot be written: {why}. Choose another directory, free some space, or change its "
            "permissions.",
        ) from error


@dataclass(frozen=True)
class Save:
    """One save, as it was when it was asked for."""

    target: str
    run_id: str
    reason: str
    state: Any
    best_before: tuple[Any, Any]

    @property
    def step(self) -> int:
        return self.state.global_step

    @property
    def best(self) -> str | None:
        return self.state.best_model_checkpoint


class TrainerSaving(TrainerParts):
    """save_model, save_state and checkpoints."""

    # -- the model alone

    def save_model(
        self, output_dir: Any = None, _internal_call: bool = False, merge_tensor_parallel: bool = False
    ) -> None:
        """Write the model, its configuration and its tokenizer so that the model's own library can open them.

        All processes call it: they may hold a part of the model each. One of them writes. What it writes is whole,
        whether PaddleNLP's merge_tensor_parallel asks for it or not.
        """
        with self._whole_model():
            if self.args.should_save:
                self._save(str(output_dir or self.args.output_dir))
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save", blocking=False)

    def _save_quietly(self, output_dir: str) -> None:
        """save_model, as a part of something else: nothing follows from it, such as a push."""
        known = {"_internal_call": True} if accepts(self.save_model, "_internal_call") else {}
        self.save_model(output_dir, **known)

    @contextlib.contextmanager
    def _whole_model(self) -> Iterator[None]:
        """Within it, the process that writes has all weights."""
        if self._model_parts is not None:
            yield
            return
        adapter = self.backend.models.is_adapter(self.backend.models.unwrap(self.model))
        self._model_parts = ({}, {}) if adapter else self.strategy.model_tensors(self.model)
        try:
            yield
        finally:
            self._model_parts = None

    def _save(self, output_dir: str, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir)
        contents = Contents()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._add_model(contents, folder, _as_they_are, state_dict)
            contents.write_over(folder)

    def _add_model(self, contents: Contents, folder: Path, copies: Any, state_dict: Any = None) -> None:
        """Weights, configuration and tokenizer. An adapter writes its own, small, files into the folder at once."""
        models, weights = self.backend.models, self.backend.weights
        model = models.unwrap(self.model)
        if models.is_adapter(model):
            weights.save_adapter(model, folder)
        else:
            self._add_weights(contents, copies, state_dict)
        contents.texts.update(self._companion_files(model, in_training=copies is not _as_they_are))
        contents.add_json(ARGUMENTS, self.args.to_dict())

    def _add_weights(self, contents: Contents, copies: Any, state_dict: Any = None) -> None:
        weights = self.backend.weights
        tensors, tied = self._model_parts or weights.model_tensors(self.backend.models.unwrap(self.model))
        tensors = copies({f"model/{name}": value for name, value in (state_dict or tensors).items()})
        metadata = {"format": weights.LAYOUT} | ({"tied": json.dumps(tied)} if tied else {})
        raws = {name.removeprefix("model/"): weights.raw(value) for name, value in tensors.items()}
        contents.add_weights(raws, metadata)

    def _companion_files(self, model: Any, in_training: bool) -> dict[str, bytes]:
        """Configuration and tokenizer files. A tokenizer does not change while training and is then asked once."""
        found: dict[str, bytes] = {}
        if not self.backend.models.is_adapter(model):
            config: Any = getattr(model, "config", None)
            if hasattr(config, "architectures"):  # what opens the folder by its class, as pipelines and servers do
                config.architectures = [self.strategy.class_of(model).__name__]
            for part in ("config", "generation_config"):
                found |= _saved_files(getattr(model, part, None))
        if not in_training:
            return found | _saved_files(self.processing_class)
        if self._tokenizer_files is None:
            self._tokenizer_files = _saved_files(self.processing_class)
        return found | self._tokenizer_files

    def save_state(self) -> None:
        """trainer_state.json in the output directory."""
        self.store_flos()
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            unfinished = folder / f".{STATE}.partial"
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                self.state.save_to_json(unfinished)
                os.replace(unfinished, folder / STATE)

    # -- checkpoints

    def _save_checkpoint(self, model: Any = None, trial: Any = None, metrics: Any = None) -> None:
        """Everything that a resumed run needs, in output_dir/checkpoint-STEP.

        Training waits only while it is copied; files are written in the background, and on_save follows their commit.
        """
        parent = Path(self.args.output_dir)
        self._end_saves(f"{store.PREFIX}-{self.state.global_step}")
        self.store_flos()
        save = self._new_save(parent)
        shared = self._shared_stage(parent, save.step)
        course = None if self.args.save_only_model else self._course_parts(shared is not None)
        ends = partial(self._after_save, save), partial(self._forget_best, save)
        if shared is None:
            self._save_whole(save, course, ends)
        else:
            self._save_in_parts(shared, save.step, save.state, course, partial(self._commit, save, shared), ends)

    def _new_save(self, parent: Path) -> Save:
        """What is to be said of this moment, whatever the run does while it is being written."""
        target = str(parent / f"{store.PREFIX}-{self.state.global_step}")
        state = copy.copy(self.state)
        if self._new_best:
            state.best_model_checkpoint = target
        state.stateful_callbacks = self._callback_states()
        state.log_history = list(state.log_history)
        reason = "best" if self._save_for_best and not self._is_kept(target) else "save"
        return Save(target, self._run_id, reason, state, self._best_before)

    def _after_save(self, save: Save) -> None:
        """It is whole: callbacks and the hub hear of it."""
        self._last_saved = save.target
        self.state.best_model_checkpoint = save.best
        self.control = self.callback_handler.call_event("on_save", self.args, save.state, self.control)
        self._push_checkpoint(save.state)

    def _forget_best(self, save: Save) -> None:
        """The disk did not take the best model: the one before it is the best that can be loaded."""
        if self.state.best_global_step == save.step:
            self.state.best_metric, self.state.best_global_step = save.best_before

    def _commit(self, save: Save, stage: Path, facts: dict[str, Any]) -> None:
        store.commit(stage, save.step, save.run_id, save.reason, facts)
        self._clear_superseded(save.target, save.run_id, save.best)

    def _save_whole(self, save: Save, course: dict[str, Any] | None, ends: Any) -> None:
        """By the one process that writes; the others bring what they have and hear how it ended."""
        stage = None
        with self._whole_model():
            if not self.args.should_save:
                self._awaited.append(ends)
                self._tell_saved()
                return
            try:
                stage = store.open_stage(Path(save.target).parent, save.step)
                contents = self._contents(stage, save.state, course)
            except BaseException as error:
                if stage is not None:
                    store.discard(stage)
                if not isinstance(error, OSError):
                    raise
                self._saver.refused(error, save.target)
                self._outcomes.append(False)
                self._forget_best(save)
                if self.team.size > 1:
                    self._tell_saved()
                return

        def job() -> None:
            try:
                room_for(stage, contents.size)
                self._commit(save, stage, contents.write(stage))
            except BaseException:
                store.discard(stage)
                raise

        self._submit(job, ends, save.step)

    def make_room(self) -> None:
        """Memory for the first save's copies, once the optimizer has its state; later saves use it again."""
        self._has_room = True
        args, weights = self.args, self.backend.weights
        if args.save_strategy == "no" or not args.save_async or self.team.size > 1 or not self._writes_as_built:
            return
        if args.save_strategy == "steps" and 0 < self.state.max_steps < self.state.save_steps:
            return
        model = self.backend.models.unwrap(self.model)
        tensors: dict[str, Any] = {}
        if not self.backend.models.is_adapter(model):
            tensors |= {f"model/{name}": t for name, t in weights.model_tensors(model)[0].items()}
        if not args.save_only_model:
            state, _ = self.strategy.optimizer_state(self.optimizer, self.model)
            tensors |= {f"optimizer/{name}": t for name, t in state.items()}
        self._buffers.prepare({name: weights.room(t) for name, t in tensors.items()}, weights.raw)

    def _submit(self, job: Any, ends: tuple[Any, Any], step: int) -> None:
        """Hand a save to the saver; what comes of it is kept for the other processes."""

        def ended(well: bool) -> None:
            self._outcomes.append(well)
            ends[0 if well else 1]()

        background = self.args.save_async
        self._saver.submit(job, partial(ended, True), partial(ended, False), background, f"{store.PREFIX}-{step}")
        self._tell_saved()

    def _clear_superseded(self, newest: str, run_id: str, best: str | None) -> None:
        """Delete what is neither among the newest nor the best, now that a newer one is whole."""
        parent = Path(self.args.output_dir)
        try:
            store.forget_superseded(parent, run_id, best)
            store.rotate(parent, run_id, self.args.save_total_limit, {newest, best or newest})
        except OSError as error:
            logger.error("%s is saved, but checkpoints that it supersedes are still there: %s.", newest, error)

    def _is_kept(self, target: str) -> bool:
        """Whether save_steps asked for this step too: then it stays, also when it is the best no more."""
        manifest = store.read_manifest(Path(target))
        return manifest is not None and manifest["run_id"] == self._run_id and manifest.get("reason") == "save"

    def _contents(self, stage: Path, state: Any, course: dict[str, Any] | None) -> Contents:
        contents = Contents()
        if self._writes_as_built:
            self._add_model(contents, stage, lambda tensors: self._buffers.copy(tensors, self.backend.weights.copy_to))
        else:
            self._save_quietly(str(stage))  # an override writes what it likes
        if course is not None:
            self._add_course(contents, course)
        contents.texts[STATE] = state.to_json().encode()
        return contents

    @property
    def _writes_as_built(self) -> bool:
        """Whether no override writes the model in a way of its own."""
        return type(self).save_model is TrainerSaving.save_model and type(self)._save is TrainerSaving._save

    def _course_parts(self, in_parts: bool = False) -> dict[str, Any]:
        """What all processes have to contribute to, or to bring, before one of them can write."""
        streams = randomness.get_state(self.backend)
        streams |= {f"epoch/{name}": array for name, array in (self._epoch_random or {}).items()}
        for i, buffer in enumerate(self.strategy.own_buffers(self.model)):
            streams[f"{BUFFER}{i}"] = self.backend.tensors.to_numpy(buffer)
        position = self._position()
        own = (streams, {key: position[key] for key in DATA_STATES})
        every = self.team.to_main(own) if not self.args.save_on_each_node else self.team.everyone(own)
        if every is not None:
            for rank, (more, _) in enumerate(every[1:], 1):
                streams |= {f"rank{rank}/{name}": array for name, array in more.items()}
            if len(every) > 1:
                position["ranks"] = [states for _, states in every[1:]]
        state_of = self.strategy.optimizer_part if in_parts else self.strategy.optimizer_state
        return {
            "optimizer": state_of(self.optimizer, self.model),
            "streams": streams,
            "position": position,
        }

    def _add_course(self, contents: Contents, course: dict[str, Any]) -> None:
        """Optimizer, schedule, random state and the rest of what decides how the run goes on."""
        self._add_optimizer(contents, course)
        streams = {name: from_numpy(array.copy()) for name, array in course["streams"].items()}
        contents.tensors[RANDOM] = (streams, {})
        contents.add_json(
            RUN,
            {
                "format": store.FORMAT,
                "run_id": self._run_id,
                "framework": self.backend.NAME,
                "layout": {
                    name: [place.name, place.axes] for name, place in self.backend.crossing.layout(self.model).items()
                },
                "optimizer": course["optimizer"][1],
                "scheduler": _json_state(self.lr_scheduler),
                "engine": self.engine.state(),
                "strategy": self.strategy.state(),
                # Of the last step, should the end of the epoch log it; it may be infinite, which JSON has no word for.
                "grad_norm": None if (norm := self.engine.grad_norm()) is None else norm.hex(),
                "learning_rate": self._rate_used,
                "losses": self.losses.state(),
                "work": dict(zip(("tokens", "flops", "unpadded"), self._work)),
                "split": self._split,
                "position": course["position"],
                "course": self._course(),
            },
        )

    def _add_optimizer(self, contents: Contents, course: dict[str, Any]) -> None:
        weights = self.backend.weights
        tensors, _ = course["optimizer"]
        copies = self._buffers.copy({f"optimizer/{name}": t for name, t in tensors.items()}, weights.copy_to)
        raws = {name.removeprefix("optimizer/"): weights.raw(value) for name, value in copies.items()}
        contents.tensors[OPTIMIZER] = (raws, {"format": weights.LAYOUT})

    def _course(self) -> dict[str, Any]:
        """What a resumed run should have the same of."""
        plan = self._plan
        return {
            "samples": plan.samples,
            "samples_per_step": plan.samples_per_step,
            "processes": self.args.world_size,
            "accumulation": plan.accumulation,
            "max_steps": plan.max_steps,
            "seed": self.args.seed,
            "data_seed": self._data_seed,
            "sampling": str(self.args.train_sampling_strategy),
            "learning_rate": self.args.learning_rate,
            "lr_scheduler_type": str(self.args.lr_scheduler_type),
            "weight_decay": self.args.weight_decay,
            "max_grad_norm": self.args.max_grad_norm,
            "optim": str(self.args.optim),
            "workers": self.args.dataloader_num_workers > 0,
        } | {name: _plain(getattr(self.args, name)) for name in COURSE}

    def _callback_states(self) -> dict[str, Any]:
        states: dict[str, Any] = {"TrainerControl": self.control.state()}
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState) or (
                callable(getattr(callback, "state", None)) and hasattr(callback, "from_state")
            ):
                states.setdefault(type(callback).__name__, []).append(callback.state())
        return {name: s[0] if isinstance(s, list) and len(s) == 1 else s for name, s in states.items()}

    # -- saves under way

    def _tell_saved(self) -> None:
        """on_save for every save that has been committed since the last look, in all processes."""
        self._tell_own()
        outcomes, self._outcomes, self._hears_of_saves = self._outcomes, [], False
        if self.team.size == 1:
            return
        outcomes = self.team.from_main(outcomes)
        if not self.args.should_save:
            for well in outcomes:
                then, otherwise = self._awaited.pop(0)
                (then if well else otherwise)()

    def _tell_own(self) -> None:
        """The same in a process that writes, without a word to the others."""
        for then in self._saver.poll():
            then()

    def _end_saves(self, what: str | None = None) -> None:
        """Wait until nothing is being written; errors of the background are raised here."""
        self._saver.wait(what)
        self._tell_saved()


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, dict, list, type(None))) else str(value)


def _as_they_are(tensors: dict[str, Any]) -> dict[str, Any]:
    return tensors


def _saved_files(thing: Any) -> dict[str, bytes]:
    """The files that an object writes with save_pretrained."""
    if not hasattr(thing, "save_pretrained"):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        thing.save_pretrained(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def _json_state(scheduler: Any) -> Any:
    """A scheduler's state without what JSON cannot hold (functions, the optimizer)."""
    if not hasattr(scheduler, "state_dict"):
        return None

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(plain(v) for v in value.values())
        if isinstance(value, (list, tuple)):
            return all(plain(v) for v in value)
        return isinstance(value, (int, float, str, bool, type(None)))

    return {key: value for key, value in scheduler.state_dict().items() if plain(value)}


def check_writable(directory: Any) -> None:
    """An output directory that cannot be written is an error before training, not at the first save."""
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".oneloop-probe"  # always the same, so that a run that dies just here leaves no trail of them
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"output_dir {str(directory)!r} cannot be written: {error.strerror or error}. Choose another directory, or "
            "change its permissions."
        ) from error
