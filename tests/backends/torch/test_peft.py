"""PEFT's adapters on one process: their files, what resumes, the best one, merging, and how labels are counted."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from oneloop import Trainer
from tests.backends.kits.torch_kit import Job, Kit
from tests.backends.support import largest_difference, rows, same_bytes

peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

from tests.backends.torch.test_transformers import gpt2, llama, texts  # noqa: E402

KIT = Kit()
OPTIONS = {"max_steps": 6, "learning_rate": 0.05, "save_strategy": "steps", "save_steps": 3, "logging_steps": 1}
CAUSAL = {"task_type": "CAUSAL_LM"}


def adapted(config, base=llama):
    torch.manual_seed(1)
    return peft.get_peft_model(base(), config)


def lora(**changed):
    options = {"r": 2, "lora_alpha": 8, "lora_dropout": 0.2, "target_modules": ["q_proj", "down_proj"]}
    return adapted(peft.LoraConfig(**CAUSAL, **options | changed))


def noisy_encoder():
    """P-tuning with an LSTM, whose dropout draws numbers when PEFT asks it for what to store."""
    options = {"num_virtual_tokens": 3, "encoder_reparameterization_type": "LSTM", "encoder_hidden_size": 8}
    return adapted(peft.PromptEncoderConfig(**CAUSAL, **options, encoder_num_layers=2, encoder_dropout=0.5))


def projected_prefix():
    options = {"num_virtual_tokens": 3, "prefix_projection": True, "encoder_hidden_size": 8}
    return adapted(peft.PrefixTuningConfig(**CAUSAL, **options), gpt2)


def unfrozen():
    model = lora()
    model.get_base_model().model.norm.requires_grad_(True)
    return model


def only_top_weights():
    options = {"r": 2, "num_vectors": 8, "vector_length": 4, "topk": 2, "target_modules": ["q_proj"]}
    return adapted(peft.VBLoRAConfig(**CAUSAL, **options, save_only_topk_weights=True))


# What PEFT's own files lack of each, and a resumed run needs.
ADAPTERS = {
    "lora": (lora, set()),
    "dora": (lambda: lora(use_dora=True), set()),
    "biases": (lambda: lora(bias="all"), set()),
    "modules": (lambda: lora(modules_to_save=["lm_head", "embed_tokens"]), set()),
    "embeddings": (lambda: lora(target_modules=["embed_tokens"]), set()),
    "tokens": (lambda: lora(trainable_token_indices=[1, 5]), set()),
    "ia3": (lambda: adapted(peft.IA3Config(**CAUSAL)), set()),
    "prompts": (lambda: adapted(peft.PromptTuningConfig(**CAUSAL, num_virtual_tokens=3)), set()),
    "prefix": (lambda: adapted(peft.PrefixTuningConfig(**CAUSAL, num_virtual_tokens=3), gpt2), set()),
    "projected_prefix": (projected_prefix, {"prompt_encoder.default.embedding.weight"}),
    "noisy_encoder": (noisy_encoder, {"prompt_encoder.default.embedding.weight"}),
    "unfrozen": (unfrozen, {"base_model.model.model.norm.weight"}),
    "top_weights": (only_top_weights, {"base_model.model.model.layers.0.self_attn.q_proj.vblora_logits_A.default"}),
}
IN_DEFAULT = ("modules", "prompts", "noisy_encoder", "unfrozen")


EACH = [pytest.param(name, marks=[] if name in IN_DEFAULT else pytest.mark.slow) for name in ADAPTERS]


def trained_weights(model):
    every = model.named_parameters(remove_duplicate=False)
    return {name: p.detach().numpy().copy() for name, p in every if p.requires_grad}


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def stored_names(file):
    from safetensors.numpy import load_file

    return set(load_file(file)) if file.is_file() else set()


@pytest.mark.parametrize("name", EACH)
def test_a_run_goes_on_to_the_same_bytes(trained, tmp_path, name):
    make, rest = ADAPTERS[name]
    model = make()
    before = KIT.weights(model)
    trainer = trained(model, texts(), **OPTIONS)
    after = KIT.weights(model)
    moved = {key for key in after if not np.array_equal(after[key], before[key])}
    assert moved and moved <= set(trained_weights(model))
    folder = tmp_path / "out" / "checkpoint-3"
    assert json.loads((folder / "adapter_config.json").read_text())["peft_type"]
    assert not (folder / "model.safetensors").exists()
    assert rest <= stored_names(folder / "adapter_rest.safetensors")
    assert (folder / "adapter_rest.safetensors").exists() == bool(rest)
    other = make()
    again = Trainer(other, trainer.args, train_dataset=texts())
    again.train(resume_from_checkpoint=str(folder))
    assert same_bytes(after, KIT.weights(other))
    assert losses(again) == losses(trainer)


@pytest.mark.parametrize("name", EACH)
def test_peft_opens_what_was_saved(trained, tmp_path, name):
    make, rest = ADAPTERS[name]
    model = make()
    trained(model, texts(), **OPTIONS).save_model()
    batch = {key: torch.tensor(np.stack([row[key] for row in texts()])) for key in ("input_ids", "attention_mask")}
    fresh = make()
    base = fresh.get_base_model() if hasattr(fresh, "prompt_encoder") else fresh.unload()
    if name == "unfrozen":  # a layer that PEFT was not told of
        base.model.norm.load_state_dict(model.get_base_model().model.norm.state_dict())
    opened = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()
    with torch.no_grad():
        difference = (opened(**batch).logits - model.eval()(**batch).logits).abs().max()
    assert difference <= (1e-6 if rest else 0.0)


def with_adapter_inside(*names):
    """transformers' own way: no wrapper around the model."""
    model = llama()
    torch.manual_seed(1)
    for name in names:
        model.add_adapter(peft.LoraConfig(r=2, lora_dropout=0.2, target_modules=["q_proj"]), adapter_name=name)
    model.set_adapter(names[0] if len(names) == 1 else list(names))
    return model


@pytest.mark.parametrize("name", ["default", "mine"])
def test_an_adapter_inside_a_model_of_transformers(trained, tmp_path, name):
    model = with_adapter_inside(name)
    trainer = trained(model, texts(), **OPTIONS)
    trainer.save_model()
    folder = tmp_path / "out" / "checkpoint-3"
    assert not (folder / "model.safetensors").exists() and not (folder / "adapter_rest.safetensors").exists()
    assert all("lora" in key for key in stored_names(folder / "adapter_model.safetensors"))
    other = with_adapter_inside(name)
    Trainer(other, trainer.args, train_dataset=texts()).train(resume_from_checkpoint=str(folder))
    assert same_bytes(KIT.weights(model), KIT.weights(other))
    ids = {"input_ids": torch.tensor(np.stack([row["input_ids"] for row in texts()]))}
    opened = llama()
    opened.load_adapter(str(tmp_path / "out"))
    wrapped = peft.PeftModel.from_pretrained(llama(), tmp_path / "out")
    with torch.no_grad():
        expected = model.eval()(**ids).logits
        assert torch.equal(opened.eval()(**ids).logits, expected)
        assert torch.equal(wrapped.eval()(**ids).logits, expected)


def test_two_active_adapters_inside_a_model_are_saved_with_it(trained, tmp_path):
    """transformers saves one at most."""
    model, other = with_adapter_inside("one", "two"), with_adapter_inside("one", "two")
    trainer = trained(model, texts(), **OPTIONS)
    assert (tmp_path / "out" / "checkpoint-3" / "model.safetensors").is_file()
    Trainer(other, trainer.args, train_dataset=texts()).train(resume_from_checkpoint=f"{tmp_path}/out/checkpoint-3")
    assert same_bytes(KIT.weights(model), KIT.weights(other))


def test_running_means_of_the_base_go_on(tmp_path):
    """Frozen batch norms still count in training mode, and PEFT stores no buffer of the base."""
    from tests.checkpoint.job import NoisyCollator, NoisyTexts, parse
    from tests.checkpoint.job import arguments as job_arguments

    weights = []
    for resume in (None, str(tmp_path / "run" / "checkpoint-6")):
        kit = Job()
        args = job_arguments(
            parse(["--output", str(tmp_path / "run"), "--steps", "9", "--set", "save_total_limit=null"])
        )
        data = NoisyTexts(23, 5, kit), NoisyTexts(7, 6, kit)
        trainer = Trainer(kit.adapted(), args, NoisyCollator(kit), *data)
        trainer.train(resume_from_checkpoint=resume)
        weights.append(KIT.weights(trainer.model))
    assert same_bytes(*weights)
    rest = stored_names(tmp_path / "run" / "checkpoint-6" / "adapter_rest.safetensors")
    assert {name.rsplit(".", 1)[1] for name in rest} == {"running_mean", "running_var", "num_batches_tracked"}


def test_the_best_adapter_is_loaded_and_can_be_merged(trained, tmp_path):
    """The highest loss is the best here, so the first evaluation is."""
    options = OPTIONS | {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "eval_loss", "greater_is_better": True}
    model = lora(modules_to_save=["lm_head"])
    trainer = trained(model, texts(), eval_dataset=texts(), **options)
    history = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    assert trainer.evaluate()["eval_loss"] == history[0] > history[-1]
    opened = peft.PeftModel.from_pretrained(lora().unload(), tmp_path / "out" / "checkpoint-2", is_trainable=True)
    assert same_bytes(trained_weights(opened), trained_weights(model))
    ids = {"input_ids": torch.tensor(np.stack([row["input_ids"] for row in texts()]))}
    with torch.no_grad():
        expected = model.eval()(**ids).logits
        merged = model.merge_and_unload()
        assert not isinstance(merged, peft.PeftModel)
        assert (merged(**ids).logits - expected).abs().max() <= 1e-5


def test_a_model_of_model_init(arguments):
    """Every train() starts from a new adapter, and its result is that of a model that is given."""

    def make():
        return lora(lora_dropout=0.0)

    trainer = Trainer(model_init=make, args=arguments(**OPTIONS), train_dataset=texts())
    trainer.train()
    first, made = trained_weights(trainer.model), trainer.model
    trainer.train()
    assert trainer.model is not made
    assert same_bytes(first, trained_weights(trainer.model))
    given = Trainer(make(), arguments(**OPTIONS), train_dataset=texts())
    given.train()
    assert same_bytes(first, trained_weights(given.model))


def test_an_adapter_of_another_shape_or_for_other_layers(trained, tmp_path):
    trainer = trained(lora(), texts(), **OPTIONS)
    folder = str(tmp_path / "out" / "checkpoint-3")
    with pytest.raises(ValueError, match=r"lora_A.weight has shape \(2, 8\), the model expects \(3, 8\)"):
        Trainer(lora(r=3), trainer.args, train_dataset=texts()).train(resume_from_checkpoint=folder)
    other = lora(target_modules=["q_proj", "v_proj"])
    with pytest.raises(ValueError, match=r"missing: .*v_proj.lora_A.weight"):
        Trainer(other, trainer.args, train_dataset=texts()).train(resume_from_checkpoint=folder)


@pytest.mark.parametrize("name", ["prompts", "prefix", "lora"])
def test_labels_after_virtual_tokens_are_counted(trained, name):
    """A prompt is put before the inputs, so the first label of a row counts; a prefix or LoRA changes nothing."""
    make = (lambda: lora(lora_dropout=0.0)) if name == "lora" else ADAPTERS[name][0]
    weights, found = [], []
    for micro, accumulation in ((8, 1), (2, 4)):
        model = make()
        options = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation, "max_steps": 4}
        options |= {"optim": "sgd", "learning_rate": 0.3, "lr_scheduler_type": "constant", "logging_steps": 1}
        found.append(losses(trained(model, texts(), **options)))
        weights.append(trained_weights(model))
    assert largest_difference(*weights) < 5e-6
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_recomputation_needs_inputs_that_require_gradients(trained):
    """Blocks that are recomputed by the reentrant variant would otherwise get no gradient: their inputs are frozen."""
    weights = []
    for options in (
        {},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    ):
        model = lora(lora_dropout=0.0)
        trained(model, texts(), **OPTIONS | options)
        weights.append(trained_weights(model))
    assert same_bytes(weights[0], weights[1]) and largest_difference(weights[0], weights[2]) < 1e-6


def test_an_adapter_of_a_model_that_is_not_of_transformers(trained, tmp_path):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.inner = nn.ModuleList([KIT.classifier()])

        def forward(self, x, labels=None):
            return self.inner[0](x, labels)

    def make():
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, target_modules=["hidden"], modules_to_save=["head"])
        return peft.get_peft_model(Deep(), config)

    model, other = make(), make()
    trainer = trained(model, rows(8), **OPTIONS)
    Trainer(other, trainer.args, train_dataset=rows(8)).train(resume_from_checkpoint=f"{tmp_path}/out/checkpoint-3")
    assert same_bytes(KIT.weights(model), KIT.weights(other))


def test_an_adapter_on_a_model_that_from_pretrained_has_left_in_evaluation_mode(arguments, caplog):
    """PEFT's wrapper around it is in training mode."""
    seen = []

    class Watches(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.append({layer.training for layer in model.modules()})
            return super().compute_loss(model, inputs, *args, **kwargs)

    model = peft.get_peft_model(llama().eval(), peft.LoraConfig(**CAUSAL, r=2, target_modules=["q_proj"]))
    assert model.training and not model.get_base_model().training
    Watches(model, arguments(max_steps=2), train_dataset=texts()).train()
    assert seen == [{True}, {True}] and "in evaluation mode" not in caplog.text
