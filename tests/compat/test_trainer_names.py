"""Private names of transformers' Trainer that libraries built on it override, call or read."""

import os
from contextlib import contextmanager

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from tests.backends.support import rows, same_bytes

RUN = {"per_device_train_batch_size": 4, "max_steps": 4, "learning_rate": 0.1, "optim": "sgd", "logging_steps": 3}


def test_the_model_is_moved_by_a_method_that_may_be_overridden(backend, arguments):
    moved = []

    class Own(Trainer):
        def _move_model_to_device(self, model, device):
            moved.append((model, device))  # returns nothing, as that of transformers

    model = backend.classifier()
    trainer = Own(model, arguments(**RUN))
    assert moved == [(model, trainer.args.device)] and trainer.model is model
    assert Trainer._move_model_to_device(trainer, model, trainer.args.device) is model
    moved.clear()
    left = type("Left", (type(trainer.args),), {"place_model_on_device": False})
    Own(model, left(**trainer.args.to_dict()))
    assert moved == []


def test_the_model_is_wrapped_by_a_method_that_may_be_overridden(backend, arguments):
    calls, stepped, predicted = [], [], []

    class Own(Trainer):
        def _wrap_model(self, model, training=True, dataloader=None):
            calls.append((model, training))
            return super()._wrap_model(other if training else model, training, dataloader)

        def training_step(self, model, *args, **kwargs):
            stepped.append(model)
            return super().training_step(model, *args, **kwargs)

        def prediction_step(self, model, *args, **kwargs):
            predicted.append(model)
            return super().prediction_step(model, *args, **kwargs)

    model = other = backend.classifier()
    trainer = Own(model, arguments(**(RUN | {"max_steps": 1})), train_dataset=rows(4), eval_dataset=rows(4))
    trainer.train()
    trainer.evaluate()
    assert calls == [(model, True), (model, False)]
    assert stepped == predicted == [model] and trainer.model_wrapped is model


def test_a_wrapper_of_a_subclass_is_what_is_called_in_training(arguments):
    torch = pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module, self.calls = module, 0

        def forward(self, **inputs):
            self.calls += 1
            return self.module(**inputs)

    class Own(Trainer):
        def _wrap_model(self, model, training=True, dataloader=None):
            return Wrapper(model) if training else model

    trainer = Own(Kit().classifier(), arguments(**RUN), train_dataset=rows(16), eval_dataset=rows(4))
    trainer.train()
    assert isinstance(trainer.model_wrapped, Wrapper) and trainer.model_wrapped.calls == 4
    trainer.evaluate()
    assert trainer.model_wrapped.calls == 4 and trainer.model_wrapped.module is trainer.model


def test_the_accelerator_is_created_by_a_method_that_may_be_overridden(backend, arguments):
    class Own(Trainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.note = type(self.accelerator).__name__

    assert Own(backend.classifier(), arguments()).accelerator.note == "Accelerator"


def test_a_context_of_a_training_step(backend, arguments):
    """Inputs may be changed before they are moved to the device, within the context of the step."""
    inside, steps = [], []

    @contextmanager
    def context():
        inside.append("in")
        yield
        inside.append("out")

    class Own(Trainer):
        def _prepare_context_parallel_inputs(self, model, inputs):
            found, inputs = super()._prepare_context_parallel_inputs(model, inputs)
            with found():
                return context, inputs | {"x": inputs["x"] * 0}

        def compute_loss(self, model, inputs, *args, **kwargs):
            inside.append("loss")
            steps.append(float(np.abs(backend.numpy(inputs["x"])).sum()))
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = Own(backend.classifier(), arguments(**(RUN | {"max_steps": 2})), train_dataset=rows(8))
    trainer.train()
    assert inside == ["in", "loss", "out"] * 2 and steps == [0.0, 0.0]


def test_gather_function_may_be_replaced(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments())
    values = np.arange(3)
    assert trainer.gather_function(values) is values
    trainer.gather_function = len
    assert trainer.gather_function(values) == 3


def test_what_was_logged_last(backend, arguments):
    """The step of the last log, and the sum of the losses up to it."""
    seen = []

    class Watches(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append((trainer._globalstep_last_logged, trainer._total_loss_scalar))

    trainer = Trainer(
        backend.classifier(), arguments(**(RUN | {"max_steps": 6})), train_dataset=rows(24), callbacks=[Watches()]
    )
    output = trainer.train()
    first, second = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert [step for step, _ in seen] == [0, 0, 0, 3, 3, 3]
    assert [total for _, total in seen] == pytest.approx([0, 0, 0, 3 * first, 3 * first, 3 * first], rel=1e-6)
    assert trainer._globalstep_last_logged == 6
    assert trainer._total_loss_scalar == pytest.approx(3 * (first + second)) == pytest.approx(6 * output.training_loss)


def test_sorted_checkpoints(arguments, tmp_path):
    pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    args = arguments(tmp_path, **(RUN | {"max_steps": 12, "save_strategy": "steps", "save_steps": 3}))
    trainer = Trainer(Kit().classifier(), args, train_dataset=rows(48))
    trainer.train()
    (tmp_path / "checkpoint-notes").mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    names = [f"checkpoint-{step}" for step in (3, 6, 9, 12)]
    assert trainer._sorted_checkpoints() == [str(tmp_path / name) for name in names]
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-6")
    found = [os.path.basename(path) for path in trainer._sorted_checkpoints(str(tmp_path))]
    assert found == ["checkpoint-3", "checkpoint-9", "checkpoint-6", "checkpoint-12"]
    os.utime(tmp_path / "checkpoint-3")
    trainer.state.best_model_checkpoint = None
    assert os.path.basename(trainer._sorted_checkpoints(use_mtime=True)[-1]) == "checkpoint-3"


def test_a_context_changes_no_weight(backend, arguments):
    """The names above are looked up in every step; without overrides nothing differs from overrides that pass on."""

    class Own(Trainer):
        def _prepare_context_parallel_inputs(self, model, inputs):
            return super()._prepare_context_parallel_inputs(model, inputs)

        def _wrap_model(self, model, training=True, dataloader=None):
            return super()._wrap_model(model, training, dataloader)

    weights = []
    for cls in (Trainer, Own):
        model = backend.classifier()
        cls(model, arguments(**RUN), train_dataset=rows(16)).train()
        weights.append(backend.weights(model))
    assert same_bytes(*weights)
