"""`oneloop checkpoints DIR`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneloop.checkpoint import resume, store
from oneloop.checkpoint.capture import Contents
from oneloop.cli.main import main
from tests.checkpoint.test_run_state import POSITION, RUN

ROOT = Path(__file__).parents[2]


def write(parent, step, run="a" * 16, reason="save", best=None, written=None):
    """A checkpoint as small as one can be, committed as a run commits its own."""
    contents = Contents()
    contents.add_json("run.json", RUN | {"run_id": run, "optimizer": {}, "position": POSITION | {"step_in_epoch": 1}})
    contents.tensors["random.safetensors"] = ({}, {})
    state = {"global_step": step, "best_model_checkpoint": best and f"elsewhere/checkpoint-{best}"}
    contents.add_json("trainer_state.json", state)
    header = json.dumps({"w": {"dtype": "U8", "shape": [900], "data_offsets": [0, 900]}}).encode().ljust(92)
    contents.texts["model.safetensors"] = len(header).to_bytes(8, "little") + header + bytes(900)
    stage = store.open_stage(parent, step)
    path = store.commit(stage, step, run, reason, contents.write(stage)).path
    if written is not None:
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(manifest | {"written": written}))
    return path


def write_foreign(parent, step, whole=True):
    """What transformers' Trainer leaves, with nothing in the pickled files."""
    path = parent / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    table = json.dumps({}).encode().ljust(8)
    (path / "model.safetensors").write_bytes(len(table).to_bytes(8, "little") + table)
    for name in ("optimizer.pt", "scheduler.pt"):
        (path / name).write_bytes(b"not a zip file")
    if not whole:
        (path / "optimizer.pt").unlink()
    return path


@pytest.mark.parametrize("before", [write, write_foreign])
def test_what_was_there_stays_if_a_checkpoint_cannot_take_its_place(before, tmp_path, monkeypatch):
    """One of ours, or of another trainer, which a new one does not replace but moves aside."""

    def fails(path):
        raise OSError("the disk has failed")

    path = before(tmp_path, 5)
    there = {each.name: each.read_bytes() for each in path.iterdir()}
    stage = store.open_stage(tmp_path, 5)
    (stage / "new.txt").write_text("new")
    monkeypatch.setattr(store, "sync_directory", fails)
    with pytest.raises(OSError, match="the disk has failed"):
        store.swap_in(stage, path)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == there
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, stage.name])


def test_one_that_could_not_be_removed_is_not_taken_for_complete(tmp_path, monkeypatch):
    def fails(path):
        raise OSError("the disk has failed")

    monkeypatch.setattr(store, "remove_tree", fails)
    for path in (write(tmp_path, 5), write(tmp_path, 6).rename(tmp_path / "copy")):
        with pytest.raises(OSError, match="the disk has failed"):
            store.delete(path)
    assert len(list(tmp_path.iterdir())) == 2 and not list(tmp_path.glob("*/manifest.json"))


def test_a_rotation_keeps_the_newest_also_beside_the_one_just_written(tmp_path):
    """The run was resumed from an earlier one, and the newest may be corrupt, or not."""
    paths = [write(tmp_path, step) for step in (10, 20, 30)]
    assert store.rotate(tmp_path, "a" * 16, 1, {str(paths[1])}) == paths[:1]
    assert [each.step for each in store.find(tmp_path)] == [20, 30]


def test_a_later_one_of_another_trainer_comes_after_those_of_the_run(tmp_path):
    write(tmp_path, 4)
    write_foreign(tmp_path, 7)
    (tmp_path / "checkpoint-9").mkdir()
    assert [each.step for each in store.newest_first(tmp_path)] == [9, 4, 7], "9 is torn, which a resume warns about"


def test_a_checkpoint_that_is_named_is_resumed_whatever_is_in_it(tmp_path):
    path = write(tmp_path, 4)
    write(path, 2)
    found, passed_over = resume.find(str(path), "elsewhere")
    assert (found.path, passed_over) == (path, [])


@pytest.fixture
def run(tmp_path):
    """Four checkpoints of a run, the second its best; one of an earlier run; one of transformers."""
    write(tmp_path, 3, run="b" * 16, written=1.0)
    write_foreign(tmp_path, 5)
    write(tmp_path, 10, written=10.0)
    write(tmp_path, 20, reason="best", best=20, written=20.0)
    write(tmp_path, 30, best=20, written=30.0)
    write(tmp_path, 40, best=20, written=40.0)
    return tmp_path


def as_json(capsys, *arguments):
    status = main(["checkpoints", *map(str, arguments), "--json"])
    data = json.loads(capsys.readouterr().out)
    return status, data, {entry["name"]: entry for entry in data["checkpoints"]}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_list(run, capsys):
    status, data, found = as_json(capsys, run)
    assert status == 0 and data["damaged"] == 0 and data["checked"] == "sizes" and data["format"] == 1
    assert [entry["step"] for entry in data["checkpoints"]] == [3, 5, 10, 20, 30, 40]
    assert {name: entry["state"] for name, entry in found.items() if entry["state"] != "whole"} == {
        "checkpoint-5": "foreign"
    }
    assert [name for name, entry in found.items() if entry["latest"]] == ["checkpoint-40"]
    assert [name for name, entry in found.items() if entry["best"]] == ["checkpoint-20"]
    newest = found["checkpoint-40"]
    assert newest["run"] == "a" * 16 and newest["reason"] == "save" and newest["framework"] == "torch"
    assert newest["bytes"] == sum(p.stat().st_size for p in (run / "checkpoint-40").iterdir())
    assert newest["age_seconds"] > 10**9 and newest["problems"] == []
    assert found["checkpoint-20"]["reason"] == "best"
    assert found["checkpoint-5"]["writer"] == "transformers" and found["checkpoint-5"]["run"] is None


def test_the_text_for_people(run, capsys):
    (run / "checkpoint-30" / "model.safetensors").write_bytes(b"short")
    (run / ".checkpoint-50.0123abcd.partial").mkdir()
    assert main(["checkpoints", str(run)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 damaged (sizes compared; use verify for checksums)") and "6 checkpoints" in lines[0]
    assert lines[2].split() == ["NAME", "STEP", "RUN", "REASON", "SIZE", "AGE", "FRAMEWORK", "STATE"]
    rows = {line.split()[0]: line.split() for line in lines[3:9]}
    assert rows["checkpoint-40"][1:4] == ["40", "aaaaaaaa", "save"] and rows["checkpoint-40"][-2:] == [
        "whole",
        "latest",
    ]
    assert rows["checkpoint-20"][-2:] == ["whole", "best"]
    assert rows["checkpoint-30"][-1] == "damaged" and rows["checkpoint-5"][-1] == "foreign"
    text = "\n".join(lines)
    assert "checkpoint-30 is incomplete or corrupt:\n  model.safetensors has 5 bytes instead of 1000" in text
    assert ".checkpoint-50.0123abcd.partial" in text


ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\r\n"


@pytest.mark.parametrize("action", [["list"], ["verify"], ["prune", "--keep", "1", "--damaged"]])
def test_no_control_sequence_reaches_the_terminal(tmp_path, capsys, action):
    """Whoever wrote the directory chose the names in it, and what its files say."""
    folder = tmp_path / f"run{ESCAPES[:-2]}"
    for step in (1, 2, 3):
        write(folder, step, run=f"{ESCAPES}abc"[:16], reason=f"save{ESCAPES}", written=float(step))
    manifest = json.loads((folder / "checkpoint-2" / "manifest.json").read_text())
    manifest["files"][f"w{ESCAPES}"] = {"bytes": 3, "crc32": 1}
    (folder / "checkpoint-2" / "manifest.json").write_text(json.dumps(manifest))
    run = json.loads((folder / "checkpoint-3" / "run.json").read_text()) | {"framework": f"torch{ESCAPES}"}
    (folder / "checkpoint-3" / "run.json").write_text(json.dumps(run))
    (folder / f".checkpoint-9.{ESCAPES}").mkdir()
    (folder / f"checkpoint-4.transformers{ESCAPES}").mkdir()
    main(["checkpoints", str(folder), *action])
    main(["checkpoints", str(folder / "nothing" / ESCAPES)])
    printed = capsys.readouterr()
    acting = {c for c in printed.out + printed.err if not c.isprintable()} - {"\n"}
    assert acting == set() and r"\x1b]0;title\x07" in printed.out and r"\u202e" in printed.out + printed.err
    lines = printed.out.splitlines()
    assert not [line for line in lines if line.startswith(("abc", "]0;"))]


@pytest.mark.parametrize("command", ["report", "compare", "check"])
def test_no_control_sequence_in_what_other_commands_print(run, capsys, command, monkeypatch):
    monkeypatch.chdir(run)
    place = run / f"other{ESCAPES}"
    write(place, 1)
    (place / "log.jsonl").write_text(json.dumps({"run": "a", "step": 1, "time": 1.0, "loss": 1.0}) + "\n")
    (place / "script.py").write_text("from transformers import Trainer\nTrainer(**{'\\x1b': 3})\n")
    given = str(place / "script.py") if command == "check" else str(place)
    main([command, given])
    main([command, str(run / f"nothing{ESCAPES}")])
    printed = capsys.readouterr()
    assert {c for c in printed.out + printed.err if not c.isprintable()} <= {"\n", "\t"}


def test_verify_reads_what_list_does_not(run, capsys):
    file = run / "checkpoint-40" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    assert as_json(capsys, run)[0] == 0
    status, data, found = as_json(capsys, run, "verify")
    assert status == 1 and data["damaged"] == 1 and data["checked"] == "contents"
    assert found["checkpoint-40"]["problems"] == ["model.safetensors has changed since it was written (checksum)"]
    # What a run would go on from is the newest that is whole.
    assert found["checkpoint-30"]["latest"] and not found["checkpoint-40"]["latest"]


@pytest.mark.parametrize(
    "harm, problem",
    [
        (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing or cannot be read"),
        (lambda p: (p / "manifest.json").write_bytes(b"\xff{"), "manifest.json is missing or cannot be read"),
        (lambda p: (p / "run.json").unlink(), "run.json is missing"),
        (lambda p: (p / "trainer_state.json").write_text("{}"), "trainer_state.json has 2 bytes instead of"),
    ],
)
def test_why_one_is_not_whole(tmp_path, capsys, harm, problem):
    path = write(tmp_path, 7)
    harm(path)
    status, _, found = as_json(capsys, tmp_path)
    assert status == 1
    assert found["checkpoint-7"]["state"] == "damaged"
    (text,) = found["checkpoint-7"]["problems"]
    assert text.startswith(problem)
    # The directory itself can be asked about, too.
    assert as_json(capsys, path)[2]["checkpoint-7"]["problems"] == [text]


def test_a_foreign_one_that_is_not_whole(tmp_path, capsys):
    write_foreign(tmp_path, 5, whole=False)
    status, _, found = as_json(capsys, tmp_path)
    assert status == 1 and found["checkpoint-5"]["state"] == "damaged"
    assert found["checkpoint-5"]["problems"][0].startswith("optimizer.pt is missing")


def test_prune_keeps_the_newest_and_the_best_of_every_run(run, capsys):
    (run / "log.jsonl").write_text("{}\n")
    write(run, 2, run="b" * 16, written=0.5)
    before = names(run)
    status, data, _ = as_json(capsys, run, "prune", "--keep", 1, "--dry-run")
    assert status == 0 and data["dry_run"] and names(run) == before
    planned = [entry["name"] for entry in data["deleted"]]
    assert planned == ["checkpoint-2", "checkpoint-10", "checkpoint-30"]
    status, data, found = as_json(capsys, run, "prune", "--keep", 1)
    assert status == 0 and [entry["name"] for entry in data["deleted"]] == planned
    assert list(found) == ["checkpoint-3", "checkpoint-5", "checkpoint-20", "checkpoint-40"]
    assert names(run) == sorted(["log.jsonl", *found])
    assert all(store.problems(run / name) == [] for name in found)


def test_the_best_of_a_run_is_one_of_its_own(run, capsys):
    write(run, 4, run="b" * 16, best=30, written=2.0)  # a later run has a checkpoint of that step now
    _, _, found = as_json(capsys, run)
    assert [name for name, entry in found.items() if entry["best"]] == ["checkpoint-20"]


def test_prune_never_counts_on_a_damaged_one(run, capsys):
    file = run / "checkpoint-40" / "model.safetensors"
    file.write_bytes(b"x" * 1000)  # the same size: only its checksum tells
    status, data, found = as_json(capsys, run, "prune", "--keep", 1)
    assert status == 1  # it is still there
    assert [entry["name"] for entry in data["deleted"]] == ["checkpoint-10"]
    assert list(found) == ["checkpoint-3", "checkpoint-5", "checkpoint-20", "checkpoint-30", "checkpoint-40"]
    status, data, found = as_json(capsys, run, "prune", "--keep", 1, "--damaged")
    assert status == 0 and [entry["name"] for entry in data["deleted"]] == ["checkpoint-40"]


def test_prune_leaves_others_alone_unless_asked(run, capsys):
    write_foreign(run, 6)
    write_foreign(run, 7, whole=False)
    stranger = run / "checkpoint-8"  # somebody's directory that happens to have such a name
    stranger.mkdir()
    (stranger / "notes.txt").write_text("mine")
    as_json(capsys, run, "prune", "--keep", 1, "--damaged")
    assert {"checkpoint-5", "checkpoint-6", "checkpoint-7", "checkpoint-8"} <= set(names(run))
    as_json(capsys, run, "prune", "--keep", 1, "--foreign")
    assert {"checkpoint-6", "checkpoint-7", "checkpoint-8"} <= set(names(run))
    assert "checkpoint-5" not in names(run)


def test_foreign_ones_that_made_room_are_listed(run, capsys):
    write_foreign(run, 50).rename(run / "checkpoint-50.transformers")
    _, _, found = as_json(capsys, run)
    assert found["checkpoint-50.transformers"]["step"] == 50
    assert found["checkpoint-40"]["latest"]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["{0}/nowhere"], "is not a directory"),
        (["{0}", "prune"], "needs --keep N"),
        (["{0}", "prune", "--keep", "0"], "at least 1"),
        (["{0}", "list", "--keep", "3"], "--keep is an option of prune"),
        (["{0}", "--dry-run"], "--dry-run is an option of prune"),
        (["{0}/checkpoint-40", "prune", "--keep", "1"], "is a checkpoint"),
    ],
)
def test_what_cannot_be_done_is_said(run, capsys, arguments, text):
    before = names(run)
    assert main(["checkpoints", *(argument.format(run) for argument in arguments)]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and text in seen.err and seen.err.startswith("oneloop checkpoints: ")
    assert names(run) == before


def test_an_empty_directory(tmp_path, capsys):
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert "0 checkpoints" in capsys.readouterr().out


def test_as_a_program_without_any_framework(run):
    code = "import sys; sys.modules['torch'] = None; from oneloop.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for start in (["-m", "oneloop"], ["-c", code]):
        done = subprocess.run(
            [sys.executable, *start, "checkpoints", str(run), "verify"], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert "checkpoint-40" in done.stdout and "none damaged (checksums verified)" in done.stdout
    (run / "checkpoint-40" / "run.json").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "oneloop", "checkpoints", str(run)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    assert "run.json is missing" in done.stdout


def test_a_real_run(tmp_path, trained, backend, capsys):
    data = [{"x": [float(i)] * 6, "labels": i % 3} for i in range(8)]
    trained(backend.classifier(), data, save_strategy="steps", save_steps=1, max_steps=3)
    capsys.readouterr()
    status, _, found = as_json(capsys, tmp_path / "out", "verify")
    assert status == 0 and list(found) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert all(e["framework"] == backend.name and e["state"] == "whole" for e in found.values())
