"""What help() and notebooks show of the arguments and the Trainer."""

import inspect
import re

import pytest

from oneloop import CompressionArguments, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from oneloop.arguments.fields import declared


@pytest.mark.parametrize("cls", [TrainingArguments, Seq2SeqTrainingArguments, CompressionArguments])
def test_every_argument_is_described_as_on_its_page(cls):
    text = inspect.getdoc(cls.__init__)
    described = dict(re.findall(r"^    (\w+) \(default: .*?\): (.+)$", text, re.MULTILINE))
    assert set(described) == {rules["public"] or name for name, (_, rules) in declared(cls).items()}
    for name, (_, rules) in declared(cls).items():
        assert described[rules["public"] or name].startswith(rules["help"])


def test_defaults_and_other_names():
    text = inspect.getdoc(TrainingArguments.__init__)
    assert re.search(r"^    learning_rate \(default: 5e-05\): ", text, re.MULTILINE)
    assert re.search(r"^    eval_strategy \(default: 'no'\): .* Also: evaluation_strategy", text, re.MULTILINE)


def _public_functions(cls):
    for name, value in vars(cls).items():
        if not name.startswith("_") and inspect.isfunction(value):
            yield name, value


# Names that are those of transformers, and that few people call or override.
BRIEF = {
    *("call_model_init", "get_total_train_batch_size", "floating_point_ops", "num_examples", "get_batch_samples"),
    *("create_optimizer_and_scheduler", "get_decay_parameter_names", "get_optimizer_group", "prediction_loop"),
    *("evaluation_loop", "metrics_format", "init_hf_repo"),
}


def test_every_parameter_of_the_trainer_is_described():
    functions = [("Trainer", Trainer), *_public_functions(Trainer)]  # the class describes those of its constructor
    for name, function in functions:
        parameters = [each for each in inspect.signature(function).parameters if not each.startswith(("self", "_"))]
        if function is Trainer:
            parameters = [each for each in parameters if each not in ("positional", "unknown")]
        section = inspect.getdoc(function).partition("Args:")[2].partition("Returns:")[0]
        described = re.findall(r"^ {4}(\w+): \S", section, re.MULTILINE)
        assert described == parameters or (name in BRIEF and not described), name


def test_subclasses_show_the_same():
    assert inspect.getdoc(Seq2SeqTrainer.train) == inspect.getdoc(Trainer.train)
