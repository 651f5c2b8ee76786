"""`_get_dataloader`, which all loaders come from, persistent workers of evaluations, and `can_return_loss`."""

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from tests.backends.support import rows
from tests.internals import backend_of
from tests.trainer.test_data import indices_of, seen_by

RUN = {
    "learning_rate": 0.1,
    "optim": "sgd",
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 3,
    "max_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
}


def test_an_override_is_asked_for_every_loader(backend, arguments):
    asked = []

    class Own(Trainer):
        def _get_dataloader(
            self, dataset, description, batch_size, sampler_fn=None, is_training=False, dataloader_key=None
        ):
            asked.append((description, len(dataset), batch_size, sampler_fn is not None, is_training, dataloader_key))
            return super()._get_dataloader(dataset, description, batch_size * 2, None, is_training, dataloader_key)

    data, parts = rows(16), {"a": rows(5), "b": rows(7)}
    model = backend.classifier()
    trainer = Own(model, arguments(**(RUN | {"max_steps": 1})), train_dataset=data, eval_dataset=parts)
    seen = seen_by(model)
    trainer.train()
    trainer.evaluate(rows(3))
    trainer.predict(rows(2))
    assert asked == [
        ("Training", 16, 4, True, True, None),
        ("Evaluation", 5, 3, True, False, "a"),
        ("Evaluation", 7, 3, True, False, "b"),
        ("Evaluation", 3, 3, True, False, None),
        ("test", 2, 3, True, False, None),
    ]
    # Without a sampler, the samples come in the order of the data; batches have the size that was asked for.
    assert [len(batch) for batch in seen] == [8, 5, 6, 1, 3, 2]
    assert indices_of(seen[:1], data) == list(range(8))


def test_a_sampler_function_of_any_kind(backend, arguments):
    data = rows(6)
    trainer = Trainer(backend.classifier(), arguments(remove_unused_columns=False))

    def order(sampler_fn):
        loader = trainer._get_dataloader(data, "Training", 2, sampler_fn, is_training=True)
        batches = list(backend_of(trainer).loaders.iterate(loader))
        return indices_of([np.array(batch["x"]) for batch in batches], data)

    assert order(lambda dataset: reversed(range(len(dataset)))) == [5, 4, 3, 2, 1, 0]
    assert order(lambda: [3, 3, 0]) == [3, 3, 0]
    assert order(lambda dataset: None) == order(None) == [0, 1, 2, 3, 4, 5]


class Reader:
    """Samples that tell which process read them."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": np.zeros(6, np.float32), "labels": 0, "pid": os.getpid()}


@pytest.mark.parametrize("persistent", [True, False])
def test_persistent_workers_serve_every_evaluation_of_a_run(backend, arguments, persistent):
    readers = []

    class Own(Trainer):
        def prediction_step(self, model, inputs, *args, **kwargs):
            readers.append({int(pid) for pid in np.array(inputs.pop("pid")).ravel()})
            return super().prediction_step(model, inputs, *args, **kwargs)

    class Keeps(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            kept.append(dict(trainer._eval_dataloaders))

    kept = []
    trainer = Own(
        backend.classifier(),
        arguments(
            dataloader_num_workers=1,
            dataloader_persistent_workers=persistent,
            remove_unused_columns=False,
            label_names=["labels"],
            **(RUN | {"per_device_eval_batch_size": 4}),
        ),
        data_collator=lambda samples: {key: np.stack([s[key] for s in samples]) for key in samples[0]},
        train_dataset=rows(8),
        eval_dataset=Reader(),
        callbacks=[Keeps()],
    )
    trainer.train()
    first, second = readers
    assert os.getpid() not in first | second
    assert (first == second) is persistent
    assert [list(each) for each in kept] == ([["eval"]] * 2 if persistent else [[], []])
    assert not persistent or kept[0]["eval"] is kept[1]["eval"]
    assert trainer._eval_dataloaders == {}  # closed at the end of train()
    trainer.evaluate()
    assert trainer._eval_dataloaders == {} and not readers[2] & second


@pytest.mark.parametrize("fails", [False, True])
def test_workers_of_the_training_data_end_with_the_run(backend, arguments, fails):
    readers = set()

    class Own(Trainer):
        def training_step(self, model, inputs, *args, **kwargs):
            readers.update(int(pid) for pid in np.array(inputs.pop("pid")).ravel())
            if fails:
                raise RuntimeError("a fault of the step")
            return super().training_step(model, inputs, *args, **kwargs)

    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "remove_unused_columns": False}
    trainer = Own(
        backend.classifier(),
        arguments(label_names=["labels"], **(RUN | options | {"eval_strategy": "no"})),
        data_collator=lambda samples: {key: np.stack([s[key] for s in samples]) for key in samples[0]},
        train_dataset=Reader(),
    )
    with pytest.raises(RuntimeError, match="a fault of the step") if fails else contextlib.nullcontext():
        trainer.train()
    assert readers and os.getpid() not in readers
    assert not [pid for pid in readers if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("given", [None, True, False])
def test_can_return_loss_may_be_set_and_is_kept_with_model_init(backend, arguments, given):
    """Data without labels: whether there is a loss is what the subclass says, also for the next model."""

    class Own(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            if given is not None:
                self.can_return_loss = given

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            inputs["labels"] = inputs.pop("target")
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        def prediction_step(self, model, inputs, *args, **kwargs):
            if not self.can_return_loss:
                inputs.pop("target")
            return super().prediction_step(model, inputs, *args, **kwargs)

    data = [{"x": row["x"], "target": row["labels"]} for row in rows(8)]
    args = arguments(**(RUN | {"eval_strategy": "no"}), label_names=[], remove_unused_columns=False)
    trainer = Own(args=args, model_init=backend.classifier, train_dataset=data, eval_dataset=data)
    trainer.train()
    assert trainer.can_return_loss is bool(given)
    assert ("eval_loss" in trainer.evaluate()) is bool(given)


@pytest.mark.parametrize("given", ["whole", "batches"])
def test_metrics_of_data_without_labels(backend, arguments, given):
    """A loss without labels, as TRL's Reward has it: compute_metrics gets the predictions, and () for the labels."""
    seen = []

    def compute_metrics(prediction, compute_result=True):
        seen.append((np.asarray(prediction.predictions).shape, prediction.label_ids))
        return {"rows": sum(shape[0] for shape, _ in seen)}

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            inputs = {"x": inputs["x"], "labels": inputs["target"]}
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    data = [{"x": row["x"], "target": row["labels"]} for row in rows(8)]
    more = {"batch_eval_metrics": given == "batches", "per_device_eval_batch_size": 4}
    args = arguments(label_names=[], remove_unused_columns=False, **more)
    trainer = Own(backend.classifier(), args, eval_dataset=data, compute_metrics=compute_metrics)
    trainer.can_return_loss = True
    found = trainer.evaluate()
    assert found["eval_rows"] == 8 and "eval_loss" in found
    assert seen == ([((8, 3), ())] if given == "whole" else [((4, 3), ())] * 2)
    assert trainer.predict(data).label_ids == ()
