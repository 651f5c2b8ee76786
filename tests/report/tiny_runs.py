"""Directories as runs leave them, written without training, for the page to read."""

import json
import math
import random

from oneloop.checkpoint import store

BEGIN = 1_790_000_000.0
RUN = "5eed5eed5eed5eed"
ARGUMENTS = {"learning_rate": 3e-4, "warmup_steps": 120, "per_device_train_batch_size": 32, "bf16": True, "seed": 7}
START = {
    "framework": "torch",
    "packages": {"oneloop": "0.1.0", "torch": "2.13.0", "transformers": "5.3.0", "numpy": "1.26.4"},
    "python": "3.11.7",
    "system": "Linux 6.12 x86_64",
    "device": "cuda:0",
    "hardware": "NVIDIA L4, AMD EPYC (16 cores)",
    "processes": 1,
    "model": "BertForSequenceClassification",
    "parameters": 109_483_778,
    "samples": 96_000,
    "samples_per_step": 32,
    "max_steps": 3000,
}


def lines(steps, every=10, evaluations=250, seed=0, rate=3e-4, run=RUN, nan_at=()):
    """What log.jsonl holds of a run of that many steps."""
    draw = random.Random(seed)
    moment = BEGIN
    for step in range(every, steps + 1, every):
        moment += 0.31 * every
        done = step / steps
        loss = 0.18 + 2.3 * math.exp(-9 * done * (1 + 800 * rate)) + 0.25 * draw.random() * (1.1 - done)
        yield {
            "run": run,
            "step": step,
            "time": round(moment, 3),
            "memory_bytes": int(2.1e9 + 2e8 * done),
            "device_memory_bytes": int(6.4e9),
            "device_peak_bytes": int(9.1e9 + 6e8 * min(1, 5 * done)),
            "tokens_per_second": round(13200 + 900 * draw.random(), 1),
            "loss": "nan" if step in nan_at else loss,
            "grad_norm": 0.6 + 2 * math.exp(-6 * done) * draw.random() + 0.3 * draw.random(),
            "learning_rate": rate * min(1, step / 120) * (1 - done),
            "steps_per_second": 3.2,
            "samples_per_second": round(101 + 6 * draw.random(), 2),
            "epoch": round(done, 4),
        }
        if step % evaluations == 0:
            yield {
                "run": run,
                "step": step,
                "time": round(moment + 1, 3),
                "eval_loss": 0.31 + 60 * abs(rate - 3e-4) + 1.7 * math.exp(-7 * done) + 0.02 * draw.random(),
                "eval_accuracy": 0.94 - 40 * abs(rate - 3e-4) - 0.42 * math.exp(-6 * done) - 0.01 * draw.random(),
                "eval_f1": 0.92 - 40 * abs(rate - 3e-4) - 0.45 * math.exp(-6 * done) - 0.01 * draw.random(),
                "eval_runtime": 1.0,
                "epoch": round(done, 4),
            }


def write_lines(path, entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as f:
        f.writelines(json.dumps(entry) + "\n" for entry in entries)


def event(name, step, after, run=RUN, **facts):
    return {"run": run, "time": BEGIN + after, "step": step, "event": name, **facts}


def write_run(folder, steps=3000, run=RUN, arguments=ARGUMENTS, **given):
    """A run that went straight through."""
    write_lines(folder / "log.jsonl", lines(steps, run=run, **given))
    facts = START | {"max_steps": steps, "arguments": arguments}
    write_lines(folder / "run.jsonl", [event("started", 0, -1, run, **facts), event("ended", steps, 0.31 * steps, run)])
    return folder


def checkpoint(folder, step, best=None):
    stage = store.open_stage(folder, step)
    header = json.dumps({"w": {"dtype": "U8", "shape": [1920], "data_offsets": [0, 1920]}}).encode().ljust(72)
    (stage / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1920))
    state = {"log_history": [], "global_step": step, "best_model_checkpoint": best}
    (stage / "trainer_state.json").write_text(json.dumps(state))
    return store.commit(stage, step, RUN, "save", {}).path


def write_eventful_run(folder):
    """A run to which all that the page tells of happened."""
    entries = list(lines(3000, nan_at={820}))
    for entry in entries:  # two pauses
        entry["time"] += 3600 * (entry["step"] > 1240) + 3000 * (entry["step"] > 2000)
    write_lines(folder / "log.jsonl", entries)
    facts = START | {"arguments": ARGUMENTS}
    events = [
        event("started", 0, -1, **facts),
        event("nonfinite", 817, 254, action="skip", samples="[11, 78, 34]"),
        event("save_waited", 1000, 312, what="checkpoint-1000", seconds=0.41),
        event("preempted", 1240, 385, signal="SIGTERM", saved="checkpoint-1240"),
        event("resumed", 1240, 3985, **{"from": "checkpoint-1240"}, **facts),
        event("save_failed", 1500, 4066, what="checkpoint-1500", error="No space left on device"),
        event("resumed", 2000, 7220, **{"from": "checkpoint-2000"}, passed_over=["checkpoint-2250: torn"], **facts),
        event("ended", 3000, 7531),
    ]
    write_lines(folder / "run.jsonl", events)
    for step in (1000, 2000, 2500):
        checkpoint(folder, step)
    checkpoint(folder, 3000, best=str(folder / "checkpoint-2500"))
    (folder / "checkpoint-1000" / "model.safetensors").write_bytes(bytes(7))
    return folder
