"""`oneloop plan` beside what training takes: the predicted peak of memory, and the measured growth of the process.

Every measurement has interpreters of its own, in which a tiny model has trained before, so that all code is loaded.
What counts is how far the peak of the resident memory lies above what was held before the model was made.
"""

import argparse
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

from common import HERE, fresh, growth, print_table, silence

STRATEGIES: dict[str, dict[str, Any]] = {
    "one process": {},
    "DDP": {},
    "stage 1": {"sharding": "stage1"},
    "stage 2": {"sharding": "stage2"},
    "stage 3": {"sharding": "stage3"},
}
TENSOR, SEQUENCE, EXPERT = ({f"{axis}_parallel_size": 2} for axis in ("tensor", "sequence", "expert"))
AXES: dict[str, dict[str, Any]] = {
    "tensor 2": TENSOR,
    "sequence 2": SEQUENCE,
    "expert 2": EXPERT,
    "DDP x tensor 2": TENSOR,
    "stage 3 x tensor 2": TENSOR | {"sharding": "stage3"},
    "stage 3 x sequence 2": SEQUENCE | {"sharding": "stage3"},
    "DDP x expert 2": EXPERT,
}


SIZES = (*TENSOR, *SEQUENCE, *EXPERT)


def processes(strategy: str) -> int:
    return 1 if strategy == "one process" else 4 if " x " in strategy else 2


def models_of(strategy: str, models: list[str]) -> list[str]:
    """Those that can be divided so: GPT-2 has no plan for its layers, and only one has experts."""
    if strategy in STRATEGIES:
        return models
    return [name for name in models if name == ("moe" if "expert" in strategy else "llama")]


# With a fixed threshold, freed tensors go back to the system at once, as they do in a device's allocator.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


class Case:
    """A model, samples for it, and the size of its micro-batch. Tiny ones are to load code with."""

    def __init__(self, name: str, tiny: bool = False) -> None:
        self.name, self.tiny = name, tiny
        self.batch = 2 if tiny else {"mlp": 256, "bert": 4}.get(name, 2)

    def model(self) -> Any:
        return getattr(self, f"_{self.name}")()

    def _mlp(self) -> Any:
        from models import Mlp

        sizes = (16, 32, 8) if self.tiny else (3072, *[3072] * 8, 512)
        return Mlp(lambda: None, sizes)

    def _bert(self) -> Any:
        from transformers import BertConfig, BertForSequenceClassification

        size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        return BertForSequenceClassification(BertConfig(**(size | {"vocab_size": 100} if self.tiny else {})))

    def _gpt(self) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100}
        return GPT2LMHeadModel(GPT2Config(**(size if self.tiny else {})))

    def _llama(self) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        size = {"hidden_size": 640, "intermediate_size": 1720, "num_hidden_layers": 10, "vocab_size": 20_000}
        tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
        return LlamaForCausalLM(LlamaConfig(**(tiny if self.tiny else size), num_attention_heads=4))

    def _moe(self) -> Any:
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        size = {"hidden_size": 512, "num_hidden_layers": 6, "vocab_size": 16_000, "moe_intermediate_size": 512}
        tiny = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "moe_intermediate_size": 16}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8 if self.tiny else 128}
        experts = {"num_experts": 8, "num_experts_per_tok": 2}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(tiny if self.tiny else size), **heads, **experts))

    def samples(self) -> list[dict[str, Any]]:
        import torch

        count = 4 * 2 * self.batch
        if self.name == "mlp":
            return [{"x": torch.randn(16 if self.tiny else 3072), "labels": i % 2} for i in range(count)]
        length, words = (8, 100) if self.tiny else (256, 16_000)
        rows = torch.randint(0, words, (count, length)).tolist()
        if self.name != "bert":
            return [{"input_ids": row, "labels": row} for row in rows]
        return [{"input_ids": row, "attention_mask": [1] * length, "labels": i % 2} for i, row in enumerate(rows)]

    def trainer(
        self, strategy: str, samples: list[dict[str, Any]], folder: str, recompute: bool = False, saves: bool = False
    ) -> Any:
        from oneloop import Trainer, TrainingArguments

        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=self.batch,
            max_steps=4,
            **(STRATEGIES | AXES)[strategy],
            gradient_checkpointing=recompute,
            save_strategy="steps" if saves else "no",
            save_steps=2,
            save_total_limit=1,
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        return Trainer(model=self.model(), args=args, train_dataset=samples)


def measured_run(name: str, strategy: str, recompute: bool, quick: bool, saves: bool = False) -> None:
    """In the new interpreter: trains, and prints the growth of the peak."""

    with tempfile.TemporaryDirectory() as folder, silence():
        small, large = Case(name, tiny=True), Case(name, quick)
        small.trainer(strategy, small.samples(), f"{folder}/small", recompute, saves).train()
        samples = large.samples()
        gc.collect()
        _, peak = growth(lambda: large.trainer(strategy, samples, f"{folder}/large", recompute, saves).train())
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps({"peak": peak}))


def planned_run(name: str, recompute: bool, quick: bool, saves: bool = False) -> None:
    with tempfile.TemporaryDirectory() as folder, silence():
        case = Case(name, quick)
        trainer = case.trainer("one process", case.samples(), folder, recompute, saves)
        plans = {world: trainer.plan(world=world, largest=False) for world in (1, 2)}
        memories = {key: plans[processes(key)].memory(key) for key in STRATEGIES}
        for key in (key for key in AXES if name in models_of(key, [name])):
            trainer.args.__dict__.update({"sharding": ""} | dict.fromkeys(SIZES, 1) | AXES[key])
            memories[key] = trainer.plan(world=processes(key), largest=False).memory(key)
    # On a CPU, what a save in the background writes from is in the memory of the process.
    found = {key: memory.peak + (memory.save_copy if saves else 0) for key, memory in memories.items()}
    print(json.dumps({"peaks": found, "weights": plans[1].model.parameter_bytes}))


def measure(name: str, strategy: str, recompute: bool, quick: bool, allocator: bool = True, saves: bool = False) -> int:
    """The growth of the peak of the main process."""
    code = "import sys, plan; plan.measured_run(*sys.argv[1:3], *(word == '1' for word in sys.argv[3:]))"
    words = [sys.executable, "-c", code, name, strategy, *(str(int(each)) for each in (recompute, quick, saves))]
    world = processes(strategy)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    base = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    base |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | (ALLOCATOR if allocator else {})
    if world > 1:
        base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    running = []
    for rank in range(world):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)} if world > 1 else {}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(words, env=base | ranks, **options))
    outputs = [process.communicate() for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a measurement failed:\n" + "\n".join(errors[-3000:] for _, errors in outputs))
    return json.loads(outputs[0][0].strip().splitlines()[-1])["peak"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run on tiny models, figures mean nothing")
    parser.add_argument("--models", nargs="+", default=["mlp", "bert", "gpt", "llama", "moe"])
    parser.add_argument("--strategies", nargs="+", default=[*STRATEGIES, *AXES], choices=[*STRATEGIES, *AXES])
    parser.add_argument("--recompute", action="store_true", help="with gradient_checkpointing")
    parser.add_argument("--saves", action="store_true", help="with saves in the background")
    parser.add_argument("--default-malloc", action="store_true", help="measure with the allocator's own settings")
    given = parser.parse_args()
    planned = "import sys, plan; plan.planned_run(sys.argv[1], *(word == '1' for word in sys.argv[2:]))"
    rows = []
    for name in given.models:
        flags = [str(int(each)) for each in (given.recompute, given.quick, given.saves)]
        plan = fresh(planned, name, *flags, threads=1)
        for strategy in (each for each in given.strategies if name in models_of(each, [name])):
            peak = measure(name, strategy, given.recompute, given.quick, not given.default_malloc, given.saves)
            expected = plan["peaks"][strategy]
            figures = [f"{plan['weights'] / 2**20:.0f}", f"{expected / 2**20:.0f}", f"{peak / 2**20:.0f}"]
            rows.append([f"{name}, {strategy}", *figures, f"{expected / peak - 1:+.1%}"])
            print(*rows[-1], file=sys.stderr, flush=True)
    print_table("Peak memory, MiB", ["", "weights", "planned", "measured", "difference"], rows)


if __name__ == "__main__":
    main()
