"""The parts of oneloop's own runs, in the order in which they are created and called."""

from . import part
from .averages import WeightAverage
from .batch_costs import BatchCosts
from .chunked_loss import ChunkedLoss
from .logged_metrics import LoggedMetrics
from .loss_spikes import SpikeGuard
from .losses import LossCurve, LossMeter
from .meter import Meter
from .nonfinite import NonfiniteUpdates, SkippedUpdateBuffers
from .process_times import ProcessTimes
from .source_meter import SourceMeter
from .tracing import TraceSteps
from .update import Update
from .verification import VerifySteps
from .worker_seeds import WorkerSeeds
from .world_invariance import WorldInvariance

BUILT_IN: tuple[type[part.Part], ...] = (
    LossCurve,
    LossMeter,
    Meter,
    SourceMeter,
    SkippedUpdateBuffers,
    TraceSteps,  # before the part that ends the run after an update that is not finite
    NonfiniteUpdates,
    SpikeGuard,
    WorkerSeeds,
    WeightAverage,
    LoggedMetrics,
    VerifySteps,
    ChunkedLoss,
    WorldInvariance,
    BatchCosts,
    ProcessTimes,
)

for kind in (*BUILT_IN, Update):  # whoever reads a checkpoint without a run imports this module, too
    part.declare(kind)
