"""What a model may return, where it may come from, and what of it is saved."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.errors import ModelError, NoGradientsError
from tests.backends.support import rows, same_bytes
from tests.internals import backend_of, run_id

STEPS = {"max_steps": 6, "learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4}


@pytest.mark.parametrize("returns", ["dict", "tuple", "object", "scalar"])
def test_a_loss_in_every_shape_trains_alike(backend, trained, returns):
    expected, model = backend.classifier("dict"), backend.classifier(returns)
    trained(expected, rows(12), **STEPS)
    trained(model, rows(12), **STEPS)
    assert same_bytes(backend.weights(expected), backend.weights(model))


@pytest.mark.parametrize("returns", ["dict", "tuple", "object", "logits"])
@pytest.mark.parametrize("by", ["criterion", "compute_loss_func"])
def test_a_loss_from_outside_trains_and_evaluates_alike(backend, trained, returns, by):
    def from_outputs(outputs, labels):
        if isinstance(outputs, dict):
            outputs = outputs["logits"]
        outputs = outputs[0] if isinstance(outputs, tuple) else getattr(outputs, "logits", outputs)
        return backend.cross_entropy(outputs, labels)

    expected, model = backend.classifier("dict"), backend.classifier(returns)
    plain = trained(expected, rows(12), **STEPS)
    trainer = trained(model, rows(12), **STEPS, **{by: from_outputs})
    assert same_bytes(backend.weights(expected), backend.weights(model))
    assert trainer.evaluate(rows(5, 1))["eval_loss"] == pytest.approx(plain.evaluate(rows(5, 1))["eval_loss"])
    np.testing.assert_array_equal(
        trainer.predict(rows(5, 1)).predictions, plain.predict(rows(5, 1)).predictions, strict=True
    )


def test_criterion_in_second_place(backend, arguments):
    expected, model = backend.classifier(), backend.classifier("logits")
    Trainer(expected, arguments(**STEPS), None, rows(12)).train()
    trainer = Trainer(model, backend.cross_entropy, arguments(**STEPS), None, rows(12), rows(5, 1))
    trainer.train()
    assert same_bytes(backend.weights(expected), backend.weights(model))
    assert "eval_loss" in trainer.evaluate()


@pytest.mark.parametrize("returns, said", [("logits", r"shape \(4, 3\)"), ("dict", "no loss")])
def test_a_model_without_a_loss(backend, arguments, returns, said):
    data = [{"x": row["x"]} for row in rows(12)]
    with pytest.raises(ModelError, match=said):
        Trainer(backend.classifier(returns), arguments(**STEPS), train_dataset=data).train()


def test_model_init_makes_a_fresh_model_for_each_run(backend, arguments):
    made = []

    def init():
        made.append(backend.classifier(dropout=0.3))
        return made[-1]

    trainer = Trainer(args=arguments(**STEPS), model_init=init, train_dataset=rows(12))
    first = trainer.train().training_loss
    weights = backend.weights(trainer.model)
    second = trainer.train().training_loss
    assert trainer.model is made[-1] and len(made) == 3
    assert made[-1] is not made[-2]
    assert first == second and same_bytes(weights, backend.weights(trainer.model))
    assert trainer.state.global_step == 6 and len(trainer.state.log_history) == 1


def test_model_init_may_take_a_trial(backend, arguments):
    trials = []
    trainer = Trainer(
        args=arguments(**STEPS),
        model_init=lambda trial: trials.append(trial) or backend.classifier(),
        train_dataset=rows(12),
    )
    trainer.train(trial={"learning_rate": 1})
    assert trials == [None, {"learning_rate": 1}]


def test_training_again_goes_on_with_the_weights_in_a_new_run(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(**STEPS), train_dataset=rows(12))
    first, run = trainer.train().training_loss, run_id(trainer)
    second = trainer.train()
    assert second.global_step == 6 and second.training_loss < first
    assert run_id(trainer) != run


def test_nothing_to_train(backend, arguments):
    model = backend.classifier()
    backend.freeze(model)
    trainer = Trainer(model, arguments(**STEPS), train_dataset=rows(12), eval_dataset=rows(4))
    with pytest.raises(ModelError, match="no trainable parameters"):
        trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


def test_buffers_are_saved_and_loaded(backend, trained, tmp_path):
    model = backend.classifier(norm=True)
    fresh = backend.weights(backend.classifier(norm=True))
    options = STEPS | {"save_strategy": "steps", "save_steps": 3}
    trainer = trained(model, rows(12), **options)
    after = backend.weights(model)
    buffers = after.keys() - {name for name, _ in backend_of(trainer).models.named_parameters(model)}
    assert any(not np.array_equal(after[name], fresh[name]) for name in buffers)
    other = backend.classifier(norm=True)
    last = str(tmp_path / "out" / "checkpoint-6")
    again = Trainer(other, trainer.args, train_dataset=rows(12))
    again.train(resume_from_checkpoint=last)
    assert same_bytes(after, backend.weights(other))


def test_save_model_writes_arguments_and_no_pickle(backend, trained, tmp_path):
    trainer = trained(backend.classifier(), rows(12), hub_token="hidden-word", **STEPS)
    trainer.save_model()
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert {"model.safetensors", "training_args.json"} <= set(files)
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pth", ".pkl", ".partial"))]
    text = (tmp_path / "out" / "training_args.json").read_text()
    assert json.loads(text)["learning_rate"] == 0.1 and "hidden-word" not in text


@pytest.mark.parametrize(
    "given, said", [(None, "no model given"), (int, "class int"), ("text", "expected an instance")]
)
def test_what_is_not_a_model(arguments, given, said):
    with pytest.raises(ModelError, match=said):
        Trainer(given, arguments())


def test_a_tokenizer_does_not_name_the_folder_that_it_is_asked_to_write(backend, arguments, tmp_path, caplog):
    library = logging.getLogger(__name__.partition(".")[0])

    class Tokenizer:
        def save_pretrained(self, folder):
            (Path(folder) / "words.json").write_text("[]")
            library.info("saved in %s", folder)
            library.warning("an old format")

    caplog.set_level(logging.INFO, library.name)
    trainer = Trainer(backend.classifier(), arguments(), processing_class=Tokenizer())
    trainer.save_model(tmp_path / "model")
    assert (tmp_path / "model" / "words.json").read_text() == "[]"
    assert "an old format" in caplog.text and "saved in" not in caplog.text
    assert library.level == logging.INFO


class Detached(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return backend_of(self).tensors.detach(super().compute_loss(model, inputs))


class NoBackward(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return self.compute_loss(model, self._prepare_inputs(inputs))


class FreezesAll(TrainerCallback):
    def __init__(self, freeze):
        self.freeze = freeze

    def on_step_begin(self, args, state, control, model, **kwargs):
        self.freeze(model)


@pytest.mark.parametrize("how", ["detached", "no backward", "frozen"])
def test_missing_gradients_are_the_same_error_on_each_framework(backend, trained, how):
    trainer_class = {"detached": Detached, "no backward": NoBackward}.get(how, Trainer)
    callbacks = [FreezesAll(backend.freeze)] if how == "frozen" else []
    with pytest.raises(NoGradientsError, match="gradients|differentiated"):
        trained(backend.classifier(), rows(12), trainer_class, callbacks=callbacks, **STEPS)
