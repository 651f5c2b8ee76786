"""Methods of transformers' Trainer, copied into a subclass as libraries do, do there what oneloop's own do."""

import inspect

import numpy as np
import pytest

import oneloop
from oneloop import Trainer, TrainingArguments
from tests.emulation import emulate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.22")
accelerate = pytest.importorskip("accelerate")

OFTEN = """evaluate predict evaluation_loop prediction_step training_step compute_loss create_optimizer create_scheduler
get_batch_samples _maybe_log_save_evaluate _clip_grad_norm save_model log""".split()
RARELY = """create_optimizer_and_scheduler get_train_dataloader get_eval_dataloader get_test_dataloader _get_dataloader
num_examples _get_eval_sampler _set_signature_columns_if_needed _remove_unused_columns
_get_collator_with_removed_columns get_decay_parameter_names _get_learning_rate compute_loss_context_manager
autocast_smart_context_manager _get_num_items_in_batch _prepare_input _prepare_inputs
_prepare_context_parallel_inputs set_initial_training_values get_total_train_batch_size get_sp_size get_cp_size
get_tp_size _wrap_model _get_grad_norm _evaluate _get_output_dir _determine_best_metric
_load_from_checkpoint _load_best_model _load_callback_state floating_point_ops call_model_init
add_callback pop_callback remove_callback is_local_process_zero is_world_process_zero _move_model_to_device
get_optimizer_cls_and_kwargs _save""".split()


@pytest.fixture(autouse=True)
def follows_transformers(monkeypatch):
    emulate(monkeypatch, {"transformers"})


class Config(transformers.PretrainedConfig):
    model_type = "line"


class Line(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.slope = torch.nn.Parameter(torch.zeros(()))
        self.post_init()

    def forward(self, x, labels=None, **kwargs):
        y = self.slope * x
        return (y,) if labels is None else (((y - labels) ** 2).mean(), y)


ROWS = [{"x": np.float32(i), "labels": np.float32(2 * i)} for i in range(11)]


def squared_error(prediction):
    return {"error": float(((prediction.predictions - prediction.label_ids) ** 2).mean())}


def without_times(metrics):
    """A mean of losses is in float64 here and in float32 there."""
    kept = {key: value for key, value in metrics.items() if not key.endswith(("_runtime", "_per_second", "_time"))}
    return {key: pytest.approx(value, rel=1e-6) if key.endswith("_loss") else value for key, value in kept.items()}


def outcome(folder, cls, **given):
    """Of a run with evaluations and checkpoints, of an evaluation, a prediction and a resume."""
    given = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2} | given
    args = TrainingArguments(
        folder, max_steps=4, per_device_train_batch_size=4, per_device_eval_batch_size=4, learning_rate=0.1,
        load_best_model_at_end=True, metric_for_best_model="error", greater_is_better=False, logging_steps=1,
        train_sampling_strategy="sequential", report_to="none", use_cpu=True, disable_tqdm=True, **given,
    )  # fmt: skip

    def trainer():
        data = {"train_dataset": ROWS, "eval_dataset": ROWS, "compute_metrics": squared_error}
        return cls(Line(Config()), args, **data)

    first, again = trainer(), trainer()
    loss = first.train().training_loss
    predicted = first.predict(ROWS)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    first.save_model(folder / "model")
    return [
        *(loss, first.model.slope.item(), again.model.slope.item(), predicted.predictions.tolist()),
        *(without_times(metrics) for metrics in (first.evaluate(), predicted.metrics, *first.state.log_history)),
        Line.from_pretrained(folder / "model").slope.item(),
    ]


def copied(*names):
    return type("Copied", (Trainer,), {name: inspect.getattr_static(transformers.Trainer, name) for name in names})


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        emulate(patch, {"transformers"})
        return outcome(tmp_path_factory.mktemp("plain"), Trainer)


@pytest.mark.parametrize("name", [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in RARELY)])
def test_a_copied_method(name, tmp_path, expected):
    assert outcome(tmp_path, copied(name)) == expected


def test_all_that_evaluates_copied(tmp_path, expected):
    names = ("evaluate", "predict", "evaluation_loop", "prediction_step", "_evaluate", "compute_loss", "training_step")
    assert outcome(tmp_path, copied(*names)) == expected


def test_a_copied_loop_finds_the_end_of_the_data(tmp_path):
    """As in batch_eval_metrics, which asks for the result with the last batch."""
    asked = []

    def by_batch(prediction, compute_result):
        asked.append(compute_result)
        return {"batches": len(asked)} if compute_result else None

    args = TrainingArguments(
        tmp_path, per_device_eval_batch_size=4, batch_eval_metrics=True, report_to="none", use_cpu=True
    )
    trainer = copied("evaluation_loop")(Line(Config()), args, eval_dataset=ROWS, compute_metrics=by_batch)
    metrics = trainer.evaluate()
    assert asked == [False, False, True] and metrics["eval_batches"] == 3
    own = oneloop.Trainer(Line(Config()), args, eval_dataset=ROWS, compute_metrics=by_batch).evaluate()
    assert own["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-6), (
        "each sample of the last batch counts once"
    )


class Calls(Trainer):
    """Its evaluation loop is that of the Trainer."""

    def evaluation_loop(self, *args, **kwargs):
        return super().evaluation_loop(*args, **kwargs)


def test_loaders_are_those_of_accelerate_for_a_copied_loop_alone(tmp_path, monkeypatch):
    def ready(loader):
        return isinstance(loader, accelerate.data_loader.DataLoaderShard)

    args = TrainingArguments(tmp_path, report_to="none", use_cpu=True)
    given = {"train_dataset": ROWS, "eval_dataset": ROWS}
    copy, calls = (cls(Line(Config()), args, **given) for cls in (copied("evaluation_loop"), Calls))
    assert ready(copy.get_eval_dataloader()) and not ready(copy.get_train_dataloader())
    assert not ready(calls.get_eval_dataloader())
    monkeypatch.setattr(type(copy.accelerator), "use_distributed", True)
    loader = object()
    assert copy.accelerator.for_evaluation(loader) is loader, "it has been divided"


def test_a_copied_load_names_what_does_not_fit(tmp_path, caplog):
    trainer = Trainer(Line(Config()), TrainingArguments(tmp_path, report_to="none", use_cpu=True))
    result = trainer.model.load_state_dict({"other": torch.zeros(())}, strict=False)
    trainer._issue_warnings_after_load(result)
    assert "no weights for these parts of the model: ['slope']" in caplog.text
    assert "that the model does not have: ['other']" in caplog.text
    caplog.clear()
    trainer.model._keys_to_ignore_on_save = ["slope"]
    trainer._issue_warnings_after_load(trainer.model.load_state_dict({}, strict=False))
    assert caplog.text == ""


def test_a_copied_step_that_generates(tmp_path):
    """It fills up what was generated, and the labels, to the length of the generation config."""

    class Copied(oneloop.Seq2SeqTrainer):
        prediction_step = transformers.Seq2SeqTrainer.prediction_step

    sizes = {"vocab_size": 12, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    torch.manual_seed(0)
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    model = transformers.T5ForConditionalGeneration(config)
    args = oneloop.Seq2SeqTrainingArguments(
        tmp_path, predict_with_generate=True, generation_max_length=5, report_to="none", use_cpu=True
    )
    data = [{"input_ids": [2, 3, i], "attention_mask": [1, 1, 1], "labels": [i, 1]} for i in range(4, 8)]
    theirs, ours = (cls(model, args).predict(data) for cls in (Copied, oneloop.Seq2SeqTrainer))
    width = ours.predictions.shape[1]
    assert theirs.predictions.shape == theirs.label_ids.shape == (4, 20)
    assert (theirs.predictions[:, :width] == ours.predictions).all() and not theirs.predictions[:, width:].any()
    assert theirs.metrics["test_loss"] == pytest.approx(ours.metrics["test_loss"], rel=1e-6)
