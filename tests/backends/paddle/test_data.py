"""Paddle's own data sets and loaders: in one order, with workers or without, and errors as they were raised."""

import os
import random
import time

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from oneloop import Trainer  # noqa: E402
from oneloop.backends.paddle import loaders  # noqa: E402
from oneloop.errors import DataError  # noqa: E402
from tests.backends.kits.paddle_kit import Kit  # noqa: E402
from tests.backends.support import rows, same_bytes  # noqa: E402

KIT = Kit()
RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "num_train_epochs": 2}


class Mapped(paddle.io.Dataset):
    def __init__(self, count=10):
        super().__init__()
        self.rows = rows(count)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Walked(paddle.io.IterableDataset):
    """Deals its samples out to workers by itself."""

    def __init__(self, count=10):
        super().__init__()
        self.rows = rows(count)

    def __iter__(self):
        worker = paddle.io.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from self.rows[first::step]


class Repeats(paddle.io.IterableDataset):
    def __iter__(self):
        yield from rows(4)


class Noisy(Mapped):
    """Each look adds numbers from all three streams."""

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + paddle.rand([]).item()
        return self.rows[index] | {"x": self.rows[index]["x"] + np.float32(noise)}


def weights(trained, data, trainer_class=Trainer, **given):
    model = KIT.classifier()
    trained(model, data, trainer_class, **RUN | given)
    return KIT.weights(model)


def test_a_paddle_data_set_is_a_list_of_samples(trained):
    assert same_bytes(weights(trained, Mapped()), weights(trained, rows(10)))


def test_an_iterable_one_comes_in_its_order(trained):
    given = {"lr_scheduler_type": "constant"}
    expected = weights(trained, rows(10), train_sampling_strategy="sequential", **given)
    assert same_bytes(weights(trained, Walked(), **given), expected)


def test_samples_as_tuples_reach_the_model_as_tuples(trained):
    pairs = [(row["x"], row["labels"]) for row in rows(10)]
    for workers in (0, 1):
        assert same_bytes(weights(trained, pairs, dataloader_num_workers=workers), weights(trained, rows(10)))


@pytest.mark.parametrize("given", [{}, {"dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3}])
def test_workers_bring_what_a_loader_without_them_brings(trained, given):
    alone = weights(trained, Mapped())
    assert same_bytes(alone, weights(trained, Mapped(), dataloader_num_workers=2, **given))


def test_workers_share_out_a_stream_by_the_batch(trained):
    class Plain:
        def __iter__(self):
            yield from rows(10)

    given = {"lr_scheduler_type": "constant", "max_steps": 6}
    alone = weights(trained, Plain(), **given)
    assert same_bytes(alone, weights(trained, Plain(), dataloader_num_workers=2, **given))


def test_a_stream_that_minds_its_workers(trained, arguments):
    args = arguments(dataloader_num_workers=2, per_device_eval_batch_size=1)
    trainer = Trainer(KIT.classifier(), args)
    seen = [batch["x"].numpy() for batch in trainer.get_test_dataloader(Walked(7))]
    assert len(seen) == 7
    assert np.array_equal(np.sort(np.concatenate(seen), axis=0), np.sort([row["x"] for row in rows(7)], axis=0))


def test_a_stream_that_workers_would_repeat_is_told_of(arguments, caplog):
    trainer = Trainer(KIT.classifier(), arguments(dataloader_num_workers=2))
    assert len(list(trainer.get_test_dataloader(Repeats()))) == 2
    assert "Repeats is a paddle IterableDataset" in caplog.text and "paddle.io.get_worker_info()" in caplog.text


def test_random_numbers_in_workers_depend_on_the_place_alone(trained):
    runs = [weights(trained, Noisy(), dataloader_num_workers=n) for n in (1, 2)]
    assert same_bytes(*runs)


def test_batches_in_any_order_are_all_there(arguments):
    class Slow(Mapped):
        def __getitem__(self, index):
            time.sleep(0.3 if index == 0 else 0.0)
            return super().__getitem__(index)

    args = arguments(dataloader_num_workers=2, dataloader_in_order=False, per_device_eval_batch_size=1)
    loader = Trainer(KIT.classifier(), args).get_test_dataloader(Slow(6))
    seen = [batch["x"].numpy()[0].tolist() for batch in loader]
    wanted = [row["x"].tolist() for row in rows(6)]
    assert seen != wanted and sorted(seen) == sorted(wanted)


def test_workers_that_are_spawned(arguments):
    args = arguments(dataloader_num_workers=1, dataloader_multiprocessing_context="spawn")
    loader = Trainer(KIT.classifier(), args).get_test_dataloader(rows(3))
    assert [batch["x"].shape for batch in loader] == [[3, 6]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_data_set_arrives_as_it_was_raised(arguments, workers):
    class Broken(Mapped):
        def __getitem__(self, index):
            raise LookupError("no such file: 7.jpg")

    trainer = Trainer(KIT.classifier(), arguments(dataloader_num_workers=workers, **RUN), train_dataset=Broken())
    with pytest.raises(LookupError, match="no such file: 7.jpg") as caught:
        trainer.train()
    if workers:
        assert "in data loader worker 0" in str(caught.value.__cause__)
        assert "Broken" not in str(caught.value) and "__getitem__" in str(caught.value.__cause__)


def test_a_worker_that_dies_is_named(arguments):
    class Dies(Mapped):
        def __getitem__(self, index):
            os._exit(9)

    trainer = Trainer(KIT.classifier(), arguments(dataloader_num_workers=1, **RUN), train_dataset=Dies())
    with pytest.raises(DataError, match="data loader worker 0 exited with status 9"):
        trainer.train()


def test_a_batch_that_cannot_be_pickled_is_told_of(arguments):
    args = arguments(dataloader_num_workers=1)
    trainer = Trainer(KIT.classifier(), args, data_collator=lambda samples: {"x": lambda: None})
    with pytest.raises(DataError, match="a batch cannot be sent from its worker"):
        list(trainer.get_test_dataloader(rows(3)))


def test_half_precision_travels_from_workers(arguments):
    args = arguments(dataloader_num_workers=1)
    trainer = Trainer(KIT.classifier(), args, data_collator=KIT.half_collator("bf16"))
    (batch,) = trainer.get_test_dataloader(rows(3))
    assert batch["x"].dtype == paddle.bfloat16
    wanted = KIT.half_collator("bf16")(rows(3))["x"].astype("float32")
    assert np.array_equal(batch["x"].astype("float32").numpy(), wanted.numpy())


def test_no_worker_is_left_behind(arguments):
    loader = Trainer(KIT.classifier(), arguments(dataloader_num_workers=2)).get_test_dataloader(rows(30))
    batches = iter(loader)
    next(batches)
    processes = loader.workers.processes
    batches.close()
    assert loader.workers is None and not any(process.is_alive() for process in processes)


def test_our_loaders_are_paddles(arguments):
    loader = Trainer(KIT.classifier(), arguments(), train_dataset=rows(10)).get_train_dataloader()
    assert isinstance(loader, paddle.io.DataLoader) and loaders.is_loader(loader)
    assert len(loader) == 2 and loader.num_workers == 0


class Shuffled(Trainer):
    """A loader of one's own, which draws its order from NumPy."""

    def get_train_dataloader(self):
        return paddle.io.DataLoader(
            Noisy(12), batch_size=4, shuffle=True, collate_fn=self.data_collator, num_workers=self.own_workers
        )

    own_workers = 0


def test_a_shuffled_loader_of_ones_own_resumes_exactly(trained, tmp_path):
    run = RUN | {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3}
    whole = KIT.classifier(dropout=0.3)
    trained(whole, None, Shuffled, output_dir=tmp_path / "whole", **run)
    for step in (2, 3, 7):
        resumed, source = KIT.classifier(dropout=0.3, seed=4), str(tmp_path / "whole" / f"checkpoint-{step}")
        trained(resumed, None, Shuffled, output_dir=tmp_path / str(step), resume=source, **run)
        assert same_bytes(KIT.weights(whole), KIT.weights(resumed)), step


def test_a_loader_of_ones_own_with_workers(trained):
    class WithWorkers(Shuffled):
        own_workers = 2

    runs = []
    for _ in range(2):
        model = KIT.classifier()
        assert trained(model, None, WithWorkers, **RUN).state.global_step == 6
        runs.append(KIT.weights(model))
    assert same_bytes(*runs), "the workers start from a seed of NumPy's stream"


def test_paddles_own_collating(trained):
    class Plain(Trainer):
        def get_train_dataloader(self):
            return paddle.io.DataLoader(Mapped(12), batch_size=4)

    given = {"lr_scheduler_type": "constant", "train_sampling_strategy": "sequential"}
    assert same_bytes(weights(trained, None, Plain, **given), weights(trained, rows(12), **given))


def test_a_loader_in_place_of_a_data_set_is_an_error(arguments):
    with pytest.raises(DataError, match="is a DataLoader, which makes batches"):
        Trainer(KIT.classifier(), arguments(), train_dataset=paddle.io.DataLoader(Mapped(), batch_size=2))


def test_a_collator_makes_tensors_of_the_models_framework(trained):
    """Also when another framework was imported first."""
    pytest.importorskip("torch")
    from oneloop import DefaultDataCollator, default_data_collator

    for collator in (DefaultDataCollator(), default_data_collator):
        assert same_bytes(weights(trained, rows(10), data_collator=collator), weights(trained, rows(10)))
