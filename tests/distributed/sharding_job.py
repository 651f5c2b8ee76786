"""Short runs with divided state, as a program under torchrun: `sharding_job.py FOLDER CASE [CASE ...]`; see job.py.

A case runs with every strategy, on one process with none.
"""

import gc
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from oneloop import Trainer, TrainerCallback
from oneloop.backends.torch import shards
from oneloop.backends.torch.storage_tracker import COLLECTIVES, whole_size
from oneloop.distributed import step_sync
from oneloop.distributed.world import world
from oneloop.errors import OneloopError, UnsupportedError
from oneloop.formats.safetensors_io import read as read_file
from tests.backends.support import CLASSES, WORDS, rows, tagged
from tests.distributed.cases import roll_back
from tests.distributed.job import GLOBAL_BATCH, KIT, arguments, gradients_of, main, mean_of_predictions, train
from tests.internals import backend_of, full_tensors, skipped_updates, strategy_of

CASES = {}
STRATEGIES = {"ddp": "", "stage1": "stage1", "stage2": "stage2", "stage3": "stage3"}


def case(function):
    CASES[function.__name__] = function
    return function


def strategies():
    """One process has nothing to divide."""
    return STRATEGIES if world().size > 1 else {"alone": ""}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x)))


class Odd(nn.Module):
    """Blocks, tied weights, a number as a parameter, rows that two processes cannot halve, and a running mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(WORDS, 7)
        self.blocks = nn.ModuleList(Block(7) for _ in range(2))
        self.tied = nn.Linear(7, WORDS, bias=False)
        self.tied.weight = self.embed.weight
        self.head = nn.Linear(WORDS, CLASSES)
        self.warmth = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        if self.training:
            self.seen += 1
        logits = self.head(self.tied(x)) * self.warmth
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()), "logits": logits}


class Even(nn.Module):
    """Eight layers of one size."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(8))

    def forward(self, x, labels=None):
        x = nn.functional.pad(x, (0, 64 - x.shape[-1]))
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"loss": nn.functional.cross_entropy(x[:, :CLASSES], labels), "logits": x[:, :CLASSES]}


LENGTHS = [1 + (7 * i) % 9 for i in range(29)]
UNLABELLED = (3, 4, 5, 11, 20)


def course(trainer):
    """What equal runs have in common; all processes have to ask."""
    tensors = full_tensors(trainer)
    return {
        "weights": {name: value.tolist() for name, value in tensors.items()},
        "losses": trainer.seen.losses,
        "norms": trainer.seen.norms,
        "train_loss": trainer.result.training_loss,
        "steps": trainer.state.global_step,
    }


def with_each(folder, name, model, data, **given):
    found = {}
    for strategy, sharding in strategies().items():
        samples = data() if callable(data) else data
        found[strategy] = course(train(folder, f"{name}-{strategy}", model(), samples, sharding=sharding, **given))
    return found


@case
def sgd(folder):
    """29 samples: the last update of an epoch has 5."""
    return with_each(folder, "sgd", KIT.classifier, rows(29))


@case
def adamw(folder):
    return with_each(folder, "adamw", KIT.classifier, rows(29), optim="adamw_torch", learning_rate=0.01)


@case
def gradients(folder):
    found = {}
    for strategy, sharding in strategies().items():
        given = {"optim": "adamw_torch", "learning_rate": 0.01, "sharding": sharding}
        found[strategy] = gradients_of(folder, f"gradients-{strategy}", **given)
    return found


@case
def few_left(folder):
    """17 samples: one is left for all processes at the end of an epoch."""
    return with_each(folder, "few_left", KIT.classifier, rows(17))


@case
def tokens_accumulated(folder):
    """Micro-batches without a label, and processes that have fewer of them than others."""
    half = GLOBAL_BATCH // world().size // 2
    given = {"per_device_train_batch_size": half, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1}
    return with_each(folder, "tokens", KIT.tagger, tagged(LENGTHS, unlabelled=UNLABELLED), **given)


class Later(Odd):
    """Its loss compares position i with label i + 1, and it does not say so. A label 0 is none, so that a process
    without labels in its first batch finds out nothing."""

    def forward(self, input_ids, labels=None):
        outputs = super().forward(input_ids)
        self.seen.zero_()  # it is not called for a batch without labels
        if labels is None:
            return outputs
        labels = labels.masked_fill(labels == 0, -100)[:, 1:]
        return {"loss": nn.functional.cross_entropy(outputs["logits"][:, :-1].flatten(0, 1), labels.flatten())}


@case
def shifted(folder):
    """On two processes, the first one has no labels in its first batch."""
    data = tagged(LENGTHS, unlabelled=range(4))
    for row in data:
        row["labels"][row["labels"] == 0] = 1
    return with_each(folder, "shifted", Later, data, train_sampling_strategy="sequential")


@case
def odd(folder):
    given = {"max_grad_norm": 0.1, "weight_decay": 0.1, "gradient_checkpointing": True}
    return with_each(folder, "odd", Odd, tagged(LENGTHS, unlabelled=UNLABELLED), **given)


# -- evaluation


@case
def evaluated(folder):
    """31 samples in batches of 3, and one sample for all; in the middle of training, where the model is divided."""
    found = {}
    for strategy, sharding in strategies().items():
        data = {"train_dataset": rows(16), "eval_dataset": rows(31, seed=5)}
        args = {"sharding": sharding, "eval_strategy": "epoch", "num_train_epochs": 1}
        given = {"compute_metrics": mean_of_predictions}
        trainer = Trainer(KIT.classifier(), arguments(folder, f"evaluated-{strategy}", **args), **data, **given)
        before = trainer.evaluate()
        trainer.train()
        (during,) = [log for log in trainer.state.log_history if "eval_loss" in log and log["step"]]
        after = trainer.evaluate()
        alone = trainer.predict(rows(1, seed=6))
        names = ("eval_loss", "eval_accuracy", "eval_count")
        found[strategy] = {
            "metrics": [[metrics[name] for name in names] for metrics in (before, during, after)],
            "one": alone.predictions.tolist(),
        }
    return found


# -- what each process holds


class Weighed(TrainerCallback):
    """Bytes of this process's own after the backward pass of the second update, when all state is there."""

    def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        parameters = list(model.parameters())
        states = getattr(optimizer, "optim", optimizer).state.values()
        self.bytes = {
            "optimizer": size(v for s in states for v in s.values() if v.dim()),
            "gradients": size(p.grad for p in parameters),
            "parameters": size(parameters),
            "everything": everything(),
        }


def size(tensors):
    """Bytes of the memory under the tensors, each piece once."""
    storages = [shards.local(t).untyped_storage() for t in tensors if t is not None]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def everything():
    """Bytes under all tensors that are alive: also whole gradients and buckets that somebody may still hold."""
    gc.collect()
    return size(t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter))


@case
def held(folder):
    found = {}
    for strategy, sharding in strategies().items():
        weighed = Weighed()
        given = {"optim": "adamw_torch", "sharding": sharding, "max_steps": 2, "callbacks": [weighed]}
        train(folder, f"held-{strategy}", Even(), rows(16), **given)
        found[strategy] = weighed.bytes
    return found


# -- what they send


class Exchanged(TorchDispatchMode, TrainerCallback):
    """The collectives of the last update, as (name, bytes of the whole tensor)."""

    may_change_control = False

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind is DTensor for kind in types):
            return NotImplemented
        name = COLLECTIVES.get(func.name().partition(".")[0])
        if name is not None:
            self.found.append((name, whole_size(args)))
        return func(*args, **(kwargs or {}))

    def on_step_end(self, args, state, control, **kwargs):
        self.last, self.found = self.found, []


@case
def exchanged(folder):
    found = {}
    kept, step_sync.LONG_STEP = step_sync.LONG_STEP, 1e9  # after a long step, processes compare more
    for strategy, sharding in strategies().items():
        for accumulation in (1, 3):
            counts = Exchanged()
            given = {"optim": "adamw_torch", "sharding": sharding, "max_steps": 3, "max_grad_norm": 1.0}
            given |= {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 1}
            name = f"exchanged-{strategy}-{accumulation}"
            args = arguments(folder, name, **given)
            with counts:
                Trainer(Even(), args, train_dataset=rows(64), callbacks=[counts]).train()
            found[f"{strategy} {accumulation}"] = counts.last
    step_sync.LONG_STEP = kept
    return found


# -- checkpoints


SAVING = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "optim": "adamw_torch", "learning_rate": 0.01}


@case
def rolled_back(folder):
    """A loss spike: returning to a checkpoint, in the same process."""
    return {name: roll_back(folder, f"back-{name}", sharding=sharding)[1] for name, sharding in strategies().items()}


@case
def saved(folder):
    """Six steps in one go, with a checkpoint after three; the same strategy goes on from it to the same bits."""
    found = {}
    for strategy, sharding in strategies().items():
        given = SAVING | {"sharding": sharding, "weight_decay": 0.1}
        data = tagged(LENGTHS)
        whole = course(train(folder, f"saved-{strategy}", Odd(), data, **given))
        checkpoint = Path(folder) / f"saved-{strategy}" / "checkpoint-3"
        again = course(train(folder, f"again-{strategy}", Odd(), data, resume=str(checkpoint), **given))
        files = sorted(path.name for path in checkpoint.iterdir())
        found[strategy] = {"whole": whole, "again": again, "files": files}
    return found


class Counted:
    """Bytes of tensors that this process reads from files while it is in use."""

    def __enter__(self):
        self.bytes, self._kept = 0, (shards.Stored.box, shards.Stored.full_tensor)
        shards.Stored.box, shards.Stored.full_tensor = map(self._counting, self._kept)
        return self

    def _counting(self, function):
        def read(*given):
            found = function(*given)
            self.bytes += found.numel() * found.element_size()
            return found

        return read

    def __exit__(self, *_):
        shards.Stored.box, shards.Stored.full_tensor = self._kept


@case
def read_in_parts(folder):
    """What a resume reads, against what the files hold; eight layers that halve evenly."""
    found = {}
    for strategy in ("stage2", "stage3"):
        given = SAVING | {"sharding": strategy, "max_steps": 3}
        train(folder, f"read-{strategy}", Even(), rows(32), **given)
        checkpoint = Path(folder) / f"read-{strategy}" / "checkpoint-3"
        with Counted() as counted:
            resume = str(checkpoint)
            train(folder, f"read-again-{strategy}", Even(), rows(32), resume=resume, **given | {"max_steps": 4})
        files = [path for path in checkpoint.iterdir() if path.name.startswith(("model-", "optimizer-"))]
        stored = [raw.size for path in files for raw in read_file(path).values()]
        found[strategy] = {"read": counted.bytes, "stored": sum(stored)}
    return found


@case
def crossed(folder):
    """Go on with every strategy from checkpoints that others have left in the folders named in `sources`."""
    sources = [Path(line) for line in (Path(folder) / "sources").read_text().splitlines()]
    found = {}
    for path in sorted(path for source in sources for path in source.glob("saved-*")):
        for strategy, sharding in strategies().items():
            given = SAVING | {"sharding": sharding, "weight_decay": 0.1, "save_strategy": "no"}
            name = f"{path.name.removeprefix('saved-')}-{strategy}"
            resume = str(path / "checkpoint-3")
            found[name] = course(train(folder, f"crossed-{name}", Odd(), tagged(LENGTHS), resume=resume, **given))
    return found


@case
def best(folder):
    """The best model comes back into a divided one, and save_model writes it whole."""
    found = {}
    for strategy, sharding in strategies().items():
        given = SAVING | {"sharding": sharding, "load_best_model_at_end": True, "eval_strategy": "steps"}
        given |= {"eval_steps": 3, "learning_rate": 3.0, "max_steps": 9, "eval_dataset": tagged(LENGTHS[:8])}
        trainer = train(folder, f"best-{strategy}", Odd(), tagged(LENGTHS), **given)
        trainer.save_model(str(Path(folder) / f"model-{strategy}"))
        evaluations = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
        loaded = Odd()
        tensors, tied = {}, {}
        if world().rank == 0:
            from safetensors.torch import load_file

            tensors = load_file(Path(folder) / f"model-{strategy}" / "model.safetensors")
            tied = {"tied.weight": "embed.weight"}
            backend_of(trainer).weights.load_model(loaded, tensors, tied, "test")
        found[strategy] = {
            "best": trainer.state.best_metric,
            "lowest": min(evaluations),
            "again": trainer.evaluate()["eval_loss"],
            "names": sorted(tensors),
        }
    return found


# -- options


def losses(folder, name, model, data, **given):
    trainer = train(folder, name, model, data, **given)
    return trainer, trainer.seen.losses


@case
def options(folder):
    """Each on its own, with the losses of the same run without sharding beside it."""
    words = tagged(LENGTHS)
    found = {}
    for name, given in {
        "bf16": {"bf16": True},
        "fp16": {"fp16": True, "scale_loss": 2.0**10},
        "overflow": {"fp16": True, "scale_loss": 2.0**40, "max_steps": 4},
        "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    }.items():
        for strategy in ("ddp", "stage2", "stage3"):
            sharding = STRATEGIES[strategy] if world().size > 1 else ""
            torch._dynamo.reset()  # or it would find the graphs of the strategy before
            torch._dynamo.utils.counters.clear()
            trainer, found[f"{name}-{strategy}"] = losses(
                folder, f"{name}-{strategy}", Odd(), words, **{"sharding": sharding, "num_train_epochs": 1} | given
            )
            found[f"{name}-{strategy}-skipped"] = skipped_updates(trainer)
            found[f"{name}-{strategy}-graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return found


@case
def inductor(folder):
    """torch.compile with its real compiler, which builds C++ on a CPU."""
    found = {}
    for strategy, sharding in strategies().items():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        given = {"torch_compile": True, "torch_compile_backend": "inductor", "sharding": sharding, "max_steps": 3}
        _, seen = losses(folder, f"inductor-{strategy}", Odd(), tagged([5] * 24), **given)
        found[strategy] = {"losses": seen, "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}
    return found


@case
def generated(folder):
    """predict_with_generate: texts of different lengths need different numbers of forward passes."""
    import transformers

    from oneloop import Seq2SeqTrainer, Seq2SeqTrainingArguments

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    config = {"vocab_size": 19, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, **sizes}
    data = [{"input_ids": [2 + (i * j) % 17 for j in range(4)], "labels": [3 + i, 4, 1]} for i in range(7)]
    found = {}
    for strategy, sharding in strategies().items():
        torch.manual_seed(5)
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
        options = vars(arguments(folder, "unused", learning_rate=0.5))
        names = ("per_device_train_batch_size", "learning_rate", "lr_scheduler_type", "optim", "save_strategy")
        given = {name: options[name] for name in names} | {"report_to": "none", "disable_tqdm": True, "device": "cpu"}
        given |= {"sharding": sharding, "predict_with_generate": True, "generation_max_length": 9, "max_steps": 2}
        args = Seq2SeqTrainingArguments(f"{folder}/generated-{strategy}", per_device_eval_batch_size=1, **given)
        trainer = Seq2SeqTrainer(model, args, train_dataset=data, eval_dataset=data)
        trainer.train()
        output = trainer.predict(data)
        found[strategy] = {"texts": output.predictions.tolist(), "loss": output.metrics["test_loss"]}
    return found


@case
def units(folder):
    """What is gathered and let go together, by classes, by size and by the model's own blocks."""
    found = {}
    for name, config in {
        "found": {},
        "classes": {"transformer_layer_cls_to_wrap": "Block, Linear"},
        "size": {"min_num_params": 60},
    }.items():
        trainer, _ = losses(folder, f"units-{name}", Odd(), tagged(LENGTHS[:8]), fsdp="full_shard", fsdp_config=config)
        found[name] = [name for name, m in trainer.model.named_modules() if isinstance(m, FSDPModule)]
        found[f"{name}-class"] = strategy_of(trainer).class_of(trainer.model).__name__
    return found


class Watched(Odd):
    """Counts the forward passes of its blocks while gradients are computed, also those that are repeated."""

    def __init__(self):
        super().__init__()
        self.passes = 0
        for block in self.blocks:
            block.inner.register_forward_pre_hook(self.count)

    def count(self, module, given):
        self.passes += torch.is_grad_enabled()


KEYS = {
    "none": {},
    "kept": {"reshard_after_forward": False},
    "resharded": {"reshard_after_forward": True},
    "recomputed": {"activation_checkpointing": True},
    "prefetched": {"forward_prefetch": True, "version": 1, "sync_module_states": False},
    "one_unit": {"auto_wrap_policy": "NO_WRAP"},
    "ignored": {"ignored_modules": r"blocks\.0(\..*)?"},
    "loaded_once": {"cpu_ram_efficient_loading": True},
}


@case
def keys(folder):
    """Keys of fsdp_config, as files of accelerate have them: losses, and what shows that they have an effect."""
    if world().size == 1:
        return {"alone": losses(folder, "keys-alone", Watched(), tagged(LENGTHS), num_train_epochs=1)[1]}
    found = {}
    for name, config in KEYS.items():
        with torch.device("meta" if name == "loaded_once" and world().rank else "cpu"):
            model = Watched()
        given = {"fsdp": "shard_grad_op" if name == "resharded" else "full_shard", "fsdp_config": config}
        trainer, seen = losses(folder, f"keys-{name}", model, tagged(LENGTHS), num_train_epochs=1, **given)
        found[name] = {
            "losses": seen,
            "resharded": strategy_of(trainer).stage3,
            "passes": model.passes,
            "units": [name for name, m in trainer.model.named_modules() if isinstance(m, FSDPModule)],
            "whole": [name for name, p in trainer.model.named_parameters() if not hasattr(p, "full_tensor")],
            "tied": model.tied.weight is model.embed.weight,
            "prefetches": len(model.blocks[0]._get_fsdp_state()._states_to_forward_prefetch)
            if name != "one_unit"
            else 0,
        }
    return found


@case
def given_optimizer(folder):
    """One over the whole model's parameters moves on to the divided ones; stage 1 refuses it."""
    found = {}
    for strategy, sharding in strategies().items():
        model = KIT.classifier()
        args = arguments(folder, f"given-{strategy}", sharding=sharding, num_train_epochs=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = Trainer(model, args, train_dataset=rows(16), optimizers=(optimizer, None))
        try:
            found[strategy] = trainer.train().training_loss
        except UnsupportedError as error:
            found[strategy] = str(error)
    return found


@case
def refused(folder):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(WORDS, CLASSES, sparse=True)

        def forward(self, input_ids, labels=None):
            return {"loss": nn.functional.cross_entropy(self.embed(input_ids).flatten(0, 1), labels.flatten())}

    found = {}
    for name, model, given in (
        ("sparse", Sparse(), {"sharding": "stage3"}),
        ("adafactor", Odd(), {"sharding": "stage2", "optim": "adafactor"}),
        ("classes", Odd(), {"fsdp": "full_shard", "fsdp_transformer_layer_cls_to_wrap": "BertLayer"}),
    ):
        try:
            train(folder, f"refused-{name}", model, tagged(LENGTHS[:8]), **given)
        except OneloopError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


@case
def hybrid(folder):
    """Four processes as two copies of two."""
    found = {}
    for strategy, sharding in strategies().items():
        degree = {"sharding_degree": 2} if sharding else {}
        given = SAVING | {"weight_decay": 0.1, "sharding": sharding} | degree
        whole = course(train(folder, f"saved-{strategy}", Odd(), tagged(LENGTHS), **given))
        resume = str(Path(folder) / f"saved-{strategy}" / "checkpoint-3")
        again = course(train(folder, f"again-{strategy}", Odd(), tagged(LENGTHS), resume=resume, **given))
        weighed = Weighed()
        train(folder, f"held-{strategy}", Even(), rows(16), callbacks=[weighed], **given | {"save_strategy": "no"})
        found[strategy] = {"whole": whole, "again": again, "held": weighed.bytes}
    return found


if __name__ == "__main__":
    main(*sys.argv[1:], cases=CASES)
