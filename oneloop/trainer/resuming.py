"""Going on from a checkpoint: which one, what is in it, and where in the data it stands."""

import json
import logging
import os
from pathlib import Path
from typing import Any

from .. import loop, randomness
from ..checkpoint import store
from ..checkpoint.contents import WEIGHTS
from ..checkpoint.parts import files_of
from ..checkpoint.tensors import read as read_tensors
from ..checkpoint.tensors import read_metadata
from ..data.dealing import fits_any_number, of_one_process
from ..data.order import BatchSampler
from ..errors import CheckpointError, RefusedError
from ..state import TrainerState
from . import crossing, foreign
from .course import BUFFER, DATA_STATES, RANDOM, RUN, STATE
from .parts import TrainerParts

logger = logging.getLogger(__name__)

# What comes back with the optimizer and its schedule, whatever the arguments say.
_STORED = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")


class TrainerResuming(TrainerParts):
    """resume_from_checkpoint, and the epoch that it starts in."""

    # -- which checkpoint

    def _find_checkpoint(self, wanted: Any) -> Path | None:
        """The checkpoint that resume_from_checkpoint means; None for a fresh start."""
        self._passed_over = []
        if wanted is None or wanted is False:
            return None
        if wanted is True or wanted == "latest":
            return self._newest_whole()
        path = Path(wanted) if isinstance(wanted, (str, os.PathLike)) else None
        if path is None or not path.is_dir():
            raise CheckpointError(
                f"resume_from_checkpoint={wanted!r} is not a directory. Give a checkpoint-N directory, or True "
                "for the newest one in output_dir."
            )
        wrong = store.problems(path)
        if wrong:
            whole = [str(c.path) for c in store.find(path.parent) if not store.problems(c.path)]
            raise CheckpointError(
                f"the checkpoint {path} is not whole: {'; '.join(wrong)}. "
                + (f"Whole ones beside it: {', '.join(whole)}." if whole else "There is no whole one beside it.")
            )
        return path

    def _newest_whole(self) -> Path | None:
        """The newest checkpoint of the run that wrote last; one that is damaged is passed over, aloud."""
        every = store.newest_first(Path(self.args.output_dir))
        for candidate in every:
            wrong = store.problems(candidate.path)
            if not wrong:
                return candidate.path
            self._passed_over.append(f"{candidate.path.name}: {'; '.join(wrong)}")
            logger.warning("Passing over %s, which is not whole: %s.", candidate.path, "; ".join(wrong))
        if every:
            raise CheckpointError(
                f"none of the {len(every)} checkpoints in {self.args.output_dir} is whole; the warnings above say why. "
                "Leave resume_from_checkpoint out to start from the beginning."
            )
        logger.warning(
            "resume_from_checkpoint is set, but %s has no checkpoint: the run starts from the beginning.",
            self.args.output_dir,
        )
        return None

    # -- what is in it

    def _load_from_checkpoint(self, resume_from_checkpoint: Any = None, model: Any = None) -> None:
        """The weights of a checkpoint into the model; for trainers of others, which call it themselves.

        True is the last checkpoint in output_dir; without a checkpoint nothing is done.
        """
        if not resume_from_checkpoint:
            return
        if model is not None and model is not self.model:
            raise RefusedError("_load_from_checkpoint fills the Trainer's own model; set trainer.model first.")
        path = self._find_checkpoint(resume_from_checkpoint)
        if path is not None:
            self._load_weights(path)

    def _load_weights(self, path: Path) -> None:
        """Weights of a checkpoint or of a directory that save_model wrote."""
        weights = self.backend.weights
        if store.is_foreign(path):
            self.backend.foreign.load_weights(self.model, path)
            return
        if self.backend.models.is_adapter(self.backend.models.unwrap(self.model)):
            weights.load_adapter(self.model, path)
            return
        files = files_of(path, "model")
        if not files:
            raise CheckpointError(f"{path} has no {WEIGHTS}")
        tied = json.loads(read_metadata(files[0]).get("tied", "{}"))
        run = crossing.run_of(path)
        if crossing.is_needed(self, run):
            crossing.load_weights(self, run, path, files, tied)
            return
        tensors: dict[str, Any] = {}
        for file in files:
            tensors |= self.strategy.load_tensors(file)
        self.strategy.load_model(self.model, tensors, tied, str(path))

    def _reads_parts_of(self, path: Path) -> bool:
        """Whether each process reads what it needs of the weights, once the model is divided. What other writers and
        other frameworks wrote is read whole, before."""
        return (
            self.strategy.loads_parts
            and not store.is_foreign(path)
            and not crossing.is_needed(self, crossing.run_of(path))
        )

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if best is None:
            logger.warning("load_best_model_at_end=True, but no evaluation has set a best model; the last one stays.")
            return
        wrong = store.problems(Path(best))
        if wrong:
            raise CheckpointError(
                f"the best model, {best}, cannot be loaded: {'; '.join(wrong)}. The training is done; the model of the "
                f"last step is in memory and in {self._last_saved}."
            )
        logger.info("Loading the best model: %s (%s).", best, self.state.best_metric)
        self._load_weights(Path(best))

    def _load_state(self, path: Path) -> None:
        """Step, logs and callbacks of a checkpoint; comes before the loop is planned."""
        self.state = TrainerState.load_from_json(path / STATE)
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()
        best = self.state.best_model_checkpoint
        if best and (path.parent / Path(best).name).is_dir():  # the run may have been moved or copied
            best = self.state.best_model_checkpoint = str(path.parent / Path(best).name)
        if best and self.args.load_best_model_at_end and store.problems(Path(best), contents=False):
            logger.warning("The best model so far, %s, is gone: the best is looked for anew from here.", best)
            self.state.best_model_checkpoint = self.state.best_metric = self.state.best_global_step = None
        for callback in self.callback_handler.callbacks:
            stored = self.state.stateful_callbacks.get(type(callback).__name__)
            if not stored or not hasattr(callback, "from_state"):
                continue
            stored = stored if isinstance(stored, dict) else stored.pop(0)
            values = dict(stored["attributes"])
            if self.args.restore_callback_states_from_checkpoint:
                values |= stored["args"]
            for name, value in values.items():
                setattr(callback, name, value)

    def _load_course(self, path: Path) -> loop.Position:
        """Optimizer, schedule, counters and position; the random state comes last of all, in open_epoch."""
        if store.is_foreign(path):
            return foreign.load_course(self, path)
        if not (path / RUN).is_file():
            raise CheckpointError(
                f"{path} holds a model without optimizer and random state (save_only_model=True wrote it), so a run "
                "cannot go on from it. Load its weights into the model and start a new run."
            )
        run = json.loads((path / RUN).read_text(encoding="utf-8"))
        self._crosses_from = run["framework"] if crossing.is_needed(self, run) else None
        self._run_id = self._own_or_new_id(run["run_id"])
        self._last_saved = str(path)
        if self._crosses_from:
            logger.warning(
                "The checkpoint was written on %s: weights, moments, schedule, position and logs go on here; random "
                "numbers of the framework, such as dropout's, start anew from the seed.",
                self._crosses_from,
            )
            crossing.load_optimizer(self, run, path, files_of(path, "optimizer"))
        else:
            tensors: dict[str, Any] = {}
            for file in files_of(path, "optimizer"):
                tensors |= self.strategy.load_tensors(file)
            self.strategy.load_optimizer(self.optimizer, self.model, tensors, run["optimizer"], str(path))
        load = getattr(self.lr_scheduler, "load_state_dict", getattr(self.lr_scheduler, "set_state_dict", None))
        if run["scheduler"] is not None and load is not None:  # Paddle's have the second name
            load(run["scheduler"])
        self.engine.load_state(run["engine"])
        norm, self._rate_used = run.get("grad_norm"), run.get("learning_rate", 0.0)
        self.engine.norm = None if norm is None else float.fromhex(norm)
        self.losses.load_state(run["losses"])
        work = run["work"]
        if self.team.is_main:  # they are those of all processes
            self._tokens, self._flops, self._unpadded_total = work["tokens"], work["flops"], work["unpadded"]
        self._split = run.get("split", 1)
        self._report_changes(run["course"])
        self._resume_random = path
        if self.args.should_save:  # the run may have died between its last save and what follows one
            self._clear_superseded(str(path), self._run_id, self.state.best_model_checkpoint)
        return self._start_from(run)

    def _keep_global_batch(self, path: Path) -> None:
        """On another number of processes an update keeps its samples: it is the accumulation that changes."""
        if not (path / RUN).is_file():
            return
        run = json.loads((path / RUN).read_text(encoding="utf-8"))
        course = run["course"]
        if course.get("processes", 1) == self.args.world_size:
            self.strategy.load_state(run.get("strategy", {}))
            return
        wanted, size, world = course["samples_per_step"], self._train_batch_size, self.args.world_size
        self._accumulation = loop.accumulation_for(wanted, size, world)
        self._counts_items = self._counts_items or self._accumulation > 1
        logger.warning(
            "The checkpoint was written by %d process(es), this run has %d: an update keeps its %d samples with "
            "%d x %d samples and %d accumulation step(s). Batches come in the same order. What dropout draws in a "
            "process, and what data draw, is not what it would have been; seed_each_sample=True, from the start of a "
            "run, keeps the data's numbers.",
            course.get("processes", 1),
            world,
            wanted,
            world,
            size,
            self._accumulation,
        )

    def _own_or_new_id(self, run_id: str) -> str:
        """A run that is taken back becomes one of its own: what it wrote later is another course, and stays."""
        every = store.find(Path(self.args.output_dir))
        beyond = [c.path for c in every if c.run_id == run_id and c.step > self.state.global_step]
        later = [path.name for path in beyond if not store.problems(path)]
        if not later:
            return run_id
        self._parent_id = run_id
        logger.warning(
            "The run was further than this checkpoint: %s. From here on it is a run of its own, which leaves these "
            "alone until it reaches their steps.",
            ", ".join(later),
        )
        return store.new_run_id()

    def _report_changes(self, before: dict[str, Any]) -> None:
        now = self._course()
        elastic = ("processes", "accumulation") if before.get("processes") != now["processes"] else ()
        changed = [
            f"{key} was {before[key]}, is {now[key]}" + (" (the checkpoint's is used)" if key in _STORED else "")
            for key in before
            if before[key] != now.get(key) and key not in elastic
        ]
        if changed:
            logger.warning(
                "This run differs from the one that wrote the checkpoint, so it will not end with the same bits: %s.",
                "; ".join(changed),
            )

    # -- where in the data

    def _position(self) -> dict[str, Any]:
        """Where the run stands, for the checkpoint."""
        place: loop.Position = self._place
        return {
            "epoch": place.epoch,
            "step_in_epoch": place.step_in_epoch,
            "epoch_ended": place.epoch_ended,
            # A run that was stopped by a callback stays stopped; one that reached its last step may be given more.
            "stopped": self.control.should_training_stop and not self._plan.is_over(self.state.global_step),
            "epoch_stopped": self.control.should_epoch_stop,
            # What a signal did not leave time for at this step.
            "pending": {name: getattr(self.control, name) for name in ("should_log", "should_evaluate")},
            "data": self._data_state(),
            "collator": _own_state(self.data_collator),
            "dataset": self._indexed_data_state(),
        }

    def _start_from(self, run: dict[str, Any]) -> loop.Position:
        stored, plan = self._own_part(run["position"]), self._plan
        epoch, done, ended = stored["epoch"], stored["step_in_epoch"], stored["epoch_ended"]
        if ended and not plan.is_over(self.state.global_step) and not stored["epoch_stopped"]:
            # The last step of the run had cut the epoch short; it has been given more steps since.
            ended = not (plan.steps_per_epoch and done < plan.steps_per_epoch)
        changed = run["course"]["samples_per_step"] != plan.samples_per_step
        if plan.steps_per_epoch and (changed or run["course"]["samples"] != plan.samples):
            # Another batch size or data set: the position is counted anew from the step.
            epoch, done = divmod(self.state.global_step, plan.steps_per_epoch)
            ended = False
        if ended:
            epoch, done = epoch + 1, 0
        if self.args.ignore_data_skip:
            done = 0
        self._stored_data_state = None if ended or self.args.ignore_data_skip else stored.get("data")
        for owner, key in ((self.data_collator, "collator"), (self.train_dataset, "dataset")):
            if stored.get(key):
                owner.load_state_dict(stored[key])
        self._resume_stopped = stored["stopped"]
        self._resume_pending = stored.get("pending") or {}
        return loop.Position(epoch, done, epoch_stopped=stored["epoch_stopped"] and not ended)

    def _own_part(self, position: dict[str, Any]) -> dict[str, Any]:
        """The position with the states that this process's own data had."""
        others = position.get("ranks", [])
        if self.team.size != len(others) + 1:
            if not others and self.team.size == 1:
                return position
            kept = {"data": position["data"]} if fits_any_number(position["data"]) or not others else {}
            return position | dict.fromkeys(DATA_STATES) | kept
        return position | others[self.team.rank - 1] if self.team.rank else position

    def _do_pending(self) -> None:
        """Log and evaluate what a signal did not leave time for, before the next step."""
        if not any(self._resume_pending.values()):
            return
        for name, value in self._resume_pending.items():
            setattr(self.control, name, value)
        if self._resume_random is not None:
            self._load_random(self._resume_random)
        self.log_evaluate_save()
        self._resume_streams = randomness.get_state(self.backend)

    def _indexed_data_state(self) -> Any:
        """An indexed data set needs no position, but may draw random numbers from a stream of its own."""
        if self.args.dataloader_num_workers or self.backend.loaders.is_iterable(self.train_dataset):
            return None
        return _own_state(self.train_dataset)

    def _data_state(self) -> Any:
        """The state of data that keep their own position, as plain JSON; None for the rest."""
        loader = self._plan.loader
        if isinstance(getattr(loader, "batch_sampler", None), BatchSampler):
            return None
        owners: list[Any] = [loader, getattr(loader, "dataset", None)]
        if getattr(loader, "num_workers", False):
            owners.pop()  # the workers have copies of the data set; this one has not moved
        return next((state for owner in owners if (state := _own_state(owner)) is not None), None)

    def open_epoch(self, plan: loop.Plan, epoch: int, done: int) -> Any:
        """An iterator over the micro-batches of an epoch, from the given step on. A resume computes its position;
        only data that cannot be positioned are walked through, aloud."""
        loader, skip = plan.loader, done * plan.accumulation
        self._past = None
        sampler: Any = getattr(loader, "batch_sampler", None)
        dataset: Any = getattr(loader, "dataset", None)
        parts: list[Any] = [sampler, getattr(loader, "sampler", None), dataset, loader]
        if not hasattr(sampler, "set_epoch"):  # torch's and Paddle's batch samplers do not pass it on
            parts.append(getattr(sampler, "sampler", None))
        for part in {id(p): p for p in parts}.values():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if dataset is not None and self.backend.loaders.is_iterable(dataset):
            self.backend.loaders.reseed_generator(dataset, self._data_seed + epoch)
        skip = self._put_in_place(loader, sampler, dataset, skip)
        if not done:
            self._restore_random()
        elif skip and self._resume_random is not None:
            # The loader draws its order from the streams as they stood when the epoch began.
            self._load_random(self._resume_random, "epoch/")
        # What cannot be positioned has to be walked through again, from where its epoch began.
        self._epoch_random = None if isinstance(sampler, BatchSampler) else randomness.get_state(self.backend)
        self.backend.loaders.begin_epoch(loader, self._data_seed, epoch)
        batches = self.own_batches(loader)
        if skip:
            self._walk(batches, skip)
        # Within an epoch only now: making the iterator may draw numbers, which the unbroken run drew long ago.
        self._restore_random()
        return batches

    def _restore_random(self) -> None:
        if self._resume_streams is not None:
            randomness.set_state(self.backend, self._resume_streams)
        elif self._resume_random is not None:
            self._load_random(self._resume_random)
        self._resume_random = self._resume_streams = None

    def _put_in_place(self, loader: Any, sampler: Any, dataset: Any, skip: int) -> int:
        """Position the data; how many batches are left to walk through."""
        stored, self._stored_data_state = self._stored_data_state, None
        if isinstance(sampler, BatchSampler):
            sampler.start_at(min(skip, len(sampler)))
            return 0
        if not skip:
            return 0
        if stored is not None:
            owner = loader if callable(getattr(loader, "load_state_dict", None)) else dataset
            owner.load_state_dict(stored if self.team.size > 1 else of_one_process(stored))
            return 0
        return skip

    def _walk(self, batches: Any, count: int) -> None:
        from tqdm.auto import tqdm

        logger.warning(
            "The training data cannot be positioned, so the resumed run reads %d batches again and drops them. "
            "A data set with a length and an index resumes at once, and so does one with state_dict and "
            "load_state_dict that no other process loads (dataloader_num_workers=0); ignore_data_skip=True starts the "
            "epoch anew.",
            count,
        )
        for _ in tqdm(range(count), desc="skipping", disable=self.args.disable_tqdm):
            if next(batches, None) is None:
                return

    def _load_random(self, path: Path, prefix: str = "") -> None:
        """The random state of the save, or, with the prefix, of the start of its epoch where that was kept."""
        stored = {name: raw.array() for name, raw in read_tensors(path / RANDOM).items()}
        if self.team.rank:
            own = f"rank{self.team.rank}/"
            stored = {name.removeprefix(own): array for name, array in stored.items() if name.startswith(own)}
            if not stored:  # the run has more processes now
                self._start_own_streams()
        for i, buffer in enumerate(self.strategy.own_buffers(self.model)):
            if (array := stored.pop(f"{BUFFER}{i}", None)) is not None:
                self.strategy.put_buffer(buffer, array)
        stored = {name: array for name, array in stored.items() if not name.startswith(BUFFER)}
        states = {name: array for name, array in stored.items() if name.startswith("epoch/") == bool(prefix)}
        states = {name.removeprefix(prefix): array for name, array in states.items() if not name.startswith("rank")}
        if self._crosses_from:
            states = {name: array for name, array in states.items() if randomness.is_common(name)}
        if states:
            randomness.set_state(self.backend, states)


def _own_state(owner: Any) -> Any:
    """The state that a loader, data set or collator keeps of itself, as plain JSON; None when it keeps none."""
    if not callable(getattr(owner, "state_dict", None)) or not callable(getattr(owner, "load_state_dict", None)):
        return None
    try:
        return json.loads(json.dumps(owner.state_dict()))
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        logger.warning(
            "%s has a state_dict that JSON cannot hold (%s); a resumed run cannot restore it.",
            type(owner).__name__,
            error,
        )
        return None
