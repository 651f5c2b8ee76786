"""Short runs of PEFT models with divided state, as a program under torchrun: `adapter_job.py FOLDER CASE [CASE ...]`.

A case runs with every strategy, on one process with none; see sharding_job.py.
"""

import sys
from pathlib import Path

import peft
import torch
import transformers

from oneloop.distributed.world import world
from tests.backends.torch.test_transformers import gpt2, llama, texts
from tests.distributed.job import main, train
from tests.distributed.sharding_job import strategies
from tests.internals import full_tensors

CASES = {}
LENGTHS = [9, 2, 3, 9, 5, 1, 8, 2, 7, 4, 6, 9, 3, 5, 8, 2, 9, 1, 6]
SAVING = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "optim": "adamw_torch", "learning_rate": 0.05}


def case(function):
    CASES[function.__name__] = function
    return function


def adapted(config, base=llama):
    torch.manual_seed(1)
    return peft.get_peft_model(base(), config)


def lora(**changed):
    options = {"task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    return adapted(peft.LoraConfig(**options | changed))


def with_modules():
    """A head that is trained whole, and embeddings under LoRA, whose base PEFT stores with them."""
    return lora(target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head"])


def tied():
    config = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}
    return adapted(peft.LoraConfig(**config, bias="lora_only"), gpt2)


def half_base():
    """The adapter stays in float32."""
    torch.manual_seed(1)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(llama().to(torch.bfloat16), config)


def prompts():
    return adapted(peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


def encoded_prompts():
    """P-tuning: what PEFT stores is the output of a network that is trained."""
    config = peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8)
    return adapted(config)


def projected_prefix():
    config = peft.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8
    )
    return adapted(config, gpt2)


def classifier():
    """A classifier's head is in modules_to_save without being asked for."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 16, "num_labels": 3}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


def two_adapters():
    """One is trained, the other one only saved."""
    model = lora()
    model.add_adapter("other", peft.LoraConfig(task_type="CAUSAL_LM", r=1, target_modules=["k_proj"]))
    model.set_adapter("other")
    return model


def inside():
    """An adapter in a model of transformers, without PEFT's wrapper."""
    model = llama()
    torch.manual_seed(1)
    model.add_adapter(peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"]))
    return model


MODELS = {
    "inside": inside,
    "lora": lora,
    "dora": lambda: lora(use_dora=True),
    "with_modules": with_modules,
    "tied": tied,
    "half_base": half_base,
    "two_adapters": two_adapters,
    "prompts": prompts,
    "encoded_prompts": encoded_prompts,
    "projected_prefix": projected_prefix,
    "classifier": classifier,
}
OPTIONS = {
    "recomputed": {"gradient_checkpointing": True},
    "reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "bf16": {"bf16": True},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8 // world().size // 2},
}


def samples(model="lora"):
    data = texts(LENGTHS)
    if model != "classifier":
        return data
    return [row | {"labels": int(row["input_ids"].sum()) % 3} for row in data]


def course(trainer):
    """What equal runs have in common; all processes have to ask."""
    tensors = full_tensors(trainer)
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    return {
        "weights": {name: value.float().tolist() for name, value in tensors.items() if name in trained},
        "losses": trainer.seen.losses,
        "norms": trainer.seen.norms,
        "steps": trainer.state.global_step,
    }


def reopened(make, folder, trainer):
    """The largest difference between the logits of the model and of the adapter that PEFT opens from its files."""
    rows = texts(LENGTHS[:2])
    batch = {key: torch.tensor([list(row[key]) for row in rows]) for key in ("input_ids", "attention_mask")}
    if make is inside:
        base, name = llama(), "default"
    else:
        fresh, name = make(), trainer.model.active_adapter
        base = fresh.unload() if hasattr(fresh.base_model, "unload") else fresh.get_base_model()
    found = peft.PeftModel.from_pretrained(base, folder if name == "default" else folder / name).eval()
    trainer.model.eval()
    with torch.no_grad():
        here = trainer.model(**batch).logits.float()  # a collective in stage 3
        return float((found(**batch).logits.float() - here).abs().max())


def whole_and_again(folder, name, make, data, sharding, **given):
    """Six steps in one go with a checkpoint after three; a new model goes on from it."""
    given = SAVING | {"sharding": sharding} | given
    trainer = train(folder, f"saved-{name}", make(), data, **given)
    whole, out = course(trainer), Path(folder) / f"saved-{name}"
    difference = reopened(make, out / "checkpoint-6", trainer)
    again = course(train(folder, f"again-{name}", make(), data, resume=str(out / "checkpoint-3"), **given))
    files = sorted(path.relative_to(out / "checkpoint-3").as_posix() for path in (out / "checkpoint-3").rglob("*.*"))
    return {"whole": whole, "again": again, "reopened": difference, "files": files}


def with_each(folder, name, make, data, chosen=None, **given):
    return {
        strategy: whole_and_again(folder, f"{name}-{strategy}", make, data, sharding, **given)
        for strategy, sharding in strategies().items()
        if chosen is None or strategy in (*chosen, "alone")
    }


for _name, _make in MODELS.items():
    CASES[_name] = lambda folder, name=_name, make=_make: with_each(folder, name, make, samples(name))
for _name, _given in OPTIONS.items():
    CASES[_name] = lambda folder, name=_name, given=_given: with_each(folder, name, lora, samples(), **given)


@case
def brief(folder):
    """What the default run of the tests looks at; stage 2 has its part in best_brief."""
    return with_each(folder, "brief", with_modules, samples(), ("stage3",), gradient_checkpointing=True)


def go_on(folder, chosen):
    """Go on from the checkpoints that others have left in the folders named in `sources`."""
    sources = [Path(line) for line in (Path(folder) / "sources").read_text().splitlines()]
    found = {}
    for path in sorted(path for source in sources for path in source.glob("saved-*")):
        model, _, source = path.name.removeprefix("saved-").rpartition("-")
        for strategy, sharding in strategies().items():
            if strategy in (*chosen, "alone"):
                given = SAVING | {"sharding": sharding, "save_strategy": "no", "resume": str(path / "checkpoint-3")}
                given |= OPTIONS.get(model, {})
                make = with_modules if model == "brief" else MODELS.get(model, lora)
                name = f"{model}-{source}-{strategy}"
                found[name] = course(train(folder, f"crossed-{name}", make(), samples(model), **given))
    return found


@case
def crossed(folder):
    return go_on(folder, strategies())


@case
def crossed_brief(folder):
    return go_on(folder, ("stage3",))


def best_of(folder, strategy, sharding):
    """The best adapter comes back into a divided model; save_model writes it; the divided model goes on from another
    checkpoint as a new one does."""
    given = SAVING | {"sharding": sharding, "eval_strategy": "steps", "eval_steps": 3, "eval_dataset": samples()[:8]}
    given |= {"max_steps": 9, "metric_for_best_model": "eval_loss", "greater_is_better": True}  # the first is the best
    trainer = train(folder, f"best-{strategy}", with_modules(), samples(), load_best_model_at_end=True, **given)
    history = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    found = {"best": trainer.state.best_metric, "history": history, "evaluated": trainer.evaluate()["eval_loss"]}
    weights = course(trainer)["weights"]
    trainer.save_model(f"{folder}/model-{strategy}")
    trainer.accelerator.wait_for_everyone()  # one process writes
    saved = peft.PeftModel.from_pretrained(with_modules().unload(), f"{folder}/model-{strategy}", is_trainable=True)
    stored = {name: p.float().tolist() for name, p in saved.named_parameters() if p.requires_grad}
    trainer.args.load_best_model_at_end = False
    trainer.train(resume_from_checkpoint=f"{folder}/best-{strategy}/checkpoint-6")
    straight = train(folder, f"straight-{strategy}", with_modules(), samples(), **given)
    again = course(trainer)["weights"]
    return found | {"is_saved": stored == weights, "goes_on": again == course(straight)["weights"] != weights}


@case
def best(folder):
    return {strategy: best_of(folder, strategy, sharding) for strategy, sharding in strategies().items()}


@case
def best_brief(folder):
    return {"stage2": best_of(folder, "stage2", "stage2")}


if __name__ == "__main__":
    main(*sys.argv[1:], cases=CASES)
