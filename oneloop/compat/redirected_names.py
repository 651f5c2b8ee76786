"""The names of other libraries that are oneloop's under `oneloop run`: data, used by `redirect` and `check`.

Models, tokenizers, configurations, collators and everything else that is not listed here stay the library's.
"""

from dataclasses import dataclass

from ..writers import WRITERS

LIBRARIES = ("transformers", "paddlenlp", "paddleformers", "mindnlp")
TITLES = {
    "transformers": "transformers",
    "paddlenlp": "PaddleNLP",
    "paddleformers": "PaddleFormers",
    "mindnlp": "MindNLP",
}

_CALLBACKS = (
    "TrainerCallback CallbackHandler DefaultFlowCallback EarlyStoppingCallback PrinterCallback ProgressCallback"
)
_STATE = "TrainerState TrainerControl ExportableState"
_WRITERS = " ".join(each.callback for each in WRITERS.values() if each.released and each.redirected)
_ARGUMENTS = "TrainingArguments Seq2SeqTrainingArguments OptimizerNames ParallelMode"
_UTILITIES = (
    "BestRun EvalLoopOutput EvalPrediction PredictionOutput TrainOutput FSDPOption HubStrategy "
    "IntervalStrategy SaveStrategy SchedulerType set_seed enable_full_determinism get_last_checkpoint speed_metrics "
    "has_length default_compute_objective denumpify_detensorize find_executable_batch_size is_main_process "
    "number_of_arguments rotate_checkpoints seed_worker sort_checkpoints total_processes_number RemoveColumnsCollator "
    "align_special_tokens check_target_module_exists compare_trainer_and_checkpoint_args default_hp_space_optuna "
    "default_hp_space_ray default_hp_space_wandb load_sharded_checkpoint suppress_progress_bars unwrap_peft_model "
    "validate_quantization_for_training TrainerMemoryTracker"
)
# All Trainer-related names; a module with only such names has all of them.
TRAINER_NAMES = f"Trainer Seq2SeqTrainer {_ARGUMENTS} {_CALLBACKS} {_STATE} {_UTILITIES}"

# Aliases.
RENAMED = {"EvaluationStrategy": "IntervalStrategy"}

# The names that the package `transformers` itself exports.
_TOP = (
    "Trainer Seq2SeqTrainer TrainingArguments Seq2SeqTrainingArguments HfArgumentParser TrainerCallback TrainerState "
    "TrainerControl DefaultFlowCallback EarlyStoppingCallback PrinterCallback ProgressCallback EvalPrediction "
    "IntervalStrategy SchedulerType set_seed enable_full_determinism"
)
# Collators that transformers 5 has removed, and that scripts for 4.x import.
_GONE = "DataCollatorForWholeWordMask DataCollatorForSOP"

_TPU = "TPUs, TensorFlow and SageMaker have no backend here; use Trainer with a torch model"
_OWN_LOOP = "it has its own training loop, which is not redirected; use Trainer"

# Names that would bypass oneloop or need what it does not have: any use raises an error.
REFUSED = {
    "TFTrainer": _TPU,
    "TFTrainingArguments": _TPU,
    "SageMakerTrainer": _TPU,
    "SageMakerTrainingArguments": _TPU,
    "AutoTrainer": "PaddleNLP's automatic parallelism is not supported; use Trainer",
    "Evaluator": _OWN_LOOP + ".evaluate()",
    "CheckpointCallback": "it belongs to MindNLP's first Trainer; use save_strategy and save_total_limit",
    "BestModelCallback": "it belongs to MindNLP's first Trainer; use load_best_model_at_end",
    "EarlyStopCallback": "it belongs to MindNLP's first Trainer; use EarlyStoppingCallback",
}

_REWRITES = "it rewrites the source text of transformers' Trainer ({}), and oneloop has a training loop of its own. {}"
# Packages that cannot work on another Trainer than transformers': importing them raises an error.
REWRITING = {
    "unsloth": _REWRITES.format(
        "_inner_training_loop, training_step",
        "Run the script with plain python, or without unsloth: PEFT and TRL run on oneloop",
    ),
    "axolotl": _REWRITES.format(
        "evaluation_loop and others, as its settings ask",
        "Run axolotl as it is, or write the same training with TRL, which runs on oneloop",
    ),
}


@dataclass(frozen=True)
class Module:
    """The changes to one module.

    shell: our own module replaces the library's, which is executed when a name is needed that oneloop does not have;
    otherwise the names are set on the library's module. missing: names that are only set if the library does not have
    them. replaced: functions that are oneloop's, and not among its public names. opened: a package, so that its
    submodules can be imported.
    """

    names: str
    is_lazy: bool = True
    missing: str = ""
    replaced: str = ""
    refused: str = ""
    opened: bool = False


_TRANSFORMERS = {
    "transformers": Module(
        _TOP, is_lazy=False, missing=f"{_GONE} is_torch_tpu_available",
        refused="TFTrainer TFTrainingArguments", opened=True,
    ),
    "transformers.trainer": Module(f"{TRAINER_NAMES} DEFAULT_CALLBACKS DEFAULT_PROGRESS_CALLBACK"),
    "transformers.trainer_seq2seq": Module(TRAINER_NAMES),
    "transformers.trainer_callback": Module(f"{_CALLBACKS} {_STATE}"),
    "transformers.trainer_utils": Module(_UTILITIES),
    "transformers.training_args": Module(f"{_ARGUMENTS} IntervalStrategy SaveStrategy SchedulerType HubStrategy"),
    "transformers.training_args_seq2seq": Module("Seq2SeqTrainingArguments TrainingArguments"),
    "transformers.trainer_pt_utils": Module("AcceleratorConfig", is_lazy=False),
    "trl.cli.accelerate_launcher": Module("", is_lazy=False, replaced="launch_training_script"),
    "transformers.hf_argparser": Module("HfArgumentParser"),
    "transformers.integrations": Module(_WRITERS, is_lazy=False, opened=True),
    "transformers.integrations.integration_utils": Module(_WRITERS, is_lazy=False),
    "transformers.utils": Module(
        "", is_lazy=False, missing="send_example_telemetry is_torch_tpu_available is_offline_mode", opened=True
    ),
    "transformers.utils.notebook": Module("NotebookProgressCallback"),
    "transformers.trainer_tf": Module("", refused="TFTrainer"),
    "transformers.training_args_tf": Module("", refused="TFTrainingArguments"),
    "transformers.sagemaker": Module("", refused="SageMakerTrainer SageMakerTrainingArguments", opened=True),
}  # fmt: skip

_PADDLENLP = {
    "paddlenlp.trainer": Module(f"{TRAINER_NAMES} PdArgumentParser CompressionArguments VisualDLCallback", opened=True),
    "paddlenlp.trainer.trainer": Module(TRAINER_NAMES),
    "paddlenlp.trainer.trainer_seq2seq": Module(TRAINER_NAMES),
    "paddlenlp.trainer.trainer_callback": Module(f"{_CALLBACKS} {_STATE}"),
    "paddlenlp.trainer.trainer_utils": Module(f"{_UTILITIES} OptimizerNames", missing="PREFIX_CHECKPOINT_DIR"),
    "paddlenlp.trainer.training_args": Module(_ARGUMENTS),
    "paddlenlp.trainer.training_args_seq2seq": Module(_ARGUMENTS),
    "paddlenlp.trainer.argparser": Module("PdArgumentParser"),
    "paddlenlp.trainer.integrations": Module("VisualDLCallback TensorBoardCallback WandbCallback"),
    "paddlenlp.trainer.compression_args": Module("CompressionArguments"),
    "paddlenlp.trainer.auto_trainer": Module("", refused="AutoTrainer"),
}

# PaddleNLP's successor. It has neither Seq2SeqTrainer nor compression.
_PADDLEFORMERS = {
    "paddleformers.trainer": Module(f"{TRAINER_NAMES} PdArgumentParser VisualDLCallback", opened=True),
    "paddleformers.trainer.trainer": Module(TRAINER_NAMES),
    "paddleformers.trainer.trainer_callback": Module(f"{_CALLBACKS} {_STATE}"),
    "paddleformers.trainer.trainer_utils": Module(f"{_UTILITIES} OptimizerNames", missing="PREFIX_CHECKPOINT_DIR"),
    "paddleformers.trainer.training_args": Module(_ARGUMENTS),
    "paddleformers.trainer.argparser": Module("PdArgumentParser"),
    "paddleformers.trainer.integrations": Module("VisualDLCallback TensorBoardCallback WandbCallback SwanLabCallback"),
}

_MINDNLP = {
    "mindnlp.engine": Module(f"{TRAINER_NAMES} {_WRITERS} HfArgumentParser", refused="Evaluator", opened=True),
    **{
        f"mindnlp.engine.{name}": Module(
            names,
            missing="PREFIX_CHECKPOINT_DIR" if name == "utils" else "",
            refused="CheckpointCallback BestModelCallback EarlyStopCallback" if name == "callbacks" else "",
            opened=opened,
        )
        for name, names, opened in (
            ("trainer", TRAINER_NAMES, True),
            ("trainer.base", TRAINER_NAMES, False),
            ("trainer.default_trainer", TRAINER_NAMES, False),
            ("trainer_seq2seq", TRAINER_NAMES, False),
            ("train_args", _ARGUMENTS, True),
            ("train_args.base", _ARGUMENTS, False),
            ("train_args.seq2seq", _ARGUMENTS, False),
            ("training_args", _ARGUMENTS, False),
            ("training_args_seq2seq", _ARGUMENTS, False),
            ("callbacks", f"{_CALLBACKS} {_STATE}", True),
            ("callbacks.callbacks", f"{_CALLBACKS} {_STATE}", False),
            ("utils", _UTILITIES, True),
            ("integrations", _WRITERS, True),
        )
    },
    "mindnlp.trainer": Module(f"{TRAINER_NAMES} HfArgumentParser", opened=True),
    "mindnlp.transformers": Module(_TOP, is_lazy=False, missing=_GONE, opened=True),
    "mindnlp.transformers.trainer": Module("", is_lazy=False),
}

MODULES: dict[str, dict[str, Module]] = {
    "transformers": _TRANSFORMERS,
    "paddlenlp": _PADDLENLP,
    "paddleformers": _PADDLEFORMERS,
    "mindnlp": {**_MINDNLP, **_TRANSFORMERS},  # MindNLP 0.5 uses transformers' modules
}

_COLLATORS = (
    "DataCollatorWithPadding DataCollatorForTokenClassification DataCollatorForSeq2Seq DefaultDataCollator "
    "default_data_collator"
)
# If a library is not installed, these are provided too: its scripts cannot run without them.
WITHOUT_LIBRARY: dict[str, dict[str, Module]] = {
    "transformers": {},
    "paddlenlp": {
        "paddlenlp.data": Module(_COLLATORS, opened=True),
        "paddlenlp.data.data_collator": Module(_COLLATORS),
        "paddlenlp.utils": Module("", opened=True),
        "paddlenlp.utils.log": Module("", missing="logger"),
    },
    "paddleformers": {},
    "mindnlp": {},
}


def source_of(name: str, module: str) -> str | None:
    """The name in oneloop that replaces this name of that module, or None."""
    for library in MODULES.values():
        known = library.get(module)
        if known is not None and name in known.names.split():
            return name
        if known is not None and name in RENAMED and RENAMED[name] in known.names.split():
            return RENAMED[name]
    return None
