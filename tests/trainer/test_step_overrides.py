"""Overrides of what a step asks the Trainer: the best evaluation, the learning rate, inputs on the device."""

from pathlib import Path

from oneloop import Trainer
from tests.backends.support import rows

RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1, "learning_rate": 0.05}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best", "metric_for_best_model": "loss"}


class SecondIsBest(Trainer):
    """Without super(): the evaluation of step 2 is the best, whatever its metric."""

    def _determine_best_metric(self, metrics, trial):
        assert "eval_loss" in metrics
        is_best = self.state.global_step == 2
        if is_best:
            self.state.best_metric, self.state.best_global_step = -1.0, 2
        return is_best


def test_which_evaluation_is_the_best(backend, arguments, tmp_path):
    args = arguments(load_best_model_at_end=True, **RUN, **EVALUATED)
    trainer = SecondIsBest(backend.classifier(), args, train_dataset=rows(24), eval_dataset=rows(8, 1))
    trainer.train()
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-2"]
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-2" and trainer.state.best_metric == -1.0


def test_the_learning_rate_in_logs(backend, arguments):
    class Doubled(Trainer):
        def _get_learning_rate(self):
            return 2 * super()._get_learning_rate()

    rates = []
    for cls in (Trainer, Doubled):
        trainer = cls(backend.classifier(), arguments(**RUN), train_dataset=rows(24))
        trainer.train()
        rates.append([line["learning_rate"] for line in trainer.state.log_history if "loss" in line])
    assert len(rates[0]) == 4 and rates[1] == [2 * rate for rate in rates[0]]


def test_each_part_of_a_batch(backend, arguments):
    seen = []

    class Looks(Trainer):
        def _prepare_input(self, data):
            seen.append(tuple(getattr(data, "shape", ())) or sorted(data))
            return super()._prepare_input(data)

    Looks(backend.classifier(), arguments(**RUN | {"max_steps": 1}), train_dataset=rows(24)).train()
    assert seen[0] == ["labels", "x"] and sorted(seen[1:]) == [(4,), (4, 6)]
