"""Utility functions that training scripts import from other trainers, under the same names."""

import functools
import inspect
import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import loading
from ..checkpoint import store
from ..data.samples import ColumnFilter
from ..distributed.world import world
from ..optim.schedules import follows_metric, make_metric_schedule, make_schedule
from ..outputs import plain_metrics

logger = logging.getLogger(__name__)

denumpify_detensorize = plain_metrics


class RemoveColumnsCollator(ColumnFilter):
    """A collator that passes on only the columns that a model accepts, and names the others once in the log."""

    def __init__(
        self,
        data_collator: Callable[..., Any],
        signature_columns: Iterable[str],
        logger: Any = None,
        model_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__(data_collator, signature_columns, self._tell)
        self.data_collator, self.signature_columns = data_collator, signature_columns
        self.logger, self.model_name, self.description = logger, model_name, description

    def _tell(self, dropped: list[str]) -> None:
        if self.logger is None or self.model_name is None:
            return
        where = f" of the {self.description} set" if self.description else ""
        self.logger.info(
            f"Columns{where} that {self.model_name}.forward does not accept are dropped: {', '.join(dropped)}."
        )

    def _remove_columns(self, feature: Any) -> Any:
        """A sample without the other columns."""
        if not isinstance(feature, Mapping):
            return feature
        return {name: value for name, value in feature.items() if name in self.keep}


def is_main_process(local_rank: int = -1) -> bool:
    return world().rank == 0 if local_rank in (-1, 0) else False


def total_processes_number(local_rank: int = -1) -> int:
    return world().size


def number_of_arguments(function: Callable[..., Any]) -> int:
    """The number of parameters of a function; those bound by a partial do not count."""
    if isinstance(function, functools.partial):
        fixed = len(function.args) + len(function.keywords)
        return len(inspect.signature(function.func).parameters) - fixed
    return len(inspect.signature(function).parameters)


def seed_worker(worker_id: int, num_workers: int = 1, rank: int = 0) -> None:
    """Seed Python and NumPy in a DataLoader worker from the framework's seed."""
    seed = (loading.default_backend().randomness.worker_seed() + rank * num_workers) % 2**32
    random.seed(seed)
    np.random.seed(seed)


def sort_checkpoints(
    output_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "checkpoint",
    use_mtime: bool = False,
    best_model_checkpoint: str | os.PathLike[str] | None = None,
) -> list[str]:
    """The directories of checkpoints from the oldest to the newest, the best one next to last at least."""
    found = Path(output_dir).glob(f"{checkpoint_prefix}-*")
    numbers = {path: path.name.rpartition("-")[2] for path in found if path.is_dir()}
    steps = {path: int(number) for path, number in numbers.items() if number.isdigit()}
    order = sorted(steps, key=lambda path: path.stat().st_mtime if use_mtime else steps[path])
    best = Path(best_model_checkpoint or "")
    if best in order[:-1]:
        order.remove(best)
        order.insert(-1, best)
    return [str(path) for path in order]


def rotate_checkpoints(
    output_dir: str | os.PathLike[str],
    save_total_limit: int | None = None,
    best_model_checkpoint: str | os.PathLike[str] | None = None,
    use_mtime: bool = False,
    checkpoint_prefix: str = "checkpoint",
) -> None:
    """Delete the oldest checkpoints above the limit, whoever wrote them, but not the newest or the best."""
    order = sort_checkpoints(output_dir, checkpoint_prefix, use_mtime)
    if not save_total_limit or save_total_limit < 0:
        return
    kept = {*order[-1:], str(Path(best_model_checkpoint or ""))}
    surplus = max(0, len(order) - save_total_limit)
    for path in [path for path in order if path not in kept][:surplus]:
        try:
            store.delete(Path(path))
        except OSError as error:
            logger.warning("%s could not be deleted: %s.", path, error)


SHRINK = 0.9  # of a batch size that does not fit into memory, as in transformers 5


def find_executable_batch_size(
    function: Callable[..., Any] | None = None, starting_batch_size: int = 128, auto_find_batch_size: bool = False
) -> Callable[..., Any]:
    """A decorator: calls function(batch_size, ...) with smaller and smaller sizes until it fits into memory."""
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            auto_find_batch_size=auto_find_batch_size,
        )
    if not auto_find_batch_size:
        return functools.partial(function, starting_batch_size)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        size, last = starting_batch_size, None
        devices = loading.default_backend().devices
        while size > 0:
            try:
                return function(size, *args, **kwargs)
            except Exception as error:
                if not devices.is_out_of_memory(error):
                    raise
                size, last = int(size * SHRINK), error
        raise RuntimeError("No executable batch size found: a batch of one sample is out of memory") from last

    return run


# -- schedulers for an optimizer, as scripts create them for `optimizers=`


def get_scheduler(
    name: Any,
    optimizer: Any,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
    last_epoch: int = -1,
) -> Any:
    """A scheduler for an optimizer; call its step() after each update, or after each evaluation with its metric.

    last_epoch is the number of the last step that was done, to continue from there.
    """
    backend = loading.of_optimizer(optimizer)
    name = str(getattr(name, "value", name))
    options = scheduler_specific_kwargs or {}
    if follows_metric(name):
        rule = make_metric_schedule(name, backend.optimizers.learning_rates(optimizer), **options)
        return backend.optimizers.scheduler_class(rule)(backend, optimizer, rule)
    cls = backend.optimizers.scheduler_class()
    rate = cls.initial_rate(backend, optimizer)
    factor = make_schedule(name, num_warmup_steps or 0, num_training_steps, lr_init=rate, **options)
    return cls(backend, optimizer, factor, last_epoch + 1)


def get_constant_schedule(optimizer: Any, last_epoch: int = -1) -> Any:
    return get_scheduler("constant", optimizer, last_epoch=last_epoch)


def get_constant_schedule_with_warmup(optimizer: Any, num_warmup_steps: int, last_epoch: int = -1) -> Any:
    return get_scheduler("constant_with_warmup", optimizer, num_warmup_steps, last_epoch=last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> Any:
    return get_scheduler("linear", optimizer, num_warmup_steps, num_training_steps, last_epoch=last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> Any:
    return get_scheduler(
        "cosine", optimizer, num_warmup_steps, num_training_steps, {"num_cycles": num_cycles}, last_epoch
    )


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> Any:
    options = {"num_cycles": num_cycles}
    return get_scheduler("cosine_with_restarts", optimizer, num_warmup_steps, num_training_steps, options, last_epoch)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> Any:
    options = {"lr_end": lr_end, "power": power}
    return get_scheduler("polynomial", optimizer, num_warmup_steps, num_training_steps, options, last_epoch)


def get_inverse_sqrt_schedule(
    optimizer: Any, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> Any:
    return get_scheduler("inverse_sqrt", optimizer, num_warmup_steps, None, {"timescale": timescale}, last_epoch)
