"""Runs whose sequences are divided between processes: `sequence_job.py FOLDER SEQUENCE_SIZE [NAME=VALUE] CASE ...`.

Each case trains or evaluates a tiny model of transformers, and returns what the tests compare; every process writes the
results of all cases into FOLDER/rankN.json. A size of 1 on one process is what the others are compared with.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

from oneloop import Mixture, Trainer, TrainerCallback, TrainingArguments
from oneloop.distributed.world import world
from oneloop.errors import ArgumentError, UnsupportedError
from tests.internals import full_tensors, skipped_updates

CASES = {}
GLOBAL_BATCH = 4
WORDS = 60
SIZE = 1  # of the axis
SAME_BATCH = 1  # processes that have the same batch
GIVEN = {}  # arguments of all runs


def case(function):
    CASES[function.__name__] = function
    return function


# -- models and data


def llama(seed=0, **given):
    from transformers import LlamaConfig, LlamaForCausalLM

    options = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    options |= {"num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 128, "pad_token_id": 0}
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**options | given))


def qwen3(**given):
    """One key-value head, for any number of processes; a sliding window in the first layer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    options = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    options |= {"num_key_value_heads": 1, "head_dim": 8, "vocab_size": WORDS, "pad_token_id": 0}
    options |= {"use_sliding_window": True, "sliding_window": 5, "tie_word_embeddings": True}
    options |= {"layer_types": ["sliding_attention", "full_attention"]}
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**options | given))


def bert(kind="ForSequenceClassification", **given):
    import transformers

    options = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    options |= {"vocab_size": WORDS, "max_position_embeddings": 64, "num_labels": 3}
    options |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    return getattr(transformers, f"Bert{kind}")(transformers.BertConfig(**options | given))


def documents(count=40, seed=0, longest=23):
    random = np.random.RandomState(seed)
    return [{"input_ids": random.randint(1, WORDS, 3 + (7 * i) % longest).tolist()} for i in range(count)]


def pad(samples):
    """The longest sample is as long as it is: most lengths do not divide. Some are padded on the left: positions are
    rotary, so that the loss does not depend on it."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = {"input_ids": [], "attention_mask": [], "labels": []}
    for sample in samples:
        ids = sample["input_ids"]
        is_left = ids[0] % 3 == 0 and "labels" not in sample
        labels = sample.get("labels", [-100, *ids[1:-1], ids[-1]])
        missing = longest - len(ids)
        for name, values, filler in (
            ("input_ids", ids, 0),
            ("attention_mask", [1] * len(ids), 0),
            ("labels", labels, -100),
        ):
            if isinstance(values, int):
                rows[name].append(values)
            else:
                rows[name].append([filler] * missing + values if is_left else values + [filler] * missing)
    return {name: torch.tensor(values) for name, values in rows.items()}


class Seen(TrainerCallback):
    def __init__(self):
        self.losses, self.norms, self.logs = [], [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])
            self.norms.append(logs.get("grad_norm"))
        self.logs.append(logs)


def arguments(folder, name, **given):
    given = GIVEN | given
    batches = world().size // SAME_BATCH
    options = {
        "sequence_parallel_size": SIZE,
        "per_device_train_batch_size": GLOBAL_BATCH // batches,
        "per_device_eval_batch_size": 3,
        "max_steps": 30,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "warning",
        "device": "cpu",
        "ddp_timeout": 60,
    }
    return TrainingArguments(str(Path(folder) / name), **options | given)


def train(folder, name, model, data, trainer_class=Trainer, resume=None, callbacks=(), **given):
    own = {"eval_dataset", "criterion", "compute_loss_func", "compute_metrics", "data_collator"}
    options = {"data_collator": pad} | {key: given.pop(key) for key in own & given.keys()}
    seen = Seen()
    args = arguments(folder, name, **given)
    trainer = trainer_class(model, args, train_dataset=data, callbacks=[seen, *callbacks], **options)
    trainer.seen = seen
    trainer.result = trainer.train(resume_from_checkpoint=resume)
    return trainer


def course(trainer):
    return {"losses": trainer.seen.losses, "norms": trainer.seen.norms, "weights": digest(full_tensors(trainer))}


def digest(tensors):
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return hashed.hexdigest()


# -- the same update as one process


@case
def padded(folder):
    return course(train(folder, "padded", llama(), documents()))


@case
def last_bits(folder):
    """What rounding does to the norms of 30 steps: half of the weights begin with another last bit, three times."""
    found = []
    for seed in range(3):
        model = llama()
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.where(torch.rand_like(p) < 0.5, p, torch.nextafter(p, torch.full_like(p, 9.0))))
        found.append(train(folder, f"last_bits{seed}", model, documents()).seen.norms)
    return {"norms of each": found}


@case
def windows(folder):
    return course(train(folder, "windows", qwen3(), documents(), max_steps=12))


@case
def repeated(folder):
    """Three key-value heads, which neither two nor four processes divide: each is the head of four others."""
    model = llama(hidden_size=48, num_attention_heads=12, num_key_value_heads=3)
    return course(train(folder, "repeated", model, documents(), max_steps=5, learning_rate=1e-3))


@case
def packed(folder):
    """Documents are kept apart, across the border too."""
    model = llama()
    given = {"packing": True, "max_length": 21, "data_collator": None, "max_steps": 15}
    return course(train(folder, "packed", model, documents(90), **given))


@case
def accumulated(folder):
    """Layers are computed again in the backward pass, of several micro-batches."""
    batches = world().size // SAME_BATCH
    given = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": GLOBAL_BATCH // batches // 2}
    given |= {"gradient_checkpointing": True, "max_grad_norm": 0.3, "max_steps": 10}
    return course(train(folder, "accumulated", llama(), documents(), **given))


@case
def averaged(folder):
    """A moving average of the weights, with which it is evaluated."""
    given = {"ema_decay": 0.8, "eval_with_average": True, "eval_dataset": documents(6, seed=4), "max_steps": 6}
    trainer = train(folder, "averaged", llama(), documents(), **given)
    return course(trainer) | {"values": [trainer.evaluate()["eval_loss"]]}


@case
def reentrant(folder):
    given = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    return course(train(folder, "reentrant", llama(), documents(), **given, max_steps=6))


@case
def smoothed(folder):
    return course(train(folder, "smoothed", llama(), documents(), label_smoothing_factor=0.1, max_steps=10))


@case
def adapted(folder):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    torch.manual_seed(1)
    model = get_peft_model(llama(), config)
    return course(train(folder, "adapted", model, documents(), gradient_checkpointing=True, max_steps=10))


class WholeLogits(Trainer):
    """Computes the loss itself, from logits of whole sequences, and a penalty that is no sum over positions."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        assert outputs.logits.shape[:2] == labels.shape
        of_labels = torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss = of_labels + outputs.logits.logsumexp(1).square().mean() * 0.1
        return (loss, outputs) if return_outputs else loss


@case
def overridden(folder):
    return course(train(folder, "overridden", llama(), documents(), WholeLogits, max_steps=10))


class LossOfOutputs(Trainer):
    """Asks for the outputs too, as TRL does."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.shapes = [list(outputs.logits.shape[:2]), list(inputs["labels"].shape)]
        return (loss, outputs) if return_outputs else loss


@case
def with_outputs(folder):
    trainer = train(folder, "with_outputs", llama(), documents(), LossOfOutputs, max_steps=6)
    assert trainer.shapes[0] == trainer.shapes[1]
    return course(trainer)


def by_items(outputs, labels, num_items_in_batch=None):
    losses = torch.nn.functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
    )
    return losses / num_items_in_batch


@case
def loss_function(folder):
    given = {"compute_loss_func": by_items, "gradient_accumulation_steps": 2, "max_steps": 6}
    return course(train(folder, "loss_function", llama(), documents(), **given))


def classified(count=24):
    return [sample | {"labels": i % 3} for i, sample in enumerate(documents(count))]


@case
def pooled(folder):
    """The classifier of BERT reads the first position, which the first process has."""
    return course(train(folder, "pooled", bert(), classified(), max_steps=10))


@case
def unmasked(folder):
    """Without a mask, padding that is added to divide the sequence must not be attended to."""

    def collate(samples):
        batch = pad(samples)
        return {"input_ids": batch["input_ids"][:, :5], "labels": batch["labels"]}

    texts = [sample for sample in classified(30) if len(sample["input_ids"]) >= 5]  # those that no batch has to pad
    return course(train(folder, "unmasked", bert(), texts, data_collator=collate, max_steps=6))


@case
def masked_words(folder):
    """A loss of its own positions; and one that the model computes itself."""
    words = [sample | {"labels": sample["input_ids"]} for sample in documents()]
    found = course(train(folder, "masked_words", bert("ForMaskedLM"), words, max_steps=6))
    data = [sample | {"labels": [each % 3 for each in sample["input_ids"]]} for sample in documents()]
    tokens = train(folder, "tokens", llama_for_tokens(), data, max_steps=6)
    return {key: found[key] + course(tokens)[key] for key in ("losses", "norms")}


def llama_for_tokens(dropout=0.0):
    from transformers import LlamaForTokenClassification

    config = llama(num_labels=3, classifier_dropout=dropout).config
    torch.manual_seed(0)
    return LlamaForTokenClassification(config)


@case
def mixed(folder):
    """Losses of each dataset of a mixture."""
    mixture = Mixture({"one": documents(20), "two": documents(20, seed=1)}, [0.6, 0.4], stop=80)
    trainer = train(folder, "mixed", llama(), mixture, max_steps=10)
    found = [logs[key] for logs in trainer.seen.logs for key in ("loss/one", "loss/two") if key in logs]
    return course(trainer) | {"values": found}


@case
def streamed(folder):
    given = {"packing": True, "max_length": 16, "data_collator": None, "max_steps": 8}
    return course(train(folder, "streamed", llama(), iter(documents(90)), **given))


def shifted(samples):
    batch = pad(samples)
    labels = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    return batch | {"shift_labels": labels}


@case
def shifted_by_collator(folder):
    return course(train(folder, "shifted", llama(), documents(), data_collator=shifted, max_steps=6))


def with_own_mask(samples):
    """Documents of three tokens, kept apart by a mask of (rows, 1, tokens, tokens)."""
    batch = pad(samples)
    return batch | {"attention_mask": blocks(batch["input_ids"].shape[1], 3).expand(len(samples), 1, -1, -1)}


def blocks(length, size):
    """Which of so many tokens attend to each other, in blocks."""
    places = torch.arange(length)
    return (places[:, None] // size == places // size) & (places[:, None] >= places)


def with_masks_of_heads(samples):
    """Each head has blocks of another length."""
    batch = pad(samples)
    masks = torch.stack([blocks(batch["input_ids"].shape[1], size) for size in (1, 3, 5, 9)])
    return batch | {"attention_mask": masks.expand(len(samples), -1, -1, -1)}


@case
def own_mask(folder):
    found = course(train(folder, "own_mask", llama(), documents(), data_collator=with_own_mask, max_steps=4))
    heads = course(train(folder, "own_heads", llama(), documents(), data_collator=with_masks_of_heads, max_steps=4))
    return {key: found[key] + heads[key] for key in ("losses", "norms")}


@case
def bad_sample(folder):
    """An update that is not finite is left out by all."""

    class Spoiled(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * float("nan") if self.state.global_step == 2 else loss

    trainer = train(folder, "bad", llama(), documents(), Spoiled, nonfinite="skip", max_steps=6)
    found = course(trainer)
    return {"values": [loss for loss in found["losses"] if loss == loss], "skipped": skipped_updates(trainer)}


@case
def rolled_back(folder):
    class Spiky(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * 1e4 if self.state.global_step == 13 else loss

    given = {"loss_spike": "rollback", "loss_spike_window": 8, "save_strategy": "steps", "save_steps": 4}
    return course(train(folder, "rolled_back", llama(), documents(), Spiky, **given, max_steps=16))


@case
def bfloat16(folder):
    return course(train(folder, "bfloat16", llama(), documents(), bf16=True))


def accuracy(prediction):
    seen = prediction.label_ids[:, 1:] != -100
    right = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
    return {"accuracy": float(right[seen].mean()), "count": int(seen.sum())}


@case
def evaluated(folder):
    """Before training, during it and afterwards; and predictions."""
    args = arguments(folder, "evaluated", max_steps=4, eval_strategy="steps", eval_steps=2)
    seen = Seen()
    given = {"train_dataset": documents(), "eval_dataset": documents(7, seed=2), "compute_metrics": accuracy}
    trainer = Trainer(llama(), args, pad, callbacks=[seen], **given)
    before = trainer.evaluate()
    trainer.train()
    after, predicted = trainer.evaluate(), trainer.predict(documents(7, seed=3))
    names = ("eval_loss", "eval_accuracy", "eval_count")
    every = [before, *(logs for logs in seen.logs if "eval_loss" in logs), after]
    found = [each[name] for each in every for name in names]
    outside = trainer.model(input_ids=torch.arange(1, 8)[None]).logits  # after the run, in this process alone
    generated = trainer.model.generate(torch.arange(1, 8)[None], max_new_tokens=5, do_sample=False)
    logits = [*predicted.predictions.mean(-1).flatten(), *outside.detach().mean(-1).flatten()]
    values = [*found, *map(float, logits)]
    return {"values": values, "generated": generated.tolist(), "labels": predicted.label_ids.tolist()}


class Generates(TrainerCallback):
    """The main process alone generates a text during training."""

    def __init__(self):
        self.texts = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            self.texts.append(model.generate(torch.arange(1, 8)[None], max_new_tokens=4, do_sample=False).tolist())


@case
def generated(folder):
    callback = Generates()
    found = course(train(folder, "generated", llama(), documents(), callbacks=[callback], max_steps=3))
    return found | ({"generated": callback.texts} if world().is_main else {})


# -- dropout


class SeesDropout(Trainer):
    """Notes which values were dropped: after the embeddings, which are whole, and in the first layer."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        base, kept = getattr(model, "module", model).bert, {"embeddings": [], "layer": []}
        spots = {"embeddings": base.embeddings.dropout, "layer": base.encoder.layer[0].output.dropout}
        handles = [
            spot.register_forward_hook(lambda module, args, output, to=kept[name]: to.append((output == 0).tolist()))
            for name, spot in spots.items()
        ]
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        for handle in handles:
            handle.remove()
        self.dropped = [*getattr(self, "dropped", []), kept]
        return loss


@case
def dropped(folder):
    """One sample, again and again."""
    given = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    same = {"per_device_train_batch_size": 1, "learning_rate": 0.0, "max_steps": 2}
    data = [{"input_ids": list(range(1, 9)), "labels": 1}] * 8
    trainer = train(folder, "dropped", bert(**given), data, SeesDropout, **same)
    model = llama_for_tokens(dropout=0.5)
    words = [{"input_ids": list(range(1, 9)), "labels": [1] * 8}] * 8
    seen = []
    handle = model.dropout.register_forward_hook(lambda module, args, output: seen.append((output == 0).tolist()))
    train(folder, "dropped_head", model, words, **same)
    handle.remove()
    return {"dropped": trainer.dropped, "head": seen, "drawn": torch.rand(3).tolist()}


# -- checkpoints


def saved_run(folder, name, resume=None, **given):
    """Six steps with dropout, and a checkpoint after the third."""
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "gradient_checkpointing": True} | given
    model = llama(seed=world().rank, attention_dropout=given.pop("dropout", 0.2))
    options.pop("dropout", None)
    return course(train(folder, name, model, documents(), resume=resume, **options))


@case
def saved(folder):
    return saved_run(folder, "saved")


@case
def resumed(folder):
    return saved_run(folder, "resumed", str(Path(folder) / "saved" / "checkpoint-3"))


@case
def plain_saved(folder):
    return saved_run(folder, "plain_saved", dropout=0.0)


# -- messages


@case
def messages(folder):
    """Those of one step: all-to-alls, gathers and sums of losses."""
    import torch.distributed as dist

    from oneloop.backends.torch import sequence_attention as module

    counted = dict.fromkeys(("all_to_all", "all_gather", "all_reduce"), 0)

    def counting(name, function):
        def call(*args, **kwargs):
            counted[name] += 1
            return function(*args, **kwargs)

        return call

    class Steps(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.before = dict(counted)

        def on_step_end(self, args, state, control, **kwargs):
            self.found = {name: counted[name] - self.before[name] for name in counted}

    before = dist.all_to_all_single, module._all_gather, dist.all_reduce
    dist.all_to_all_single, dist.all_reduce = counting("all_to_all", before[0]), counting("all_reduce", before[2])
    module._all_gather = counting("all_gather", before[1])
    found = {}
    for name, trainer_class, given in (
        ("default", Trainer, {}),
        ("recomputed", Trainer, {"gradient_checkpointing": True}),
        ("smoothed", Trainer, {"label_smoothing_factor": 0.1}),
        ("after_evaluation", Trainer, {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": documents(3)}),
        ("overridden", WholeLogits, {"gradient_checkpointing": True}),
    ):
        steps = Steps()
        train(folder, f"messages_{name}", llama(), documents(), trainer_class, callbacks=[steps], **given, max_steps=3)
        found[name] = steps.found
    dist.all_to_all_single, module._all_gather, dist.all_reduce = before
    return found


@case
def restored(folder):
    """After a run, the model is as before."""
    trainer = train(folder, "restored", llama(), documents(), gradient_checkpointing=True, max_steps=1)
    model = trainer.model
    every = [hook for m in model.modules() for hook in (*m._forward_pre_hooks.values(), *m._forward_hooks.values())]
    hooks = sum(not getattr(hook, "__module__", "").startswith("torch.distributed.fsdp") for hook in every)
    recompute = type(model.model.layers[0]._gradient_checkpointing_func)
    named = f"{recompute.__module__}.{recompute.__name__}"
    left = [hooks, model.config._attn_implementation, "_loss_function" in vars(model), named]
    loss = trainer.compute_loss(model, pad(documents(3)))  # by this process alone
    return {"left": left, "values": [float(loss.detach())]}


@case
def accelerator(folder):
    """Libraries see processes with different batches, also when they ask accelerate itself."""
    from accelerate.utils import gather, gather_object

    trainer = Trainer(llama(), arguments(folder, "accelerator"))
    seen, rank = trainer.accelerator, world().rank
    names = ("num_processes", "process_index", "use_distributed", "is_main_process", "is_last_process")
    found = {name: getattr(seen, name) for name in names} | {"gathered": seen.gather(torch.tensor([7])).tolist()}
    found["by accelerate"] = gather({"ranks": torch.tensor([[rank]])})["ranks"].tolist()
    return found | {"objects": gather_object([str(rank)] * (1 + rank // 2))}


# -- what cannot be divided


class OwnAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 8)

    def forward(self, input_ids, labels=None, attention_mask=None):
        return {"loss": self.embedding(input_ids).square().mean()}


def mixing():
    """Its second layer adds the mean over all positions."""
    model = llama()

    def mixed(module, args, output):
        return output + output.mean(1, keepdim=True)

    model.model.layers[1].mlp.register_forward_hook(mixed)
    return model


def without_interface():
    """Its second layer has no attention."""
    model = llama()

    class NoAttention(torch.nn.Module):
        def forward(self, hidden_states, **kwargs):
            return torch.zeros_like(hidden_states), None

    model.model.layers[1].self_attn = NoAttention()
    return model


def refused_models():
    import transformers

    def of(name, **given):
        config = getattr(transformers, f"{name}Config")
        return lambda: getattr(transformers, given.pop("cls"))(config(**given))

    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": WORDS}
    return {
        "heads": lambda: llama(num_attention_heads=3, num_key_value_heads=3, hidden_size=24),
        "eager": lambda: llama(attn_implementation="eager"),
        "module": OwnAttention,
        "cross": of("T5", cls="T5ForConditionalGeneration", d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4,
                    vocab_size=WORDS),
        "deberta": of("DebertaV2", cls="DebertaV2ForTokenClassification", num_attention_heads=4, **small),
        "router": of("Qwen3Moe", cls="Qwen3MoeForCausalLM", num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                     num_experts=4, moe_intermediate_size=16, output_router_logits=True, **small),
        "mixing": mixing,
        "layer": without_interface,
    }  # fmt: skip


@case
def refused_axes(folder):
    """On four processes."""
    found = {}
    for name in ("tensor_parallel_size", "expert_parallel_size"):
        try:
            train(folder, "refused_axes", llama(), documents(), max_steps=1, **{name: 2})
        except UnsupportedError as error:
            found[name] = str(error)
    return found


@case
def refused(folder):
    found = {}
    for name, make in refused_models().items():
        try:
            train(folder, f"refused_{name}", make(), documents(), max_steps=1)
        except UnsupportedError as error:
            found[name] = str(error)
    arguments_refused = {"compile": {"torch_compile": True}, "cache": {"use_cache": True}}
    for name, given in (arguments_refused | {"tensor": {"tensor_parallel_size": 2}}).items():
        try:
            train(folder, f"refused_{name}", llama(), documents(), max_steps=1, **given)
        except (UnsupportedError, ArgumentError) as error:
            found[name] = str(error)
    return found


def main(folder, size, *names):
    global SIZE, SAME_BATCH
    SIZE = int(size)
    GIVEN.update(name.split("=") for name in names if "=" in name)
    SAME_BATCH = SIZE * int(GIVEN.get("tensor_parallel_size", 1))
    wanted = [name for name in names if "=" not in name]
    found = {}
    for name in wanted or CASES:
        if name.startswith("from:"):  # the folder of other runs, from whose checkpoint this one goes on
            other = Path(name.removeprefix("from:"))
            resume = str(other / "plain_saved" / "checkpoint-3")
            found[f"from:{other.name}"] = saved_run(folder, f"from_{other.name}", resume, dropout=0.0)
        else:
            found[name] = CASES[name](folder)
    (Path(folder) / f"rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
