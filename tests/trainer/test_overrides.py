"""Methods that users override, written as people write them for 4.x and 5.x."""

import numpy as np
import pytest

from oneloop import PredictionOutput, Trainer
from oneloop.errors import ArgumentError
from tests.backends.support import largest_difference, rows, same_bytes
from tests.internals import backend_of

STEPS = {"max_steps": 6, "learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_compute_loss_with_outputs_serves_training_and_evaluation(backend, trained):
    asked = []

    class Doubled(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            asked.append((return_outputs, self.is_in_train, model is self.model_wrapped))
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
            return (loss * 2, outputs) if return_outputs else loss * 2

    plain = trained(backend.classifier(), rows(8), eval_dataset=rows(5, 1), compute_metrics=accuracy, max_steps=1)
    twice = Doubled(backend.classifier(), plain.args, eval_dataset=rows(5, 1), compute_metrics=accuracy)
    same = Trainer(backend.classifier(), plain.args, eval_dataset=rows(5, 1), compute_metrics=accuracy)
    assert twice.evaluate()["eval_loss"] == pytest.approx(2 * same.evaluate()["eval_loss"])
    assert twice.predict(rows(5, 1)).predictions.shape == (5, 3)
    assert asked and all(a == (True, False, True) for a in asked)
    asked.clear()
    trained(backend.classifier(), rows(8), Doubled, max_steps=2)
    assert asked == [(False, True, True)] * 2


def test_prediction_step_of_4_and_of_5(backend, arguments):
    class Logits(Trainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
            return loss, logits * 0 + 5, labels

    trainer = Logits(backend.classifier(), arguments(), compute_metrics=accuracy)
    output = trainer.predict(rows(5))
    assert isinstance(output, PredictionOutput)
    assert (output.predictions == 5).all() and output.label_ids.shape == (5,)


def test_create_optimizer_and_create_scheduler(backend, trained):
    seen = []

    class Own(Trainer):
        def create_optimizer(self):
            super().create_optimizer()
            seen.append("optimizer")
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            seen.append(("scheduler", num_training_steps, optimizer is self.optimizer))
            self.lr_scheduler = Recorded()
            return self.lr_scheduler

    class Recorded:
        steps = 0

        def step(self):
            self.steps += 1

        def get_last_lr(self):
            return [0.25]

    trainer = trained(backend.classifier(), rows(12), Own, logging_steps=1, **STEPS)
    assert seen == ["optimizer", ("scheduler", 6, True)]
    assert trainer.lr_scheduler.steps == 6
    # What is logged is the rate of the update, and this scheduler never sets one.
    logged = {e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e}
    assert logged == {trainer.args.learning_rate}


def test_create_optimizer_and_scheduler_at_once(backend, trained):
    class Both(Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            super().create_optimizer_and_scheduler(num_training_steps)
            backend_of(self).optimizers.set_learning_rates(self.optimizer, [0.0] * len(self.get_learning_rates()))
            self.lr_scheduler.step = lambda: None

    model = backend.classifier()
    before = backend.weights(model)
    trained(model, rows(12), Both, **STEPS)
    assert same_bytes(before, backend.weights(model)), "the rates of the override were not used"


def test_an_override_that_leaves_no_scheduler_is_told_so(backend, arguments):
    class Neither(Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            self.create_optimizer()

    with pytest.raises(ValueError, match="self.lr_scheduler"):
        Neither(backend.classifier(), arguments(max_steps=1), train_dataset=rows(4)).train()


def test_get_decay_parameter_names(backend, trained):
    class HeadAlone(Trainer):
        def get_decay_parameter_names(self, model):
            return [name for name in super().get_decay_parameter_names(model) if name.startswith("head")]

    options = STEPS | {"weight_decay": 0.5}
    weights = {}
    for cls in (Trainer, HeadAlone):
        model = backend.classifier()
        trainer = trained(model, rows(12), cls, **options)
        weights[cls] = backend.weights(model)
        with_decay = {
            id(p)
            for g in backend_of(trainer).optimizers.groups(trainer.optimizer)
            if g["weight_decay"]
            for p in g["params"]
        }
        names = {name for name, p in backend_of(trainer).models.named_parameters(model) if id(p) in with_decay}
        assert names == ({"hidden.weight", "head.weight"} if cls is Trainer else {"head.weight"})
    assert largest_difference(weights[Trainer], weights[HeadAlone]) > 1e-3


def test_get_train_sampler_of_4_and_of_5(backend, trained):
    order = [5, 5, 3, 1, 0, 2, 4, 3]
    weights = []
    for with_argument in (True, False):

        class Own(Trainer):
            if with_argument:

                def _get_train_sampler(self, train_dataset=None):
                    assert len(train_dataset) == 6
                    return order
            else:

                def _get_train_sampler(self):
                    return order

        data = rows(6)
        seen = []

        def collate(samples, seen=seen):
            seen.append([int(np.flatnonzero([(s["x"] == d["x"]).all() for d in rows(6)])[0]) for s in samples])
            return {key: np.stack([s[key] for s in samples]) for key in ("x", "labels")}

        model = backend.classifier()
        trained(model, data, Own, data_collator=collate, num_train_epochs=1, **(STEPS | {"max_steps": -1}))
        assert seen == [[5, 5, 3, 1], [0, 2, 4, 3]]
        weights.append(backend.weights(model))
    assert same_bytes(*weights)


def test_log_of_4_and_of_5(backend, trained):
    heard = {4: [], 5: []}

    class Version4(Trainer):
        def log(self, logs):
            logs["extra"] = 4
            heard[4].append(dict(logs))
            super().log(logs)

    class Version5(Trainer):
        def log(self, logs, start_time=None):
            logs["extra"] = 5
            heard[5].append(dict(logs))
            super().log(logs, start_time)

    for version, cls in ((4, Version4), (5, Version5)):
        trainer = trained(backend.classifier(), rows(12), cls, logging_steps=2, **STEPS)
        assert [e["extra"] for e in trainer.state.log_history] == [version] * 4
        assert ["loss" in e for e in heard[version]] == [True, True, True, False]


def test_evaluate_and_save_model(backend, trained):
    calls = []

    class Own(Trainer):
        def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            calls.append("evaluate")
            return metrics | {"eval_made_up": -len(calls)}

        def save_model(self, output_dir=None, _internal_call=False):
            calls.append(("save", _internal_call))
            super().save_model(output_dir, _internal_call)

    trainer = trained(
        backend.classifier(),
        rows(12),
        Own,
        eval_dataset=rows(4, 1),
        eval_strategy="steps",
        eval_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="made_up",
        **STEPS,
    )
    assert calls == ["evaluate", ("save", True), "evaluate"]
    assert trainer.state.best_global_step == 3 and trainer.state.best_metric == -1


def test_save_model_that_does_not_know_internal_calls(backend, trained):
    saved = []

    class Old(Trainer):
        def save_model(self, output_dir=None):
            saved.append(output_dir)
            super().save_model(output_dir)

    trainer = trained(backend.classifier(), rows(12), Old, save_strategy="steps", save_steps=6, **STEPS)
    assert len(saved) == 1
    assert trainer.state.global_step == 6


def test_floating_point_ops(backend, trained):
    class Counted(Trainer):
        def floating_point_ops(self, inputs):
            return 10 * len(inputs["labels"])

    assert trained(backend.classifier(), rows(12), Counted, **STEPS).result.metrics["total_flos"] == 240


def test_get_batch_samples(backend, trained):
    sizes = []

    class Own(Trainer):
        def get_batch_samples(self, epoch_iterator, num_batches, device):
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
            sizes.append((len(batches), items))
            return batches, items

    trained(backend.classifier(), rows(12), Own, gradient_accumulation_steps=2, **(STEPS | {"max_steps": 2}))
    assert sizes == [(2, 8), (1, 4)]


def test_what_overrides_reach_for(backend, trained):
    seen = {}

    class Looks(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            if self.is_in_train:
                seen["wrapped"] = model is self.model_wrapped
                seen["unwrapped"] = self.accelerator.unwrap_model(model) is self.model
                labels = inputs["labels"]
                seen["gathered"] = self.accelerator.gather_for_metrics(labels) is labels
                seen["device"] = self.accelerator.device == self.args.device
                seen["main"] = self.accelerator.is_main_process and self.is_world_process_zero()
            return super().compute_loss(model, inputs, return_outputs, **kwargs)

    trainer = trained(backend.classifier(), rows(12), Looks, eval_dataset=rows(4), **STEPS)
    assert seen == dict.fromkeys(["wrapped", "unwrapped", "gathered", "device", "main"], True)
    assert trainer.is_in_train is False
    seen.clear()
    trainer.evaluate()
    assert seen == {}


@pytest.mark.parametrize("name", ["params", "model", "optimizer_dict"])
def test_get_optimizer_cls_and_kwargs_that_says_what_is_optimized(backend, trained, name):
    class HeadAlone(Trainer):
        def get_optimizer_cls_and_kwargs(self, args, model=None):
            cls, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
            named = dict(backend_of(self).models.named_parameters(model))
            weight, bias = named["head.weight"], named["head.bias"]
            groups = [{"params": [weight], "weight_decay": 0.5}, {"params": [bias]}]
            return cls, options | {name: [weight, bias] if name == "params" else groups}

    model = backend.classifier()
    before = backend.weights(model)
    trainer = trained(model, rows(12), HeadAlone, **STEPS)
    after = backend.weights(model)
    assert {key for key in before if not np.array_equal(before[key], after[key])} == {"head.weight", "head.bias"}
    groups = backend_of(trainer).optimizers.groups(trainer.optimizer)
    decay = [group["weight_decay"] for group in groups for _ in group["params"]]
    assert decay == ([0.0, 0.0] if name == "params" else [0.5, 0.0])


def test_an_optimizer_factory(backend, arguments):
    """As transformers 5 takes it: an object without arguments, called with the model and the options."""
    calls = []

    class Factory:
        def __call__(self, model, **options):
            calls.append((model, options))
            return backend.sgd(model, 0.25)

    model = backend.classifier()
    pair = (Factory, {"a": 1})
    trainer = Trainer(model, arguments(**STEPS), train_dataset=rows(12), optimizer_cls_and_kwargs=pair)
    before = backend.weights(model)
    trainer.train()
    assert calls == [(model, {"a": 1})] and not same_bytes(before, backend.weights(model))
    wrong = Trainer(model, arguments(), train_dataset=rows(12), optimizer_cls_and_kwargs=(lambda: lambda model: 3, {}))
    with pytest.raises(ArgumentError, match="factory .* returned an int"):
        wrong.create_optimizer()


def test_groups_that_are_given_replace_those_of_a_frozen_model(backend, arguments):
    """A loss may have parameters although the model has none that are trained."""
    model, other = backend.classifier(), backend.classifier()
    models = backend_of(Trainer(model, arguments())).models
    parameters = [p for _, p in models.named_parameters(other)]

    class OfOther(Trainer):
        def get_optimizer_cls_and_kwargs(self, args, model=None):
            cls, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
            return cls, options | {"params": parameters}

    backend.freeze(model)
    trainer = OfOther(model, arguments())
    trainer.create_optimizer()
    groups = backend_of(trainer).optimizers.groups(trainer.optimizer)
    assert [id(p) for group in groups for p in group["params"]] == [id(p) for p in parameters]
