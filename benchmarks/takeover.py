"""A checkpoint of 1 GB that another library wrote: bytes read by each process and seconds to the first step, in that
library's own resume and here. The main process here reads each file twice: it compares checksums first.

    bash scripts/takeover --setup && .venv-takeover/bin/python benchmarks/takeover.py [MEGABYTES]

Each case is written once, and resumed in turns by both sides in new processes with the files in the page cache. Time
is from train() to the end of its first update; bytes are those of read calls of the process (/proc/self/io), which
mapped files are not: no side maps these formats.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
# Name, processes, arguments of the run here.
CASES = (
    ("zero3", 2, {"sharding": "stage3"}),
    ("zero3", 1, {}),
    ("lightning", 1, {}),
    ("dcp", 2, {"sharding": "stage3"}),
)
WROTE = {"zero3": 2, "lightning": 1, "dcp": 2}  # processes


def model(megabytes):
    """A Llama whose float32 weights and two moments have about this size."""
    import torch
    import transformers

    torch.manual_seed(0)
    layers = max(1, round(megabytes * 1e6 / 12 / (16 * 512 * 512)))
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": layers, "num_attention_heads": 8}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=512, num_key_value_heads=8, **sizes))


def rows():
    import torch

    ids = torch.randint(0, 512, (64, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


def bytes_read():
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])


class Clock:
    def __init__(self):
        self.time, self.bytes = time.perf_counter(), bytes_read()

    def first_step(self, folder):
        rank = os.environ.get("RANK", "0")
        found = {"seconds": time.perf_counter() - self.time, "bytes": bytes_read() - self.bytes}
        (Path(folder) / f"result-{rank}.json").write_text(json.dumps(found))


def arguments(folder, processes, **given):
    return {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 2 // processes,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 100,
        "learning_rate": 1e-4,
    } | given


def main(action, case, folder, megabytes, more="{}"):
    """One process: `write` or `there` by the library, or `here`."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    given, made = json.loads(more), model(float(megabytes))
    folder = Path(folder)
    globals()[action if action == "here" else f"by_{case}"](action, case, folder, made, processes, given)


def here(action, case, folder, made, processes, given):
    import oneloop

    saved = {"zero3": folder / "out" / "checkpoint-1", "lightning": folder / "saved.ckpt", "dcp": folder / "saved"}
    args = oneloop.TrainingArguments(device="cpu", **arguments(folder / "here", processes, **given))

    class Stop(oneloop.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            clock.first_step(folder)

    trainer = oneloop.Trainer(made, args, train_dataset=rows(), callbacks=[Stop()])
    clock = Clock()
    trainer.train(resume_from_checkpoint=str(saved[case]))


def by_zero3(action, case, folder, made, processes, given):
    import transformers

    from tests.takeover.common import prepare_deepspeed

    prepare_deepspeed()
    config = {"zero_optimization": {"stage": 3}, "zero_force_ds_cpu_optimizer": False, "gradient_clipping": "auto"}
    config |= dict.fromkeys(("train_micro_batch_size_per_gpu", "train_batch_size"), "auto")
    config |= {"zero_allow_untested_optimizer": True, "gradient_accumulation_steps": "auto"}
    given = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1} if action == "write" else {}
    args = transformers.TrainingArguments(
        use_cpu=True, deepspeed=config, **arguments(folder / "out", processes, **given)
    )

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if action == "there":
                clock.first_step(folder)

    trainer = transformers.Trainer(made, args, train_dataset=rows(), callbacks=[Stop()])
    clock = Clock()
    trainer.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-1") if action == "there" else None)


def by_lightning(action, case, folder, made, processes, given):
    import lightning
    import torch

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = made

        def training_step(self, batch, index):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

        def on_train_batch_end(self, *_):
            if action == "there":
                clock.first_step(folder)

    steps = 1 if action == "write" else 2
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_steps=steps, enable_checkpointing=False, **quiet)
    loader = torch.utils.data.DataLoader(rows(), batch_size=2)
    clock = Clock()
    trainer.fit(Lit(), loader, ckpt_path=str(folder / "saved.ckpt") if action == "there" else None)
    if action == "write":
        trainer.save_checkpoint(folder / "saved.ckpt")


def by_dcp(action, case, folder, made, processes, given):
    """A loop with fully_shard, dcp and set_state_dict."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    if processes > 1:
        dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (processes,))
        for layer in made.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(made, mesh=mesh)
    clock = Clock()
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-4)
    if action == "there":
        weights, moments = get_state_dict(made, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=folder / "saved", no_dist=processes == 1)
        set_state_dict(made, optimizer, model_state_dict=weights, optim_state_dict=moments)
    batch = {name: torch.stack([row[name] for row in rows()[: 2 // processes]]) for name in ("input_ids", "labels")}
    made(**batch).loss.backward()
    optimizer.step()
    if action == "there":
        clock.first_step(folder)
    else:
        weights, moments = get_state_dict(made, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / "saved")
    if processes > 1:
        dist.destroy_process_group()


def start(processes, *argv):
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--master-port=29655"]
    # DeepSpeed expects what a launcher sets, also for a single process.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29656"}
    more = alone if processes == 1 and argv[1] == "zero3" and argv[0] != "here" else {}
    more |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    line = [sys.executable, *(launcher if processes > 1 else []), __file__, *map(str, argv)]
    done = subprocess.run(line, env=os.environ | more, capture_output=True, text=True)
    return done.stderr[-3000:] if done.returncode else ""


def measured(folder, processes):
    found = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(processes)]
    for rank in range(processes):
        (folder / f"result-{rank}.json").unlink()
    return max(f["seconds"] for f in found), [f["bytes"] for f in found]


def _cell(found):
    read = [statistics.median(numbers) / 1e6 for numbers in zip(*(of_processes for _, of_processes in found))]
    return f"{' and '.join(f'{megabytes:.0f}' for megabytes in read)} | {statistics.median(s for s, _ in found):.1f}"


def table(megabytes):
    print("| written by | processes there, here | its own resume: MB read by each | s | here: MB read by each | s |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for case, processes, given in CASES:
            folder = Path(place) / case
            if not folder.exists():
                folder.mkdir()
                error = start(WROTE[case], "write", case, folder, megabytes)
                if error:
                    raise SystemExit(error)
            sides = {"there": [], "here": []}
            for _ in range(ROUNDS):
                for action, found in sides.items():
                    error = start(processes, action, case, folder, megabytes, json.dumps(given))
                    if error and (action == "here" or processes == WROTE[case]):
                        raise SystemExit(error)
                    found += [] if error else [measured(folder, processes)]
                    print(error[-300:], file=sys.stderr)
            cells = ["refused |" if not found else _cell(found) for found in sides.values()]
            print(f"| {case} | {WROTE[case]}, {processes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(*sys.argv[1:])
    else:
        table(sys.argv[1] if len(sys.argv) > 1 else "1000")
