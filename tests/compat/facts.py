"""What a script finds under `oneloop run` where it imports from transformers: a script itself, full of assertions."""

import logging
import sys
from dataclasses import dataclass, field

import transformers
import transformers as tf
from transformers import (
    AutoTokenizer,
    BertConfig,
    DataCollatorWithPadding,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
    set_seed,
)
from transformers.integrations import TensorBoardCallback, WandbCallback, is_tensorboard_available
from transformers.integrations.integration_utils import MLflowCallback
from transformers.optimization import get_scheduler
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import LabelSmoother, get_parameter_names
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvaluationStrategy, IntervalStrategy, get_last_checkpoint
from transformers.training_args import OptimizerNames
from transformers.utils import check_min_version, is_offline_mode, send_example_telemetry
from transformers.utils.versions import require_version

import oneloop
import oneloop.errors

# The Trainer's names are oneloop's, by whatever way they are reached.
assert __name__ == "__main__" and sys.modules["__main__"].Trainer is Trainer
assert Trainer is oneloop.Trainer is transformers.Trainer is tf.trainer.Trainer
assert transformers.trainer_seq2seq.Seq2SeqTrainer is Seq2SeqTrainer is oneloop.Seq2SeqTrainer
assert TrainingArguments is oneloop.TrainingArguments is transformers.training_args.TrainingArguments
assert Seq2SeqTrainingArguments is oneloop.Seq2SeqTrainingArguments
assert HfArgumentParser is oneloop.HfArgumentParser is transformers.hf_argparser.HfArgumentParser
assert TrainerCallback is oneloop.TrainerCallback is transformers.trainer_callback.TrainerCallback
assert (set_seed, get_last_checkpoint) == (oneloop.set_seed, oneloop.get_last_checkpoint)
assert IntervalStrategy is EvaluationStrategy is oneloop.IntervalStrategy
assert OptimizerNames is oneloop.OptimizerNames
assert (TensorBoardCallback, WandbCallback) == (oneloop.TensorBoardCallback, oneloop.WandbCallback)
assert MLflowCallback is oneloop.MLflowCallback

# All else is the library's own, and works with them.
for own in (AutoTokenizer, BertConfig, DataCollatorWithPadding, get_linear_schedule_with_warmup, get_scheduler):
    assert own.__module__.startswith("transformers."), own
for own in (is_tensorboard_available, LabelSmoother, get_parameter_names, check_min_version, require_version):
    assert own.__module__.startswith("transformers."), own
assert (TRAINING_ARGS_NAME, PREFIX_CHECKPOINT_DIR) == ("training_args.bin", "checkpoint")
assert send_example_telemetry("run_own", None) is None and is_offline_mode() is True
check_min_version("4.0.0")
try:
    check_min_version("99.0.0")
except ImportError:
    pass
else:
    raise AssertionError("an old library was taken for a new one")
try:
    from transformers.trainer_utils import no_such_name
except ImportError:
    no_such_name = None
assert no_such_name is None


# Dataclasses that derive from the arguments, and checks of classes, hold.
@dataclass
class Own(TrainingArguments):
    more: int = field(default=3, metadata={"help": "One more."})


(args,) = HfArgumentParser(Own).parse_args_into_dataclasses(["--output_dir", "out", "--evaluation_strategy", "no"])
assert isinstance(args, transformers.TrainingArguments) and isinstance(args, oneloop.TrainingArguments)
assert (args.more, args.eval_strategy) == (3, "no")

# The level that a script sets for the library's loggers is the one that passive arguments report.
transformers.utils.logging.set_verbosity_info()
assert args.log_level == "passive" and args.get_process_log_level() == logging.INFO
transformers.utils.logging.set_verbosity_warning()
assert args.get_process_log_level() == logging.getLogger("oneloop").getEffectiveLevel()

# A name that would train past oneloop can be imported, and used for nothing.
from transformers.sagemaker import SageMakerTrainer  # noqa: E402

for use in (lambda: SageMakerTrainer(model=None), lambda: SageMakerTrainer.anything, lambda: type(SageMakerTrainer)("X", (SageMakerTrainer,), {})):  # fmt: skip # noqa: E501
    try:
        use()
    except oneloop.errors.UnsupportedError as error:
        assert "SageMakerTrainer is not supported under oneloop" in str(error), error
    else:
        raise AssertionError("it was not refused")
print("all facts hold")
