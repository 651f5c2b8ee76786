"""Saves in the background: what is in them, when they count, and who hears of them."""

import json
import logging
import threading
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from oneloop import TrainerCallback, get_last_checkpoint
from oneloop.checkpoint import capture, store
from oneloop.errors import CheckpointError
from tests.checkpoint.job import contents as contents_of
from tests.internals import run_id

KEEP_ALL = ("--set", "save_total_limit=null")


class Listener(TrainerCallback):
    """What on_save finds: the step it is told, the step of the run, and what is wrong with the files."""

    def __init__(self):
        self.heard = []
        self.step = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.step = state.global_step

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        thread = threading.current_thread() is threading.main_thread()
        self.heard.append((state.global_step, self.step, store.problems(folder), thread))


@pytest.mark.parametrize("mode", ["true", "false"], ids=["background", "at-once"])
def test_on_save_finds_whole_files_and_their_step(mode, trainer):
    listener = Listener()
    trainer(*KEEP_ALL, "--set", f"save_async={mode}", callbacks=[listener]).train()
    told = [step for step, _, _, _ in listener.heard]
    assert told == sorted(told)
    assert {3, 6, 9, 12, 15, 18, 21, 22} <= set(told)
    assert all(problems == [] and main for _, _, problems, main in listener.heard)
    if mode == "false":
        assert all(told == now for told, now, _, _ in listener.heard)


class Gate:
    """Holds the writer of one checkpoint until the run is some steps further."""

    def __init__(self, monkeypatch, step, until):
        self.opened = threading.Event()
        self.until = until
        self.arrived = None
        write = capture.Contents.write

        def wait(content, folder):
            if folder.name.startswith(f".checkpoint-{step}."):
                assert self.opened.wait(60), "the run did not go on while the checkpoint was being written"
            return write(content, folder)

        monkeypatch.setattr(capture.Contents, "write", wait)

    def callback(self):
        gate = self

        class Opener(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == gate.until:
                    gate.arrived = sorted(p.name for p in Path(args.output_dir).glob("checkpoint-*"))
                    gate.opened.set()

        return Opener()


def test_on_save_comes_at_the_end_of_the_step_in_which_the_save_has_ended(trainer, monkeypatch):
    gate, listener = Gate(monkeypatch, 3, until=None), Listener()

    class Opener(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 4:
                gate.opened.set()
                for thread in threading.enumerate():
                    if thread.name == "oneloop-save":
                        thread.join()

    options = ("--set", "load_best_model_at_end=false", "--set", "save_steps=3", "--set", "max_steps=7")
    trainer(*KEEP_ALL, *options, callbacks=[Opener(), listener]).train()
    assert listener.heard[0] == (3, 5, [], True)


def test_training_goes_on_and_nothing_of_it_leaks_into_the_file(trainer, tmp_path, monkeypatch):
    """The copy is a real one: weights, moments and random state that change while the file is written do not show."""
    trainer(*KEEP_ALL, output=tmp_path / "calm").train()
    gate = Gate(monkeypatch, step=9, until=11)
    trainer(*KEEP_ALL, callbacks=[gate.callback()]).train()
    assert gate.opened.is_set()
    assert "checkpoint-9" not in gate.arrived, "it was not there yet when the run was at step 11"
    assert contents_of(tmp_path / "run" / "checkpoint-9") == contents_of(tmp_path / "calm" / "checkpoint-9")
    assert contents_of(tmp_path / "run" / "checkpoint-22") == contents_of(tmp_path / "calm" / "checkpoint-22")


def test_memory_for_the_first_save_is_found_before_it(forks, trainer, tmp_path, monkeypatch):
    """Every copy of the first save goes into a buffer that was there, and the checkpoints are the same."""
    trainer(*KEEP_ALL, output=tmp_path / "calm").train()
    monkeypatch.setattr(capture.Buffers, "WORTH_PREPARING", 1)
    missing, copy = [], capture.Buffers.copy

    def watched(buffers, tensors):
        missing.extend(name for name in tensors if name not in buffers._kept)
        return copy(buffers, tensors)

    monkeypatch.setattr(capture.Buffers, "copy", watched)
    trainer(*KEEP_ALL).train()
    assert missing == []
    for step in (3, 22):
        assert contents_of(tmp_path / "run" / f"checkpoint-{step}") == contents_of(
            tmp_path / "calm" / f"checkpoint-{step}"
        )


@pytest.mark.parametrize("option", ['save_strategy="no"', "save_steps=1000", "save_async=false"])
def test_no_memory_is_taken_for_a_save_that_will_not_come(option, trainer, monkeypatch):
    monkeypatch.setattr(capture.Buffers, "WORTH_PREPARING", 1)
    asked = []
    monkeypatch.setattr(capture.Buffers, "prepare", lambda *given: asked.append(given))
    trainer("--set", option, "--set", "load_best_model_at_end=false").train()
    assert asked == []


def test_at_most_one_is_written_at_a_time_and_a_wait_is_said(trainer, monkeypatch, caplog):
    write, lock, most = capture.Contents.write, threading.Lock(), []

    def slowly(content, folder):
        assert lock.acquire(blocking=False), "two saves at once"
        most.append(folder)
        threading.Event().wait(0.05)
        facts = write(content, folder)
        lock.release()
        return facts

    monkeypatch.setattr(capture.Contents, "write", slowly)
    trained = trainer(*KEEP_ALL, "--set", "save_steps=1")
    trained.train()
    assert len(most) >= 22
    events = [json.loads(line) for line in (Path(trained.args.output_dir) / "run.jsonl").read_text().splitlines()]
    waits = [event for event in events if event["event"] == "save_waited"]
    told = [r for r in caplog.records if "for the previous save" in r.getMessage()]
    assert waits and [r.levelno for r in told] == [logging.WARNING] + [logging.INFO] * (len(waits) - 1)


def break_at(monkeypatch, step):
    write = capture.Contents.write

    def fail(content, folder):
        if folder.name.startswith(f".checkpoint-{step}."):
            raise ZeroDivisionError("a bug in the writer")
        return write(content, folder)

    monkeypatch.setattr(capture.Contents, "write", fail)


@pytest.mark.parametrize(("step", "latest"), [(9, 12), (22, 22)], ids=["at-the-next-save", "at-the-end"])
@pytest.mark.parametrize("mode", ["true", "false"], ids=["background", "at-once"])
def test_an_error_of_another_kind_is_raised_with_its_cause(mode, step, latest, trainer, tmp_path, monkeypatch):
    break_at(monkeypatch, step)
    trained = trainer(*KEEP_ALL, "--set", f"save_async={mode}")
    with pytest.raises(CheckpointError, match="a bug in the writer") as caught:
        trained.train()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert step <= trained.state.global_step <= latest
    assert list((tmp_path / "run").glob(".*")) == []
    assert store.problems(Path(get_last_checkpoint(tmp_path / "run"))) == []


def test_an_error_of_the_run_does_not_lose_a_save_under_way(trainer, tmp_path):
    class Breaks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 10:
                raise ZeroDivisionError("a bug in a callback")

    with pytest.raises(ZeroDivisionError):
        trainer(*KEEP_ALL, callbacks=[Breaks()]).train()
    assert store.problems(tmp_path / "run" / "checkpoint-9") == []


def test_saving_by_the_clock(trainer, tmp_path):
    trainer(*KEEP_ALL, "--steps", "5", "--set", "save_steps=50", "--set", "save_interval_minutes=1e-9").train()
    assert [c.step for c in store.find(tmp_path / "run")] == [1, 2, 3, 4, 5]
    trainer(
        *KEEP_ALL, "--steps", "3", "--set", "save_steps=50", "--set", "eval_steps=50", output=tmp_path / "b"
    ).train()
    assert [c.step for c in store.find(tmp_path / "b")] == [3]


# -- rotation


def test_the_newest_and_the_best_stay(trainer, tmp_path):
    trained = trainer("--set", "save_total_limit=1")
    trained.train()
    best = Path(trained.state.best_model_checkpoint)
    names = {c.path.name for c in store.find(tmp_path / "run")}
    assert names == {"checkpoint-22", best.name}
    assert best.name != "checkpoint-22"


def test_the_best_stays_however_the_directory_is_written(trainer, tmp_path, monkeypatch):
    """The first half with a relative path, the second with an absolute one."""
    monkeypatch.chdir(tmp_path)
    limit = ("--set", "save_total_limit=1")
    first = trainer(*limit, "--steps", "13", output="run")
    first.train()
    trained = trainer(*limit, "--set", "greater_is_better=true", output=tmp_path / "run")
    trained.args.eval_strategy = "no"  # nothing better is found
    trained.args.load_best_model_at_end = True
    trained.train(resume_from_checkpoint=True)
    best = Path(first.state.best_model_checkpoint).name
    assert {c.path.name for c in store.find(tmp_path / "run")} == {best, "checkpoint-22"}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_resumed_run_does_not_hold_on_to_the_files_it_read(trainer, tmp_path):
    """Deleted files that are mapped into memory would keep their room on the disk until the run ends."""
    trainer(*KEEP_ALL, "--steps", "6").train()
    seen = []

    class Looks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append([line for line in Path("/proc/self/maps").read_text().splitlines() if args.output_dir in line])

    trainer(*KEEP_ALL, "--steps", "9", callbacks=[Looks()]).train(resume_from_checkpoint=True)
    assert seen == [[]] * 3


# -- several runs in one directory


def test_two_runs_leave_each_other_alone(trainer, tmp_path):
    output = tmp_path / "run"
    few = ("--set", "save_total_limit=1", "--set", "eval_strategy='no'".replace("'", '"'))
    few += ("--set", "load_best_model_at_end=false")
    trainer(*few, "--steps", "20").train()
    theirs = store.latest(output)
    trainer(*few, "--steps", "7", "--set", "seed=4").train()
    assert {c.step for c in store.find(output)} == {20, 7}, "the older run's checkpoint was not rotated away"
    assert store.problems(theirs.path) == []
    resumed = trainer(*few, "--steps", "8", "--set", "seed=4")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 8, "it went on from the run that wrote last, not from the higher number"
    assert run_id(resumed) != theirs.run_id
    assert {c.step for c in store.find(output)} == {20, 8}


def test_a_run_that_is_taken_back_is_another_one(trainer, tmp_path, caplog):
    output = tmp_path / "run"
    trainer(*KEEP_ALL, "--steps", "12").train()
    before = {c.step: c.run_id for c in store.find(output)}
    again = trainer(*KEEP_ALL, "--steps", "8", "--set", "learning_rate=0.01", "--set", "save_steps=7")
    again.train(resume_from_checkpoint=output / "checkpoint-6")
    assert "This is now a new run" in caplog.text
    assert run_id(again) not in before.values()
    assert Path(get_last_checkpoint(output)).name == "checkpoint-8", "not the higher step of the course left behind"
    assert {step: store.read_manifest(output / f"checkpoint-{step}")["run_id"] for step in (6, 9, 12)} == {
        step: before[step] for step in (6, 9, 12)
    }


# -- leftovers


def test_leftovers_of_dead_saves_are_removed_and_nothing_else(trainer, tmp_path, caplog):
    output = tmp_path / "run"
    dead = [".checkpoint-5.0123abcd.partial", ".checkpoint-6.0123abcd.replaced", ".checkpoint-7.0123abcd.deleted"]
    own = [".git", ".checkpoint-mine", ".checkpoint-5.notes.partial", "checkpoint-old", "checkpoint-5-best", ".partial"]
    for name in dead + own:
        (output / name).mkdir(parents=True)
        (output / name / "model.safetensors").write_text("something")
    (output / ".checkpoint-5.0123abce.partial").write_text("a file")
    trainer("--steps", "2").train()
    names = {path.name for path in output.iterdir()}
    assert not names & set(dead)
    assert names >= {*own, ".checkpoint-5.0123abce.partial"}
    for name in dead:
        assert f"Removing {name}" in caplog.text


@pytest.mark.parametrize("state", ["partial", "replaced"])
def test_a_whole_checkpoint_that_was_hidden_gets_its_name_back(state, trainer, tmp_path, caplog):
    """The save died after its manifest, or between the two renames of a replacement."""
    output = tmp_path / "run"
    trainer(*KEEP_ALL, "--steps", "6").train()
    before = contents_of(output / "checkpoint-6")
    (output / "checkpoint-6").rename(output / f".checkpoint-6.0123abcd.{state}")
    assert Path(get_last_checkpoint(output)).name != "checkpoint-6"
    resumed = trainer(*KEEP_ALL, "--steps", "6")
    resumed.train(resume_from_checkpoint=True)
    assert "Restoring checkpoint-6" in caplog.text
    assert f"resuming from {output / 'checkpoint-6'}" in caplog.text
    assert contents_of(output / "checkpoint-6") == before


def test_of_two_that_were_hidden_the_new_one_gets_the_name(trainer, tmp_path):
    output = tmp_path / "run"
    trainer(*KEEP_ALL, "--steps", "3").train()
    (output / "checkpoint-3").rename(output / ".checkpoint-3.0123abcd.replaced")
    trainer(*KEEP_ALL, "--steps", "3", "--set", "seed=4", output=tmp_path / "new").train()
    new = contents_of(tmp_path / "new" / "checkpoint-3")
    (tmp_path / "new" / "checkpoint-3").rename(output / ".checkpoint-3.4567abcd.partial")
    store.remove_leftovers(output)
    assert contents_of(output / "checkpoint-3") == new
    assert list(output.glob(".*")) == []


# -- the best model


def test_a_best_model_that_is_gone_is_said_when_the_run_goes_on(trainer, tmp_path, caplog):
    first = trainer(*KEEP_ALL, "--steps", "9")
    first.train()
    store.delete(Path(first.state.best_model_checkpoint))
    resumed = trainer(*KEEP_ALL)
    resumed.train(resume_from_checkpoint=True)
    assert f"The best checkpoint so far, {first.state.best_model_checkpoint}, is missing" in caplog.text
    assert Path(resumed.state.best_model_checkpoint).is_dir()
    assert resumed.state.best_global_step > 9


def test_a_best_model_that_is_damaged_is_an_error_and_not_loaded(trainer, tmp_path):
    class Damages(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 22:
                path = Path(state.best_model_checkpoint) / "model.safetensors"
                path.write_bytes(path.read_bytes()[:-1] + b"x")

    with pytest.raises(CheckpointError, match="model.safetensors has changed.*in memory and in .*checkpoint-22"):
        trainer(*KEEP_ALL, callbacks=[Damages()]).train()


# -- shards and ties


def test_weights_in_several_files(trainer, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(capture, "SHARD_BYTES", 200)
    output, many = tmp_path / "run", ("--set", "save_steps=9", *KEEP_ALL)
    trainer(*many, output=tmp_path / "first").train()
    folder = tmp_path / "first" / "checkpoint-9"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("model-*.safetensors"))
    assert len(files) > 2
    assert sorted(set(index["weight_map"].values())) == files
    whole = load_file(finished / "checkpoint-9" / "model.safetensors")
    parts = {name: value for file in files for name, value in load_file(folder / file).items()}
    assert index["weight_map"].keys() == parts.keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    trainer(*many).train(resume_from_checkpoint=folder)
    last = load_file(finished / "checkpoint-22" / "model.safetensors")
    names = sorted((output / "checkpoint-22").glob("model-*.safetensors"))
    assert {k: v.tobytes() for f in names for k, v in load_file(f).items()} == {
        name: value.tobytes() for name, value in last.items()
    }


def test_tied_weights_are_stored_once_and_tied_again(trainer, tmp_path):
    torch = pytest.importorskip("torch")

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(23, 12)
            self.decode = torch.nn.Linear(12, 23, bias=False)
            self.decode.weight = self.embed.weight

        def forward(self, input_ids, labels):
            logits = self.decode(self.embed(input_ids).mean(1))
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    def train(steps, resume=None):
        trained = trainer(*KEEP_ALL, "--steps", steps, "--set", "load_best_model_at_end=false")
        torch.manual_seed(0)
        trained = type(trained)(
            Tied(), trained.args, trained.data_collator, trained.train_dataset, trained.eval_dataset
        )
        trained.train(resume_from_checkpoint=resume)
        return trained

    train(6)
    with safe_open(tmp_path / "run" / "checkpoint-6" / "model.safetensors", framework="np") as f:
        assert list(f.keys()) == ["embed.weight"]
        assert json.loads(f.metadata()["tied"]) == {"decode.weight": "embed.weight"}
    resumed = train(9, resume=True)
    assert resumed.model.decode.weight is resumed.model.embed.weight
    assert resumed.state.global_step == 9
