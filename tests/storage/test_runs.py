"""Runs whose output_dir is a URL: uploaded, resumed on an empty machine, and unharmed by a storage that fails."""

import json
import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments, get_last_checkpoint
from oneloop.checkpoint import store
from oneloop.checkpoint.capture import Capture
from oneloop.checkpoint.checkpointer import Checkpointer
from oneloop.cli.main import main
from oneloop.distributed.strategy import Strategy
from oneloop.errors import ArgumentError, CheckpointError, MissingPackageError, OneloopError, StorageError
from oneloop.formats import urls
from oneloop.formats.safetensors_io import read
from oneloop.storage import mirror, remote_checkpoints
from oneloop.storage.mirror import superseded
from oneloop.storage.mirrored_directory import MirroredDirectory
from oneloop.storage.multi_node_upload import MultiNodeUpload
from oneloop.storage.references import Upload
from oneloop.storage.remote import RemoteDirectory
from tests.backends.support import available, rows, same_bytes
from tests.checkpoint.test_command import write
from tests.internals import set_processes, storage_of
from tests.storage.support import (
    RUN,
    URL,
    At,
    Dies,
    checkpoints,
    die,
    events,
    interrupted,
    names,
    wait_for,
    whole,
)

# -- the whole way


def test_a_run_resumed_on_an_empty_machine_ends_with_the_bytes_of_one_on_a_disk(backend, make, machine, tmp_path):
    model = backend.classifier()
    on_disk = Trainer(model, TrainingArguments(str(tmp_path / "disk"), **RUN), train_dataset=rows(16))
    on_disk.train()
    first = interrupted(make, backend)
    assert checkpoints() == ["checkpoint-4"]
    machine(2)
    second = make(backend)
    assert second.args.output_dir != first.args.output_dir and second.args.output_url == URL
    second.train(resume_from_checkpoint=True)
    assert checkpoints() == ["checkpoint-6"]
    assert same_bytes(backend.weights(second.model), backend.weights(on_disk.model))
    assert [entry["step"] for entry in second.state.log_history] == [1, 2, 3, 4, 5, 6, 6]
    logged = [json.loads(line) for line in Path(second.args.output_dir, "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in logged if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    assert [each["event"] for each in events(second)] == ["started", "failed", "resumed", "ended"]
    uploaded = store.find(Path(second.args.output_dir))
    assert [each.step for each in uploaded] == [6]


def test_everything_in_the_storage_is_what_the_local_directory_has(make, storage):
    trainer = make(save_total_limit=None)
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    trainer.save_metrics("train", {"loss": 1.0})
    folder = Path(trainer.args.output_dir)
    local = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    remote = {path.removeprefix("/bucket/run/"): data for path, data in storage.contents().items()}
    assert remote == local
    assert {"model.safetensors", "trainer_state.json", "train_results.json", "run.jsonl", "log.jsonl"} <= set(remote)
    assert [name for name in local if name.startswith(".")] == []


def test_a_complete_checkpoint_is_there_at_any_time_and_resumes_to_the_same_bytes(make, machine, storage, tmp_path):
    """The states of the storage after each change are those that a kill may leave."""
    kit = available()[0]
    each_arrives = [At(step + 1, lambda step=step: wait_for([f"checkpoint-{step}"])) for step in (2, 4)]
    reference = make(kit, callbacks=each_arrives, save_async=False)
    storage.states = []
    reference.train()
    states, storage.states = storage.states, None
    final = kit.weights(reference.model)
    found = []
    for number, state in enumerate(states):
        storage.restore(state)
        found.append(whole(tmp_path / "verified" / str(number)))
    first = next(i for i, steps in enumerate(found) if steps)
    assert len(states) > 25 and all(found[first:])  # once there is one, there always is
    assert found[-1] == [6] and [2, 4] in found and [4, 6] in found
    for number in (first // 2, first, found.index([2, 4]) + 2, found.index([4, 6])):
        storage.restore(states[number])
        machine(10 + number)
        trainer = make(kit)
        trainer.train(resume_from_checkpoint=True)
        assert same_bytes(kit.weights(trainer.model), final)
        assert checkpoints() == ["checkpoint-6"] and remote_checkpoints.leftovers(RemoteDirectory(URL)) == []


def test_a_checkpoint_that_replaces_one_of_its_step_leaves_one_complete_at_any_time(storage, make, tmp_path):
    trainer = make(max_steps=2)
    trainer.train()
    folder = Path(trainer.args.output_dir, "checkpoint-2")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"reason": "best"}))
    storage.states = []
    remote_checkpoints.put(RemoteDirectory(URL), folder, "checkpoint-2")
    states, storage.states = storage.states, None
    assert json.loads(storage.store["/bucket/run/checkpoint-2/manifest.json"].getvalue())["reason"] == "best"
    for number, state in enumerate(states):
        storage.restore(state)
        done = remote_checkpoints.recover(RemoteDirectory(URL))
        assert whole(tmp_path / str(number)) == [2], done
        assert not [name for name in names() if name.startswith(".")]


# -- storage that fails


@pytest.mark.parametrize("operation", ["put_file", "pipe_file", "rm_file", "ls", "cat_file", "get_file"])
def test_requests_that_fail_are_repeated(operation, make, machine, storage, caplog):
    seen = {}

    def fault(kind, path):
        seen[kind, path] = seen.get((kind, path), 0) + 1
        if kind == operation and seen[kind, path] % 3:
            raise OSError("500: the server is busy")

    storage.fault = fault
    make(max_steps=2).train()
    machine(2)
    trainer = make(max_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2 and checkpoints() == ["checkpoint-2"]
    assert any(kind == operation for kind, _ in seen)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_an_outage_stops_no_training_and_harms_no_checkpoint(make, storage, caplog):
    down = []

    def fault(kind, path):
        if down and kind in ("put_file", "pipe_file", "rm_file"):
            raise ConnectionError("connection reset by peer")

    storage.fault = fault
    kit = available()[0]
    goes_down = At(3, lambda: (wait_for(["checkpoint-2"]), down.append(True)))
    trainer = make(kit, callbacks=[goes_down], save_async=False)
    trainer.train()
    assert trainer.state.global_step == 6
    assert checkpoints() == ["checkpoint-2"]  # although save_total_limit=1 has deleted it here
    assert [c.step for c in store.find(Path(trainer.args.output_dir))] == [6]
    assert [each["event"] for each in events(trainer)].count("upload_failed") == 1
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "connection reset by peer" in errors[0] and "Training continues" in errors[0]
    assert "Not uploaded" in errors[-1] and "checkpoint-6" in errors[-1] and "checkpoint-4" not in errors[-1]
    down.clear()
    again = make(kit)
    again.train(resume_from_checkpoint=True)  # nothing is left to train
    assert checkpoints() == ["checkpoint-6"]


def test_what_was_deleted_here_is_not_named_when_its_upload_fails_late(make, storage, caplog, monkeypatch):
    ending = threading.Event()
    end = mirror._Queue.end
    monkeypatch.setattr(mirror._Queue, "end", lambda queue: (end(queue), ending.set()))

    def fault(kind, path):
        if kind in ("put_file", "pipe_file") and "checkpoint-4" in path:
            ending.wait(60)
        if kind in ("put_file", "pipe_file") and ("checkpoint-4" in path or "checkpoint-6" in path):
            raise ConnectionError("connection reset by peer")

    storage.fault = fault
    waits = At(4, lambda: wait_for(["checkpoint-2"]))
    trainer = make(callbacks=[waits], save_async=False)
    trainer.train()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [c.step for c in store.find(Path(trainer.args.output_dir))] == [6]
    assert "Not uploaded" in errors[-1] and "checkpoint-6" in errors[-1] and "checkpoint-4" not in errors[-1]


def test_a_storage_that_cannot_be_reached_at_the_start_is_an_error(make, storage):
    def fault(kind, path):
        raise TimeoutError("no answer")

    storage.fault = fault
    with pytest.raises(StorageError, match="faulty://bucket/run.*no answer"):
        make().train()


def test_missing_permissions_are_not_tried_again(make, storage):
    def fault(kind, path):
        raise PermissionError("Forbidden")

    storage.fault = fault
    with pytest.raises(StorageError, match="Forbidden. Check the credentials"):
        make().train()
    assert len(storage.requests) == 1


def test_an_upload_that_arrives_truncated_is_not_committed(make, storage, monkeypatch):
    original = storage.put_file

    def truncated(self, lpath, rpath, **kwargs):
        original(self, lpath, rpath, **kwargs)
        if rpath.endswith("checkpoint-4/optimizer.safetensors"):
            self.store[rpath].truncate(10)

    monkeypatch.setattr(storage, "put_file", truncated)
    make(max_steps=4, callbacks=[At(3, lambda: wait_for(["checkpoint-2"]))], save_async=False).train()
    assert "checkpoint-4/manifest.json" not in names() and "checkpoint-2/manifest.json" in names()


# -- resuming


@pytest.mark.parametrize("damage", ["changed", "missing", "truncated", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(damage, make, machine, storage):
    make(save_total_limit=None).train()
    place, data = "/bucket/run/checkpoint-6/model.safetensors", storage()
    content = data.cat_file(place)
    if damage == "changed":
        data.pipe_file(place, content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "missing":
        data.rm_file(place)
    elif damage == "truncated":
        data.pipe_file(place, content[:-5])
    else:
        data.pipe_file("/bucket/run/checkpoint-6/manifest.json", b"{")
    machine(2)
    trainer = make(max_steps=8)
    trainer.train(resume_from_checkpoint=True)
    resumed = next(each for each in events(trainer) if each["event"] == "resumed")
    assert resumed["from"] == "checkpoint-4"
    assert ["checkpoint-6" in text for text in resumed.get("passed_over", [])] == (
        [] if damage == "manifest" else [True]
    )
    assert trainer.state.global_step == 8


def test_if_all_are_damaged_it_is_an_error(make, machine, storage):
    make().train()
    storage().rm_file("/bucket/run/checkpoint-6/run.json")
    machine(2)
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints in faulty://bucket/run is complete"):
        make().train(resume_from_checkpoint=True)


@pytest.mark.parametrize("form", ["url", "checkpoint", "path", "elsewhere", "last"])
def test_ways_to_name_what_to_resume(form, make, machine):
    make(save_total_limit=None).train()
    machine(2)
    trainer = make(max_steps=8, url="faulty://bucket/other" if form == "elsewhere" else URL)
    wanted, step = {
        "url": (URL, 6),
        "checkpoint": (f"{URL}/checkpoint-4", 4),
        "path": (os.path.join(trainer.args.output_dir, "checkpoint-2"), 2),
        "elsewhere": (f"{URL}/checkpoint-4", 4),
        "last": (get_last_checkpoint(trainer.args.output_dir), 6),
    }[form]
    assert get_last_checkpoint(URL) == f"{URL}/checkpoint-6"
    trainer.train(resume_from_checkpoint=wanted)
    resumed = next(each for each in events(trainer) if each["event"] == "resumed")
    assert resumed["from"] == f"checkpoint-{step}"


def test_a_machine_that_was_away_continues_from_the_storage(make, machine):
    """The first machine has an older state of the run, and later continues what the second did."""
    interrupted(make, max_steps=12)
    machine(2)
    interrupted(make, max_steps=12, at=9)
    machine(1)
    trainer = make(max_steps=12)
    trainer.train(resume_from_checkpoint=True)
    assert [each["from"] for each in events(trainer) if each["event"] == "resumed"] == ["checkpoint-8"]
    assert [each["event"] for each in events(trainer)].count("failed") == 2


def test_local_progress_that_was_not_uploaded_is_resumed_and_uploaded(make, storage):
    def fault(kind, path):
        if kind == "put_file" and "checkpoint-4" in path:
            raise OSError("refused")

    storage.fault = fault
    run = make(callbacks=[At(3, lambda: wait_for(["checkpoint-2"])), At(5, die)], save_async=False)
    with pytest.raises(Dies):
        run.train()
    assert checkpoints()[0] == "checkpoint-2"
    storage.fault = None
    trainer = make(max_steps=6, callbacks=[At(5, lambda: wait_for(["checkpoint-4"]))], save_async=False)
    trainer.train(resume_from_checkpoint=True)
    assert [each["from"] for each in events(trainer) if each["event"] == "resumed"] == ["checkpoint-4"]


def test_the_best_checkpoint_is_kept_and_found_on_another_machine(make, machine):
    scores = iter(range(10, 0, -1))
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "eval_dataset": rows(8)}
    best |= {"metric_for_best_model": "score", "score": lambda _: {"score": next(scores)}, "max_steps": 8}
    first = interrupted(make, **best)
    assert checkpoints() == ["checkpoint-2", "checkpoint-4"]
    machine(2)
    trainer = make(**best)
    trainer.train(resume_from_checkpoint=True)
    assert checkpoints() == ["checkpoint-2", "checkpoint-8"]
    assert os.path.basename(trainer.state.best_model_checkpoint) == "checkpoint-2"
    assert first.state.best_metric == trainer.state.best_metric == 10
    saved = read(Path(trainer.state.best_model_checkpoint, "model.safetensors"))
    loaded = available()[0].weights(trainer.model)
    assert loaded and all(bytes(saved[name].data) == value.tobytes() for name, value in loaded.items())


def test_a_new_run_in_a_used_url_warns_and_its_checkpoints_come_later(make, machine, caplog):
    make(max_steps=4).train()
    machine(2)
    trainer = make(max_steps=2)
    trainer.train()
    assert "faulty://bucket/run contains checkpoints of an earlier run" in caplog.text
    assert checkpoints() == ["checkpoint-2", "checkpoint-4"]
    machine(3)
    assert get_last_checkpoint(make().args.output_dir).endswith("checkpoint-2")
    assert [each["event"] for each in events(trainer)] == ["started", "ended", "started", "ended"]


# -- what is uploaded


class Writes(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        Path(args.output_dir, f"checkpoint-{state.global_step}", "of_callback.txt").write_text(str(state.global_step))
        Path(args.output_dir, "notes").mkdir(exist_ok=True)
        Path(args.output_dir, "notes", "last.txt").write_text(str(state.global_step))


class Overrides(Trainer):
    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        Path(self.args.output_dir, f"checkpoint-{self.state.global_step}", "of_override.txt").write_text("more")

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        Path(output_dir, "of_part.txt").write_text("part")


def test_what_callbacks_and_overrides_add_is_uploaded_and_downloaded(make, machine, storage):
    make(trainer_class=Overrides, callbacks=[Writes()]).train()
    added = {f"checkpoint-6/{name}.txt" for name in ("of_callback", "of_override", "of_part")}
    assert added <= set(names()) and storage.store["/bucket/run/notes/last.txt"].getvalue() == b"6"
    machine(2)
    trainer = make(trainer_class=Overrides, callbacks=[Writes()], max_steps=8, save_total_limit=None)
    trainer.train(resume_from_checkpoint=True)
    assert all(Path(trainer.args.output_dir, name).is_file() for name in added)


def test_save_model_to_a_url(make, storage):
    trainer = make(save_strategy="no")
    trainer.save_model()
    trainer.save_model(f"{URL}/final")
    trainer.save_model("faulty://bucket/published/model")
    files = ["model.safetensors", "training_args.json"]
    assert names() == sorted(
        ["final/" + name for name in files] + files + [f"/bucket/published/model/{n}" for n in files]
    )

    def fault(kind, path):
        raise OSError("503")

    storage.fault = fault
    with pytest.raises(StorageError, match="503"):
        trainer.save_model(f"{URL}/later")


def test_a_model_in_several_files_replaces_another_without_a_mixture(storage, tmp_path):
    from oneloop.storage.loose_files import LooseFiles

    index, shards = "model.safetensors.index.json", [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]

    def write(version, files):
        for path in tmp_path.iterdir():
            path.unlink()
        for name in files:
            (tmp_path / name).write_text(version)

    mirror = LooseFiles(RemoteDirectory(URL), tmp_path)
    for version, files in (("1", [index, *shards]), ("22", [index, *shards]), ("333", ["model.safetensors"])):
        before = {path.rpartition("/")[2]: data for path, data in storage.contents().items()}
        write(version, files)
        storage.states = []
        mirror.upload()
        for state in storage.states:
            objects = {path.rpartition("/")[2]: data for path, data in state.items()}
            if index in objects:  # a reader finds what it names, of one version
                assert {objects[name] for name in (index, *shards)} in ({version.encode()}, {before.get(index)})
        assert sorted(names()) == sorted(files)


def test_the_checkpoint_that_a_loss_spike_returns_to_is_found_on_an_empty_machine(make, machine):
    """A signal has asked for the newest; what is left out begins before it."""

    class Spiky(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * 1e4 if self.state.global_step + 1 == 14 else loss

    given = {"loss_spike": "rollback", "loss_spike_window": 8, "loss_spike_skip_steps": 4}
    given |= {"trainer_class": Spiky, "save_steps": 10, "max_steps": 16}
    stops = At(12, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        make(callbacks=[stops], **given).train()
    assert checkpoints() == ["checkpoint-10", "checkpoint-12"], "although save_total_limit is 1"
    machine(2)
    trainer = make(**given)
    trainer.train(resume_from_checkpoint=True)
    (found,) = [each for each in events(trainer) if each["event"] == "rolled_back"]
    assert (found["to"], found["left_out"]) == ("checkpoint-10", [11, 14])
    assert checkpoints() == ["checkpoint-16"]


def test_rotation_keeps_the_newest_and_the_best_of_this_run_alone():
    def checkpoint(step, run="a", reason="save"):
        return store.CheckpointInfo(Path(f"checkpoint-{step}"), step, run, float(step), 1, reason)

    found = {f"checkpoint-{s}": checkpoint(s) for s in (2, 4, 6, 8)}
    found |= {"checkpoint-5": checkpoint(5, reason="best"), "checkpoint-7": checkpoint(7, run="b")}

    def gone(step, limit, best=None, own=(), local=(), needed=()):
        upload = Upload(f"checkpoint-{step}", step, "a", best and f"checkpoint-{best}", limit, needed=needed)
        steps = superseded(found, upload, {f"checkpoint-{s}" for s in own}, lambda name: name in local)
        return sorted(int(name.rpartition("-")[2]) for name in steps)

    assert gone(8, None) == [5]
    assert gone(8, None, best=5) == []
    assert gone(8, 2) == [2, 4, 5]
    assert gone(8, 1, best=2) == [4, 5, 6]
    assert gone(8, 1, needed=("checkpoint-6",)) == [2, 4, 5]  # a run may return to it from a loss spike
    assert gone(8, None, own=(4, 6), local=("checkpoint-6",)) == [4, 5]  # deleted here, perhaps by an override
    assert gone(4, 1) == [2]  # an upload that comes late deletes nothing newer


def test_another_machine_downloads_the_checkpoint_that_the_main_process_resumes(make, machine, storage):
    """Its path there is that of the other machine."""
    trainer = make(max_steps=2)
    trainer.train()
    main = storage_of(trainer)
    there = Path(trainer.args.output_dir, "checkpoint-2")
    machine(2)
    other = make(max_steps=2)
    shared = storage_of(other)

    class Two:
        """The second of two processes, whose main one may have failed."""

        size, rank, is_main, fails = 2, 1, False, False

        def all_gather(self, values):
            return [[self.fails], values]

        def broadcast_object(self, value):
            return ".none" if isinstance(value, str) else main._needed(there, asked)

        def barrier(self):
            pass

    set_processes(other, Two())
    other.is_world_process_zero = lambda: False
    torn = store.open_stage(Path(other.args.output_dir), 2)
    for asked in (True, f"{URL}/checkpoint-2"):
        found = shared.provide_checkpoint(there, asked)
        assert found == Path(other.args.output_dir, "checkpoint-2") != there
        assert store.problems(found) == [] and store.read_manifest(found)["step"] == 2
    assert not torn.exists(), "of a run that was killed on that machine"
    shared.__exit__()
    assert not found.exists(), "nobody else would delete it"
    other.args.save_on_each_node = True
    shared.provide_checkpoint(there, True)
    shared.__exit__()
    assert found.exists(), "there, each machine keeps its own"
    Two.fails = True
    with pytest.raises(CheckpointError, match="the main process has not uploaded"):
        shared.provide_checkpoint(there, True)


def test_what_other_machines_need_is_the_best_checkpoint_too(make):
    trainer = make(load_best_model_at_end=True, eval_strategy="steps", eval_steps=2, eval_dataset=rows(4))
    folder = Path(trainer.args.output_dir)
    for step in (2, 4):
        write(folder, step, best=2)
    storage = storage_of(trainer)
    assert set(storage._needed(folder / "checkpoint-4", True).digests) == {"checkpoint-2", "checkpoint-4"}
    assert set(storage._needed(folder / "checkpoint-2", True).digests) == {"checkpoint-2"}
    trainer.args.load_best_model_at_end = False
    assert set(storage._needed(folder / "checkpoint-4", True).digests) == {"checkpoint-4"}


def test_the_best_model_is_loaded_once_a_machine_has_it(make, monkeypatch, tmp_path):
    """share_best() downloads what a machine lacks of it: here a file that is lost after the last step."""
    lost = tmp_path / "lost"

    class Loses(TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs):
            Path(state.best_model_checkpoint, "run.json").rename(lost)

    monkeypatch.setattr(MirroredDirectory, "provide_best", lambda self, path: lost.rename(path / "run.json"))
    given = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "eval_dataset": rows(4)}
    trainer = make(max_steps=4, save_async=False, callbacks=[Loses()], **given)
    assert trainer.train().global_step == 4 and not lost.exists()


# -- parts of a checkpoint that processes without a common disk upload, here those of one process


@pytest.fixture
def in_parts(monkeypatch):
    def parts(self, save):
        return save.place.sharded_save(save.step, save.place.open_stage(save.step))

    monkeypatch.setattr(Checkpointer, "_sharded_save", parts)
    for part, of_all in (("local_optimizer_state", "optimizer_state"), ("local_model_tensors", "model_tensors")):
        monkeypatch.setattr(Strategy, part, lambda self, *given, of_all=of_all: getattr(self, of_all)(*given))


def test_a_checkpoint_of_parts_is_complete_in_the_storage_when_it_is_saved(make, machine, in_parts, tmp_path):
    seen = []

    class Looks(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            seen.append(sorted(remote_checkpoints.manifests(RemoteDirectory(URL))))

    trainer = make(callbacks=[Looks()], save_async=False, save_total_limit=None)
    trainer.train()
    assert seen == [[f"checkpoint-{step}" for step in steps] for steps in ([2], [2, 4], [2, 4, 6])]
    assert whole(tmp_path / "verified") == [2, 4, 6]


def test_a_save_of_parts_that_fails_leaves_nothing(make, in_parts, storage, monkeypatch):
    """The upload fails, or the disk does before it begins."""
    closed = []

    def fault(kind, path):
        if kind == "put_file" and "checkpoint-4/model" in path:
            raise PermissionError("not allowed")

    gather = Capture.gather

    def failing(capture, is_sharded, path):
        if capture.run.core.trainer.state.global_step == 6:
            raise OSError("the disk has failed")
        return gather(capture, is_sharded, path)

    monkeypatch.setattr(Capture, "gather", failing)
    monkeypatch.setattr(MultiNodeUpload, "close", lambda self: closed.append(self.name))
    storage.fault = fault
    trainer = make(save_async=False, save_total_limit=None)
    trainer.train()
    assert checkpoints() == ["checkpoint-2"] and closed == ["checkpoint-6"]
    assert [path.name for path in Path(trainer.args.output_dir).glob("*checkpoint*")] == ["checkpoint-2"]


def test_where_parts_are_uploaded(make, storage):
    """To a hidden name, if there may be files of another attempt; nowhere, if another run has the storage now."""
    trainer = make()
    run_storage = storage_of(trainer)
    run_storage._mirror = mirror.Mirror(URL, Path(trainer.args.output_dir))

    def stage():
        return store.open_stage(Path(trainer.args.output_dir), 2)

    assert run_storage.sharded_save(2, stage()).remote_name == "checkpoint-2"
    assert run_storage.sharded_save(2, stage()).remote_name.startswith(".checkpoint-2.")
    assert run_storage.sharded_save(4, None) is None, "the main process cannot write"
    run_storage._mirror.lease.is_lost = True
    last = stage()
    assert run_storage.sharded_save(2, last) is None and not last.exists()


def test_trials_of_a_search_have_urls_of_their_own(machine):
    from oneloop.integrations.search.trials import arguments_for

    args = TrainingArguments("memory://bucket/search", report_to="none")
    trial = arguments_for(args, {"learning_rate": 0.1}, "run-0", for_model=False)
    assert trial.output_url == "memory://bucket/search/run-0"
    assert trial.output_dir == os.path.join(args.output_dir, "run-0")


# -- arguments


def test_a_url_becomes_output_url_and_output_dir_a_local_directory(machine):
    args = TrainingArguments("memory://bucket/some/run/", report_to="none")
    assert args.output_url == "memory://bucket/some/run" and args.run_name == args.output_url
    assert Path(args.output_dir).is_dir() and Path(args.output_dir).name == "run"
    assert Path(args.output_dir).is_relative_to(machine())
    assert args.logging_dir.startswith(args.output_dir)
    again = TrainingArguments(**{k: v for k, v in args.to_dict().items() if k in ("output_dir", "output_url")})
    assert (again.output_dir, again.output_url) == (args.output_dir, args.output_url)
    args.output_dir = "memory://bucket/second"
    args.validate()
    assert args.output_url == "memory://bucket/second" and Path(args.output_dir).name == "second"
    args.output_dir = "here"
    args.validate()
    assert args.output_url is None and args.output_dir == "here"


def test_a_local_directory_and_a_url_can_both_be_chosen(make, tmp_path, storage):
    trainer = make(url=str(tmp_path / "chosen"), output_url=URL, max_steps=2)
    trainer.train()
    assert (tmp_path / "chosen" / "checkpoint-2").is_dir() and checkpoints() == ["checkpoint-2"]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"output_dir": "s3://key:hunter2hunter2@bucket/run"}, "credentials come from the environment"),
        ({"output_dir": "memory://bucket/run?token=hunter2hunter2"}, "credentials come from the environment"),
        ({"output_dir": "simplecache::s3://key:hunter2hunter2@bucket/run"}, "a chain of file systems"),
        ({"output_dir": "out", "output_url": "filecache::memory://hunter2:x@a/b"}, "a chain of file systems"),
        ({"output_dir": "zip://a.zip::s3://key:hunter2hunter2@bucket/run"}, "a chain of file systems"),
        ({"output_dir": Path("s3://key:hunter2hunter2@bucket/run")}, "has lost a slash"),
        ({"output_dir": Path("simplecache::s3://key:hunter2hunter2@bucket/run")}, "a chain of file systems"),
        ({"output_dir": "out", "logging_dir": "s3://key:hunter2hunter2@bucket/run"}, "credentials come from"),
        ({"output_dir": "memory://"}, "a place within the storage"),
        ({"output_dir": "memory://a/b", "output_url": "memory://a/c"}, "are two URLs"),
        ({"output_dir": "out", "output_url": "bucket/run"}, "a URL such as s3://bucket/run"),
    ],
)
def test_urls_that_are_refused(given, message, machine):
    with pytest.raises(ArgumentError, match=message) as raised:
        TrainingArguments(**given)
    assert "hunter2" not in str(raised.value)
    assert not [path for path in Path().rglob("*") if "hunter2" in str(path)]


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs"])
def test_a_container_in_front_of_an_account_is_no_user(scheme):
    url = f"{scheme}://container@account.dfs.core.windows.net/run"
    assert urls.checked("output_dir", f"{url}/") == url
    for user in ("container:hunter2hunter2", "a@container", ""):
        with pytest.raises(ArgumentError, match="a user, a password or options") as raised:
            urls.checked("output_dir", f"{scheme}://{user}@account.dfs.core.windows.net/run")
        assert "hunter2" not in str(raised.value)
    with pytest.raises(ArgumentError, match="a user, a password or options"):
        urls.checked("output_dir", f"s3://{url.partition('://')[2]}")


def test_places_for_a_model_that_are_refused(make, storage, machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = make(max_steps=1, save_strategy="no")
    for place in ("simplecache::s3://k:hunter2hunter2@b/x", Path("s3://k:hunter2hunter2@b/x")):
        with pytest.raises(ArgumentError, match="Invalid output_dir: a ") as raised:
            trainer.save_model(place)
        assert "hunter2" not in str(raised.value)
        with pytest.raises(ArgumentError, match="Invalid folder: a ") as raised:
            get_last_checkpoint(place)
    for place in ("simplecache::s3://k:hunter2hunter2@b/x", "s3:/k:hunter2hunter2@b/x"):
        with pytest.raises(OneloopError) as refused:
            trainer.train(resume_from_checkpoint=place)
        assert "hunter2" not in str(refused.value)
    assert not [path for path in tmp_path.rglob("*") if "hunter2" in str(path)]


@pytest.mark.parametrize("command", ["checkpoints", "report", "compare", "watch"])
def test_commands_print_no_password_of_a_url(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("simplecache::s3://k:hunter2hunter2@b/x", "s3://k:hunter2hunter2@b/x", "s3:/k:hunter2hunter2@b/x"):
        assert main([command, place]) > 0
        printed = capsys.readouterr()
        assert "hunter2" not in printed.out + printed.err and f"oneloop {command}: " in printed.err
    assert list(tmp_path.iterdir()) == []


def test_without_fsspec_the_error_names_the_extra(monkeypatch, machine):
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'oneloop\[storage\]'"):
        TrainingArguments("s3://bucket/run")
    assert TrainingArguments("out").output_url is None


def test_a_storage_without_its_client_is_an_error_that_names_it(machine):
    with pytest.raises(MissingPackageError, match="nowhere://bucket/run cannot be opened"):
        RemoteDirectory("nowhere://bucket/run")


def test_credentials_are_in_no_message(make, storage, caplog, monkeypatch, capfd):
    secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)

    def fault(kind, path):
        if kind == "put_file" and "checkpoint" in path:
            raise OSError(f"403 for <AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId>, signed with {secret}")

    storage.fault = fault
    with caplog.at_level(logging.DEBUG):
        trainer = make(max_steps=2)
        trainer.train()
    written = b"".join(path.read_bytes() for path in Path(trainer.args.output_dir).rglob("*") if path.is_file())
    everything = caplog.text + "".join(capfd.readouterr()) + written.decode(errors="replace")
    assert "could NOT be uploaded" in caplog.text and secret not in everything and "AKIDEXAMPLE" not in everything


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_other_storages_of_fsspec(protocol, make, machine, tmp_path):
    import fsspec

    url = f"memory://{tmp_path.name}/run" if protocol == "memory" else f"file://{tmp_path}/remote/run"
    interrupted(make, url=url)
    machine(2)
    trainer = make(url=url)
    trainer.train(resume_from_checkpoint=True)
    fs, root = fsspec.core.url_to_fs(url)
    left = {path.removeprefix(root).split("/")[1] for path in fs.find(root)}
    assert left == {"checkpoint-6", "log.jsonl", "run.jsonl"}
    if protocol == "memory":
        fs.rm(root, recursive=True)


def test_the_number_of_requests_is_that_of_the_documentation(make, storage, monkeypatch):
    """A checkpoint of n files: n + 1 writes, 2 lists, 1 deletion; deleting it: 1 list, 1 write, n + 1 deletions."""
    trainer = make(max_steps=2)
    trainer.train()
    folder = Path(trainer.args.output_dir, "checkpoint-2")
    count, remote = len(list(folder.iterdir())), RemoteDirectory(URL)
    monkeypatch.setattr(RemoteDirectory, "remove_folder", lambda self, folder: None)  # a bucket has no directories

    def requests(work):
        storage.requests.clear()
        work()
        kinds = [kind for kind, _ in storage.requests]
        writes = sum(kind in ("put_file", "pipe_file", "cp_file") for kind in kinds)
        return writes, kinds.count("ls"), kinds.count("rm_file"), kinds.count("cat_file")

    assert requests(lambda: remote_checkpoints.put(remote, folder, "checkpoint-9")) == (count + 1, 2, 1, 0)
    assert requests(lambda: remote_checkpoints.delete(remote, "checkpoint-9")) == (1, 1, count + 1, 0)
