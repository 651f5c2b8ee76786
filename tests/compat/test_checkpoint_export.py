"""`oneloop checkpoints DIR export`: from what it writes, transformers' Trainer and a script with torch resume."""

import json
import logging
import random
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import oneloop  # noqa: E402
from oneloop.checkpoint import store  # noqa: E402
from oneloop.cli.main import main as command  # noqa: E402
from oneloop.compat.checkpoint_export import export  # noqa: E402
from oneloop.errors import ArgumentError, CheckpointError  # noqa: E402
from tests.takeover import back, common  # noqa: E402

SAME = 1e-6


def run(folder, model=None, rows=common.BATCH, **given):
    args = oneloop.TrainingArguments(
        output_dir=str(folder),
        device="cpu",
        per_device_train_batch_size=common.BATCH,
        **common.SHARED | given,
    )
    trainer = oneloop.Trainer(model or common.model(), args, train_dataset=common.rows(rows))
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 40 steps, with a checkpoint after 20."""
    return run(tmp_path_factory.mktemp("run") / "out")


@pytest.fixture
def saved(whole, tmp_path):
    return shutil.copytree(f"{whole.args.output_dir}/checkpoint-20", tmp_path / "out" / "checkpoint-20")


def furthest(found, trainer):
    return max(abs(a - b) for a, b in zip(found, common.losses(trainer), strict=True))


def test_transformers_continues(whole, saved, tmp_path, capsys):
    assert command(["checkpoints", str(saved), "export", "--to", "transformers"]) == 0
    text = capsys.readouterr().out
    assert "checkpoint-20.transformers: step 20, for transformers" in text
    assert "has: weights, state of AdamW, schedule, step and log history, random states of 1 process(es)" in text
    losses, model = back.by_transformers(tmp_path, saved.with_name("checkpoint-20.transformers"))
    assert len(losses) == 40 and furthest(losses, whole) <= SAME
    for name, value in whole.model.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-6), name


def test_transformers_continues_with_the_next_samples(tmp_path):
    """With its order of the data, here and there, and dropout: the same samples and random numbers."""
    given = {"rows": 8 * common.BATCH, "max_steps": 24, "save_steps": 13, "data_order": "transformers"}
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**common.model().config.to_dict() | {"attention_dropout": 0.3})
    model = transformers.LlamaForCausalLM(config)
    trainer = run(tmp_path / "out", model, **given)
    done = export(tmp_path / "out" / "checkpoint-13", "transformers")
    other = transformers.LlamaForCausalLM(config)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "back"),
        use_cpu=True,
        per_device_train_batch_size=common.BATCH,
        **common.SHARED | {"max_steps": 24, "save_steps": 13},
    )
    there = transformers.Trainer(other, args, train_dataset=common.rows(8 * common.BATCH))
    there.train(resume_from_checkpoint=str(done.path))
    assert furthest(common.losses(there), trainer) <= SAME


def test_a_script_with_torch_continues(whole, saved, tmp_path):
    done = export(saved.parent, "dcp", tmp_path / "parts")
    assert done.path == tmp_path / "parts" and done.step == 20
    assert "random states" in done.left
    losses, _ = back.by_dcp(tmp_path, done.path)
    assert len(losses) == 20
    assert max(abs(a - b) for a, b in zip(losses, common.losses(whole)[20:], strict=True)) <= SAME


@pytest.mark.parametrize("to", ["transformers", "dcp"])
def test_there_and_back(whole, saved, tmp_path, to):
    """What is exported can be taken over again: the same weights, moments, rates and step."""
    done = export(saved, to, tmp_path / "there")
    assert store.problems(done.path) == []
    args = oneloop.TrainingArguments(
        output_dir=str(tmp_path / "again"),
        device="cpu",
        per_device_train_batch_size=common.BATCH,
        **common.SHARED | {"save_strategy": "no"},
    )
    trainer = oneloop.Trainer(common.model(), args, train_dataset=common.rows(common.BATCH))
    trainer.train(resume_from_checkpoint=str(done.path))
    assert common.losses(trainer)[-20:] == common.losses(whole)[-20:]


def test_tied_weights(tmp_path):
    run(tmp_path / "out", common.model("tied"), max_steps=3, save_steps=3)
    done = export(tmp_path / "out", "dcp")
    from torch.distributed.checkpoint import FileSystemReader

    names = FileSystemReader(done.path).read_metadata().state_dict_metadata
    assert {"model.lm_head.weight", "model.model.embed_tokens.weight"} <= set(names)
    done = export(tmp_path / "out", "transformers")
    losses, _ = back.by_transformers(tmp_path, done.path, model="tied", max_steps=5)
    assert len(losses) == 5


def test_the_loss_scale_and_the_averaged_weights(saved):
    stored = json.loads((saved / "run.json").read_text())
    scaler = {"scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 4}
    _rewritten(saved, stored | {"engine": {"skipped": 0, "scaler": scaler | {"deepspeed": {}}}})
    shutil.copy(saved / "model.safetensors", saved / "average.safetensors")
    _relisted(saved, "average.safetensors")
    done = export(saved, "transformers")
    assert torch.load(done.path / "scaler.pt", weights_only=True) == scaler
    assert "loss scale" in done.kept and "the averaged weights" in done.left
    assert not (done.path / "average.safetensors").exists()


def test_random_states_of_each_process(saved):
    """As they were drawn, with a cached normal number of Python's and of NumPy's generator."""
    from oneloop import randomness
    from oneloop.backends.loading import load
    from oneloop.formats.safetensors_io import from_numpy, write

    backend, streams, expected = load("torch"), {}, []
    with randomness.preserve_state(backend):
        for rank in range(2):
            random.seed(rank)
            np.random.seed(rank)
            torch.manual_seed(rank)
            random.gauss(0, 1), np.random.randn()
            state = {name: from_numpy(value) for name, value in randomness.get_state(backend).items()}
            streams |= {f"rank{rank}/{name}" if rank else name: value for name, value in state.items()}
            streams |= {f"rank{rank}/epoch/{name}" if rank else f"epoch/{name}": value for name, value in state.items()}
            expected.append((random.gauss(0, 1), np.random.randn(), random.random(), torch.rand(1).item()))
        stored = json.loads((saved / "run.json").read_text())
        stored["course"]["processes"] = 2
        write(saved / "random.safetensors", streams)
        _relisted(saved, "random.safetensors")
        _rewritten(saved, stored)
        done = export(saved, "transformers")
        args = transformers.TrainingArguments(output_dir=str(saved.parent / "back"), use_cpu=True)
        trainer = transformers.Trainer(common.model(), args, train_dataset=common.rows())
        for rank in range(2):
            shutil.copy(done.path / f"rng_state_{rank}.pth", done.path / "rng_state.pth")
            trainer._load_rng_state(str(done.path))
            assert (random.gauss(0, 1), np.random.randn(), random.random(), torch.rand(1).item()) == expected[rank]


def test_an_adapter(tmp_path):
    pytest.importorskip("peft")
    trainer = run(tmp_path / "out", common.model("lora"), save_steps=20)
    done = export(tmp_path / "out" / "checkpoint-20", "transformers")
    losses, _ = back.by_transformers(tmp_path, done.path, model="lora")
    assert furthest(losses, trainer) <= SAME
    with pytest.raises(CheckpointError, match="an adapter without the weights under it. Export it with --to transf"):
        export(tmp_path / "out" / "checkpoint-20", "dcp")


def images():
    torch.manual_seed(2)
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_channels": 1, "num_labels": 2}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


def test_groups_by_the_rule_of_transformers(tmp_path):
    """It has weight decay for norms that are not LayerNorms by name: the state still gets to its parameters."""
    rows = [{"pixel_values": torch.randn(1, 16, 16), "labels": i % 2} for i in range(8)]
    given = common.SHARED | {"max_steps": 2, "save_steps": 2}
    args = oneloop.TrainingArguments(output_dir=str(tmp_path / "out"), device="cpu", **given)
    trainer = oneloop.Trainer(images(), args, train_dataset=rows)
    trainer.train()
    done = export(tmp_path / "out", "transformers")
    assert "the weight decay of resnet.embedder" in done.left[0] and "another rule" in done.left[0]
    args = transformers.TrainingArguments(output_dir=str(tmp_path / "back"), use_cpu=True, **given | {"max_steps": 3})
    there = transformers.Trainer(images(), args, train_dataset=rows)
    there.create_optimizer_and_scheduler(3)
    there._load_optimizer_and_scheduler(str(done.path))
    own = {id(p): name for name, p in there.model.named_parameters()}
    found = {own[id(p)]: state["exp_avg"] for p, state in there.optimizer.state.items()}
    for name, p in trainer.model.named_parameters():
        assert torch.equal(found[name], trainer.optimizer.state[p]["exp_avg"]), name
    (tmp_path / "out" / "checkpoint-2" / "config.json").unlink()
    _relisted(tmp_path / "out" / "checkpoint-2", "config.json")
    with pytest.raises(CheckpointError, match="would divide the parameters into other groups .* Export with --to dcp"):
        export(tmp_path / "out", "transformers", tmp_path / "again")


# -- what must not work


def test_refusals(saved, tmp_path, capsys):
    assert command(["checkpoints", str(saved), "export"]) == 2
    assert "export needs --to transformers or --to dcp" in capsys.readouterr().err
    assert command(["checkpoints", str(saved), "--to", "dcp"]) == 2
    assert "--to is an option of export" in capsys.readouterr().err
    (tmp_path / "taken").mkdir()
    with pytest.raises(ArgumentError, match="taken exists. Remove it, or name another place with --output"):
        export(saved, "dcp", tmp_path / "taken")
    done = export(saved, "transformers")
    with pytest.raises(CheckpointError, match="was written by another trainer"):
        export(done.path, "dcp")
    data = bytearray((saved / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (saved / "optimizer.safetensors").write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="optimizer.safetensors has changed since it was written"):
        export(saved, "dcp")
    (saved / "optimizer.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="incomplete or corrupt: optimizer.safetensors has 1 bytes"):
        export(saved, "dcp")
    with pytest.raises(CheckpointError, match="has no complete checkpoint of oneloop"):
        export(saved.parent, "dcp")
    assert sorted(f.name for f in saved.parent.iterdir()) == ["checkpoint-20", "checkpoint-20.transformers"]


def test_other_optimizers_schedules_and_frameworks(tmp_path):
    run(tmp_path / "a", optim="muon", max_steps=2, save_steps=2)
    with pytest.raises(CheckpointError, match="state of .*, which is exported only for AdamW, Adam"):
        export(tmp_path / "a", "dcp")
    given = {"eval_strategy": "no", "max_steps": 2, "save_steps": 2}
    run(tmp_path / "b", lr_scheduler_type="constant", **given)
    path = tmp_path / "b" / "checkpoint-2"
    stored = json.loads((path / "run.json").read_text())
    _rewritten(path, stored | {"scheduler": None})
    with pytest.raises(CheckpointError, match="reads an optimizer only with a schedule. Export it with --to dcp"):
        export(path, "transformers")
    assert "the schedule, which is not a function of the step" in export(path, "dcp").left
    _rewritten(path, stored | {"framework": "paddle"})
    with pytest.raises(CheckpointError, match="checkpoint of paddle, and transformers reads states of PyTorch"):
        export(path, "transformers")


def test_a_failed_export_leaves_nothing(saved, monkeypatch, caplog):
    from oneloop.backends.torch import torch_files

    def full(tree, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch_files, "save_parts", full)
    with caplog.at_level(logging.ERROR):
        assert command(["checkpoints", str(saved), "export", "--to", "dcp"]) == 2
    assert [f.name for f in saved.parent.iterdir()] == ["checkpoint-20"]


def _rewritten(path, run):
    (path / "run.json").write_text(json.dumps(run))
    _relisted(path, "run.json")


def _relisted(path, name):
    """The manifest with a file as it is now."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"].pop(name, None)
    if (path / name).exists():
        manifest["files"][name] = store.file_facts(path / name)
    (path / "manifest.json").write_text(json.dumps(manifest))
