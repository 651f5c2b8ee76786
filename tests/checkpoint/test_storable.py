"""What checkpoints cannot store or a resume cannot reproduce is known before the first step, or at the first save."""

import logging
import random

import numpy as np
import pytest

from oneloop import Trainer
from oneloop.errors import CheckpointError
from tests.backends.support import available, rows, same_bytes

RUN = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4}


def with_buffer(kit, name, array, persistent=True, dtype=None):
    """A classifier with a buffer that each forward pass adds 1 to, if it has not another type."""
    model = kit.classifier()
    if kit.name == "torch":
        import torch

        value = torch.tensor(array, dtype=getattr(torch, dtype) if dtype else None)
        model.register_buffer(name, value, persistent=persistent)
        model.register_forward_pre_hook(lambda module, inputs: [None, getattr(module, name).add_(1)][0])
    elif kit.name == "paddle":
        import paddle

        model.register_buffer(name, paddle.to_tensor(array, dtype=dtype), persistable=persistent)
        model.register_forward_pre_hook(lambda layer, inputs: [None, layer._buffers[name].add_(paddle.ones([1]))][0])
    else:
        import mindspore as ms

        model.register_buffer(name, ms.Tensor(array, getattr(ms, dtype) if dtype else None), persistent)
        model.register_forward_pre_hook(lambda cell, inputs: cell._buffers.update({name: cell._buffers[name] + 1}))
    return model


def test_a_type_that_cannot_be_stored_is_named_before_the_first_step(backend, arguments):
    steps = []

    class Watching(Trainer):
        def training_step(self, *args, **kwargs):
            steps.append(1)
            return super().training_step(*args, **kwargs)

    model = with_buffer(backend, "phases", [1.0, 2.0], dtype="complex64")
    with pytest.raises(CheckpointError, match=r"cannot store tensors of type complex64: phases\. Convert"):
        Watching(model, arguments(**RUN), train_dataset=rows(24)).train()
    assert not steps


def test_it_does_not_matter_without_saves_or_if_it_is_not_saved(backend, arguments):
    if backend.name != "torch":
        pytest.skip("forward hooks of complex numbers are torch's")
    model = with_buffer(backend, "phases", [1.0, 2.0], dtype="complex64")
    Trainer(model, arguments(**RUN | {"save_strategy": "no"}), train_dataset=rows(24)).train()
    model = with_buffer(backend, "phases", [1.0, 2.0], dtype="complex64", persistent=False)
    assert Trainer(model, arguments(**RUN), train_dataset=rows(24)).train().global_step == 4


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_changes_and_is_not_saved(backend, arguments, caplog, persistent):
    model = with_buffer(backend, "count", np.zeros(1, np.float32), persistent=persistent)
    with caplog.at_level(logging.WARNING):
        Trainer(model, arguments(**RUN), train_dataset=rows(24)).train()
    told = [
        r.getMessage() for r in caplog.records if "changes buffers that are not in checkpoints: count" in r.getMessage()
    ]
    assert len(told) == (0 if persistent else 1)


def test_a_buffer_that_is_not_saved_and_does_not_change(arguments, caplog):
    kit = available()[0]
    model = kit.classifier()
    if kit.name != "torch":
        pytest.skip("one framework is enough")
    import torch

    model.register_buffer("table", torch.arange(3), persistent=False)
    with caplog.at_level(logging.WARNING):
        Trainer(model, arguments(**RUN), train_dataset=rows(24)).train()
    assert "not in checkpoints" not in caplog.text


# -- generators


class Noisy(list):
    """Samples with a generator of its own."""

    def __init__(self, generator):
        super().__init__(rows(24))
        self.generator = generator


class WithState(Noisy):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Wrapper:
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


GENERATORS = {
    "numpy.random._generator.Generator": lambda: np.random.default_rng(0),
    "numpy.random.mtrand.RandomState": lambda: np.random.RandomState(0),
    "random.Random": lambda: random.Random(0),
}


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("wrap", [lambda data: data, Wrapper], ids=["itself", "wrapped"])
def test_data_with_a_generator_of_its_own(arguments, caplog, kind, wrap):
    place = "train_dataset.dataset.generator" if wrap is Wrapper else "train_dataset.generator"
    data = wrap(Noisy(GENERATORS[kind]()))
    with caplog.at_level(logging.WARNING):
        Trainer(available()[0].classifier(), arguments(**RUN), train_dataset=data).train()
    assert f"{place[: -len('.generator')]}.generator keeps a random number generator of its own ({kind})" in caplog.text


@pytest.mark.parametrize(
    "data", [WithState(np.random.default_rng(0)), Noisy(3), rows(24)], ids=["state", "none", "list"]
)
def test_data_without_one_or_with_a_state(arguments, caplog, data):
    with caplog.at_level(logging.WARNING):
        Trainer(available()[0].classifier(), arguments(**RUN), train_dataset=data).train()
    assert "generator of its own" not in caplog.text


class CollatorWithState:
    """The state of a worker's copy is not that of the main process."""

    def __init__(self, backend):
        self.backend = backend

    def __call__(self, samples):
        return {key: self.backend.tensor(np.stack([row[key] for row in samples])) for key in samples[0]}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_in_workers_is_warned_of(arguments, caplog, workers):
    backend = available()[0]
    data, args = WithState(np.random.default_rng(0)), arguments(**RUN, dataloader_num_workers=workers)
    with caplog.at_level(logging.WARNING):
        Trainer(backend.classifier(), args, CollatorWithState(backend), data).train()
    for said in (
        "train_dataset, a WithState, has a state_dict",
        "data_collator, a CollatorWithState, has a state_dict",
    ):
        assert (said in caplog.text) is bool(workers)


# -- the shuffle buffer of `datasets`


def streamed(count=40, shards=1):
    datasets = pytest.importorskip("datasets")
    samples = rows(count)
    columns = {"x": [s["x"].tolist() for s in samples], "labels": [s["labels"] for s in samples]}
    data = datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=shards)
    return data.shuffle(seed=3, buffer_size=7)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffle_buffer_resumes_to_the_same_samples(backend, arguments, tmp_path, caplog, workers):
    if workers and backend.name != "torch":
        pytest.skip("workers read such data again on every framework; torch's are enough here")
    options = RUN | {"max_steps": 13, "save_steps": 3, "dataloader_num_workers": workers, "learning_rate": 0.05}
    whole = Trainer(backend.classifier(dropout=0.1), arguments(**options), train_dataset=streamed(shards=2))
    whole.train()
    for step in (3, 12):  # in the first and in the second epoch
        resumed = Trainer(
            backend.classifier(dropout=0.1),
            arguments(tmp_path / f"b{step}", **options),
            train_dataset=streamed(shards=2),
        )
        with caplog.at_level(logging.WARNING):
            resumed.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{step}"))
        assert same_bytes(backend.weights(whole.model), backend.weights(resumed.model))
    assert "is shuffled through a buffer, which is not in the checkpoint" in caplog.text
    assert "without the buffer content" not in caplog.text, "datasets would refill it with other samples"
