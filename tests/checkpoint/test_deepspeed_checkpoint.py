"""Runs of transformers' Trainer with checkpoints in DeepSpeed's parts; scripts/takeover has those of the package."""

import json
import os
import random
import shutil

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

from oneloop.backends.torch import external_checkpoint as reader  # noqa: E402
from oneloop.checkpoint import store  # noqa: E402
from oneloop.converters import deepspeed_checkpoint, torch_archive  # noqa: E402
from oneloop.errors import CheckpointError  # noqa: E402
from tests.backends.tiny_bert import classifier as bert  # noqa: E402
from tests.checkpoint import zero_parts  # noqa: E402
from tests.checkpoint.test_transformers_checkpoint import (  # noqa: E402
    SAVED,
    STEPS,
    StopAtOnce,
    moments,
    resume,
    written,  # noqa: F401
)

LAYOUTS = [(1, 2), (2, 1), (2, 3), (3, 1), (3, 2), (3, 3)]


def named_groups():
    """As transformers 5 has them."""
    names = [name for name, _ in bert().named_parameters()]
    still = {name for name in names if "bias" in name or "LayerNorm" in name}
    return [[n for n in names if n not in still], [n for n in names if n in still]]


@pytest.fixture
def whole(written, tmp_path):  # noqa: F811
    target = tmp_path / "whole" / f"checkpoint-{SAVED}"
    shutil.copytree(written[0] / target.name, target)
    return target


@pytest.fixture
def divided(whole, tmp_path):
    """Makes the same checkpoint in parts."""

    def make(stage=2, processes=2, **given):
        target = tmp_path / f"stage{stage}-{processes}" / whole.name
        shutil.rmtree(target.parent, ignore_errors=True)
        shutil.copytree(whole, target)
        zero_parts.divide(target, named_groups(), stage, processes, **given)
        return target

    return make


def tag(path):
    return path / "global_step6"


@pytest.mark.parametrize(("stage", "processes"), LAYOUTS)
def test_the_state_is_that_of_the_whole_files(whole, divided, stage, processes):
    expected = resume(whole, callbacks=[StopAtOnce()])
    path = divided(stage, processes)
    assert store.problems(path) == []
    trainer = resume(path, callbacks=[StopAtOnce()])
    assert trainer.state.global_step == SAVED
    assert moments(trainer.optimizer, trainer.model) == moments(expected.optimizer, expected.model)
    own, other = trainer.model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)
    options = [{k: v for k, v in group.items() if k != "params"} for group in trainer.optimizer.param_groups]
    assert options == [{k: v for k, v in g.items() if k != "params"} for g in expected.optimizer.param_groups]
    assert trainer.lr_scheduler.state_dict() == expected.lr_scheduler.state_dict()


def test_the_run_ends_as_from_whole_files(whole, divided):
    expected, trainer = resume(whole), resume(divided(3, 3))
    assert trainer.state.global_step == STEPS
    own, other = trainer.model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_one_warning_says_how_it_was_divided(divided, caplog):
    resume(divided(3, 2), callbacks=[StopAtOnce()])
    (text,) = [r.getMessage() for r in caplog.records if r.name == "oneloop.checkpoint.from_other_trainers"]
    assert f"transformers {transformers.__version__} (DeepSpeed ZeRO stage 3, 2 processes)" in text
    assert "by the rule of: the names in the file" in text


def test_a_box_is_read_without_the_rest(divided):
    """Of a process whose model is divided."""
    for stage, processes in LAYOUTS:
        state = deepspeed_checkpoint.opened(divided(stage, processes))
        for name, tensor in state.weights.items():
            value = tensor.whole()
            assert value.shape == tensor.shape
            for first in range(0, tensor.shape[0] + 1, 3):
                box = (slice(first, tensor.shape[0]), *(slice(n // 2, n) for n in tensor.shape[1:]))
                assert (tensor.box(box) == value[box]).all(), name


def test_the_loss_scale(divided):
    found = reader.scaler_state(divided(2, 2, scaler=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.load_state_dict(found)
    assert scaler.get_scale() == 1024.0
    assert found["_growth_tracker"] == 6 - 2 - 1 and found["growth_interval"] == 3 or found["_growth_tracker"] == 0
    assert reader.scaler_state(divided(2, 2)) is None


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_weights(divided, stage, whole, tmp_path):
    """They are not in the optimizer's part."""
    frozen = [n for n in named_groups()[0] if "word_embeddings" in n]
    data = torch.load(whole / "optimizer.pt", weights_only=True)
    place = named_groups()[0].index(frozen[0])
    gone = data["param_groups"][0]["params"].pop(place)
    del data["state"][gone]
    torch.save(data, whole / "optimizer.pt")
    target = tmp_path / "frozen" / whole.name
    shutil.copytree(whole, target)
    names = [[n for n in group if n not in frozen] for group in named_groups()]
    zero_parts.divide(target, names, stage, 2, frozen=frozen)
    model = bert()
    model.get_parameter(frozen[0]).requires_grad = False
    with torch.no_grad():
        model.get_parameter(frozen[0]).zero_()
    trainer = resume(target, model=model, callbacks=[StopAtOnce()])
    from safetensors.torch import load_file

    assert torch.equal(trainer.model.get_parameter(frozen[0]), load_file(whole / "model.safetensors")[frozen[0]])
    assert len(trainer.optimizer.state) == len(list(model.parameters())) - 1


def test_names_decide_and_not_the_order(divided):
    """A model whose parameters come in another order has the same names."""
    path = divided(2, 2)
    state = deepspeed_checkpoint.opened(path)
    model = bert()
    swapped = torch.nn.Module()
    for name, child in reversed(list(model.named_children())):
        swapped.add_module(name, child)
    optimizer = torch.optim.AdamW(swapped.parameters(), lr=0.1)
    loaded = reader.load_optimizer(optimizer, swapped, path)
    assert loaded.rule == "the names in the file"
    for name, p in swapped.named_parameters():
        assert (optimizer.state[p]["exp_avg"].numpy() == state.states[name]["exp_avg"].whole()).all()


# -- what must not work


def test_a_missing_part_is_named(divided):
    path = divided(3, 3)
    (tag(path) / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="no part of process 1: zero_pp_rank_1_mp_rank_00_optim_states.pt"):
        resume(path)
    path = divided(3, 3)
    (tag(path) / "zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match=r"was written by 3 process\(es\), but has the parts of 2"):
        resume(path)
    path = divided(3, 2)
    (tag(path) / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="has no zero_pp_rank_1_mp_rank_00_model_states.pt"):
        resume(path)
    path = divided(2, 2)
    shutil.rmtree(tag(path))
    with pytest.raises(CheckpointError, match="global_step6 is missing"):
        resume(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("layer_01-model_00-model_states.pt", "pipeline, expert or tensor parallelism"),
        ("zero_pp_rank_0_mp_rank_01_optim_states.pt", "pipeline, expert or tensor parallelism"),
        ("expp_rank_0_mp_rank_00_optim_states.pt", "pipeline, expert or tensor parallelism"),
    ],
)
def test_other_divisions_are_refused(divided, name, words):
    path = divided(2, 2)
    (tag(path) / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=words):
        resume(path)


def test_stage_0_is_refused(divided):
    path = divided(2, 1)
    (tag(path) / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="ZeRO stage 0"):
        resume(path)


@pytest.mark.parametrize("named", ["../other", "/etc", "..", "", "a/b", "\0"])
def test_latest_stays_in_the_checkpoint(divided, named):
    path = divided(2, 2)
    (path / "latest").write_text(named)
    with pytest.raises(CheckpointError, match="latest does not name a folder of the checkpoint"):
        resume(path)


def test_without_latest_the_last_step_is_read(divided):
    path = divided(2, 2)
    (path / "latest").unlink()
    (path / "global_step4").mkdir()
    assert deepspeed_checkpoint.folder(path) == tag(path)


def test_links_out_of_it_are_not_read(divided, tmp_path):
    path = divided(2, 2)
    file = tag(path) / "mp_rank_00_model_states.pt"
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link to a file outside of the checkpoint"):
        resume(path)
    assert "is a link" in deepspeed_checkpoint.problems(path)[0]


def test_a_model_of_another_shape(divided):
    model = bert()
    model.classifier = torch.nn.Linear(8, 5)
    with pytest.raises(CheckpointError, match="classifier.weight has shape .2, 8., the model expects .5, 8."):
        resume(divided(3, 2), model=model)


def test_a_flipped_bit_is_seen(divided):
    path = divided(2, 2)
    file = tag(path) / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    tensor = deepspeed_checkpoint.opened(path).states["classifier.bias"]["exp_avg"]
    place = tensor.pieces[0].source.start
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="has changed since it was written"):
        resume(path)


class Touch:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_of_a_file_is_executed(divided, tmp_path):
    """What does not matter may be anything, and is not made; what matters has to be plain."""
    path, trap = divided(2, 2), tmp_path / "executed"
    file = tag(path) / "mp_rank_00_model_states.pt"
    with zero_parts.package():
        content = torch.load(file, weights_only=False)
        torch.save(content | {"client": Touch(trap), "args": {"of": Touch(trap)}}, file)
        assert resume(path, callbacks=[StopAtOnce()]).state.global_step == SAVED
        torch.save(content | {"param_shapes": Touch(trap)}, file)
        with pytest.raises(CheckpointError, match="param_shapes"):
            resume(path)
    assert not trap.exists()


def test_changed_bytes_are_an_error_or_read(divided):
    """Changes in the pickle of a part, whose checksum is not asked: a CheckpointError, or plain values."""
    path = divided(3, 2)
    file = tag(path) / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    whole, draw, read = file.read_bytes(), random.Random(3), 0
    end = whole.index(b"PK\x03\x04", 100)
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(40, end)] = draw.randrange(256)
        file.write_bytes(bytes(changed))
        try:
            state = deepspeed_checkpoint._read.__wrapped__(
                tag(path), tuple((f.name, 0, 0) for f in sorted(tag(path).iterdir()))
            )[0]
            for tensor in state.weights.values():
                tensor.whole()
            read += 1
        except CheckpointError:
            pass
    assert read < 300


def test_a_truncated_part_is_an_error_at_every_place(divided):
    path = divided(2, 2)
    file = tag(path) / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    whole = file.read_bytes()
    for length in range(0, len(whole), 301):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            torch_archive.read(file)
    assert "zero_pp_rank_1" in deepspeed_checkpoint.problems(path)[0]


def test_the_listing_knows_them(divided, capsys):
    from oneloop.cli.main import main

    path = divided(3, 2)
    assert main(["checkpoints", str(path.parent), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (entry["writer"], entry["state"], entry["step"]) == ("transformers", "foreign", 6)
