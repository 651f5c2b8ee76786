"""chunked_loss in a Trainer: when it is on, that a run with it is the run without it, and that resumes keep it."""

import json
import logging

import numpy as np
import pytest

from oneloop import Mixture, Trainer, TrainingArguments, token_log_probs
from oneloop.backends._common import chunked_loss as common
from oneloop.errors import UnsupportedError
from oneloop.trainer import chunked_loss
from tests.backends.support import WORDS, largest_difference, rows, same_bytes

SUPPORTED = ("torch",)
LENGTHS = [7, 4, 5, 2, 8, 3, 6, 3, 2, 7, 4, 8, 6, 5, 3, 2]
OPTIONS = {
    "optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_steps": 4, "logging_steps": 1,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "chunked_loss_layer": "head",
}  # fmt: skip
ON = {**OPTIONS, "chunked_loss": True}


@pytest.fixture
def kit(backend, monkeypatch):
    """A framework that can do it, with chunks of a few rows."""
    if backend.name not in SUPPORTED:
        pytest.skip(f"refused on {backend.name}: see the test of refusals")
    monkeypatch.setattr(common, "FEWEST_ROWS", 5)
    monkeypatch.setattr(common, "CHUNK_BYTES", 100)
    return backend


def samples(seed=0, count=16):
    random = np.random.RandomState(seed)
    rows = []
    for length in LENGTHS[:count]:
        ids = random.randint(1, WORDS, 8)
        rows.append({"input_ids": ids, "labels": np.where(np.arange(8) < length, ids, -100)})
    return rows


def losses_of(trainer, name="loss"):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def announced(caplog):
    return [record.message for record in caplog.records if record.message.startswith("chunked_loss is on")]


@pytest.fixture
def notes(caplog):
    caplog.set_level(logging.INFO, "oneloop")
    return caplog


VARIANTS = {
    "as it is": {},
    "label smoothing": {"label_smoothing_factor": 0.2},
    "evaluations of the loss": {"eval_strategy": "steps", "eval_steps": 2, "prediction_loss_only": True},
    "packing": {"packing": True, "max_length": 16, "gradient_accumulation_steps": 1},
    "a mean of micro-batches": {"average_tokens_across_devices": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_is_the_run_with_whole_logits(kit, trained, variant):
    found = {}
    for chunked in (False, True):
        given = OPTIONS | VARIANTS[variant] | {"chunked_loss": chunked}
        data = samples()
        if "packing" in given:
            data = [{"input_ids": row["input_ids"][:length]} for row, length in zip(data, LENGTHS)]
        model = kit.language_model(masked=variant == "packing")
        trainer = trained(model, data, eval_dataset=data[:5] if "eval_steps" in given else None, **given)
        found[chunked] = kit.weights(model), losses_of(trainer), losses_of(trainer, "eval_loss")
    (plain, plain_losses, plain_evals), (chunked, losses, evals) = found[False], found[True]
    assert largest_difference(plain, chunked) < 1e-6
    assert losses == pytest.approx(plain_losses, rel=1e-6) and evals == pytest.approx(plain_evals, rel=1e-6)


def test_whole_logits_are_never_computed(kit, trained):
    """The head is not called by the model; evaluations with predictions have them."""
    model, shapes = kit.language_model(), []

    def metrics(predictions):
        shapes.append(predictions.predictions.shape)
        return {}

    trainer = trained(model, samples(), eval_dataset=samples(), compute_metrics=metrics, **ON)
    trainer.evaluate()
    assert shapes == [(16, 8, WORDS)]


def test_it_is_on_where_logits_are_large(kit, trained, notes, monkeypatch):
    trained(kit.language_model(), samples(), **OPTIONS)
    assert announced(notes) == []
    of_logits = 2 * 8 * WORDS * 4
    monkeypatch.setattr(chunked_loss, "LIMIT", of_logits)
    trained(kit.language_model(), samples(), **OPTIONS)
    assert announced(notes) == []
    monkeypatch.setattr(chunked_loss, "LIMIT", of_logits - 1)
    trained(kit.language_model(), samples(), **OPTIONS)
    (said,) = announced(notes)
    assert "the logits of a micro-batch would have 0 MB" in said and "by the head head." in said
    notes.clear()
    trained(kit.language_model(), samples(), **OPTIONS, data_order="transformers")
    trained(kit.language_model(), samples(), **OPTIONS | {"chunked_loss": False})
    trained(kit.language_model(), samples(), **OPTIONS | {"chunked_loss_layer": None})  # no head is known
    assert announced(notes) == []
    if kit.name == "torch":
        trained(kit.language_model(), samples(), **ON, data_order="transformers")
        assert "(as asked)" in announced(notes)[0]


def test_a_script_of_another_library_keeps_its_bits(kit, trained, notes, monkeypatch):
    from oneloop import behaviour
    from oneloop.compat.mode import _as_transformers

    monkeypatch.setattr(chunked_loss, "LIMIT", 1)
    monkeypatch.setattr(behaviour, "_chosen", (_as_transformers(behaviour.OWN), {}))
    trained(kit.language_model(), samples(), **OPTIONS)
    assert announced(notes) == []
    trained(kit.language_model(), samples(), **ON)
    assert len(announced(notes)) == 1


def test_a_resume_keeps_what_was_decided(kit, trained, notes, monkeypatch, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    limit = chunked_loss.LIMIT
    for was_on in (True, False):
        folder = str(tmp_path / str(was_on))
        monkeypatch.setattr(chunked_loss, "LIMIT", 1 if was_on else limit)
        model = kit.language_model()
        trained(model, samples(), output_dir=folder, **OPTIONS, **saving)
        whole = kit.weights(model)
        monkeypatch.setattr(chunked_loss, "LIMIT", limit if was_on else 1)
        notes.clear()
        model = kit.language_model()
        trained(model, samples(), output_dir=folder, resume=f"{folder}/checkpoint-2", **OPTIONS)
        assert same_bytes(kit.weights(model), whole)
        assert ["as in the checkpoint" in said for said in announced(notes)] == [True] * was_on
        notes.clear()
        other = OPTIONS | {"chunked_loss": not was_on}
        trained(kit.language_model(), samples(), output_dir=folder, resume=f"{folder}/checkpoint-2", **other)
        assert ["as asked" in said for said in announced(notes)] == [True] * (not was_on)


def test_checkpoints_have_no_new_key_where_it_is_off(kit, trained, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 4, "output_dir": str(tmp_path / "run")}
    for given in (OPTIONS, ON):
        trained(kit.language_model(), samples(), **given, **saving)
        stored = json.loads((tmp_path / "run" / "checkpoint-4" / "run.json").read_text())
        assert stored.get("chunked_loss") is (True if given is ON else None)


def test_losses_of_a_mixture_by_dataset(kit, trained):
    data = Mixture({"a": samples(), "b": samples(1)}, [0.75, 0.25])
    logs = []
    for given in (OPTIONS, ON):
        trainer = trained(kit.language_model(), data, **given)
        logs.append(
            [[entry[f"loss/{name}"] for name in "ab"] for entry in trainer.state.log_history if "loss" in entry]
        )
    assert np.allclose(*logs, rtol=1e-5) and len(logs[0]) == 4


class Halved(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return (loss[0] / 2, loss[1]) if return_outputs else loss / 2


class Wanting(Trainer):
    """Wants the outputs of the model."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        assert outputs["logits"].shape[-1] == WORDS
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("trainer_class", [Halved, Wanting])
def test_an_override_may_call_the_trainers(kit, trained, trainer_class):
    found = []
    for given in (OPTIONS, ON):
        model = kit.language_model()
        trained(model, samples(), trainer_class=trainer_class, **given)
        found.append(kit.weights(model))
    assert largest_difference(*found) < 1e-6


class Scored(Trainer):
    """Minus the log-probabilities of the labels, as a library for preferences sums them up."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        log_probs = token_log_probs(self, model, inputs)
        assert tuple(log_probs.shape) == tuple(inputs["labels"].shape)
        counted = (inputs["labels"][:, 1:] != -100).sum()
        return -log_probs.sum() / counted


def test_log_probabilities_for_overrides(kit, trained):
    found = []
    for trainer_class in (Trainer, Scored):
        model = kit.language_model()
        trained(model, samples(), trainer_class=trainer_class, **OPTIONS)
        found.append(kit.weights(model))
    assert largest_difference(*found) < 1e-6


def test_an_evaluation_without_training(kit, arguments):
    found = []
    for chunked in (False, True):
        args = arguments(chunked_loss=chunked, chunked_loss_layer="head", prediction_loss_only=True)
        found.append(Trainer(kit.language_model(), args, eval_dataset=samples()).evaluate()["eval_loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_another_model_in_compute_loss_has_whole_logits(kit, trained):
    other = kit.language_model()

    class Two(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            assert super().compute_loss(other, inputs).item() > 0
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    trained(kit.language_model(), samples(), trainer_class=Two, **ON)


class Overriding(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(**inputs)["loss"]


REFUSED = {
    "a criterion": ({"criterion": lambda logits, labels: 0.0}, {}, "criterion and compute_loss_func"),
    "an override": ({"trainer_class": Overriding}, {}, "oneloop.token_log_probs"),
    "no layer": ({}, {"chunked_loss_layer": None}, "chunked_loss_layer names it"),
    "a cache": ({}, {"past_index": 1}, "past_index"),
    "a wrong layer": ({}, {"chunked_loss_layer": "embed"}, "one row of a batch fails|calls the head 0 times|more than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_do_is_an_error_if_it_was_asked_for(kit, trained, case):
    options, given, why = REFUSED[case]
    with pytest.raises(UnsupportedError, match=f"chunked_loss=True, but .*({why}).* Use chunked_loss=False"):
        trained(kit.language_model(), samples(), **options, **ON | given)


def test_labels_that_are_no_tokens(kit, trained):
    model = kit.classifier()
    layers = getattr(model, "named_modules", None) or model.named_sublayers
    layer = [name for name, _ in layers()][-1]
    with pytest.raises(UnsupportedError, match="no dicts with labels by row and position"):
        trained(model, rows(), **ON | {"chunked_loss_layer": layer})


def test_a_framework_that_has_whole_logits_says_so(backend, trained):
    if backend.name in SUPPORTED:
        pytest.skip("supported here")
    with pytest.raises(UnsupportedError, match="has whole logits in this release"):
        trained(backend.language_model(), samples(), **ON)
    named = {name: value for name, value in OPTIONS.items() if name != "chunked_loss_layer"}
    trained(backend.language_model(), samples(), **named)
    with pytest.raises(UnsupportedError, match="chunked_loss_layer='head' cannot be used"):
        trained(backend.language_model(), samples(), **named | {"chunked_loss_layer": "head"})


def test_the_arguments(tmp_path):
    args = TrainingArguments(str(tmp_path))
    assert args.chunked_loss is None and args.chunked_loss_layer is None
    assert TrainingArguments(str(tmp_path), chunked_loss="false").chunked_loss is False
