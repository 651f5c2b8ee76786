"""Losses and tokens of the datasets of a mixture: in the logs, exact across resumes, and never guessed."""

import itertools
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Mixture, Trainer, TrainerCallback, TrainingArguments, default_data_collator
from oneloop.distributed.mesh import Mesh
from oneloop.report.log_reader import Directory
from oneloop.report.page_data import run_page
from oneloop.trainer.source_meter import MicroBatch, SourceMeter, Sums
from tests.backends.support import rows, tagged
from tests.internals import part_of

OPTIONS = {"per_device_train_batch_size": 4, "logging_steps": 2, "learning_rate": 0.0, "max_steps": 6}
LENGTHS = [1 + i % 5 for i in range(40)]


def logged(trainer, prefix):
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{key: value for key, value in entry.items() if key.startswith(prefix)} for entry in entries]


def mixture(a=None, b=None, weights=(0.75, 0.25)):
    return Mixture({"a": a or rows(40), "b": b or rows(40, seed=1)}, list(weights))


def expected(trainer, data, window):
    """Of a run whose weights do not change: evaluations on the samples of each dataset in a window of positions."""
    order = data.orders(trainer.args.seed, 1)(0)
    found = {name: [] for name in data.names}
    for index in order.take(*window).tolist():
        found[data.source_of(index)[0]].append(data[index])
    return {f"loss/{name}": trainer.evaluate(samples)["eval_loss"] for name, samples in found.items()}


@pytest.mark.parametrize("kind", ["classifier", "tagger"])
def test_the_losses_are_those_of_the_samples_of_each_dataset(backend, trained, kind):
    given = OPTIONS | {"gradient_accumulation_steps": 2, "max_steps": 4, "per_device_eval_batch_size": 16}
    data = mixture(weights=(0.7, 0.3))  # micro-batches differ in the datasets of their rows
    if kind == "tagger":  # rows with different numbers of labels
        data = mixture(tagged(LENGTHS, width=6), tagged(LENGTHS[::-1], seed=1, width=6), (0.7, 0.3))
    trainer = trained(getattr(backend, kind)(), data, **given)
    for entry, window in zip(logged(trainer, "loss/"), ((0, 16), (16, 32)), strict=True):
        assert entry == pytest.approx(expected(trainer, data, window), rel=1e-5)


def test_samples_are_counted_where_there_are_no_tokens(backend, trained):
    trainer = trained(backend.classifier(), mixture(), **OPTIONS)
    assert logged(trainer, "num_")[0] == {"num_samples/a": 6, "num_samples/b": 2}
    assert logged(trainer, "num_")[-1] == {"num_samples/a": 18, "num_samples/b": 6}


def test_tokens_are_counted_without_padding(backend, trained):
    def padded(length, seed):
        samples = tagged([length] * 40, seed=seed, width=8)
        return [s | {"input_ids": np.where(np.arange(8) < length, s["input_ids"], 0)} for s in samples]

    tokenizer = SimpleNamespace(pad_token_id=0)
    given = OPTIONS | {"mixture_metrics": "tokens", "data_collator": default_data_collator}
    trainer = trained(backend.tagger(), mixture(padded(3, 0), padded(8, 1)), processing_class=tokenizer, **given)
    assert logged(trainer, "num_")[-1] == {"num_tokens/a": 3 * 18, "num_tokens/b": 8 * 6}
    assert logged(trainer, "loss/") == [{}] * 3


def test_nothing_is_logged_if_nothing_is_asked_for(backend, trained):
    trainer = trained(backend.classifier(), mixture(), **OPTIONS | {"mixture_metrics": "no", "max_steps": 2})
    assert logged(trainer, "loss/") == logged(trainer, "num_") == [{}]


def test_a_resume_within_a_logging_window_logs_the_same(backend, trained, tmp_path):
    given = OPTIONS | {"learning_rate": 0.1, "logging_steps": 4, "max_steps": 8, "save_steps": 3}
    given |= {"save_strategy": "steps", "save_total_limit": None}
    whole = trained(backend.classifier(), mixture(), output_dir=tmp_path / "whole", **given)
    checkpoint = str(tmp_path / "whole" / "checkpoint-3")
    again = trained(backend.classifier(), mixture(), output_dir=tmp_path / "again", resume=checkpoint, **given)
    assert logged(again, "loss/") == logged(whole, "loss/") and logged(whole, "loss/")[0]
    assert logged(again, "num_") == logged(whole, "num_")


class Splits(TrainerCallback):
    """As after running out of memory with auto_find_batch_size."""

    def on_train_begin(self, args, state, control, trainer=None, **kwargs):
        part_of(self.trainer, "update").split = 2


def test_split_micro_batches_keep_their_sources(backend, trained, arguments):
    data = mixture()
    whole = trained(backend.classifier(), data, **OPTIONS)
    trainer = Trainer(backend.classifier(), arguments(**OPTIONS), train_dataset=data, callbacks=[splits := Splits()])
    splits.trainer = trainer
    trainer.train()
    for split, once in zip(logged(trainer, "loss/"), logged(whole, "loss/"), strict=True):
        assert split == pytest.approx(once, rel=1e-5)
    assert logged(trainer, "num_") == logged(whole, "num_")


# -- what cannot be known


class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"trainer_class": Own}, "an override of compute_loss or training_step computes the loss"),
        ({"label_smoothing_factor": 0.3}, "is not the mean cross entropy"),
    ],
)
def test_losses_that_are_not_known_are_left_out_with_a_warning(backend, trained, caplog, given, reason):
    with caplog.at_level(logging.WARNING):
        trainer = trained(backend.classifier(), mixture(), **OPTIONS | given)
    assert logged(trainer, "loss/") == [{}] * 3 and logged(trainer, "num_")[-1]["num_samples/a"] == 18
    assert sum(reason in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("declared", [True, None, False])
def test_a_model_that_shifts_labels_and_declares_nothing_or_the_contrary(backend, trained, caplog, declared):
    """Its losses, in the first steps about as high as those of labels that are not shifted, are not taken for them."""
    documents = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in tagged([8] * 40, width=8)]
    model = backend.language_model(masked=False)
    model.shifts_labels = declared
    with caplog.at_level(logging.WARNING):
        trainer = trained(model, mixture(documents[:20], documents[20:]), **OPTIONS)
    warned = [r.message for r in caplog.records if "has to declare it: shifts_labels = True" in r.message]
    known = set() if declared is False else {"loss/a", "loss/b"}
    assert [set(entry) for entry in logged(trainer, "loss/")] == [known] * 3
    assert len(warned) == (declared is False)


def test_rows_that_are_not_samples_are_left_out_with_a_warning(backend, trained, caplog):
    def halved(samples):
        return {key: backend.tensor(np.stack([sample[key] for sample in samples[::2]])) for key in samples[0]}

    with caplog.at_level(logging.WARNING):
        trainer = trained(backend.classifier(), mixture(), **OPTIONS, data_collator=halved)
    assert logged(trainer, "loss/") == [{}] * 3
    assert sum("does not have one row for each sample" in record.message for record in caplog.records) == 1


# -- several processes, and the page


class Forever:
    def __iter__(self):
        return itertools.repeat({"x": 0})


class Two:
    """The processes of a run of two, in one."""

    size, is_main = 2, True

    def __init__(self, other):
        self.other = other

    def all_gather_object(self, value):
        return [value, (self.other.sums.lists(), self.other.logs_losses)]


def meter(**given):
    found = SourceMeter(SimpleNamespace(backend=None, **given))
    found.names, found.sampler, found.logs_losses = ["a", "b"], object(), True
    found.sums, found.of_all = Sums.zero(2), Sums.zero(2)
    return found


def test_the_sums_of_all_processes_are_logged_and_stored():
    other = meter()
    other.sums.losses[:], other.sums.items[:], other.sums.tokens[:] = [3 << 24, 0], [1, 0], [10, 0]
    first = meter(processes=Two(other), mesh=Mesh.of_batches(2))
    first.sums.losses[:], first.sums.items[:], first.sums.tokens[:] = [1 << 24, 2 << 24], [3, 1], [5, 7]
    first.before_save()
    stored = first.state()
    assert stored == {"sources": {"a": [15, 0, 4, 4 << 24], "b": [7, 0, 1, 2 << 24]}}
    assert first.log() == {"loss/a": 1.0, "loss/b": 2.0, "num_tokens/a": 15, "num_tokens/b": 7}
    resumed = meter(mesh=Mesh.of_batches(2))
    resumed.load(stored, None)
    assert resumed.sums.lists() == ([15, 7], [0, 0], [4, 1], [4 << 24, 2 << 24])
    resumed.load({"sources": {"a": [15, 0, 4, 4 << 24]}}, None)  # b is new
    assert resumed.sums.lists() == ([15, 0], [0, 0], [4, 0], [4 << 24, 0])
    elsewhere = meter(mesh=Mesh.of_batches(2, 1))
    elsewhere.load(stored, None)
    assert elsewhere.sums == Sums.zero(2)  # the main process has those of all


def test_losses_are_logged_if_all_processes_know_them():
    other = meter()
    other.logs_losses = False
    first = meter(processes=Two(other), mesh=Mesh.of_batches(2))
    first.sums.losses[:], first.sums.items[:], first.sums.samples[:] = [1 << 24, 2 << 24], [3, 1], [3, 1]
    assert first.log() == {"num_samples/a": 3, "num_samples/b": 1}


def test_rows_whose_loss_is_not_finite_do_not_count():
    found = meter(model_info=SimpleNamespace(shifts_labels=False))
    sources, losses = np.array([0, 0, 1]), np.array([1.5, np.nan, 2.0])
    found._unread = [MicroBatch(sources, np.array([4, 5, 6]), np.array([1, 2, 4]), losses, np.array(np.nan))]
    found.read()
    assert found.sums == Sums(tokens=[9, 6], samples=[2, 1], items=[1, 4], losses=[3 << 23, 2 << 24])


@pytest.mark.parametrize("sharding", ["samples", "shards"])
def test_the_rows_of_a_process_of_two(sharding, tmp_path):
    data = Mixture({"a": Forever(), "b": Forever()}, [3, 1], stop=100)
    args = TrainingArguments(str(tmp_path), stream_sharding=sharding, report_to="none")
    trainer, plan = SimpleNamespace(train_dataset=data), SimpleNamespace(loader=None)
    mesh = Mesh.of_batches(2, 1)
    context = SimpleNamespace(backend=None, args=args, trainer=trainer, mesh=mesh, plan=plan, batch_size=3)
    found = SourceMeter(context)
    found.plan_ready()
    first = 15 if sharding == "samples" else 6  # with its own shards, a process mixes them by itself
    assert found.sampler(0, 2).tolist() == data.sources(np.arange(first, first + 3)).tolist()
    assert data.sources(np.arange(6, 9)).tolist() != data.sources(np.arange(15, 18)).tolist()


def test_the_page_has_a_chart_of_the_datasets(backend, trained, tmp_path):
    if backend.name != "torch":
        pytest.skip("the page reads the log, which is the same for all")
    trained(backend.classifier(), mixture(), output_dir=tmp_path / "run", **OPTIONS)
    found = Directory(tmp_path / "run")
    found.read_new()
    charts = {chart["title"]: chart["keys"] for chart in run_page(found)["charts"]}
    assert charts["training loss by dataset"] == [["loss/a", "a"], ["loss/b", "b"]]
    assert charts["samples by dataset"] == [["num_samples/a", "a"], ["num_samples/b", "b"]]
