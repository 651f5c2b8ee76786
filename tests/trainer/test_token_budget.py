"""Micro-batches by their cost (max_tokens_per_batch, batch_rebalance) in runs, on every framework."""

import numpy as np
import pytest

from oneloop import Mixture, Trainer
from oneloop.errors import ArgumentError, CheckpointError, DataError
from tests.backends.support import rows, same_bytes

RUN = {"max_tokens_per_batch": 96, "learning_rate": 0.1, "optim": "sgd", "num_train_epochs": 2, "seed": 3}
REBALANCED = {"max_tokens_per_batch": None, "train_sampling_strategy": "batch_rebalance"}
REBALANCED |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}


def documents(count=60, seed=0):
    """Of different lengths, each with a number of its own as its first label's place: some labels do not count."""
    random = np.random.RandomState(seed)
    lengths = random.randint(1, 25, count)
    return [
        {"input_ids": random.randint(1, 17, n).tolist(), "labels": random.randint(-1, 3, n).tolist()} for n in lengths
    ]


class Padding:
    """Pads to the longest sample; notes the shapes."""

    def __init__(self):
        self.shapes = []

    def __call__(self, samples):
        width = max(len(sample["input_ids"]) for sample in samples)
        self.shapes.append((len(samples), width))
        fill = lambda values, by: [*values, *[by] * (width - len(values))]  # noqa: E731
        labels = [[-100 if label < 0 else label for label in sample["labels"]] for sample in samples]
        return {
            "input_ids": np.array([fill(sample["input_ids"], 0) for sample in samples]),
            "labels": np.array([fill(each, -100) for each in labels]),
        }


def run(backend, trained, resume=None, **given):
    model, collate = backend.tagger(), Padding()
    trainer = trained(model, documents(), data_collator=collate, resume=resume, **RUN | given)
    return trainer, collate.shapes, backend.weights(model)


def test_batches_are_within_the_budget_and_all_samples_are_trained(backend, trained):
    trainer, shapes, _ = run(backend, trained)
    assert sum(count for count, _ in shapes) == 2 * 60
    assert max(count * width for count, width in shapes) <= 96
    assert len({count for count, _ in shapes}) > 2
    assert trainer.state.global_step == trainer.state.max_steps == len(shapes)
    assert trainer.state.epoch == 2 and trainer.result.metrics["train_samples_per_second"] > 0


@pytest.mark.parametrize("step", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("given", [{}, {"gradient_accumulation_steps": 2}, REBALANCED], ids=["1", "2", "rebalanced"])
def test_a_resume_goes_on_with_the_next_batch(backend, trained, tmp_path, step, given):
    accumulation = given.get("gradient_accumulation_steps", 1)
    given = given | {"save_strategy": "steps", "save_steps": step}
    _, shapes, weights = run(backend, trained, output_dir=tmp_path / "whole", **given)
    path = tmp_path / "whole" / f"checkpoint-{step}"
    _, rest, again = run(backend, trained, output_dir=tmp_path / "again", resume=path, **given)
    assert rest == shapes[step * accumulation :] and rest
    assert same_bytes(weights, again)


@pytest.mark.parametrize("by", [{"gradient_accumulation_steps": 4}, REBALANCED], ids=["budget", "rebalanced"])
def test_an_update_is_that_of_its_samples_taken_together(backend, arguments, by):
    """Micro-batches weigh as much as they have labels, though they have different numbers of samples."""
    given = RUN | by | {"max_steps": 1, "max_grad_norm": 0.0}
    model, collate = backend.tagger(), Padding()
    seen = []
    trainer = Trainer(
        model,
        arguments(**given),
        train_dataset=documents(),
        data_collator=lambda samples: seen.append(samples) or collate(samples),
    )
    trainer.train()
    assert len({len(samples) for samples in seen}) > 1
    together = [sample for samples in seen for sample in samples]
    other = backend.tagger()
    given = given | {"max_tokens_per_batch": None, "gradient_accumulation_steps": 1}
    given |= {"per_device_train_batch_size": len(together), "train_sampling_strategy": "sequential"}
    args = arguments(**given)
    Trainer(other, args, train_dataset=together, data_collator=Padding()).train()
    for name, value in backend.weights(other).items():
        np.testing.assert_allclose(backend.weights(model)[name], value, atol=1e-6)


def test_micro_batches_of_an_update_are_rebalanced(backend, trained):
    """An update has the samples of random order, in micro-batches of about the same cost."""
    trainer, shapes, _ = run(backend, trained, **REBALANCED)
    assert trainer.state.global_step == 10 and len(shapes) == 30
    assert [sum(count for count, _ in shapes[at : at + 3]) for at in range(0, 30, 3)] == [12] * 10
    _, others, _ = run(backend, trained, **REBALANCED | {"train_sampling_strategy": "random"})
    slowest = lambda found: sum(max(a * b for a, b in found[at : at + 3]) for at in range(0, 30, 3))  # noqa: E731
    assert slowest(shapes) < 0.75 * slowest(others)
    assert max(a * b for a, b in shapes) < max(a * b for a, b in others)


def test_a_cost_of_ones_own(backend, arguments):
    class Quadratic(Trainer):
        def batch_cost(self, samples, longest):
            return samples * longest**2

    collate = Padding()
    args = arguments(**RUN | {"max_tokens_per_batch": 24**2})
    Quadratic(backend.tagger(), args, train_dataset=documents(), data_collator=collate).train()
    assert max(count * width**2 for count, width in collate.shapes) <= 24**2
    assert max(count for count, _ in collate.shapes) > 8
    slowest = []
    for cls in (Quadratic, Trainer):
        collate = Padding()
        args = arguments(**RUN | REBALANCED | {"max_steps": 5})
        cls(backend.tagger(), args, train_dataset=documents(), data_collator=collate).train()
        costs = [count * width**2 for count, width in collate.shapes]
        slowest.append(sum(max(costs[at : at + 3]) for at in range(0, 15, 3)))
    assert slowest[0] < 0.95 * slowest[1]


def test_seeds_of_samples_do_not_depend_on_the_workers(backend, trained):
    if backend.name == "mindspore":
        pytest.skip("its workers cost seconds; the positions are the same: tests/data/test_cost_batches.py")
    _, shapes, weights = run(backend, trained, seed_each_sample=True)
    _, others, same = run(backend, trained, seed_each_sample=True, dataloader_num_workers=1)
    assert same_bytes(weights, same)
    assert not others or others == shapes, "collated in the workers"


def test_what_is_recorded_and_told(backend, trained, tmp_path, caplog):
    given = {"save_strategy": "steps", "save_steps": 3, "output_dir": tmp_path / "whole", "log_level": "info"}
    given["max_steps"] = 4
    run(backend, trained, **given)
    assert "on average 6 x 1 in up to 96 tokens accumulated" in caplog.text
    given["resume"] = tmp_path / "whole" / "checkpoint-3"
    for changed, told in (
        ({"max_tokens_per_batch": 80}, "max_tokens_per_batch was 96, is 80"),
        ({"gradient_accumulation_steps": 2}, "batch_layout was"),
        ({"max_tokens_per_batch": None}, "max_tokens_per_batch was 96, is None"),
    ):
        caplog.clear()
        run(backend, trained, **given | {"output_dir": tmp_path / str(len(told))} | changed)
        assert told in caplog.text


def test_the_samples_of_an_update_that_is_not_finite_are_named(backend, arguments, caplog):
    data = documents(30)
    args = arguments(**RUN | {"nonfinite": "skip", "max_steps": 1})
    trainer = Trainer(backend.tagger(), args, train_dataset=data, data_collator=Padding())
    seen = []
    trainer.data_collator = lambda samples: (
        seen.extend(samples)
        or {name: array * 0 - 100 if name == "labels" else array for name, array in Padding()(samples).items()}
    )
    trainer.train()
    indices = sorted(next(i for i, sample in enumerate(data) if sample is each) for each in seen[: len(seen)])
    named = caplog.text.split("Samples of this step: [")
    if len(named) > 1:  # a framework whose mean of nothing is 0 has nothing to skip
        assert sorted(map(int, named[1].split("]")[0].split(","))) == indices


class OwnSampler(Trainer):
    def _get_train_sampler(self, *args):
        return list(range(60))


class OwnLoader(Trainer):
    def get_train_dataloader(self):
        return [Padding()(documents()[:4])]


@pytest.mark.parametrize("given", [{}, REBALANCED], ids=["budget", "rebalanced"])
@pytest.mark.parametrize("cls, told", [(OwnSampler, "list that _get_train_sampler"), (OwnLoader, "get_train_dataload")])
def test_an_order_of_the_users(backend, arguments, cls, told, given):
    trainer = cls(backend.tagger(), arguments(**RUN | given), train_dataset=documents(), data_collator=Padding())
    name = "batch_rebalance'" if given else "max_tokens_per_batch"
    with pytest.raises(DataError, match=f"{name}.* decides which samples are in a batch.*{told}"):
        trainer.train()


@pytest.mark.parametrize(
    "data, told",
    [
        (iter(documents()), "need a dataset with __len__ and __getitem__.*max_tokens_per_batch=96"),
        (Mixture({"a": documents(), "b": documents()}), "max_tokens_per_batch=96 cannot order a Mixture"),
        (rows(8), "max_tokens_per_batch found neither 'length' nor 'input_ids' in sample 0"),
        (documents() + [{"input_ids": [1] * 97, "labels": [1] * 97}], "sample 60 has 97 tokens"),
    ],
    ids=["stream", "mixture", "no length", "too long"],
)
def test_data_that_cannot_be_divided(backend, arguments, data, told):
    given = RUN | ({"max_steps": 2} if not hasattr(data, "__len__") else {})
    with pytest.raises(DataError, match=told):
        Trainer(backend.tagger(), arguments(**given), train_dataset=data, data_collator=Padding()).train()


@pytest.mark.parametrize(
    "given, told",
    [
        ({"packing": True, "max_length": 8}, "with packing, max_length decides"),
        ({"train_sampling_strategy": "sequential"}, "and so does train_sampling_strategy='sequential'"),
        ({"data_order": "transformers"}, "and so does data_order='transformers'"),
        ({"world_invariant": True}, "and so does world_invariant=True"),
    ],
)
def test_arguments_that_decide_about_batches_too(arguments, given, told):
    with pytest.raises(ArgumentError, match=f"max_tokens_per_batch=96 .*{told}"):
        arguments(max_tokens_per_batch=96, **given)
    if len(given) == 1:
        arguments(max_tokens_per_batch=96, train_sampling_strategy="group_by_length")


@pytest.mark.parametrize("cost", [0.0, float("nan"), 1.0, -1.0])
def test_a_cost_that_bounds_nothing(backend, arguments, cost):
    class Bad(Trainer):
        def batch_cost(self, samples, longest):
            return cost

    with pytest.raises(ArgumentError, match="batch_cost returned .* A cost has to be finite and above 0"):
        Bad(backend.tagger(), arguments(**RUN), train_dataset=documents(), data_collator=Padding()).train()


def test_lengths_from_a_column_that_the_model_does_not_take(backend, arguments):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([each | {"size": 2 * len(each["input_ids"])} for each in documents()])
    for given in ({}, REBALANCED):
        collate = Padding()
        args = arguments(**RUN | {"length_column_name": "size", "max_steps": 8} | given)
        Trainer(backend.tagger(), args, train_dataset=data, data_collator=collate).train()
        assert given or max(2 * count * width for count, width in collate.shapes) <= 96
        assert len({count for count, _ in collate.shapes}) > 1


def test_a_batch_without_memory_is_halved(backend, trained):
    if not hasattr(backend, "name") or backend.name != "torch":
        pytest.skip("the error is torch's")
    import torch

    class Limited(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            if inputs["input_ids"].numel() > 60:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().compute_loss(model, inputs, *args, **kwargs)

    given = {"auto_find_batch_size": True, "max_steps": 6}
    weights = []
    for cls in (Limited, Trainer):
        model = backend.tagger()
        trained(model, documents(), cls, data_collator=Padding(), **RUN | given)
        weights.append(backend.weights(model))
    for name, value in weights[1].items():
        np.testing.assert_allclose(weights[0][name], value, atol=1e-6)


def test_a_cost_that_falls_with_the_length(backend, arguments):
    class Falling(Trainer):
        def batch_cost(self, samples, longest):
            return samples / longest

    with pytest.raises(ArgumentError, match="not fall with the length"):
        Falling(backend.tagger(), arguments(**RUN), train_dataset=documents(), data_collator=Padding()).train()


def test_a_plan_says_that_it_needs_a_number_of_samples(backend, arguments):
    trainer = Trainer(backend.tagger(), arguments(**RUN), train_dataset=documents(), data_collator=Padding())
    with pytest.raises(ArgumentError, match="max_tokens_per_batch=96 gives them different ones"):
        trainer.plan()


@pytest.mark.parametrize(
    "data, told",
    [
        (iter(documents()), "need a dataset with __len__ and __getitem__.*train_sampling_strategy='batch_rebalance'"),
        (Mixture({"a": documents(), "b": documents()}), "='batch_rebalance' cannot order a Mixture"),
        (rows(8), "batch_rebalance found neither 'length' nor 'input_ids' in sample 0"),
    ],
    ids=["stream", "mixture", "no length"],
)
def test_data_that_cannot_be_rebalanced(backend, arguments, data, told):
    given = RUN | REBALANCED | ({"max_steps": 2} if not hasattr(data, "__len__") else {})
    with pytest.raises(DataError, match=told):
        Trainer(backend.tagger(), arguments(**given), train_dataset=data, data_collator=Padding()).train()


@pytest.mark.parametrize(
    "given", [{"packing": True, "max_length": 8}, {"data_order": "transformers"}, {"world_invariant": True}]
)
def test_arguments_that_cannot_be_rebalanced(arguments, given):
    with pytest.raises(ArgumentError, match="train_sampling_strategy='batch_rebalance' "):
        arguments(**REBALANCED, **given)


def test_the_number_of_micro_batches_that_processes_share():
    from oneloop.steps import accumulation_of_batches

    assert accumulation_of_batches(12, 4) == 3
    with pytest.raises(
        CheckpointError, match=r"12 micro-batch\(es\) .* 5 processes .* Use 1 or 2 or 3 or 4 or 6 or 12"
    ):
        accumulation_of_batches(12, 5)
