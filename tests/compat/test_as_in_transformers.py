"""What oneloop does differently on purpose, and does as transformers does in scripts written for it."""

import dataclasses
import json
import logging

import pytest

import oneloop
from oneloop import EarlyStoppingCallback, ExportableState, Trainer, TrainerCallback, TrainerControl, TrainerState
from oneloop.arguments.accelerator import AcceleratorConfig
from oneloop.distributed import world as processes
from tests.backends.support import rows, same_bytes
from tests.emulation import emulate

OPTIONS = {"split_batches": True, "dispatch_batches": True, "even_batches": False, "use_seedable_sampler": False}


@pytest.fixture(autouse=True)
def follows_transformers(monkeypatch):
    emulate(monkeypatch, {"transformers"})


# -- accelerator_config


@pytest.mark.parametrize("kind", ["dict", "file", "object"])
def test_options_that_change_nothing_on_one_process(backend, arguments, tmp_path, kind):
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    given = {"dict": OPTIONS, "file": str(tmp_path / "options.json"), "object": AcceleratorConfig(**OPTIONS)}[kind]
    plain = Trainer(backend.classifier(), arguments(max_steps=2), train_dataset=rows(8))
    model = backend.classifier()
    trainer = Trainer(model, arguments(max_steps=2, accelerator_config=given), train_dataset=rows(8))
    assert {name: getattr(trainer.accelerator, name) for name in OPTIONS} == OPTIONS
    assert trainer.train().training_loss == plain.train().training_loss


def test_several_processes_and_own_scripts_refuse_them(backend, arguments, monkeypatch):
    from oneloop.arguments import accelerator

    config = AcceleratorConfig(**OPTIONS)
    assert [key for key in OPTIONS if not accelerator.is_supported(config, key)] == []
    two = dataclasses.replace(processes.world(), size=2)
    monkeypatch.setattr(accelerator, "world", lambda: two)
    refused = [key for key in OPTIONS if not accelerator.is_supported(config, key)]
    assert refused == ["split_batches", "dispatch_batches", "even_batches"]
    emulate(monkeypatch, set())
    with pytest.raises(ValueError, match="use_seedable_sampler"):
        Trainer(backend.classifier(), arguments(accelerator_config={"use_seedable_sampler": False}))


def test_steps_of_accumulation_in_accelerates_words(backend, arguments):
    steps = {"gradient_accumulation_kwargs": {"num_steps": 4}}
    args = arguments(accelerator_config=steps, max_steps=1, per_device_train_batch_size=2)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8))
    assert trainer.args.gradient_accumulation_steps == 4
    other = arguments(max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    same = Trainer(backend.classifier(), other, train_dataset=rows(8))
    assert trainer.train().training_loss == same.train().training_loss
    with pytest.raises(ValueError, match="`num_steps` is set but so is gradient_accumulation_steps=2"):
        Trainer(backend.classifier(), arguments(accelerator_config=steps, gradient_accumulation_steps=2))


def test_options_of_accumulation_reach_the_state_of_accelerate(arguments):
    state = pytest.importorskip("accelerate.state").GradientState
    torch = pytest.importorskip("torch")
    options = {"gradient_accumulation_kwargs": {"num_steps": 4, "sync_each_batch": True}}
    try:
        trainer = Trainer(torch.nn.Linear(2, 2), arguments(accelerator_config=options))
        held = trainer.accelerator.gradient_state.plugin_kwargs
        assert held["sync_each_batch"] is True and held.get("num_steps", 1) == 1
    finally:
        state._reset_state()


def test_a_configured_state_has_to_exist(arguments):
    states = pytest.importorskip("accelerate.state")
    states.AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(ValueError, match="use_configured_state=True, but there is no PartialState"):
        arguments(accelerator_config={"use_configured_state": True})
    states.PartialState(cpu=True)
    assert arguments(accelerator_config={"use_configured_state": True}).accelerator_config.use_configured_state
    states.AcceleratorState._reset_state(reset_partial_state=True)


def test_the_class_is_not_a_configuration(arguments):
    with pytest.raises(NotImplementedError, match="Tried passing in a callable to `accelerator_config`"):
        arguments(accelerator_config=AcceleratorConfig)


# -- errors


def test_errors_of_the_constructor_are_of_its_types(backend, arguments):
    model, args = backend.classifier(), arguments()
    for given in ({}, {"model_init": lambda: None}, {"model_init": lambda trial, more: model}):
        with pytest.raises(RuntimeError, match="model"):
            Trainer(args=args, **given)
    with pytest.raises(TypeError, match="data_collator"):
        Trainer(model, args, data_collator=object())
    optimizer = Trainer(model, args, train_dataset=rows(4)).create_optimizer()
    with pytest.raises(RuntimeError, match="optimizers and model_init"):
        Trainer(args=args, model_init=backend.classifier, optimizers=(optimizer, None))
    with pytest.raises(RuntimeError, match="optimizer_cls_and_kwargs"):
        Trainer(model, args, optimizers=(optimizer, None), optimizer_cls_and_kwargs=(type(optimizer), {}))


def test_saving_the_best_needs_a_metric(backend, arguments, monkeypatch):
    given = {"save_strategy": "best", "eval_strategy": "epoch"}
    data = {"train_dataset": rows(4), "eval_dataset": rows(4)}
    with pytest.raises(ValueError, match="metric_for_best_model"):
        Trainer(backend.classifier(), arguments(**given), **data)
    named = arguments(**given, metric_for_best_model="loss")
    assert Trainer(backend.classifier(), named, **data).args.greater_is_better is False
    emulate(monkeypatch, set())
    assert Trainer(backend.classifier(), arguments(**given), **data).args.metric_for_best_model == "loss"


class Stream:
    def __iter__(self):
        return iter(rows(4))


def test_data_without_a_length_needs_max_steps(arguments, monkeypatch):
    torch = pytest.importorskip("torch")

    class Data(Stream, torch.utils.data.IterableDataset):
        pass

    with pytest.raises(ValueError, match="max_steps has to be set"):
        Trainer(torch.nn.Linear(2, 2), arguments(), train_dataset=Data())
    Trainer(torch.nn.Linear(2, 2), arguments(max_steps=1), train_dataset=Data())
    emulate(monkeypatch, set())
    Trainer(torch.nn.Linear(2, 2), arguments(), train_dataset=Data())


@pytest.mark.parametrize(
    ("given", "message"),
    [({"metric_for_best_model": "loss"}, "evaluations"), ({"eval_strategy": "epoch"}, "metric_for_best_model")],
)
def test_early_stopping_needs_a_metric_and_evaluations(backend, arguments, monkeypatch, given, message):
    def trainer():
        data = {"train_dataset": rows(4), "eval_dataset": rows(4), "callbacks": [EarlyStoppingCallback()]}
        return Trainer(backend.classifier(), arguments(max_steps=1, **given), **data)

    with pytest.raises(AssertionError, match=message):
        trainer().train()
    emulate(monkeypatch, set())
    assert trainer().train().global_step == 1


# -- the command line


def test_unknown_words_are_a_value_error(tmp_path, monkeypatch):
    words = ["--output_dir", str(tmp_path), "--unheard_of", "1"]
    parser = oneloop.HfArgumentParser(oneloop.TrainingArguments)
    with pytest.raises(ValueError, match="unknown option --unheard_of"):
        parser.parse_args_into_dataclasses(words)
    emulate(monkeypatch, set())
    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses(words)


def test_a_namespace_has_the_defaults(tmp_path):
    parser = oneloop.HfArgumentParser(oneloop.TrainingArguments)
    found = parser.parse_args(["--output_dir", str(tmp_path), "--seed", "7"])
    assert (found.seed, found.learning_rate, found.save_steps) == (7, 5e-5, 500)
    (args,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--per_gpu_train_batch_size", "3"])
    assert args.per_device_train_batch_size == 3, "no default overrides what an alias says"


# -- the rest


def test_an_evaluation_drops_the_last_batch_too(backend, arguments, monkeypatch):
    args = arguments(dataloader_drop_last=True, per_device_eval_batch_size=4)
    trainer = Trainer(backend.classifier(), args, eval_dataset=rows(10))
    assert len(trainer.get_eval_dataloader()) == 2 and len(trainer.predict(rows(10)).predictions) == 8
    emulate(monkeypatch, set())
    assert len(trainer.get_eval_dataloader()) == 3 and len(trainer.predict(rows(10)).predictions) == 10


def test_adafactor_is_the_class_of_transformers(arguments, tmp_path, monkeypatch):
    theirs = pytest.importorskip("transformers.optimization").Adafactor
    torch = pytest.importorskip("torch")
    args = arguments(optim="adafactor")
    cls, options = Trainer.get_optimizer_cls_and_kwargs(args)
    assert cls is theirs
    assert (options["scale_parameter"], options["relative_step"], options["lr"]) == (False, False, args.learning_rate)

    def run(**given):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3))
        data = [{"input": torch.full((4,), float(i)), "labels": i % 3} for i in range(8)]
        saving = {"output_dir": tmp_path / "run", "save_strategy": "steps", "save_steps": 2}
        args = arguments(optim="adafactor", max_steps=4, **saving)
        trainer = Trainer(model, args, train_dataset=data, criterion=torch.nn.CrossEntropyLoss())
        trainer.train(**given)
        assert type(trainer.optimizer) is theirs
        return [value.detach().numpy().tobytes() for value in model.parameters()]

    whole = run()
    assert run(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2")) == whole
    emulate(monkeypatch, set())
    assert Trainer.get_optimizer_cls_and_kwargs(args)[0] is not theirs


def test_its_loggers_get_the_level_too(backend, arguments):
    library = logging.getLogger("transformers")
    before = library.level, logging.getLogger("oneloop").level
    try:
        Trainer(backend.classifier(), arguments(log_level="error"))
        assert library.level == logging.ERROR
        Trainer(backend.classifier(), arguments(log_level="debug"))
        assert library.level == logging.DEBUG
    finally:
        library.setLevel(before[0])
        logging.getLogger("oneloop").setLevel(before[1])


class Counts(TrainerCallback, ExportableState):
    def __init__(self, count=0):
        self.count = count

    def state(self):
        return {"args": {"count": self.count}, "attributes": {}}


def test_states_of_callbacks_by_class(backend, arguments):
    state = TrainerState(stateful_callbacks=[Counts(1), TrainerControl(should_log=True), Counts(2)])
    assert [each["args"]["count"] for each in state.stateful_callbacks["Counts"]] == [1, 2]
    assert state.stateful_callbacks["TrainerControl"]["args"]["should_log"] is True
    with pytest.raises(TypeError, match="TrainerCallback has no state"):
        TrainerState(stateful_callbacks=[TrainerCallback()])
    trainer = Trainer(backend.classifier(), arguments(), callbacks=[Counts(3)])
    assert trainer.state.stateful_callbacks["Counts"] == Counts(3).state()


def test_the_control_is_restored_with_the_callbacks(backend, arguments, tmp_path):
    args = arguments(output_dir=tmp_path / "run", max_steps=2, save_strategy="steps", save_steps=2)
    Trainer(backend.classifier(), args, train_dataset=rows(8)).train()
    stored = TrainerState.load_from_json(tmp_path / "run" / "checkpoint-2" / "trainer_state.json")
    for restores in (True, False):
        other = Trainer(backend.classifier(), arguments(restore_callback_states_from_checkpoint=restores))
        other.state = stored
        other._load_callback_state()
        assert other.control.should_training_stop is restores


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [(2, None, [20, 25]), (2, 5, [5, 25]), (1, 25, [25]), (1, 5, [5, 25]), (None, None, [5, 10, 20, 25]), (9, 5, None)],
)
def test_checkpoints_of_anybody_are_sorted_and_rotated(tmp_path, limit, best, left):
    steps = [5, 10, 20, 25]
    for step in steps:
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-last").mkdir()
    path = best and str(tmp_path / f"checkpoint-{best}")
    first = [best] if best == 5 else []
    order = [step for step in steps[:-1] if step not in first] + first + steps[-1:]
    found = oneloop.sort_checkpoints(tmp_path, best_model_checkpoint=path)
    assert found == [str(tmp_path / f"checkpoint-{step}") for step in order]
    oneloop.rotate_checkpoints(tmp_path, limit, path)
    names = {f"checkpoint-{step}" for step in left or steps} | {"checkpoint-last"}
    assert {each.name for each in tmp_path.iterdir() if not each.name.startswith(".")} == names


def test_a_loader_knows_the_samples_of_a_step(arguments):
    torch = pytest.importorskip("torch")
    args = arguments(per_device_train_batch_size=4, per_device_eval_batch_size=3, max_steps=1)
    trainer = Trainer(torch.nn.Linear(2, 2), args, train_dataset=rows(10), eval_dataset={"some": rows(5)})
    train, some = trainer.get_train_dataloader(), trainer.get_eval_dataloader("some")
    assert (train.total_batch_size, train.total_dataset_length) == (4, 10)
    assert (some.total_batch_size, some.total_dataset_length) == (3, 5)
    with pytest.raises(KeyError, match="no evaluation dataset named 'other'"):
        trainer.get_eval_dataloader("other")


def test_a_generation_config_is_checked_before_training(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    def trainer(**given):
        config = transformers.GenerationConfig(do_sample=False, **given)
        args = oneloop.Seq2SeqTrainingArguments(str(tmp_path), generation_config=config, report_to="none", use_cpu=True)
        return oneloop.Seq2SeqTrainer(torch.nn.Linear(2, 2), args)

    assert trainer(max_new_tokens=3).model.generation_config.max_new_tokens == 3
    with pytest.raises(ValueError, match="top_p"):
        trainer(top_p=0.9)


# -- layers in evaluation mode, and the number of checkpoints


@pytest.mark.parametrize("followed", [{"transformers"}, set()])
def test_every_layer_is_in_training_mode_when_training_begins(backend, arguments, monkeypatch, followed):
    """A model that from_pretrained has left in evaluation mode may be a part of one in training mode."""
    emulate(monkeypatch, followed)
    seen = []

    class Watches(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.append(bool(self.model.dropout.training))
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = backend.classifier(dropout=0.1)
    for layer, training in ((model, True), (model.dropout, False)):
        layer.set_train(training) if hasattr(layer, "set_train") else (layer.train() if training else layer.eval())
    args = arguments(max_steps=4, eval_strategy="steps", eval_steps=2, per_device_train_batch_size=4)
    Watches(model, args, train_dataset=rows(16), eval_dataset=rows(4)).train()
    in_training = bool(followed)
    assert seen == [in_training, in_training, False, in_training, in_training, False]


@pytest.mark.parametrize("limit", [0, -1, "0"])
def test_no_checkpoints_to_keep_is_no_limit(arguments, monkeypatch, limit):
    """sentence-transformers' model.fit passes 0."""
    assert arguments(save_total_limit=limit).save_total_limit is None
    assert arguments(save_total_limit=2).save_total_limit == 2
    emulate(monkeypatch, set())
    with pytest.raises(ValueError, match="save_total_limit"):
        arguments(save_total_limit=limit)


# -- a compute_loss_func that is no function


class Scaled(Trainer):
    """As GRPO of TRL 0.22 to 1.9: the loss is divided here, which any compute_loss_func but None says."""

    def __init__(self, *args, sign="to disable scaling", **kwargs):
        super().__init__(*args, compute_loss_func=sign, **kwargs)
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = model(**inputs)["loss"]
        return loss / self.current_gradient_accumulation_steps


class Said(Scaled):
    """The same in the words of today."""

    loss_is_scaled_for_ga = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, sign=None, **kwargs)


def test_a_sign_in_place_of_a_loss_function(backend, trained):
    given = {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2, "num_train_epochs": 1}
    models = [backend.classifier() for _ in range(2)]
    first, second = (trained(model, rows(14), kind, **given) for model, kind in zip(models, (Scaled, Said)))
    assert first.result.training_loss == second.result.training_loss
    assert same_bytes(*map(backend.weights, models))
    plain = trained(backend.classifier(), rows(14), **given)
    assert first.result.training_loss == pytest.approx(plain.result.training_loss, rel=1e-5)


def test_elsewhere_it_is_a_mistake(backend, arguments, monkeypatch):
    with pytest.raises(ValueError, match="Invalid compute_loss_func of type str"):
        Trainer(backend.classifier(), arguments(), compute_loss_func="my_loss")
    with pytest.raises(ValueError, match="Invalid compute_metrics of type str"):
        Scaled(backend.classifier(), arguments(), compute_metrics="my_metrics")
    emulate(monkeypatch, set())
    with pytest.raises(ValueError, match="Invalid compute_loss_func of type str"):
        Scaled(backend.classifier(), arguments())
