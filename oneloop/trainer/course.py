"""What of a checkpoint decides how the run goes on, beside the weights."""

import logging
from typing import Any

from .. import randomness
from ..checkpoint import store
from ..checkpoint.contents import Contents
from ..checkpoint.safetensors_io import from_numpy
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


class TrainerCourse(TrainerParts):
    """Optimizer, schedule, random state, position and the states of callbacks."""

    def _course_parts(self, in_parts: bool = False) -> dict[str, Any]:
        """What all processes have to contribute to, or to bring, before one of them can write."""
        streams = randomness.get_state(self.backend)
        streams |= {f"epoch/{name}": array for name, array in (self._epoch_random or {}).items()}
        for i, buffer in enumerate(self.strategy.own_buffers(self.model)):
            streams[f"{BUFFER}{i}"] = self.backend.tensors.to_numpy(buffer)
        position = self._position()
        own = (streams, {key: position[key] for key in DATA_STATES})
        every = (
            self.processes.gather_object(own)
            if not self.args.save_on_each_node
            else self.processes.all_gather_object(own)
        )
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
                    name: [place.name, place.axes]
                    for name, place in self.backend.framework_layout.layout(self.model).items()
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


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, dict, list, type(None))) else str(value)


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
