"""Runs that transformers' Trainer began and oneloop goes on with."""

import json
import logging
import os
import pickle
import shutil
import zipfile

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from oneloop import Trainer, TrainerCallback, TrainingArguments  # noqa: E402
from oneloop.backends.torch import external_checkpoint as reader  # noqa: E402
from oneloop.checkpoint import store  # noqa: E402
from oneloop.converters import transformers_checkpoint  # noqa: E402
from oneloop.errors import CheckpointError  # noqa: E402
from tests.backends.tiny_bert import classifier as bert  # noqa: E402
from tests.internals import run_id  # noqa: E402

STEPS, SAVED, PER_EPOCH = 16, 6, 4
SHARED = {
    "max_steps": STEPS,
    "learning_rate": 3e-3,
    "warmup_steps": 3,
    "weight_decay": 0.05,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "save_steps": 2,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 11,
}


def rows(count=4 * PER_EPOCH):
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(1, 40, (count, 6), generator=draw)
    return [{"input_ids": row, "labels": int(row[0] > 20)} for row in ids]


class Rates(TrainerCallback):
    """The learning rate and the loss of every step, as the optimizer used them."""

    def __init__(self):
        self.rates = {}

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.rates[state.global_step + 1] = [group["lr"] for group in optimizer.param_groups]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A finished run of transformers' Trainer, and the rates of its steps."""
    folder = tmp_path_factory.mktemp("old") / "out"

    class HFRates(transformers.TrainerCallback):
        rates: dict = {}

        def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
            self.rates[state.global_step + 1] = [group["lr"] for group in optimizer.param_groups]

    args = transformers.TrainingArguments(output_dir=str(folder), use_cpu=True, **SHARED)
    trainer = transformers.Trainer(bert(), args, train_dataset=rows(), callbacks=[HFRates()])
    trainer.train()
    return folder, dict(HFRates.rates), trainer.state.log_history


@pytest.fixture
def old(written, tmp_path):
    """A copy of checkpoint-6 alone, in an output directory of its own."""
    target = tmp_path / "out" / f"checkpoint-{SAVED}"
    shutil.copytree(written[0] / target.name, target)
    return target


def resume(path, output=None, model=None, data=None, callbacks=(), which=None, **given):
    args = TrainingArguments(output_dir=str(output or (path if which else path.parent)), device="cpu", **SHARED | given)
    trainer = Trainer(model or bert(), args, train_dataset=data or rows(), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=str(path) if which is None else which)
    return trainer


class StopAtOnce(TrainerCallback):
    """Leaves the run as it was loaded."""

    def on_train_begin(self, args, state, control, **kwargs):
        control.should_training_stop = True


def moments(optimizer, model):
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{names[id(p)]}:{key}": value.numpy().tobytes()
        for p, state in optimizer.state.items()
        for key, value in state.items()
    }


def moments_by_transformers(path):
    """The same out of the files, by loading them into transformers' own Trainer."""
    args = transformers.TrainingArguments(output_dir=str(path.parent), use_cpu=True, **SHARED)
    trainer = transformers.Trainer(bert(), args, train_dataset=rows())
    trainer.create_optimizer_and_scheduler(STEPS)
    trainer.optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True))
    return moments(trainer.optimizer, trainer.model)


def test_weights_and_moments_come_by_name(old):
    expected = moments_by_transformers(old)
    trainer = resume(old, callbacks=[StopAtOnce()])
    assert trainer.state.global_step == SAVED
    found = moments(trainer.optimizer, trainer.model)
    assert found == expected
    assert len(found) == 3 * len(list(trainer.model.parameters()))
    from safetensors.torch import load_file

    stored = load_file(old / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in trainer.model.state_dict().items())


def test_rates_and_losses_go_on(written, old):
    seen = Rates()
    trainer = resume(old, callbacks=[seen])
    _, rates, history = written
    assert list(seen.rates) == list(range(SAVED + 1, STEPS + 1))
    for step, values in seen.rates.items():
        assert set(values) == set(rates[step])
    assert trainer.state.global_step == STEPS
    ours = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    theirs = {row["step"]: row["loss"] for row in history if "loss" in row}
    assert list(ours) == list(range(1, STEPS + 1))
    assert all(ours[step] == theirs[step] for step in range(1, SAVED + 1))
    # Another order of the data, the same model: whole epochs cost nearly the same.
    last = range(STEPS - PER_EPOCH + 1, STEPS + 1)
    assert sum(ours[i] for i in last) == pytest.approx(sum(theirs[i] for i in last), rel=0.005)


def test_same_batches_give_the_same_weights(tmp_path):
    """With every batch the same, the order of the data is out of the picture: the two trainers agree to the end."""
    folder, same = tmp_path, [rows()[0]] * (4 * PER_EPOCH)
    args = transformers.TrainingArguments(output_dir=str(folder / "same"), use_cpu=True, **SHARED)
    theirs = transformers.Trainer(bert(), args, train_dataset=same)
    theirs.train()
    ours = resume(folder / "same" / "checkpoint-6", output=folder / "new", data=same)
    for (name, mine), other in zip(ours.model.named_parameters(), theirs.model.parameters()):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-7), name


def test_a_link_out_of_it_is_not_read(old, tmp_path):
    shutil.move(old / "optimizer.pt", tmp_path / "elsewhere")
    (old / "optimizer.pt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"optimizer\.pt is a link to a file outside of the checkpoint"):
        resume(old)


def test_one_warning_says_what_to_know(old, caplog):
    with caplog.at_level(logging.WARNING, "oneloop"):
        resume(old, callbacks=[StopAtOnce()])
    (text,) = [r.getMessage() for r in caplog.records if r.name == "oneloop.checkpoint.from_other_trainers"]
    assert f"transformers {transformers.__version__}" in text
    assert "epoch 1 (counted from 0) after step 2 of 4, which is step 6 of the whole run" in text
    assert "up to 8 samples may be repeated, and as many skipped" in text
    assert "The RNGs" in text and "are seeded again with seed=11" in text
    assert "Different" not in text


def test_differences_are_said(old, caplog):
    with caplog.at_level(logging.WARNING, "oneloop"):
        resume(
            old,
            callbacks=[StopAtOnce()],
            max_steps=20,
            learning_rate=1e-2,
            weight_decay=0.05,
            data=rows(4 * PER_EPOCH + 4),
        )
    (text,) = [r.getMessage() for r in caplog.records if r.name == "oneloop.checkpoint.from_other_trainers"]
    assert "max_steps was 16, and is 20" in text
    assert "an epoch had 4 steps, and has 5" in text
    assert "learning_rate was 0.003, and is kept (the arguments have 0.01)" in text


def test_own_checkpoints_follow_and_the_old_ones_stay(written, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(written[0], folder)
    before = {p.name: (p / "optimizer.pt").read_bytes() for p in folder.glob("checkpoint-*")}
    resume(folder / "checkpoint-6", save_total_limit=1)
    own = [c for c in store.find(folder) if c.run_id is not None]
    assert [c.step for c in own] == [STEPS]
    assert store.problems(own[0].path) == []
    for name, content in before.items():
        kept = folder / name
        kept = kept if store.is_external(kept) else folder / f"{name}.transformers"
        assert (kept / "optimizer.pt").read_bytes() == content
    # From now on the newest is oneloop's, and True goes on from it.
    again = resume(folder, max_steps=STEPS + 2, which=True)
    assert again.state.global_step == STEPS + 2
    assert run_id(again) == own[0].run_id


def test_true_takes_the_newest_of_the_old_ones(written, tmp_path, caplog):
    folder = tmp_path / "out"
    shutil.copytree(written[0], folder, ignore=shutil.ignore_patterns("checkpoint-1*"))
    trainer = resume(folder, which=True, callbacks=[StopAtOnce()])
    assert trainer.state.global_step == 8
    (folder / "checkpoint-8" / "optimizer.pt").unlink()
    with caplog.at_level(logging.WARNING, "oneloop"):
        trainer = resume(folder, which=True, callbacks=[StopAtOnce()])
    assert trainer.state.global_step == 6
    assert any("checkpoint-8" in r.getMessage() and "optimizer.pt is missing" in r.getMessage() for r in caplog.records)


def as_of_4(path, extra=None):
    """Make a checkpoint look as transformers 4.25 left it: pickled weights, with buffers that are no more."""
    from safetensors.torch import load_file

    tensors = load_file(path / "model.safetensors")
    tensors["bert.embeddings.position_ids"] = torch.arange(8)[None]
    torch.save(tensors | (extra or {}), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def regroup(path, undecayed, steps_as_numbers=True, weight_decay=0.05):
    """optimizer.pt with groups made by another rule; the state of each parameter is the mean of its name's letters."""
    model = bert()
    names = [name for name, _ in model.named_parameters()]
    shapes = {name: p.shape for name, p in model.named_parameters()}
    order = [[n for n in names if not undecayed(n)], [n for n in names if undecayed(n)]]
    number = {name: i for i, name in enumerate(order[0] + order[1])}
    state = {
        number[n]: {
            "step": 6 if steps_as_numbers else torch.tensor(6.0),
            "exp_avg": torch.full(shapes[n], float(names.index(n))),
            "exp_avg_sq": torch.full(shapes[n], float(names.index(n)) + 0.5),
        }
        for n in names
    }
    option = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "correct_bias": True, "initial_lr": 3e-3}
    groups = [
        option | {"params": [number[n] for n in group], "weight_decay": decay}
        for group, decay in zip(order, (weight_decay, 0.0))
        if group
    ]
    torch.save({"state": state, "param_groups": groups}, path / "optimizer.pt")
    return names


# The rule of each release, as a function of the name, for the model in use here.
RULES = {
    "transformers before 4.5": lambda n: "bias" in n or "LayerNorm.weight" in n,
    "one group": lambda n: False,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_checkpoint_of_4(old, rule):
    as_of_4(old)
    names = regroup(old, RULES[rule])
    trainer = resume(old, callbacks=[StopAtOnce()])
    state = {n: trainer.optimizer.state[p] for n, p in trainer.model.named_parameters()}
    for i, name in enumerate(names):
        assert torch.equal(state[name]["exp_avg"], torch.full_like(state[name]["exp_avg"], float(i))), name
        assert torch.equal(state[name]["exp_avg_sq"], torch.full_like(state[name]["exp_avg_sq"], i + 0.5)), name
        assert state[name]["step"] == 6 and isinstance(state[name]["step"], torch.Tensor)
    assert trainer.optimizer.param_groups[0]["eps"] == 1e-6
    stored = torch.load(old / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(stored[name], value) for name, value in trainer.model.state_dict().items())
    assert resume(old).state.global_step == STEPS


class Odd(nn.Module):
    """Norms that the rules treat differently: one by class and name, one by name, one by nothing but its class."""

    class ScaleNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.weight

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.ln = nn.LayerNorm(4)
        self.q_norm = Odd.ScaleNorm()
        self.post = Odd.ScaleNorm()
        self.my_rmsnorm = Odd.ScaleNorm()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.last = nn.Linear(4, 2)

    def forward(self, x, labels=None):
        x = self.my_rmsnorm(self.post(self.q_norm(self.ln(self.first(x)))))
        logits = self.last(self.frozen(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


ODD_RULES = {
    "transformers 4.53 to 5": ({"q_norm.weight", "my_rmsnorm.weight"}, False),
    "transformers 4.49 to 4.52": ({"my_rmsnorm.weight"}, False),
    "transformers 4.5 to 4.48": (set(), False),
    "transformers 4.5 to 4.48, frozen ones too": (set(), True),
}


@pytest.mark.parametrize("rule", ODD_RULES)
def test_each_rule_is_found_by_sizes_and_shapes(tmp_path, rule):
    also, frozen = ODD_RULES[rule]
    model = Odd()
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad or frozen]
    off = {n for n, _ in named if "bias" in n or n == "ln.weight"} | also
    order = [n for n, _ in named if n not in off] + [n for n, _ in named if n in off]
    marks = {n: float(i + 1) for i, (n, _) in enumerate(named)}
    shapes = {n: p.shape for n, p in named if p.requires_grad}
    state = {
        i: {"step": torch.tensor(3.0), "exp_avg": torch.full(shapes[n], marks[n]), "exp_avg_sq": torch.ones(shapes[n])}
        for i, n in enumerate(order)
        if n in shapes
    }
    cut = len(named) - len(off)
    groups = [{"params": list(range(cut)), "lr": 0.1}, {"params": list(range(cut, len(named))), "lr": 0.1}]
    torch.save({"state": state, "param_groups": groups}, tmp_path / "optimizer.pt")
    optimizer = torch.optim.AdamW([p for _, p in model.named_parameters() if p.requires_grad], lr=0.1)
    loaded = reader.load_optimizer(optimizer, model, tmp_path)
    assert loaded.rule == rule
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert torch.equal(optimizer.state[p]["exp_avg"], torch.full_like(p, marks[name])), name


def test_options_of_the_old_run_stay(old):
    """The old run decayed every weight, and so does this one from here on."""
    regroup(old, lambda n: False)
    trainer = resume(old, callbacks=[StopAtOnce()], weight_decay=0.01)
    assert len(trainer.optimizer.param_groups) == 2
    assert all(g["weight_decay"] == 0.05 and g["eps"] == 1e-6 for g in trainer.optimizer.param_groups)


def test_weight_decay_that_changes_is_told(tmp_path):
    """`post` is a norm to this run and was none to transformers: its group cannot keep both values."""
    model = Odd()
    trainer = Trainer(model, TrainingArguments(str(tmp_path / "new"), weight_decay=0.05, report_to="none"))
    trainer.create_optimizer()
    args = transformers.TrainingArguments(output_dir=str(tmp_path), weight_decay=0.05, use_cpu=True)
    theirs = transformers.Trainer(model, args).create_optimizer()
    torch.save(theirs.state_dict(), tmp_path / "optimizer.pt")
    loaded = reader.load_optimizer(trainer.optimizer, model, tmp_path)
    assert loaded.rule == "transformers 4.53 to 5"
    assert loaded.decay == {"post.weight": (0.05, 0.0)}


def test_sharded_weights(old):
    from safetensors.torch import load_file, save_file

    tensors = load_file(old / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for file, members in parts.items():
        save_file({n: tensors[n] for n in members}, old / file)
    index = {"metadata": {}, "weight_map": {n: file for file, members in parts.items() for n in members}}
    (old / "model.safetensors.index.json").write_text(json.dumps(index))
    (old / "model.safetensors").unlink()
    trainer = resume(old, callbacks=[StopAtOnce()])
    assert all(torch.equal(tensors[name], value) for name, value in trainer.model.state_dict().items())
    (old / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002.safetensors is missing"):
        resume(old)


def test_an_index_that_points_elsewhere_is_refused(old):
    (old / "model.safetensors").rename(old.parent / "stolen.safetensors")
    index = {"weight_map": {"a": "../stolen.safetensors"}}
    (old / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not an index of weight files"):
        resume(old)


def test_a_model_that_transformers_writes_under_older_names(tmp_path):
    torch.manual_seed(1)
    config = transformers.MixtralConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
    )
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path)
    other = transformers.MixtralForCausalLM(config)
    reader.load_weights(other, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))


# -- what must not work


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def pickled_by_hand(path, value):
    """The format of torch before 1.6 starts with a bare pickle."""
    path.write_bytes(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize("write", [lambda value, path: torch.save(value, path), lambda v, p: pickled_by_hand(p, v)])
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "scaler.pt", "pytorch_model.bin"])
def test_a_hostile_file_is_refused_and_not_executed(old, tmp_path, name, write):
    if name == "pytorch_model.bin":
        (old / "model.safetensors").unlink()
    trap = tmp_path / "executed"
    write({"state": {}, "param_groups": [], "last_epoch": 6, "hook": Touch(trap)}, old / name)
    with pytest.raises(CheckpointError) as caught:
        resume(old, fp16=False)
    assert name in str(caught.value)
    assert "it needs posix.mkdir" in str(caught.value)
    assert "weights_only" not in str(caught.value)  # no advice to switch the protection off
    assert not trap.exists()


@pytest.mark.parametrize("name", ["training_args.bin", "rng_state.pth"])
def test_files_that_need_unpickling_are_never_opened(old, tmp_path, name):
    trap = tmp_path / "executed"
    torch.save(Touch(trap), old / name)
    assert resume(old).state.global_step == STEPS
    assert not trap.exists()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "trainer_state.json", "model.safetensors"])
def test_a_missing_file_is_named(old, name):
    (old / name).unlink()
    with pytest.raises(CheckpointError, match="is missing|incomplete or corrupt") as caught:
        resume(old)
    expected = "manifest.json" if name == "trainer_state.json" else name  # without a state it is nobody's checkpoint
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "trainer_state.json", "model.safetensors"])
def test_a_truncated_file_is_named(old, name):
    content = (old / name).read_bytes()
    (old / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="incomplete or corrupt") as caught:
        resume(old)
    assert name in str(caught.value)


def test_a_flipped_bit_in_the_optimizer_is_seen(old):
    file = old / "optimizer.pt"
    with zipfile.ZipFile(file) as archive:
        info = next(i for i in archive.infolist() if "/data/" in i.filename and i.file_size > 100)
    content = bytearray(file.read_bytes())
    place = content.index(info.filename.encode()) + len(info.filename) + 64 + 50
    content[place] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"optimizer.pt has changed since it was written"):
        resume(old)


def test_shapes_that_do_not_fit(old):
    model = bert()
    model.classifier = nn.Linear(8, 5)
    with pytest.raises(CheckpointError, match="classifier.weight has shape .2, 8., the model expects .5, 8."):
        resume(old, model=model)
    data = torch.load(old / "optimizer.pt", weights_only=True)
    data["state"][0]["exp_avg"] = torch.zeros(3, 3)
    torch.save(data, old / "optimizer.pt")
    with pytest.raises(
        CheckpointError, match="does not fit this model. Tried: transformers 4.53 to 5: exp_avg of "
    ) as e:
        resume(old)
    assert "transformers before 4.5" in str(e.value) and "one group" in str(e.value)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"state": {}},
        {"state": {0: 1}, "param_groups": [{"params": [0]}]},
        {"state": {5: {}}, "param_groups": [{"params": [0]}]},
        {"state": {0: {"exp_avg": 1.0}}, "param_groups": [{"params": [0]}]},
        {"state": {0: {"step": "x"}}, "param_groups": [{"params": [0]}]},
        {"state": {}, "param_groups": [{"params": ["a"]}]},
        {"state": {}, "param_groups": [{"params": [0, 0]}]},
        {"state": {}, "param_groups": [{"params": [0], "eps": "small"}]},
    ],
)
def test_an_optimizer_file_of_another_form(old, data):
    torch.save(data, old / "optimizer.pt")
    with pytest.raises(CheckpointError, match="not the state of a torch optimizer|instead of a state dict"):
        resume(old)


def test_another_optimizer(old):
    with pytest.raises(CheckpointError, match="the state of another optimizer.*Set optim"):
        resume(old, optim="sgd", optim_args="momentum=0.9")
    with pytest.raises(CheckpointError, match="this run's optimizer is Adafactor"):
        resume(old, optim="adafactor")


@pytest.mark.parametrize(
    "change",
    [
        {"global_step": "6"},
        {"global_step": -1},
        {"log_history": 3},
        {"log_history": [3]},
        {"stateful_callbacks": {"EarlyStoppingCallback": {}}},
        {"best_model_checkpoint": 4},
        {"epoch": "one"},
    ],
)
def test_a_state_that_cannot_be(old, change):
    state = json.loads((old / "trainer_state.json").read_text())
    (old / "trainer_state.json").write_text(json.dumps(state | change))
    with pytest.raises(CheckpointError, match=f"trainer_state.json is not valid: {next(iter(change))}"):
        resume(old)


def test_deepspeed_and_fsdp_are_told_apart(old):
    (old / "optimizer.pt").unlink()
    (old / "global_step6").mkdir()
    assert "DeepSpeed" in transformers_checkpoint.problems(old)[0]
    (old / "global_step6").rmdir()
    (old / "optimizer_0").mkdir()
    assert "FSDP" in transformers_checkpoint.problems(old)[0]


def test_a_torn_checkpoint_of_ours_is_not_foreign(tmp_path, trained, backend):
    trainer = trained(
        backend.classifier(), [{"x": [0.0] * 6, "labels": 0}] * 8, save_strategy="steps", save_steps=1, max_steps=1
    )
    path = next(p for p in (tmp_path / "out").glob("checkpoint-*"))
    (path / "manifest.json").unlink()
    assert not store.is_external(path)
    assert store.problems(path) == ["manifest.json is missing or cannot be read"]
    assert trainer.state.global_step == 1


def test_a_loss_spike_returns_to_it(old):
    """It is the last checkpoint, and the run stays the same one."""

    class Spiky(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * 1e4 if self.state.global_step + 1 == 15 else loss

    given = SHARED | {"loss_spike": "rollback", "loss_spike_window": 8, "save_steps": 50}
    trainer = Spiky(bert(), TrainingArguments(str(old.parent), device="cpu", **given), train_dataset=rows())
    trainer.train(resume_from_checkpoint=str(old))
    events = [json.loads(line) for line in (old.parent / "run.jsonl").read_text().splitlines()]
    returned = [(each["to"], each["left_out"]) for each in events if each["event"] == "rolled_back"]
    assert returned == [(old.name, [15, 15])] and trainer.state.global_step == STEPS
    assert len({each["run"] for each in events}) == 1 and old.is_dir()
