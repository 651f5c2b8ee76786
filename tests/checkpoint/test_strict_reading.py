"""Checkpoints that cannot be those of the run, although their checksums are right: a CheckpointError that says why."""

import json
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from oneloop.checkpoint import store
from oneloop.errors import CheckpointError
from oneloop.formats import links, reading, safetensors_io, structure
from oneloop.formats.safetensors_io import Raw, from_numpy
from tests.backends.support import available, same_bytes
from tests.checkpoint.mutations import LAST, SAVED, build, reseal, save

OPTIMIZER, RANDOM, MODEL = "optimizer.safetensors", "random.safetensors", "model.safetensors"


@pytest.fixture(scope="module", params=available(), ids=lambda kit: kit.name)
def saved(request, tmp_path_factory):
    """(kit, a checkpoint of two steps, the weights after four steps)"""
    output = tmp_path_factory.mktemp("saved") / "run"
    checkpoint = save(request.param, output)
    whole = build(request.param, output.with_name("whole"))
    whole.train()
    return request.param, checkpoint, request.param.weights(whole.model)


@pytest.fixture
def kit(saved):
    return saved[0]


@pytest.fixture
def checkpoint(saved, tmp_path):
    return shutil.copytree(saved[1], tmp_path / "run" / f"checkpoint-{SAVED}")


def resume(kit, checkpoint, wanted=None, **given):
    trainer = build(kit, checkpoint.parent, **given)
    trainer.train(resume_from_checkpoint=str(checkpoint) if wanted is None else wanted)
    return trainer


def edit(path, change):
    """Change what is in a JSON file, and correct the manifest."""
    value = json.loads(path.read_text())
    value = change(value) or value
    path.write_text(json.dumps(value))
    reseal(path.parent)


def edit_tensors(path, change):
    tensors, metadata = dict(safetensors_io.read(path)), safetensors_io.read_metadata(path)
    tensors = {name: Raw(raw.dtype, raw.shape, bytes(raw.data)) for name, raw in tensors.items()}
    change(tensors)
    safetensors_io.write(path, tensors, metadata)
    reseal(path.parent)


def moments(tensors):
    """Names of states that have the shape of a matrix."""
    return sorted(name for name, raw in tensors.items() if len(raw.shape) == 2)


def test_an_untouched_copy_resumes_to_the_same_weights(saved, checkpoint):
    kit, _, whole = saved
    reseal(checkpoint)
    trainer = resume(kit, checkpoint)
    assert trainer.state.global_step == LAST and same_bytes(kit.weights(trainer.model), whole)


# -- the optimizer


def larger(raw):
    shape = (raw.shape[0] + 1, *raw.shape[1:])
    return Raw(raw.dtype, shape, bytes(int(np.prod(shape)) * len(raw.data) // int(np.prod(raw.shape))))


RESHAPED = {
    "longer": larger,
    "shorter": lambda raw: Raw(raw.dtype, (1,), bytes(raw.data)[: len(raw.data) // int(np.prod(raw.shape))]),
    "turned": lambda raw: Raw(raw.dtype, raw.shape[::-1], raw.data),
    "empty": lambda raw: Raw(raw.dtype, (0,), b""),
    "integers": lambda raw: Raw("I32", raw.shape, raw.data),
}


@pytest.mark.parametrize("how", RESHAPED)
def test_moments_of_another_shape_or_type(kit, checkpoint, how):
    """The kernel of the default AdamW does not check them: this was a segmentation fault."""

    def change(tensors):
        name = moments(tensors)[0]
        tensors[name] = RESHAPED[how](tensors[name])

    edit_tensors(checkpoint / OPTIMIZER, change)
    with pytest.raises(CheckpointError, match=r"the optimizer state in .* does not fit this run: .*, expected .*"):
        resume(kit, checkpoint)


def test_one_moment_is_missing(kit, checkpoint):
    edit_tensors(checkpoint / OPTIMIZER, lambda tensors: tensors.pop(moments(tensors)[0]))
    with pytest.raises(CheckpointError, match="optimizer|optim"):
        resume(kit, checkpoint)


def test_all_moments_of_a_parameter_are_missing(kit, checkpoint):
    def change(tensors):
        owner = moments(tensors)[0].rsplit(":", 1)[0]
        for name in [name for name in tensors if name.startswith(f"{owner}:")]:
            del tensors[name]

    edit_tensors(checkpoint / OPTIMIZER, change)
    with pytest.raises(
        CheckpointError, match=r"the optimizer state in .* (is incomplete: there is none for|is not that)"
    ):
        resume(kit, checkpoint)


def test_no_optimizer_file_in_the_manifest(kit, checkpoint):
    (checkpoint / OPTIMIZER).unlink()
    edit(checkpoint / "manifest.json", lambda manifest: manifest["files"].pop(OPTIMIZER) and None)
    with pytest.raises(CheckpointError, match=r"run.json describes an optimizer, but manifest.json does not list"):
        resume(kit, checkpoint)


@pytest.mark.parametrize("count", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_count_of_updates_that_cannot_be(kit, checkpoint, count):
    names = [name for name in safetensors_io.read(checkpoint / OPTIMIZER) if name.endswith(":step")]
    if not names:
        pytest.skip("Paddle's AdamW keeps powers of the betas instead")
    edit_tensors(checkpoint / OPTIMIZER, lambda t: t.update({names[0]: from_numpy(np.array(count, np.float64))}))
    with pytest.raises(CheckpointError, match="expected a number of updates|does not fit"):
        resume(kit, checkpoint)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": "fast"},
        {"lr": None},
        {"lr": -1.0},
        {"lr": float("inf")},
        {"weight_decay": [1]},
        {"betas": 3},
        {"eps": {}},
        {"maximize": None},
        {"fused": "yes"},
        {"beta2": 2**64},
        {"betas": [0.9, 2**64]},
    ],
    ids=str,
)
def test_options_of_another_kind(kit, checkpoint, change):
    group = json.loads((checkpoint / "run.json").read_text())["optimizer"]["groups"][0]
    if not change.keys() <= group.keys():
        pytest.skip("the framework's groups have no such option")
    edit(checkpoint / "run.json", lambda run: run["optimizer"]["groups"][0].update(change))
    with pytest.raises(CheckpointError, match=f"a parameter group of the optimizer in .*{next(iter(change))}"):
        resume(kit, checkpoint)


def test_another_optimizer(kit, checkpoint):
    with pytest.raises(CheckpointError, match=r"is that of AdamW, but this run's optimizer is SGD|Momentum. Set optim"):
        resume(kit, checkpoint, optim="sgd")


@pytest.mark.slow
@pytest.mark.parametrize("kit", [kit for kit in available() if kit.name == "torch"], ids=lambda kit: kit.name)
def test_every_pair_of_optimizers(kit, tmp_path):
    names = ("adamw_torch", "sgd", "adagrad", "rmsprop", "adafactor", "adamw_anyprecision")
    for first in names:
        checkpoint = save(kit, tmp_path / first, optim=first)
        for second in names:
            if second == first:
                assert resume(kit, checkpoint, optim=second).state.global_step == LAST
                continue
            with pytest.raises(CheckpointError, match="but this run's optimizer is"):
                resume(kit, checkpoint, optim=second)


def test_parameters_without_a_gradient_are_no_gap(kit, tmp_path):
    """A layer that the loss does not depend on has no state; the checkpoint notes that."""
    checkpoint = save(kit, tmp_path / "run", optim="sgd")
    noted = json.loads((checkpoint / "run.json").read_text())["optimizer"].get("stateless")
    trainer = resume(kit, checkpoint, optim="sgd")
    assert trainer.state.global_step == LAST
    assert noted is True or kit.name == "mindspore", "SGD without momentum keeps no state"


# -- names and paths


@pytest.mark.parametrize(
    "name", ["../../model.safetensors", "/tmp/model.safetensors", "sub/model.safetensors", "..", ""]
)
def test_an_index_that_leads_elsewhere(kit, checkpoint, name, tmp_path):
    shutil.copy(checkpoint / MODEL, tmp_path / MODEL)
    index = checkpoint / f"{MODEL}.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(safetensors_io.read(checkpoint / MODEL), name)}))
    edit(checkpoint / "manifest.json", lambda m: m["files"].update({index.name: {"bytes": 0, "sha256": ""}}))
    with pytest.raises(CheckpointError, match="is not in its directory|cannot be read"):
        resume(kit, checkpoint)


def zeros(path, target):
    raws = {name: Raw(raw.dtype, raw.shape, bytes(len(raw.data))) for name, raw in safetensors_io.read(path).items()}
    safetensors_io.write(target, raws, safetensors_io.read_metadata(path))
    return raws


def test_an_index_that_the_manifest_does_not_list_is_not_read(saved, checkpoint):
    kit, _, whole = saved
    raws = zeros(checkpoint / MODEL, checkpoint / "model-00001-of-00001.safetensors")
    places = dict.fromkeys(raws, "model-00001-of-00001.safetensors")
    (checkpoint / f"{MODEL}.index.json").write_text(json.dumps({"weight_map": places}))
    trainer = resume(kit, checkpoint)
    assert same_bytes(kit.weights(trainer.model), whole)


def test_files_that_an_override_added_are_kept_and_not_read(saved, checkpoint):
    kit, _, whole = saved
    known = store.fingerprints(checkpoint)
    edit(checkpoint / "manifest.json", lambda manifest: manifest.update(unsealed=True))
    raws = zeros(checkpoint / MODEL, checkpoint / "model-00001-of-00001.safetensors")
    places = dict.fromkeys(raws, "model-00001-of-00001.safetensors")
    (checkpoint / f"{MODEL}.index.json").write_text(json.dumps({"weight_map": places}))
    store.finalize_manifest(checkpoint, known)
    entries = store.read_manifest(checkpoint)["files"]
    assert {name for name, entry in entries.items() if entry.get("added")} == {
        f"{MODEL}.index.json",
        "model-00001-of-00001.safetensors",
    }
    assert store.problems(checkpoint) == []
    trainer = resume(kit, checkpoint)
    assert same_bytes(kit.weights(trainer.model), whole)


def test_an_index_and_its_files_have_the_same_tensors(kit, checkpoint):
    (checkpoint / MODEL).rename(checkpoint / "model-00001-of-00001.safetensors")
    names = sorted(safetensors_io.read(checkpoint / "model-00001-of-00001.safetensors"))
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (checkpoint / f"{MODEL}.index.json").write_text(json.dumps(index))

    def list_them(manifest):
        entry = manifest["files"].pop(MODEL)
        manifest["files"] |= {f"{MODEL}.index.json": entry, "model-00001-of-00001.safetensors": dict(entry)}

    edit(checkpoint / "manifest.json", list_them)
    assert resume(kit, checkpoint).state.global_step == LAST
    edit(checkpoint / f"{MODEL}.index.json", lambda index: index["weight_map"].pop(names[0]) and None)
    with pytest.raises(CheckpointError, match="do not have the same tensors"):
        resume(kit, checkpoint)


def test_a_manifest_without_files(kit, checkpoint):
    edit(checkpoint / "manifest.json", lambda manifest: manifest.update(files={}))
    with pytest.raises(CheckpointError, match=r"manifest.json does not list trainer_state.json"):
        resume(kit, checkpoint)


def test_a_copy_under_another_step_is_not_the_newest(saved, checkpoint, caplog):
    kit, _, whole = saved
    copy = shutil.copytree(checkpoint, checkpoint.with_name("checkpoint-99"))
    with pytest.raises(CheckpointError, match="its name says step 99, but it was saved at step 2"):
        resume(kit, copy)
    assert store.latest(checkpoint.parent).path == checkpoint
    with caplog.at_level(logging.WARNING):
        trainer = resume(kit, checkpoint, wanted=True, log_level="warning")
    assert "Skipping" in caplog.text and "renamed copy" in caplog.text
    assert same_bytes(kit.weights(trainer.model), whole)
    shutil.rmtree(copy)
    kept = checkpoint.rename(checkpoint.with_name("kept"))  # a name without a step is fine
    assert resume(kit, kept).state.global_step == LAST


# -- run.json, trainer_state.json and random.safetensors

OF_RUN = {
    "no optimizer": lambda run: run.pop("optimizer") and None,
    "optimizer is a list": lambda run: run.update(optimizer=[1]),
    "groups without names": lambda run: run["optimizer"]["groups"][0].pop("names") and None,
    "unknown names": lambda run: run["optimizer"]["groups"][0].update(names=["x"]),
    "no position": lambda run: run.pop("position") and None,
    "epoch -5": lambda run: run["position"].update(epoch=-5),
    "epoch is text": lambda run: run["position"].update(epoch="1"),
    "step_in_epoch beyond the run": lambda run: run["position"].update(step_in_epoch=2**50),
    "pending sets anything": lambda run: run["position"].update(pending={"__class__": True}),
    "ranks": lambda run: run["position"].update(ranks=[{"epoch": 3}]),
    "more ranks than processes": lambda run: run["position"].update(ranks=[{"data": None}]),
    "no course": lambda run: run.pop("course") and None,
    "no samples": lambda run: run["course"].update(samples_per_step=0),
    "losses": lambda run: run["losses"].update(total="x"),
    "losses without steps": lambda run: run["losses"].pop("steps") and None,
    "work": lambda run: run["work"].update(tokens=-1),
    "engine": lambda run: run.update(engine=None),
    "skipped": lambda run: run["engine"].update(skipped=1.5),
    "schedule": lambda run: run["scheduler"].update(last_epoch=None),
    "schedule without rates": lambda run: run["scheduler"].update(base_lrs=[]),
    "rates": lambda run: run["scheduler"].update(base_lrs=["a", "b"]),
    "split": lambda run: run.update(split=0),
    "seeded": lambda run: run.update(seeded="eval"),
    "learning_rate": lambda run: run.update(learning_rate=float("inf")),
    "grad_norm": lambda run: run.update(grad_norm=1.0),
    "a list": lambda run: [run],
    "deep": lambda run: run["course"].update(samples=json.loads("[" * 400 + "]" * 400)),
    "a huge number": lambda run: run["work"].update(tokens=10**400),
    "an unknown framework": lambda run: run.update(framework=""),
}
OF_STATE = {
    "global_step -1": lambda state: state.update(global_step=-1),
    "another step": lambda state: state.update(global_step=3),
    "no step": lambda state: state.pop("global_step") and None,
    "epoch -5": lambda state: state.update(epoch=-5),
    "epoch inf": lambda state: state.update(epoch="inf"),
    "history": lambda state: state.update(log_history=3),
    "history of numbers": lambda state: state.update(log_history=[3]),
    "best": lambda state: state.update(best_model_checkpoint=["a"]),
    "max_steps": lambda state: state.update(max_steps="many"),
    "tokens": lambda state: state.update(num_input_tokens_seen=-1),
    "callbacks": lambda state: state.update(stateful_callbacks={"EarlyStoppingCallback": {}}),
    "a method": lambda state: state["stateful_callbacks"]["EarlyStoppingCallback"]["attributes"].update(on_evaluate=1),
    "patience": lambda state: state["stateful_callbacks"]["EarlyStoppingCallback"]["args"].update(
        early_stopping_patience="x"
    ),
    "control": lambda state: state["stateful_callbacks"].update(TrainerControl={"args": {"x": 1}, "attributes": {}}),
    "a list": lambda state: [state],
    "deep": lambda state: state.update(trial_params={"a": json.loads("[" * 400 + "]" * 400)}),
}


@pytest.mark.parametrize(
    ("name", "how"), [("run.json", how) for how in OF_RUN] + [("trainer_state.json", how) for how in OF_STATE]
)
def test_values_that_cannot_be(kit, checkpoint, name, how):
    edit(checkpoint / name, (OF_RUN if name == "run.json" else OF_STATE)[how])
    with pytest.raises(CheckpointError):
        resume(kit, checkpoint)


def replaced(name, array):
    return lambda tensors: tensors.update({name: from_numpy(array)})


OF_STREAMS = {
    "no python": lambda tensors: tensors.pop("python"),
    "no gauss": lambda tensors: tensors.pop("python.gauss"),
    "no stream of the framework": lambda tensors: tensors.pop(
        sorted(n for n in tensors if n[:4] not in ("pyth", "nump"))[0]
    ),
    "short": replaced("python", np.zeros(3, np.uint64)),
    "floats": replaced("python", np.zeros(625, np.float64)),
    "words of 64 bits": replaced("python", np.full(625, 2**60, np.uint64)),
    "position": replaced("numpy.rest", np.array([1e6, 0, 0.0])),  # NumPy would read beyond its array
    "position nan": replaced("numpy.rest", np.array([np.nan, 0, 0.0])),
    "keys": replaced("numpy", np.zeros((2, 312), np.uint32)),
    "framework": lambda tensors: tensors.update(
        {
            n: Raw(r.dtype, (1,), bytes(len(r.data) // r.shape[0]))
            for n, r in tensors.items()
            if n[:4] not in ("pyth", "nump")
        }
    ),
}


@pytest.mark.parametrize("how", OF_STREAMS)
def test_random_states_that_cannot_be(kit, checkpoint, how):
    edit_tensors(checkpoint / RANDOM, OF_STREAMS[how])
    with pytest.raises(CheckpointError):
        resume(kit, checkpoint)


def test_weights_of_another_type(kit, checkpoint):
    def change(tensors):
        name = moments(tensors)[0]
        tensors[name] = Raw("I32", tensors[name].shape, tensors[name].data)

    edit_tensors(checkpoint / MODEL, change)
    with pytest.raises(CheckpointError, match="do not match the model"):
        resume(kit, checkpoint)


# -- files that are no files


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("name", ["manifest.json", "run.json", "trainer_state.json", MODEL, OPTIMIZER, RANDOM])
@pytest.mark.parametrize("what", ["fifo", "zero"])
def test_a_pipe_or_a_device_does_not_hang(tmp_path, name, what, saved, pipe):
    kit, source, _ = saved
    if kit.name != available()[0].name:
        pytest.skip("reads the same files on every framework")
    checkpoint = shutil.copytree(source, tmp_path / "run" / f"checkpoint-{SAVED}")
    (checkpoint / name).unlink()
    (checkpoint / name).symlink_to(pipe if what == "fifo" else "/dev/zero")
    assert store.problems(checkpoint)
    assert get_state_error(checkpoint, name)
    with pytest.raises(CheckpointError):
        resume(kit, checkpoint)


OUTSIDE = "is a link to a file outside of the checkpoint"


@pytest.mark.parametrize("name", ["manifest.json", "run.json", "trainer_state.json", MODEL, OPTIMIZER, RANDOM])
def test_a_link_out_of_a_checkpoint_is_not_read(tmp_path, name, saved):
    """Also if it leads to the right bytes."""
    kit, source, _ = saved
    if kit.name != available()[0].name:
        pytest.skip("reads the same files on every framework")
    checkpoint = shutil.copytree(source, tmp_path / "run" / f"checkpoint-{SAVED}")
    shutil.move(checkpoint / name, tmp_path / "elsewhere")
    (checkpoint / name).symlink_to(tmp_path / "elsewhere")
    assert any(f"{name} {OUTSIDE}" in each for each in store.problems(checkpoint))
    assert any(f"{name} {OUTSIDE}" in each for each in store.problems(checkpoint, contents=False))
    with pytest.raises(CheckpointError, match=OUTSIDE):
        resume(kit, checkpoint)
    with pytest.raises(CheckpointError, match=OUTSIDE):
        structure.CheckpointFiles(checkpoint).has(name)


def test_a_link_within_a_checkpoint_and_one_of_the_cache_of_the_hub(tmp_path, saved):
    kit, source, weights = saved
    repository = tmp_path / "models--a--b"
    checkpoint = shutil.copytree(source, repository / "snapshots" / "0123" / f"checkpoint-{SAVED}")
    (repository / "blobs").mkdir()
    shutil.move(checkpoint / MODEL, repository / "blobs" / "89ab")
    (checkpoint / MODEL).symlink_to(Path("..", "..", "..", "blobs", "89ab"))
    shutil.move(checkpoint / RANDOM, checkpoint / "other")
    (checkpoint / RANDOM).symlink_to("other")
    assert store.problems(checkpoint) == []
    assert same_bytes(kit.weights(resume(kit, checkpoint).model), weights)
    (checkpoint / MODEL).unlink()
    shutil.move(repository / "blobs" / "89ab", tmp_path / "blobs")
    (repository / "blobs" / "89ab").symlink_to(tmp_path / "blobs")
    (checkpoint / MODEL).symlink_to(Path("..", "..", "..", "blobs", "89ab"))
    assert any(OUTSIDE in each for each in store.problems(checkpoint)), "the contents themselves are elsewhere"


def test_a_directory_whose_name_begins_like_the_checkpoint_is_outside(tmp_path):
    for name in ("checkpoint-1", "checkpoint-12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "checkpoint-1" / "link").symlink_to(tmp_path / "checkpoint-12" / "file")
    (tmp_path / "again").symlink_to("checkpoint-1")
    for folder in (tmp_path / "checkpoint-1", tmp_path / "again"):
        assert links.leading_out(folder) == ["link"]


def get_state_error(checkpoint, name):
    """What reading the file itself says."""
    with pytest.raises(CheckpointError) as caught:
        reading.read_bytes(checkpoint / name)
    return "not a regular file" in str(caught.value)


@pytest.mark.parametrize("what", ["fifo", "zero"])
@pytest.mark.parametrize("name", ["log.jsonl", "run.jsonl"])
def test_a_log_that_is_a_pipe_or_a_device(tmp_path, name, what, pipe, caplog):
    kit = available()[0]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(pipe if what == "fifo" else "/dev/zero")
    with caplog.at_level(logging.WARNING):
        trainer = build(kit, tmp_path / "run", log_level="warning")
        trainer.train()
    assert trainer.state.global_step == LAST
    assert "not a regular file" in caplog.text


ODD = [b'{"run": "a", "step": Infinity}', b'{"run": "a", "step": 1e999}', b'{"run": "a", "step": NaN}', b"[" * 100_000]
ODD += [b'{"run": [1], "step": {}}', b"\xff\xfe", b"{", b"3", b'{"run": "a", "step": ' + b"9" * 400 + b"}", b"x" * 70]


def test_odd_lines_do_not_keep_a_run_from_starting(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE", 64)
    kit = available()[0]
    (tmp_path / "run").mkdir()
    good = b'{"run": "earlier", "step": 3, "loss": 1.0}\n'
    (tmp_path / "run" / "log.jsonl").write_bytes(good + b"\n".join(ODD) + b"\n" + good)
    assert build(kit, tmp_path / "run").train().global_step == LAST
    lines = (tmp_path / "run" / "log.jsonl").read_bytes().splitlines(keepends=True)
    assert lines[:2] == [good, good] and json.loads(lines[2])["step"] == 1


# -- the reader


def test_limits_of_json(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" * reading.DEEPEST + "]" * reading.DEEPEST)
    assert reading.read_json(path)
    for text, words in (
        ("[" * (reading.DEEPEST + 1) + "]" * (reading.DEEPEST + 1), "nested more than"),
        ("[" * 200_000, "nested more than"),
        ("{", "not valid JSON"),
        ("1" * 10_000, "not valid JSON"),
    ):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=f"a.json is {words}"):
            reading.read_json(path)
    path.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        reading.read_json(path)
    path.write_text('"' + "a" * 100 + '"')
    with pytest.raises(CheckpointError, match="has 102 bytes; at most 50 are read"):
        reading.read_json(path, limit=50)


def header(table, data=b""):
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = {
    "empty": b"",
    "cut": b"\x08\0",
    "no header": bytes(8) + b"x",
    "longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "a list": header([]),
    "type": header({"a": ENTRY | {"dtype": "F31"}}, bytes(8)),
    "negative": header({"a": ENTRY | {"shape": [-2]}}, bytes(8)),
    "shape": header({"a": ENTRY | {"shape": [3]}}, bytes(8)),
    "huge": header({"a": ENTRY | {"shape": [2**40, 2**40]}}, bytes(8)),
    "gap": header({"a": ENTRY | {"data_offsets": [4, 12]}}, bytes(12)),
    "overlap": header({"a": ENTRY, "b": ENTRY}, bytes(8)),
    "beyond": header({"a": ENTRY}, bytes(4)),
    "rest": header({"a": ENTRY}, bytes(9)),
    "metadata": header({"a": ENTRY, "__metadata__": {"a": 1}}, bytes(8)),
}


@pytest.mark.parametrize("how", HEADERS)
def test_headers_that_cannot_be(tmp_path, how):
    (tmp_path / "a.safetensors").write_bytes(HEADERS[how])
    for read in (safetensors_io.read, safetensors_io.read_header, safetensors_io.read_metadata):
        with pytest.raises(CheckpointError, match=r"a.safetensors"):
            read(tmp_path / "a.safetensors")


def test_a_header_that_can_be(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(header({"a": ENTRY, "__metadata__": {"a": "b"}}, bytes(8)))
    assert safetensors_io.read_header(tmp_path / "a.safetensors") == {"a": ("F32", (2,))}


def test_tied_names_are_names(tmp_path):
    safetensors_io.write(tmp_path / "a.safetensors", {}, {"tied": '{"a": 3}'})
    with pytest.raises(CheckpointError, match="the metadata of a.safetensors is not valid"):
        structure.tied_names(tmp_path / "a.safetensors")


def test_one_module_reads_json():
    """Nothing in the package of checkpoints parses a file around reading.py."""
    found = {
        path.name
        for path in Path(structure.__file__).parent.rglob("*.py")
        if re.search(r"json\.loads?\(", path.read_text(encoding="utf-8"))
    }
    assert found == {"reading.py"}
