"""An evaluation in the middle of a run leaves every layer in the mode that it was in."""

from oneloop import Trainer, TrainerCallback
from tests.backends.support import rows, same_bytes

RUN = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.1, "optim": "sgd"}


def in_training(model):
    """Cells of MindSpore start in evaluation mode."""
    model.set_train(True) if hasattr(model, "set_train") else model.train()
    return model


def freeze(layer):
    """Into evaluation mode, as it is done to keep the running means of a norm."""
    layer.set_train(False) if hasattr(layer, "set_train") else layer.eval()


def means(weights):
    return {name: value for name, value in weights.items() if "mean" in name}


class KeepsMeans(TrainerCallback):
    """After the first step it freezes the norm."""

    def __init__(self, backend):
        self.backend, self.modes, self.means = backend, [], []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 1:
            freeze(model.norm)
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


class Watches(TrainerCallback):
    """The mode of the model in the events of a run, and whether an evaluation of this step came before."""

    def __init__(self):
        self.seen, self.evaluated = {}, False

    def note(self, event, model):
        self.seen.setdefault((event, self.evaluated), set()).add(bool(model.training))

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.evaluated = False
        self.note("step_begin", model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.note("step_end", model)

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        self.evaluated = self.evaluated or "eval_loss" in logs
        self.note("log", model)

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        self.note("evaluate", model)

    def on_save(self, args, state, control, model=None, **kwargs):
        self.note("save", model)

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        self.note("epoch_begin", model)


def test_the_model_stays_in_evaluation_mode_until_training_goes_on(backend, trained):
    """As in transformers; libraries on top of it tell from the mode in log() what the figures belong to."""
    watches = Watches()
    options = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "optim": "sgd"}
    saving = {"save_strategy": "steps", "save_steps": 2, "save_async": False}
    model = in_training(backend.classifier())
    trained(model, rows(16), callbacks=[watches], eval_dataset=rows(6, 1), **options, **saving)
    training, evaluation = {True}, {False}
    assert watches.seen.pop(("epoch_begin", False)) == training
    assert watches.seen.pop(("epoch_begin", True), training) == training
    assert watches.seen == {
        ("step_begin", False): training,
        ("step_end", False): training,
        ("log", False): training,
        ("log", True): evaluation,  # of the evaluation, and of the end of the run, which has evaluated at its last step
        ("evaluate", True): evaluation,
        ("save", True): evaluation,
    }
    assert model.training


def test_an_evaluation_between_micro_batches_is_in_its_own_mode(backend, arguments):
    """In an overridden training_step, and in a callback between the micro-batches of an update."""
    modes = []

    class Evaluates(Trainer):
        def training_step(self, model, inputs, *rest):
            self.evaluate()
            modes.append(("after", bool(self.model.training)))
            return super().training_step(model, inputs, *rest)

        def compute_loss(self, model, inputs, **kwargs):
            modes.append(("loss", bool(self.model.training), bool(self.model.norm.training)))
            return super().compute_loss(model, inputs, **kwargs)

    model = in_training(backend.classifier(norm=True, dropout=0.1))
    freeze(model.norm)
    trainer = Evaluates(
        model,
        arguments(max_steps=2, gradient_accumulation_steps=2, per_device_train_batch_size=4),
        train_dataset=rows(16),
        eval_dataset=rows(6, 1),
    )
    trainer.train()
    evaluated = [("loss", False, False), ("after", False)]
    assert modes == (evaluated + [("loss", True, False)]) * 4


def test_layers_that_look_forgotten_in_evaluation_mode_are_named(backend, trained, caplog):
    """A frozen norm is meant, and so is a layer whose weights are not trained."""

    def warned(*layers, frozen=None):
        model = in_training(backend.classifier(norm=True))
        for name in layers:
            freeze(getattr(model, name))
        if frozen is not None:
            backend.freeze(getattr(model, frozen))
        caplog.clear()
        trained(model, rows(8), max_steps=2, per_device_train_batch_size=4)
        return [record.getMessage() for record in caplog.records if "in evaluation mode" in record.getMessage()]

    assert warned() == warned("norm", "dropout") == warned("hidden", frozen="hidden") == []
    (message,) = warned("norm", "hidden", "head")
    assert message.startswith("These layers are trained in evaluation mode, without dropout: hidden, head.")
