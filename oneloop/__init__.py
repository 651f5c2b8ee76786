"""oneloop: one Trainer for PyTorch, PaddlePaddle and MindSpore.

Names are imported when they are first used, so `import oneloop` is quick and imports no framework.
"""

from importlib import import_module
from typing import Any

from .compat import old_paths

__version__ = "0.1.0"

_HOMES = {
    "trainer": "Trainer Seq2SeqTrainer",
    "trainer.validation": "has_length",
    "arguments": "TrainingArguments Seq2SeqTrainingArguments CompressionArguments",
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
    "integrations.writers.tensorboard": "TensorBoardCallback",
    "integrations.writers.visualdl": "VisualDLCallback",
    "integrations.writers.wandb": "WandbCallback",
    "integrations.writers.mlflow": "MLflowCallback",
    "integrations.writers.comet_ml": "CometCallback",
    "integrations.writers.clearml": "ClearMLCallback",
    "integrations.writers.neptune": "NeptuneCallback",
    "integrations.writers.azure_ml": "AzureMLCallback",
    "integrations.writers.swanlab": "SwanLabCallback",
    "integrations.writers.trackio": "TrackioCallback",
    "integrations.writers.codecarbon": "CodeCarbonCallback",
    "integrations.writers.dvclive": "DVCLiveCallback",
    "report": "write_report",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = list(_HOME_OF)

old_paths.install()


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'oneloop' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
