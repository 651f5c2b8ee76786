"""Details of transformers' Trainer that code built on it relies on, on every framework that has them."""

import dataclasses
import io
import logging

import numpy as np
import pytest

import oneloop
from oneloop import EarlyStoppingCallback, Trainer, TrainerControl, TrainerState
from oneloop.errors import CheckpointError
from tests.backends.support import rows
from tests.emulation import emulate

# -- evaluation


class BatchAccuracy:
    """For batch_eval_metrics: a sum over batches, asked for with the last one."""

    def __init__(self):
        self.right, self.count, self.asked = 0.0, 0, []

    def __call__(self, prediction, compute_result):
        logits, labels = (np.asarray(part.numpy() if hasattr(part, "numpy") else part) for part in prediction)
        self.right += float((logits.argmax(-1) == labels).sum())
        self.count += len(labels)
        self.asked.append(compute_result)
        if compute_result:
            result = {"accuracy": self.right / self.count}
            self.right, self.count = 0.0, 0
            return result


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_predict_with_metrics_by_batch_returns_the_predictions(backend, arguments):
    model, data, metric = backend.classifier(), rows(10), BatchAccuracy()
    whole = Trainer(model, arguments(per_device_eval_batch_size=4), compute_metrics=accuracy).predict(data)
    given = arguments(per_device_eval_batch_size=4, batch_eval_metrics=True)
    trainer = Trainer(model, given, eval_dataset=data, compute_metrics=metric)
    found = trainer.predict(data)
    assert metric.asked == [False, False, True]
    assert found.predictions.tobytes() == whole.predictions.tobytes()
    assert found.label_ids.tobytes() == whole.label_ids.tobytes()
    assert found.metrics["test_accuracy"] == whole.metrics["test_accuracy"]
    assert trainer.evaluate()["eval_accuracy"] == whole.metrics["test_accuracy"]
    assert trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation").predictions is None


def test_a_metric_that_is_missing_is_a_key_error(backend, arguments):
    given = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    args = arguments(metric_for_best_model="nothing", num_train_epochs=1, **given)
    with pytest.raises(KeyError) as found:
        Trainer(backend.classifier(), args, train_dataset=rows(4), eval_dataset=rows(4)).train()
    assert isinstance(found.value, ValueError)
    assert str(found.value).startswith("metric_for_best_model='nothing': the evaluation has no eval_nothing")


# -- callbacks


@pytest.mark.parametrize(("greater", "values"), [(True, (0.5, 0.55, 0.9, 0.2)), (False, (0.5, 0.45, 0.1, 0.8))])
def test_early_stopping_counts_in_check_metric_value(arguments, greater, values):
    args = arguments(metric_for_best_model="accuracy", greater_is_better=greater)
    callback, counts = EarlyStoppingCallback(2, 0.1), []
    for value in values:
        callback.check_metric_value(args, TrainerState(), TrainerControl(), value)
        counts.append(callback.early_stopping_patience_counter)
    assert counts == [0, 1, 0, 1]


def test_early_stopping_asks_an_overridden_check(backend, arguments):
    class Never(EarlyStoppingCallback):
        asked = 0

        def check_metric_value(self, args, state, control, metric_value):
            self.asked += 1

    callback = Never(1)
    given = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 4, "learning_rate": 0.0}
    trainer = Trainer(
        backend.classifier(), arguments(**given), train_dataset=rows(8), eval_dataset=rows(4), callbacks=[callback]
    )
    trainer.train()
    assert trainer.state.global_step == 4 and callback.asked == 4


def test_the_default_callbacks_are_those_of_a_trainer(backend, arguments):
    from oneloop.compat.redirect import _own

    for disabled, progress in ((True, oneloop.PrinterCallback), (False, _own("DEFAULT_PROGRESS_CALLBACK"))):
        trainer = Trainer(backend.classifier(), arguments(disable_tqdm=disabled))
        found = [type(callback) for callback in trainer.callback_handler.callbacks]
        assert found == [*_own("DEFAULT_CALLBACKS"), progress]


def test_steps_of_an_evaluation_stay_as_they_were_without_evaluations(arguments):
    state = TrainerState()
    state.compute_steps(arguments(logging_steps=3, save_steps=0.5), 20)
    assert (state.logging_steps, state.eval_steps, state.save_steps) == (3, 500, 10)
    state.compute_steps(arguments(logging_steps=3, eval_strategy="steps"), 20)
    assert state.eval_steps == 3


# -- checkpoints


def test_resuming_without_a_checkpoint_is_an_error_in_scripts_of_transformers(backend, arguments, monkeypatch):
    model, args = backend.classifier(), arguments(max_steps=1)
    emulate(monkeypatch, {"transformers"})
    with pytest.raises(CheckpointError, match="No valid checkpoint found in output directory"):
        Trainer(model, args, train_dataset=rows(4)).train(resume_from_checkpoint=True)
    emulate(monkeypatch, set())
    assert Trainer(model, args, train_dataset=rows(4)).train(resume_from_checkpoint=True).global_step == 1


# -- arguments


def test_a_cpu_needs_no_pinned_memory(tmp_path, monkeypatch):
    given = {"use_cpu": True, "dataloader_pin_memory": True}
    assert oneloop.TrainingArguments(tmp_path, **given).dataloader_pin_memory is True
    emulate(monkeypatch, {"transformers"})
    assert oneloop.TrainingArguments(tmp_path, **given).dataloader_pin_memory is False
    assert oneloop.TrainingArguments(tmp_path).dataloader_pin_memory is True


class Config:
    def __init__(self, problem_type):
        self.problem_type = problem_type


def test_labels_of_several_classes_are_not_smoothed(backend, arguments):
    plain, several = backend.classifier(), backend.classifier()
    plain.config, several.config = Config("single_label_classification"), Config("multi_label_classification")
    args = arguments(label_smoothing_factor=0.2, max_steps=1)
    assert Trainer(plain, args, train_dataset=rows(4)).label_smoother.epsilon == 0.2
    with pytest.warns(UserWarning, match="multi-label"):
        trainer = Trainer(several, args, train_dataset=rows(4), eval_dataset=rows(4))
    assert trainer.label_smoother is None
    off = Trainer(several, arguments(), eval_dataset=rows(4)).evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == off


def test_without_mask_and_pad_token_all_tokens_count(caplog):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, input_ids, attention_mask=None, labels=None):
            return {"loss": (input_ids * self.weight).float().mean()}

    def counted(folder, **extra):
        data = [{"input_ids": np.array([1, 2, 0, 0]), "labels": 0} | extra for _ in range(4)]
        args = oneloop.TrainingArguments(
            folder, report_to="none", save_strategy="no", include_num_input_tokens_seen="non_padding", max_steps=2,
            per_device_train_batch_size=2, device="cpu", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(Model(), args, train_dataset=data)
        trainer.train()
        return trainer.state.num_input_tokens_seen

    import tempfile

    with tempfile.TemporaryDirectory() as folder, caplog.at_level(logging.WARNING):
        assert counted(folder, attention_mask=np.array([1, 1, 0, 0])) == 8
        assert "all tokens are counted" not in caplog.text
        assert counted(folder) == 16
        assert caplog.text.count("all tokens are counted") == 1


# -- functions


def test_a_collator_that_removes_columns():
    seen, said = [], []

    class Log:
        def info(self, text):
            said.append(text)

    collate = oneloop.RemoveColumnsCollator(
        data_collator=lambda samples: seen.append(samples),
        signature_columns=["a", "b"],
        logger=Log(),
        model_name="Model",
        description="training",
    )
    for _ in range(2):
        collate([{"a": 1, "b": 2, "c": 3}])
    assert seen == [[{"a": 1, "b": 2}]] * 2
    assert len(said) == 1 and all(word in said[0] for word in ("training", "Model", "c"))
    assert collate._remove_columns({"a": 1, "z": 2}) == {"a": 1}


def test_a_batch_size_shrinks_by_a_tenth():
    tried = []

    @oneloop.find_executable_batch_size(starting_batch_size=64, auto_find_batch_size=True)
    def fits_sixteen(batch_size):
        tried.append(batch_size)
        if batch_size > 16:
            raise RuntimeError("CUDA out of memory.")
        return batch_size

    assert fits_sixteen() == 15
    assert tried == [64, 57, 51, 45, 40, 36, 32, 28, 25, 22, 19, 17, 15]

    @oneloop.find_executable_batch_size(starting_batch_size=4, auto_find_batch_size=True)
    def never(batch_size):
        raise RuntimeError("CUDA out of memory.")

    with pytest.raises(RuntimeError, match="No executable batch size found"):
        never()
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        oneloop.find_executable_batch_size(never.__wrapped__, starting_batch_size=4)()


# -- where a run follows transformers


@pytest.fixture
def follows_transformers(monkeypatch):
    emulate(monkeypatch, {"transformers"})


def evaluated_at(backend, arguments, **given):
    args = arguments(eval_strategy="steps", max_steps=8, per_device_train_batch_size=2, **given)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(16), eval_dataset=rows(4))
    trainer.train()
    return [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]


def test_its_runs_end_with_an_evaluation(backend, arguments, monkeypatch):
    emulate(monkeypatch, set())
    assert evaluated_at(backend, arguments, eval_steps=3) == [3, 6]
    emulate(monkeypatch, {"transformers"})
    assert evaluated_at(backend, arguments, eval_steps=3) == [3, 6, 8]
    assert evaluated_at(backend, arguments, eval_steps=4) == [4, 8], "not twice"
    assert evaluated_at(backend, arguments, eval_steps=3, eval_delay=9) == []


@dataclasses.dataclass
class Own:
    name: str
    rate: float = 0.5
    fast: bool = True


def test_its_parser_reads_dataclasses_that_are_not_of_oneloop(follows_transformers, tmp_path):
    theirs = pytest.importorskip("transformers").HfArgumentParser
    parser = oneloop.HfArgumentParser(Own)
    assert type(parser) is theirs
    options = {action.dest: action for action in parser._actions}
    assert (options["rate"].type, options["rate"].default, options["name"].required) == (float, 0.5, True)
    assert vars(parser.parse_args(["--name", "a", "--no_fast"])) == {"name": "a", "rate": 0.5, "fast": False}
    both = oneloop.HfArgumentParser((Own, oneloop.TrainingArguments))
    assert type(both) is oneloop.ArgumentParser
    own, args = both.parse_args_into_dataclasses(
        ["--name", "a", "--output_dir", str(tmp_path), "--evaluation_strategy", "no"]
    )
    assert own == Own("a") and args.eval_strategy == "no"

    class Parser(oneloop.HfArgumentParser):
        pass

    assert type(Parser(Own)) is Parser
    assert Parser(Own).parse_args_into_dataclasses(["--name", "b"]) == (Own("b"),)


@pytest.mark.parametrize("disabled", [True, False])
def test_default_callbacks_that_a_library_replaces_are_used(disabled, backend, arguments, monkeypatch):
    """As ms-swift does, by assigning to transformers.trainer. Its progress bar makes the bar itself."""
    from tqdm import tqdm

    from oneloop.compat.redirect import LazyModule
    from oneloop.trainer import setup

    seen = []

    class Flow(oneloop.DefaultFlowCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(state.global_step)
            return super().on_step_end(args, state, control, **kwargs)

    class Bar(oneloop.ProgressCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.training_bar, self.current_step = tqdm(total=state.max_steps, file=io.StringIO()), 0
            self.made = self.training_bar

    class Lines(oneloop.PrinterCallback):
        pass

    for name in ("DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK", "PrinterCallback"):
        monkeypatch.setattr(setup, name, getattr(setup, name))  # puts them back
    module = LazyModule("transformers.trainer")
    module.DEFAULT_CALLBACKS, module.DEFAULT_PROGRESS_CALLBACK, module.PrinterCallback = [Flow], Bar, Lines
    trainer = Trainer(backend.classifier(), arguments(max_steps=2, disable_tqdm=disabled), train_dataset=rows(8))
    trainer.train()
    last = trainer.callback_handler.callbacks[-1]
    assert seen == [1, 2] and type(last) is (Lines if disabled else Bar)
    assert disabled or last.made.n == 2
