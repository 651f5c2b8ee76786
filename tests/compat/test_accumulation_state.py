"""`accelerator.sync_gradients` and what else tells a script where in an update it is, on every framework."""

from contextlib import nullcontext

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.compat import accelerate_state
from oneloop.errors import ArgumentError
from tests.backends.support import rows, tagged
from tests.emulation import emulate
from tests.internals import part_of

EVENTS = (
    "step_begin",
    "substep_end",
    "pre_optimizer_step",
    "optimizer_step",
    "step_end",
    "prediction_step",
    "epoch_end",
)


class Listens(TrainerCallback):
    trainer = None
    fails_in = None


def _listens(event):
    def hear(self, args, state, control, **kwargs):
        self.trainer.note(event)
        if (event, state.global_step) == self.fails_in:
            raise KeyError("planted")

    return hear


for name in EVENTS:
    setattr(Listens, f"on_{name}", _listens(name))


class Notes(Trainer):
    """Writes down (place, whether it is the last micro-batch of an update)."""

    notes: list
    limit = 100

    def note(self, place):
        assert self.accelerator.sync_gradients == self.accelerator.gradient_state.sync_gradients
        self.notes.append((place, self.accelerator.sync_gradients))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.note("loss")
        if len(inputs["labels"]) > self.limit:
            raise RuntimeError("out of memory")
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


@pytest.fixture
def noting(arguments):
    def make(model, data, fails_in=None, **given):
        listener = Listens()
        options = {"num_train_epochs": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3} | given
        trainer = Notes(model, arguments(**options), train_dataset=data, eval_dataset=data[:2], callbacks=[listener])
        listener.trainer, listener.fails_in, trainer.notes = trainer, fails_in, []
        return trainer

    return make


@pytest.fixture(params=["", "transformers"], ids=["own", "of_transformers"])
def script(request, monkeypatch):
    emulate(monkeypatch, {request.param} - {""})


FIRST = [("step_begin", False), ("loss", False), ("substep_end", False)]
MIDDLE = [("loss", False), ("substep_end", False)]
APPLIED = [("pre_optimizer_step", True), ("optimizer_step", True), ("step_end", True)]
EVALUATED = [("loss", True), ("prediction_step", True)]
WHOLE = [*FIRST, *MIDDLE, ("loss", True), *APPLIED]
SHORT = [("step_begin", True), ("loss", True), *APPLIED]


def test_the_last_micro_batch_of_an_update(backend, script, noting):
    """Seven micro-batches by three, with an evaluation after each update."""
    trainer = noting(backend.classifier(), rows(14), eval_strategy="steps", eval_steps=1)
    assert trainer.accelerator.sync_gradients is True
    trainer.train()
    assert trainer.notes == [*WHOLE, *EVALUATED, *WHOLE, *EVALUATED, *SHORT, *EVALUATED, ("epoch_end", True)]


def test_micro_batches_without_labels_are_not_the_last(backend, noting):
    """They are not computed: what a script does once in an update it does in the last one that is."""
    trainer = noting(backend.tagger(), tagged([3] * 6, unlabelled=[4, 5]), train_sampling_strategy="sequential")
    trainer.train()
    middle = [("loss", True), ("substep_end", False)]
    assert trainer.notes == [*FIRST, *middle, *APPLIED, ("epoch_end", True)]


def test_micro_batches_that_are_cut(backend, noting):
    """After running out of memory; the next update begins with the smaller ones."""
    trainer = noting(
        backend.classifier(), rows(8), gradient_accumulation_steps=1, per_device_train_batch_size=4,
        auto_find_batch_size=True,
    )  # fmt: skip
    trainer.limit = 2
    trainer.train()
    tried = [("step_begin", True), ("loss", True)]
    assert trainer.notes == [*tried, *FIRST[1:], ("loss", True), *APPLIED, *FIRST, ("loss", True), *APPLIED,
                             ("epoch_end", True)]  # fmt: skip


@pytest.mark.parametrize("place", [("substep_end", 1), ("step_begin", 1)])
def test_an_error_within_an_update_leaves_none_under_way(backend, noting, place):
    trainer = noting(backend.classifier(), rows(14), fails_in=place)
    with pytest.raises(KeyError, match="planted"):
        trainer.train()
    assert trainer.notes[-1] == (place[0], False)
    trainer.note("after")
    assert trainer.notes[-1] == ("after", True)


def test_steps_that_are_left_out_accumulate_nothing(backend, noting):
    trainer = noting(backend.classifier(), rows(14), max_steps=1)
    trainer.train()
    part_of(trainer, "update").begin([None] * 3, None)
    assert trainer.accelerator.sync_gradients is True


# -- the context of accelerate


def test_accumulating_by_accelerates_context(backend, arguments, monkeypatch):
    """In scripts of transformers it counts for itself, of one micro-batch in an update unless it is told."""
    emulate(monkeypatch, {"transformers"})
    given = Trainer(backend.classifier(), arguments(gradient_accumulation_steps=4)).accelerator
    assert (given.gradient_accumulation_steps, given.step) == (1, 0)
    found = []
    for steps in (1, 3):
        given.gradient_accumulation_steps = steps
        assert given.gradient_accumulation_steps == given.gradient_state.num_steps == steps
        for _ in range(3):
            with given.accumulate():
                found.append((given.step, given.sync_gradients))
    given.sync_gradients = True
    given.gradient_accumulation_steps = 1
    assert found == [(1, True), (2, True), (3, True), (4, False), (5, False), (6, True)]


def test_the_end_of_a_loader_ends_an_update(arguments, monkeypatch):
    """Of a loader of accelerate, in a loop of the script's own."""
    torch = pytest.importorskip("torch")
    emulate(monkeypatch, {"transformers"})
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: False)
    given = Trainer(torch.nn.Linear(2, 2), arguments()).accelerator
    given.gradient_accumulation_steps, found = 3, []
    for ends in (False, True, False):
        given.gradient_state.end_of_dataloader = ends
        with given.accumulate():
            found.append((given.step, given.sync_gradients))
    assert found == [(1, False), (0, True), (1, False)]


class Model:
    """As DDP's wrapper: gradients are exchanged outside of no_sync()."""

    within = 0

    def no_sync(self):
        self.within += 1
        return nullcontext()


@pytest.mark.parametrize(("processes", "every", "entered"), [(1, False, 2), (2, False, 2), (2, True, 0), (1, True, 2)])
def test_gradients_are_exchanged_at_the_end_of_an_update(arguments, monkeypatch, processes, every, entered):
    torch = pytest.importorskip("torch")
    emulate(monkeypatch, {"transformers"})
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: False)
    options = {"gradient_accumulation_kwargs": {"sync_each_batch": every}}
    given = Trainer(torch.nn.Linear(2, 2), arguments(accelerator_config=options)).accelerator
    monkeypatch.setattr(type(given), "use_distributed", processes > 1)
    given.gradient_accumulation_steps, model = 3, Model()
    for _ in range(3):
        with given.accumulate(model):
            pass
    assert model.within == entered


def test_in_scripts_of_ones_own_the_trainer_accumulates(backend, arguments):
    given = Trainer(backend.classifier(), arguments(gradient_accumulation_steps=4)).accelerator
    assert given.gradient_accumulation_steps == 4
    given.sync_gradients = False
    with given.accumulate():
        assert (given.sync_gradients, given.step) == (False, 0)
    given.sync_gradients = True
    with pytest.raises(ArgumentError, match="was set to 2, but the Trainer accumulates. Set gradient_accumulation_ste"):
        given.gradient_accumulation_steps = 2


# -- whose state it is


def test_without_accelerate_the_names_are_the_same(backend, arguments, monkeypatch):
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: False)
    state = Trainer(backend.classifier(), arguments()).accelerator.gradient_state
    assert (state.sync_gradients, state.num_steps, state.plugin_kwargs) == (True, 1, {"num_steps": 1})
    assert (state.in_dataloader, state.end_of_dataloader, state.remainder) == (False, False, -1)
    assert (state.adjust_scheduler, state.sync_with_dataloader) == (False, True)


def test_with_accelerate_the_state_is_that_of_the_process(backend, noting, monkeypatch):
    """Also if it is imported later; in the middle of a run, from the next one on."""
    states = pytest.importorskip("accelerate.state")
    with monkeypatch.context() as without:
        without.setattr(accelerate_state, "is_imported", lambda: False)
        trainer = noting(backend.classifier(), rows(6))
        given = trainer.accelerator
        assert not isinstance(given.gradient_state, states.GradientState)

    class Asks(TrainerCallback):
        found = []

        def on_substep_end(self, args, state, control, **kwargs):
            self.found.append(states.GradientState().sync_gradients)

    trainer.add_callback(Asks())
    trainer.train()
    assert isinstance(given.gradient_state, states.GradientState)
    assert trainer.notes == [*WHOLE, ("epoch_end", True)] and Asks.found == [False, False]
    states.GradientState().sync_gradients = False
    assert given.sync_gradients is False
    given.sync_gradients = True
    assert states.GradientState().sync_gradients is True


def test_the_state_stays_the_same_within_a_run(backend, noting, monkeypatch):
    pytest.importorskip("accelerate.state")
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: False)
    trainer = noting(backend.classifier(), rows(6))

    class Imports(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            monkeypatch.setattr(accelerate_state, "is_imported", lambda: True)

    trainer.add_callback(Imports())
    trainer.train()
    assert trainer.notes == [*WHOLE, ("epoch_end", True)]
