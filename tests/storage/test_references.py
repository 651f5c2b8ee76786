"""A checkpoint in the storage refers only to what is complete there: the best checkpoint, and the logs."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from oneloop import TrainerCallback
from oneloop.checkpoint import log_history, store
from oneloop.errors import StorageError
from oneloop.storage import remote_checkpoints
from oneloop.storage.mirror import Mirror
from oneloop.storage.references import Upload
from oneloop.storage.remote import RemoteDirectory
from tests.backends.support import available, rows, same_bytes
from tests.checkpoint.test_command import write, write_foreign
from tests.storage.machine_pair import Pair
from tests.storage.support import URL, At, checkpoints, made, names, wait_for
from tests.storage.upload_search import dangling

RUN = "a" * 16


def scored(scores, **given):
    """Arguments of a run whose evaluations have these scores, by step: the highest is the best."""
    made = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "eval_dataset": rows(4)}
    return made | {"metric_for_best_model": "score", "save_async": False, "scores": scores} | given


def trainer_of(make, kit=None, scores=None, **given):
    def score(_):
        return {"score": scores[trainer.state.global_step]}

    trainer = make(kit, score=score, **given)
    return trainer


class Gate(TrainerCallback):
    """Holds uploads back until the last step."""

    def __init__(self, storage):
        self.opened = threading.Event()
        storage.fault = self.fault

    def fault(self, kind, path):
        if threading.current_thread().name.startswith("oneloop-upload"):
            self.opened.wait(20)

    def on_train_end(self, args, state, control, **kwargs):
        self.opened.set()


def result(kit, trainer):
    state = trainer.state
    return os.path.basename(state.best_model_checkpoint), state.best_metric, kit.weights(trainer.model)


# -- the best checkpoint comes first


def test_an_empty_machine_loads_the_best_model_whenever_the_run_was_killed(backend, make, machine, storage, tmp_path):
    """Uploads begin when the last checkpoint is saved; the best one waits for its own, behind newer ones."""
    given = scored({2: 1, 4: 3, 6: 2, 8: 0}, max_steps=8)
    on_disk = trainer_of(lambda kit, **rest: made(str(tmp_path / "disk"), kit, **rest), backend, **given)
    on_disk.train()
    storage.states = []
    trainer_of(make, backend, callbacks=[Gate(storage)], **given).train()
    states, storage.states = storage.states, None
    assert [each for state in states for each in dangling(state)] == []
    last = next(state for state in states if "/bucket/run/checkpoint-8/manifest.json" in state)
    storage.restore(last)
    shutil.rmtree(machine(1))  # a path in a checkpoint would lead there
    machine(2)
    resumed = trainer_of(make, backend, **given)
    resumed.train(resume_from_checkpoint=True)
    (name, metric, weights), expected = result(backend, resumed), result(backend, on_disk)
    assert (name, metric) == expected[:2] == ("checkpoint-4", 3)
    assert same_bytes(weights, expected[2])


@pytest.mark.parametrize("limit, kept", [(2, [2, 4, 6]), (None, [2, 4, 6]), (1, [6])])
def test_one_that_is_superseded_here_is_uploaded_for_those_that_name_it(limit, kept, make, storage):
    """checkpoint-2 is the best of checkpoint-4, and checkpoint-6 is better: it is deleted here before any upload."""
    given = scored({2: 2, 4: 1, 6: 3}, save_total_limit=limit, max_steps=6, save_steps=4 if limit is None else 2)
    storage.states = []
    trainer = trainer_of(make, callbacks=[Gate(storage)], **given)
    trainer.train()
    states, storage.states = storage.states, None
    assert [each for state in states for each in dangling(state)] == []
    folder = Path(trainer.args.output_dir)
    assert not (folder / "checkpoint-2").exists() and not any((folder / ".pushes").glob("*"))
    assert checkpoints() == [f"checkpoint-{step}" for step in kept]


def test_nothing_is_committed_that_names_a_best_one_which_cannot_be_uploaded(make, storage, caplog):
    def fault(kind, path):
        if kind == "put_file" and "checkpoint-2/" in path:
            raise PermissionError("not allowed")

    storage.fault = fault
    trainer_of(make, **scored({2: 2, 4: 1}, max_steps=4)).train()
    assert [name for name in names() if name.endswith("manifest.json")] == []
    assert "Not uploaded to faulty://bucket/run: checkpoint-2, checkpoint-4" in caplog.text
    storage.fault = None
    trainer_of(make, **scored({2: 2, 4: 1, 6: 3}, max_steps=6)).train(resume_from_checkpoint=True)
    assert checkpoints() == ["checkpoint-6"]


# -- uploads without a run


@pytest.fixture
def mirror(storage, tmp_path):
    """Of a directory with checkpoint-4, which names checkpoint-2."""
    write(tmp_path / "here", 2)
    write(tmp_path / "here", 4, best=2)
    found = Mirror(URL, tmp_path / "here")
    storage.states = []
    yield found
    storage.fault = None
    found.finish(lambda mirror, thread: thread.join(10))


def upload(mirror, step, best=None, source=None, **given):
    """What a run submits."""
    name = best and f"checkpoint-{best}"
    here = source or (name and mirror.folder / name)
    return Upload(f"checkpoint-{step}", step, RUN, name, source=here if here and here.is_dir() else None, **given)


def committed(storage):
    """The order in which checkpoints were committed."""
    order = []
    for state in storage.states:
        assert dangling(state) == []
        seen = [path.split("/")[-2] for path in state if path.endswith("/manifest.json")]
        order += [name for name in seen if name not in order and not name.startswith(".")]
    return order


def waits(mirror, *uploads):
    """Submit uploads while none is done; then do them, the newest first."""
    mirror.start = lambda: None
    for each in uploads:
        mirror.submit(each)


def work(mirror):
    del mirror.start
    mirror.start()
    mirror.finish(lambda mirror, thread: thread.join(10))


def test_before_a_run_too(mirror, storage):
    mirror.ensure("checkpoint-4")
    assert committed(storage) == ["checkpoint-2", "checkpoint-4"]


def test_a_checkpoint_of_several_machines_too(storage, tmp_path):
    pair = Pair(tmp_path, URL)
    write(pair.disks[0], 2)
    (pair.disks[0] / "log.jsonl").write_text("logged")
    storage.states = []
    pair.save(4, best=2)
    assert committed(storage) == ["checkpoint-2", "checkpoint-4"]
    first = next(state for state in storage.states if "/bucket/run/checkpoint-4/manifest.json" in state)
    assert first["/bucket/run/log.jsonl"] == b"logged"
    storage.requests.clear()
    pair.save(6, best=4)
    assert not [path for kind, path in storage.requests if "checkpoint-2/" in path or "checkpoint-4/" in path]


def test_a_best_one_of_several_machines_that_an_override_has_added_to_is_there(storage, tmp_path, caplog):
    """Its files are on both machines, and its manifest here is newer until what was added is uploaded."""
    pair = Pair(tmp_path, URL)
    pair.save(2, best=2, unsealed=True)
    here = pair.disks[0] / "checkpoint-2"
    store.finalize_manifest(here, store.fingerprints(here))
    storage.requests.clear()
    pair.save(4, best=2)
    assert not [path for kind, path in storage.requests if "checkpoint-2/" in path]
    assert "checkpoint-4/manifest.json" in names() and caplog.text == ""


def test_one_of_several_machines_is_not_committed_if_the_best_cannot_be(storage, tmp_path):
    pair = Pair(tmp_path, URL)
    write(pair.disks[0], 2)

    def fault(kind, path):
        if kind == "put_file" and "checkpoint-2/" in path:
            raise PermissionError("not allowed")

    storage.fault = fault
    with pytest.raises(StorageError, match="not allowed"):
        pair.save(4, best=2)
    assert "checkpoint-4/manifest.json" not in names()


def test_a_kept_copy_is_as_good_as_the_original(mirror, storage):
    waits(mirror, upload(mirror, 4, best=2))
    store.delete(mirror.folder / "checkpoint-2")
    work(mirror)
    assert committed(storage) == ["checkpoint-2", "checkpoint-4"]
    assert not any((mirror.folder / ".pushes").glob("*"))


def test_a_kept_copy_is_tried_again(mirror, storage):
    failures = []

    def fault(kind, path):
        if kind == "put_file" and "checkpoint-2/model" in path and len(failures) < 7:  # 5 are of one request
            failures.append(path)
            raise ConnectionError("reset")

    waiting = upload(mirror, 4, best=2)
    waits(mirror, waiting)
    store.delete(mirror.folder / "checkpoint-2")
    storage.fault = fault
    with pytest.raises(StorageError, match="reset"):
        mirror._upload(waiting)
    work(mirror)
    assert committed(storage) == ["checkpoint-2", "checkpoint-4"]


def test_a_copy_for_a_checkpoint_that_was_deleted_here_is_given_up(mirror, storage):
    waits(mirror, upload(mirror, 4, best=2))
    for step in (2, 4):
        store.delete(mirror.folder / f"checkpoint-{step}")
    work(mirror)
    assert committed(storage) == [] and not any((mirror.folder / ".pushes").glob("*"))


def test_copies_are_given_up_during_the_run(mirror, storage, monkeypatch):
    """checkpoint-4 is deleted here before its upload; the run goes on."""
    waits(mirror, upload(mirror, 4, best=2))
    for step in (2, 4):
        store.delete(mirror.folder / f"checkpoint-{step}")
    write(mirror.folder, 6, best=6)
    del mirror.start
    mirror.submit(upload(mirror, 6, best=6))
    deadline = time.monotonic() + 20
    while list((mirror.folder / ".pushes").glob("*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert mirror.is_running and not any((mirror.folder / ".pushes").glob("*"))


def test_copies_of_what_could_not_be_uploaded_are_given_up_at_the_end(mirror, storage):
    def fault(kind, path):
        if kind == "put_file":
            raise PermissionError("not allowed")

    waits(mirror, upload(mirror, 4, best=2))
    storage.fault = fault
    work(mirror)
    assert checkpoints() == ["checkpoint-2"] and not any((mirror.folder / ".pushes").glob("*"))


def test_on_a_disk_without_links_one_whose_best_is_gone_is_left_out(mirror, storage, monkeypatch, caplog):
    def link(*given):
        raise PermissionError("no hard links")

    monkeypatch.setattr("oneloop.checkpoint.file_snapshots.os.link", link)
    write(mirror.folder, 6)
    waits(mirror, upload(mirror, 4, best=2), upload(mirror, 6, best=6))
    assert not any((mirror.folder / ".pushes").glob("*")), "training would wait for a copy"
    store.delete(mirror.folder / "checkpoint-2")
    work(mirror)
    assert committed(storage) == ["checkpoint-6"]
    assert "checkpoint-4 is not uploaded to faulty://bucket/run: the best checkpoint at that time" in caplog.text


def test_another_one_of_that_step_is_not_taken_for_it(mirror, storage):
    """After a return to an earlier step, or in a URL that another run has used."""
    remote_checkpoints.put(mirror.remote, mirror.folder / "checkpoint-2", "checkpoint-2")
    mirror.refresh()
    waits(mirror, upload(mirror, 4, best=2))
    assert not (mirror.folder / ".pushes").exists(), "it is there"
    later = write(mirror.folder, 2, written=99.0)
    mirror.submit(upload(mirror, 4, best=2))
    write(mirror.folder, 2, written=100.0)
    mirror.submit(upload(mirror, 4, best=2))
    store.delete(later)
    work(mirror)
    stored = json.loads(storage.store["/bucket/run/checkpoint-2/manifest.json"].getvalue())
    assert stored["written"] == 100.0 and checkpoints() == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize("kind", ["missing", "damaged", "foreign"])
def test_one_that_cannot_be_uploaded_at_all_holds_nothing_back(kind, mirror, storage, tmp_path, caplog):
    best = mirror.folder / "checkpoint-2"
    if kind == "damaged":
        (best / "model.safetensors").unlink()
    else:
        store.delete(best)
    if kind == "foreign":
        best = write_foreign(tmp_path / "other", 2)
    for step in (4, 6):
        write(mirror.folder, step, best=2)
        assert mirror._upload(upload(mirror, step, best=2, source=best))
    assert checkpoints() == ["checkpoint-4", "checkpoint-6"]
    assert caplog.text.count("names checkpoint-2 as the best checkpoint, which is not in faulty://bucket/run") == 1


def test_a_best_one_of_the_storage_alone_is_there(mirror, storage):
    """A run that was resumed on an empty machine without load_best_model_at_end."""
    remote_checkpoints.put(mirror.remote, mirror.folder / "checkpoint-2", "checkpoint-2")
    store.delete(mirror.folder / "checkpoint-2")
    mirror.refresh()
    assert mirror._upload(upload(mirror, 4, best=2, limit=1))
    assert checkpoints() == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize("owner, method", [(remote_checkpoints, "put"), (RemoteDirectory, "upload")])
def test_two_threads_do_not_upload_the_same_at_the_same_time(owner, method, mirror, storage, monkeypatch):
    """The one that uploads, and the one that commits a checkpoint of several machines: checkpoint-2 and the log."""
    (mirror.folder / "log.jsonl").write_text("logged")
    original, gate, inside, most = getattr(owner, method), threading.Event(), [], []

    def watched(first, path, name, *rest):
        if name not in ("checkpoint-2", "log.jsonl"):
            return original(first, path, name, *rest)
        inside.append(name)
        most.append(len(inside))
        gate.wait(5)
        original(first, path, name, *rest)
        inside.remove(name)

    monkeypatch.setattr(owner, method, watched)
    tasks = [
        lambda: mirror._upload(upload(mirror, 2, best=2)),
        lambda: mirror.complete_references(mirror.folder / "checkpoint-4", "checkpoint-4"),
    ]
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    threads[1].join(0.2)
    gate.set()
    for thread in threads:
        thread.join(10)
    assert set(most) == {1} and checkpoints() == ["checkpoint-2"] and "log.jsonl" in names()


# -- logs


def test_logs_that_cannot_be_uploaded_hold_a_checkpoint_back(make, storage, machine, monkeypatch):
    monkeypatch.setattr(log_history, "COMPLETE", 3)
    monkeypatch.setattr(log_history, "TAIL", 1)
    down = [True]

    def fault(kind, path):
        if down and kind == "put_file" and path.endswith(".jsonl"):
            raise PermissionError("not allowed")

    storage.fault = fault
    make(max_steps=4).train()
    assert not [name for name in names() if name.endswith("manifest.json")]
    down.clear()
    make(max_steps=6).train(resume_from_checkpoint=True)
    machine(2)
    trainer = make(max_steps=8)
    trainer.train(resume_from_checkpoint=True)
    assert [each["step"] for each in trainer.state.log_history if "loss" in each] == list(range(1, 9))


def test_another_file_that_cannot_be_uploaded_does_not(make, storage, tmp_path):
    def fault(kind, path):
        if kind == "put_file" and path.endswith("notes.txt"):
            raise PermissionError("not allowed")

    storage.fault = fault
    trainer = make(max_steps=2)
    Path(trainer.args.output_dir, "notes.txt").write_text("of the user")
    trainer.train()
    assert checkpoints() == ["checkpoint-2"]


# -- deletion


def uploaded(mirror, *steps, best):
    """Upload them in turn, each with the best one so far: {step: best step}."""
    for step in steps:
        write(mirror.folder, step, best=best[step])
        mirror._upload(upload(mirror, step, best=best[step], rotates=False))


def test_one_is_deleted_before_the_best_that_it_names(mirror, storage):
    uploaded(mirror, 2, 4, 6, best={2: 2, 4: 2, 6: 6})
    assert mirror._upload(upload(mirror, 6, best=6, limit=1))
    assert checkpoints() == ["checkpoint-6"] and committed(storage)


def test_no_request_is_made_for_what_this_process_has_uploaded(mirror, storage):
    uploaded(mirror, 2, 4, 6, best={2: 2, 4: 2, 6: 6})
    storage.requests.clear()
    assert mirror._upload(upload(mirror, 6, best=6, limit=2))
    assert not [path for kind, path in storage.requests if path.endswith("trainer_state.json")]


def test_what_it_names_itself_is_kept_too(mirror, storage):
    """checkpoint-6 was saved before its evaluation."""
    uploaded(mirror, 2, 4, 6, 8, best={2: 2, 4: 2, 6: 4, 8: 8})
    assert mirror._upload(upload(mirror, 8, best=8, limit=2))
    assert checkpoints() == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]


def test_one_that_was_saved_again_names_what_it_names_now(mirror, storage):
    uploaded(mirror, 1, 2, best={1: 1, 2: 1})
    write(mirror.folder, 2, best=2)
    assert mirror._upload(upload(mirror, 4, best=2, limit=1))
    assert checkpoints() == ["checkpoint-2", "checkpoint-4"] and committed(storage)


def test_what_was_uploaded_for_another_is_deleted_when_it_is_deleted_here(mirror, storage):
    assert mirror._upload(upload(mirror, 4, best=2))
    for step in (2, 4):  # perhaps by an override
        store.delete(mirror.folder / f"checkpoint-{step}")
    write(mirror.folder, 6, best=6)
    assert mirror._upload(upload(mirror, 6, best=6, limit=None))
    assert checkpoints() == ["checkpoint-6"] and committed(storage)


def test_what_a_kept_one_names_is_kept_until_it_is_deleted(mirror, storage):
    uploaded(mirror, 2, 4, 6, best={2: 2, 4: 2, 6: 6})
    assert mirror._upload(upload(mirror, 6, best=6, limit=2))
    assert checkpoints() == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    write(mirror.folder, 8, best=6)
    assert mirror._upload(upload(mirror, 8, best=6, limit=2))
    assert checkpoints() == ["checkpoint-6", "checkpoint-8"] and committed(storage)


def test_if_one_cannot_be_deleted_the_best_that_it_names_is_not(mirror, storage, caplog):
    uploaded(mirror, 2, 4, 6, best={2: 2, 4: 2, 6: 6})

    def fault(kind, path):
        if kind == "rm_file" and path.endswith("checkpoint-4/manifest.json"):
            raise PermissionError("not allowed")

    storage.fault = fault
    assert mirror._upload(upload(mirror, 6, best=6, limit=1))
    assert "checkpoint-4 could not be deleted" in caplog.text and committed(storage)
    assert checkpoints() == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    storage.fault = None
    assert mirror._upload(upload(mirror, 6, best=6, limit=1))
    assert checkpoints() == ["checkpoint-6"]


def test_what_another_process_has_uploaded_is_read_there(mirror, storage, tmp_path):
    uploaded(mirror, 2, 4, 6, best={2: 2, 4: 2, 6: 6})
    later = Mirror(URL, mirror.folder)
    later.refresh()

    def fault(kind, path):
        if kind == "cat_file" and path.endswith("trainer_state.json"):
            raise PermissionError("not allowed")

    storage.fault = fault
    assert later._upload(upload(later, 6, best=6, limit=2)), "it is committed, and nothing is deleted"
    assert len(checkpoints()) == 3
    storage.fault = None
    assert later._upload(upload(later, 6, best=6, limit=2))
    assert checkpoints() == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert later._upload(upload(later, 6, best=6, limit=1))
    assert checkpoints() == ["checkpoint-6"] and committed(storage)


def test_what_one_names_that_waits_is_kept_for_it(mirror, storage):
    """checkpoint-2 is there, deleted here, and superseded by checkpoint-6, which is uploaded before checkpoint-4."""
    assert mirror._upload(upload(mirror, 2, best=2))
    write(mirror.folder, 6)
    waits(mirror, upload(mirror, 4, best=2, limit=2), upload(mirror, 6, best=6, limit=2))
    store.delete(mirror.folder / "checkpoint-2")
    work(mirror)
    assert committed(storage)[-2:] == ["checkpoint-6", "checkpoint-4"]
    assert checkpoints() == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


# -- a run that is branched from another


@pytest.mark.parametrize("origin", ["directory", "url"])
def test_the_best_one_of_the_run_it_is_branched_from_becomes_its_own(origin, make, machine, storage, tmp_path):
    scores = {2: 5, 4: 1, 6: 2, 8: 3, 10: 4}
    place = str(tmp_path / "first") if origin == "directory" else "faulty://bucket/first"
    first = trainer_of(lambda kit, **rest: made(place, kit, **rest), **scored(scores, max_steps=4))
    first.train()
    if origin == "url":
        shutil.rmtree(machine(1))
    machine(2)
    given = scored(scores, max_steps=10)
    storage.states = []
    parent = first.args.output_dir if origin == "directory" else place
    unbroken = trainer_of(make, callbacks=[At(9, lambda: wait_for(["checkpoint-8"]))], **given)
    unbroken.train(resume_from_checkpoint=f"{parent}/checkpoint-4")
    states, storage.states = storage.states, None
    assert checkpoints() == ["checkpoint-10", "checkpoint-2"]
    assert [each for state in states for each in dangling(state)] == []
    kit = available()[0]
    expected = result(kit, unbroken)
    assert expected[:2] == ("checkpoint-2", 5)
    own = json.loads(storage.store["/bucket/run/checkpoint-10/manifest.json"].getvalue())
    adopted = json.loads(storage.store["/bucket/run/checkpoint-2/manifest.json"].getvalue())
    assert (adopted["run_id"], adopted["generation"], adopted["reason"]) == (own["run_id"], own["generation"], "best")
    storage.restore(next(state for state in states if "/bucket/run/checkpoint-8/manifest.json" in state))
    for number in (1, 2):  # paths in checkpoints would lead there
        shutil.rmtree(machine(number), ignore_errors=True)
    shutil.rmtree(tmp_path / "first", ignore_errors=True)
    machine(3)
    resumed = trainer_of(make, **given)
    resumed.train(resume_from_checkpoint=True)
    name, metric, weights = result(kit, resumed)
    assert (name, metric) == expected[:2] and same_bytes(weights, expected[2])
