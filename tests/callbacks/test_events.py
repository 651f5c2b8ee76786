"""The sixteen events: when they come, with what, and how callbacks steer the run."""

import pytest

from oneloop import ExportableState, Trainer, TrainerCallback, TrainerControl, TrainerState
from oneloop.callbacks import EVENTS, DefaultFlowCallback
from oneloop.errors import ArgumentError
from tests.backends.support import rows

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4}
EVERYWHERE = {"model", "processing_class", "tokenizer", "optimizer", "lr_scheduler"}
EVERYWHERE |= {"train_dataloader", "eval_dataloader"}


def recorder(base=TrainerCallback):
    """A callback of that base class which records (event, kwargs) of every event."""

    def method(event):
        def record(self, args, state, control, **kwargs):
            self.seen.append((event, state.global_step, kwargs))

        return record

    made = type("Recorder", (base,), {event: method(event) for event in EVENTS})()
    made.seen = []
    return made


STEP = ["on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"]
WHOLE = [
    "on_init_end",
    "on_train_begin",
    "on_epoch_begin",
    *STEP,
    "on_log",
    *STEP,
    "on_log",
    "on_prediction_step",
    "on_prediction_step",
    "on_log",
    "on_evaluate",
    "on_save",
    "on_epoch_end",
    "on_log",
    "on_train_end",
    "on_prediction_step",
    "on_predict",
]


def run(backend, arguments, callback):
    args = arguments(
        num_train_epochs=1,
        gradient_accumulation_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_async=False,
        per_device_eval_batch_size=4,
        **RUN,
    )
    trainer = Trainer(backend.classifier(), args, None, rows(16), rows(8, 1), callbacks=[callback])
    trainer.train()
    trainer.predict(rows(4))
    return trainer


def test_all_events_in_order(backend, arguments):
    callback = recorder()
    run(backend, arguments, callback)
    assert [event for event, _, _ in callback.seen] == WHOLE
    assert set(EVENTS) - set(WHOLE) == {"on_push_begin"}, "uploads come with the hub"


def test_a_callback_of_transformers(backend, arguments):
    transformers = pytest.importorskip("transformers")
    callback = recorder(transformers.TrainerCallback)
    run(backend, arguments, callback)
    assert [event for event, _, _ in callback.seen] == WHOLE


def test_events_without_a_body_cost_nothing(backend, arguments):
    transformers = pytest.importorskip("transformers")
    trainer = Trainer(backend.classifier(), arguments(), callbacks=[TrainerCallback(), transformers.TrainerCallback()])
    assert "on_substep_end" not in trainer.callback_handler.active
    assert "on_step_end" in trainer.callback_handler.active


def test_arguments_of_events(backend, arguments):
    callback = recorder()
    trainer = run(backend, arguments, callback)
    for event, _, kwargs in callback.seen:
        extra = {"on_log": {"logs"}, "on_evaluate": {"metrics"}, "on_predict": {"metrics"}}.get(event, set())
        assert kwargs.keys() == EVERYWHERE | extra, event
        assert kwargs["model"] is trainer.model
        if event not in ("on_init_end",):
            assert kwargs["optimizer"] is trainer.optimizer and kwargs["lr_scheduler"] is trainer.lr_scheduler
            assert kwargs["train_dataloader"] is not None
    logs = [kwargs["logs"] for event, _, kwargs in callback.seen if event == "on_log"]
    assert [("loss" in entry, "eval_loss" in entry) for entry in logs] == [(1, 0), (1, 0), (0, 1), (0, 0)]
    (metrics,) = [kwargs["metrics"] for event, _, kwargs in callback.seen if event == "on_evaluate"]
    assert metrics["eval_loss"] == logs[2]["eval_loss"]
    (metrics,) = [kwargs["metrics"] for event, _, kwargs in callback.seen if event == "on_predict"]
    assert "test_loss" in metrics
    steps = {event: step for event, step, _ in callback.seen}
    assert steps["on_step_begin"] == 1 and steps["on_optimizer_step"] == 1 and steps["on_step_end"] == 2


def test_gradients_are_there_for_the_optimizer_events_and_gone_at_the_end(backend, trained):
    seen = {}

    class Looks(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen["before"], seen["weights"] = backend.has_gradients(model), backend.weights(model)

        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen["after"] = backend.has_gradients(model)
            seen["moved"] = any((seen["weights"][k] != v).any() for k, v in backend.weights(model).items())

        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen["end"] = backend.has_gradients(model)

    trained(backend.classifier(), rows(8), callbacks=[Looks], max_steps=1, **RUN)
    seen.pop("weights")
    assert seen == {"before": True, "after": True, "moved": True, "end": False}


class Stops(TrainerCallback):
    """Stops the run after a step, in place or with a control of its own."""

    def __init__(self, step, how="in place", flag="should_training_stop"):
        self.step, self.how, self.flag = step, how, flag

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            if self.how == "in place":
                setattr(control, self.flag, True)
                return None
            return TrainerControl(**{self.flag: True})


@pytest.mark.parametrize("how", ["in place", "returned"])
def test_control_changed_in_place_or_returned(backend, trained, how):
    callback = recorder()
    trainer = trained(backend.classifier(), rows(16), callbacks=[Stops(2, how), callback], num_train_epochs=3, **RUN)
    assert trainer.state.global_step == 2
    assert [event for event, _, _ in callback.seen][-3:] == ["on_epoch_end", "on_log", "on_train_end"]


@pytest.mark.parametrize("how", ["in place", "returned"])
def test_an_epoch_can_be_left(backend, trained, how):
    callback = Stops(2, how, "should_epoch_stop")
    trainer = trained(backend.classifier(), rows(16), callbacks=[callback], num_train_epochs=2, **RUN)
    assert trainer.state.global_step == 2 + 4


@pytest.mark.parametrize("flag", ["should_log", "should_evaluate", "should_save"])
@pytest.mark.parametrize("how", ["in place", "returned"])
@pytest.mark.once_on("mindspore")
def test_a_callback_can_ask_for_a_log_an_evaluation_or_a_save(backend, trained, tmp_path, flag, how):
    trainer = trained(
        backend.classifier(), rows(16), callbacks=[Stops(2, how, flag)], eval_dataset=rows(4), max_steps=4, **RUN
    )
    history = trainer.state.log_history
    assert [e["step"] for e in history if "loss" in e] == ([2] if flag == "should_log" else [])
    assert [e["step"] for e in history if "eval_loss" in e] == ([2] if flag == "should_evaluate" else [])
    assert (tmp_path / "out" / "checkpoint-2").is_dir() is (flag == "should_save")
    assert not (tmp_path / "out" / "checkpoint-3").exists()


def test_a_control_returned_by_a_log_is_obeyed(backend, trained):
    class Asks(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if state.global_step == 2 and "loss" in logs:
                return TrainerControl(should_evaluate=True)

    trainer = trained(
        backend.classifier(), rows(16), callbacks=[Asks()], eval_dataset=rows(4), max_steps=3, logging_steps=1, **RUN
    )
    assert [e["step"] for e in trainer.state.log_history if "eval_loss" in e] == [2]


def test_adding_popping_and_removing(backend, arguments, caplog):
    class Mine(TrainerCallback):
        pass

    class Yours(TrainerCallback):
        pass

    mine = Mine()
    trainer = Trainer(backend.classifier(), arguments(), callbacks=[Yours])
    trainer.add_callback(mine)
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert kinds[0] is DefaultFlowCallback and Yours in kinds and kinds[-1] is Mine
    assert trainer.pop_callback(Mine) is mine and trainer.pop_callback(Mine) is None
    trainer.add_callback(Mine)
    trainer.remove_callback(Mine)
    trainer.remove_callback(Mine)
    assert Mine not in [type(callback) for callback in trainer.callback_handler.callbacks]
    trainer.add_callback(mine)
    trainer.remove_callback(mine)
    assert mine not in trainer.callback_handler.callbacks
    assert "called twice" not in caplog.text
    trainer.add_callback(Yours())
    assert "called twice" in caplog.text


def test_without_the_flow_callback_the_user_controls_the_run(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(logging_steps=1, max_steps=2, **RUN), train_dataset=rows(8))
    trainer.remove_callback(DefaultFlowCallback)
    trainer.train()
    assert [e for e in trainer.state.log_history if "loss" in e] == [] and trainer.state.global_step == 2


@pytest.mark.parametrize("callback", [3, "text", object])
def test_what_is_not_a_callback(backend, arguments, callback):
    with pytest.raises(ArgumentError, match="it defines no event"):
        Trainer(backend.classifier(), arguments(), callbacks=[callback])


class Counter(TrainerCallback, ExportableState):
    """Counts steps, and keeps counting after a resume."""

    def __init__(self, step=1):
        self.step, self.count = step, 0

    def on_step_end(self, args, state, control, **kwargs):
        self.count += self.step

    def state(self):
        return {"args": {"step": self.step}, "attributes": {"count": self.count}}


@pytest.mark.parametrize("restored", [True, False])
def test_state_of_callbacks_goes_through_checkpoints(backend, trained, restored):
    options = RUN | {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    trainer = trained(backend.classifier(), rows(16), callbacks=[Counter(step=10)], **options)
    stored = TrainerState.load_from_json(f"{trainer.args.output_dir}/checkpoint-2/trainer_state.json")
    assert stored.stateful_callbacks["Counter"] == {"args": {"step": 10}, "attributes": {"count": 20}}
    assert Counter.from_state(stored.stateful_callbacks["Counter"]).count == 20
    counter = Counter(step=1)
    trained(
        backend.classifier(),
        rows(16),
        callbacks=[counter],
        resume=f"{trainer.args.output_dir}/checkpoint-2",
        restore_callback_states_from_checkpoint=restored,
        **options,
    )
    assert counter.count == (40 if restored else 22)


def test_two_stateful_callbacks_of_one_class(backend, trained):
    options = RUN | {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    trainer = trained(backend.classifier(), rows(16), callbacks=[Counter(1), Counter(5)], **options)
    pair = [Counter(1), Counter(5)]
    trained(backend.classifier(), rows(16), callbacks=pair, resume=f"{trainer.args.output_dir}/checkpoint-2", **options)
    assert [counter.count for counter in pair] == [4, 20]


@pytest.mark.parametrize("name", ["tokenizer", "processing_class"])
def test_the_tokenizer_under_both_names(backend, arguments, name):
    class Words:
        pass

    words, seen = Words(), []

    class Looks(TrainerCallback):
        def on_train_begin(self, args, state, control, tokenizer=None, processing_class=None, **kwargs):
            seen.extend([tokenizer, processing_class])

    trainer = Trainer(
        backend.classifier(), arguments(max_steps=1), train_dataset=rows(8), callbacks=[Looks()], **{name: words}
    )
    trainer.train()
    assert trainer.tokenizer is trainer.processing_class is words and seen == [words, words]
    other = Words()
    trainer.tokenizer = other
    assert trainer.processing_class is other
