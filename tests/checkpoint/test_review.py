"""State that is easily lost: random numbers of workers, odd optimizer state, files of others."""

import dataclasses
import json
import logging
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from oneloop import Trainer, TrainingArguments  # noqa: E402
from oneloop.backends.torch import loaders, weights  # noqa: E402
from oneloop.checkpoint import saved_model  # noqa: E402
from oneloop.checkpoint.capture import Contents  # noqa: E402
from oneloop.data.loader_options import LoaderOptions  # noqa: E402
from oneloop.data.samplers import SamplerBatches  # noqa: E402
from oneloop.errors import CheckpointError  # noqa: E402
from oneloop.formats.safetensors_io import from_numpy  # noqa: E402
from tests.backends.kits.torch_models import Classifier  # noqa: E402
from tests.backends.support import rows  # noqa: E402

# -- workers


class Countdown:
    """Can only be walked through; the order is drawn anew each time, and each sample has a random number."""

    def __init__(self, count=22, shuffle=True):
        self.count, self.shuffle = count, shuffle

    def __iter__(self):
        order = list(range(self.count))
        if self.shuffle:
            random.shuffle(order)
        for i in order:
            yield i, random.random()


class TorchStream(torch.utils.data.IterableDataset):
    def __init__(self, count=8):
        self.count = count

    def __iter__(self):
        return iter([(i, random.random()) for i in range(self.count)])


class Sharded(TorchStream):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        return iter([(i, step) for i in range(first, self.count, step)])


class HoldsSharded:
    def __init__(self):
        self.inner = Sharded(9)

    def __iter__(self):
        return iter(self.inner)


class MakesSharded:
    def __iter__(self):
        return iter(Sharded(9))


def collate(samples):
    return samples, random.random()


def loader(data, workers=2, **given):
    return loaders.make_loader(data, LoaderOptions(collate, batch_size=4, workers=workers, seed=5, **given))


def samples_of(batches):
    return [sample for batch, _ in batches for sample, _ in batch]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_share_a_plain_iterable(workers, drop_last):
    plain = samples_of(loader(Countdown(shuffle=False), 0, drop_last=drop_last))
    assert samples_of(loader(Countdown(shuffle=False), workers, drop_last=drop_last)) == plain
    shuffled = samples_of(loader(Countdown(), workers))
    assert sorted(shuffled) == list(range(22)) and shuffled != plain


def test_batches_of_different_workers_have_their_own_numbers():
    batches = list(loader(Countdown(shuffle=False), 2))
    drawn = [number for batch, _ in batches for _, number in batch] + [number for _, number in batches]
    assert len(set(drawn)) == len(drawn) == 22 + 6


@pytest.mark.parametrize("data, parts", [(HoldsSharded, 2), (MakesSharded, 1)])
def test_an_iterable_that_deals_out_its_samples_is_not_dealt_out_twice(data, parts):
    batches = list(loader(data()))
    assert sorted(samples_of(batches)) == list(range(9))
    assert {step for batch, _ in batches for _, step in batch} == {parts}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("data", [Countdown, TorchStream])
def test_an_epoch_of_workers_depends_on_its_number_alone(data, persistent):
    def epochs(*numbers):
        of_run, seen = loader(data(), persistent=persistent), []
        for epoch in numbers:
            loaders.begin_epoch(of_run, 3, epoch)
            seen.append(list(of_run))
        loaders.close(of_run)
        return seen

    first, second, third = epochs(0, 1, 2)
    assert first != second != third
    assert epochs(1, 2) == [second, third]


def test_repeats_are_announced_once(caplog):
    class Unaware(TorchStream):
        pass

    with caplog.at_level(logging.WARNING, "oneloop"):
        loader(Sharded(), 2)
        loader(Unaware(), 1)
        assert not caplog.records
        loader(Unaware(), 2)
        loader(Unaware(), 2)
    assert len(caplog.records) == 1 and "Unaware" in caplog.text and "get_worker_info" in caplog.text


class Twice:
    """A user's sampler that shows every sample twice, in an order of its own for each epoch."""

    def __init__(self, count):
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 2 * self.count

    def __iter__(self):
        order = np.random.RandomState(self.epoch).permutation(2 * self.count)
        return iter((order % self.count).tolist())


class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = rows(12)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return row | {"x": row["x"] + np.float32(random.random()) + torch.rand(()).numpy()}


class TwiceTrainer(Trainer):
    def _get_train_sampler(self, train_dataset=None):
        return Twice(12)


def test_batches_of_a_users_sampler_tell_their_place():
    batches = SamplerBatches(Twice(3), 4, drop_last=False, placed=True)
    batches.set_epoch(2)
    assert [batch.position for batch in batches] == [(2, 0, 0), (2, 1, 4)]  # epoch, batch, first sample
    assert not any(hasattr(batch, "position") for batch in SamplerBatches(Twice(3), 4, drop_last=False))


def test_a_sample_that_comes_twice_has_other_numbers(arguments):
    args = arguments(per_device_train_batch_size=4, dataloader_num_workers=2)
    batches = list(TwiceTrainer(Classifier(), args, train_dataset=Noisy()).get_train_dataloader())
    seen = {tuple(x.tolist()) for batch in batches for x in batch["x"]}
    assert len(seen) == 24


def test_workers_with_a_users_sampler_resume_in_the_second_epoch(trained, tmp_path):
    def run(resume=None):
        torch.manual_seed(1)
        options = {"save_strategy": "steps", "save_steps": 1, "dataloader_num_workers": 2, "num_train_epochs": 2}
        options |= {"per_device_train_batch_size": 8, "learning_rate": 0.1, "resume": resume}
        trainer = trained(Classifier(), Noisy(), TwiceTrainer, output_dir=tmp_path / "run", **options)
        return {name: value.clone() for name, value in trainer.model.state_dict().items()}

    whole = run()
    for step in (3, 4, 5):
        resumed = run(str(tmp_path / "run" / f"checkpoint-{step}"))
        assert all(torch.equal(value, whole[name]) for name, value in resumed.items()), step


# -- optimizer and model


class Odd(torch.optim.SGD):
    """Keeps lists, tuples and dicts of tensors, and a parameter group that is empty."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                past = self.state[p].get("past", [])
                self.state[p]["past"] = [*past, p.detach().clone()][-2:]
                self.state[p]["pair"] = (p.detach().sum(), 3)
                self.state[p]["more"] = {"dtype": p.dtype, "at": [torch.ones(1), None]}


def odd(model):
    return Odd([{"params": list(model.parameters())}, {"params": [], "lr": 0.5}], lr=0.1, momentum=0.9)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def test_nested_optimizer_state_and_an_empty_group_come_back(trained, tmp_path):
    def run(resume=None):
        torch.manual_seed(0)
        model = Classifier()
        options = {"optimizers": (odd(model), None), "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
        trainer = trained(model, rows(24), output_dir=tmp_path / "run", resume=resume, **options)
        return [trainer.optimizer.state[p] for p in model.parameters()]

    whole = run()
    assert isinstance(whole[0]["past"], list) and len(whole[0]["past"]) == 2
    assert same(whole, run(str(tmp_path / "run" / "checkpoint-2")))


def test_what_a_checkpoint_cannot_hold_is_refused_at_the_save():
    model = Classifier()
    first = next(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[first]["odd"] = object()
    with pytest.raises(CheckpointError, match="contains an object at 'hidden.weight:odd'"):
        weights.optimizer_state(optimizer, model)
    optimizer.state.clear()
    optimizer.state["shared"] = {"step": 1}
    with pytest.raises(CheckpointError, match="under 'shared', which is not one of its parameters"):
        weights.optimizer_state(optimizer, model)


def test_extra_state_is_named_once(caplog):
    class Extra(Classifier):
        def get_extra_state(self):
            return {"seen": 3}

        def set_extra_state(self, state):
            pass

    model = Extra()
    with caplog.at_level(logging.WARNING, "oneloop"):
        weights.model_tensors(Classifier())
        assert not caplog.records
        weights.model_tensors(model)
        weights.model_tensors(model)
    assert len(caplog.records) == 1 and "_extra_state" in caplog.text


# -- files


def test_a_save_leaves_files_of_others_alone(tmp_path):
    others = ["model_ema.safetensors", "model.safetensors.bak", "model-best.safetensors"]
    earlier = ["model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    for name in others + earlier:
        (tmp_path / name).write_bytes(b"x")
    contents = Contents()
    contents.add_weights({"w": from_numpy(np.ones(3, np.float32))}, {})
    contents.texts["templates/deep/x.jinja"] = b"{{ x }}"
    with saved_model.replacing(tmp_path) as stage:
        contents.write(stage)
    assert (tmp_path / "templates/deep/x.jinja").read_bytes() == b"{{ x }}"
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted([*others, "model.safetensors", "x.jinja"])


@dataclasses.dataclass
class TypedArguments(TrainingArguments):
    precision: torch.dtype = torch.bfloat16


def test_arguments_with_a_field_that_json_cannot_hold(tmp_path):
    args = TypedArguments(output_dir=str(tmp_path), report_to="none", disable_tqdm=True, device="cpu")
    Trainer(Classifier(), args, train_dataset=rows(4)).save_model()
    assert json.loads((tmp_path / "training_args.json").read_text())["precision"] == "torch.bfloat16"
