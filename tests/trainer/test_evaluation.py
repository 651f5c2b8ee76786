"""What compute_metrics sees, and what evaluate and predict return."""

import numpy as np
import pytest

from oneloop import EvalPrediction, Trainer
from oneloop.errors import ArgumentError, DataError, ModelError
from tests.backends.support import RESOLUTION, refuses_half, rows, same_bytes, tagged


def keep(into):
    def compute(prediction):
        into.append(prediction)
        return {"rows": len(prediction.label_ids)}

    return compute


@pytest.fixture
def make(backend, arguments):
    def trainer(model=None, cls=Trainer, eval_dataset=None, compute_metrics=None, more=None, **given):
        given.setdefault("per_device_eval_batch_size", 4)
        return cls(
            model or backend.classifier(),
            arguments(**given),
            eval_dataset=eval_dataset,
            compute_metrics=compute_metrics,
            **(more or {}),
        )

    return trainer


def by_hand(backend, model, data):
    """Logits and loss of the whole set at once."""
    trainer_free = model(**{k: backend.tensor(np.stack([row[k] for row in data])) for k in data[0]})
    return backend.numpy(trainer_free["logits"]), float(backend.numpy(trainer_free["loss"]))


def test_metrics_see_the_whole_set_in_order(backend, make):
    data, seen = rows(10), []
    trainer = make(eval_dataset=data, compute_metrics=keep(seen))
    metrics = trainer.evaluate()
    logits, loss = by_hand(backend, trainer.model, data)
    (prediction,) = seen
    assert isinstance(prediction, EvalPrediction)
    predictions, labels = prediction
    np.testing.assert_allclose(predictions, logits, rtol=1e-5, atol=1e-6)
    assert labels.tolist() == [row["labels"] for row in data] and labels.dtype == np.int64
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-5), "uneven last batch: the mean is over samples"
    assert metrics["eval_rows"] == 10
    assert {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"} <= metrics.keys()


@pytest.mark.parametrize("accumulation", [None, 1, 2, 7])
def test_how_long_results_stay_on_the_device_changes_nothing(make, accumulation):
    data = rows(10)
    output = make(eval_accumulation_steps=accumulation).predict(data)
    expected = make().predict(data)
    np.testing.assert_array_equal(output.predictions, expected.predictions)
    assert output.metrics["test_loss"] == expected.metrics["test_loss"]


def test_ragged_lengths_are_padded_with_minus_100(backend, make):
    lengths = [3, 2, 5, 1, 4]
    data = [{key: value[:n] for key, value in row.items()} for row, n in zip(tagged(lengths), lengths)]

    def collate(samples):
        width = max(len(sample["labels"]) for sample in samples)
        pad = lambda value, by: np.pad(value, (0, width - len(value)), constant_values=by)  # noqa: E731
        return {
            "input_ids": np.stack([pad(sample["input_ids"], 0) for sample in samples]),
            "labels": np.stack([pad(sample["labels"], -100) for sample in samples]),
        }

    trainer = make(backend.tagger(), per_device_eval_batch_size=2, more={"data_collator": collate})
    output = trainer.predict(data)
    assert output.predictions.shape == (5, 5, 3) and output.label_ids.shape == (5, 5)
    assert [(row != -100).sum() for row in output.label_ids] == lengths
    assert (output.predictions[0, 3:] == -100).all() and (output.predictions[2] != -100).all()
    single = make(backend.tagger(), per_device_eval_batch_size=1, more={"data_collator": collate})
    for i, length in enumerate(lengths):
        alone = single.predict(data[i : i + 1]).predictions[0]
        np.testing.assert_allclose(output.predictions[i, :length], alone, rtol=1e-5)


def test_nested_outputs_keep_their_shape(backend, make):
    class Nested(Trainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, (logits, {"twice": logits * 2, "pair": (logits[:, 0], logits[:, 1:])}), labels

    seen = []
    trainer = make(cls=Nested, compute_metrics=keep(seen))
    output = trainer.predict(rows(10))
    plain = make().predict(rows(10)).predictions
    first, rest = output.predictions
    np.testing.assert_array_equal(first, plain)
    np.testing.assert_array_equal(rest["twice"], plain * 2)
    np.testing.assert_array_equal(rest["pair"][0], plain[:, 0])
    np.testing.assert_array_equal(rest["pair"][1], plain[:, 1:])


def test_preprocess_logits_for_metrics(make):
    shapes, seen = [], []

    def to_classes(logits, labels):
        shapes.append((tuple(logits.shape), tuple(labels.shape)))
        return logits.argmax(-1)

    trainer = make(compute_metrics=keep(seen), more={"preprocess_logits_for_metrics": to_classes})
    output = trainer.predict(rows(10))
    assert shapes == [((4, 3), (4,)), ((4, 3), (4,)), ((2, 3), (2,))]
    np.testing.assert_array_equal(output.predictions, make().predict(rows(10)).predictions.argmax(-1))


def test_metrics_batch_by_batch(make):
    calls = []

    def compute(prediction, compute_result):
        calls.append((len(prediction.label_ids), compute_result))
        return {"seen": sum(n for n, _ in calls)} if compute_result else {}

    trainer = make(compute_metrics=compute, eval_dataset=rows(10), batch_eval_metrics=True)
    metrics = trainer.evaluate()
    assert calls == [(4, False), (4, False), (2, True)]
    assert metrics["eval_seen"] == 10
    assert metrics["eval_loss"] == pytest.approx(make(eval_dataset=rows(10)).evaluate()["eval_loss"])


def test_metrics_batch_by_batch_need_compute_result(make):
    with pytest.raises(ArgumentError, match="compute_result"):
        make(compute_metrics=lambda prediction: {}, batch_eval_metrics=True)


@pytest.mark.parametrize("given", [{"include_for_metrics": ["inputs", "loss"]}, {"include_inputs_for_metrics": True}])
def test_inputs_and_losses_for_metrics(backend, make, given):
    seen = []
    data = tagged([3, 4, 2, 4, 1])
    trainer = make(backend.tagger(), compute_metrics=keep(seen), per_device_eval_batch_size=2, **given)
    output = trainer.predict(data)
    (prediction,) = seen
    np.testing.assert_array_equal(prediction.inputs, np.stack([row["input_ids"] for row in data]))
    if "include_for_metrics" in given:
        assert prediction.losses.shape == (5,) and len(set(prediction.losses[:2])) == 1
        assert prediction.losses.mean() == pytest.approx(output.metrics["test_loss"], rel=1e-6)
        assert len(prediction) == 4
    else:
        assert prediction.losses is None and len(tuple(prediction)) == 3


def test_loss_alone(make):
    def never(prediction):
        raise AssertionError("compute_metrics was called")

    trainer = make(compute_metrics=never, eval_dataset=rows(10), prediction_loss_only=True)
    assert "eval_loss" in trainer.evaluate()
    output = trainer.predict(rows(10))
    assert output.predictions is None and output.label_ids is None


def test_batches_kept_apart(make):
    output = make(eval_do_concat_batches=False).predict(rows(10))
    assert [len(batch) for batch in output.predictions] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate(output.predictions), make().predict(rows(10)).predictions)


def test_predict_without_labels(make):
    seen = []
    trainer = make(compute_metrics=keep(seen))
    output = trainer.predict([{"x": row["x"]} for row in rows(10)])
    assert output.label_ids is None and "test_loss" not in output.metrics and seen == []
    np.testing.assert_array_equal(output.predictions, make().predict(rows(10)).predictions)
    assert "own_runtime" in trainer.predict(rows(3), metric_key_prefix="own").metrics


def test_ignored_keys(backend, make):
    class More(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            loss, outputs = super().compute_loss(model, inputs, True, **kwargs)
            outputs = dict(outputs) | {"hidden": outputs["logits"] + 1, "extra": outputs["logits"] + 2}
            return (loss, outputs) if return_outputs else loss

    trainer = make(cls=More)
    assert len(trainer.predict(rows(4)).predictions) == 3
    logits = trainer.predict(rows(4), ignore_keys=["hidden", "extra"]).predictions
    assert logits.shape == (4, 3)


def test_ignored_keys_while_training(backend, arguments):
    shapes = []

    class More(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            loss, outputs = super().compute_loss(model, inputs, True, **kwargs)
            return (loss, dict(outputs) | {"hidden": outputs["logits"]}) if return_outputs else loss

    def compute(prediction):
        shapes.append(np.shape(prediction.predictions))
        return {}

    args = arguments(eval_strategy="steps", eval_steps=1, max_steps=1)
    trainer = More(backend.classifier(), args, None, rows(8), rows(4), compute_metrics=compute)
    trainer.train(ignore_keys_for_eval=["hidden"])
    assert shapes == [(4, 3)]


def test_metrics_become_plain_numbers_with_a_prefix(make):
    def compute(prediction):
        return {"a": np.float32(0.5), "test_b": np.int64(3), "c": prediction.predictions.mean()}

    metrics = make(compute_metrics=compute).predict(rows(4)).metrics
    assert metrics["test_a"] == 0.5 and metrics["test_b"] == 3
    assert all(type(value) in (int, float) for value in metrics.values())


def test_metrics_that_are_no_dict(make):
    with pytest.raises(ArgumentError, match="returned float; expected a dict"):
        make(compute_metrics=lambda prediction: 0.5, eval_dataset=rows(4)).evaluate()


@pytest.mark.parametrize("data, said", [([], "eval_dataset is empty"), (None, "pass eval_dataset")])
def test_nothing_to_evaluate(make, data, said):
    with pytest.raises(DataError, match=said):
        make(eval_dataset=data).evaluate()


@pytest.mark.parametrize("kind", ["bf16_full_eval", "fp16_full_eval"])
@pytest.mark.parametrize("norm", [False, True])
def test_evaluating_in_half_precision_leaves_the_weights_as_they_were(backend, arguments, make, kind, norm):
    if refuses_half(backend, arguments, **{kind: True}):
        return
    model = backend.classifier(norm=norm)
    before = backend.weights(model)
    half = make(model, eval_dataset=rows(10), **{kind: True})
    # A dict model in half precision needs half inputs: the collator makes them.
    half.data_collator = backend.half_collator(kind)
    low = half.evaluate()["eval_loss"]
    full = make(backend.classifier(norm=norm), eval_dataset=rows(10)).evaluate()["eval_loss"]
    assert low != full and low == pytest.approx(full, rel=RESOLUTION[kind[:4]])
    assert same_bytes(before, backend.weights(model))


def test_evaluation_draws_no_random_numbers_and_no_dropout(backend, make):
    trainer = make(backend.classifier(dropout=0.5), eval_dataset=rows(10))
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]


def test_evaluate_alone_works_before_the_output_directory_exists(make, tmp_path):
    trainer = make(eval_dataset=rows(4), output_dir=tmp_path / "not" / "there")
    assert "eval_loss" in trainer.evaluate()
    assert trainer.state.log_history[0]["eval_loss"] > 0


def test_the_old_prediction_loop(make):
    trainer = make(eval_dataset=rows(10))
    expected = make(eval_dataset=rows(10)).evaluate()["eval_loss"]
    loop = trainer.prediction_loop(trainer.get_eval_dataloader(), "Evaluation")
    assert loop.num_samples == 10 and loop.metrics["eval_loss"] == expected


def test_an_evaluation_without_labels_says_that_it_has_no_loss(backend, arguments, caplog):
    unlabelled = [{"x": row["x"]} for row in rows(5)]
    metrics = Trainer(backend.classifier(), arguments(), eval_dataset=unlabelled).evaluate()
    assert "eval_loss" not in metrics
    assert "no eval_loss" in caplog.text and "label_names" in caplog.text


class Worded(Trainer):
    """Its outputs hold a word for each sample, or a key for each."""

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        words = [f"word {i}" for i in range(len(labels))]
        return loss, (logits, dict.fromkeys(words, logits) if self.args.run_name == "keys" else words), labels


@pytest.mark.parametrize("kind", ["words", "keys"])
def test_outputs_whose_parts_differ_from_batch_to_batch(backend, arguments, kind):
    trainer = Worded(backend.classifier(), arguments(per_device_eval_batch_size=4, run_name=kind))
    with pytest.raises(ModelError, match="a different structure in one batch.*eval_do_concat_batches=False"):
        trainer.predict(rows(6))
    trainer.args.eval_do_concat_batches = False
    first, second = trainer.predict(rows(6)).predictions
    assert [len(parts[1]) for parts in (first, second)] == [4, 2]
    if kind == "words":
        assert [str(word) for word in first[1]] == ["word 0", "word 1", "word 2", "word 3"]


def test_each_evaluation_does_not_say_it_again(backend, make, caplog):
    caplog.set_level("INFO")
    trainer = make(eval_dataset=[{"x": row["x"], "text": "a"} for row in rows(4)])
    for _ in range(3):
        trainer.evaluate()
    assert caplog.text.count("dropping columns not used by model.forward: text") == 1
    assert caplog.text.count("no labels found") == 1
    trainer.evaluate([row | {"note": "b"} for row in rows(4)])
    assert "dropping columns not used by model.forward: note" in caplog.text, "another data set has other columns"


@pytest.mark.parametrize(
    ("missing", "words"),
    [("logits", "the model returned only its loss"), ("labels", "no labels found in the inputs")],
)
def test_metrics_that_cannot_be_computed_are_told_of(backend, arguments, caplog, missing, words):
    class Lacks(Trainer):
        def prediction_step(self, *args, **kwargs):
            loss, logits, labels = super().prediction_step(*args, **kwargs)
            return loss, None if missing == "logits" else logits, None if missing == "labels" else labels

    trainer = Lacks(backend.classifier(), arguments(), compute_metrics=lambda prediction: {"score": 1.0})
    assert "eval_score" not in trainer.evaluate(rows(6))
    assert f"compute_metrics was not called: {words}" in caplog.text
    caplog.clear()
    trainer.predict([{"x": row["x"]} for row in rows(6)])  # nobody expects metrics of these
    assert "compute_metrics" not in caplog.text


def test_what_comes_before_and_after_the_batches_of_an_evaluation(backend, arguments, monkeypatch):
    """The strategy brings what processes have in common, and the workers of the loader are stopped."""
    seen = []

    class Own(Trainer):
        def prediction_step(self, *args, **kwargs):
            seen.append("batch")
            return super().prediction_step(*args, **kwargs)

    trainer = Own(backend.classifier(), arguments(per_device_eval_batch_size=4), eval_dataset=rows(4))
    core = trainer._oneloop
    for name in ("prepare_eval", "finish_eval"):
        monkeypatch.setattr(core.strategy, name, lambda model, name=name: seen.append(name))
    monkeypatch.setattr(core.backend.loaders, "close", lambda loader: seen.append("closed"))
    trainer.evaluate()
    assert seen == ["prepare_eval", "batch", "closed", "finish_eval"]
