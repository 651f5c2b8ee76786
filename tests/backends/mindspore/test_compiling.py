"""mindspore.jit: the same numbers where it is used, a reason where it is not."""

import numpy as np
import pytest

pytest.importorskip("mindspore")

from mindspore import nn, ops

from oneloop import Trainer
from oneloop.backends.mindspore.compiling import Compiled
from tests.backends.kits.mindspore_kit import Kit
from tests.backends.kits.mindspore_models import Classifier, fill
from tests.backends.support import rows, same_bytes

RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.1, "logging_steps": 1}
kit = Kit()


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_compiled_run_has_the_numbers_of_a_plain_one(trained):
    plain, compiled = kit.classifier(), kit.classifier()
    first = trained(plain, rows(16), **RUN)
    second = trained(compiled, rows(16), torch_compile=True, **RUN)
    assert isinstance(second.model_wrapped, Compiled) and second.model is compiled
    assert second.model_wrapped.graphs[True] is not None, "the graph was used"
    assert losses(first) == losses(second) and same_bytes(kit.weights(plain), kit.weights(compiled))


def test_evaluation_on_the_graph(arguments):
    model = kit.classifier(dropout=0.3)
    plain = Trainer(model, arguments(), eval_dataset=rows(8)).evaluate()
    called = []

    class Own(Trainer):
        def prediction_step(self, model, *args, **kwargs):
            called.append(model)
            return super().prediction_step(model, *args, **kwargs)

    trainer = Own(model, arguments(jit_mode_eval=True), eval_dataset=rows(8))
    assert trainer.evaluate()["eval_loss"] == plain["eval_loss"]
    assert called[0].graphs[False] is not None


def test_dropout_is_a_reason_not_to(trained, caplog):
    """A graph would have one mask for all steps."""
    plain, compiled = kit.classifier(dropout=0.4), kit.classifier(dropout=0.4)
    first = trained(plain, rows(16), **RUN)
    second = trained(compiled, rows(16), torch_compile=True, **RUN)
    assert second.model_wrapped.graphs[True] is None
    assert "mindspore.jit is not used for training: the masks of dropout" in caplog.text
    assert losses(first) == losses(second) and same_bytes(kit.weights(plain), kit.weights(compiled))


class Looks(Classifier):
    """Something that no graph can do: it leaves for NumPy and comes back."""

    def construct(self, x, labels=None):
        scale = float(np.unique(x.asnumpy()).size > 0)
        return super().construct(x * scale, labels)


def test_what_cannot_be_compiled_runs_as_it_is(trained, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain, compiled = fill(Looks(), 0), fill(Looks(), 0)
    first = trained(plain, rows(16), **RUN)
    second = trained(compiled, rows(16), torch_compile=True, **RUN)
    assert second.model_wrapped.graphs[True] is None
    assert "mindspore.jit is not used for training:" in caplog.text
    assert losses(first) == losses(second) and same_bytes(kit.weights(plain), kit.weights(compiled))
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing of the compiler's lies about"


def test_a_failure_inside_the_compiler_is_told_and_the_step_is_computed(trained, caplog, monkeypatch):
    from oneloop.backends.mindspore import compiling

    def broken(function, fullgraph):
        def fail(*args, **kwargs):
            ops.relu(args[0] if args else next(iter(kwargs.values())))
            raise RuntimeError("the compiler is unhappy.\nwith many lines")

        return fail

    monkeypatch.setattr(compiling.ms, "jit", broken)
    plain, compiled = kit.classifier(), kit.classifier()
    first = trained(plain, rows(16), **RUN)
    second = trained(compiled, rows(16), torch_compile=True, **RUN)
    assert "RuntimeError: the compiler is unhappy. The model runs uncompiled." in caplog.text
    assert caplog.text.count("is not used for training") == 1
    assert losses(first) == losses(second) and same_bytes(kit.weights(plain), kit.weights(compiled))


def test_noise_on_embeddings_is_a_reason_not_to(trained, caplog):
    from tests.backends.support import tagged

    plain, compiled = kit.tagger(), kit.tagger()
    options = RUN | {"neftune_noise_alpha": 5.0}
    first = trained(plain, tagged([4] * 16), **options)
    second = trained(compiled, tagged([4] * 16), torch_compile=True, **options)
    assert "embed has a hook" in caplog.text
    assert losses(first) == losses(second)
    assert isinstance(compiled.embed, nn.Embedding)
