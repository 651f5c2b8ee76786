"""Arguments with a fixed value here: mostly PaddleNLP's, for model parallelism and sharded checkpoints.

Scripts read them, and configuration files contain them at their default. They can be read, and set to the value that
describes what oneloop does; any other value is refused. They are not stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..distributed.world import world
from ..errors import UnsupportedError
from . import paddleformers


@dataclass(frozen=True)
class FixedArgument:
    """Why the value is fixed, and the accepted values; the first of them is what the argument reads as."""

    why: str
    values: tuple[Any, ...]
    type: Any = None  # for the command line; None: the type of the value
    of_run: Callable[[], Any] | None = None  # what the argument reads as, if that depends on the run

    def read(self) -> Any:
        return self.values[0] if self.of_run is None else self.of_run()

    def accepts(self, value: Any) -> bool:
        return value in self.values or (self.of_run is not None and value == self.of_run())

    @property
    def hint(self) -> Any:
        return type(self.values[0]) if self.type is None else self.type

    @property
    def accepted_text(self) -> str:
        values = self.values if self.of_run is None else (*self.values, "this run's value")
        return " or ".join('""' if value == "" else str(value) for value in values)


_ONE_COPY = "this kind of model parallelism is not supported; use tensor_parallel_size, or sharding"
_PARTS = "a checkpoint holds the full model, independent of the number of processes"
_AMP = "Paddle's default op lists are used; for others, use paddle.amp.auto_cast in the model's forward"
_NO, _NOTHING, _ONE = (False,), ("",), (1, -1)
_TYPES = {"muon_exclude_patterns": list[str] | None}  # where it cannot be told from the value

# One from transformers, the others from the TrainingArguments of PaddleNLP, and below of PaddleFormers.
FIXED_ARGUMENTS = {
    "_n_gpu": FixedArgument("the number of devices is detected; select one with device", (-1,), int),
    "amp_custom_black_list": FixedArgument(_AMP, (None, []), list[str] | None),
    "amp_custom_white_list": FixedArgument(_AMP, (None, []), list[str] | None),
    "amp_master_grad": FixedArgument(
        "gradients have the dtype of their weights; fp16_opt_level='O1' keeps both in float32", _NO
    ),
    "data_parallel_config": FixedArgument("Paddle's data-parallel options are not supported", _NOTHING),
    "data_parallel_degree": FixedArgument(
        "it is the number of processes that were launched", (-1,), of_run=lambda: world().size
    ),
    "distributed_dataloader": FixedArgument("each process loads its own batches", _NO),
    "enable_auto_parallel": FixedArgument(_ONE_COPY, _NO),
    "flatten_param_grads": FixedArgument("gradients are not flattened", _NO),
    "force_reshard_pp": FixedArgument(_PARTS, _NO),
    "hybrid_parallel_topo_order": FixedArgument(_ONE_COPY, (None,), str | None),
    "ignore_load_lr_and_optim": FixedArgument("load the weights yourself and start a new run", _NO),
    "ignore_save_lr_and_optim": FixedArgument("use save_only_model=True", _NO),
    "lazy_data_processing": FixedArgument("samples are read on access", (True,)),
    "load_sharded_model": FixedArgument(_PARTS, _NO),
    "max_evaluate_steps": FixedArgument("an evaluation uses the whole dataset; pass a smaller eval_dataset", (-1,)),
    "metrics_output_path": FixedArgument("save_metrics() writes into output_dir", (None,), str | None),
    "pipeline_parallel_config": FixedArgument(_ONE_COPY, _NOTHING),
    "pipeline_parallel_degree": FixedArgument(_ONE_COPY, _ONE),
    "save_sharded_model": FixedArgument(_PARTS, _NO),
    "sharding_parallel_config": FixedArgument("there are no further sharding options on Paddle", _NOTHING),
    "skip_profile_timer": FixedArgument("logs include steps_per_second; use profile=True for details", (True,)),
    "tensor_parallel_config": FixedArgument(_ONE_COPY, _NOTHING),
    "unified_checkpoint": FixedArgument(_PARTS, (True, False)),
    "unified_checkpoint_config": FixedArgument(_PARTS, _NOTHING),
    "use_expert_parallel": FixedArgument(_ONE_COPY, _NO),
    "use_hybrid_parallel": FixedArgument(_ONE_COPY, _NO),
    "wandb_api_key": FixedArgument(
        "arguments are written to files, so they must not contain keys; set WANDB_API_KEY instead",
        (None,),
        str | None,
    ),
} | {
    name: FixedArgument(why, values, _TYPES.get(name, str | None if None in values else None))
    for name, (why, values) in paddleformers.FIXED.items()
}


def check(name: str, value: Any) -> None:
    """Refuse any value other than the accepted ones."""
    fixed_argument = FIXED_ARGUMENTS[name]
    if not fixed_argument.accepts(value):
        raise UnsupportedError(
            f"{name} cannot be set to anything but {fixed_argument.accepted_text}: {fixed_argument.why}."
        )


def attribute(name: str) -> property:
    """A property that reads the fixed value and accepts no other."""

    def get(self: Any) -> Any:
        return FIXED_ARGUMENTS[name].read()

    def set_(self: Any, value: Any) -> None:
        check(name, value)

    return property(get, set_, doc=f"Fixed: {FIXED_ARGUMENTS[name].why}.")
