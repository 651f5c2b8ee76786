"""Arguments that have one answer here: most of PaddleNLP's, for parts of models and of checkpoints.

Scripts read them, and settings files name them with the value that means nothing. They can be read, and given or set to
what is done anyway; anything else is refused. They are not stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..distributed.world import world
from ..errors import RefusedError


@dataclass(frozen=True)
class Settled:
    """Why no other value is possible, and the values that say what is done anyway; the first of them is read."""

    why: str
    values: tuple[Any, ...]
    type: Any = None  # for the command line; None: that of the value
    of_run: Callable[[], Any] | None = None  # what is read, where it depends on the run

    def read(self) -> Any:
        return self.values[0] if self.of_run is None else self.of_run()

    def agrees(self, value: Any) -> bool:
        return value in self.values or (self.of_run is not None and value == self.of_run())

    @property
    def hint(self) -> Any:
        return type(self.values[0]) if self.type is None else self.type

    @property
    def shown(self) -> str:
        values = self.values if self.of_run is None else (*self.values, "the run's own")
        return " or ".join('""' if value == "" else str(value) for value in values)


_ONE_COPY = "the model is not cut up; use data parallelism, or sharding to share out its state"
_PARTS = "a checkpoint is one whole model for any number of processes"
_AMP = "Paddle's own lists of operations are used; write paddle.amp.auto_cast into the model's forward"
_NO, _NOTHING, _ONE = (False,), ("",), (1, -1)

# One of transformers, the others of PaddleNLP's TrainingArguments.
SETTLED = {
    "_n_gpu": Settled("the number of devices is read off the machine; choose one with device", (-1,), int),
    "amp_custom_black_list": Settled(_AMP, (None, []), list[str] | None),
    "amp_custom_white_list": Settled(_AMP, (None, []), list[str] | None),
    "amp_master_grad": Settled(
        "gradients have the type of their weights; fp16_opt_level='O1' keeps both in float32", _NO
    ),
    "data_parallel_config": Settled("the exchange of gradients has no options of Paddle's here", _NOTHING),
    "data_parallel_degree": Settled(
        "it is the number of processes that were launched", (-1,), of_run=lambda: world().size
    ),
    "distributed_dataloader": Settled("every process makes the batches of its own", _NO),
    "enable_auto_parallel": Settled(_ONE_COPY, _NO),
    "flatten_param_grads": Settled("gradients stay where the framework has put them", _NO),
    "force_reshard_pp": Settled(_PARTS, _NO),
    "hybrid_parallel_topo_order": Settled(_ONE_COPY, (None,), str | None),
    "ignore_load_lr_and_optim": Settled("load the weights by hand and start a new run", _NO),
    "ignore_save_lr_and_optim": Settled("use save_only_model=True", _NO),
    "lazy_data_processing": Settled("data sets are read when their samples are needed", (True,)),
    "load_sharded_model": Settled(_PARTS, _NO),
    "max_evaluate_steps": Settled("an evaluation counts every sample; pass a shorter eval_dataset", (-1,)),
    "metrics_output_path": Settled("save_metrics() writes into output_dir", (None,), str | None),
    "pipeline_parallel_config": Settled(_ONE_COPY, _NOTHING),
    "pipeline_parallel_degree": Settled(_ONE_COPY, _ONE),
    "save_sharded_model": Settled(_PARTS, _NO),
    "sep_parallel_degree": Settled(_ONE_COPY, _ONE),
    "sharding_parallel_config": Settled("sharding has no further options on Paddle", _NOTHING),
    "skip_profile_timer": Settled("logs have steps_per_second; profile=True shows more", (True,)),
    "tensor_parallel_config": Settled(_ONE_COPY, _NOTHING),
    "tensor_parallel_degree": Settled(_ONE_COPY, _ONE),
    "unified_checkpoint": Settled(_PARTS, (True, False)),
    "unified_checkpoint_config": Settled(_PARTS, _NOTHING),
    "use_expert_parallel": Settled(_ONE_COPY, _NO),
    "use_hybrid_parallel": Settled(_ONE_COPY, _NO),
    "wandb_api_key": Settled(
        "a key does not belong among arguments, which are written to files; set WANDB_API_KEY instead",
        (None,),
        str | None,
    ),
}


def check(name: str, value: Any) -> None:
    """A value that asks for something else than is done is refused."""
    settled = SETTLED[name]
    if not settled.agrees(value):
        raise RefusedError(f"{name} cannot be set to anything but {settled.shown}: {settled.why}.")


def attribute(name: str) -> property:
    """Reads the settled value, and takes it."""

    def get(self: Any) -> Any:
        return SETTLED[name].read()

    def set_(self: Any, value: Any) -> None:
        check(name, value)

    return property(get, set_, doc=f"Settled: {SETTLED[name].why}.")
