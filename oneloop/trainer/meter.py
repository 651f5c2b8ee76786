"""Work, speed and memory of a run."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..formats.schema import integer, number, record
from ..introspect import is_overridden
from .losses import LossMeter
from .part import Part, RunContext
from .peak_flops import peak_flops

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

logger = logging.getLogger(__name__)

# Figures of log.jsonl that log_throughput adds to the logs.
THROUGHPUT = ("tokens_per_second", "useful_tokens_per_second", "mfu", "data_wait")
_UNKNOWN = object()


class Meter(Part):
    """Work, time, speed and memory of a run. Tokens and floating-point operations are counted on the host."""

    name = "meter"
    title = "state of work"
    schema = {"work": record({"tokens": integer(), "flops": number(0), "unpadded": integer()})}
    required = ("work",)

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.losses = context.parts.of(LossMeter)
        self.mode = token_counting(context.args)  # no, all or non_padding
        self.by_override = is_overridden(context.trainer, "floating_point_ops")
        self._main_input_name: str | None = None  # of the model, once it is ready
        self.tokens = 0
        self.flops = 0.0
        self.unpadded = 0
        self._unread: list[Any] = []  # counts of unpadded tokens, still on the device
        self.totals: tuple[int, float, int] = (0, 0.0, 0)  # of all processes, at the last collective
        self.started = time.time()
        self.first_step = 0  # with which train() started
        self.figures: dict[str, float] = {}  # speed and memory, while a log is being written
        self._logged = (time.perf_counter(), 0)  # the time and the step of the last log
        self._work_logged = (0, 0.0, 0)  # tokens, operations and tokens without padding at that time
        self._waited = 0.0  # seconds since then in which training waited for data
        self.last_data_wait = 0.0  # in the last update
        self._more_figures: dict[str, float] = {}  # of the next log
        self._peak: Any = _UNKNOWN  # operations per second of the device
        self.losses.curve.figures.count_tokens_by(lambda: self.tokens)

    def model_ready(self) -> None:
        self._main_input_name = self.context.model_info.main_input_name

    # -- work

    def end_accumulation(self, micro_batches: list[Any]) -> None:
        """Count the micro-batches; only now, so that a repeated step counts once."""
        for inputs in micro_batches:
            if self.by_override:
                self.flops += float(self.context.trainer.floating_point_ops(inputs))
            else:
                self.tokens += self.tokens_in(inputs)
            if self.mode == "non_padding":
                self._add_unpadded(inputs)

    def tokens_in(self, inputs: Any) -> int:
        """Tokens of a batch, with padding; 0 without a main input."""
        main = self._main_input(inputs)
        return 0 if main is None else main.shape[0] * (main.shape[1] if len(main.shape) > 1 else 1)

    def tokens_by_row(self, inputs: Any) -> Any:
        """Tokens of each row of a batch, without padding where it is known; None for data without tokens."""
        main = self._main_input(inputs)
        if main is None or len(main.shape) != 2:
            return None
        useful = getattr(inputs, "useful_tokens", None)
        if useful is not None:  # packed documents
            return self.backend.tensors.from_numpy(useful)
        mask, pad = inputs.get("attention_mask"), getattr(self.context.trainer.processing_class, "pad_token_id", None)
        if mask is not None and len(mask.shape) == 2:
            return mask.sum(1)
        return (main == main if pad is None else main != pad).sum(1)

    def _main_input(self, inputs: Any) -> Any:
        name = self._main_input_name or self.context.model_info.main_input_name
        return inputs.get(name) if isinstance(inputs, Mapping) else None

    def _add_unpadded(self, inputs: Any) -> None:
        """include_num_input_tokens_seen="non_padding": by the attention mask, or by the pad token."""
        useful = getattr(inputs, "useful_tokens", None)
        if useful is not None:  # packed documents
            self.unpadded += int(useful.sum())
            return
        mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        main = self._main_input(inputs)
        pad = getattr(self.context.trainer.processing_class, "pad_token_id", None)
        if mask is not None:
            self._unread.append(mask.sum())
        elif main is not None and pad is not None:
            self._unread.append((main != pad).sum())
        elif main is not None:
            if self.context.events.is_first_report("padding unknown", ""):
                logger.warning(
                    "include_num_input_tokens_seen='non_padding', but a batch has no attention_mask and there is no "
                    "tokenizer with a pad token: all tokens are counted. Pass processing_class=, or add the mask."
                )
            self._unread.append((main == main).sum())
        if len(self._unread) >= 512:
            self._read()

    def _read(self) -> None:
        """Host sync: read the counts from the device, at a log, a save or every 512 micro-batches."""
        tensors = self.backend.tensors
        self.unpadded += int(tensors.total(tensors.scalars(self._unread)))
        self._unread = []

    def store(self, state: Any) -> None:
        """Store the counts of all batches in the state. A collective on several processes."""
        if self.mode == "non_padding":
            self._read()
        tokens, flops, unpadded = self.tokens, self.flops, self.unpadded
        if not self.context.mesh.is_single:
            rows = self.context.mesh.per_batch(self.context.processes.all_gather((tokens, flops, unpadded)))
            tokens, flops, unpadded = (kind(sum(each)) for kind, each in zip((int, float, int), zip(*rows)))
        self.totals = (tokens, flops, unpadded)
        state.total_flos = flops if self.by_override else 6.0 * tokens * self.context.model_info.matrix_parameters
        if self.mode == "non_padding":
            state.num_input_tokens_seen = unpadded
        elif self.mode == "all":
            state.num_input_tokens_seen = tokens

    def local_counts(self) -> tuple[int, float, int]:
        """Tokens, operations, and tokens without padding (0 if they are not counted) of this process so far."""
        if self.mode == "non_padding":
            self._read()
        flops = self.flops if self.by_override else 6.0 * self.tokens * self.context.model_info.matrix_parameters
        return self.tokens, flops, self.unpadded if self.mode == "non_padding" else 0

    def state(self) -> dict[str, Any]:
        return {"work": dict(zip(("tokens", "flops", "unpadded"), self.totals))}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        state = stored["work"]
        if self.context.mesh.batch_index == 0:  # the stored counts are sums over all batches
            self.tokens, self.flops, self.unpadded = state["tokens"], state["flops"], state["unpadded"]

    def load_from_other_trainer(self, path: Path, state: Mapping[str, Any]) -> None:
        """Without tokens, they are estimated from the operations."""
        flops, tokens = float(state.get("total_flos") or 0.0), int(state.get("num_input_tokens_seen") or 0)
        self.flops, self.tokens, self.unpadded = flops, tokens, tokens
        if not tokens and self.context.model_info.matrix_parameters:
            self.tokens = round(flops / (6 * self.context.model_info.matrix_parameters))

    # -- time, speed and memory

    def begin_run(self) -> None:
        """After a restart, the figures of train() are still those of all of it."""
        step, before = self.context.state.global_step, self.context.restart
        self.started, self.first_step = (time.time(), step) if before is None else before.began
        self._logged = (time.perf_counter(), step)
        self._work_logged, self._waited = self.local_counts(), 0.0

    @property
    def logged_step(self) -> int:
        """The step of the last log."""
        return self._logged[1]

    def exclude_time(self, seconds: float) -> None:
        """Exclude time spent on evaluation from the training speed."""
        self._logged = (self._logged[0] + seconds, self._logged[1])
        self.losses.curve.figures.exclude_time(seconds)

    def since_log(self, step: int) -> tuple[float, int]:
        """Seconds and steps since the last log; the next one counts from here."""
        now = time.perf_counter()
        before, self._logged = self._logged, (now, step)
        return now - before[0], step - before[1]

    def add_data_wait(self, seconds: float) -> None:
        """Called after the micro-batches of an update were fetched."""
        self._waited += seconds
        self.last_data_wait = seconds

    def add_figures(self, figures: dict[str, float]) -> None:
        """Those of another part, for the log that is being made."""
        self._more_figures |= figures

    def measure(self, seconds: float, steps: int, samples: int) -> None:
        """Compute speed and memory for the current log. They are counted on the host; if tokens without padding are
        counted, those since the last log are read from the device (a host sync)."""
        before, self._work_logged = self._work_logged, self.local_counts()
        waited, self._waited = self._waited, 0.0
        tokens, flops, unpadded = (now - then for now, then in zip(self._work_logged, before))
        figures: dict[str, float] = {"memory_bytes": resident_bytes(), **self._more_figures}
        self._more_figures = {}
        if seconds > 0 and steps > 0:
            figures["steps_per_second"] = round(steps / seconds, 3)
            figures["samples_per_second"] = round(samples / seconds, 3)
            figures["data_wait"] = round(min(waited / seconds, 1.0), 4)
        if tokens > 0 and seconds > 0:
            figures["tokens_per_second"] = round(tokens / seconds, 1)
        if unpadded > 0 and seconds > 0:
            figures["useful_tokens_per_second"] = round(unpadded / seconds, 1)
        if flops > 0 and seconds > 0 and self._peak_flops:
            figures["mfu"] = round(flops / seconds / self._peak_flops, 6)
        memory, device = self.backend.memory, self.context.args.device
        for name, value in (("device_memory", memory.allocated(device)), ("device_peak", memory.peak(device))):
            if value is not None:
                figures[f"{name}_bytes"] = int(value)
        self.figures = figures

    @property
    def _peak_flops(self) -> float | None:
        if self._peak is _UNKNOWN:
            args, devices = self.context.args, self.backend.devices
            self._peak = peak_flops(args.device_peak_flops, devices.title(args.device), args.bf16 or args.fp16)
        return self._peak

    def throughput(self) -> dict[str, float]:
        """The figures of the current log for log_throughput."""
        return {f"train_{name}": self.figures[name] for name in THROUGHPUT if name in self.figures}

    def clear_figures(self) -> None:
        """Called after the log is written."""
        self.figures = {}


def token_counting(args: Any) -> str:
    """no, all or non_padding."""
    value = args.include_num_input_tokens_seen
    if value in (True, "all"):
        return "all"
    if value == "non_padding":
        return "non_padding"
    return "all" if args.include_tokens_per_second else "no"


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: int | None = None,
    num_steps: int | None = None,
    num_tokens: int | None = None,
) -> dict[str, float]:
    """Seconds since start_time, and samples, steps and tokens per second."""
    runtime = time.time() - start_time
    result = {f"{split}_runtime": round(runtime, 4)}
    if runtime <= 0:
        return result
    for count, name in ((num_samples, "samples"), (num_steps, "steps"), (num_tokens, "tokens")):
        if count is not None:
            result[f"{split}_{name}_per_second"] = round(count / runtime, 3)
    return result


def resident_bytes() -> int:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm") as f:
            import resource

            return int(f.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Peak resident memory of this process."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class MemoryTracker:
    """skip_memory_metrics=False: the growth of memory in each stage of a run, and its peak above that."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self.of_init: dict[str, Any] = {}  # of the construction of the Trainer, reported with the training
        self._open: dict[str, tuple[int, int | None]] = {}

    def start(self, stage: str, backend: Any, device: Any) -> None:
        if self.on:
            backend.memory.reset_peak(device)
            self._open[stage] = (resident_bytes(), backend.memory.allocated(device))

    def stop(self, stage: str, backend: Any, device: Any, metrics: dict[str, Any] | None) -> None:
        if not self.on or stage not in self._open:
            return
        host, device_before = self._open.pop(stage)
        now, peak = resident_bytes(), peak_resident_bytes()
        found = {
            f"{stage}_mem_cpu_alloc_delta": now - host,
            f"{stage}_mem_cpu_peaked_delta": max(0, peak - max(now, host)),
        }
        used = backend.memory.allocated(device)
        if used is not None and device_before is not None:
            top = backend.memory.peak(device) or used
            found[f"{stage}_mem_gpu_alloc_delta"] = used - device_before
            found[f"{stage}_mem_gpu_peaked_delta"] = max(0, top - used)
        if stage == "init":
            found["before_init_mem_cpu"] = host
        if metrics is not None:
            metrics.update(found)
