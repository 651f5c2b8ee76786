"""Tensor parallelism on Paddle: the same run as on one process, with checkpoints that every layout and PyTorch resume
from."""

import json
import math
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from oneloop import Trainer, TrainerCallback, TrainingArguments
from tests.backends.support import names
from tests.distributed.launch import results, run_script

JOB = Path(__file__).with_name("paddle_layouts_job.py")
pytestmark = pytest.mark.skipif("paddle" not in names(), reason="Paddle is not installed")
GRID = ("plain", "accumulated", "dropped", "averaged", "skipped")


def run(folder, layout, processes, *cases, succeeds=True, **variables):
    with mock.patch.dict(os.environ, {"LAYOUT": layout} | variables):
        said = run_script("paddle", processes, folder, JOB, *cases, succeeds=succeeds)
    return results(folder, processes) if succeeds else said


# -- the same model in PyTorch

WORDS, WIDTH, HEADS = 48, 16, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH // HEADS)
        self.query, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def heads(self, x):
        return x.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)

    def forward(self, x):
        whole = self.norm(x)
        query, key, value = (self.heads(layer(whole)) for layer in (self.query, self.key, self.value))
        found = torch.softmax(self.head_norm(query) @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS), -1)
        x = x + self.out((found @ value).transpose(1, 2).flatten(2))
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """The model of the job, without dropout."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.warmth = nn.Parameter(torch.full((1,), 1.5))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        if self.training:
            self.seen += 1
        logits = (self.head(x) + x @ self.embed.weight.T) * self.warmth
        if labels is None:
            return {"logits": logits}
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return {"loss": losses / (labels != -100).sum(), "logits": logits}


class Seen(TrainerCallback):
    def __init__(self):
        self.losses, self.norms = [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])
            self.norms.append(logs["grad_norm"])


def texts(count=40, length=9):
    """Those of the job."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(count):
        ids = generator.integers(0, WORDS - 1, length)
        labels = np.where(generator.random(length) < 0.2, -100, ids)
        if number % 11 == 5:
            labels[:] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def train_on_torch(folder, name, resume=None):
    torch.manual_seed(0)
    args = TrainingArguments(
        str(folder / name),
        per_device_train_batch_size=8,
        optim="adamw_torch",
        learning_rate=0.01,
        lr_scheduler_type="linear",
        max_steps=6,
        max_grad_norm=0.5,
        weight_decay=0.1,
        ema_decay=0.8,
        logging_steps=1,
        save_strategy="steps",
        save_steps=3,
        report_to="none",
        disable_tqdm=True,
        log_level="warning",
        device="cpu",
    )
    seen = Seen()
    Trainer(Model(), args, train_dataset=texts(), callbacks=[seen]).train(resume_from_checkpoint=resume)
    return seen


# -- runs


@pytest.fixture(scope="module")
def on_torch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_torch")
    return folder / "torch" / "checkpoint-3", train_on_torch(folder, "torch")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder, run(folder, "alone", 1, "grid", "saved", "shared", "once_more")[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory, alone, on_torch):
    """Two processes that divide the layers, and go on from their own checkpoint, that of one process, and PyTorch's."""
    folder = tmp_path_factory.mktemp("pair")
    others = (f"crossed={alone[0] / 'saved' / 'checkpoint-3'}", f"crossed={on_torch[0]}")
    return folder, run(folder, "tp", 2, "grid", "saved", "again", "still", "shared", "once_more", *others, "refused")


def assert_same_course(found, expected, first=0):
    """Losses and norms within 1e-5 of those of one process."""
    assert found["losses"] == pytest.approx(expected["losses"][first:], rel=1e-5)
    assert found["norms"] == pytest.approx(expected["norms"][first:], rel=1e-5, nan_ok=True)
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)
    assert np.abs(np.subtract(found["predictions"], expected["predictions"])).mean() < 1e-5
    for key in ("flos", "skipped", "seen"):
        assert found[key] == expected[key], key


@pytest.mark.parametrize("name", GRID)
def test_divided_layers_train_as_one_process(alone, pair, name):
    expected = alone[1]["grid"][name]
    for each in pair[1]:
        assert_same_course(each["grid"][name], expected)
    assert pair[1][0]["grid"][name]["bits"] != pair[1][1]["grid"][name]["bits"], "each process has its part"
    if name == "skipped":
        assert expected["skipped"] == 1


def test_weights_with_two_names(alone, pair):
    for each in pair[1]:
        assert_same_course(each["shared"], alone[1]["shared"])
        assert each["shared"]["again"] == each["shared"]["bits"]


def test_an_overflow_in_one_process_is_one_of_all(pair):
    assert all(each["still"]["flags"] == [False, True, True] for each in pair[1])


def test_checkpoints_are_those_of_one_process(alone, pair):
    one, two = (folder / "saved" / "checkpoint-3" for folder, _ in (alone, pair))
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir())
    stored = [json.loads((path / "run.json").read_text()) for path in (one, two)]
    for each in stored:
        each.pop("run_id")
        each.pop("grad_norm")
        each.pop("losses")
    assert stored[0] == stored[1]
    for name in ("model", "optimizer", "average"):
        expected, found = (load_file(path / f"{name}.safetensors") for path in (one, two))
        assert {key: value.shape for key, value in found.items()} == {key: v.shape for key, v in expected.items()}
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, atol=1e-5, err_msg=key)


def test_a_resumed_run_has_the_same_bytes_and_reads_its_parts(pair):
    for each in pair[1]:
        assert each["again"]["losses"] == each["saved"]["losses"][3:]
        assert each["again"]["norms"] == each["saved"]["norms"][3:]
        assert each["again"]["bits"] == each["saved"]["bits"]
        assert each["again"]["files"] == each["saved"]["files"]
    assert set(pair[1][0]["saved"]["files"]["final"]) == {"model.safetensors"}
    for each in pair[1]:
        # 12 of the 16 kB of weights are divided; headers and what is whole are read by both.
        assert 0.3 < each["again"]["read"] / each["again"]["stored"] < 0.5


def test_plans_of_models_best_checkpoints_and_second_trainers(alone, pair):
    expected = alone[1]["once_more"]
    for each in pair[1]:
        assert each["once_more"]["best"]["step"] == expected["best"]["step"]
        for name in ("best", "second"):
            assert_same_course(each["once_more"][name], expected[name])


def test_it_goes_on_from_one_process(alone, pair):
    for each in pair[1]:
        assert_same_course(each["crossed=saved"], alone[1]["saved"], first=3)


def test_it_goes_on_from_pytorch_and_pytorch_from_it(on_torch, pair):
    _, expected = on_torch
    for each in pair[1]:
        assert each["crossed=torch"]["losses"] == pytest.approx(expected.losses[3:], rel=1e-5)
        assert each["crossed=torch"]["norms"] == pytest.approx(expected.norms[3:], rel=1e-5)
    found = train_on_torch(pair[0], "to_torch", str(pair[0] / "still" / "checkpoint-3"))
    assert found.losses == pytest.approx(pair[1][0]["still"]["losses"][3:], rel=1e-5)
    assert found.norms == pytest.approx(pair[1][0]["still"]["norms"][3:], rel=1e-5)


REASONS = {
    "no plan": "Model has no plan for tensor parallelism. Pass tensor_parallel_plan",
    "no layer": "tensor_parallel_plan['layers.o'] is the name of no layer of Model, which has embed, head",
    "nothing divided": "the plan for tensor parallelism divides no layer of Model: head",
    "not a Linear": "embed cannot be divided (colwise): it is an Embedding; expected a Linear",
    "does not divide": "layers.1.up.weight has 23 columns, which tensor_parallel_size=2 does not divide",
    "tied weights": "tied weights would be separated: layers.0.up.weight and layers.1.up.weight",
    "parameter list": "more is a ParameterList",
    "sharding": "fleet's groups of sharding are made of all processes",
    "compiled": "paddle.jit.to_static does not compile the DTensors",
    "auto_find_batch_size": "all processes must run the same forward passes",
    "export": "cannot be exported: each process has a part of it",
    "an optimizer of whole steps": "Lamb computes its step from whole parameters",
    "an optimizer with steps": "has already made steps on the undivided model",
    "sparse gradients": "embed: sparse gradients cannot be divided",
    "sequence": "the axis 'sequence' of the mesh (sequence_parallel_size=2) is not supported on paddle",
    "experts": "the axis 'expert' of the mesh (expert_parallel_size=2) is not supported on paddle",
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_refused_is_named(pair, name):
    for each in pair[1]:
        kind, _, said = each["refused"][name].partition(": ")
        assert kind in ("ArgumentError", "ModelError", "UnsupportedError"), each["refused"][name]
        assert REASONS[name] in said


# -- more layouts, and kills


@pytest.mark.slow
def test_thirty_steps(tmp_path_factory):
    one, two, four = (tmp_path_factory.mktemp(name) for name in ("one", "two", "four"))
    expected = run(one, "alone", 1, "thirty")[0]["thirty"]
    for processes, folder in ((2, two), (4, four)):
        for found in run(folder, "tp", processes, "thirty"):
            for name in GRID:
                # Replicas have streams of their own, and log the losses of their own batches in a step that is skipped.
                if processes == 2 or name not in ("dropped", "skipped"):
                    assert_same_course(found["thirty"][name], expected[name])


LAYOUTS = {"alone": ("alone", 1), "dp2": ("dp", 2), "tp2": ("tp", 2), "dp2 x tp2": ("tp", 4)}


@pytest.mark.slow
def test_every_layout_goes_on_from_every_other(tmp_path_factory, on_torch):
    folders = {name: tmp_path_factory.mktemp(name.replace(" ", "")) for name in LAYOUTS}
    whole = {name: run(folders[name], *LAYOUTS[name], "still") for name in LAYOUTS}
    checkpoints = [f"crossed={folder / 'still' / 'checkpoint-3'}" for folder in folders.values()]
    for name in LAYOUTS:
        for source, checkpoint in zip(LAYOUTS, checkpoints, strict=True):
            expected = whole[source][0]["still"]["losses"][3:]
            assert resumed_losses(folders[name], name, checkpoint) == pytest.approx(expected, rel=1e-5), (name, source)
    for number, name in enumerate(("dp2 x tp2", "dp2")):
        found = train_on_torch(folders[name], f"to_torch{number}", str(folders[name] / "still" / "checkpoint-3"))
        assert found.losses == pytest.approx(whole[name][0]["still"]["losses"][3:], rel=1e-5)
        losses = resumed_losses(folders[name], name, f"crossed={on_torch[0]}")
        assert losses == pytest.approx(on_torch[1].losses[3:], rel=1e-5)


def resumed_losses(folder, layout, checkpoint):
    """Those of every process, which have to be the same."""
    rows = [found["losses"] for each in run(folder, *LAYOUTS[layout], checkpoint) for found in each.values()]
    assert all(row == rows[0] for row in rows)
    return rows[0]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2", "dp2 x tp2"])
def test_killed_runs_end_with_the_same_bytes(tmp_path_factory, layout):
    kind, processes = LAYOUTS[layout]
    folder = tmp_path_factory.mktemp("killed")
    expected = run(folder, kind, processes, "saved")
    for step in range(1, 6):
        said = run(folder, kind, processes, "killed", succeeds=False, DIES_AT=str(step))
        if "ProcessLostError" in said:  # the launcher may have ended the others before they could say so
            assert f"Process {processes - 1} (" in said and "tensor 1" in said
        found = run(folder, kind, processes, "resumed")
        for one, other in zip(found, expected, strict=True):
            assert one["resumed"]["bits"] == other["saved"]["bits"], step
            assert one["resumed"]["files"] == other["saved"]["files"], step
