"""hyperparameter_search on Ray Tune. What needs a cluster is slow; the worker's part is tested here without one."""

import json
import math

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.errors import ArgumentError, SearchError, UnsupportedError
from oneloop.integrations.search.trainer_pickle import pack, unpack
from tests.backends.support import available, rows
from tests.ecosystem.needs import needs

needs("ray")  # imported by the tests alone: every process that runs tests collects this file


def tune():
    from ray import tune

    return tune


def in_bytes(trainer):
    """A Trainer as Ray sends it to a worker."""
    from ray import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(pack(trainer, cloudpickle.dumps)))


def space(trial=None):
    return {"learning_rate": tune().grid_search([1e-3, 0.05])}


class Tells(TrainerCallback):
    """Says into the trial's folder that its training has ended."""

    def on_train_end(self, args, state, control, **kwargs):
        with open(f"{args.output_dir}/ended", "w") as f:
            json.dump({"name": state.trial_name, "params": state.trial_params, "step": state.global_step}, f)


class Mine(Trainer):
    """A subclass with a constructor and an attribute of its own."""

    def __init__(self, extra, **given):
        self.extra = extra
        super().__init__(**given)

    def compute_loss(self, model, inputs, *args, **kwargs):
        assert self.extra == "kept"
        return super().compute_loss(model, inputs, *args, **kwargs)


@pytest.fixture
def searcher(backend, arguments):
    def make(callbacks=(), data=None, **given):
        options = {"max_steps": 3, "per_device_train_batch_size": 8, "eval_strategy": "steps", "eval_steps": 1} | given
        return Mine(
            "kept",
            args=arguments(**options),
            train_dataset=rows(24) if data is None else data,
            eval_dataset=rows(8, 1),
            model_init=backend.classifier,
            callbacks=[Tells(), *callbacks],
        )

    return make


@pytest.fixture
def worker(searcher):
    """A trial as a worker has it, without a cluster: the Trainer has been pickled, as it is on its way there."""
    made = []

    def make(config, **given):
        trainer = searcher(**given)
        trainer.compute_objective = lambda metrics: metrics["eval_loss"]
        from oneloop.integrations.search.ray_worker import TrainerTrial

        trial = TrainerTrial.__new__(TrainerTrial)
        trial._trial_info = None
        trial.setup(config, packed=in_bytes(trainer))
        made.append(trial)
        return trial

    yield make
    for trial in made:
        trial.cleanup()


def test_a_worker_reports_each_evaluation_and_then_the_end(backend, worker, arguments, tmp_path):
    trial = worker({"learning_rate": 0.05})
    results = [trial.step() for _ in range(4)]
    assert [result.get("step") for result in results] == [1, 2, 3, None]
    assert results[-1] == {"done": True, "__duplicate__": True}
    args = arguments("alone", max_steps=3, per_device_train_batch_size=8, learning_rate=0.05)
    args.output_dir = str(tmp_path / "alone")
    alone = Trainer(args=args, train_dataset=rows(24), eval_dataset=rows(8, 1), model_init=backend.classifier)
    alone.train()
    assert results[2]["objective"] == results[2]["eval_loss"] == alone.evaluate()["eval_loss"]


def test_a_trial_that_is_stopped_ends_its_run(worker, tmp_path):
    trial = worker({"learning_rate": 0.05}, save_strategy="steps", save_steps=1)
    assert trial.step()["step"] == 1
    trial.cleanup()
    (folder,) = (path for path in (tmp_path / "out").iterdir() if path.name.startswith("run-"))
    told = json.loads((folder / "ended").read_text())
    assert told == {"name": folder.name, "params": {"learning_rate": 0.05}, "step": 1}
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-1",
        "curve.jsonl",
        "ended",
        "log.jsonl",
        "run.jsonl",
    ]


def test_a_trial_that_never_began_is_stopped_at_once(worker, tmp_path):
    worker({"learning_rate": 0.05}).cleanup()
    assert not list(tmp_path.glob("out/run-*"))


def test_an_error_in_a_worker_is_the_trials(worker):
    with pytest.raises(ArgumentError, match="Invalid learning_rate=-1.0: expected"):
        worker({"learning_rate": -1}).step()


def test_a_trial_that_diverges_reports_no_number(worker):
    trial = worker({"learning_rate": 1e30, "max_grad_norm": 0, "optim": "sgd"}, eval_strategy="no", max_steps=4)
    assert math.isnan(trial.step()["objective"])
    assert trial.step()["done"]


def test_a_trainer_that_has_trained_and_evaluated_can_be_sent(searcher):
    trainer = searcher(load_best_model_at_end=True, save_strategy="steps", save_steps=1, optim="sgd")
    trainer.train()
    packed = in_bytes(trainer)
    again = unpack(packed)
    again.train()
    assert again.state.log_history[-1]["train_loss"] == trainer.state.log_history[-1]["train_loss"]


class Unpicklable(list):
    def __reduce__(self):
        raise TypeError("an open file")


def test_unpicklable_parts_are_named(searcher):
    with pytest.raises(
        ArgumentError, match="train_dataset .Unpicklable. cannot be sent to Ray's workers .TypeError: an open file"
    ):
        searcher(data=Unpicklable(rows(8))).hyperparameter_search(space, n_trials=1, backend="ray")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"direction": ["minimize", "maximize"]}, UnsupportedError, "a single objective.*backend='optuna'"),
        ({"keep_checkpoints_num": 1}, UnsupportedError, "keep_checkpoints_num.*save_total_limit"),
        ({"samplers": 1}, ArgumentError, "has no option samplers for Ray Tune.*scheduler"),
        ({"n_trials": None}, ArgumentError, "n_trials=None would never end.*time_budget_s"),
        ({"scheduler": "pbt"}, UnsupportedError, "scheduler=pbt.*ASHAScheduler"),
        ({"hp_space": lambda trial: {"learning_rte": 1}}, ArgumentError, "did you mean 'learning_rate'"),
    ],
)
def test_invalid_options_raise_before_a_cluster_starts(searcher, given, error, words):
    with pytest.raises(error, match=words):
        searcher().hyperparameter_search(**{"hp_space": space, "n_trials": 1, "backend": "ray"} | given)


def test_a_scheduler_needs_evaluations(searcher):
    with pytest.raises(ArgumentError, match="scheduler=AsyncHyperBandScheduler.*eval_strategy is 'no'"):
        searcher(eval_strategy="no").hyperparameter_search(
            space, backend="ray", scheduler=tune().schedulers.ASHAScheduler()
        )


@pytest.fixture(scope="module")
def cluster():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_a_search_on_a_real_cluster(backend, searcher, cluster, tmp_path):
    trainer = searcher(save_strategy="steps", save_steps=3, max_steps=4)
    before = trainer.args.to_dict()
    asha = tune().schedulers.ASHAScheduler(max_t=10, grace_period=1, reduction_factor=2)
    given = {"scheduler": asha, "resources_per_trial": {"cpu": 1}, "max_concurrent_trials": 1, "verbose": 0}

    def wide(trial):  # a rate that changes next to nothing, then two that spoil the model in one step
        return {"learning_rate": tune().grid_search([1e-6, 5.0, 6.0])}

    best = trainer.hyperparameter_search(wide, n_trials=1, backend="ray", **given)
    trials = best.run_summary.trials
    assert len(trials) == 3 and {trial.status for trial in trials} == {"TERMINATED"}
    assert best.objective == min(trial.last_result["objective"] for trial in trials)
    assert best.hyperparameters in [trial.config for trial in trials]
    assert [trial.last_result["step"] for trial in trials] == [4, 1, 1], "ASHA stops those that are worse"
    for trial in trials:
        folder = tmp_path / "out" / f"run-{trial.trial_id}"
        told = json.loads((folder / "ended").read_text())
        assert told["params"] == trial.config and told["step"] == trial.last_result["step"]
        assert (folder / "checkpoint-3").exists() == (told["step"] >= 3)
    assert trainer.args.to_dict() == before


@pytest.mark.slow
@pytest.mark.parametrize("backend", available()[:1], ids=lambda kit: kit.name)  # no matter which
def test_which_result_is_compared(searcher, cluster):
    def objective(metrics):
        return [1.0, 4.5, 6.0][round(metrics["epoch"] * 3) - 1]

    chosen = {}
    for scope in ("last", "all", "avg"):
        best = searcher(ray_scope=scope).hyperparameter_search(space, objective, 1, backend="ray", verbose=0)
        chosen[scope] = best.objective
    assert chosen == {"last": 6.0, "all": 1.0, "avg": pytest.approx(11.5 / 3)}


@pytest.mark.slow
@pytest.mark.parametrize("backend", available()[:1], ids=lambda kit: kit.name)  # no matter which
def test_a_failing_trial_is_named(searcher, cluster):
    def objective(metrics):
        raise KeyError("accuracy")

    with pytest.raises(SearchError, match=r"trial run-\S+ \(learning_rate=.*\) failed: .*accuracy"):
        searcher().hyperparameter_search(space, objective, 1, backend="ray", verbose=0)
