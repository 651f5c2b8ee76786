"""When checkpoints are written, which of them stay, and what a run reads back."""

import json
from pathlib import Path

import pytest

from oneloop import EarlyStoppingCallback, Trainer, TrainerState, get_last_checkpoint
from oneloop.errors import CheckpointError
from tests.backends.support import refuses_half, rows, same_bytes

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "max_steps": 9, "logging_steps": 3}


class Scored(Trainer):
    """Evaluations whose metric is made up: `scores` by step."""

    scores: dict = {}

    def __init__(self, *args, **kwargs):
        score = lambda prediction: {"score": self.scores[self.state.global_step]}  # noqa: E731
        super().__init__(*args, compute_metrics=score, **kwargs)


def scored(*values):
    class Own(Scored):
        scores = dict(enumerate(values, start=1))

    return Own


def checkpoints(folder):
    """Steps of the checkpoints in a directory."""
    return sorted(int(path.name.split("-")[1]) for path in Path(folder).glob("checkpoint-*"))


@pytest.mark.parametrize(
    "given, steps",
    [
        ({"save_strategy": "no"}, []),
        ({"save_strategy": "steps", "save_steps": 2}, [2, 4, 6, 8, 9]),
        ({"save_strategy": "steps", "save_steps": 0.5}, [5, 9]),
        ({"save_strategy": "steps", "save_steps": 100}, [9]),
        ({"save_strategy": "epoch"}, [3, 6, 9]),
        ({"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}, [8, 9]),
        ({"save_strategy": "epoch", "save_total_limit": 1}, [9]),
    ],
)
@pytest.mark.once_on("mindspore")
def test_when_checkpoints_are_written(backend, trained, tmp_path, given, steps):
    trained(backend.classifier(), rows(12), **RUN, **given)
    assert checkpoints(tmp_path / "out") == steps
    if steps:
        assert get_last_checkpoint(tmp_path / "out") == str(tmp_path / "out" / f"checkpoint-{steps[-1]}")


BEST = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "score"}


@pytest.mark.parametrize("strategy", ["no", "best"])
def test_the_best_is_kept_and_it_alone(backend, trained, tmp_path, strategy):
    cls = scored(1, 5, 3, 7, 2, 6, 6, 4, 7)
    options = RUN | BEST | {"save_strategy": strategy, "save_total_limit": 1 if strategy == "best" else None}
    trainer = trained(backend.classifier(), rows(12), cls, eval_dataset=rows(4), **options)
    assert checkpoints(tmp_path / "out") == [4]
    assert trainer.state.best_metric == 7 and trainer.state.best_global_step == 4
    assert trainer.state.best_model_checkpoint == str(tmp_path / "out" / "checkpoint-4")
    reached = TrainerState.load_from_json(tmp_path / "out" / "checkpoint-4" / "trainer_state.json")
    assert reached.global_step == 4 and reached.best_global_step == 4


def test_the_best_model_is_the_one_at_the_end(backend, trained, tmp_path):
    kept = {}

    class Keeps(scored(1, 5, 3, 7, 2, 6, 6, 4, 3)):
        def evaluate(self, *args, **kwargs):
            kept[self.state.global_step] = backend.weights(self.model)
            return super().evaluate(*args, **kwargs)

    trainer = trained(backend.classifier(norm=True), rows(12), Keeps, eval_dataset=rows(4), **RUN, **BEST)
    assert same_bytes(backend.weights(trainer.model), kept[4]) and not same_bytes(kept[4], kept[9])


@pytest.mark.parametrize("greater, best", [(None, 4), (True, 4), (False, 1)])
@pytest.mark.once_on("mindspore")
def test_what_better_means(backend, trained, tmp_path, greater, best):
    cls = scored(1, 5, 3, 7, 2, 6, 6, 4, 3)
    options = RUN | BEST | {"greater_is_better": greater}
    trainer = trained(backend.classifier(), rows(12), cls, eval_dataset=rows(4), **options)
    assert trainer.state.best_global_step == best


def test_evaluations_and_saves_need_not_meet(backend, trained, tmp_path):
    class Own(Scored):
        scores = {2: 1, 4: 9, 6: 3, 8: 4}

    options = RUN | BEST | {"eval_steps": 2, "save_strategy": "steps", "save_steps": 3}
    trainer = trained(backend.classifier(), rows(12), Own, eval_dataset=rows(4), **options)
    assert checkpoints(tmp_path / "out") == [3, 4, 6, 9]
    assert trainer.state.best_global_step == 4


def test_a_checkpoint_of_save_steps_outlives_being_the_best(backend, trained, tmp_path):
    """Saved by save_steps at the end of an epoch, then found to be the best by the epoch's evaluation, then beaten."""

    class Own(Scored):
        scores = {3: 1, 6: 2, 9: 3}

    options = RUN | BEST | {"eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 3}
    trainer = trained(backend.classifier(), rows(12), Own, eval_dataset=rows(4), **options)
    assert checkpoints(tmp_path / "out") == [3, 6, 9]
    assert trainer.state.best_model_checkpoint == str(tmp_path / "out" / "checkpoint-9")


@pytest.mark.parametrize("limit, steps", [(1, [4, 9]), (2, [4, 9]), (3, [4, 8, 9])])
@pytest.mark.once_on("mindspore")
def test_rotation_spares_the_newest_and_the_best(backend, trained, tmp_path, limit, steps):
    options = RUN | BEST | {"save_strategy": "steps", "save_steps": 1, "save_total_limit": limit}
    cls = scored(1, 5, 3, 7, 2, 6, 6, 4, 3)
    trained(backend.classifier(), rows(12), cls, eval_dataset=rows(4), **options)
    assert checkpoints(tmp_path / "out") == steps


def test_the_best_checkpoint_named_is_the_best_one(backend, trained, tmp_path):
    """Without load_best_model_at_end nothing is saved for being the best; what is named has to be what was scored."""

    class Own(Scored):
        scores = {2: 9, 4: 1, 6: 2, 8: 3}

    options = RUN | BEST | {"load_best_model_at_end": False, "eval_steps": 2, "save_strategy": "steps", "save_steps": 3}
    trainer = trained(backend.classifier(), rows(12), Own, eval_dataset=rows(4), **options)
    assert trainer.state.best_metric == 9 and trainer.state.best_global_step == 2
    assert trainer.state.best_model_checkpoint is None
    assert checkpoints(tmp_path / "out") == [3, 6, 9]


def test_load_best_without_any_evaluation_says_so(backend, trained, caplog):
    options = RUN | BEST | {"eval_delay": 100}
    trained(backend.classifier(), rows(12), scored(), eval_dataset=rows(4), **options)
    assert "no evaluation has determined a best model" in caplog.text


def test_save_only_model(backend, trained, tmp_path):
    trainer = trained(backend.classifier(), rows(12), save_strategy="epoch", save_only_model=True, **RUN)
    names = {path.name for path in (tmp_path / "out" / "checkpoint-9").iterdir()}
    assert "model.safetensors" in names and not names & {"optimizer.safetensors", "random.safetensors", "run.json"}
    with pytest.raises(CheckpointError, match="save_only_model"):
        Trainer(backend.classifier(), trainer.args, train_dataset=rows(12)).train(resume_from_checkpoint=True)


def test_early_stopping_stops_and_goes_on_counting_after_a_resume(backend, trained, tmp_path):
    cls = scored(1, 5, 3, 4, 2, 6, 6, 6, 6)
    options = RUN | BEST | {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": False}
    data = {"eval_dataset": rows(4)}
    patient = EarlyStoppingCallback(early_stopping_patience=3)
    one = trained(backend.classifier(), rows(12), cls, callbacks=[patient], **data, **options)
    assert one.state.global_step == 5
    again = trained(
        backend.classifier(),
        rows(12),
        cls,
        resume=str(tmp_path / "out" / "checkpoint-3"),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
        **data,
        **options,
    )
    assert again.state.global_step == 5
    threshold = EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=4.5)
    other = trained(
        backend.classifier(), rows(12), cls, callbacks=[threshold], output_dir=tmp_path / "b", **data, **options
    )
    assert other.state.global_step == 3


def histories(trainer):
    """The log without times, as text: a NaN is not equal to itself."""
    times = ("_runtime", "_per_second")
    entries = [{k: v for k, v in e.items() if not k.endswith(times)} for e in trainer.state.log_history]
    return [json.dumps(entry, sort_keys=True) for entry in entries]


@pytest.mark.parametrize(
    "given",
    [
        {},
        pytest.param({"gradient_accumulation_steps": 3}, marks=pytest.mark.rare_on("mindspore")),
        {"gradient_accumulation_steps": 2, "group_by_length": True, "length_column_name": "size"},
        {"eval_strategy": "epoch", "optim": "adamw_torch", "lr_scheduler_type": "reduce_lr_on_plateau"},
        {"dataloader_num_workers": 2},
        {"fp16": True, "scale_loss": 2.0**20},
        pytest.param({"optim": "rmsprop", "weight_decay": 0.1}, marks=pytest.mark.rare_on("mindspore")),
        pytest.param({"optim": "adagrad", "weight_decay": 0.1}, marks=pytest.mark.rare_on("mindspore")),
    ],
    ids=["plain", "accumulation", "groups", "plateau", "workers", "scaler", "rmsprop", "adagrad"],
)
def test_a_resumed_run_is_the_unbroken_one(backend, arguments, trained, tmp_path, given):
    if refuses_half(backend, arguments, **given):
        return
    data = [row | {"size": 1 + i * 7 % 10} for i, row in enumerate(rows(22))]
    options = RUN | {"max_steps": 12, "save_strategy": "steps", "save_steps": 5, "logging_steps": 1} | given
    options |= {"eval_dataset": rows(6, 1)}
    model = backend.classifier(dropout=0.3, norm=True)
    whole = trained(model, data, output_dir=tmp_path / "whole", **options)
    expected, optimizer = backend.weights(model), backend.optimizer(whole)
    for step in checkpoints(tmp_path / "whole"):
        other = backend.classifier(dropout=0.3, norm=True, seed=5)
        source = str(tmp_path / "whole" / f"checkpoint-{step}")
        resumed = trained(other, data, output_dir=tmp_path / f"resumed-{step}", resume=source, **options)
        assert same_bytes(expected, backend.weights(other)), step
        assert same_bytes(optimizer, backend.optimizer(resumed)), step
        assert histories(resumed) == histories(whole), step


def test_resume_without_a_checkpoint_starts_fresh_aloud(backend, trained, caplog):
    trainer = trained(backend.classifier(), rows(12), resume=True, **RUN)
    assert trainer.state.global_step == 9
    assert "has no checkpoint; starting from the beginning" in caplog.text


def test_the_argument_resumes_when_train_gets_nothing(backend, trained, tmp_path):
    options = RUN | {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2}
    trained(backend.classifier(), rows(12), **options)
    seen = []

    class Watches(Trainer):
        def training_step(self, *args, **kwargs):
            seen.append(self.state.global_step)
            return super().training_step(*args, **kwargs)

    trained(backend.classifier(), rows(12), Watches, resume_from_checkpoint=True, **(options | {"max_steps": 11}))
    assert seen == [9, 10]


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"seed": 7}, "seed was 42, is 7"),
        ({"per_device_train_batch_size": 2}, "samples_per_step was 4, is 2"),
        ({"max_steps": 12}, "max_steps was 9, is 12"),
        ({"gradient_accumulation_steps": 2}, "accumulation was 1, is 2"),
    ],
)
@pytest.mark.once_on("mindspore")
def test_what_changed_before_a_resume_is_said(backend, trained, caplog, changed, said):
    options = RUN | {"save_strategy": "steps", "save_steps": 4}
    trained(backend.classifier(), rows(12), **options)
    assert "differs" not in caplog.text
    trained(backend.classifier(), rows(12), resume=True, **(options | changed))
    assert said in caplog.text


@pytest.mark.parametrize("path, said", [("nowhere", "not a directory"), (".", "incomplete or corrupt")])
def test_what_cannot_be_resumed_from(backend, arguments, tmp_path, path, said):
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(4))
    with pytest.raises(CheckpointError, match=said):
        trainer.train(resume_from_checkpoint=str(tmp_path / path))


def test_a_fresh_run_leaves_the_checkpoints_of_another_alone(backend, trained, tmp_path, caplog):
    options = RUN | {"save_strategy": "steps", "save_steps": 2}
    trained(backend.classifier(), rows(12), **(options | {"max_steps": 20}))
    assert "earlier run" not in caplog.text
    trained(backend.classifier(), rows(12), **(options | {"max_steps": 5, "save_total_limit": 1}))
    assert "contains checkpoints of an earlier run" in caplog.text
    assert checkpoints(tmp_path / "out") == [5, *range(6, 21, 2)], "2 and 4 were replaced by this run and rotated away"
    assert get_last_checkpoint(tmp_path / "out").endswith("checkpoint-5")
    caplog.clear()
    trained(backend.classifier(), rows(12), overwrite_output_dir=True, **options)
    assert "earlier run" not in caplog.text


def test_an_output_directory_that_cannot_be_written(backend, arguments, tmp_path):
    (tmp_path / "file").write_text("")
    trainer = Trainer(backend.classifier(), arguments(output_dir=tmp_path / "file" / "out"), train_dataset=rows(4))
    with pytest.raises(CheckpointError, match="cannot write to output_dir"):
        trainer.train()


def test_a_checkpoint_of_another_model(backend, trained, tmp_path):
    trained(backend.classifier(), rows(12), save_strategy="epoch", **RUN)
    with pytest.raises(CheckpointError, match=r"missing: .*norm\.(weight|gamma)"):
        trained(backend.classifier(norm=True), rows(12), resume=True, **RUN)


def test_trainer_state_file(backend, trained, tmp_path):
    trainer = trained(backend.classifier(), rows(12), save_strategy="epoch", **RUN)
    trainer.save_state()
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    fields = {"epoch", "global_step", "max_steps", "logging_steps", "eval_steps", "save_steps", "train_batch_size"}
    fields |= {"num_train_epochs", "num_input_tokens_seen", "total_flos", "log_history", "best_metric"}
    fields |= {"best_global_step", "best_model_checkpoint", "is_local_process_zero", "is_world_process_zero"}
    fields |= {"is_hyper_param_search", "trial_name", "trial_params", "stateful_callbacks"}
    assert fields <= state.keys()
    assert state["global_step"] == state["max_steps"] == 9 and state["num_train_epochs"] == 3
    assert [e["step"] for e in state["log_history"]] == [3, 6, 9, 9]
    assert TrainerState.load_from_json(tmp_path / "out" / "trainer_state.json") == trainer.state
