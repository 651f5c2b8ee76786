"""What arguments know about the process, the device and the run; nothing here is stored as an argument."""

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import backends
from ..distributed.collectives import SINGLE_PROCESS, ProcessGroup
from ..distributed.world import world
from ..enums import ParallelMode
from ..errors import ArgumentError, RefusedError
from . import support
from .paddlenlp import PaddleProperties
from .run import to_device

if TYPE_CHECKING:
    from .signatures import ArgumentFields as Groups
else:
    from .groups import Groups

LOGGER = logging.getLogger("oneloop")


class Properties(PaddleProperties, Groups):
    """The part of TrainingArguments that is asked, not given."""

    # -- the framework and its device ---------------------------------------------------------------------------------

    def bind(self, backend: str) -> None:
        """Called by Trainer: from now on these arguments belong to this framework."""
        bound = self.__dict__.get("_backend")
        if bound not in (None, backend):
            raise ArgumentError(
                f"these arguments were first used with {bound}, and now with a model of {backend}; expected one "
                "framework. Make new arguments for this model, and read args.device only after the model's framework "
                "is imported."
            )
        self.__dict__["_backend"] = backend

    def check_backend(self, backend: str, device_type: str) -> None:
        """Raise RefusedError for everything in these arguments that this backend, device or release cannot do."""
        support.check(self, backend, device_type)

    @property
    def device(self) -> Any:
        """The framework's own device. Reading it before there is a model settles the framework."""
        spec = self.device_spec
        cached = self.__dict__.get("_device")
        if cached is not None and cached[0] == spec:
            return cached[1]
        name = self.__dict__.get("_backend") or backends.guess()
        if name is None:
            raise RefusedError("args.device needs a framework, and none is installed: pip install torch")
        device = backends.load(name).devices.resolve(spec)
        self.bind(name)
        self.__dict__["_device"] = (spec, device)
        return device

    @device.setter
    def device(self, value: Any) -> None:
        self.device_spec = None if value is None else to_device("device", value)

    @property
    def n_gpu(self) -> int:
        """Accelerators that this process uses: one, or none. Several take several processes."""
        return 0 if str(self.device).lower().startswith("cpu") else 1

    @property
    def _n_gpu(self) -> int:
        return self.n_gpu

    @_n_gpu.setter
    def _n_gpu(self, value: int) -> None:
        if value not in (-1, 0, 1):
            raise RefusedError(
                f"_n_gpu={value!r}: one process uses one device. Start one process per device with the framework's "
                "launcher instead."
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
        """Steps of warm-up in a run of so many: warmup_steps when there are any, else warmup_ratio of them."""
        steps = self.warmup_steps
        if steps >= 1:
            return int(steps)
        return math.ceil(num_training_steps * (steps or self.warmup_ratio))

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
        """All processes of the run, for what they say to each other. The first look at it brings them together."""
        if world().size == 1:
            return SINGLE_PROCESS
        name = self.__dict__.get("_backend")
        backend = backends.load(name) if name else backends.assumed()
        if backend.parallel is None:
            raise RefusedError(f"{world().size} processes were launched, and {backend.NAME} runs on one alone.")
        return backend.parallel.join(self)

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
        """The level of Python's logging for this process; passive is whatever the application chose."""
        name = self.log_level if self.should_log else self.log_level_replica
        return _application_level() if name == "passive" else int(getattr(logging, name.upper()))

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """The block runs in the main process first (of each machine when `local`), then in the others."""
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
    """What the application chose: for transformers' loggers, as its scripts do, or for Python's."""
    theirs = sys.modules.get("transformers.utils.logging")
    chosen = theirs.get_verbosity() if theirs is not None else logging.WARNING
    return chosen if chosen != logging.WARNING else LOGGER.getEffectiveLevel()
