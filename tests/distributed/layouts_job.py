"""Short runs of models that are divided, as a program under torchrun: `layouts_job.py FOLDER CASE[:LAYOUT] ...`.

A case runs in every layout for this number of processes, on one process in none.
"""

import hashlib
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from oneloop import Trainer, TrainerCallback
from oneloop.backends.torch.muon import MuonWithAdamW
from oneloop.backends.torch.parallel import local
from oneloop.distributed.world import world
from oneloop.errors import OneloopError
from tests.backends.support import rows
from tests.distributed.cases import arguments
from tests.distributed.cases import train as train_whole
from tests.distributed.job import main
from tests.distributed.sharding_job import Counted, course
from tests.internals import skipped_updates

CASES = {}
GLOBAL_BATCH = 8
TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = {"sequence_parallel_size": 2}
LAYOUTS = {
    1: {"alone": {}},
    2: {
        "tp2": TENSOR,
        "dp2": {},
        "shard2 stage1": {"sharding": "stage1"},
        "shard2": {"sharding": "stage3"},
        "sp2": SEQUENCE,
    },
    4: {
        "dp2 x tp2": TENSOR,
        "shard2 x tp2": TENSOR | {"sharding": "stage3"},
        "shard2 stage2 x tp2": TENSOR | {"sharding": "stage2"},
        "dp2 x sp2": SEQUENCE,
        "shard2 x sp2": SEQUENCE | {"sharding": "stage3"},
    },
}
WORDS = 48


def case(function):
    CASES[function.__name__] = function
    return function


def layouts(divided=True):
    """Those that divide the model along the tensor axis, or the others. Of stages 2 and 3, the slow tests try both."""
    own = LAYOUTS[world().size]
    brief = "brief" in sys.argv
    return {
        name: own[name]
        for name in own
        if (("tp" in name) == divided or world().size == 1) and not (brief and "stage2" in name)
    }


# -- models


SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def llama(**given):
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 4, "tie_word_embeddings": False} | given))


def qwen3(**given):
    """Norms of each head, biases, tied embeddings."""
    torch.manual_seed(3)
    more = {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}
    return Qwen3ForCausalLM(Qwen3Config(**SIZES | more | given))


def bert(**given):
    torch.manual_seed(3)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**SIZES | still | given))


BERT_PLAN = {
    "bert.encoder.layer.*.attention.self.query": "colwise",
    "bert.encoder.layer.*.attention.self.key": "colwise",
    "bert.encoder.layer.*.attention.self.value": "colwise",
    "bert.encoder.layer.*.attention.output.dense": "rowwise",
    "bert.encoder.layer.*.intermediate.dense": "colwise",
    "bert.encoder.layer.*.output.dense": "rowwise",
}


class Layer(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 24), nn.Linear(24, width)
        self.inside, self.outside = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.outside(self.down(self.inside(torch.tanh(self.up(self.norm(x))))))


class Plain(nn.Module):
    """A module that no library knows, with a running count and a number as a parameter."""

    def __init__(self, inside=0.0, outside=0.0):
        super().__init__()
        torch.manual_seed(4 + world().rank)  # the weights are those of the main process
        self.embed = nn.Embedding(WORDS, 16)
        self.layers = nn.ModuleList(Layer(16, 0.0) for _ in range(2))
        for layer in self.layers:
            layer.inside.p, layer.outside.p = inside, outside
        self.head = nn.Linear(16, WORDS)
        self.warmth = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input_ids, labels=None, attention_mask=None):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        if self.training:
            self.seen += 1
        logits = self.head(x) * self.warmth
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


PLAIN_PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise", "head": "colwise_gather_output"}
MODELS = {
    "llama": (llama, {}),
    "qwen3": (qwen3, {}),
    "bert": (bert, {"tensor_parallel_plan": BERT_PLAN}),
    "plain": (Plain, {"tensor_parallel_plan": PLAIN_PLAN}),
}


def texts(count=40, length=9, seed=0):
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        ids = generator.integers(0, WORDS, length)
        labels = np.where(generator.random(length) < 0.2, -100, ids)
        if number % 11 == 5:
            labels[:] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


def train(folder, name, model, data=None, **given):
    """A run of the global batch, whatever divides it."""
    batches = world().size // given.get("tensor_parallel_size", 1) // given.get("sequence_parallel_size", 1)
    accumulation = given.get("gradient_accumulation_steps", 1)
    options = {
        "per_device_train_batch_size": GLOBAL_BATCH // batches // accumulation,
        "optim": "adamw_torch",
        "learning_rate": 1e-3,
        "max_steps": 6,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
    }
    return train_whole(folder, name, model, texts() if data is None else data, **options | given)


def with_each(folder, name, **given):
    make, plan = MODELS[name]
    return {
        layout: course(train(folder, f"{name}-{layout}", make(), **plan | own | given))
        for layout, own in layouts().items()
    }


ACCUMULATED = {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}


@case
def brief(folder):
    """Has the cases after it leave some layouts out."""


@case
def equal(folder):
    return {"plain": with_each(folder, "plain")}


def with_optimizer(model, stepped=False):
    """A Trainer that is given an optimizer of the undivided model."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    if stepped:
        model(input_ids=torch.ones(1, 2, dtype=torch.long), labels=torch.ones(1, 2, dtype=torch.long))[
            "loss"
        ].backward()
        optimizer.step()

    class Given(Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = optimizer
            return optimizer

    return Given


@case
def given_optimizer(folder):
    model = Plain()
    own = {} if world().size == 1 else TENSOR | {"tensor_parallel_plan": PLAIN_PLAN}
    return course(train(folder, "given_optimizer", model, trainer_class=with_optimizer(model), **own))


@case
def few_left(folder):
    """41 samples: the last update of an epoch has one, so that the other replica has none."""
    return {
        layout: course(train(folder, f"few-{layout}", llama(), texts(41), max_steps=7, **own))
        for layout, own in layouts().items()
    }


@case
def thirty(folder):
    return {name: with_each(folder, name, max_steps=30) for name in MODELS}


# -- features


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


@case
def evaluated(folder):
    """Before, while and after training, with metrics; predictions; and who has written and logged."""
    found = {}
    for layout, own in layouts().items():
        given = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, "compute_metrics": accuracy} | own
        trainer = train(folder, f"evaluated-{layout}", llama(), eval_dataset=texts(7, seed=1), **given)
        logs = [log for log in trainer.state.log_history if "eval_loss" in log]
        predicted = trainer.predict(texts(5, seed=2))
        found[layout] = {
            "during": [[log["eval_loss"], log["eval_accuracy"]] for log in logs],
            "after": trainer.evaluate()["eval_loss"],
            "predictions": predicted.predictions.tolist(),
            "labels": predicted.label_ids.tolist(),
        }
    return found


@case
def averaged(folder):
    """An EMA of the weights: evaluated, stored and continued."""
    found = {}
    for layout, own in layouts().items():
        given = SAVING | {"ema_decay": 0.5, "eval_with_average": True, "eval_dataset": texts(7, seed=1)} | own
        whole = train(folder, f"averaged-{layout}", qwen3(), **given)
        checkpoint = Path(folder) / f"averaged-{layout}" / "checkpoint-3"
        again = train(folder, f"averaged-again-{layout}", qwen3(), resume=str(checkpoint), **given)
        found[layout] = {
            "losses": [trainer.evaluate()["eval_loss"] for trainer in (whole, again)],
            "stored": {name: value.tolist() for name, value in load_file(checkpoint / "average.safetensors").items()},
        }
    return found


@case
def whole_matrices(folder):
    """Muon, whose steps need whole matrices, and an average of the weights: evaluated, stored and continued."""
    own = layouts() | (layouts(divided=False) if world().size == 2 else {})
    found = {}
    for layout in own:
        if layout in ("dp2", "sp2"):
            continue
        given = SAVING | {"optim": "muon", "swa_start": 2, "eval_dataset": texts(7, seed=1)}
        given |= {"eval_with_average": True, "save_average": True}
        whole = train(folder, f"muon-{layout}", qwen3(), **given | own[layout])
        whole.save_model(str(Path(folder) / f"average-{layout}"))
        resume = str(Path(folder) / f"muon-{layout}" / "checkpoint-3")
        again = train(folder, f"muon-again-{layout}", qwen3(), **given | own[layout], resume=resume)
        found[layout] = {
            "whole": course(whole),
            "again": course(again),
            "evaluated": [trainer.evaluate()["eval_loss"] for trainer in (whole, again)],
            "files": files_of(folder, f"muon-{layout}"),
            "files again": files_of(folder, f"muon-again-{layout}"),
            "average is saved": world().rank > 0 or has_average(folder, layout),
        }
    return found


def has_average(folder, layout):
    """Whether the saved model has the average of the last checkpoint."""
    average = load_file(Path(folder) / f"muon-{layout}" / "checkpoint-6" / "average.safetensors")
    saved = load_file(Path(folder) / f"average-{layout}" / "model.safetensors")
    return all(torch.equal(saved[name], value) for name, value in average.items())


def files_of(folder, name):
    """Digests of what the last checkpoint has of weights, optimizer and average."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((Path(folder) / name / "checkpoint-6").glob("*.safetensors"))
        if path.name != "random.safetensors"
    }


@case
def muon_steps(folder):
    """Steps of given gradients: how far divided matrices are from whole ones, and what is kept for them."""
    mesh = init_device_mesh("cpu", (2, world().size // 2) if world().size > 2 else (2,))
    divisions = [[Shard(0)], [Shard(1)], [Replicate()]]
    if mesh.ndim == 2:
        divisions = [[Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(1)]]
    found = {}
    for number, placements in enumerate(divisions):
        torch.manual_seed(number)
        shapes = [(1, 6), (5, 4), (8, 8), (3, 12), (9, 2)]  # some processes have no row of the first, or no column
        whole = [nn.Parameter(torch.randn(shape)) for shape in (*shapes, (4, 4), (4,))]
        parts = [nn.Parameter(distribute_tensor(p.detach(), mesh, placements)) for p in whole[:-2]]
        parts += [nn.Parameter(p.detach().clone()) for p in whole[-2:]]
        made = [two_groups(params) for params in (whole, parts)]
        for step in range(3):
            for p, part in zip(whole, parts, strict=True):
                gradient = torch.randn(p.shape)
                p.grad = None if step == 1 and p.shape == (8, 8) else gradient
                part.grad = None if p.grad is None else distributed_like(part, gradient)
            for optimizer in made:
                optimizer.step()
        kept = [optimizer.state[p]["momentum_buffer"] for optimizer, p in zip(made, (whole[1], parts[1]))]
        found[str(placements)] = [
            max(difference_of(p, part) for p, part in zip(whole, parts, strict=True)),
            difference_of(*kept),
            kept[1].placements == parts[1].placements,
        ]
    return found


def two_groups(params):
    """Matrices of two kinds, and a vector, which AdamW updates."""
    kinds = {"use_muon": True, "nesterov": False, "lr": 0.03}
    groups = [{"params": params[:2], "use_muon": True}, {"params": params[2:-1], **kinds}, {"params": params[-1:]}]
    return MuonWithAdamW(groups, lr=0.1, weight_decay=0.2)


def distributed_like(part, value):
    return distribute_tensor(value, part.device_mesh, part.placements) if isinstance(part, DTensor) else value


def difference_of(whole, part):
    value = part.full_tensor() if isinstance(part, DTensor) else part
    return float((whole - value).abs().max())


@case
def adapted(folder):
    """LoRA, with dropout of whole and of divided inputs and without: trained, stored, resumed."""
    from peft import LoraConfig, get_peft_model

    found = {}
    for layout, own in layouts().items():
        for dropout in (0.0, 0.3):

            def make(dropout=dropout):
                torch.manual_seed(6)
                targets = ["q_proj", "v_proj", "o_proj", "down_proj"]
                config = LoraConfig(target_modules=targets, r=4, lora_dropout=dropout, init_lora_weights=False)
                return get_peft_model(llama(), config)

            name = f"adapted-{layout}-{dropout}"
            whole = train(folder, name, make(), **SAVING | own)
            checkpoint = Path(folder) / name / "checkpoint-3"
            again = train(folder, f"again-{name}", make(), **SAVING | own, resume=str(checkpoint))
            found[f"{layout} {dropout}"] = {"whole": course(whole), "again": course(again)}
            found[f"{layout} {dropout}"]["files"] = sorted(
                (path.name, path.stat().st_size) for path in checkpoint.glob("adapter*.safetensors")
            )
    return found


@case
def halved(folder):
    """bf16; and fp16 with a scale that overflows."""
    found = {}
    usual = {"max_steps": 30}
    for layout, own in layouts().items():
        half = course(train(folder, f"bf16-{layout}", llama(), **own | usual, bf16=True))
        found[layout] = {"bf16": half["losses"]}
        if "shard" not in layout:
            given = own | {"tensor_parallel_plan": PLAIN_PLAN, "fp16": True, "scale_loss": 2.0**120, "max_steps": 4}
            scaled = train(folder, f"fp16-{layout}", Plain(), **given)
            found[layout]["fp16"] = trainer_skips(scaled)
    if world().size == 1:
        found["float32"] = course(train(folder, "float32", llama(), **usual))["losses"]
    return found


def trainer_skips(trainer):
    return [skipped_updates(trainer), trainer.seen.losses]


@case
def dropped(folder):
    """Random numbers where activations are whole, and where they are divided; resumed, and computed again."""
    found = {}
    for layout, own in layouts().items():
        plan = {"tensor_parallel_plan": PLAIN_PLAN}
        outside = course(train(folder, f"outside-{layout}", Plain(outside=0.3), **plan | own))
        inside = train(folder, f"inside-{layout}", Plain(inside=0.3, outside=0.3), **SAVING | plan | own)
        checkpoint = Path(folder) / f"inside-{layout}" / "checkpoint-3"
        given = SAVING | plan | own | {"resume": str(checkpoint)}
        again = train(folder, f"inside-again-{layout}", Plain(inside=0.3, outside=0.3), **given)
        found[layout] = {"outside": outside, "inside": course(inside), "again": course(again), "masks": masks(inside)}
    return found


@case
def recomputed(folder):
    """Layers that are computed again for their gradients draw the same numbers again."""
    found = {}
    for layout, own in layouts().items():
        given = {"kept": own, "recomputed": own | {"gradient_checkpointing": True}}
        found[layout] = {
            name: course(train(folder, f"{name}-{layout}", llama(attention_dropout=0.3), **options))["losses"]
            for name, options in given.items()
        }
    return found


def masks(trainer):
    """What dropout keeps of ones inside and outside of the first layer, in a forward pass of the training."""
    layer, kept = trainer.model.layers[0], {}
    for name in ("inside", "outside"):
        drop = getattr(layer, name)
        drop.register_forward_hook(lambda module, given, output, name=name: kept.update({name: (output != 0).tolist()}))
    torch.manual_seed(1)
    trainer.model.train()
    trainer.model(input_ids=torch.arange(8).view(1, 8))
    return kept


class Explodes(Plain):
    """Its loss is not finite in the third step, and is large in the fifth."""

    calls = 0

    def forward(self, **given):
        outputs = super().forward(**given)
        self.calls += self.training
        if self.training and self.calls in (3, 5):
            outputs["loss"] = outputs["loss"] * (math.inf if self.calls == 3 else 1000.0)
        return outputs


@case
def skipped(folder):
    found = {}
    for layout, own in layouts().items():
        given = own | {"tensor_parallel_plan": PLAIN_PLAN, "nonfinite": "skip", "max_steps": 8}
        found[layout] = trainer_skips(train(folder, f"skipped-{layout}", Explodes(), **given))
    return found


@case
def generated(folder):
    """Texts of different lengths, of as many beams as asked for."""
    found = {}
    for layout, own in layouts().items():
        trainer = train(folder, f"generated-{layout}", llama(eos_token_id=1, pad_token_id=0), **own, max_steps=3)
        trainer.model.eval()
        prompts = torch.arange(2, 14).view(3, 4)
        if "shard" in layout:
            continue
        with torch.no_grad():
            greedy = trainer.model.generate(prompts, max_new_tokens=6, do_sample=False)
            torch.manual_seed(2)
            sampled = trainer.model.generate(prompts, max_new_tokens=6, do_sample=True)
        found[layout] = [greedy.tolist(), sampled.tolist()]
    return found


@case
def arrived(folder):
    """A model that was divided when it was loaded; with accumulation, and given to a second Trainer."""
    stored = Path(folder).parent / "stored"
    if world().size == 1:
        qwen3().save_pretrained(stored)
        model = Qwen3ForCausalLM.from_pretrained(stored)
    elif world().size == 2:
        model = Qwen3ForCausalLM.from_pretrained(stored, tp_plan="auto")
    else:
        return {}
    given = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    trainer = train(folder, "arrived", model, **SAVING | given)
    size = trainer.args.tensor_parallel_size
    second = Trainer(trainer.model, arguments(folder, "second"), eval_dataset=texts(6))
    whole = course(trainer)
    resume = str(Path(folder) / "arrived" / "checkpoint-3")
    again = course(train(folder, "arrived-again", model, **SAVING | given, resume=resume))
    return {"whole": whole, "again": again, "size": size, "eval": second.evaluate()["eval_loss"]}


@case
def configured(folder):
    """A model that transformers' DistributedConfig has divided: by layers, or by layers and parameters."""
    stored = Path(folder).parent / "configured"
    if world().size == 1:
        qwen3().save_pretrained(stored)
        return {"whole": course(train(folder, "configured", Qwen3ForCausalLM.from_pretrained(stored), **SAVING))}
    from transformers.distributed import DistributedConfig

    def loaded(**sizes):
        return Qwen3ForCausalLM.from_pretrained(stored, distributed_config=DistributedConfig(**sizes))

    found = {}
    if world().size == 2:
        given = SAVING | {"per_device_train_batch_size": GLOBAL_BATCH}
        trainer = train(folder, "configured", loaded(tp_size=2), **given)
        found["whole"] = course(trainer)
        resume = str(Path(folder) / "configured" / "checkpoint-3")
        again = train(folder, "configured-again", loaded(tp_size=2), **given, resume=resume)
        found["again"] = course(again)
    from accelerate.parallelism_config import ParallelismConfig

    config = {"tp_size": 2} | ({"dp_shard_size": 2} if world().size == 4 else {})
    given = SAVING | {"per_device_train_batch_size": GLOBAL_BATCH * 2 // world().size}
    given |= {"sharding": "stage3"} if world().size == 4 else {}
    model = Qwen3ForCausalLM.from_pretrained(stored)
    found["parallelism_config"] = course(
        train(folder, "parallelism_config", model, **given, parallelism_config=ParallelismConfig(**config))
    )
    sizes = {"fsdp_size": 2, "tp_size": world().size // 2}
    for name, more in (("sharded", {}), ("sharded again", {"sharding": "stage3"})):
        try:
            train(folder, "sharded", loaded(**sizes), **SAVING | more)
            found[name] = "trained"
        except OneloopError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


class Refused(nn.Module):
    """A number as a parameter between layers that are divided, which no plan mentions."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.warmth = nn.Linear(6, 8), nn.Linear(8, 6), nn.Parameter(torch.tensor(1.5))

    def forward(self, x, labels=None):
        logits = self.down(torch.tanh(self.up(x)) * self.warmth)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@case
def refused(folder):
    def message(*given, **more):
        try:
            train(folder, "refused", *given, **more)
        except OneloopError as error:
            return f"{type(error).__name__}: {error}"
        return None

    plan = {"up": "colwise", "down": "rowwise"}
    stepped = Plain()
    given = TENSOR | {"tensor_parallel_plan": PLAIN_PLAN, "trainer_class": with_optimizer(stepped, stepped=True)}
    return {
        "stepped": message(stepped, **given),
        "between": message(Refused(), rows(16), **TENSOR, tensor_parallel_plan=plan),
        "summed": message(Summed(), rows(16), **TENSOR, tensor_parallel_plan=plan | {"scale": SUM}),
        "no plan": message(bert(), **TENSOR),
        "adafactor": message(llama(), **TENSOR | {"optim": "adafactor"}),
    }


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return x * self.weight


class Summed(Refused):
    """The same as a layer, so that a plan can name it."""

    def __init__(self):
        super().__init__()
        del self.warmth
        self.scale = Scale()

    @property
    def warmth(self):
        return self.scale.weight


SUM = "replicated_with_grad_allreduce"


@case
def counted(folder):
    """Bytes of tensors that each process reads from a checkpoint, of all that it has."""
    found = {}
    for layout, own in layouts().items():
        saved_run = saving_run(folder, f"counted-{layout}", own)
        checkpoint = Path(folder) / f"counted-{layout}" / "checkpoint-3"
        held = sum(local(p).numel() * p.element_size() for p in saved_run.model.parameters())
        with Counted() as counter:
            saving_run(folder, f"counted-again-{layout}", own, str(checkpoint))
        stored = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
        found[layout] = {"read": counter.bytes, "held": held, "stored": stored}
    return found


class Steps(TrainerCallback):
    """The messages of the last step, by kind."""

    def on_step_begin(self, args, state, control, **kwargs):
        self.mode = CommDebugMode()
        self.mode.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        self.mode.__exit__(None, None, None)
        self.found = {str(kind).rpartition(".")[2]: n for kind, n in self.mode.get_comm_counts().items() if n}


@case
def messages(folder):
    """Of a Llama of two layers, whose layers are divided."""
    found = {}
    for name, given in {"plain": {}, "recomputed": {"gradient_checkpointing": True}}.items():
        steps = Steps()
        train(folder, f"messages-{name}", llama(), max_steps=2, callbacks=[steps], **TENSOR, **given)
        found[name] = steps.found
    return found


# -- checkpoints

SAVING = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "lr_scheduler_type": "linear"}


def saving_run(folder, name, given, resume=None):
    return train(folder, name, qwen3(), **SAVING | ACCUMULATED | given, resume=resume)


@case
def saved(folder, divided=True):
    """Six steps with a checkpoint after three, from which the same layout goes on to the same bits."""
    found = {}
    for layout, own in layouts(divided).items():
        whole = saving_run(folder, f"saved-{layout}", own)
        checkpoint = Path(folder) / f"saved-{layout}" / "checkpoint-3"
        again = saving_run(folder, f"again-{layout}", own, str(checkpoint))
        whole.save_model(str(Path(folder) / f"model-{layout}"))
        found[layout] = {"whole": course(whole), "again": course(again)}
        found[layout]["files"] = sorted(path.name for path in checkpoint.iterdir())
    return found


@case
def saved_whole(folder):
    return saved(folder, divided=False)


@case
def of_deepspeed(folder):
    """Runs with DeepSpeed, whose checkpoints `crossed` continues from."""
    from tests.distributed.deepspeed_job import config, without_building

    without_building()
    return {
        stage: saving_run(folder, f"saved-{stage}", {"deepspeed": config(int(stage[-1]))}).seen.losses
        for stage in ("stage2", "stage3")
    }


@case
def crossed(folder, divided=True):
    """On from the checkpoints of every layout that has left one."""
    stored = {path.parent.name.removeprefix("saved-"): path for path in Path(folder).parent.glob("*/saved-*/*-3")}
    return {
        layout: {
            source: course(saving_run(folder, f"{layout} from {source}", own, str(path)))["losses"]
            for source, path in stored.items()
        }
        for layout, own in layouts(divided).items()
    }


@case
def crossed_whole(folder):
    return crossed(folder, divided=False)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=CASES)
