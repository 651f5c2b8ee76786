"""What a save that died leaves hidden beside the checkpoints: it gets its name only when every byte of it is right."""

import logging

import pytest

from oneloop import get_last_checkpoint
from oneloop.checkpoint import store
from oneloop.errors import CheckpointError
from tests.backends.support import rows, same_bytes

WEIGHTS = (8).to_bytes(8, "little") + b"{}      "


def write(parent, step, weights=WEIGHTS, run="run"):
    stage = store.open_stage(parent, step)
    (stage / "model.safetensors").write_bytes(weights)
    (stage / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return store.commit(stage, step, run, "save", {}).path


def hide(checkpoint, state, number="0123abcd"):
    """As a save leaves it that dies before its last rename, or a deletion that dies after its first."""
    return checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.{number}.{state}"))


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


DAMAGES = {
    "a bit": lambda folder: flip(folder / "model.safetensors", 23),
    "a bit of the state": lambda folder: flip(folder / "trainer_state.json", 3),
    "its end": lambda folder: (folder / "model.safetensors").write_bytes(WEIGHTS[:-1]),
    "a file": lambda folder: (folder / "trainer_state.json").unlink(),
    "the manifest": lambda folder: (folder / store.MANIFEST).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("state", ["partial", "replaced"])
def test_one_that_is_damaged_never_gets_its_name(tmp_path, caplog, state, damage):
    write(tmp_path, 2)
    hidden = hide(write(tmp_path, 4), state)
    DAMAGES[damage](hidden)
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    store.remove_leftovers(tmp_path)
    assert names(tmp_path) == ["checkpoint-2"] and f"Removing {hidden.name}" in caplog.text


def test_no_bit_of_the_weights_may_differ(tmp_path):
    for bit in range(8 * len(WEIGHTS)):
        flip(hide(write(tmp_path, 4), "partial") / "model.safetensors", bit)
        store.remove_leftovers(tmp_path)
        assert names(tmp_path) == []


def test_when_the_new_one_is_damaged_the_one_it_was_to_replace_comes_back(tmp_path):
    old = hide(write(tmp_path, 4, run="old"), "replaced", "89abcdef")
    new = hide(write(tmp_path, 4, run="new"), "partial")
    assert store.find(tmp_path) == [] and get_last_checkpoint(tmp_path) is None, "neither counts while it is hidden"
    flip(new / "model.safetensors", 0)
    store.remove_leftovers(tmp_path)
    assert names(tmp_path) == ["checkpoint-4"] and not old.exists()
    assert store.latest(tmp_path).run_id == "old" and store.problems(tmp_path / "checkpoint-4") == []


def test_one_that_was_being_deleted_stays_deleted(tmp_path):
    """It may still be whole: its deletion died after it had lost its name."""
    assert store.problems(hide(write(tmp_path, 4), "deleted")) == []
    store.remove_leftovers(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("state", ["partial", "replaced"])
def test_it_takes_no_place_that_is_taken(tmp_path, state):
    hide(write(tmp_path, 4, b"hidden"), state)
    write(tmp_path, 4, b"in its place")
    store.remove_leftovers(tmp_path)
    assert names(tmp_path) == ["checkpoint-4"]
    assert (tmp_path / "checkpoint-4" / "model.safetensors").read_bytes() == b"in its place"


@pytest.mark.parametrize("state", ["partial", "replaced"])
def test_a_run_does_not_go_on_from_it(backend, trained, tmp_path, caplog, state):
    """Its sizes are right, its manifest is whole, and one bit of the weights has changed."""
    run = {"per_device_train_batch_size": 4, "learning_rate": 0.1, "optim": "sgd", "logging_steps": 1}
    run |= {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    first = trained(backend.classifier(), rows(16), **run)
    expected = backend.weights(first.model)
    output = tmp_path / "out"
    hidden = hide(output / "checkpoint-4", state)
    flip(hidden / "model.safetensors", 8 * (hidden / "model.safetensors").stat().st_size - 20)
    caplog.set_level(logging.INFO, logger="oneloop")
    resumed = trained(backend.classifier(seed=1), rows(16), resume=True, **run)
    assert f"resuming from {output / 'checkpoint-2'}" in caplog.text and not hidden.exists()
    assert "Restoring checkpoint-4" not in caplog.text
    assert same_bytes(backend.weights(resumed.model), expected)
    assert store.problems(output / "checkpoint-4") == []


def test_a_damaged_one_that_is_named_is_refused(backend, trained, tmp_path):
    run = {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    trained(backend.classifier(), rows(16), **run)
    copied = (tmp_path / "out" / "checkpoint-1").rename(tmp_path / ".checkpoint-1.0123abcd.partial")
    flip(copied / "model.safetensors", 8 * (copied / "model.safetensors").stat().st_size - 20)
    with pytest.raises(CheckpointError, match="model.safetensors has changed since it was written"):
        trained(backend.classifier(), rows(16), resume=str(copied), **run | {"max_steps": 2})
