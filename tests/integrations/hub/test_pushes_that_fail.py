"""Pushes that fail are tried again at the end, and a push holds the files as they were when it was started."""

import json
import os
import subprocess
import sys

import pytest

from oneloop import Trainer
from oneloop.integrations.hub import uploads
from tests.backends.support import rows
from tests.checkpoint.children import ROOT, environment
from tests.integrations.hub.stand_in import serving

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(monkeypatch):
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def refuse(hub, monkeypatch, words):
    """Commits whose message has these words are refused."""
    commit = hub.commit

    def choosy(repository, revision, body):
        message = json.loads(body.decode().splitlines()[0])["value"]["summary"]
        return (403, {"error": "no"}) if words in message else commit(repository, revision, body)

    monkeypatch.setattr(hub, "commit", choosy)


@pytest.mark.parametrize(
    ("words", "arrived"),
    [
        ("step 4", ["Training in progress, step 2", "End of training"]),
        ("step 2", ["Training in progress, step 4"]),
        ("progress", ["End of training"]),
        ("nothing", ["Training in progress, step 2", "Training in progress, step 4"]),
    ],
)
@pytest.mark.once_on("mindspore")
def test_the_end_of_training_pushes_what_has_not_arrived(
    backend, arguments, hub, monkeypatch, tmp_path, words, arrived
):
    refuse(hub, monkeypatch, words)
    args = arguments(
        push_to_hub=True,
        hub_model_id="me/model",
        hub_token="hf_token",
        hub_always_push=True,
        per_device_train_batch_size=4,
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
    )
    Trainer(backend.classifier(), args, None, rows(16)).train()
    assert [commit.message for commit in hub.commits] == arrived
    assert hub.tree()["model.safetensors"] == (tmp_path / "out" / "checkpoint-4" / "model.safetensors").read_bytes()
    assert list((tmp_path / "out").glob(".pushes/*")) == []


def test_a_snapshot_does_not_change_with_its_files(tmp_path):
    """Weights are replaced and never written to, so a second name is enough; other files may grow."""
    weights, log = tmp_path / "model.safetensors", tmp_path / "log.jsonl"
    weights.write_bytes(b"weights")
    log.write_text("one line\n")
    stage = uploads.snapshot(tmp_path, [(weights, "model.safetensors"), (log, "logs/log.jsonl")])
    assert os.path.samefile(weights, stage / "model.safetensors")
    with open(log, "a") as f:
        f.write("another\n")
    new = tmp_path / "new"
    new.write_bytes(b"other weights")
    new.replace(weights)
    assert (stage / "model.safetensors").read_bytes() == b"weights"
    assert (stage / "logs" / "log.jsonl").read_text() == "one line\n"


def test_a_disk_without_links_gets_copies(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", link)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    stage = uploads.snapshot(tmp_path, [(tmp_path / "model.safetensors", "model.safetensors")])
    assert (stage / "model.safetensors").read_bytes() == b"weights"


def test_what_the_pushes_of_a_dead_run_left_is_cleared_at_the_next_start(backend, arguments, hub, tmp_path):
    left = tmp_path / "out" / uploads.STAGE / "0123abcd"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half of it")
    args = arguments(push_to_hub=True, hub_model_id="me/model", hub_token="hf_token")
    Trainer(backend.classifier(), args, None, rows(16))
    assert not left.exists()


PUSHES = """
import sys
from pathlib import Path
from oneloop.integrations.hub import uploads
folder = Path(sys.argv[1])
stage = uploads.snapshot(folder, [(folder / "model.safetensors", "model.safetensors")])
print(stage.name, flush=True)
sys.stdin.read()
"""


def test_the_pushes_of_a_live_run_are_left_when_another_trainer_is_built(backend, arguments, hub, tmp_path):
    """Those of another process, and of this one."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "model.safetensors").write_bytes(b"weights")
    own = uploads.snapshot(output, [(output / "model.safetensors", "model.safetensors")])
    process = subprocess.Popen(
        [sys.executable, "-c", PUSHES, str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    theirs = process.stdout.readline().strip()
    args = arguments(push_to_hub=True, hub_model_id="me/model", hub_token="hf_token")
    Trainer(backend.classifier(), args, None, rows(16))
    staged = {path.parent.name: path.read_bytes() for path in (output / uploads.STAGE).rglob("*.safetensors")}
    assert staged == {own.name: b"weights", theirs: b"weights"}
    process.kill()
    process.wait()
    uploads.discard(own)
    Trainer(backend.classifier(), args, None, rows(16))
    assert not (output / uploads.STAGE).exists()
