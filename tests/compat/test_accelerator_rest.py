"""The whole public surface of accelerate's Accelerator, on the Trainer's: as it is there, or refused in words."""

import copy

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.compat import accelerate_state
from oneloop.compat.accelerator_rest import UNSUPPORTED_METHODS
from oneloop.errors import ModelError, UnsupportedError
from tests.backends.support import rows
from tests.internals import engine_of


@pytest.fixture
def given(backend, arguments):
    return Trainer(backend.classifier(), arguments(max_steps=1), train_dataset=rows(8)).accelerator


def test_nothing_of_accelerates_accelerator_is_missing(given):
    accelerate = pytest.importorskip("accelerate")
    for name in dir(accelerate.Accelerator):
        if not name.startswith("_"):
            try:
                getattr(given, name)
            except RuntimeError as error:  # ranks of what is not divided
                assert "Use accelerator.process_index" in str(error)
    theirs = accelerate.Accelerator(cpu=True)
    assert {name for name in vars(theirs) if not name.startswith("_") and not hasattr(given, name)} == set()
    same = (
        "device_placement",
        "step_scheduler_with_optimizer",
        "save_iteration",
        "trackers",
        "project_dir",
        "logging_dir",
    )
    assert [getattr(given, name) for name in same] == [getattr(theirs, name) for name in same]


@pytest.mark.parametrize("name", UNSUPPORTED_METHODS)
def test_what_is_refused_says_what_to_do(given, name):
    with pytest.raises(UnsupportedError, match=f"accelerator.{name} is not supported.*Instead: "):
        getattr(given, name)("anything")


def test_a_name_that_nobody_has(given):
    assert not hasattr(given, "accumlate")


# -- copies


def test_a_copy_is_a_view_of_the_same_trainer(given):
    given.even_batches, given.step = False, 3
    made = copy.deepcopy(given)
    assert made is not given and made.device == given.device and made.backward.__self__ is made
    made.step, made.even_batches = 4, True
    assert (given.step, given.even_batches) == (3, False)


@pytest.mark.parametrize("is_imported", [False, True])
def test_the_state_of_accelerate_is_that_of_the_process_also_in_a_copy(backend, arguments, monkeypatch, is_imported):
    pytest.importorskip("accelerate.state")
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: is_imported)
    given = Trainer(backend.classifier(), arguments()).accelerator
    made = copy.deepcopy(given)
    made.sync_gradients = False
    assert given.sync_gradients is (not is_imported), "oneloop's own is of one accelerator"
    made.sync_gradients = True


def test_within_a_copy_of_its_trainer_it_is_of_that_copy(given):
    class Other:
        pass

    holder, other = Other(), Other()
    holder.accelerator = given
    made = copy.deepcopy(holder, {id(given._trainer): other})
    assert made.accelerator._trainer is other


# -- gradients


class Clips(TrainerCallback):
    """Clips the numbers of the gradients before the optimizer steps."""

    trainer = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.trainer.accelerator.unscale_gradients()
        parameters = self.trainer.model.parameters()
        self.trainer.accelerator.clip_grad_value_(parameters, 1e-3)


def test_gradients_clipped_by_value(backend, arguments):
    model, clips = backend.classifier(), Clips()
    before = backend.weights(model)
    given = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_steps": 1, "max_grad_norm": 0}
    trainer = Trainer(model, arguments(**given), train_dataset=rows(8), callbacks=[clips])
    clips.trainer = trainer
    if backend.name == "mindspore":
        with pytest.raises(ModelError, match="clip_grad_value_ is not supported on MindSpore"):
            trainer.accelerator.clip_grad_value_([], 1.0)
        return
    trainer.train()
    moved = [np.abs(backend.weights(model)[name] - before[name]) for name in before]
    assert max(each.max() for each in moved) == pytest.approx(1e-3, rel=1e-3)


def test_one_parameter_and_none_without_gradient(backend, given):
    if backend.name == "mindspore":
        pytest.skip("parameters have no gradients there")
    first = next(iter(given._trainer.model.parameters()))
    given.clip_grad_value_(first, 1.0)
    assert first.grad is None


@pytest.mark.parametrize("call", [lambda a: a.unscale_gradients(), lambda a: a.clip_grad_value_([], 1.0)])
def test_a_loss_scaler_is_the_trainers(given, backend, monkeypatch, call):
    if backend.name == "mindspore":
        pytest.skip("gradients cannot be clipped by hand there")
    monkeypatch.setattr(engine_of(given._trainer), "scaler", object(), raising=False)
    with pytest.raises(UnsupportedError, match="before on_pre_optimizer_step"):
        call(given)


# -- processes


def test_functions_of_some_processes(given):
    asked = [given.on_last_process, given.on_process(process_index=0), given.on_process(process_index=1)]
    asked += [given.on_local_process(local_process_index=0), given.on_local_process(local_process_index=1)]
    assert [decorate(lambda: "called")() for decorate in asked] == ["called", "called", None, "called", None]
    assert given.on_process(lambda x: x, process_index=0)(5) == 5


def test_a_trigger_is_read_once(given):
    assert given.check_trigger() is False
    given.set_trigger()
    assert [given.check_trigger(), given.check_trigger()] == [True, False]


def test_contexts_change_nothing_on_one_process(given):
    for context in (given.join_uneven_inputs([]), given.maybe_context_parallel(), given.trigger_sync_in_backward(None)):
        with context:
            pass


# -- the rest


def test_objects_are_prepared_as_they_are(given):
    assert (given.prepare_optimizer("optimizer"), given.prepare_scheduler("schedule")) == ("optimizer", "schedule")
    assert given.clear("a", "b") == (None, None)
    assert given.init_trackers("run") is given.log({"a": 1}, step=1) is None


def test_what_accelerates_own_functions_do(backend, given, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    torch = pytest.importorskip("torch")
    assert list(given.skip_first_batches(torch.utils.data.DataLoader(range(4)), 3)) == [torch.tensor([3])]
    given.save({"a": torch.ones(2)}, tmp_path / "own.safetensors", safe_serialization=True)
    from safetensors.torch import load_file

    assert load_file(tmp_path / "own.safetensors")["a"].tolist() == [1.0, 1.0]
    assert given.get_tracker("wandb").log({"a": 1}) is None
    assert isinstance(given.project_configuration, accelerate.utils.ProjectConfiguration)


def test_models_on_several_devices(given):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    assert given.verify_device_map(model) is given.verify_device_map("no model") is False
    model[0].hf_device_map = {"a": 0, "b": 1}
    assert given.verify_device_map(model) is True
