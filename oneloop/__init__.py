"""oneloop: one Trainer for PyTorch, PaddlePaddle and MindSpore.

Names are imported when they are first used, so `import oneloop` is quick and imports no framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .integrations.writers import classes as _writer_classes

__version__ = "0.1.0"

_HOMES = {
    "public": "Trainer Seq2SeqTrainer TrainingArguments Seq2SeqTrainingArguments CompressionArguments",
    "trainer.validation": "has_length",
    "arguments": "AcceleratorConfig",
    "parser": "ArgumentParser HfArgumentParser PdArgumentParser",
    "callbacks": "TrainerCallback CallbackHandler DefaultFlowCallback EarlyStoppingCallback NotebookProgressCallback "
    "PrinterCallback ProgressCallback",
    "state": "TrainerState TrainerControl ExportableState",
    "outputs": "BestRun EvalLoopOutput EvalPrediction PredictionOutput TrainOutput",
    "enums": "FSDPOption HPSearchBackend HubStrategy IntervalStrategy ParallelMode SaveStrategy SchedulerType",
    "randomness": "set_seed enable_full_determinism",
    "storage.last_checkpoint": "get_last_checkpoint",
    "trainer.meter": "speed_metrics",
    "trainer.chunked_loss": "token_log_probs",
    "integrations.search.defaults": "default_compute_objective default_hp_space_optuna default_hp_space_ray "
    "default_hp_space_wandb",
    "compat.trainer_utils": "denumpify_detensorize find_executable_batch_size get_scheduler "
    "get_constant_schedule get_constant_schedule_with_warmup get_cosine_schedule_with_warmup "
    "get_cosine_with_hard_restarts_schedule_with_warmup get_inverse_sqrt_schedule get_linear_schedule_with_warmup "
    "get_polynomial_decay_schedule_with_warmup is_main_process number_of_arguments rotate_checkpoints "
    "seed_worker sort_checkpoints total_processes_number RemoveColumnsCollator",
    "optim.catalog": "OptimizerNames",
    "optim.target_modules": "check_target_module_exists",
    "compat.transformers_utils": "align_special_tokens compare_trainer_and_checkpoint_args "
    "load_sharded_checkpoint "
    "suppress_progress_bars unwrap_peft_model validate_quantization_for_training TrainerMemoryTracker",
    "data.collators": "DataCollator DataCollatorForLanguageModeling DataCollatorForMultipleChoice "
    "DataCollatorForPermutationLanguageModeling DataCollatorForSeq2Seq DataCollatorForSOP "
    "DataCollatorForTokenClassification DataCollatorForWholeWordMask DataCollatorWithFlattening "
    "DataCollatorWithPadding DefaultDataCollator default_data_collator",
    "data.mixture": "Mixture",
    "divergence": "diff",
    "report": "write_report",
    "integrations.writers.classes": " ".join(_writer_classes.__all__),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

# Written out, as are the imports below, for editors and type checkers, which run no code. A test compares them. The
# callbacks of writers come from their table: writers.py.
__all__ = [
    "Trainer",
    "Seq2SeqTrainer",
    "TrainingArguments",
    "Seq2SeqTrainingArguments",
    "CompressionArguments",
    "has_length",
    "AcceleratorConfig",
    "ArgumentParser",
    "HfArgumentParser",
    "PdArgumentParser",
    "TrainerCallback",
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "NotebookProgressCallback",
    "PrinterCallback",
    "ProgressCallback",
    "TrainerState",
    "TrainerControl",
    "ExportableState",
    "BestRun",
    "EvalLoopOutput",
    "EvalPrediction",
    "PredictionOutput",
    "TrainOutput",
    "FSDPOption",
    "HPSearchBackend",
    "HubStrategy",
    "IntervalStrategy",
    "ParallelMode",
    "SaveStrategy",
    "SchedulerType",
    "set_seed",
    "enable_full_determinism",
    "get_last_checkpoint",
    "speed_metrics",
    "token_log_probs",
    "default_compute_objective",
    "default_hp_space_optuna",
    "default_hp_space_ray",
    "default_hp_space_wandb",
    "denumpify_detensorize",
    "find_executable_batch_size",
    "get_scheduler",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "is_main_process",
    "number_of_arguments",
    "rotate_checkpoints",
    "seed_worker",
    "sort_checkpoints",
    "total_processes_number",
    "RemoveColumnsCollator",
    "OptimizerNames",
    "check_target_module_exists",
    "align_special_tokens",
    "compare_trainer_and_checkpoint_args",
    "load_sharded_checkpoint",
    "suppress_progress_bars",
    "unwrap_peft_model",
    "validate_quantization_for_training",
    "TrainerMemoryTracker",
    "DataCollator",
    "DataCollatorForLanguageModeling",
    "DataCollatorForMultipleChoice",
    "DataCollatorForPermutationLanguageModeling",
    "DataCollatorForSeq2Seq",
    "DataCollatorForSOP",
    "DataCollatorForTokenClassification",
    "DataCollatorForWholeWordMask",
    "DataCollatorWithFlattening",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "default_data_collator",
    "Mixture",
    "diff",
    "write_report",
]
__all__ += _writer_classes.__all__

if TYPE_CHECKING:
    from .arguments import AcceleratorConfig
    from .callbacks import (
        CallbackHandler,
        DefaultFlowCallback,
        EarlyStoppingCallback,
        NotebookProgressCallback,
        PrinterCallback,
        ProgressCallback,
        TrainerCallback,
    )
    from .compat.trainer_utils import (
        RemoveColumnsCollator,
        denumpify_detensorize,
        find_executable_batch_size,
        get_constant_schedule,
        get_constant_schedule_with_warmup,
        get_cosine_schedule_with_warmup,
        get_cosine_with_hard_restarts_schedule_with_warmup,
        get_inverse_sqrt_schedule,
        get_linear_schedule_with_warmup,
        get_polynomial_decay_schedule_with_warmup,
        get_scheduler,
        is_main_process,
        number_of_arguments,
        rotate_checkpoints,
        seed_worker,
        sort_checkpoints,
        total_processes_number,
    )
    from .compat.transformers_utils import (
        TrainerMemoryTracker,
        align_special_tokens,
        compare_trainer_and_checkpoint_args,
        load_sharded_checkpoint,
        suppress_progress_bars,
        unwrap_peft_model,
        validate_quantization_for_training,
    )
    from .data.collators import (
        DataCollator,
        DataCollatorForLanguageModeling,
        DataCollatorForMultipleChoice,
        DataCollatorForPermutationLanguageModeling,
        DataCollatorForSeq2Seq,
        DataCollatorForSOP,
        DataCollatorForTokenClassification,
        DataCollatorForWholeWordMask,
        DataCollatorWithFlattening,
        DataCollatorWithPadding,
        DefaultDataCollator,
        default_data_collator,
    )
    from .data.mixture import Mixture
    from .divergence import diff
    from .enums import (
        FSDPOption,
        HPSearchBackend,
        HubStrategy,
        IntervalStrategy,
        ParallelMode,
        SaveStrategy,
        SchedulerType,
    )
    from .integrations.search.defaults import (
        default_compute_objective,
        default_hp_space_optuna,
        default_hp_space_ray,
        default_hp_space_wandb,
    )
    from .integrations.writers.classes import *  # noqa: F403
    from .optim.catalog import OptimizerNames
    from .optim.target_modules import check_target_module_exists
    from .outputs import BestRun, EvalLoopOutput, EvalPrediction, PredictionOutput, TrainOutput
    from .parser import ArgumentParser, HfArgumentParser, PdArgumentParser
    from .public import (
        CompressionArguments,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        Trainer,
        TrainingArguments,
    )
    from .randomness import enable_full_determinism, set_seed
    from .report import write_report
    from .state import ExportableState, TrainerControl, TrainerState
    from .storage.last_checkpoint import get_last_checkpoint
    from .trainer.chunked_loss import token_log_probs
    from .trainer.meter import speed_metrics
    from .trainer.validation import has_length

if not TYPE_CHECKING:  # a module's __getattr__ would make every misspelt name known to a type checker

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'oneloop' has no attribute {name!r}")
        value = getattr(import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
