"""oneloop: one Trainer for PyTorch, PaddlePaddle and MindSpore.

Names are imported when they are first used, so `import oneloop` is quick and imports no framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .compat import old_paths
from .integrations.writers import classes as _writer_classes

__version__ = "0.1.0"

_HOMES = {
    "trainer": "Trainer Seq2SeqTrainer",
    "trainer.validation": "has_length",
    "arguments": "TrainingArguments Seq2SeqTrainingArguments CompressionArguments AcceleratorConfig",
    "cli.parser": "ArgumentParser HfArgumentParser PdArgumentParser",
    "callbacks": "TrainerCallback CallbackHandler DefaultFlowCallback EarlyStoppingCallback NotebookProgressCallback "
    "PrinterCallback ProgressCallback",
    "state": "TrainerState TrainerControl ExportableState",
    "outputs": "BestRun EvalLoopOutput EvalPrediction PredictionOutput TrainOutput",
    "enums": "FSDPOption HPSearchBackend HubStrategy IntervalStrategy OptimizerNames ParallelMode SaveStrategy "
    "SchedulerType",
    "randomness": "set_seed enable_full_determinism",
    "checkpoint": "get_last_checkpoint",
    "trainer.meter": "speed_metrics",
    "compat.trainer_utils": "default_compute_objective denumpify_detensorize find_executable_batch_size get_scheduler "
    "get_constant_schedule get_constant_schedule_with_warmup get_cosine_schedule_with_warmup "
    "get_cosine_with_hard_restarts_schedule_with_warmup get_inverse_sqrt_schedule get_linear_schedule_with_warmup "
    "get_polynomial_decay_schedule_with_warmup is_main_process number_of_arguments rotate_checkpoints "
    "seed_worker sort_checkpoints total_processes_number RemoveColumnsCollator",
    "compat.transformers_utils": "align_special_tokens check_target_module_exists compare_trainer_and_checkpoint_args "
    "default_hp_space_optuna default_hp_space_ray default_hp_space_wandb load_sharded_checkpoint "
    "suppress_progress_bars unwrap_peft_model validate_quantization_for_training TrainerMemoryTracker",
    "data.collators": "DataCollator DataCollatorForLanguageModeling DataCollatorForMultipleChoice "
    "DataCollatorForPermutationLanguageModeling DataCollatorForSeq2Seq DataCollatorForSOP "
    "DataCollatorForTokenClassification DataCollatorForWholeWordMask DataCollatorWithFlattening "
    "DataCollatorWithPadding DefaultDataCollator default_data_collator",
    "data.mixture": "Mixture",
    "report": "write_report",
    "integrations.writers.classes": " ".join(_writer_classes.__all__),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

# Written out, as are the imports below, for editors and type checkers, which run no code. A test compares them. The
# callbacks of writers come from their table: integrations/writers/table.py.
__all__ = [
    "Trainer",
    "Seq2SeqTrainer",
    "has_length",
    "TrainingArguments",
    "Seq2SeqTrainingArguments",
    "CompressionArguments",
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
    "OptimizerNames",
    "ParallelMode",
    "SaveStrategy",
    "SchedulerType",
    "set_seed",
    "enable_full_determinism",
    "get_last_checkpoint",
    "speed_metrics",
    "default_compute_objective",
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
    "align_special_tokens",
    "check_target_module_exists",
    "compare_trainer_and_checkpoint_args",
    "default_hp_space_optuna",
    "default_hp_space_ray",
    "default_hp_space_wandb",
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
    "write_report",
]
__all__ += _writer_classes.__all__

if TYPE_CHECKING:
    from .arguments import AcceleratorConfig, CompressionArguments, Seq2SeqTrainingArguments, TrainingArguments
    from .callbacks import (
        CallbackHandler,
        DefaultFlowCallback,
        EarlyStoppingCallback,
        NotebookProgressCallback,
        PrinterCallback,
        ProgressCallback,
        TrainerCallback,
    )
    from .checkpoint import get_last_checkpoint
    from .cli.parser import ArgumentParser, HfArgumentParser, PdArgumentParser
    from .compat.trainer_utils import (
        RemoveColumnsCollator,
        default_compute_objective,
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
        check_target_module_exists,
        compare_trainer_and_checkpoint_args,
        default_hp_space_optuna,
        default_hp_space_ray,
        default_hp_space_wandb,
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
    from .enums import (
        FSDPOption,
        HPSearchBackend,
        HubStrategy,
        IntervalStrategy,
        OptimizerNames,
        ParallelMode,
        SaveStrategy,
        SchedulerType,
    )
    from .integrations.writers.classes import *  # noqa: F403
    from .outputs import BestRun, EvalLoopOutput, EvalPrediction, PredictionOutput, TrainOutput
    from .randomness import enable_full_determinism, set_seed
    from .report import write_report
    from .state import ExportableState, TrainerControl, TrainerState
    from .trainer import Seq2SeqTrainer, Trainer
    from .trainer.meter import speed_metrics
    from .trainer.validation import has_length

old_paths.install()


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
