"""Details in which a script that was written for transformers would notice another Trainer."""

import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import oneloop
from oneloop import EarlyStoppingCallback, Trainer, TrainerCallback, TrainerState
from oneloop.compat import mode
from oneloop.errors import DiskError, ModelError
from oneloop.plan import request
from tests.backends.support import rows
from tests.emulation import emulate
from tests.internals import backend_of, set_processes


@pytest.fixture(autouse=True)
def follows_transformers(monkeypatch):
    emulate(monkeypatch, {"transformers"})


# -- the constructor


def of_loss(outputs, labels, num_items_in_batch=None):
    return 0


def of_metrics(prediction):
    return {}


def of_logits(logits, labels):
    return logits


def test_all_arguments_by_position(backend, arguments, monkeypatch):
    callback, pair = TrainerCallback(), (None, None)
    given = (backend.classifier(), arguments(), None, rows(4), rows(4), None, None)
    monkeypatch.setattr(mode, "version_of_transformers", lambda: (5, 22))
    trainer = Trainer(*given, of_loss, of_metrics, [callback], pair, None, of_logits)
    found = trainer.compute_loss_func, trainer.compute_metrics, trainer.preprocess_logits_for_metrics
    assert found == (of_loss, of_metrics, of_logits) and callback in trainer.callback_handler.callbacks
    monkeypatch.setattr(mode, "version_of_transformers", lambda: (4, 45))
    trainer = Trainer(*given, of_metrics, [callback], pair, of_logits, compute_loss_func=of_loss)
    found = trainer.compute_loss_func, trainer.compute_metrics, trainer.preprocess_logits_for_metrics
    assert found == (of_loss, of_metrics, of_logits)
    with pytest.raises(TypeError, match="compute_metrics twice"):
        Trainer(*given, of_metrics, compute_metrics=of_metrics)
    with pytest.raises(TypeError, match="11 parameters, but 12 were given"):
        Trainer(*given, of_metrics, None, pair, None, None)
    emulate(monkeypatch, set())
    with pytest.raises(ValueError, match="by keyword"):
        Trainer(*given, of_metrics)


def test_the_output_directory_exists_after_the_constructor(backend, arguments, tmp_path, monkeypatch):
    Trainer(backend.classifier(), arguments(output_dir=tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    for place, name, value in ((request, "_current", request.Request({})), (type(arguments()), "should_save", False)):
        with monkeypatch.context() as patch:  # `oneloop plan`, and a process that writes nothing
            patch.setattr(place, name, value)
            Trainer(backend.classifier(), arguments(output_dir=tmp_path / "c"))
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(DiskError, match="cannot write to .*Not a directory. Choose another"):
        Trainer(backend.classifier(), arguments(output_dir=tmp_path / "file" / "out"))
    emulate(monkeypatch, set())
    Trainer(backend.classifier(), arguments(output_dir=tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_a_state_begins_with_epoch_0(backend, arguments, monkeypatch):
    assert TrainerState().epoch == 0 == Trainer(backend.classifier(), arguments()).state.epoch
    emulate(monkeypatch, set())
    assert TrainerState().epoch is None


def test_labels_of_a_model_for_question_answering():
    from oneloop.backends._common.helpers import label_names

    names = ["x", "start_positions", "end_positions", "kind_label"]
    assert label_names(names, "TinyForQuestionAnswering") == names[1:]
    assert label_names(names, "Tiny") == ["kind_label"]
    assert label_names(names[:3], "Tiny") == names[1:3]
    assert label_names(names[:2], "TinyForQuestionAnswering") == ["labels"], "one position alone is an input"
    assert label_names(["start_positions", "labels"], "TinyForQuestionAnswering") == ["labels"]


def renamed(model, name, forward):
    """A model of a class of that name, with this forward."""
    model.__class__ = type(name, (type(model),), {"forward": forward, "construct": forward})
    return model


def test_what_the_name_of_a_model_says_of_its_labels(backend, arguments):
    def answers(self, x, start_positions=None, end_positions=None, kind_label=None):
        return {}

    trainer = Trainer(renamed(backend.classifier(), "TinyForQuestionAnswering", answers), arguments())
    assert trainer.label_names == ["start_positions", "end_positions", "kind_label"]
    assert trainer._loss_shifts_labels is False
    trainer = Trainer(renamed(backend.classifier(), "TinyForCausalLM", answers), arguments())
    assert trainer.label_names == ["kind_label"]
    assert trainer._loss_shifts_labels == (backend.name != "paddle"), "there, the data set has shifted them"


# -- callbacks


class Saves(TrainerCallback):
    """Notes the order of saves and steps, and stops after the first save."""

    def __init__(self):
        self.events = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.events.append(("step", state.global_step))

    def on_save(self, args, state, control, **kwargs):
        self.events.append(("save", state.global_step))
        control.should_training_stop = True


def test_on_save_comes_before_the_next_step(backend, arguments, monkeypatch):
    """So that a callback that stops after a save stops at the same step in each run."""
    from oneloop.checkpoint.writer import SaveWriter

    in_background = []
    submit = SaveWriter.submit

    def noted(self, job, ends, name, background):
        in_background.append(background)
        return submit(self, job, ends, name, background)

    monkeypatch.setattr(SaveWriter, "submit", noted)
    given = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 2}
    callback = Saves()
    trainer = Trainer(backend.classifier(), arguments(**given), train_dataset=rows(8), callbacks=[callback])
    assert trainer.train().global_step == 2
    assert callback.events == [("step", 0), ("step", 1), ("save", 2)]
    Trainer(backend.classifier(), arguments(**given), train_dataset=rows(8)).train()
    assert in_background == [False, True, True], "no one waits for the others"
    emulate(monkeypatch, set())
    Trainer(backend.classifier(), arguments(**given), train_dataset=rows(8), callbacks=[Saves()]).train()
    assert in_background[3]


def test_a_save_of_all_processes_waits_for_no_callback(backend, arguments, monkeypatch):
    """Which may be that of one process, and then this one alone would wait for the others."""
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(8), callbacks=[Saves()])
    core = trainer._oneloop
    checkpointer = core.run.checkpointer
    assert not checkpointer.in_background
    monkeypatch.setattr(type(core.strategy), "is_sharded", True)
    assert checkpointer.in_background


# -- names of transformers


def test_the_seconds_of_a_run_in_its_logs(backend, arguments):
    """If tokens are counted."""
    args = arguments(max_steps=2, logging_steps=1, include_num_input_tokens_seen=True)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8))
    trainer.train()
    seconds = [entry["train_runtime"] for entry in trainer.state.log_history]
    assert 0 <= seconds[0] <= seconds[1] < 1000


def test_the_schedule_that_the_trainer_created(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(max_steps=2), train_dataset=rows(8))
    assert trainer._created_lr_scheduler is False
    trainer.train()
    assert trainer._created_lr_scheduler is True
    pair = trainer.optimizer, trainer.lr_scheduler
    assert Trainer(trainer.model, arguments(), optimizers=pair)._created_lr_scheduler is False


def test_items_are_counted_by_a_method_that_may_be_overridden(backend, arguments):
    seen = []

    class Own(Trainer):
        def _get_num_items_in_batch(self, batch_samples, device):
            found = super()._get_num_items_in_batch(batch_samples, device)
            seen.append((len(batch_samples), found))
            return found

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            seen.append(num_items_in_batch)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    args = arguments(max_steps=1, per_device_train_batch_size=3, gradient_accumulation_steps=2)
    Own(backend.classifier(), args, train_dataset=rows(6)).train()
    assert seen == [(2, 6), 6, 6]


def test_memory_that_a_copied_method_measures(backend, arguments):
    class Own(Trainer):
        def evaluate(self, *args, **kwargs):
            self._memory_tracker.start()
            metrics = {"kept": np.zeros(1000).sum()}
            self._memory_tracker.stop_and_update_metrics(metrics)
            return metrics

    model = backend.classifier()
    assert set(Own(model, arguments(), eval_dataset=rows(4)).evaluate()) == {"kept"}
    found = Own(model, arguments(skip_memory_metrics=False), eval_dataset=rows(4)).evaluate()
    assert {"kept", "eval_mem_cpu_alloc_delta", "eval_mem_cpu_peaked_delta"} <= set(found)


def test_training_values_of_data_without_a_length(arguments):
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows(4))

    args = arguments(max_steps=7, per_device_train_batch_size=3, gradient_accumulation_steps=2)
    trainer = Trainer(torch.nn.Linear(2, 2), args, train_dataset=Stream())
    values = trainer.set_initial_training_values(args, trainer.get_train_dataloader())
    assert values == (sys.maxsize, 7, 42, 42, 6, 14, 7)


def test_outputs_that_evaluations_ignore(tmp_path):
    torch = pytest.importorskip("torch")

    class Config:
        pass

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, x, labels=None):
            return {"loss": (x * self.weight).sum(), "logits": x, "past_key_values": x + 1}

    def predicted(has_config=True, **config):
        model = Model()
        if has_config:
            model.config = Config()
            vars(model.config).update(config)
        args = oneloop.TrainingArguments(tmp_path, report_to="none", use_cpu=True)
        found = Trainer(model, args).predict([{"x": np.ones(2, "f4"), "labels": 0}] * 2).predictions
        return len(found) if isinstance(found, tuple) else 1

    assert (predicted(has_config=False), predicted()) == (2, 1)
    counts = [predicted(keys_to_ignore_at_inference=given) for given in ([], ["logits"], None)]
    assert counts == [2, 1, 2]


# -- the loss


def test_smoothed_labels_divided_by_the_items_of_an_update(backend, arguments):
    """As compute_loss of 5.x calls it, in subclasses that copy it."""
    smoother = Trainer(backend.classifier(), arguments(label_smoothing_factor=0.1)).label_smoother
    random = np.random.default_rng(0)
    logits = backend.tensor(random.normal(size=(2, 3, 4)).astype("float32"))
    labels = backend.tensor(np.array([[1, 2, -100], [3, 0, 1]]))
    for shifted, count in ((False, 5), (True, 3)):
        mean = float(smoother({"logits": logits}, labels, shift_labels=shifted))
        share = float(smoother({"logits": logits}, labels, shift_labels=shifted, num_items_in_batch=10))
        assert share == pytest.approx(mean * count / 10, rel=1e-6)


def test_items_outside_of_training(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(per_device_train_batch_size=4), train_dataset=rows(10))
    batches = iter(trainer.get_train_dataloader())
    taken = [trainer.get_batch_samples(batches, 2, None) for _ in range(3)]
    assert [(len(found), items) for found, items in taken] == [(2, 8), (1, 2), (0, None)]


# -- methods that are assigned, rather than overridden


def mean_of(trainer, model, inputs):
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    return backend_of(trainer).tensors.smoothed_loss(outputs["logits"], labels, 0.0, False)


def own_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    return mean_of(self, model, inputs)


@pytest.mark.parametrize("where", ["subclass", "class", "object"])
def test_a_loss_that_is_assigned_counts_as_an_override(backend, arguments, monkeypatch, where):
    """It returns the mean of a micro-batch, and the update is that of the undivided batch all the same."""

    def trained(accumulation):
        cls = type("Own", (Trainer,), {"compute_loss": own_loss}) if where == "subclass" else Trainer
        if where == "class":
            monkeypatch.setattr(Trainer, "compute_loss", own_loss)
        args = arguments(
            max_steps=1, per_device_train_batch_size=8 // accumulation, gradient_accumulation_steps=accumulation
        )
        trainer = cls(backend.classifier(), args, train_dataset=rows(8))
        if where == "object":
            trainer.compute_loss = own_loss.__get__(trainer)
        return trainer.train().training_loss

    assert trained(4) == pytest.approx(trained(1), rel=1e-5)


def test_a_mock_in_place_of_a_method(backend, arguments, tmp_path):
    given = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "output_dir": tmp_path / "run"}
    trainer = Trainer(backend.classifier(), arguments(**given), train_dataset=rows(8))
    for name in ("compute_loss", "save_model", "get_train_dataloader", "_save_checkpoint"):
        setattr(trainer, name, mock.MagicMock(wraps=getattr(trainer, name)))
    trainer.train()
    assert trainer.compute_loss.call_count == 2 == trainer.save_model.call_count == trainer._save_checkpoint.call_count
    assert trainer.get_train_dataloader.call_count == 1
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]


def test_a_step_that_updates_the_model_itself(arguments, monkeypatch, caplog):
    torch = pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    class Own(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = model(**self._prepare_inputs(inputs))["loss"]
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            model.zero_grad()
            return loss.detach()

    def trainer():
        return Own(Kit().classifier(), arguments(max_steps=2), train_dataset=rows(8))

    before, trained = [p.clone() for p in Kit().classifier().parameters()], trainer()
    assert trained.train().global_step == 2
    assert any(not torch.equal(a, b) for a, b in zip(before, trained.model.parameters()))
    assert caplog.text.count("training_step has left no gradients") == 1
    emulate(monkeypatch, set())
    with pytest.raises(ModelError, match="no gradients to update the model with"):
        trainer().train()


def test_a_loss_that_no_parameter_has_a_part_in_is_an_error(arguments):
    """With the step of oneloop, which leaves gradients wherever there are any."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Linear):
        def forward(self, x, labels=None):
            return {"loss": x.requires_grad_().sum()}

    trainer = Trainer(Model(6, 2), arguments(max_steps=1), train_dataset=rows(8))
    with pytest.raises(ModelError, match="no gradients to update the model with"):
        trainer.train()


# -- models


def test_a_model_that_returns_its_loss_has_no_labels(arguments, monkeypatch):
    """compute_metrics is then called with the outputs alone."""
    torch = pytest.importorskip("torch")

    class Pairs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, x, return_loss=True):
            return {"loss": (x * self.weight).mean(), "logits": x}

    def metrics(prediction):
        return {"rows": len(prediction.predictions), "labels": prediction.label_ids == ()}

    data = [{"x": np.ones(2, "f4")}] * 3

    def trainer(**given):
        return Trainer(Pairs(), arguments(**given), eval_dataset=data, compute_metrics=metrics)

    found = trainer().evaluate()
    assert trainer().label_names == [] and (found["eval_rows"], found["eval_labels"]) == (3, True)
    assert trainer(label_names=["y"]).label_names == ["y"]
    emulate(monkeypatch, set())
    assert trainer().label_names == ["labels"]


def test_options_of_recomputation_that_are_not_those_of_torch(arguments):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.asked = torch.nn.Parameter(torch.ones(())), []

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None, **chosen):
            self.asked.append((gradient_checkpointing_kwargs, chosen))

    options = {"every_n_layers": 2, "offload": False, "use_reentrant": True}
    trainer = Trainer(Model(), arguments(gradient_checkpointing=True, gradient_checkpointing_kwargs=options))
    assert trainer.model.asked == [({"use_reentrant": True}, {"every_n_layers": 2, "offload": False})]
    assert trainer.args.gradient_checkpointing_kwargs == options
    trainer = Trainer(Model(), arguments(gradient_checkpointing=True))
    assert trainer.model.asked == [({"use_reentrant": False}, {})]


def test_what_a_generated_text_begins_with(tmp_path):
    """decoder_input_ids of the shape of the labels were made from them, and would leak them."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.given = torch.nn.Parameter(torch.ones(())), []

        def forward(self, input_ids, decoder_input_ids=None, labels=None):
            return {"loss": self.weight * 2, "logits": input_ids}

        def generate(self, input_ids, **kwargs):
            self.given.append("decoder_input_ids" in kwargs)
            return input_ids

    model = Model()
    args = oneloop.Seq2SeqTrainingArguments(tmp_path, predict_with_generate=True, report_to="none", use_cpu=True)
    trainer = oneloop.Seq2SeqTrainer(model, args)
    row = {"input_ids": [1, 2], "labels": [3, 4, 5]}
    for begin in ([0, 3, 4], [0]):
        trainer.predict([row | {"decoder_input_ids": begin}])
    trainer.predict([{"input_ids": [1, 2], "decoder_input_ids": [0, 3, 4]}])
    assert model.given == [False, True, True]


# -- the accelerator


def test_names_of_the_accelerator(backend, arguments, monkeypatch):
    args = arguments(max_steps=1, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8))
    accelerator = trainer.accelerator
    assert accelerator.gradient_accumulation_steps == 1 and accelerator.use_distributed is False
    with accelerator.accumulate(trainer.model):
        assert accelerator.on_main_process(len)([1, 2]) == 2 == accelerator.on_local_main_process(len)([1, 2])
    monkeypatch.setattr(type(accelerator), "is_main_process", False)
    monkeypatch.setattr(type(accelerator), "is_local_main_process", False)
    set_processes(trainer, SimpleNamespace(size=2, rank=1))
    assert accelerator.on_main_process(len)([1, 2]) is None is accelerator.on_local_main_process(len)([1, 2])
    assert accelerator.use_distributed is True and accelerator.num_processes == 2 and accelerator.process_index == 1
    emulate(monkeypatch, set())
    assert accelerator.gradient_accumulation_steps == 2


@pytest.mark.parametrize("bad", [True, False])
def test_whether_an_update_was_skipped(backend, arguments, bad):
    data = rows(4)
    if bad:
        data[0]["x"] = data[0]["x"] * np.float32("inf")
    args = arguments(max_steps=1, per_device_train_batch_size=4, nonfinite="skip")
    trainer = Trainer(backend.classifier(), args, train_dataset=data)
    trainer.train()
    assert trainer.accelerator.optimizer_step_was_skipped is bad


# -- search and the Hub


def test_a_search_without_model_init_is_a_runtime_error(backend, arguments):
    with pytest.raises(RuntimeError, match="needs model_init"):
        Trainer(backend.classifier(), arguments(), eval_dataset=rows(4)).hyperparameter_search(n_trials=1)


def test_an_upload_that_is_replaced_by_a_mock(backend, arguments, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    upload = mock.MagicMock()
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload)
    monkeypatch.setattr(hub.HfApi, "create_repo", mock.MagicMock(return_value=mock.MagicMock(repo_id="me/tiny")))
    given = {"push_to_hub": True, "hub_model_id": "me/tiny", "save_strategy": "steps", "save_steps": 1}
    trainer = Trainer(backend.classifier(), arguments(max_steps=1, **given), train_dataset=rows(4))
    trainer.train()
    assert trainer.hub_model_id == "me/tiny" and upload.call_count == 1
    assert trainer.push_to_hub() is upload.return_value and upload.call_count == 2


class Tokens:
    def __init__(self, pad_token_id, eos_token_id=9):
        self.pad_token_id, self.eos_token_id = pad_token_id, eos_token_id


def test_token_ids_filled_up(backend, tmp_path):
    args = oneloop.Seq2SeqTrainingArguments(tmp_path, report_to="none", device="cpu")
    ids = np.array([[1, 2], [3, 4]])

    def filled(tokenizer, config=None):
        model = backend.classifier()
        model.config = config
        trainer = oneloop.Seq2SeqTrainer(model, args, lambda rows: rows, processing_class=tokenizer)
        return backend.numpy(trainer._pad_tensors_to_max_len(backend.tensor(ids), 4)).tolist()

    assert filled(Tokens(0)) == [[1, 2, 0, 0], [3, 4, 0, 0]]
    assert filled(Tokens(None)) == [[1, 2, 9, 9], [3, 4, 9, 9]]
    for without in (None, object()):  # such as the processor of images
        assert filled(without, Tokens(7)) == [[1, 2, 7, 7], [3, 4, 7, 7]]
    with pytest.raises(ValueError, match="needs a pad token"):
        filled(None)


def test_the_device_by_its_old_name(backend, arguments):
    args = arguments()
    Trainer(backend.classifier(), args)
    assert args._setup_devices == args.device


# -- a resume


class StopsAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def test_a_run_that_a_callback_stopped_goes_on(backend, arguments, tmp_path, monkeypatch):
    """As after a stop for want of time. One that early stopping may have stopped does not."""
    given = {"output_dir": tmp_path / "run", "max_steps": 4, "save_strategy": "steps", "save_steps": 50}
    given |= {"eval_strategy": "epoch", "metric_for_best_model": "loss"}

    def steps(*callbacks, **how):
        data = {"train_dataset": rows(8), "eval_dataset": rows(4), "callbacks": list(callbacks)}
        return Trainer(backend.classifier(), arguments(**given), **data).train(**how).global_step

    assert steps(StopsAt(2)) == 2
    resume = {"resume_from_checkpoint": str(tmp_path / "run" / "checkpoint-2")}
    assert steps(StopsAt(2), EarlyStoppingCallback(), **resume) == 2
    emulate(monkeypatch, set())
    assert steps(**resume) == 2
    emulate(monkeypatch, {"transformers"})
    assert steps(StopsAt(2), **resume) == 4
