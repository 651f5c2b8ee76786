"""What a format of streams cannot do is an error or a warning before the first step."""

import logging

import pytest

from oneloop import Mixture, Trainer, TrainingArguments
from oneloop.data import streams
from oneloop.distributed.mesh import Mesh
from oneloop.errors import ArgumentError, CheckpointError, DataError
from tests.streams import formats, job

datasets = pytest.importorskip("datasets")
nodes = pytest.importorskip("torchdata.nodes")
webdataset = pytest.importorskip("webdataset")


def test_a_node_that_ends_with_its_first_epoch_is_refused(tmp_path):
    node = nodes.IterableWrapper([formats.row(1)])
    with pytest.raises(DataError, match=r"Pass torchdata\.nodes\.Loader\(node\)"):
        job.run(node, None, tmp_path)


def warned(caplog, dataset, tmp_path, **given):
    with caplog.at_level(logging.WARNING):
        job.run(dataset, None, tmp_path, steps=1, **given)
    return caplog.text


def test_an_order_by_the_clock_is_warned_of(caplog, tmp_path):
    pipeline = webdataset.WebDataset(formats.tar_files(tmp_path), shardshuffle=False, empty_check=False)
    text = warned(caplog, pipeline.shuffle(5).decode().map(formats._of_tar), tmp_path / "out")
    assert "draws its order from the clock (shuffle)" in text and "it has no state_dict" in text


def test_a_sampler_that_draws_is_warned_of(caplog, tmp_path):
    import torch

    sampler = torch.utils.data.RandomSampler(range(9), generator=torch.Generator().manual_seed(1))
    loader = nodes.Loader(nodes.Mapper(nodes.SamplerWrapper(sampler), formats.row))
    assert "draws its order (RandomSampler)" in warned(caplog, loader, tmp_path)
    caplog.clear()
    assert "draws its order" not in warned(caplog, formats.nodes(tmp_path), tmp_path / "out")


def test_workers_are_warned_of_where_they_have_no_state(caplog, tmp_path):
    text = warned(caplog, formats.jsonl(tmp_path), tmp_path / "out", workers=1)
    assert "it is read by 1 workers, whose positions are not known" in text


def test_seeds_that_changed_are_warned_of(caplog, tmp_path):
    for seed, resume in ((5, None), (6, True)):
        job.run(
            formats.webdataset(tmp_path, seed=seed), None, tmp_path / "out", steps=4 + 4 * bool(resume), resume=resume
        )
    assert "stream_seeds was ['5', '6'], is ['6', '6']" in caplog.text


# -- shards of a process


def test_shards_that_cannot_be_divided_are_refused(tmp_path):
    with pytest.raises(DataError, match="3 processes can divide, but train_dataset has 4"):
        streams.local_shards(formats.jsonl(tmp_path), 0, 3)
    with pytest.raises(DataError, match="whose shards are not known"):
        streams.local_shards(formats.nodes(tmp_path), 0, 2)
    with pytest.raises(DataError, match="has no stage that divides"):
        streams.local_shards(webdataset.DataPipeline(webdataset.SimpleShardList(["0.tar"])), 0, 2)


def test_each_process_reads_its_own_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    stream = formats.jsonl(tmp_path)
    mixture = Mixture({"a": formats.jsonl(tmp_path / "a"), "c": [formats.row(100 + i) for i in range(8)]}, [1, 1])
    of_both = [], []
    for rank in (0, 1):
        found = [sample["number"] for sample in streams.local_shards(stream, rank, 2)]
        assert {number // formats.EACH for number in found} == {rank, rank + 2} and len(found) == formats.SAMPLES // 2
        of_both[rank].extend(sample["number"] for sample in streams.local_shards(mixture, rank, 2))
    assert not set(of_both[0]) & set(of_both[1])
    assert {number for number in of_both[0] if number >= 100} == {100, 102, 104, 106}


def test_positions_in_shards_fit_one_number_of_processes(tmp_path, monkeypatch):
    job.run(formats.jsonl(tmp_path), None, tmp_path / "out", steps=4, sharding="shards")
    checkpoint = tmp_path / "out" / "checkpoint-4" / "run.json"
    assert '"stream_sharding": "shards"' in checkpoint.read_text()
    args = TrainingArguments(str(tmp_path / "out"), max_steps=8, report_to="none", per_device_train_batch_size=2)
    trainer = Trainer(job.Model(tmp_path / "rank-0.jsonl"), args, train_dataset=formats.jsonl(tmp_path))
    monkeypatch.setattr(Mesh, "num_batches", property(lambda mesh: 2))
    with pytest.raises(CheckpointError, match="each read their own shards"):
        trainer.train(resume_from_checkpoint=True)


# -- mixtures of streams


def test_mixtures_of_streams_need_weights(tmp_path):
    with pytest.raises(ArgumentError, match="needs weights"):
        Mixture({"a": formats.jsonl(tmp_path)})
    with pytest.raises(DataError, match="can be read only once"):
        Mixture({"a": iter([1])}, [1])
    with pytest.raises(ArgumentError, match="a dataset is never exhausted: its final weight is 0"):
        Mixture({"a": formats.jsonl(tmp_path), "b": [1]}, [1, 0], stop="all_exhausted")
    with pytest.raises(DataError, match="'b' of the mixture has no samples"):
        list(Mixture({"a": formats.jsonl(tmp_path), "b": set()}, [1, 1]))
