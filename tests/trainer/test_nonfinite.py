"""A loss or a gradient that is not finite: stop, skip or ignore; at once, or a step late on an accelerator."""

import json
import math

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.backends import loading
from oneloop.checkpoint.model_files import BLOCK, is_finite
from oneloop.data.order import Order
from oneloop.errors import ModelError, NonFiniteError
from oneloop.formats.safetensors_io import Raw
from tests.backends.support import DEVICE, refuses_half, rows, same_bytes
from tests.internals import backend_of, engine_of, processes_of

BATCH, SAMPLES = 4, 24
RUN = {"learning_rate": 0.05, "per_device_train_batch_size": BATCH, "num_train_epochs": 1, "logging_steps": 1}


class Late(Trainer):
    """A CPU that behaves as an accelerator does: flags are read a step later."""

    def create_optimizer_and_scheduler(self, num_training_steps):
        engine_of(self).late = True
        super().create_optimizer_and_scheduler(num_training_steps)


def poisoned(step, samples=SAMPLES, accumulation=1):
    """Data whose sample at the first position of that step (from 1) is NaN; the indices of the step's samples."""
    data = rows(samples)
    size = BATCH * accumulation
    indices = Order(samples, 42, 0)[(step - 1) * size : step * size].tolist()
    data[indices[0]]["x"] = np.full_like(data[indices[0]]["x"], np.nan)
    return data, indices


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
@pytest.mark.parametrize("step", [1, 3, 6])
def test_stop_names_step_samples_and_checkpoint(backend, arguments, tmp_path, optim, step):
    data, indices = poisoned(step)
    model = backend.classifier()
    good = {}

    class Kept(Trainer):
        def log(self, logs, start_time=None):
            good[self.state.global_step] = backend.weights(model)
            super().log(logs, start_time)

    args = arguments(optim=optim, save_strategy="steps", save_steps=1, **RUN)
    trainer = Kept(model, args, train_dataset=data)
    before = backend.weights(model)
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    text = str(error.value)
    assert f"step {step}:" in text and str(indices) in text
    last = f"checkpoint-{step - 1}" if step > 1 else "none in this run"
    if processes_of(trainer).rank == 0:
        assert f"Last checkpoint: {tmp_path / 'out' / last if step > 1 else last}." in text
    else:
        assert "Last checkpoint: see process 0." in text
    assert same_bytes(backend.weights(model), good.get(step - 1, before))
    # On an accelerator the step has ended when the news comes, but not its save.
    assert trainer.state.global_step == (step if backend.is_late else step - 1) and not trainer.is_in_train


def test_samples_of_an_accumulated_update_and_of_an_incomplete_one(backend, arguments):
    data, indices = poisoned(2, samples=21, accumulation=3)
    trainer = Trainer(backend.classifier(), arguments(gradient_accumulation_steps=3, **RUN), train_dataset=data)
    with pytest.raises(NonFiniteError, match="step 2") as error:
        trainer.train()
    assert len(indices) == 9 and str(indices) in str(error.value)


def test_samples_that_drop_last_drops_are_not_named(backend, arguments):
    data, indices = poisoned(2, samples=21, accumulation=3)
    args = arguments(gradient_accumulation_steps=3, dataloader_drop_last=True, **RUN)
    with pytest.raises(NonFiniteError, match="step 2") as error:
        Trainer(backend.classifier(), args, train_dataset=data).train()
    assert str(indices[:8]) in str(error.value)


@pytest.mark.parametrize("cls", [Trainer, Late])
@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
@pytest.mark.parametrize("step", [1, 3, 6])
def test_skip_leaves_the_step_out_aloud(backend, trained, caplog, cls, optim, step):
    data, indices = poisoned(step)
    model, expected = backend.classifier(), backend.classifier()
    options = RUN | {"optim": optim, "lr_scheduler_type": "constant"}
    trainer = trained(model, data, cls, nonfinite="skip", **options)
    order = [i for i in Order(SAMPLES, 42, 0)[:].tolist() if i not in indices]
    clean = rows(SAMPLES)
    trained(expected, [clean[i] for i in order], train_sampling_strategy="sequential", **options)
    assert same_bytes(backend.weights(model), backend.weights(expected))
    assert trainer.state.global_step == 6 and trainer.result.metrics["skipped_steps"] == 1
    said = [r.getMessage() for r in caplog.records if "nonfinite='skip'" in r.getMessage()]
    assert len(said) == 1 and f"step {step}:" in said[0] and str(indices) in said[0]


def test_ignore_lets_it_through(backend, trained):
    data, _ = poisoned(2)
    model = backend.classifier()
    trained(model, data, nonfinite="ignore", **RUN)
    assert np.isnan(backend.weights(model)["hidden.weight"]).all()


@pytest.mark.parametrize("step", [2, 5, 6])
def test_late_flag_masks_the_update_and_is_told_a_step_later(backend, arguments, step):
    """A fused optimizer never waits for the flag: the step after the bad one is under way when the news comes."""
    data, indices = poisoned(step)
    model, expected = backend.classifier(), backend.classifier()
    trainer = Late(model, arguments(**RUN), train_dataset=data)
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    assert f"step {step}:" in str(error.value) and str(indices) in str(error.value)
    if not backend.masks_updates:
        assert trainer.state.global_step == step - 1, "the flag is read at once"
        return
    assert trainer.state.global_step == (step if step < 6 else 6), "the last step is told at the end of training"
    skipped = Late(expected, arguments(nonfinite="skip", **(RUN | {"max_steps": 6})), train_dataset=data)
    weights = {}

    class Keep:
        def on_optimizer_step(self, args, state, control, **kwargs):
            weights[state.global_step + 1] = backend.weights(expected)

    skipped.add_callback(Keep())
    skipped.train()
    assert same_bytes(backend.weights(model), weights[min(step + 1, 6)])
    assert same_bytes(weights[step], weights[step - 1]) and np.isfinite(weights[6]["head.weight"]).all()


def test_late_flag_undoes_the_update_of_an_optimizer_without_a_mask(backend, arguments):
    """Where the device can: else the flag is read at once."""
    data, _ = poisoned(3)
    model = backend.classifier()
    trainer = Late(model, arguments(optim="sgd", **RUN), train_dataset=data)
    with pytest.raises(NonFiniteError, match="step 3"):
        trainer.train()
    assert trainer.state.global_step == (3 if backend.masks_updates else 2)
    assert np.isfinite(backend.weights(model)["head.weight"]).all()


def test_late_clipping_gives_the_same_bytes(backend, trained):
    weights = []
    for cls in (Trainer, Late):
        model = backend.classifier()
        trained(model, rows(SAMPLES), cls, max_grad_norm=0.3, **RUN)
        weights.append(backend.weights(model))
    assert same_bytes(*weights)


@pytest.mark.parametrize("cls", [Trainer, Late])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_loss_that_is_nan_while_its_gradients_are_finite(backend, arguments, cls, clip):
    def criterion(logits, labels):
        return backend.cross_entropy(logits, labels) + math.nan

    trainer = cls(
        backend.classifier("logits"),
        arguments(max_grad_norm=clip, **RUN),
        train_dataset=rows(SAMPLES),
        criterion=criterion,
    )
    with pytest.raises(NonFiniteError, match="step 1"):
        trainer.train()


@pytest.mark.parametrize("filtered", [True, False])
def test_the_filter_touches_the_logged_average_alone(backend, trained, filtered):
    steps = []

    def criterion(logits, labels):
        steps.append(1)
        return backend.cross_entropy(logits, labels) + (math.nan if len(steps) == 3 else 0.0)

    options = RUN | {"logging_steps": 3, "nonfinite": "ignore", "logging_nan_inf_filter": filtered}
    model = backend.classifier("logits")
    trainer = trained(model, rows(SAMPLES), criterion=criterion, **options)
    losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    assert math.isnan(losses[0]) is not filtered and math.isfinite(losses[1])
    assert math.isnan(trainer.result.training_loss) is not filtered
    if filtered:
        assert 0.5 < losses[0] < 2.0
    assert np.isfinite(backend.weights(model)["head.weight"]).all()


def test_an_overflow_of_the_loss_scaler_is_normal(backend, arguments, trained, caplog):
    if refuses_half(backend, arguments, fp16=True):
        return
    model = backend.classifier()
    before = backend.weights(model)
    options = RUN | {"num_train_epochs": 4}
    trainer = trained(model, rows(SAMPLES), fp16=True, scale_loss=2.0**24, **options)
    skipped = [e.get("skipped_steps", 0) for e in trainer.state.log_history if "loss" in e]
    scales = [e["loss_scale"] for e in trainer.state.log_history if "loss" in e]
    assert skipped[0] == 1 and 1 < skipped[-1] < 20 and trainer.result.metrics["skipped_steps"] == skipped[-1]
    assert scales[0] == 2.0**23 and scales[-1] == 2.0 ** (24 - skipped[-1])
    assert not same_bytes(before, backend.weights(model))
    assert np.isfinite(backend.weights(model)["head.weight"]).all()
    assert "not finite" not in caplog.text


def test_an_overflow_at_the_smallest_scale_stops(backend, arguments):
    if refuses_half(backend, arguments, fp16=True):
        return

    def criterion(logits, labels):
        return backend.cross_entropy(logits, labels) * 1e30

    trainer = Trainer(
        backend.classifier("logits"),
        arguments(fp16=True, scale_loss=4.0, **RUN),
        train_dataset=rows(SAMPLES),
        criterion=criterion,
    )
    with pytest.raises(NonFiniteError, match="step 3"):
        trainer.train()


@pytest.mark.parametrize("nonfinite", ["stop", "skip", "ignore"])
def test_a_nan_under_the_loss_scaler_is_one(backend, arguments, caplog, nonfinite):
    if refuses_half(backend, arguments, fp16=True):
        return
    data, _ = poisoned(3)
    model = backend.classifier()
    trainer = Trainer(model, arguments(fp16=True, nonfinite=nonfinite, **RUN), train_dataset=data)
    if nonfinite == "stop":
        with pytest.raises(NonFiniteError, match="step 3"):
            trainer.train()
        return
    trainer.train()
    assert trainer.state.global_step == 6 and ("step 3:" in caplog.text) is (nonfinite == "skip")
    assert np.isfinite(backend.weights(model)["head.weight"]).all(), "the scaler itself leaves such a step out"


# -- what a skipped update leaves behind

BAD = {"nonfinite": "skip", "optim": "sgd", "lr_scheduler_type": "constant"}


def without(step, run):
    """The samples of a run in its order, without those of a step."""
    _, indices = poisoned(step)
    order = [i for i in Order(SAMPLES, 42, 0)[:].tolist() if i not in indices]
    clean = rows(SAMPLES)
    return [clean[i] for i in order], run | {"train_sampling_strategy": "sequential"}


@pytest.mark.parametrize(
    ("cls", "optim", "step"), [(Trainer, "sgd", 1), (Trainer, "adamw_torch", 4), (Late, "adamw_torch", 4)]
)
def test_statistics_of_a_norm_are_those_without_the_skipped_update(backend, trained, cls, optim, step):
    if cls is Late and not backend.masks_updates:
        pytest.skip("the flag is on the host")
    data, _ = poisoned(step)
    model, expected = backend.classifier(norm=True), backend.classifier(norm=True)
    run = RUN | BAD | {"optim": optim}
    trained(model, data, cls, **run)
    data, run = without(step, run)
    trained(expected, data, **run)
    assert same_bytes(backend.weights(model), backend.weights(expected))


def test_statistics_of_an_accumulated_update_are_restored(backend, trained):
    data, _ = poisoned(2, accumulation=2)
    model = backend.classifier(norm=True)
    trained(model, data, gradient_accumulation_steps=2, **RUN | BAD)
    assert all(np.isfinite(value).all() for value in backend.weights(model).values())


@pytest.mark.slow
@pytest.mark.skipif(
    DEVICE != "cpu", reason="torch.compile cannot trace tensors of a device that is simulated in Python"
)
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_statistics_of_a_compiled_model_are_restored(trained, compiler):
    torch = pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    data, _ = poisoned(4)
    model = Kit().classifier(norm=True)
    trained(model, data, torch_compile=True, torch_compile_backend=compiler, **RUN | BAD)
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers()) and model.norm.num_batches_tracked == 5


def test_a_norm_that_is_frozen_at_first(backend, trained):
    """Its statistics are constant in the first updates; the first update that changes them is a bad one."""
    data, _ = poisoned(4)
    model = backend.classifier(norm=True)
    before = {}

    def train(layer, on):
        getattr(layer, "train" if on else "eval")() if backend.name != "mindspore" else layer.set_train(on)

    class Frozen(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            train(self.model.norm, self.state.global_step >= 3)
            before[self.state.global_step + 1] = backend.weights(self.model)
            return super().training_step(model, inputs, num_items_in_batch)

    class Seen:
        def on_step_end(self, args, state, control, **kwargs):
            before[state.global_step, "after"] = backend.weights(model)

    trained(model, data, Frozen, callbacks=[Seen()], **RUN | BAD)
    statistics = [name for name in before[1] if name.startswith("norm") and "weight" not in name and "bias" not in name]
    statistics = [name for name in statistics if "gamma" not in name and "beta" not in name]
    assert len(statistics) >= 2
    for name in statistics:
        assert same_bytes({name: before[4][name]}, {name: before[4, "after"][name]}), "restored"
        assert not same_bytes({name: before[5][name]}, {name: before[5, "after"][name]}), "and changed by a good one"


def test_a_buffer_that_is_changed_without_a_trace(backend, trained):
    """Constant at first, then written to in updates, through memory that is shared with it: a skipped one is undone."""
    data, _ = poisoned(4)
    model, seen = backend.classifier(), {}
    model.register_buffer("codes", backend.tensor(np.zeros(2, np.float32)))

    class Writing(Trainer):
        def training_step(self, *given, **named):
            if self.state.global_step in (2, 3):
                if backend.name == "mindspore":
                    model.codes.asnumpy()[...] += 1
                elif backend.name == "paddle":
                    model.codes.detach().add_(backend.tensor(np.ones(2, np.float32)))
                else:
                    model.codes.data.add_(1)
            return super().training_step(*given, **named)

    class Seen:
        def on_step_end(self, args, state, control, **kwargs):
            seen[state.global_step] = loading.load(backend.name).tensors.to_numpy(model.codes).tolist()

    trained(model, data, Writing, callbacks=[Seen()], **RUN | BAD)
    assert [seen[step] for step in (2, 3, 4, 5)] == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]


def test_buffers_that_code_changes_between_updates_keep_their_new_values(backend, trained):
    data, _ = poisoned(3)
    model = backend.classifier(norm=True)

    class Reset:
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                buffers = loading.load(backend.name).models.buffers(model)
                tensors = loading.load(backend.name).tensors
                ones = [b for b in buffers if b.current.shape]
                copies = tensors.keep([b.current for b in ones], [None] * len(ones))
                for copy in copies:
                    copy[...] = 7.0
                tensors.restore_copies([b.current for b in ones], copies)

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                kept.update(backend.weights(model))

    kept = {}
    trained(model, data, callbacks=[Reset()], **RUN | BAD)
    assert sum((value == 7.0).all() for value in kept.values()) == 2, "the running mean and variance"


def test_every_update_skipped(backend, trained, caplog):
    def criterion(logits, labels):
        return backend.cross_entropy(logits, labels) + math.nan

    run = RUN | BAD | {"num_train_epochs": 3, "nonfinite_limit": 0}
    trainer = trained(backend.classifier("logits"), rows(SAMPLES), criterion=criterion, **run)
    assert math.isnan(trainer.result.training_loss) and math.isnan(trainer.result.metrics["train_loss"])
    assert all(math.isnan(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    assert trainer.result.metrics["skipped_steps"] == 18
    said = [r.getMessage() for r in caplog.records if "nonfinite='skip'" in r.getMessage()]
    assert len(said) == 6 and "only the 10th" in said[4] and "10 updates have been skipped" in said[5]


@pytest.mark.parametrize("limit", [1, 4])
def test_the_run_stops_after_too_many_in_a_row(backend, arguments, limit):
    data = rows(SAMPLES)
    for index in Order(SAMPLES, 42, 0)[2 * BATCH :].tolist():
        data[index]["x"] = np.full_like(data[index]["x"], np.nan)
    args = arguments(nonfinite_limit=limit, **RUN | BAD)
    trainer = Trainer(backend.classifier(), args, train_dataset=data)
    with pytest.raises(NonFiniteError, match=rf"step {2 + limit}: .*{limit} updates in a row were skipped"):
        trainer.train()


def test_a_good_update_in_between_starts_the_count_again(backend, trained):
    data = rows(SAMPLES)
    for step in (1, 2, 4, 5):
        for index in Order(SAMPLES, 42, 0)[(step - 1) * BATCH : step * BATCH].tolist():
            data[index]["x"] = np.full_like(data[index]["x"], np.nan)
    trainer = trained(backend.classifier(), data, nonfinite_limit=3, **RUN | BAD)
    assert trainer.state.global_step == 6 and trainer.result.metrics["skipped_steps"] == 4


# -- checkpoints


def spoiled(step, where):
    """A Trainer whose model is not finite after that step: its weights or, if it has a norm, its statistics."""

    class Spoiled(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.add_callback(Spoil(self))

    class Spoil:
        def __init__(self, trainer):
            self.trainer = trainer

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                backend = backend_of(self.trainer)
                found = dict(backend.models.named_parameters(self.trainer.model))
                found |= {b.name: b.current for b in backend.models.buffers(self.trainer.model)}
                tensors = [tensor for name, tensor in found.items() if where in name and len(tensor.shape) == 1]
                assert tensors
                copies = backend.tensors.keep(tensors, [None] * len(tensors))
                for copy in copies:
                    copy[...] = math.inf
                backend.tensors.restore_copies(tensors, copies)

    return Spoiled


@pytest.mark.parametrize(("where", "background"), [("hidden.bias", True), ("norm.", False)])
def test_weights_that_are_not_finite_are_not_committed(backend, arguments, tmp_path, where, background):
    args = arguments(save_strategy="steps", save_steps=2, save_async=background, **RUN | BAD)
    trainer = spoiled(4, where)(backend.classifier(norm=True), args, train_dataset=rows(SAMPLES))
    trainer.train()
    assert [p.name for p in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-2"]
    events = [json.loads(line) for line in (tmp_path / "out" / "run.jsonl").read_text().splitlines()]
    failed = [e for e in events if e["event"] == "save_failed"]
    assert [e["what"] for e in failed] == ["checkpoint-4", "checkpoint-6"] and where in failed[0]["error"]


@pytest.mark.parametrize("where", ["hidden.bias", "norm."])
def test_with_stop_such_a_save_ends_the_run(backend, arguments, tmp_path, where):
    args = arguments(save_strategy="steps", save_steps=3, **RUN | {"optim": "sgd"})
    trainer = spoiled(6, where)(backend.classifier(norm=True), args, train_dataset=rows(SAMPLES))
    with pytest.raises(NonFiniteError, match=rf"checkpoint-6: .*{where}.*Last checkpoint: .*checkpoint-3\."):
        trainer.train()
    assert [p.name for p in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-3"]


def test_with_ignore_it_is_saved_with_a_warning(backend, trained, tmp_path, caplog, where="norm."):
    run = RUN | {"nonfinite": "ignore", "save_strategy": "steps", "save_steps": 6}
    trained(backend.classifier(norm=True), rows(SAMPLES), spoiled(6, where), **run)
    assert (tmp_path / "out" / "checkpoint-6").is_dir()
    said = [r.getMessage() for r in caplog.records if "is saved, but" in r.getMessage()]
    assert len(said) == 1 and "checkpoint-6" in said[0] and where in said[0]


def test_an_override_that_writes_the_model_itself(backend, arguments, tmp_path):
    class Own(spoiled(4, "hidden.bias")):
        def save_model(self, output_dir=None, _internal_call=False):
            super().save_model(output_dir, _internal_call)

    args = arguments(save_strategy="steps", save_steps=2, **RUN | BAD)
    Own(backend.classifier(), args, train_dataset=rows(SAMPLES)).train()
    assert [p.name for p in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-2"]


def test_buffers_that_are_not_finite_from_the_start_are_saved(backend, arguments, tmp_path):
    model = backend.classifier(norm=True)
    module = loading.load(backend.name)
    buffers = [b.current for b in module.models.buffers(model) if b.current.shape]
    copies = module.tensors.keep(buffers, [None] * len(buffers))
    for copy in copies:
        copy[...] = math.inf
    module.tensors.restore_copies(buffers, copies)
    args = arguments(save_strategy="steps", save_steps=6, **RUN)
    Trainer(model, args, train_dataset=rows(SAMPLES)).train()
    assert (tmp_path / "out" / "checkpoint-6").is_dir()


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "I32", "BOOL"])
def test_stored_values(dtype):
    infinite = {"BF16": 0x7F80, "F8_E5M2": 0x7C, "F8_E4M3": 0x7F}
    largest = {"BF16": 0x7F7F, "F8_E5M2": 0x7B, "F8_E4M3": 0x7E}
    kind = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "I32": "i4"}.get(dtype, "u1")
    array = np.full(BLOCK + 3, largest.get(dtype, 1), kind)
    assert is_finite(Raw(dtype, array.shape, array))
    if dtype in ("I32", "BOOL"):
        return
    array[-1] = infinite.get(dtype, math.nan)
    assert not is_finite(Raw(dtype, array.shape, array))


# -- the optimizer


@pytest.mark.parametrize("own", [True, False], ids=["the model's loss", "a criterion"])
def test_an_optimizer_of_another_model(backend, arguments, own):
    model = backend.classifier("dict" if own else "logits")
    before = backend.weights(model)
    given = {"optimizers": (backend.sgd(backend.classifier(seed=1)), None)}
    given |= {} if own else {"criterion": backend.cross_entropy}
    trainer = Trainer(model, arguments(**RUN), train_dataset=rows(SAMPLES), **given)
    if backend.name == "mindspore" and not own:
        with pytest.raises(ValueError, match="already exists"):  # of MindSpore, since parameters have the same names
            trainer.train()
        return
    with pytest.raises(ModelError, match="none of the model's parameters"):
        trainer.train()
    assert same_bytes(before, backend.weights(model))


@pytest.mark.parametrize("at", [2, 3, 5])
def test_averages_of_losses_do_not_depend_on_saves_in_between(backend, arguments, tmp_path, at):
    """A save reads the losses; a loss that is not finite counts as the average of its log all the same."""
    data, _ = poisoned(3)

    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == at
            return control

    def run(folder, callbacks, resume=None, **given):
        args = arguments(output_dir=str(tmp_path / folder), nonfinite="skip", **{**RUN, "logging_steps": 4, **given})
        trainer = Trainer(backend.classifier(), args, train_dataset=data, callbacks=callbacks)
        found = trainer.train(resume_from_checkpoint=resume)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], found.training_loss

    plain = run("plain", [], save_strategy="no")
    assert all(map(math.isfinite, plain[0])) and math.isfinite(plain[1])
    assert run("saved", [Saves()], save_strategy="steps", save_steps=100) == plain
    resumed = run("saved", [], tmp_path / "saved" / f"checkpoint-{at}", save_strategy="no")
    assert resumed == plain


def test_updates_in_a_row_are_counted_across_a_resume(backend, arguments, tmp_path):
    """A run that is interrupted between bad updates ends where the unbroken one does."""

    class Bad(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            if self.state.global_step in (2, 3, 4):
                inputs = inputs | {"x": inputs["x"] * float("nan")}
            return super().training_step(model, inputs, num_items_in_batch)

    def ended_at(resume=None, **given):
        options = {"max_steps": 8, "nonfinite": "skip", "nonfinite_limit": 3, "save_strategy": "steps", "save_steps": 4}
        args = arguments(output_dir=str(tmp_path), **options | given)
        trainer = Bad(backend.classifier(), args, train_dataset=rows(24))
        with pytest.raises(NonFiniteError, match="3 updates in a row were skipped"):
            trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step

    assert ended_at() == ended_at(resume=True)
