"""Enumerations of argument values. Every member is also a plain string: `IntervalStrategy.STEPS == "steps"`."""

from enum import Enum
from typing import NoReturn

from .errors import ArgumentError, UnsupportedError


class TextEnum(str, Enum):
    """A string enum; an unknown value raises an error that lists the valid ones."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        allowed = ", ".join(repr(member.value) for member in cls)
        raise ArgumentError(f"{value!r} is not a valid {cls.__name__}; expected one of {allowed}.")


class IntervalStrategy(TextEnum):
    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(TextEnum):
    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class SchedulerType(TextEnum):
    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    GREEDY = "greedy"


class HubStrategy(TextEnum):
    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"


class FSDPOption(TextEnum):
    FULL_SHARD = "full_shard"
    SHARD_GRAD_OP = "shard_grad_op"
    NO_SHARD = "no_shard"
    HYBRID_SHARD = "hybrid_shard"
    HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class DebugOption(TextEnum):
    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


class HPSearchBackend(TextEnum):
    OPTUNA = "optuna"
    RAY = "ray"
    WANDB = "wandb"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        if value == "sigopt":
            raise UnsupportedError("The SigOpt service has been shut down; use 'optuna', 'ray' or 'wandb' instead.")
        super()._missing_(value)


class ParallelMode(TextEnum):
    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"
    SAGEMAKER_MODEL_PARALLEL = "sagemaker_model_parallel"
    SAGEMAKER_DATA_PARALLEL = "sagemaker_data_parallel"
    TPU = "tpu"
