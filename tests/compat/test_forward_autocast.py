"""Mixed precision in scripts of transformers: the forward pass in half precision, and the rest of a loss in float32."""

import copy
from collections import namedtuple

import numpy as np
import pytest

import oneloop
from tests.backends.support import same_bytes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")
pytest.importorskip("accelerate")

from oneloop.backends.torch.forward_autocast import ForwardAutocast, in_float32  # noqa: E402
from tests.emulation import emulate  # noqa: E402

ROWS = [{"x": np.random.RandomState(i).randn(6).astype("float32"), "labels": i % 2} for i in range(24)]


class Embeds(torch.nn.Module):
    """Returns embeddings; the loss is made of their products."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(6, 5)

    def forward(self, x, labels=None):
        return {"embeddings": self.layer(x), "kept": [self.layer.weight.sum()]}


def with_products(base):
    class Contrastive(base):
        """Outside of the model: in half precision if the loss is computed under autocast."""

        dtypes = ()

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            products = outputs["embeddings"] @ outputs["embeddings"].T
            self.dtypes = (*self.dtypes, (outputs["embeddings"].dtype, products.dtype))
            same = (inputs["labels"][:, None] == inputs["labels"]).float()
            loss = ((products - same) ** 2).mean()
            return (loss, outputs) if return_outputs else loss

    return Contrastive


def trained(library, folder, half="bf16", **given):
    given |= {} if library is transformers else {"data_order": "transformers"}
    args = library.TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=4, learning_rate=0.05, logging_steps=1, use_cpu=True,
        eval_strategy="steps", eval_steps=2, report_to="none", disable_tqdm=True, save_strategy="no", **{half: True},
        **given,
    )  # fmt: skip
    trainer = with_products(library.Trainer)(Embeds(), args, train_dataset=ROWS, eval_dataset=ROWS[:6])
    trainer.train()
    return trainer


def weights(trainer):
    return {name: value.detach().numpy() for name, value in trainer.model.state_dict().items()}


def test_weights_and_losses_are_those_of_transformers(tmp_path, monkeypatch):
    emulate(monkeypatch, {"transformers"})
    theirs, ours = (trained(library, tmp_path / library.__name__) for library in (transformers, oneloop))
    assert set(ours.dtypes) == {(torch.float32, torch.float32)} and len(ours.dtypes) == len(theirs.dtypes)
    assert same_bytes(weights(ours), weights(theirs))
    losses = [[line.get("loss", line.get("eval_loss")) for line in t.state.log_history] for t in (theirs, ours)]
    assert losses[0][:-1] == pytest.approx(losses[1][:-1], rel=1e-6)
    later = [trainer.predict(ROWS[:6]) for trainer in (theirs, ours)]
    assert later[0].metrics["test_loss"] == pytest.approx(later[1].metrics["test_loss"], rel=1e-6)
    assert later[1].predictions[0].dtype == np.float32
    assert not ours.model._forward_hooks and not ours.model._forward_pre_hooks, "they end with a run"


def test_elsewhere_the_loss_is_computed_under_autocast(tmp_path, monkeypatch):
    emulate(monkeypatch, set())
    assert set(trained(oneloop, tmp_path).dtypes) == {(torch.bfloat16, torch.bfloat16)}


def test_a_compiled_model_keeps_autocast_around_the_loss(tmp_path, monkeypatch):
    emulate(monkeypatch, {"transformers"})
    found = trained(oneloop, tmp_path, torch_compile_backend="eager")
    assert {products for _, products in found.dtypes} == {torch.bfloat16}


def test_another_model_is_prepared_alike(tmp_path, monkeypatch):
    """A reference model: compared with outputs of the trained one, whose precision it should have."""
    emulate(monkeypatch, {"transformers"})
    trainer = trained(oneloop, tmp_path)
    reference = trainer.accelerator.prepare_model(copy.deepcopy(trainer.model), evaluation_mode=True)
    x = torch.from_numpy(ROWS[0]["x"])
    exact, found = trainer.model(x)["embeddings"], reference(x)["embeddings"]
    assert found.dtype == torch.float32 and not torch.equal(found, exact) and torch.allclose(found, exact, rtol=0.05)


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_a_forward_pass_that_fails_leaves_no_autocast():
    model = Embeds()
    with ForwardAutocast(model, autocast):
        with pytest.raises(RuntimeError):
            model(torch.ones(7))
        assert not torch.is_autocast_enabled("cpu")
        assert model(torch.ones(6))["embeddings"].dtype == torch.float32
    assert not model._forward_hooks


def test_outputs_of_all_kinds():
    half, other = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
    Pair = namedtuple("Pair", "first second")
    output = transformers.modeling_outputs.CausalLMOutput(loss=half, logits=other)
    found = in_float32({"a": [half, other], "b": Pair(half, "text"), "c": output, "d": None})
    assert found["a"][0].dtype == torch.float32 and found["a"][1] is other
    assert found["b"].first.dtype == torch.float32 and found["b"].second == "text"
    assert type(found["c"]) is type(output) and found["c"].loss.dtype == found["c"]["loss"].dtype == torch.float32
    assert found["c"].logits is other and output.loss is half, "the model's own object stays as it was"
    same = {"a": other}
    assert in_float32(same) is same
