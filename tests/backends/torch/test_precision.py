"""Recompute, compilation, past states and out-of-memory errors, in PyTorch's own ways."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from oneloop import Trainer
from oneloop.backends.torch import ddp, parallel
from oneloop.backends.torch.engine import Engine
from oneloop.errors import UnsupportedError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes, tagged

KIT = Kit()
RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 8, "max_steps": 5, "logging_steps": 1}


def losses(trainer):
    return [e["loss"] for e in trainer.state.log_history if "loss" in e]


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 6)) for _ in range(3)
        )
        self.head = nn.Linear(6, 3)
        self.forwards = 0
        self.layers[0][0].register_forward_hook(lambda *_: setattr(self, "forwards", self.forwards + 1))

    def forward(self, x, labels=None):
        for layer in self.layers:
            x = x + layer(x)
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def deep():
    torch.manual_seed(0)
    return Deep()


@pytest.mark.parametrize("options", [None, {"use_reentrant": False}, {"preserve_rng_state": True}])
def test_recompute_gives_the_same_bytes_with_dropout(trained, options):
    plain, again = deep(), deep()
    first = trained(plain, rows(24), **RUN)
    second = trained(again, rows(24), gradient_checkpointing=True, gradient_checkpointing_kwargs=options, **RUN)
    assert losses(first) == losses(second) and same_bytes(KIT.weights(plain), KIT.weights(again))
    assert plain.forwards == 5 and again.forwards == 10
    again.forwards = 0
    second.evaluate(rows(8))
    assert again.forwards == 1, "an evaluation has no backward pass to recompute for"


def test_recompute_of_a_transformers_model(trained):
    transformers = pytest.importorskip("transformers")

    def bert():
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=17, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=3
        )
        return transformers.BertForTokenClassification(config)

    plain, again = bert(), bert()
    first = trained(plain, tagged([4] * 16), **RUN)
    second = trained(again, tagged([4] * 16), recompute=True, **RUN)
    assert again.is_gradient_checkpointing and not plain.is_gradient_checkpointing
    assert losses(first) == losses(second) and same_bytes(KIT.weights(plain), KIT.weights(again))


def test_recompute_of_a_model_without_blocks_is_refused(arguments):
    with pytest.raises(UnsupportedError, match="nn.ModuleList"):
        Trainer(KIT.classifier(), arguments(gradient_checkpointing=True))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_compiled_model_has_the_same_losses(trained, tmp_path, compiler):
    plain, model = KIT.classifier(), KIT.classifier()
    first = trained(plain, rows(24), **RUN)
    second = trained(
        model,
        rows(24),
        torch_compile=True,
        torch_compile_backend=compiler,
        save_strategy="steps",
        save_steps=5,
        eval_dataset=rows(4),
        eval_strategy="steps",
        eval_steps=2,
        **RUN,
    )
    np.testing.assert_allclose(losses(first), losses(second), rtol=1e-5)
    assert second.model is model and second.model_wrapped is not model
    assert second.accelerator.unwrap_model(second.model_wrapped) is model
    other = KIT.classifier()
    Trainer(other, second.args, train_dataset=rows(24), eval_dataset=rows(4)).train(
        resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-5")
    )
    assert same_bytes(KIT.weights(model), KIT.weights(other)), "names in a checkpoint are the model's own"


def test_an_unknown_compiler_is_refused_at_once(arguments):
    with pytest.raises(UnsupportedError, match="inductor"):
        Trainer(KIT.classifier(), arguments(torch_compile_backend="fast"))


def test_jit_mode_eval_compiles_the_evaluation_alone(trained, monkeypatch):
    from oneloop.backends.torch import models

    made = []
    compiled = models.compiled
    # The default compiler needs a C++ compiler; another one stands in for it.
    monkeypatch.setattr(
        models, "compiled", lambda *given: made.append(given[1:]) or compiled(given[0], "aot_eager", None)
    )
    model = KIT.classifier()
    trainer = trained(model, rows(24), jit_mode_eval=True, **RUN)
    assert trainer.model_wrapped is model and made == []
    plain = Trainer(model, trainer.args, eval_dataset=rows(8))
    plain.args.jit_mode_eval = False
    expected = plain.evaluate()["eval_loss"]
    trainer.args.jit_mode_eval = True
    assert trainer.evaluate(rows(8))["eval_loss"] == pytest.approx(expected, rel=1e-5)
    trainer.evaluate(rows(8))
    assert made == [(None, None)], "compiled once"


class Remembers(nn.Module):
    """Feeds its hidden state back: forward takes `mems`."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.seen = []

    def forward(self, x, labels=None, mems=None):
        self.seen.append((self.training, None if mems is None else tuple(mems.shape)))
        hidden = torch.tanh(self.inner(x) + (0 if mems is None else mems))
        logits = self.head(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits, "mems": hidden}


def test_past_index_feeds_an_output_back(trained):
    model = Remembers()
    options = RUN | {"max_steps": 5, "eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 4}
    trained(model, rows(16), past_index=2, eval_dataset=rows(8, 1), **options)
    training = [shape for is_training, shape in model.seen if is_training]
    evaluation = [shape for is_training, shape in model.seen if not is_training]
    assert training == [None, (8, 6), None, (8, 6), None], "each epoch starts without a past"
    assert evaluation == [None, (4, 6)], "an evaluation starts without the training's past"
    model.seen.clear()
    trained(model, rows(16), **RUN)
    assert {shape for _, shape in model.seen} == {None}


def test_out_of_memory_in_the_middle_of_a_backward_pass(trained):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.rows = len(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.rows > 4:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return gradient

    class Model(nn.Module):
        def __init__(self, fails):
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.head, self.fails = nn.Linear(6, 6), nn.Linear(6, 3), fails

        def forward(self, x, labels):
            hidden = self.inner(x)
            logits = self.head(Fails.apply(hidden) if self.fails else hidden)
            return {"loss": nn.functional.cross_entropy(logits, labels)}

    plain, model = Model(False), Model(True)
    trained(plain, rows(24), **RUN)
    trainer = trained(model, rows(24), auto_find_batch_size=True, **RUN)
    assert trainer.state.global_step == 5
    for name, value in KIT.weights(plain).items():
        np.testing.assert_allclose(value, KIT.weights(model)[name], atol=2e-6)


def test_processes_are_told_the_loss_before_it_is_scaled():
    seen = []

    class Tells(parallel.SingleProcessStrategy):
        def send(self, loss):
            seen.append(loss.item())

        def backward(self, loss, **kwargs):
            seen.append(loss.item())

    model = KIT.classifier()
    engine = Engine(model, torch.device("cpu"), half="fp16", loss_scale=8.0)
    engine.strategy = Tells.__new__(Tells)
    engine.backward(sum((p * 0).sum() for p in model.parameters()) + 2.0)
    assert seen == [2.0, 16.0]


def test_numbers_that_travel_with_gradients_leave_them_as_they_are():
    """Also those of a loss that is not a number, with a gradient of its own."""
    strategy = ddp.DataParallelStrategy.__new__(ddp.DataParallelStrategy)
    strategy.ddp, strategy._syncs = SimpleNamespace(word=nn.Parameter(torch.zeros(ddp.WORD))), True
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    for numbers in ([1.0, 5.0], [2.0], None):
        strategy._word, weight.grad = numbers, None
        strategy.backward(weight**2, gradient=torch.tensor([1.0, 10.0]))
        assert weight.grad.tolist() == [6.0, 80.0]
        if numbers is not None:
            assert strategy.ddp.word.grad.tolist() == numbers + [0.0] * (ddp.WORD - len(numbers))
