"""`oneloop checkpoints`, `report`, `compare` and `watch` on URLs."""

import json
import threading

import pytest

from oneloop.cli.main import main
from oneloop.report import server
from oneloop.storage import remote_checkpoints, view
from oneloop.storage.remote import RemoteDirectory
from tests.checkpoint.test_command import write
from tests.storage.support import URL, checkpoints
from tests.storage.upload_search import dangling


@pytest.fixture
def run(make, machine, storage):
    """A run with three checkpoints; the machine of the commands has none of it."""
    make(save_total_limit=None).train()
    machine(2)
    return storage


def listed(capsys, *argv):
    status = main(["checkpoints", URL, *argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_prune_deletes_a_checkpoint_before_the_best_that_it_names(storage, tmp_path):
    for step, best in ((2, 2), (4, 2), (6, 6)):
        remote_checkpoints.put(RemoteDirectory(URL), write(tmp_path, step, best=best), f"checkpoint-{step}")
    storage.states = []
    assert main(["checkpoints", URL, "prune", "--keep", "1"]) == 0
    assert checkpoints() == ["checkpoint-6"]
    assert [each for state in storage.states for each in dangling(state)] == []


def test_list_reads_no_large_file(run, capsys):
    run.requests.clear()
    status, found = listed(capsys)
    assert status == 0 and found["directory"] == URL and found["damaged"] == 0
    assert [entry["name"] for entry in found["checkpoints"]] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    last = found["checkpoints"][-1]
    assert last["latest"] and last["path"] == f"{URL}/checkpoint-6" and last["framework"] and last["state"] == "whole"
    assert last["bytes"] == sum(len(data) for path, data in run.contents().items() if "checkpoint-6/" in path)
    assert not [path for kind, path in run.requests if kind == "get_file" and path.endswith(".safetensors")]
    assert main(["checkpoints", f"{URL}/checkpoint-4"]) == 0
    assert "1 checkpoint," in capsys.readouterr().out


def test_verify_compares_checksums_and_list_does_not(run, capsys):
    place = "/bucket/run/checkpoint-4/optimizer.safetensors"
    data = run.store[place].getvalue()
    run().pipe_file(place, data[:-1] + bytes([data[-1] ^ 1]))
    assert listed(capsys)[0] == 0
    status, found = listed(capsys, "verify")
    assert status == 1 and [entry["name"] for entry in found["checkpoints"] if entry["problems"]] == ["checkpoint-4"]
    assert main(["checkpoints", f"{URL}/checkpoint-4", "verify"]) == 1
    assert main(["checkpoints", f"{URL}/checkpoint-6", "verify"]) == 0


def test_prune_deletes_in_the_storage(run, capsys):
    assert main(["checkpoints", URL, "prune", "--keep", "1", "--dry-run"]) == 0
    assert len(checkpoints()) == 3
    assert main(["checkpoints", URL, "prune", "--keep", "1"]) == 0
    assert checkpoints() == ["checkpoint-6"]
    assert "deleted: checkpoint-2" in capsys.readouterr().out


def test_an_unfinished_upload_is_listed_as_such(run, capsys):
    run().pipe_file("/bucket/run/checkpoint-8/.uploading", b"")
    run().pipe_file("/bucket/run/checkpoint-8/model.safetensors", b"part")
    status, found = listed(capsys)
    assert status == 0 and found["leftovers"] == ["checkpoint-8"] and len(found["checkpoints"]) == 3


def test_report_is_written_to_the_storage(run, capsys):
    assert main(["report", URL]) == 0
    assert f"{URL}/report.html" in capsys.readouterr().out
    page = run.store["/bucket/run/report.html"].getvalue().decode()
    assert "checkpoint-6" in page and "<title>run" in page.replace("<title>\n", "<title>")
    assert main(["report", URL, "--verify"]) == 0


def test_compare_takes_urls_and_directories(run, make, capsys, tmp_path):
    make(url="faulty://bucket/second", learning_rate=0.5).train()
    trainer = make(url=str(tmp_path / "third"))
    trainer.train()
    output = tmp_path / "compare.html"
    folders = [URL, "faulty://bucket/second", str(tmp_path / "third")]
    assert main(["compare", *folders, "-o", str(output)]) == 0
    page = output.read_text()
    assert all(f'"{name}"' in page for name in ("run", "second", "third"))


def test_a_url_without_a_run_is_an_error(storage, machine, capsys):
    for command in (["report", URL], ["compare", URL], ["checkpoints", "faulty://bucket/run/checkpoint-2"]):
        assert main(command) != 0
        assert URL in capsys.readouterr().err


def test_watch_follows_a_run_that_goes_on(run, make, monkeypatch):
    monkeypatch.setattr(view, "EVERY", 0.05)
    seen = []

    def watch(folder, port, name, *more):
        """Instead of a server: what it would read, before and after the run has gone on."""
        seen.append((name, steps(folder), sorted(path.name for path in folder.glob("checkpoint-*"))))
        make(max_steps=10, save_total_limit=1).train(resume_from_checkpoint=True)
        for _ in range(400):
            if [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-10"] and 10 in steps(folder):
                break
            threading.Event().wait(0.05)
        seen.append((folder, steps(folder), sorted(path.name for path in folder.glob("checkpoint-*"))))
        return 0

    monkeypatch.setattr(server, "watch", watch)
    assert main(["watch", URL]) == 0
    assert seen[0] == (URL, [1, 2, 3, 4, 5, 6], ["checkpoint-2", "checkpoint-4", "checkpoint-6"])
    assert seen[1][1:] == (list(range(1, 11)), ["checkpoint-10"]) and not seen[1][0].exists()


def steps(folder):
    """Of the losses in a log."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [entry["step"] for entry in entries if "loss" in entry]
