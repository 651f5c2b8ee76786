"""Models of transformers and PEFT, and tied weights."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from oneloop import Trainer
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import largest_difference, same_bytes

transformers = pytest.importorskip("transformers")
KIT = Kit()
STEPS = {"max_steps": 4, "learning_rate": 0.3, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
LENGTHS = [9, 2, 3, 9, 5, 1, 8, 2]


def gpt2(seed=0, **changed):
    torch.manual_seed(seed)
    options = {"vocab_size": 23, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
    options |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**(options | changed)))


def llama(seed=0):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=23,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


def texts(lengths=LENGTHS, width=9):
    random = np.random.RandomState(0)
    samples = []
    for length in lengths:
        ids = random.randint(1, 23, width)
        mask = (np.arange(width) < length).astype(np.int64)
        samples.append({"input_ids": ids, "attention_mask": mask, "labels": np.where(mask, ids, -100)})
    return samples


@pytest.mark.parametrize("make", [gpt2, llama])
def test_shifted_labels_weigh_as_in_the_undivided_batch(trained, make):
    """A row of one token has no label at all after the shift; its micro-batch takes no part."""
    weights, losses = [], []
    for micro, accumulation in ((8, 1), (4, 2), (1, 8)):
        model = make()
        options = STEPS | {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
        trainer = trained(model, texts(), logging_steps=1, **options)
        weights.append(KIT.weights(model))
        losses.append([e["loss"] for e in trainer.state.log_history if "loss" in e])
    for other in (1, 2):
        assert largest_difference(weights[0], weights[other]) < 5e-6
        np.testing.assert_allclose(losses[0], losses[other], rtol=1e-5)


@pytest.mark.parametrize("where", ["", "checkpoint-4"])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_from_pretrained_opens_what_was_saved(trained, tmp_path, make, where):
    model = make()
    trainer = trained(model, texts(), save_strategy="steps", save_steps=4, **STEPS)
    trainer.save_model()
    again, report = type(model).from_pretrained(tmp_path / "out" / where, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert same_bytes(KIT.weights(model), KIT.weights(again))
    auto = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / where)
    assert type(auto) is type(model)
    assert json.loads((tmp_path / "out" / where / "config.json").read_text())["architectures"] == [type(model).__name__]


def test_tokenizer_is_saved_and_reopened(trained, tmp_path):
    from tokenizers import Tokenizer, models

    core = Tokenizer(models.WordLevel({f"w{i}": i for i in range(23)}, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w0", pad_token="w1")
    trained(gpt2(), texts(), tokenizer=tokenizer, save_strategy="steps", save_steps=4, **STEPS)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "checkpoint-4")
    assert again.get_vocab() == tokenizer.get_vocab()


def test_tied_weights_are_saved_once_and_tied_after_loading(trained, tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(23, 8)
            self.out = nn.Linear(8, 23, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, input_ids, labels=None):
            logits = self.out(torch.tanh(self.embed(input_ids)))
            return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    options = STEPS | {"save_strategy": "steps", "save_steps": 2}
    model = Tied()
    trainer = trained(model, texts(), **options)
    trainer.save_model()
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as f:
        assert len(f.keys()) == 1
    other = Tied()
    again = Trainer(other, trainer.args, train_dataset=texts())
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert other.out.weight is other.embed.weight
    assert same_bytes(KIT.weights(model), KIT.weights(other))


@pytest.mark.parametrize("recompute", [False, True])
def test_an_adapter_trains_saves_itself_alone_and_resumes(trained, tmp_path, recompute):
    peft = pytest.importorskip("peft")

    def adapted():
        config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=8, target_modules=["c_attn"])
        torch.manual_seed(1)
        return peft.get_peft_model(gpt2(), config)

    options = STEPS | {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "gradient_checkpointing": recompute}
    model, before = adapted(), KIT.weights(adapted())
    trainer = trained(model, texts(), **options)
    after = KIT.weights(model)
    moved = {name for name in after if not np.array_equal(after[name], before[name])}
    assert moved and all("lora" in name for name in moved)
    folder = tmp_path / "out" / "checkpoint-3"
    files = {path.name for path in folder.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= files and "model.safetensors" not in files
    with safe_open(folder / "adapter_model.safetensors", "np") as f:
        assert all("lora" in name for name in f.keys())  # noqa: SIM118
    other = adapted()
    again = Trainer(other, trainer.args, train_dataset=texts())
    again.train(resume_from_checkpoint=str(folder))
    assert same_bytes(after, KIT.weights(other))
    reopened = peft.PeftModel.from_pretrained(gpt2(), tmp_path / "out" / "checkpoint-6")
    assert same_bytes(after, KIT.weights(reopened))


def test_columns_of_the_model_under_the_adapter(trained, caplog):
    caplog.set_level("INFO")
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"])
    data = [row | {"text": "a", "number": 1} for row in texts()]
    trainer = trained(peft.get_peft_model(gpt2(), config), data, **STEPS)
    assert trainer.state.global_step == 4
    assert "number, text" in caplog.text


def test_model_outputs_are_evaluated_without_past_key_values(arguments):
    model = gpt2()
    trainer = Trainer(model, arguments(use_cache=True), compute_metrics=lambda p: {"n": p.predictions.size})
    output = trainer.predict(texts())
    assert isinstance(output.predictions, np.ndarray) and output.predictions.shape == (8, 9, 23)
    assert output.metrics["test_n"] == output.predictions.size


def test_label_smoothing_of_a_causal_model_shifts(arguments):
    model = gpt2()
    trainer = Trainer(model, arguments(label_smoothing_factor=0.2, per_device_eval_batch_size=8))
    batch = {key: torch.tensor(np.stack([row[key] for row in texts()])) for key in texts()[0]}
    labels = batch.pop("labels")
    logits = model.eval()(**batch).logits[:, :-1]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.2)
    assert trainer.evaluate(texts())["eval_loss"] == pytest.approx(expected.item(), rel=1e-6)


def test_tokens_and_operations_are_counted(trained):
    model = gpt2()
    options = STEPS | {"per_device_train_batch_size": 4, "max_steps": 3}
    trainer = trained(model, texts(), include_num_input_tokens_seen=True, logging_steps=1, **options)
    assert [e["num_input_tokens_seen"] for e in trainer.state.log_history] == [36, 72, 108, 108]
    matrices = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in model.transformer.wpe.parameters())
    matrices -= model.transformer.wte.weight.numel()
    assert trainer.result.metrics["total_flos"] == pytest.approx(6 * 108 * matrices)
    some = trained(gpt2(), texts(), include_num_input_tokens_seen="non_padding", logging_steps=1, **options)
    assert some.state.num_input_tokens_seen < 108
    assert trained(gpt2(), texts(), logging_steps=1, **options).state.num_input_tokens_seen == 0
