"""Two processes that divide a model or its sequences: oneloop against hand-written loops of the same kind.

    python benchmarks/layouts.py [--quick] [--rounds 11] [--steps 12] [--only tensor sequence]

tensor: DTensor and parallelize_module. sequence: two all-to-alls around attention (Ulysses), and DDP. The ways take
turns, round by round, in one set of processes; each is compared with the loop of its kind, and the figure is the median
of these ratios. Peak memory is what a step allocates on top of weights and optimizer state, as torch's profiler has it.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import print_table, silence

LAYERS, WIDTH, HEADS, WORDS, TOKENS, ROWS = 4, 256, 8, 2048, 512, 2
KINDS = ("tensor", "sequence")

# -- in every process


def build() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS, "vocab_size": WORDS}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=HEADS, num_key_value_heads=HEADS))
    model.config.use_cache = False
    return model


def data(count: int) -> list[dict[str, Any]]:
    import torch

    ids = torch.randint(0, WORDS, (count, TOKENS), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


class Peak:
    """Bytes that are allocated at most between begin and end, on top of those before."""

    def begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self.profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.profile.__enter__()

    def end(self) -> int:
        self.profile.__exit__(None, None, None)
        events = self.profile.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
        most = now = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most


def hand_loop(model: Any, compute: Callable[[Any], Any], clip: Callable[[], None], steps: int) -> dict[str, float]:
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    loader = DataLoader(data(steps * ROWS), ROWS, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    peak, found = Peak(), 0
    dist.barrier()
    times = []
    for number, batch in enumerate(loader):
        if number == steps - 1:
            peak.begin()
        compute(batch).backward()
        clip()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if number == steps - 1:
            found = peak.end()
        times.append(time.perf_counter())
    return {"rate": (len(times) - 2) / (times[-2] - times[0]), "peak": found}


def tensor_by_hand(steps: int) -> dict[str, float]:
    """Colwise and rowwise layers; norms are whole in both processes, so that their norms are counted once."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = build()
    columns, rows = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
    plan = {f"model.layers.*.{part}.{name}": ColwiseParallel() for part in ("self_attn", "mlp") for name in columns}
    plan |= {f"model.layers.*.{part}.{name}": RowwiseParallel() for part in ("self_attn", "mlp") for name in rows}
    plan["lm_head"] = ColwiseParallel(output_layouts=Replicate(), use_local_output=True)
    names = dict(model.named_modules())
    known = [name for name in plan if name.replace("*", "0") in names]
    parallelize_module(model, init_device_mesh("cpu", (2,)), {name: plan[name] for name in known})

    def clip() -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
        divided = [g.norm() ** 2 for g, whole in zip(local, gradients) if hasattr(whole, "to_local")]
        total = torch.stack(divided).sum()
        torch.distributed.all_reduce(total)
        norm = (total + sum(g.norm() ** 2 for g, whole in zip(local, gradients) if g is whole)).sqrt()
        torch._foreach_mul_(local, torch.clamp(1.0 / (norm + 1e-6), max=1.0))

    return hand_loop(model, lambda batch: model(**batch).loss, clip, steps)


def sequence_by_hand(steps: int) -> dict[str, float]:
    """Each process has half of the tokens; gradients are averaged, so that the loss is that of a half times two."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from transformers import AttentionInterface

    class Swap(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, blocks: Any) -> Any:
            found = torch.empty_like(blocks)
            dist.all_to_all_single(found, blocks)
            return found

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            found = torch.empty_like(gradients[0])
            dist.all_to_all_single(found, gradients[0].contiguous())
            return found

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **options: Any) -> Any:
        rows, heads, part, size = query.shape
        joined = torch.stack([query, key, value]).view(3, rows, 2, heads // 2, part, size)
        query, key, value = Swap.apply(joined.permute(2, 0, 1, 4, 3, 5).contiguous()).unbind(1)
        whole = (each.transpose(0, 1).reshape(rows, 2 * part, heads // 2, size) for each in (query, key, value))
        result = nn.functional.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in whole), is_causal=True, scale=scaling
        )
        blocks = result.transpose(1, 2).reshape(rows, 2, part, heads // 2, size).transpose(0, 1).contiguous()
        return Swap.apply(blocks).permute(1, 2, 0, 3, 4).reshape(rows, part, heads, size), None

    AttentionInterface.register("ulysses_by_hand", attend)
    model = build()
    model.set_attn_implementation("ulysses_by_hand")
    called = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    start = dist.get_rank() * TOKENS // 2
    own, positions = slice(start, start + TOKENS // 2), torch.arange(start, start + TOKENS // 2)[None]

    def compute(batch: Any) -> Any:
        labels = nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:][:, own]
        logits = called(input_ids=batch["input_ids"][:, own], position_ids=positions).logits
        losses = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
        return losses / (ROWS * (TOKENS - 1)) * 2

    return hand_loop(model, compute, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), steps)


def by_oneloop(kind: str, steps: int, folder: str) -> dict[str, float]:
    import oneloop

    peak, found, times = Peak(), {}, []

    class Clock(oneloop.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == steps - 1:
                peak.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == steps:
                found["peak"] = peak.end()
            times.append(time.perf_counter())

    args = oneloop.TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        learning_rate=1e-4,
        optim="adamw_torch",
        weight_decay=0.01,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        device="cpu",
        **{f"{kind}_parallel_size": 2},
    )
    with silence():
        oneloop.Trainer(build(), args, train_dataset=data(steps * ROWS), callbacks=[Clock]).train()
    return {"rate": (len(times) - 2) / (times[-2] - times[0]), **found}


def work(out: Path, rounds: int, steps: int, only: list[str]) -> None:
    """What torchrun starts."""
    import torch

    from oneloop import TrainingArguments

    torch.set_num_threads(1)
    folder = str(out / f"run{os.environ['RANK']}")
    _ = TrainingArguments(folder, device="cpu").processes  # the group, for the hand-written loops too
    by_hand = {"tensor": tensor_by_hand, "sequence": sequence_by_hand}
    ways: dict[str, Callable[[], dict[str, float]]] = {}
    for kind in only:
        ways[f"hand-written {kind}"] = partial(by_hand[kind], steps)
        ways[f"oneloop {kind}"] = partial(by_oneloop, kind, steps, folder)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        order = list(ways.items())
        for name, way in order if turn % 2 else reversed(order):
            measured = way()
            if turn:  # the first round warms up
                found[name].append(measured)
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))


# -- the one that prints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean nothing")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.quick:
        asked.rounds, asked.steps = 1, 4
    if asked.work:
        work(Path(asked.work), asked.rounds, asked.steps, asked.only)
        return
    with tempfile.TemporaryDirectory() as folder:
        every = [json.loads(path.read_text()) for path in launch(asked, Path(folder))]
    rows = []
    for name, measured in every[0].items():
        twin = every[0]["hand-written " + name.split()[1]]
        ratios = sorted(by_hand["rate"] / own["rate"] for by_hand, own in zip(twin, measured))
        middle = f"{ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f}"
        peaks = [statistics.median(each["peak"] for each in rank[name]) / 2**20 for rank in every]
        rate = statistics.median(each["rate"] for each in measured)
        peak = ", ".join(f"{value:.1f}" for value in peaks)
        rows.append([name, f"{rate:.2f}", f"{statistics.median(ratios):.3f}x", middle, peak])
    title = f"Two processes of one thread, a Llama of {LAYERS} layers of {WIDTH}, {ROWS} x {TOKENS} tokens"
    heads = ["way", "updates/s", "step to hand-written", "middle half", "peak of a step, MB (each process)"]
    print_table(title, heads, rows)


def launch(asked: argparse.Namespace, folder: Path) -> list[Path]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    own = ["--work", str(folder), "--rounds", str(asked.rounds), "--steps", str(asked.steps), "--only", *asked.only]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", __file__]
    done = subprocess.run([*command, *own], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return sorted(folder.glob("rank*.json"))


if __name__ == "__main__":
    main()
