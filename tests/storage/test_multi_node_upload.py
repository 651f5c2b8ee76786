"""Checkpoints whose files several machines upload: their commit, and what is left when one of them fails."""

import errno
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from oneloop.checkpoint import capture, sharded, store
from oneloop.distributed.collectives import ProcessGroup
from oneloop.errors import CheckpointError, StorageError
from oneloop.storage import nodes, remote_checkpoints, staging
from oneloop.storage.multi_node_upload import new_place
from oneloop.storage.references import Upload
from oneloop.storage.remote import RemoteDirectory
from tests.storage.machine_pair import FILES, SHARDS, Pair, contents
from tests.storage.support import URL, checkpoints, names, whole

pytestmark = pytest.mark.usefixtures("storage")


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path, URL)


def complete():
    return remote_checkpoints.manifests(RemoteDirectory(URL))


def test_the_manifest_is_put_when_the_files_of_all_have_arrived(pair, storage, tmp_path):
    """In every state of the storage there is a complete checkpoint, and the next start removes what is torn."""
    pair.save(2)
    storage.states = []
    pair.save(4)
    states, storage.states = storage.states, None
    assert {name.partition("/")[2] for name in names(below="checkpoint-4/")} == FILES
    seen = []
    for number, state in enumerate(states):
        storage.restore(state)
        remote_checkpoints.recover(RemoteDirectory(URL))
        seen.append(whole(tmp_path / f"state{number}"))
        assert checkpoints() == [f"checkpoint-{step}" for step in seen[-1]]
    first = seen.index([2, 4])
    assert seen == [[2]] * first + [[2, 4]] * (len(seen) - first) and first > 5


def test_only_the_main_process_keeps_files_and_only_its_own(pair):
    pair.save(2)
    here = {path.name for path in (pair.disks[0] / "checkpoint-2").iterdir()}
    assert here == FILES - {SHARDS[1]}
    assert list(pair.disks[1].iterdir()) == []
    assert store.problems(pair.disks[0] / "checkpoint-2") == [f"{SHARDS[1]} is missing"]


def test_the_number_of_requests_is_that_of_the_documentation(pair, storage):
    """n = 5 files, p = 2 processes: n + 2 p - 1 writes, 1 list, p deletions."""
    pair.save(2)
    kinds = [kind for kind, _ in storage.requests]
    count = {kind: kinds.count(kind) for kind in ("put_file", "pipe_file", "ls", "rm_file", "get_file")}
    assert count.pop("put_file") + count.pop("pipe_file") == 5 + 2 * 2 - 1
    assert count == {"ls": 1, "rm_file": 2, "get_file": 0}


def test_a_process_that_cannot_upload_is_an_error_of_the_whole_save(pair, storage, tmp_path):
    pair.save(2)

    def fault(kind, path):
        if kind == "put_file" and path.endswith(f"checkpoint-4/{SHARDS[1]}"):
            raise PermissionError("not allowed")

    storage.fault = fault
    with pytest.raises(OSError, match="process 1 could not write its shard.*Check the credentials"):
        pair.save(4)
    storage.fault = None
    assert whole(tmp_path / "verified") == [2] and checkpoints() == ["checkpoint-2"]
    assert [path.name for disk in pair.disks for path in disk.iterdir()] == ["checkpoint-2"]


def test_what_a_killed_process_has_uploaded_is_removed_at_the_next_start(pair, tmp_path):
    def killed(parts, rank, contents, size):
        parts.send(contents.write(parts.stage))  # it leaves no note

    pair.save(2)
    with pytest.raises(OSError, match="process 1 has not written its shard") as caught:
        pair.save(4, other=killed, timeout=0.1)
    assert caught.value.errno == errno.ETIMEDOUT
    assert whole(tmp_path / "verified") == [2] and f"checkpoint-4/{SHARDS[1]}" in names()
    assert remote_checkpoints.leftovers(RemoteDirectory(URL)) == ["checkpoint-4"]
    assert remote_checkpoints.recover(RemoteDirectory(URL)) and checkpoints() == ["checkpoint-2"]


def test_a_file_that_arrives_truncated_is_not_committed(pair, storage, tmp_path):
    def truncated(parts, rank, contents, size):
        facts = parts.send(contents.write(parts.stage))
        RemoteDirectory(URL).write(f"checkpoint-2/{SHARDS[1]}", b"")
        parts.write_note(rank, facts)

    with pytest.raises(StorageError, match=f"{SHARDS[1]} has 0 bytes"):
        pair.save(2, other=truncated)
    assert checkpoints() == []


def test_a_run_that_has_lost_its_lease_commits_nothing(pair):
    pair.mirror.lease.is_lost = True
    with pytest.raises(StorageError, match="another run has taken"):
        pair.save(2)
    assert complete() == {} and names(below="checkpoint-2/"), "what is there may be that of the other run"


def test_one_that_replaces_another_of_its_step_leaves_one_complete_at_any_time(pair, storage, tmp_path):
    pair.save(2, value=1)
    storage.states = []
    pair.save(2, value=5, place=new_place("checkpoint-2", is_taken=True))
    states, storage.states = storage.states, None
    assert names(below=".") == []
    for number, state in enumerate(states):
        storage.restore(state)
        remote_checkpoints.recover(RemoteDirectory(URL))
        assert whole(tmp_path / f"state{number}") == [2]
        assert names(below=".") == []


def test_files_of_overrides_are_uploaded_wherever_they_are_written(pair, tmp_path):
    def also(parts, rank, contents, size):
        (parts.stage / "more").mkdir()
        (parts.stage / "more" / "of1.txt").write_text("one")
        sharded.write_part(parts, rank, contents, size)

    (pair.disks[0] / "checkpoint-2").mkdir(parents=True)
    (pair.disks[0] / "checkpoint-2" / "early.txt").write_text("written to the final path")
    pair.save(2, other=also, unsealed=True)
    path = pair.disks[0] / "checkpoint-2"
    known = store.fingerprints(path)
    (path / "late.txt").write_text("added")
    store.finalize_manifest(path, known)
    (path / "unlisted.txt").write_text("of a callback")
    pair.mirror._upload(Upload("checkpoint-2", 2, "run"))
    assert whole(tmp_path / "verified") == [2]
    downloaded = {p.relative_to(tmp_path / "verified/checkpoint-2").as_posix() for p in
                  (tmp_path / "verified/checkpoint-2").rglob("*") if p.is_file()}  # fmt: skip
    assert downloaded == FILES | {"early.txt", "late.txt", "unlisted.txt", "more/of1.txt"}
    assert {"more/of1.txt", "late.txt", SHARDS[1]} <= store.read_manifest(path)["files"].keys()


def test_files_that_an_override_adds_come_before_the_manifest_that_lists_them(pair, storage, tmp_path):
    pair.save(2, unsealed=True)
    path = pair.disks[0] / "checkpoint-2"
    known = store.fingerprints(path)
    (path / "late.txt").write_text("added")
    store.finalize_manifest(path, known)
    storage.states = []
    pair.mirror._upload(Upload("checkpoint-2", 2, "run"))
    states, storage.states = storage.states, None
    for number, state in enumerate(states):
        storage.restore(state)
        assert whole(tmp_path / f"state{number}") == [2]
    assert "late.txt" in store.read_manifest(tmp_path / f"state{len(states) - 1}" / "checkpoint-2")["files"]


def test_a_file_that_an_override_changes_is_uploaded_again(pair, tmp_path):
    pair.save(2, unsealed=True)
    path = pair.disks[0] / "checkpoint-2"
    known = store.fingerprints(path)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 2, "more": "of the override"}))
    store.finalize_manifest(path, known)
    pair.mirror._upload(Upload("checkpoint-2", 2, "run"))
    assert whole(tmp_path / "verified") == [2]


def test_each_machine_needs_room_for_its_own_files_alone(pair, monkeypatch):
    asked = []
    monkeypatch.setattr(capture, "check_free_space", lambda folder, size: asked.append(size))
    pair.save(2, other=lambda parts, rank, made, size: sharded.write_part(parts, rank, made, 10**6))
    assert asked == [contents(1, 2, 0).size]


def test_a_note_that_is_being_written_is_not_there_yet(pair):
    main, other = pair.parts(2)
    other.remote.write(other._note(1), b'{"facts": {"a"')
    assert not main.has_note(1)
    other.write_note(1, {})
    assert main.has_note(1)


# -- checkpoints that every machine needs


class Threads(ProcessGroup):
    """Processes that are threads of this one."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self.shared = rank, size, shared

    @classmethod
    def run(cls, size, work):
        """The result of each process, or its error."""
        shared = threading.Barrier(size, timeout=20), [None] * size

        def one(rank):
            try:
                return work(cls(rank, size, shared))
            except CheckpointError as error:
                return error

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(one, range(size)))

    def all_gather_object(self, value):
        barrier, values = self.shared
        values[self.rank] = value
        barrier.wait()
        found = list(values)
        barrier.wait()
        return found

    all_gather = all_gather_object

    def broadcast_object(self, value):
        return self.all_gather_object(value)[0]

    def barrier(self):
        self.all_gather_object(None)


def provided(pair, step):
    name = f"checkpoint-{step}"
    needed = nodes.Needed.of(URL, True, [pair.disks[0] / name])

    def work(processes):
        mirror = pair.mirror if processes.is_main else None
        return nodes.provide(processes, needed, pair.disks[processes.rank], mirror, downloads=True)

    return Threads.run(2, work)


def test_each_machine_downloads_what_it_lacks(pair):
    pair.save(2)
    assert provided(pair, 2) == [[disk / "checkpoint-2"] for disk in pair.disks]
    assert [store.problems(disk / "checkpoint-2") for disk in pair.disks] == [[], []]
    assert provided(pair, 2) == [[], []], "it is there"


def test_another_checkpoint_of_that_name_is_replaced(pair, tmp_path):
    """A machine may have one of an earlier run."""
    pair.save(2, value=1)
    assert [len(paths) for paths in provided(pair, 2)] == [1, 1]
    before = (pair.disks[1] / "checkpoint-2" / SHARDS[0]).read_bytes()
    pair.save(2, value=7, place=new_place("checkpoint-2", is_taken=True))
    assert [len(paths) for paths in provided(pair, 2)] == [1, 1]
    now = [(disk / "checkpoint-2" / SHARDS[0]).read_bytes() for disk in pair.disks]
    assert now[0] == now[1] != before


def test_a_checkpoint_that_only_the_main_process_has_is_uploaded_first(pair):
    stage = store.open_stage(pair.disks[0], 2)
    facts = contents(0, 2, 1).write(stage) | contents(1, 2, 1).write(stage)
    store.commit(stage, 2, "run", "save", facts)
    assert provided(pair, 2) == [[], [pair.disks[1] / "checkpoint-2"]]


def test_a_machine_that_has_written_a_copy_of_its_own_downloads_nothing(pair):
    """As with save_on_each_node: the same files, at another time."""
    for disk in pair.disks:
        stage = store.open_stage(disk, 2)
        store.commit(stage, 2, "run", "save", contents(0, 2, 1).write(stage) | contents(1, 2, 1).write(stage))
    manifests = [(disk / "checkpoint-2" / store.MANIFEST).read_bytes() for disk in pair.disks]
    assert manifests[0] != manifests[1] and provided(pair, 2) == [[], []]


def test_a_download_that_fails_is_an_error_on_every_machine(pair, storage):
    pair.save(2)

    def fault(kind, path):
        if kind == "get_file" and SHARDS[1] in path:
            raise PermissionError("not allowed")

    storage.fault = fault
    errors = provided(pair, 2)
    assert all(isinstance(error, CheckpointError) for error in errors)


def test_one_process_of_a_machine_downloads_for_all(pair):
    pair.save(2)
    needed, disks = nodes.Needed.of(URL, True, [pair.disks[0] / "checkpoint-2"]), [*pair.disks, pair.disks[1]]

    def work(processes):
        mirror = pair.mirror if processes.is_main else None
        return nodes.provide(processes, needed, disks[processes.rank], mirror, downloads=processes.rank < 2)

    assert Threads.run(3, work) == [[disk / "checkpoint-2"] for disk in pair.disks] + [[]]


def test_the_logs_of_the_run_come_with_a_checkpoint(pair):
    """The main process has them already, and may have later ones."""
    pair.save(2)
    RemoteDirectory(URL).write("log.jsonl", b"{}\n")
    provided(pair, 2)
    assert [(disk / "log.jsonl").exists() for disk in pair.disks] == [False, True]


def test_a_checkpoint_that_is_not_that_of_the_main_process_is_an_error(pair):
    pair.save(2)
    needed = nodes.Needed(URL, True, {"checkpoint-2": "0" * 64})
    errors = Threads.run(
        2, lambda processes: nodes.provide(processes, needed, pair.disks[processes.rank], None, downloads=True)
    )
    assert ["is not what the main process has" in str(error) for error in errors] == [True, True]


def test_a_checkpoint_without_the_files_of_other_machines_is_downloaded(pair):
    """By a run that resumes on the machine of the main process, which has only its own files."""
    for step in (2, 4):
        pair.save(step)
    state = pair.disks[0] / "checkpoint-4" / "trainer_state.json"
    state.write_text(json.dumps({"global_step": 4, "best_model_checkpoint": "elsewhere/checkpoint-2"}))
    found = staging.Candidates(pair.mirror.remote, pair.disks[0])
    assert found.fetch_best("checkpoint-4") == "checkpoint-2" and found.fetch("checkpoint-4")
    assert [store.problems(pair.disks[0] / f"checkpoint-{step}") for step in (2, 4)] == [[], []]
    assert found.fetch_best("checkpoint-4") is None and not found.fetch("checkpoint-4"), "they are there"


class Late(Threads):
    """The other processes hear of everything a little later than the main one."""

    def broadcast_object(self, value):
        found = super().broadcast_object(value)
        time.sleep(0.05 if self.rank else 0)
        return found


def test_the_main_process_waits_until_all_have_looked_at_its_disk(tmp_path):
    assert Late.run(2, lambda processes: nodes.has_separate_disk(processes, tmp_path)) == [False, False]


def test_disks_are_told_apart_by_what_is_on_them(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "a"]
    found = Threads.run(3, lambda processes: nodes.has_separate_disk(processes, folders[processes.rank]))
    assert found == [False, True, False] and list(folders[0].iterdir()) == []
