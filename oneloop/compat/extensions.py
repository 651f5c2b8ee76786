"""Extensions that compat adds to each Trainer."""

from collections.abc import Mapping
from typing import Any

from .. import libraries
from ..checkpoint.model_files import writing
from ..extension import ArgumentsExtension, Extension, extend_arguments, register
from ..plan import request as plan_request
from . import accelerate_state, mode
from .model_library import TransformersLibrary
from .service_callbacks import ServiceCallbacks
from .transformers import warn_unused_overrides
from .trl_state import TrlState


class ScriptExpectations(Extension):
    """Hooks that scripts written for other Trainers rely on, beyond names and behaviour."""

    def created(self) -> None:
        trainer, run = self.trainer, self.core.run
        warn_unused_overrides(trainer)
        # Scripts of transformers write into it as soon as there is a Trainer; otherwise the first file creates it.
        if mode.emulates("transformers") and trainer.args.should_save and not plan_request.is_active():
            with writing(run.output_dir):
                run.output_dir.mkdir(parents=True, exist_ok=True)

    def gradient_state(self) -> Any:
        return self.trainer.accelerator.gradient_state

    def evaluation_loader(self, loader: Any) -> Any:
        return self.trainer.accelerator.for_evaluation(loader)


class AccelerateState(ArgumentsExtension):
    """The state of accelerate, and its view of DeepSpeed, for arguments."""

    def created(self, args: Any) -> None:
        accelerate_state.initialise_processes(args)
        accelerate_state.divide_loaded_models(args)

    def distributed_state(self, args: Any) -> Any:
        return accelerate_state.partial_state(args)

    def hf_deepspeed_config(self, args: Any) -> Any:
        return accelerate_state.hf_deepspeed_config(args)

    def deepspeed_plugin(self, args: Any) -> Any:
        return accelerate_state.deepspeed_plugin(args)


def install() -> None:
    """Register the extensions, once per process, before there are arguments or a Trainer."""
    _describe_libraries()
    extend_arguments(AccelerateState())
    register(ScriptExpectations, ServiceCallbacks, TrlState)


def _describe_libraries() -> None:
    libraries.MODELS.update(("transformers", "mindnlp"))
    libraries.PACKED_BY_POSITIONS.add("transformers")
    libraries.set_models(TransformersLibrary())
    libraries.SHARDING_LOADERS.add("accelerate.data_loader")
    libraries.OPTIMIZER_STATES["transformers.optimization.Adafactor"] = _adafactor_state
    packages = "mindnlp paddlenlp paddleformers transformers tokenizers datasets accelerate peft"
    libraries.RECORDED.extend(name for name in packages.split() if name not in libraries.RECORDED)


def _adafactor_state(shape: tuple[int, ...], group: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """What Adafactor of transformers keeps for a parameter."""
    fields: dict[str, tuple[int, ...] | None] = {"step": None, "RMS": None}
    if len(shape) > 1:
        fields |= {"exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": (*shape[:-2], shape[-1])}
    else:
        fields["exp_avg_sq"] = shape
    return fields | ({"exp_avg": shape} if group.get("beta1") is not None else {})
