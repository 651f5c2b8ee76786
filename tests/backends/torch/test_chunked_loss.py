"""The loss without whole logits, on models of transformers: the gradients of the plain way, or a reasoned refusal."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from oneloop import Trainer, TrainingArguments  # noqa: E402
from oneloop.backends._common import chunked_loss as common  # noqa: E402
from oneloop.backends.torch.chunked_loss import head_of  # noqa: E402
from oneloop.errors import ArgumentError, ModelError, UnsupportedError  # noqa: E402

WORDS = 97
SMALL = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 70, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2}


def of(name, config, **given):
    torch.manual_seed(0)
    kind = name.removesuffix("ForCausalLM").removesuffix("ForMaskedLM").removesuffix("LMHeadModel")
    return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**config | given)).eval()


def adapted(**given):
    peft = pytest.importorskip("peft")
    options = {"r": 2, "target_modules": ["q_proj", "lm_head"], "init_lora_weights": False} | given
    return peft.get_peft_model(of("LlamaForCausalLM", GROUPED), peft.LoraConfig(**options)).eval()


MODELS = {
    "llama": lambda: of("LlamaForCausalLM", GROUPED),
    "tied": lambda: of("LlamaForCausalLM", GROUPED, tie_word_embeddings=True),
    "capped": lambda: of("Gemma2ForCausalLM", GROUPED, head_dim=8, final_logit_softcapping=3.0),
    "scaled": lambda: of("GraniteForCausalLM", GROUPED, logits_scaling=8.0),
    "scaled by a factor": lambda: of("CohereForCausalLM", GROUPED, logit_scale=0.0625),
    "experts with a loss of their own": lambda: of(
        "MixtralForCausalLM", GROUPED, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5
    ),
    "masked, with a bias": lambda: of("BertForMaskedLM", SMALL),
    "masked, with a loss function": lambda: of("ModernBertForMaskedLM", SMALL),
    "LoRA on the head": adapted,
    "a head that is trained beside an adapter": lambda: adapted(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "a frozen head": lambda: adapted(target_modules=["q_proj"]),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(common, "FEWEST_ROWS", 7)
    monkeypatch.setattr(common, "CHUNK_BYTES", 1000)


def batch(rows=3, tokens=20, ignored=0.3):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, WORDS, (rows, tokens), generator=generator)
    labels = ids.masked_fill(torch.rand(rows, tokens, generator=generator) < ignored, -100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def without_labels(inputs):
    return {name: value for name, value in inputs.items() if name != "labels"}


def checked(model, name=None):
    head = head_of(model, name)
    with torch.no_grad():
        head.check(batch(), "labels")
    return head


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_close(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    largest = max(g.norm() for g in expected.values())
    for name in expected:
        assert (found[name] - expected[name]).norm() <= tolerance * largest, name


@pytest.mark.parametrize("kind", MODELS)
def test_loss_and_gradients_are_those_of_whole_logits(kind):
    model, inputs = MODELS[kind](), batch()
    Trainer(model, TrainingArguments("unused", report_to="none"))  # transformers is known
    head = checked(model)
    plain = model(**inputs).loss
    expected = gradients(model, plain)
    found = head.mean_loss(model, inputs, without_labels(inputs), inputs["labels"], 0.0)
    assert found.loss.item() == pytest.approx(plain.item(), rel=1e-6)
    assert_close(gradients(model, found.loss), expected)
    counted = (inputs["labels"][:, 1:] if head.shifts else inputs["labels"]) != -100
    if kind != "experts with a loss of their own":
        assert float(found.by_row.sum() / counted.sum()) == pytest.approx(plain.item(), rel=1e-6)
    assert not vars(head.layer).keys() & {"forward"}  # as before
    assert torch.equal(model(**inputs).loss, plain)


@pytest.mark.parametrize("kind", ["llama", "capped", "scaled", "masked, with a bias", "LoRA on the head"])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_smoothing_and_log_probabilities(kind, epsilon):
    model, inputs = MODELS[kind](), batch()
    head, rest, labels = checked(model), without_labels(inputs), inputs["labels"]
    log_probs = model(**rest).logits.log_softmax(-1)
    if head.shifts:  # in the place of the label
        log_probs = torch.cat([torch.zeros_like(log_probs[:, :1]), log_probs[:, :-1]], 1)
    counts = labels != -100
    counts[:, 0] &= not head.shifts
    of_labels = log_probs.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1) * counts
    if not epsilon:
        weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(2))
        expected = gradients(model, (of_labels * weights).sum())
        found = head.log_probs(model, rest, labels)
        assert torch.allclose(found, of_labels, atol=1e-5)
        assert_close(gradients(model, (found * weights).sum()), expected)
        return
    means = (log_probs.mean(-1) * counts).sum()
    plain = -((1 - epsilon) * of_labels.sum() + epsilon * means) / counts.sum()
    expected = gradients(model, plain)
    loss = head.mean_loss(model, inputs, rest, labels, epsilon).loss
    assert float(loss) == pytest.approx(plain.item(), rel=1e-6)
    assert_close(gradients(model, loss), expected)


def test_half_precision_is_as_close_to_float32_as_whole_logits_are():
    model, inputs = MODELS["llama"](), batch()
    head = checked(model)
    expected = gradients(model, model(**inputs).loss)

    def error(loss):
        found = gradients(model, loss)
        return sum(float((found[name] - expected[name]).norm()) for name in expected)

    with torch.autocast("cpu", torch.bfloat16):
        plain = model(**inputs).loss
        chunked = head.mean_loss(model, inputs, None, inputs["labels"], 0.0).loss
    assert chunked.dtype == torch.float32
    assert error(chunked) <= 1.2 * error(plain)


def test_ignored_positions_do_not_reach_the_head():
    model, inputs = MODELS["masked, with a bias"](), batch()
    head, seen = checked(model), []
    inputs["labels"][:, 5:] = -100
    decoder = head.layer
    own = type(decoder).forward
    # A forward of its own: the layer is not taken for a plain linear one, and is called.
    decoder.forward = lambda hidden: seen.append(len(hidden)) or own(decoder, hidden)
    head.mean_loss(model, inputs, without_labels(inputs), inputs["labels"], 0.0)
    assert sum(seen) - 1 == int((inputs["labels"] != -100).sum())  # and one row to learn the size of the logits


@pytest.mark.parametrize("kind", ["llama", "masked, with a bias", "LoRA on the head"])
def test_a_batch_without_labels_has_gradients_of_zero(kind):
    model, inputs = MODELS[kind](), batch(ignored=1.1)
    loss = checked(model).mean_loss(model, inputs, without_labels(inputs), inputs["labels"], 0.0).loss
    assert torch.isnan(loss)
    assert all(not bool(g.any()) for g in gradients(model, loss).values())


def test_labels_that_were_shifted_before_are_used_as_they_are():
    model, inputs = MODELS["llama"](), batch()
    Trainer(model, TrainingArguments("unused", report_to="none"))
    shifted = {**inputs, "shift_labels": inputs["labels"].roll(-1, 1)}
    plain = model(**shifted).loss
    found = checked(model).mean_loss(model, shifted, None, inputs["labels"], 0.0).loss
    assert float(found) == pytest.approx(plain.item(), rel=1e-6)


def test_a_model_may_be_told_the_number_of_items():
    model, inputs = MODELS["llama"](), batch()
    Trainer(model, TrainingArguments("unused", report_to="none"))
    told = {**inputs, "num_items_in_batch": 50}
    found = checked(model).mean_loss(model, told, None, inputs["labels"], 0.0).loss
    assert float(found) == pytest.approx(float(model(**told).loss), rel=1e-6)


def test_a_second_backward_pass_is_an_error():
    model, inputs = MODELS["llama"](), batch()
    loss = checked(model).mean_loss(model, inputs, without_labels(inputs), inputs["labels"], 0.0).loss
    loss.backward(retain_graph=True)
    with pytest.raises(ModelError, match="computed once.*chunked_loss=False"):
        loss.backward()


def test_an_error_leaves_the_head_as_it_was():
    model, inputs = MODELS["llama"](), batch()
    head = checked(model)
    wrong = {**inputs, "input_ids": inputs["input_ids"] + WORDS}
    with pytest.raises(IndexError):
        head.mean_loss(model, wrong, without_labels(wrong), inputs["labels"], 0.0)
    assert "forward" not in vars(model.lm_head) and "_loss_function" not in vars(model)


class Plain(torch.nn.Module):
    """A language model that `change` makes another of."""

    def __init__(self, change="nothing"):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(WORDS, 16), torch.nn.Linear(16, WORDS)
        self.factor = torch.nn.Parameter(torch.tensor(2.0))
        self.drop = torch.nn.Dropout(0.1)
        self.change = change
        if change == "dropout":
            self.head = torch.nn.Sequential(self.head, self.drop)

    def forward(self, input_ids, labels=None, attention_mask=None):
        hidden = self.embed(input_ids)
        logits = self.head(hidden)
        if self.change == "a learned factor":
            logits = logits * self.factor
        if self.change == "an offset":
            logits = logits + 1.0
        if self.change == "some words":
            logits = logits.index_fill(-1, torch.tensor([3]), -1e4)
        if self.change == "the head twice":
            logits = logits + self.head(hidden)
        if self.change == "last positions":
            logits = logits[:, -1:]
        loss = None
        if labels is not None and self.change != "no loss":
            where = labels[:, : logits.shape[1]]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), where.flatten())
            if self.change == "a penalty":
                loss = loss + 0.1 * logits.logsumexp(-1).square().mean()
        return {"loss": loss, "logits": logits}


REASONS = {
    "a learned factor": "by parameters",
    "an offset": "more than a factor and a soft cap",
    "some words": "more than a factor and a soft cap",
    "the head twice": "calls the head 2 times",
    "a penalty": "more than the mean cross entropy",
    "no loss": "returns no loss",
    "dropout": "has dropout",
}


@pytest.mark.parametrize("change", REASONS)
def test_models_that_do_more_are_recognised(change):
    with pytest.raises(UnsupportedError, match=REASONS[change]):
        checked(Plain(change), "head")


def test_a_plain_module_names_its_layer():
    model, inputs = Plain(), batch()
    head = checked(model, "head")
    plain = model(**inputs)["loss"]
    expected = gradients(model, plain)
    loss = head.mean_loss(model, inputs, without_labels(inputs), inputs["labels"], 0.0).loss
    assert_close(gradients(model, loss), expected)
    with pytest.raises(UnsupportedError, match="chunked_loss_layer names it"):
        head_of(model, None)
    with pytest.raises(ArgumentError, match="has no layer of this name"):
        head_of(model, "haed")


def test_what_is_done_between_head_and_loss_is_found_exactly():
    given = common.made_up_logits(50)
    for scale, cap in ((1.0, None), (0.0625, None), (1.0, 30.0), (2.0, 50.0), (1.0, 0.5)):
        received = given * np.float32(scale)
        received = received if cap is None else np.float32(cap) * np.tanh(received / np.float32(cap))
        found = common.find_between(given, received)
        assert found.scale == pytest.approx(scale, rel=1e-5)
        assert found.cap == (None if cap is None else pytest.approx(cap, rel=1e-6))
    for received in (given[::-1].copy(), given - 1, np.clip(given, -5, 5), given**2, np.full_like(given, np.nan)):
        with pytest.raises(UnsupportedError):
            common.find_between(given, received)


def test_chunks_cover_all_rows():
    for rows in (0, 1, 6, 7, 8, 100):
        sizes = common.chunk_sizes(rows, 10)
        assert sum(sizes) == rows and all(sizes) and (not sizes or max(sizes) - min(sizes) <= 1)
