"""data_order="transformers" beside transformers' Trainer itself: the same losses at every step, the same weights."""

import random
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")
if find_spec("accelerate") is None:  # not imported here: tests of arguments would find it
    pytest.skip("transformers' Trainer needs accelerate", allow_module_level=True)

import torch  # noqa: E402

import oneloop  # noqa: E402
from oneloop.backends.torch import external_checkpoint  # noqa: E402
from tests.backends.order_runs import RUN, Run, Seen, mlp, texts  # noqa: E402
from tests.backends.support import rows, same_bytes  # noqa: E402
from tests.backends.tiny_bert import classifier as bert  # noqa: E402


class Stream(torch.utils.data.IterableDataset):
    """Draws random numbers for each of its samples."""

    def __iter__(self):
        for sample in rows(22):
            yield sample | {"x": sample["x"] + np.float32(0.1 * random.random() + 0.1 * torch.rand(()).item())}


class Augmented(torch.utils.data.Dataset):
    """Draws random numbers for each sample from every generator."""

    def __len__(self):
        return 42

    def __getitem__(self, index):
        sample = rows(42)[index]
        noise = random.random() + np.random.rand() + torch.rand(()).item()
        return sample | {"x": sample["x"] + np.float32(noise)}


def some_slow(cases, brief):
    """The cases, of which those that are not in `brief` are slow."""
    plain = [case if isinstance(case, tuple) else (case,) for case in cases]
    known = [case if isinstance(case, tuple) else (case,) for case in brief]
    return [pytest.param(*case, marks=() if case in known else pytest.mark.slow) for case in plain]


def both(tmp_path, make, data, **given):
    return [Run(library, tmp_path / library.__name__, make, data, **given) for library in (oneloop, transformers)]


def assert_same(ours, theirs):
    assert ours.losses == theirs.losses
    assert same_bytes(ours.weights, theirs.weights)


CASES = {
    "mlp": (mlp, rows(43), {}),
    "mlp, accumulation": (mlp, rows(40), {"gradient_accumulation_steps": 3}),
    "mlp, data_seed": (mlp, rows(43), {"data_seed": 3}),
    "bert, accumulation": (bert, texts(42), {"gradient_accumulation_steps": 2}),
    "bert, drop_last, sgd": (bert, texts(43), {"dataloader_drop_last": True, "optim": "sgd"}),
    "bert, dropout": (lambda: bert(0.1), texts(42), {"gradient_accumulation_steps": 2}),
    "mlp, dropout, evaluations": (lambda: mlp(0.3), rows(42), {"eval_strategy": "steps", "eval_steps": 7}),
    "mlp, dropout, evaluations, workers that are kept": (
        lambda: mlp(0.3),
        rows(20),
        {
            "eval_strategy": "steps",
            "eval_steps": 3,
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
            "max_steps": 12,
        },
    ),
    "mlp, dropout, workers": (lambda: mlp(0.3), rows(20), {"dataloader_num_workers": 1, "max_steps": 12}),
    "bert, lengths, workers that are kept": (
        lambda: bert(0.1),
        texts(20, 14),
        {
            "train_sampling_strategy": "group_by_length",
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
            "max_steps": 12,
        },
    ),
    "bert, lengths": (
        lambda: bert(0.1),
        texts(43, 14),
        {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 2},
    ),
    "mlp, sequential": (mlp, rows(43), {"train_sampling_strategy": "sequential", "max_steps": 12}),
    "mlp, dropout, augmented": (lambda: mlp(0.3), Augmented(), {"max_steps": 25}),
    "mlp, dropout, stream": (lambda: mlp(0.3), Stream(), {"max_steps": 14, "dataloader_drop_last": True}),
}


BRIEF = (
    "mlp, dropout, evaluations, workers that are kept",
    "mlp, accumulation",
    "bert, dropout",
    "bert, lengths",
    "mlp, dropout, evaluations",
    "mlp, dropout, augmented",
)


@pytest.mark.parametrize("case", some_slow(CASES, (*BRIEF, "mlp, dropout, stream")))
def test_losses_and_weights_are_those_of_transformers(tmp_path, case):
    make, data, given = CASES[case]
    assert_same(*both(tmp_path, make, data, **given))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "group_by_length", "sequential"])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_for_other_lengths_of_the_data(tmp_path, strategy, accumulation, drop_last, workers):
    given = {"train_sampling_strategy": strategy, "gradient_accumulation_steps": accumulation, "max_steps": 20}
    given |= {"dataloader_drop_last": drop_last, "dataloader_num_workers": workers}
    for count in (9, 24, 31):
        assert_same(*both(tmp_path / str(count), lambda: bert(0.1), texts(count, 12), **given))


class OwnLoader(Run):
    """A run whose evaluations use a loader of the user, who keeps it with its workers."""

    def trainer_class(self, library):
        class Keeping(library.Trainer):
            kept = None

            def get_eval_dataloader(self, eval_dataset=None):
                options = {"batch_size": 4, "num_workers": 1, "persistent_workers": True}
                if self.kept is None:
                    self.kept = torch.utils.data.DataLoader(self.eval_dataset, collate_fn=self.data_collator, **options)
                return self.kept

        return Keeping


def test_a_users_evaluation_loader_draws_the_seed_of_its_workers_as_with_transformers(tmp_path):
    given = {"eval_strategy": "steps", "eval_steps": 3, "max_steps": 8}
    ours, theirs = (
        OwnLoader(library, tmp_path / library.__name__, lambda: mlp(0.3), rows(20), **given)
        for library in (oneloop, transformers)
    )
    assert_same(ours, theirs)


def test_the_default_order_is_another_one(tmp_path):
    theirs = Run(transformers, tmp_path, mlp, rows(43), max_steps=3)
    args = oneloop.TrainingArguments(output_dir=str(tmp_path), **RUN | {"max_steps": 3})
    trainer = oneloop.Trainer(mlp(), args, train_dataset=rows(43))
    trainer.train()
    assert theirs.losses != [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_sampler_that_shuffles_is_replaced_as_by_accelerate(tmp_path):
    def with_sampler(library):
        class OwnSampler(library.Trainer):
            def _get_train_sampler(self, train_dataset=None):
                return torch.utils.data.RandomSampler(self.train_dataset)

        args = {"data_order": "transformers"} if library is oneloop else {}
        args = library.TrainingArguments(output_dir=str(tmp_path), **RUN | {"max_steps": 14} | args)
        trainer = OwnSampler(mlp(0.3), args, train_dataset=rows(22))
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    assert with_sampler(oneloop) == with_sampler(transformers)


# -- checkpoints


KEPT = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
RESUMED = {
    "bert, dropout": (lambda: bert(0.1), texts(42), {"gradient_accumulation_steps": 2}),
    "bert, lengths": (lambda: bert(0.1), texts(43, 14), {"train_sampling_strategy": "group_by_length"}),
    "mlp, augmented": (lambda: mlp(0.3), Augmented(), {}),
    "mlp, workers": (lambda: mlp(0.3), rows(30), {"dataloader_num_workers": 1}),
    "mlp, workers that are kept": (lambda: mlp(0.3), rows(43), KEPT),
}


# Within the first epoch, at its end, and within another one.
@pytest.mark.parametrize(
    "case, step",
    some_slow(
        # Later epochs than that of the resume differ, for workers that are kept.
        [each for each in product(RESUMED, (3, 11, 14)) if each != ("mlp, workers that are kept", 3)],
        [
            ("bert, lengths", 3),
            ("mlp, augmented", 11),
            ("mlp, workers that are kept", 11),
            ("bert, dropout", 14),
        ],
    ),
)
def test_a_checkpoint_of_transformers_goes_on_as_its_own_resume_does(tmp_path, case, step):
    make, data, given = RESUMED[case]
    given = given | {"max_steps": 20, "save_strategy": "steps", "save_steps": step}
    Run(transformers, tmp_path / "first", make, data, **given)
    path = str(tmp_path / "first" / f"checkpoint-{step}")
    given["save_strategy"] = "no"
    ours, theirs = both(tmp_path, make, data, resume=path, **given)
    assert len(ours.losses) == 20
    assert_same(ours, theirs)


def test_the_rest_of_the_epoch_has_the_samples_that_transformers_had_not_seen(tmp_path):
    whole = Seen(rows(40))
    given = {"max_steps": 10, "save_strategy": "steps", "save_steps": 6}
    Run(transformers, tmp_path / "first", mlp, whole, **given)
    rest = Seen(rows(40))
    Run(oneloop, tmp_path / "second", mlp, rest, resume=str(tmp_path / "first" / "checkpoint-6"), max_steps=10)
    assert rest.indices == whole.indices[24:] and sorted(whole.indices[:40]) == list(range(40))


OWN = RESUMED | {
    "bert, lengths, workers that are kept": (
        lambda: bert(0.1),
        texts(43, 14),
        KEPT | {"train_sampling_strategy": "group_by_length"},
    ),
}


@pytest.mark.parametrize(
    "case, step",
    some_slow(
        product(OWN, (3, 10, 11, 14)),
        [("mlp, augmented", 11), ("bert, lengths", 14)],
    ),
)
def test_oneloops_own_checkpoints_resume_exactly(tmp_path, case, step):
    make, data, given = OWN[case]
    given = given | {"max_steps": 20, "save_strategy": "steps", "save_steps": step}
    whole = Run(oneloop, tmp_path / "whole", make, data, **given)
    resumed = Run(
        oneloop, tmp_path / "again", make, data, resume=str(tmp_path / "whole" / f"checkpoint-{step}"), **given
    )
    assert_same(resumed, whole)


def test_a_missing_or_wrong_rng_file(tmp_path, caplog):
    given = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    Run(transformers, tmp_path / "first", mlp, rows(40), **given)
    file = tmp_path / "first" / "checkpoint-3" / "rng_state.pth"
    with torch.serialization.safe_globals(external_checkpoint._OF_ARRAYS):
        good = torch.load(file, weights_only=True)
    name, keys, _, has_gauss, cached = good["numpy"]
    (version, words, gauss), cpu = good["python"], good["cpu"]
    for wrong in (
        {"numpy": (name, keys, 10**6, has_gauss, cached)},  # NumPy would read beyond its array
        {"python": (version, (2**40, *words[1:]), gauss)},
        {"cpu": cpu[:100]},
        {"cpu": cpu.to(torch.float32)},
    ):
        torch.save(good | wrong, file)
        with pytest.raises(oneloop.errors.CheckpointError):
            Run(oneloop, tmp_path / "second", mlp, rows(40), resume=str(file.parent), max_steps=6)
    torch.save({"python": 3, "numpy": (), "cpu": torch.zeros(3)}, file)
    with pytest.raises(oneloop.errors.CheckpointError, match="rng_state.pth is not the RNG state of transformers'"):
        Run(oneloop, tmp_path / "second", mlp, rows(40), resume=str(file.parent), max_steps=6)
    file.unlink()
    caplog.clear()
    Run(oneloop, tmp_path / "second", mlp, rows(40), resume=str(file.parent), max_steps=6)
    assert "there is no RNG state for process 0 of 1" in caplog.text
