"""An evaluation in the middle of a run leaves every layer in the mode that it was in."""

from oneloop import TrainerCallback
from tests.backends.support import rows, same_bytes

RUN = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.1, "optim": "sgd"}


def means(weights):
    return {name: value for name, value in weights.items() if "mean" in name}


class KeepsMeans(TrainerCallback):
    """After the first step it puts the norm into evaluation mode, as it is done to keep its running means."""

    def __init__(self, backend):
        self.backend, self.modes, self.means = backend, [], []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 1:
            model.norm.set_train(False) if hasattr(model, "set_train") else model.norm.eval()
        self.modes.append((bool(model.norm.training), bool(model.dropout.training)))
        self.means.append(means(self.backend.weights(model)))


def test_layers_keep_their_modes(backend, trained):
    model, kept = backend.classifier(norm=True, dropout=0.1), KeepsMeans(backend)
    trained(model, rows(16), callbacks=[kept], eval_dataset=rows(6, 1), **RUN)
    assert kept.modes == [(False, True)] * 4
    assert kept.means[0] and same_bytes(kept.means[0], kept.means[3])


def test_running_means_are_those_of_the_training_data(backend, trained):
    """Evaluations add nothing to them, and training goes on adding after each."""
    found = []
    for more in ({}, {"eval_strategy": "no"}):
        model = backend.classifier(norm=True)
        before = means(backend.weights(model))
        trained(model, rows(16), eval_dataset=[row | {"x": row["x"] + 9} for row in rows(6, 1)], **RUN | more)
        found.append(means(backend.weights(model)))
        assert before and not same_bytes(found[-1], before)
    assert same_bytes(*found)
