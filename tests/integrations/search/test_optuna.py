"""hyperparameter_search on Optuna: what a trial is, what is pruned, how a study goes on."""

import json
import math
import os
import signal
import sys
import threading
from pathlib import Path

import optuna
import pytest
from safetensors.numpy import load_file

from oneloop import BestRun, EarlyStoppingCallback, Trainer, TrainerCallback
from oneloop.errors import ArgumentError, DataError, SearchError, UnknownArgumentError, UnsupportedError
from oneloop.integrations.search import trials
from oneloop.report import comparison, page_data
from oneloop.report.log_reader import Directory
from tests.backends.support import rows, same_bytes

optuna.logging.set_verbosity(optuna.logging.ERROR)
RATES = [1e-3, 0.05, 0.2]


def rates(trial):
    return {"learning_rate": trial.suggest_categorical("learning_rate", RATES)}


def in_order():
    """Every rate once, the first first."""
    return optuna.samplers.GridSampler({"learning_rate": RATES}, seed=0)


@pytest.fixture
def searcher(backend, arguments):
    """A Trainer for a search; what Trainer takes goes there, other keywords to the arguments."""

    def make(trainer_class=Trainer, **given):
        own = {"model_init", "callbacks", "compute_metrics", "eval_dataset"}
        parts = {"model_init": lambda: backend.classifier(dropout=0.2), "eval_dataset": rows(8, 1)}
        parts |= {key: given.pop(key) for key in own & given.keys()}
        options = {"max_steps": 2, "per_device_train_batch_size": 8, "eval_strategy": "steps", "eval_steps": 1} | given
        return trainer_class(args=arguments(**options), train_dataset=rows(24), **parts)

    return make


class Ended(TrainerCallback):
    """Names of the trials whose training began, and of those whose training ended."""

    def __init__(self):
        self.begun, self.ended, self.params = [], [], []

    def on_train_begin(self, args, state, control, **kwargs):
        self.begun.append(state.trial_name)
        self.params.append(state.trial_params)
        assert state.is_hyper_param_search

    def on_train_end(self, args, state, control, **kwargs):
        self.ended.append(state.trial_name)


def test_the_best_trial_and_where_each_one_lies(searcher, tmp_path):
    told = Ended()
    trainer = searcher(callbacks=[told], save_strategy="steps", save_steps=2, learning_rate=0.5, run_name="mine")
    own, before = trainer.args, trainer.args.to_dict()
    best = trainer.hyperparameter_search(rates, n_trials=3, backend="optuna", sampler=in_order())
    study = best.run_summary
    assert isinstance(best, BestRun)
    assert best.objective == min(trial.value for trial in study.trials)
    assert study.trials[int(best.run_id)].params == best.hyperparameters
    assert sorted(trial.params["learning_rate"] for trial in study.trials) == RATES
    assert all(list(trial.intermediate_values) == [1, 2] for trial in study.trials)
    assert told.begun == told.ended == ["run-0", "run-1", "run-2"]
    assert told.params == [trial.params for trial in study.trials]
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["run-0", "run-1", "run-2"]
    for trial in study.trials:
        state = json.loads((out / f"run-{trial.number}" / "checkpoint-2" / "trainer_state.json").read_text())
        assert state["is_hyper_param_search"] and state["trial_name"] == f"run-{trial.number}"
        assert state["trial_params"] == trial.params
        kept = json.loads((out / f"run-{trial.number}" / "checkpoint-2" / "training_args.json").read_text())
        assert kept["learning_rate"] == trial.params["learning_rate"] and kept["run_name"] == "mine"
    assert trainer.args is own and own.to_dict() == before
    assert trainer.hp_search_backend is None


def test_a_trial_is_the_run_that_its_values_make(backend, searcher):
    """Byte for byte, whatever ran before it in the same process."""
    weights = {}

    class Keeps(TrainerCallback):
        def on_train_end(self, args, state, control, model=None, **kwargs):
            weights[args.learning_rate] = backend.weights(model)

    searcher(callbacks=[Keeps()]).hyperparameter_search(rates, n_trials=3, backend="optuna", sampler=in_order())
    found, weights = weights, {}
    for rate in (RATES[2], RATES[0]):
        searcher(callbacks=[Keeps()], learning_rate=rate).train()
        assert same_bytes(weights[rate], found[rate])
    assert not same_bytes(found[RATES[0]], found[RATES[2]])


def test_a_pruned_trial_ends_as_a_run_does(searcher, tmp_path):
    told = Ended()
    trainer = searcher(callbacks=[told], max_steps=3, save_strategy="steps", save_steps=1)
    # The second trial is worse than any limit at its first evaluation, the first one never is.
    limits = iter([math.inf] * 3 + [-math.inf] * 3)

    class Limit(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.intermediate_values[trial.last_step] > next(limits)

    best = trainer.hyperparameter_search(rates, n_trials=2, backend="optuna", pruner=Limit())
    first, second = best.run_summary.trials
    assert (first.state.name, second.state.name) == ("COMPLETE", "PRUNED")
    assert list(second.intermediate_values) == [1] and best.run_id == "0"
    assert told.begun == told.ended == ["run-0", "run-1"]
    out = tmp_path / "out" / "run-1"
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint-1", "curve.jsonl", "log.jsonl", "run.jsonl"]
    logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert "train_runtime" in logged[-1] and not trainer.is_in_train
    assert "oneloop-save" not in {thread.name for thread in threading.enumerate()}


def test_directories_of_a_trial(arguments, tmp_path):
    """Below those of the search; a logging_dir that was not given follows output_dir."""
    own = arguments(logging_dir=str(tmp_path / "logs"), learning_rate=0.1)
    args = trials.arguments_for(own, {"learning_rate": 0.5}, "run-3", for_model=False)
    assert (args.output_dir, args.logging_dir) == (str(tmp_path / "out" / "run-3"), str(tmp_path / "logs" / "run-3"))
    assert (args.learning_rate, own.learning_rate, own.output_dir) == (0.5, 0.1, str(tmp_path / "out"))
    filled = trials.arguments_for(arguments(), {}, "run-3", for_model=False)
    assert str(filled.logging_dir).startswith(str(tmp_path / "out"))


def test_a_trial_without_evaluations_is_evaluated_at_its_end(searcher):
    trainer = searcher(eval_strategy="no")
    pruner = optuna.pruners.ThresholdPruner(upper=-1e9)  # would prune anything
    best = trainer.hyperparameter_search(rates, n_trials=1, backend="optuna", pruner=pruner)
    assert best.run_summary.trials[0].state.name == "COMPLETE"
    assert best.objective == trainer.objective == trainer.state.log_history[-1]["eval_loss"]


def test_several_objectives(searcher):
    def figures(metrics):
        return metrics["eval_loss"], -metrics["eval_loss"]

    trainer = searcher()
    pruner = optuna.pruners.ThresholdPruner(upper=-1e9)
    best = trainer.hyperparameter_search(
        rates, figures, 3, ["minimize", "minimize"], "optuna", sampler=in_order(), pruner=pruner
    )
    assert len(best) == 3, "of two figures that are opposite none beats another"
    assert all(run.objective[0] == -run.objective[1] for run in best)
    assert {trial.state.name for trial in best[0].run_summary.trials} == {"COMPLETE"}
    with pytest.raises(SearchError, match=r"run-0 .*compute_objective returned .*expected a list of 2 numbers"):
        trainer.hyperparameter_search(rates, lambda metrics: 1.0, 1, ["minimize", "maximize"], "optuna")


def test_maximize_and_names_of_trials(searcher, tmp_path):
    told = Ended()
    best = searcher(callbacks=[told]).hyperparameter_search(
        rates,
        lambda metrics: metrics["eval_loss"],
        3,
        "maximize",
        "optuna",
        lambda trial: f"rate-{trial.params['learning_rate']}",
        sampler=in_order(),
    )
    assert best.objective == max(trial.value for trial in best.run_summary.trials)
    assert sorted(told.begun) == sorted(f"rate-{rate}" for rate in RATES)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(told.begun)


@pytest.mark.rare_on("mindspore")
def test_a_study_is_resumed(searcher, tmp_path):
    """n_trials is the number of further trials, as Optuna has it, and numbers go on."""
    kept = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "mine", "sampler": in_order()}
    first = searcher().hyperparameter_search(rates, n_trials=2, backend="optuna", **kept)
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        searcher().hyperparameter_search(rates, n_trials=1, backend="optuna", **kept)
    again = searcher().hyperparameter_search(rates, n_trials=1, backend="optuna", load_if_exists=True, **kept)
    assert len(first.run_summary.trials) == len(again.run_summary.trials) == 3, "it is one study"
    assert again.objective == min(trial.value for trial in again.run_summary.trials)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run-0", "run-1", "run-2"]
    arguments = [trial.user_attrs["arguments"]["learning_rate"] for trial in again.run_summary.trials]
    assert sorted(arguments) == RATES


def test_model_init_suggests_values(backend, searcher):
    made = []

    def model_init(trial):
        if trial is not None:
            made.append((trial.number, trial.suggest_categorical("seed_of_weights", [1, 2])))
        return backend.classifier(seed=made[-1][1] if made else 0)

    best = searcher(model_init=model_init).hyperparameter_search(rates, n_trials=2, backend="optuna")
    assert [number for number, _ in made] == [0, 1]
    assert set(best.hyperparameters) == {"learning_rate", "seed_of_weights"}


def test_other_spellings_and_values_as_text(searcher):
    seen = []

    class Reads(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            seen.append((args.per_device_train_batch_size, args.optim, args.lr_scheduler_kwargs, state.max_steps))

    def space(trial):
        return {"per_gpu_train_batch_size": "4", "num_cycles": 0.25, "optim": "sgd", "max_steps": 1}

    trainer = searcher(callbacks=[Reads()], lr_scheduler_kwargs={"other": 1}, lr_scheduler_type="cosine")
    with pytest.raises(SearchError, match="other"):  # the schedule knows no such option: it had been kept
        trainer.hyperparameter_search(space, n_trials=1, backend="optuna")
    trainer = searcher(callbacks=[Reads()], lr_scheduler_type="cosine")
    trainer.hyperparameter_search(space, n_trials=1, backend="optuna")
    assert seen == [(4, "sgd", {"num_cycles": 0.25}, 1)]


def test_early_stopping_starts_afresh_in_each_trial(searcher):
    stops = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=1e9)
    trainer = searcher(callbacks=[stops], max_steps=3, metric_for_best_model="loss")
    best = trainer.hyperparameter_search(rates, n_trials=2, backend="optuna")
    assert [list(trial.intermediate_values) for trial in best.run_summary.trials] == [[1, 2], [1, 2]]


def test_a_trial_that_diverges_is_no_end_of_the_search(searcher):
    def space(trial):
        return {"learning_rate": [1e30, 0.1][trial.number], "max_grad_norm": 0, "optim": "sgd"}

    best = searcher(max_steps=4).hyperparameter_search(space, n_trials=2, backend="optuna")
    assert [trial.state.name for trial in best.run_summary.trials] == ["FAIL", "COMPLETE"]
    assert best.run_id == "1"
    with pytest.raises(SearchError, match="no trial of the search completed .0 fail"):
        searcher(max_steps=4).hyperparameter_search(space, n_trials=1, backend="optuna")


def test_a_search_that_has_no_time(searcher):
    with pytest.raises(SearchError, match="none was run"):
        searcher().hyperparameter_search(rates, n_trials=None, backend="optuna", timeout=1e-9)


def broken_at(number):
    def compute(metrics):
        compute.calls += 1
        if compute.calls > number:
            raise KeyError("accuracy")
        return metrics["eval_loss"]

    compute.calls = 0
    return compute


def test_a_trial_that_fails_is_named(searcher):
    trainer = searcher()
    own = trainer.args
    with pytest.raises(SearchError, match=r"trial run-1 \(learning_rate=.*\) failed: KeyError: 'accuracy'") as caught:
        trainer.hyperparameter_search(rates, broken_at(2), 3, backend="optuna")
    assert isinstance(caught.value.__cause__, KeyError)
    assert trainer.args is own and trainer._oneloop.extensions.trial is None
    best = trainer.hyperparameter_search(rates, broken_at(2), 2, backend="optuna", catch=(KeyError,))
    assert [trial.state.name for trial in best.run_summary.trials] == ["COMPLETE", "FAIL"]


def test_an_interrupted_trial_is_retried(searcher, tmp_path):
    class Signals(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGUSR1)

    kept = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "mine", "load_if_exists": True}
    left = searcher(callbacks=[Signals()], preemption_signals=["SIGUSR1"], save_strategy="steps")
    with pytest.raises(SystemExit):
        left.hyperparameter_search(rates, n_trials=3, backend="optuna", catch=(Exception,), **kept)
    best = searcher().hyperparameter_search(rates, n_trials=1, backend="optuna", **kept)
    first, second = best.run_summary.trials
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    assert first.params == second.params and not left.is_in_train


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"learning_rte": 0.1}, "learning_rte.*did you mean 'learning_rate'"),
        ({"hidden_size": 4}, "hidden_size.*model_init accepts the trial"),
        ({"learning_rate": -1.0}, "Invalid learning_rate=-1.0: expected"),
        ({"learning_rate": "fast"}, "Invalid learning_rate='fast': expected a number"),
        ({"per_device_train_batch_size": 2, "per_gpu_train_batch_size": 4}, "are aliases of one argument"),
        ({"output_dir": "x"}, "output_dir cannot be searched"),
        ({"device": "cpu"}, "device cannot be searched"),
        ({"sharding": "stage1"}, "sharding cannot be searched"),
        ([("learning_rate", 1)], "hp_space returned a list"),
    ],
)
def test_values_are_checked_as_arguments_are(searcher, space, words):
    with pytest.raises(ArgumentError, match=words):
        searcher().hyperparameter_search(lambda trial: space, n_trials=1, backend="optuna")


def test_values_for_the_model_are_left_to_model_init(backend, searcher):
    def model_init(trial):
        return backend.classifier(seed=0 if trial is None else trial.params["hidden_size"])

    def space(trial):
        return {"hidden_size": trial.suggest_int("hidden_size", 1, 3)}

    trainer = searcher(model_init=model_init)
    assert trainer.hyperparameter_search(space, n_trials=1, backend="optuna").hyperparameters.keys() == {"hidden_size"}
    with pytest.raises(UnknownArgumentError, match="learning_rate"):
        trainer.hyperparameter_search(lambda trial: {"learning_rates": 1}, n_trials=1, backend="optuna")


def drawing(backend, made):
    """model_init that draws the seed of the model; `made` gets what it drew."""

    def model_init(trial):
        made.append(None if trial is None else trial.suggest_int("hidden", 1, 9))
        return backend.classifier(seed=0 if trial is None else made[-1])

    return model_init


def renamed(trial):
    return {"learning_rate": 10.0 ** -trial.suggest_int("digits", 1, 3), "warmup_steps": 1}


def test_train_takes_the_best_trial(backend, searcher, tmp_path):
    """With what model_init drew, arguments of other names, and those that were not suggested: bit for bit."""
    made = []
    trainer = searcher(model_init=drawing(backend, made), save_strategy="steps")
    best = trainer.hyperparameter_search(renamed, n_trials=3, sampler=optuna.samplers.RandomSampler(seed=3))
    assert best.hyperparameters.keys() == {"hidden", "digits"} and len(set(made[1:])) == 3
    trainer.train(trial=best)
    assert made[-1] == best.hyperparameters["hidden"]
    assert trainer.args.learning_rate == 10.0 ** -best.hyperparameters["digits"] and trainer.args.warmup_steps == 1
    names = ("checkpoint-2/model.safetensors", "checkpoint-2/optimizer.safetensors")
    folder = tmp_path / "out" / f"run-{best.run_id}"
    assert all((folder / name).read_bytes() == (tmp_path / "out" / name).read_bytes() for name in names)
    # The trial that the study keeps, as another process would load it, and the model of its checkpoint.
    other = searcher(model_init=drawing(backend, made), output_dir=str(tmp_path / "other"))
    trial = best.run_summary.best_trial
    other.train(trial=trial, resume_from_checkpoint=str(folder / "checkpoint-2"))
    other.save_model(str(tmp_path / "model"))
    assert same_bytes(load_file(tmp_path / "model" / "model.safetensors"), load_file(folder / names[0]))


def test_train_with_one_of_several_best_trials(searcher):
    trainer = searcher()
    found = trainer.hyperparameter_search(
        rates, n_trials=1, direction=["minimize", "maximize"], compute_objective=lambda m: [m["eval_loss"], 1.0]
    )
    with pytest.raises(ArgumentError, match="the 1 trials of a search with several objectives; pass one"):
        trainer.train(trial=found)
    trainer.train(trial=found[0])
    assert trainer.args.learning_rate == found[0].hyperparameters["learning_rate"]


def test_what_model_init_draws_is_a_hyperparameter_of_the_run(backend, searcher, tmp_path):
    """In the state, in run.jsonl, and in the table that compares the trials."""
    ended = Ended()
    trainer = searcher(model_init=drawing(backend, []), callbacks=[ended])
    trainer.hyperparameter_search(rates, n_trials=3, sampler=optuna.samplers.RandomSampler(seed=3))
    assert [params.keys() for params in ended.params] == [{"learning_rate", "hidden"}] * 3
    runs = [tmp_path / "out" / f"run-{i}" for i in range(3)]
    started = json.loads((runs[0] / "run.jsonl").read_text().splitlines()[0])
    assert started["hyperparameters"] == ended.params[0]
    page = comparison.page(runs)
    at = page["differing"].index("hidden")
    assert [row["values"][at] for row in page["runs"]] == [str(params["hidden"]) for params in ended.params]
    directory = Directory(runs[0])
    directory.read_new()
    arguments = page_data.run_page(directory)["arguments"]
    assert arguments[0] == ["hidden", str(ended.params[0]["hidden"]), ""]
    assert [name for name, *_ in arguments].count("learning_rate") == 1


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"n_jobs": 2}, UnsupportedError, "n_jobs=2.*load_if_exists=True"),
        ({"n_trials": 0}, ArgumentError, "n_trials=0"),
        ({"direction": "down"}, ArgumentError, "direction='down'.*'minimize'"),
        ({"direction": []}, ArgumentError, "direction"),
        ({"samplers": 1}, ArgumentError, "has no option samplers for Optuna.*sampler"),
        ({"hp_name": lambda trial: "../x"}, ArgumentError, "hp_name returned"),
        ({"backend": "wandb"}, UnsupportedError, "backend='wandb'.*'optuna' or 'ray'"),
        ({"backend": "sigopt"}, UnsupportedError, "SigOpt"),
        ({"backend": "grid"}, ArgumentError, "'grid' is not a valid HPSearchBackend"),
    ],
)
def test_invalid_options_raise_before_the_search_starts(searcher, tmp_path, given, error, words):
    with pytest.raises(error, match=words):
        searcher().hyperparameter_search(rates, **{"n_trials": 1, "backend": "optuna"} | given)
    assert not list(tmp_path.glob("out/*"))


def test_two_trials_of_one_name(searcher):
    """Each has a folder of its own."""
    trainer = searcher(save_strategy="steps", save_steps=1)
    trainer.hyperparameter_search(rates, n_trials=3, backend="optuna", hp_name=lambda trial: "same")
    found = {path.name for path in Path(trainer.args.output_dir).iterdir() if path.is_dir()}
    assert {"same", "same-2", "same-3"} <= found


def test_what_a_search_needs_of_the_trainer(backend, arguments, searcher):
    with pytest.raises(ArgumentError, match="needs model_init"):
        Trainer(backend.classifier(), arguments(), None, rows(8), rows(4)).hyperparameter_search(backend="optuna")
    with pytest.raises(DataError, match="eval_dataset"):
        searcher(eval_dataset=None, eval_strategy="no").hyperparameter_search(backend="optuna")
    with pytest.raises(ArgumentError, match="resume_from_checkpoint.*load_if_exists"):
        searcher(resume_from_checkpoint=True).hyperparameter_search(backend="optuna")


def test_packages_that_are_missing_are_named(searcher, monkeypatch):
    trainer = searcher()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match="backend='optuna'.*pip install optuna"):
        trainer.hyperparameter_search(backend="optuna")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"backend='ray'.*pip install 'ray\[tune\]'"):
        trainer.hyperparameter_search(backend="ray")
    with pytest.raises(ImportError, match=r"neither is installed: pip install optuna or pip install 'ray\[tune\]'"):
        trainer.hyperparameter_search()


@pytest.mark.slow
def test_a_study_of_twenty_trials(searcher):
    """The default space and objective, sampler and pruner of Optuna's own choice: the best is no worse than all."""

    def accuracy(prediction):
        return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}

    trainer = searcher(max_steps=-1, eval_strategy="epoch", compute_metrics=accuracy)
    best = trainer.hyperparameter_search(direction="maximize", gc_after_trial=True)
    trials = best.run_summary.trials
    assert len(trials) == 20 and {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    assert best.objective == max(trial.value for trial in trials if trial.state.name == "COMPLETE")
    assert 0 <= best.objective <= 1
    for name, value in best.hyperparameters.items():
        setattr(trainer.args, name, value)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] == best.objective, "the best trial can be made again"
