"""What compatibility adds to each Trainer."""

from typing import Any

from ..extension import ArgumentsExtension, Extension, extend_arguments, register
from ..plan import request as plan_request
from . import accelerate_state, mode
from .service_callbacks import ServiceCallbacks
from .transformers import warn_unused_overrides
from .trl_state import TrlState


class ScriptExpectations(Extension):
    """What scripts for other Trainers expect of one, beyond its names and its behaviour."""

    def created(self) -> None:
        trainer = self.core.trainer
        warn_unused_overrides(trainer)
        # Scripts of transformers write into it as soon as there is a Trainer; otherwise the first file creates it.
        if mode.follows("transformers") and trainer.args.should_save and not plan_request.is_active():
            self.core.run.checkpointer.directory.path.mkdir(parents=True, exist_ok=True)

    def gradient_state(self) -> Any:
        return self.core.trainer.accelerator.gradient_state

    def evaluation_loader(self, loader: Any) -> Any:
        return self.core.trainer.accelerator.for_evaluation(loader)


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
    """Once per process, before there are arguments or a Trainer."""
    extend_arguments(AccelerateState())
    register(ScriptExpectations, ServiceCallbacks, TrlState)
