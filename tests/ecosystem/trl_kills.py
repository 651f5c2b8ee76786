"""Runs of TRL's trainers on oneloop: unbroken, and killed at random moments and resumed. Both end with the same bytes.

    python -m tests.ecosystem.trl_kills FOLDER SEED NAME ...

Each run is a fork of this process, which has imported the libraries. FOLDER/result.json has, for each name, what both
ended with. Nothing here seeds generation: its random numbers are those of the run.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false", CI="1")

from oneloop.compat.redirect import redirect

redirect("transformers")

import peft  # noqa: E402
import trl  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from oneloop import get_last_checkpoint  # noqa: E402
from tests.ecosystem import compare, tiny, trl_scenarios  # noqa: E402

STEPS = 9
COMMON = {
    **trl_scenarios.COMMON, "train_sampling_strategy": "random", "max_steps": STEPS, "save_strategy": "steps",
    "save_steps": 1, "logging_steps": 4,
}  # fmt: skip


def dropout() -> Any:
    return peft.LoraConfig(r=2, lora_dropout=0.2, target_modules=["q_proj", "v_proj"])


ONLINE = {"reward_funcs": trl_scenarios.by_words}
ROUNDS = trl_scenarios.ROUNDS
# Trainer, data, options of its arguments, and of the Trainer.
RUNS: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "sft": ("SFT", trl_scenarios.texts, {"packing": True, "max_length": 16}, {"peft_config": dropout}),
    "dpo": ("DPO", trl_scenarios.preferences, {"gradient_accumulation_steps": 2}, {}),
    "dpo-lora": ("DPO", trl_scenarios.preferences, {}, {"peft_config": dropout}),
    "dpo-sync": ("DPO", trl_scenarios.preferences, {"sync_ref_model": True, "ref_model_sync_steps": 2}, {}),
    "kto": ("KTO", trl_scenarios.unpaired, {"train_sampling_strategy": "sequential"}, {}),
    "grpo": ("GRPO", trl_scenarios.prompts, {**ROUNDS, "log_completions": True}, ONLINE),
    "grpo-lora": ("GRPO", trl_scenarios.prompts, ROUNDS, {**ONLINE, "peft_config": dropout}),
    "rloo": ("RLOO", trl_scenarios.prompts, ROUNDS, ONLINE),
}


class Telling(TrainerCallback):
    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        os.write(self.pipe, b".")


def train(name: str, folder: Path, pipe: int) -> None:
    kind, data, options, more = RUNS[name]
    args = getattr(trl, f"{kind}Config")(output_dir=str(folder), **{**COMMON, **options})
    made = {key: value() if value is dropout else value for key, value in more.items()}
    trainer = getattr(trl, f"{kind}Trainer")(
        model=tiny.causal(), args=args, train_dataset=data(), processing_class=tiny.tokenizer(),
        callbacks=[Telling(pipe)], **made,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if folder.is_dir() else None)


def fork(name: str, folder: Path) -> tuple[int, int]:
    """Train in a child: (its id, the end of a pipe where it says a dot after each update)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.close(reading)
        said = os.open(f"{folder}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        train(name, folder, writing)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finish(name: str, folder: Path) -> None:
    child, pipe = fork(name, folder)
    while os.read(pipe, 64):
        pass
    os.close(pipe)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{name}: status {status}\n{Path(f'{folder}.txt').read_text()[-4000:]}")


def kill(name: str, folder: Path, moments: random.Random) -> str:
    """SIGKILL some time after some update. Returns where the run stood: its last checkpoint, or "ended"."""
    child, pipe = fork(name, folder)
    for _ in range(moments.randint(2, 5)):
        os.read(pipe, 1)
    time.sleep(moments.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.close(pipe)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        if status:
            raise RuntimeError(f"{name}: status {status}\n{Path(f'{folder}.txt').read_text()[-4000:]}")
        return "ended"
    return Path(get_last_checkpoint(str(folder)) or "start").name


def ended_with(folder: Path) -> dict[str, Any]:
    """Hashes of the last checkpoint's tensors, its state without times, and the completions that were logged."""
    last = folder / f"checkpoint-{STEPS}"
    state = json.loads((last / "trainer_state.json").read_text())
    for entry in state["log_history"]:
        for key in [key for key in entry if compare.TIMES.search(key)]:
            del entry[key]
    tensors = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(last.glob("*.safetensors"))}
    return {"tensors": tensors, "state": state, "completions": completions(folder)}


def completions(folder: Path) -> dict[str, Any]:
    import pandas

    return {path.name: pandas.read_parquet(path).to_json() for path in sorted(folder.glob("completions/*.parquet"))}


def main(folder: str, seed: str, *names: str) -> None:
    moments = random.Random(int(seed))
    found = {}
    for name in names or RUNS:
        unbroken, broken = Path(folder) / name / "unbroken", Path(folder) / name / "broken"
        unbroken.parent.mkdir(parents=True)
        finish(name, unbroken)
        kills = [kill(name, broken, moments) for _ in range(2)]
        finish(name, broken)
        found[name] = {"kills": kills, "unbroken": ended_with(unbroken), "broken": ended_with(broken)}
    (Path(folder) / "result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
