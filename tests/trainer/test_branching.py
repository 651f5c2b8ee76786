"""A run that is branched from a checkpoint of another one: a new decay, the same data, the optimizer's state."""

import json

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.errors import ArgumentError
from oneloop.optim.cooldown import Cooldown, cooldown_of
from tests.backends.support import rows, same_bytes
from tests.internals import run_id

RUN = {"per_device_train_batch_size": 4, "learning_rate": 0.05, "save_strategy": "steps", "logging_steps": 1}
PARENT = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2, "max_steps": 7, "save_steps": 3}
WSD = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 1, "save_steps": 3}


class Batches(TrainerCallback):
    """The samples of each step, and the weights after it."""

    def __init__(self, backend):
        self.backend, self.seen, self.weights = backend, {}, {}

    def on_load_data_end(self, args, state, control, inputs=None, **kwargs):
        self.seen[state.global_step + 1] = self.backend.numpy(inputs["x"]).tobytes()

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights[state.global_step] = self.backend.weights(model)


def run(backend, arguments, folder, resume=None, **given):
    watch = Batches(backend)
    args = arguments(output_dir=str(folder), **RUN | given)
    trainer = Trainer(backend.classifier(dropout=0.1), args, train_dataset=rows(24), callbacks=[watch])
    trainer.train(resume_from_checkpoint=resume)
    return trainer, watch


def rates(trainer):
    return {line["step"]: line["learning_rate"] for line in trainer.state.log_history if "learning_rate" in line}


def test_a_cooldown_from_a_checkpoint(backend, arguments, tmp_path):
    """The step after the checkpoint is the parent's to the last bit, since the decay begins after it. The branch can be
    resumed itself, to the same bits, and is a new run with a parent."""
    parent, before = run(backend, arguments, tmp_path / "parent", **PARENT)
    given = PARENT | {"cooldown_steps": 4, "cooldown_type": "linear", "save_steps": 5}
    branch, after = run(backend, arguments, tmp_path / "branch", str(tmp_path / "parent" / "checkpoint-3"), **given)
    assert branch.state.global_step == branch.state.max_steps == 7 and list(after.seen) == [4, 5, 6, 7]
    assert all(after.seen[step] == before.seen[step] for step in (4, 5, 6, 7))
    assert rates(branch) == pytest.approx(rates(parent) | {5: 0.05 * 0.75, 6: 0.05 * 0.5, 7: 0.05 * 0.25})
    assert same_bytes(after.weights[4], before.weights[4]) and not same_bytes(after.weights[6], before.weights[6])
    again, _ = run(backend, arguments, tmp_path / "branch", str(tmp_path / "branch" / "checkpoint-5"), **given)
    assert rates(again) == rates(branch) and same_bytes(backend.weights(again.model), backend.weights(branch.model))
    ids = [run_id(trainer) for trainer in (parent, branch)]
    assert ids[0] != ids[1]
    events = [json.loads(line) for line in (tmp_path / "branch" / "run.jsonl").read_text().splitlines()]
    assert [event["parent"] for event in events if event["event"] == "resumed"][0] == ids[0]


def test_warmup_stable_decay_from_any_checkpoint_is_the_run_that_was_planned_so(backend, arguments, tmp_path):
    """Where the learning rate is constant, another max_steps and num_decay_steps are enough."""
    long = WSD | {"max_steps": 100, "lr_scheduler_kwargs": {"num_decay_steps": 10}}

    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == 3
            if state.global_step == 4:
                raise KeyboardInterrupt

    trainer = Trainer(
        backend.classifier(dropout=0.1),
        arguments(output_dir=str(tmp_path / "long"), **RUN | long),
        train_dataset=rows(24),
        callbacks=[Stops()],
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    short = WSD | {"max_steps": 6, "lr_scheduler_kwargs": {"num_decay_steps": 3}}
    branch, _ = run(backend, arguments, tmp_path / "branch", str(tmp_path / "long" / "checkpoint-3"), **short)
    planned, _ = run(backend, arguments, tmp_path / "planned", **short)
    assert rates(branch) == rates(planned)
    assert same_bytes(backend.weights(branch.model), backend.weights(planned.model))


def test_the_factor_is_a_function_of_the_step():
    made = Cooldown(start=4, steps=4, schedule_steps=8, kind="1-sqrt").follow(lambda step: 1 - step / 8)
    assert [made(step) for step in (0, 2, 4)] == [1.0, 0.75, 0.5]
    assert made(5) == 0.5 * 0.5 and made(8) == made(20) == 0.0
    for kind, half in (("linear", 0.5), ("cosine", 0.5), ("1-sqrt", 1 - 0.5**0.5)):
        assert Cooldown(0, 10, 10, kind).follow(lambda step: 1.0)(5) == pytest.approx(half)


def test_a_resumed_cooldown_has_its_start_and_the_schedule_of_its_parent(arguments):
    args = arguments(cooldown_steps=4, cooldown_type="linear")
    first = cooldown_of(args, 3, 20, None, follows_metric=False)
    assert first == Cooldown(3, 4, 20, "linear", is_new=True) and first.end == 7
    assert cooldown_of(args, 5, 7, first.state(), follows_metric=False) == Cooldown(3, 4, 20, "linear")


def test_what_a_cooldown_needs(arguments, tmp_path, caplog):
    pytest.importorskip("torch")
    import torch

    from tests.backends.kits.torch_kit import Kit

    backend, given = Kit(), PARENT | {"cooldown_steps": 2}
    with pytest.raises(ArgumentError, match="starts from the beginning"):
        run(backend, arguments, tmp_path / "none", **given)
    run(backend, arguments, tmp_path / "parent", **PARENT)
    path = str(tmp_path / "parent" / "checkpoint-3")
    with pytest.raises(ArgumentError, match="follows evaluations"):
        cooldown_of(arguments(**given), 3, 7, None, follows_metric=True)
    model = backend.classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    args = arguments(output_dir=str(tmp_path / "x"), **RUN | given)
    trainer = Trainer(model, args, train_dataset=rows(24), optimizers=(optimizer, schedule))
    with pytest.raises(ArgumentError, match="has its own ConstantLR"):
        trainer.train(resume_from_checkpoint=path)
    run(backend, arguments, tmp_path / "branch", path, **given | {"save_steps": 1})
    run(backend, arguments, tmp_path / "branch", str(tmp_path / "branch" / "checkpoint-4"), **PARENT)
    assert "from step 3 on (cooldown_steps), but cooldown_steps is not set" in caplog.text
