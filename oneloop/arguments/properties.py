"""Properties of the process, the device and the run; nothing here is stored as an argument."""

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..backends import loading
from ..distributed.collectives import SINGLE_PROCESS, ProcessGroup
from ..distributed.world import world
from ..enums import ParallelMode
from ..errors import ArgumentError, UnsupportedError
from ..extension import of_arguments
from . import support
from .paddlenlp import PaddleProperties
from .run import to_device

if TYPE_CHECKING:
    from .signatures import ArgumentFields as Groups
else:
    from .groups import Groups

LOGGER = logging.getLogger("oneloop")


class Properties(PaddleProperties, Groups):
    """The read-only part of TrainingArguments."""

    # -- framework and device - ---------------------------------------------------------------------------------

    def bind(self, backend: str) -> None:
        """Bind these arguments to a framework; called by Trainer."""
        bound = self.__dict__.get("_backend")
        if bound not in (None, backend):
            raise ArgumentError(
                f"these arguments were first used with {bound}, and now with a model of {backend}; expected one "
                "framework. Create new arguments for this model, and read args.device only after the model's framework "
                "is imported."
            )
        self.__dict__["_backend"] = backend

    def check_backend(self, backend: str, device_type: str) -> None:
        """Raise UnsupportedError for every value that this backend, device or release does not support."""
        support.check(self, backend, device_type)

    @property
    def device(self) -> Any:
        """The framework's device object. Reading it before there is a model selects the framework."""
        spec = self.device_spec
        cached = self.__dict__.get("_device")
        if cached is not None and cached[0] == spec:
            return cached[1]
        name = self.__dict__.get("_backend") or loading.guess()
        if name is None:
            raise UnsupportedError("args.device requires a framework, but none is installed: pip install torch")
        device = loading.load(name).devices.resolve(spec)
        self.bind(name)
        self.__dict__["_device"] = (spec, device)
        return device

    @device.setter
    def device(self, value: Any) -> None:
        self.device_spec = None if value is None else to_device("device", value)

    @property
    def _setup_devices(self) -> Any:
        """The device, under the name by which transformers scripts ask for it early."""
        return self.device

    @property
    def n_gpu(self) -> int:
        """Accelerators used by this process: 1 or 0. To use several, launch several processes."""
        return 0 if str(self.device).lower().startswith("cpu") else 1

    @property
    def _n_gpu(self) -> int:
        return self.n_gpu

    @_n_gpu.setter
    def _n_gpu(self, value: int) -> None:
        if value not in (-1, 0, 1):
            raise UnsupportedError(
                f"_n_gpu={value!r} is not supported: one process uses one device. Launch one process per device with "
                "the framework's launcher instead."
            )

    @property
    def place_model_on_device(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_device"}

    # -- batches and steps --------------------------------------------------------------------------------------------

    @property
    def train_batch_size(self) -> int:
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        return self.per_device_eval_batch_size

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Warmup steps in a run of this length: warmup_steps if set, otherwise warmup_ratio of all steps."""
        steps = self.warmup_steps
        if steps >= 1:
            return int(steps)
        return math.ceil(num_training_steps * (steps or self.warmup_ratio or 0))

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        return world().size

    @property
    def process_index(self) -> int:
        return world().rank

    @property
    def local_process_index(self) -> int:
        return world().local_rank

    @property
    def parallel_mode(self) -> ParallelMode:
        return ParallelMode.DISTRIBUTED if world().size > 1 else ParallelMode.NOT_PARALLEL

    @property
    def processes(self) -> ProcessGroup:
        """The process group of the run, for collectives. The first access initializes it."""
        if world().size == 1:
            return SINGLE_PROCESS
        name = self.__dict__.get("_backend")
        backend = loading.load(name) if name else loading.default_backend()
        if backend.parallel is None:
            raise UnsupportedError(f"{world().size} processes were launched, and {backend.NAME} runs on one alone.")
        return backend.parallel.init_process_group(self)

    @property
    def distributed_state(self) -> Any:
        """accelerate's PartialState, initialised; None without accelerate."""
        return of_arguments().distributed_state(self)

    @property
    def hf_deepspeed_config(self) -> Any:
        """accelerate's view of the DeepSpeed configuration; None without one."""
        return of_arguments().hf_deepspeed_config(self)

    @property
    def deepspeed_plugin(self) -> Any:
        """accelerate's plugin for the DeepSpeed configuration; None without one."""
        return of_arguments().deepspeed_plugin(self)

    @property
    def mixed_precision(self) -> str:
        """no, fp16 or bf16."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "no"

    @property
    def should_log(self) -> bool:
        here = world()
        return here.is_local_main if self.log_on_each_node else here.is_main

    @property
    def should_save(self) -> bool:
        here = world()
        return here.is_local_main if self.save_on_each_node else here.is_main

    @property
    def ddp_timeout_delta(self) -> timedelta:
        return timedelta(seconds=self.ddp_timeout)

    def get_process_log_level(self) -> int:
        """The Python logging level for this process; "passive" keeps the application's level."""
        name = self.log_level if self.should_log else self.log_level_replica
        return _application_level() if name == "passive" else int(getattr(logging, name.upper()))

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block in the main process first (with `local`: of each machine), then in the others."""
        here = world()
        first = here.is_local_main if local else here.is_main
        if not first:
            self.processes.barrier()
        try:
            yield
        finally:
            if first:
                self.processes.barrier()


def _application_level() -> int:
    """The application's level: of transformers' loggers, as its scripts set it, or of Python's."""
    theirs = sys.modules.get("transformers.utils.logging")
    chosen = theirs.get_verbosity() if theirs is not None else logging.WARNING
    return chosen if chosen != logging.WARNING else LOGGER.getEffectiveLevel()
