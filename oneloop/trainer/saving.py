"""What goes into a checkpoint, and back out of it."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from .. import randomness
from ..checkpoint import store
from ..errors import CheckpointError
from ..state import ExportableState, TrainerState
from .parts import TrainerParts

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
STATE = "trainer_state.json"
RUN = "run.json"
ARGUMENTS = "training_args.json"


def write_json(path: Path, data: Any) -> None:
    """A whole file or none: written beside its place and moved there."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(partial, path)


class TrainerSaving(TrainerParts):
    """save_model, save_state, checkpoints and their loading."""

    # -- the model alone

    def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
        """Write the model, its configuration and its tokenizer so that the model's own library can open them."""
        if not self.args.should_save:
            return
        self._save(str(output_dir or self.args.output_dir))

    def _save(self, output_dir: str, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        models, weights = self.backend.models, self.backend.weights
        model = models.unwrap(self.model)
        if models.is_adapter(model):
            weights.save_adapter(model, folder)
        else:
            tensors, tied = weights.model_tensors(model)
            partial = folder / f".{WEIGHTS}.partial"
            weights.save_tensors(state_dict or tensors, partial, {"tied": json.dumps(tied)} if tied else None)
            os.replace(partial, folder / WEIGHTS)
            for part in ("config", "generation_config"):
                config: Any = getattr(model, part, None)
                if hasattr(config, "save_pretrained"):
                    config.save_pretrained(str(folder))
        if hasattr(self.processing_class, "save_pretrained"):
            self.processing_class.save_pretrained(str(folder))
        write_json(folder / ARGUMENTS, self.args.to_dict())

    def save_state(self) -> None:
        """trainer_state.json in the output directory."""
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.store_flos()
            partial = folder / f".{STATE}.partial"
            self.state.save_to_json(partial)
            os.replace(partial, folder / STATE)

    # -- checkpoints

    def _save_checkpoint(self, model: Any = None, trial: Any = None, reason: str = "save") -> Path:
        """Everything that a resumed run needs, in output_dir/checkpoint-STEP."""
        self.store_flos()
        self.losses.read()
        step = self.state.global_step
        parent = Path(self.args.output_dir)
        target = parent / f"{store.PREFIX}-{step}"
        if reason == "best" or self._new_best:
            self.state.best_model_checkpoint = str(target)
        self.state.stateful_callbacks = self._callback_states()
        with store.staged(parent, step, self._run_id, reason) as folder:
            self.save_model(str(folder), _internal_call=True)
            if not self.args.save_only_model:
                self._write_course(folder)
            self.state.save_to_json(folder / STATE)
        self._last_saved = str(target)
        self._forget_old_checkpoints(reason)
        return target

    def _forget_old_checkpoints(self, reason: str) -> None:
        parent = Path(self.args.output_dir)
        best = self.state.best_model_checkpoint
        for old in [c for c in store.find(parent) if c.run_id == self._run_id and str(c.path) != best]:
            manifest = store.read_manifest(old.path)
            if manifest is not None and manifest.get("reason") == "best":  # was kept only for being the best
                store.delete(old.path)
        store.rotate(parent, self._run_id, self.args.save_total_limit, {best} if best else set())

    def _write_course(self, folder: Path) -> None:
        """Optimizer, schedule, random state and the rest of what decides how the run goes on."""
        from safetensors.numpy import save_file

        tensors, optimizer = self.backend.weights.optimizer_state(self.optimizer, self.model)
        self.backend.weights.save_tensors(tensors, folder / OPTIMIZER)
        save_file(randomness.get_state(self.backend), folder / RANDOM)
        run = {
            "format": store.FORMAT,
            "run_id": self._run_id,
            "framework": self.backend.NAME,
            "optimizer": optimizer,
            "scheduler": _json_state(self.lr_scheduler),
            "engine": self.engine.state(),
            "losses": self.losses.state(),
            "work": {"tokens": self._tokens, "flops": self._flops, "unpadded": self._unpadded_total},
            "split": self._split,
            "course": self._course(),
        }
        write_json(folder / RUN, run)

    def _course(self) -> dict[str, Any]:
        """What a resumed run should have the same of."""
        plan = self._plan
        return {
            "samples": plan.samples,
            "samples_per_step": plan.samples_per_step,
            "accumulation": plan.accumulation,
            "max_steps": plan.max_steps,
            "seed": self.args.seed,
            "data_seed": self._data_seed,
            "sampling": str(self.args.train_sampling_strategy),
        }

    def _callback_states(self) -> dict[str, Any]:
        states: dict[str, Any] = {"TrainerControl": self.control.state()}
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState) or (
                callable(getattr(callback, "state", None)) and hasattr(callback, "from_state")
            ):
                states.setdefault(type(callback).__name__, []).append(callback.state())
        return {name: s[0] if isinstance(s, list) and len(s) == 1 else s for name, s in states.items()}

    # -- loading

    def _find_checkpoint(self, wanted: Any) -> Path | None:
        """The checkpoint that resume_from_checkpoint means; None for a fresh start."""
        if wanted is None or wanted is False:
            return None
        if wanted is True or wanted == "latest":
            found = store.latest(Path(self.args.output_dir))
            if found is None:
                logger.warning(
                    "resume_from_checkpoint=%s, but %s has no checkpoint: the run starts from the beginning.",
                    wanted,
                    self.args.output_dir,
                )
            return None if found is None else found.path
        path = Path(wanted)
        if not path.is_dir():
            raise CheckpointError(
                f"resume_from_checkpoint={str(wanted)!r} is not a directory. Give a checkpoint-N "
                "directory, or True for the newest one in output_dir."
            )
        wrong = store.problems(path)
        if wrong:
            raise CheckpointError(f"the checkpoint {path} is not whole: {'; '.join(wrong)}")
        return path

    def _load_weights(self, path: Path) -> None:
        """Weights of a checkpoint or of a directory that save_model wrote."""
        weights = self.backend.weights
        if self.backend.models.is_adapter(self.backend.models.unwrap(self.model)):
            weights.load_adapter(self.model, path)
            return
        if not (path / WEIGHTS).is_file():
            raise CheckpointError(f"{path} has no {WEIGHTS}")
        from safetensors import safe_open

        with safe_open(str(path / WEIGHTS), framework="np") as f:
            tied = json.loads((f.metadata() or {}).get("tied", "{}"))
        weights.load_model(self.model, weights.load_tensors(path / WEIGHTS), tied, str(path))

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if best is None:
            logger.warning("load_best_model_at_end=True, but no evaluation has set a best model; the last one stays.")
            return
        logger.info("Loading the best model: %s (%s).", best, self.state.best_metric)
        self._load_weights(Path(best))

    def _load_state(self, path: Path) -> None:
        """Step, logs and callbacks of a checkpoint; comes before the loop is planned."""
        self.state = TrainerState.load_from_json(path / STATE)
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()
        best = self.state.best_model_checkpoint
        if best and not Path(best).is_dir() and (path.parent / Path(best).name).is_dir():
            self.state.best_model_checkpoint = str(path.parent / Path(best).name)  # the run was moved
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

    def _load_course(self, path: Path) -> None:
        """Optimizer, schedule and counters of a checkpoint; the random state comes last of all, in _load_random."""
        if not (path / RUN).is_file():
            raise CheckpointError(
                f"{path} holds a model without optimizer and random state (save_only_model=True wrote it), so a run "
                "cannot go on from it. Load its weights into the model and start a new run."
            )
        run = json.loads((path / RUN).read_text(encoding="utf-8"))
        self._run_id = run["run_id"]
        self._last_saved = str(path)
        weights = self.backend.weights
        weights.load_optimizer(
            self.optimizer, self.model, weights.load_tensors(path / OPTIMIZER), run["optimizer"], str(path)
        )
        if run["scheduler"] is not None and hasattr(self.lr_scheduler, "load_state_dict"):
            self.lr_scheduler.load_state_dict(run["scheduler"])
        self.engine.load_state(run["engine"])
        self.losses.load_state(run["losses"])
        work = run["work"]
        self._tokens, self._flops, self._unpadded_total = work["tokens"], work["flops"], work["unpadded"]
        self._split = run.get("split", 1)
        self._report_changes(run["course"])

    def _report_changes(self, before: dict[str, Any]) -> None:
        now = self._course()
        changed = [f"{key} was {before[key]}, is {now[key]}" for key in before if before[key] != now.get(key)]
        if changed:
            logger.warning(
                "This run differs from the one that wrote the checkpoint, so it will not end with the same bits: %s.",
                "; ".join(changed),
            )

    def _load_random(self, path: Path) -> None:
        from safetensors.numpy import load_file

        randomness.set_state(self.backend, load_file(path / RANDOM))


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
        probe = path / f".oneloop-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CheckpointError(
            f"output_dir {str(directory)!r} cannot be written: {error.strerror or error}. Choose another directory, or "
            "change its permissions."
        ) from error


def free_bytes(directory: Any) -> int:
    return shutil.disk_usage(directory).free
