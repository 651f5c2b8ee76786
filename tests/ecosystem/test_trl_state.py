"""What a Trainer of TRL keeps between steps, stored in checkpoints: without TRL, by a class of its kind."""

import json
import logging
import random
from collections import defaultdict, deque
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from oneloop import Trainer, TrainingArguments  # noqa: E402
from oneloop.checkpoint import resume  # noqa: E402
from oneloop.compat import trl_state  # noqa: E402
from oneloop.distributed.mesh import Mesh  # noqa: E402
from oneloop.trainer.epochs import start_batch_streams  # noqa: E402


class Online(Trainer):
    """With the attributes of TRL's GRPOTrainer: a round of values is drawn for three steps."""

    __module__ = "trl.trainer.fake"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.args.steps_per_generation, self.num_iterations = 3, 1
        self._step, self._buffered_inputs, self._total_train_tokens = 0, None, 0
        self._last_world_entropy = float("inf")
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._logs = {"prompt": deque(maxlen=2), "rewards": defaultdict(lambda: deque(maxlen=3)), "images": deque()}
        self.used = []

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self._step % 3 == 0 or self._buffered_inputs is None:
            drawn = torch.rand(3, 2)
            self._buffered_inputs = [
                {
                    "a": row,
                    "half": row.bfloat16(),
                    "mask": row > 0.5,
                    "n": torch.tensor(i),
                    "none": None,
                    "pair": (i, "x"),
                }
                for i, row in enumerate(drawn)
            ]
        used = self._buffered_inputs[self._step % 3]
        assert used["half"].dtype == torch.bfloat16 and used["mask"].dtype == torch.bool and used["none"] is None
        self.used.append(
            [used["a"].tolist(), used["half"].tolist(), used["mask"].tolist(), used["n"].item(), used["pair"]]
        )
        self._metrics["train"]["z"].append(used["a"].sum().item())
        self._metrics["train"]["a"].append(float("nan"))
        self._logs["prompt"].append(f"step {self._step}")
        self._logs["rewards"]["length"].append(self._step)
        self._step += 1
        self._total_train_tokens += 5
        return super().training_step(model, inputs, num_items_in_batch)


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x).squeeze(-1) - labels) ** 2).mean()}


class Distilled(Online):
    """As a trainer of distillation: a round is one update, and a teacher follows the model."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        del self.args.steps_per_generation, self.num_iterations, self._step
        self.args.teacher_model_kind, self.teacher_model = "ema", Line()
        self._buffer_step, self._on_policy_loss_total = 0, 0.0
        self.taught = []

    def training_step(self, model, inputs, num_items_in_batch=None):
        self._buffered_inputs = [object()]  # cannot be stored, and need not be
        self._buffer_step += 1
        self.taught.append(self.teacher_model.layer.weight.tolist())
        with torch.no_grad():
            self.teacher_model.layer.weight.add_(torch.rand(1, 2))
        loss = Trainer.training_step(self, model, inputs, num_items_in_batch)
        self._on_policy_loss_total += float(loss)
        return loss


def test_when_a_step_uses_completions_that_were_generated_before():
    def is_within(step, iterations=None, **args):
        trainer = SimpleNamespace(_step=step, _buffered_inputs=[1], args=SimpleNamespace(**args))
        if iterations is not None:
            trainer.num_iterations = iterations
        return trl_state._is_within_round(trainer)

    rounds = {"steps_per_generation": 3, "gradient_accumulation_steps": 1}
    assert [is_within(step, 1, **rounds) for step in (1, 2, 3, 6)] == [True, True, False, False]
    assert [is_within(step, 2, **rounds) for step in (3, 5, 6, 9)] == [True, True, False, True]
    assert [is_within(step, gradient_accumulation_steps=2) for step in (1, 2, 3)] == [True, False, True]


def test_containers_are_filled_with_what_was_stored_alone():
    logs = {"rewards": defaultdict(lambda: deque(maxlen=2), stale=deque([1])), "prompt": deque(["stale"], maxlen=2)}
    found = trl_state._filled(logs, {"rewards": {"length": [1, 2, 3]}, "prompt": ["a"], "new": 4})
    assert found is logs and found["prompt"] == deque(["a"]) and found["new"] == 4
    assert dict(found["rewards"]) == {"length": deque([2, 3])} and found["rewards"]["other"].maxlen == 2


def made(folder, trainer_class=Online, **given):
    torch.manual_seed(0)
    data = [{"x": torch.ones(2) * i, "labels": torch.tensor(float(i))} for i in range(8)]
    options = {
        "max_steps": 5,
        "save_steps": 1,
        "per_device_train_batch_size": 2,
        "report_to": "none",
        "disable_tqdm": True,
    }
    args = TrainingArguments(str(folder), device="cpu", save_strategy="steps", logging_strategy="no", **options | given)
    return trainer_class(model=Line(), args=args, train_dataset=data)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_resumed_trainer_has_what_the_unbroken_one_had(step, tmp_path):
    whole = made(tmp_path)
    whole.train()
    resumed = made(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert resumed.used == whole.used[step:]
    assert (resumed._step, resumed._total_train_tokens, resumed._last_world_entropy) == (5, 25, float("inf"))
    assert list(resumed._metrics["train"]) == ["z", "a"]  # their order is that of the logs
    assert resumed._metrics["train"]["z"] == whole._metrics["train"]["z"]
    assert len(resumed._metrics["train"]["a"]) == 5 and resumed._metrics["train"]["b"] == []
    assert resumed._logs["prompt"] == deque(["step 3", "step 4"], maxlen=2)
    assert resumed._logs["rewards"]["length"] == deque([2, 3, 4], maxlen=3)


def test_completions_are_stored_only_within_their_round(tmp_path):
    made(tmp_path).train()
    stored = [json.loads((tmp_path / f"checkpoint-{step}" / "run.json").read_text()) for step in (2, 3)]
    assert ["_buffered_inputs" in each["position"]["trainer"] for each in stored] == [True, False]


def test_a_teacher_that_follows_the_model(tmp_path, caplog):
    whole = made(tmp_path, Distilled)
    with caplog.at_level(logging.WARNING):
        whole.train()
    assert "_buffered_inputs" not in caplog.text
    resumed = made(tmp_path, Distilled)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.taught == whole.taught[2:] and resumed._buffer_step == 5
    assert resumed._on_policy_loss_total == whole._on_policy_loss_total > 0


def test_a_teacher_on_another_number_of_processes(tmp_path, monkeypatch):
    """What belongs to a process starts anew; the teacher does not belong to one."""
    whole = made(tmp_path, Distilled)
    whole.train()
    monkeypatch.setattr(resume, "position_of_this_process", lambda position, processes: replace(position, trainer=None))
    resumed = made(tmp_path, Distilled)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.taught[0] == whole.taught[2] and resumed._buffer_step == 3


def test_a_value_that_cannot_be_stored_is_left_out_with_a_warning(tmp_path, caplog):
    trainer = made(tmp_path)
    trainer._logs["images"].append(object())
    with caplog.at_level(logging.WARNING):
        trainer.train()
    said = [record.getMessage() for record in caplog.records if "_logs" in record.getMessage()]
    assert len(said) == 1 and "type object" in said[0] and "starts empty" in said[0]
    resumed = made(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(resumed.used) == 3 and resumed._logs["prompt"] == deque(["step 3", "step 4"])


def test_other_trainers_store_nothing(tmp_path):
    trainer = made(tmp_path, max_steps=1)
    trainer.__class__ = type("Own", (Trainer,), {})
    assert trainer._oneloop.extensions.collect_state() == (None, {})
    trainer.train()
    assert "trainer" not in json.loads((tmp_path / "checkpoint-1" / "run.json").read_text())["position"]


# -- Python's random: TRL's GKD draws from it whether all processes generate


def second_of_two(trainer, monkeypatch):
    monkeypatch.setattr(trainer._oneloop, "mesh", Mesh.of_batches(2, 1))
    return trainer


@pytest.mark.parametrize("trainer_class", [Online, Trainer])
def test_python_draws_the_same_in_each_process_of_trl_alone(trainer_class, tmp_path, monkeypatch):
    trainer = second_of_two(made(tmp_path, trainer_class), monkeypatch)
    random.seed(0)
    torch.manual_seed(0)
    main = random.getstate(), torch.rand(1)
    start_batch_streams(trainer._oneloop)
    assert torch.rand(1) != main[1]
    assert (random.getstate() == main[0]) == (trainer_class is Online)


@pytest.mark.parametrize("trainer_class", [Online, Trainer])
def test_python_draws_the_same_in_a_process_that_is_added(trainer_class, tmp_path, monkeypatch):
    trainer = made(tmp_path, trainer_class, max_steps=1)
    trainer.train()
    saved = random.getstate()
    random.seed(0)
    second_of_two(trainer, monkeypatch)._oneloop.run.epochs.load_rng_state(tmp_path / "checkpoint-1")
    assert (random.getstate() == saved) == (trainer_class is Online)
