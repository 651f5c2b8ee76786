"""Runs of TRL's trainers on oneloop: unbroken, and killed at random moments and resumed. Both end with the same bytes.

    python -m tests.ecosystem.trl_kills FOLDER SEED PROCESSES [NAME ...]

The processes of a run are forks of this one, which has imported the libraries. FOLDER/result.json has, for each name,
what both ended with. Nothing here seeds generation: its random numbers are those of the run.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false", CI="1")

from oneloop.compat.redirect import redirect

redirect("transformers")

import peft  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from oneloop import get_last_checkpoint  # noqa: E402
from tests.distributed.launch import free_port  # noqa: E402
from tests.ecosystem import compare, tiny, trl_data  # noqa: E402

STEPS = 9
COMMON = {
    **trl_data.COMMON, "train_sampling_strategy": "random", "max_steps": STEPS, "save_strategy": "steps",
    "save_steps": 1, "logging_steps": 4,
}  # fmt: skip


def dropout() -> Any:
    return peft.LoraConfig(r=2, lora_dropout=0.2, target_modules=["q_proj", "v_proj"])


def teacher() -> Any:
    return tiny.causal(seed=1)


def hinted() -> Any:
    data = trl_data.prompts()
    return data.add_column("privileged_context", [tiny.sentence(i + 4, 2) for i in range(len(data))])


def referenced() -> Any:
    data = trl_data.preferences()
    return data.add_column("reference", [" " + tiny.sentence(i + 4, 3) for i in range(len(data))])


ONLINE = {"reward_funcs": trl_data.by_words}
ROUNDS = trl_data.ROUNDS
DISTILLED = {"max_completion_length": 4, "gradient_accumulation_steps": 2}
MIXED = {**DISTILLED, "max_length": 32, "log_completions": True, "log_completions_steps": 3}
SELF = {
    "max_completion_length": 6, "num_generations": 2, "per_device_train_batch_size": 4, "steps_per_generation": 3,
    "num_iterations": 2,
}  # fmt: skip
# Trainer, data, options of its arguments, and of the Trainer.
RUNS: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "sft": ("SFT", trl_data.texts, {"packing": True, "max_length": 16}, {"peft_config": dropout}),
    "dpo": ("DPO", trl_data.preferences, {"gradient_accumulation_steps": 2}, {}),
    "dpo-lora": ("DPO", trl_data.preferences, {}, {"peft_config": dropout}),
    "dpo-sync": ("DPO", trl_data.preferences, {"sync_ref_model": True, "ref_model_sync_steps": 2}, {}),
    "kto": ("KTO", trl_data.unpaired, {"train_sampling_strategy": "sequential"}, {}),
    "reward": ("Reward", trl_data.preferences, {}, {}),
    "grpo": ("GRPO", trl_data.prompts, {**ROUNDS, "log_completions": True}, ONLINE),
    "grpo-lora": ("GRPO", trl_data.prompts, ROUNDS, {**ONLINE, "peft_config": dropout}),
    "rloo": ("RLOO", trl_data.prompts, ROUNDS, ONLINE),
    "distillation": ("Distillation", trl_data.prompts, DISTILLED, {"teacher_model": teacher}),
    "gold": ("GOLD", trl_data.messages, {**MIXED, "use_extended_uld": False}, {"teacher_model": teacher}),
    "iw-opd": ("IWOPD", trl_data.messages, MIXED, {"teacher_model": teacher}),
    "gkd": ("GKD", trl_data.messages, {"max_new_tokens": 4}, {"teacher_model": teacher}),
    "sdft": ("SDFT", hinted, {**SELF, "distillation_topk": 5, "teacher_model_kind": "ema"}, {}),
    "sdpo": ("SDPO", trl_data.prompts, SELF, {"reward_funcs": trl_data.by_place}),
    "sdpo-lora": ("SDPO", trl_data.prompts, SELF, {"reward_funcs": trl_data.by_place, "peft_config": dropout}),
    "a2po": ("A2PO", trl_data.prompts, {"max_completion_length": 6, "num_value_samples": 3}, ONLINE),
    "online-dpo": ("OnlineDPO", trl_data.prompts, {"max_new_tokens": 4}, ONLINE),
    "orpo": ("ORPO", trl_data.preferences, {"max_length": 16}, {}),
    "cpo": ("CPO", trl_data.preferences, {"max_length": 16}, {"peft_config": dropout}),
    "tpo": ("TPO", referenced, {}, {}),
    "gmpo": ("GMPO", trl_data.prompts, ROUNDS, ONLINE),
}


class Telling(TrainerCallback):
    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            os.write(self.pipe, b".")


def train(name: str, folder: Path, pipe: int) -> None:
    kind, data, options, more = RUNS[name]
    library = trl_data.library(kind)
    args = getattr(library, f"{kind}Config")(output_dir=str(folder), **{**COMMON, **options})
    made = {key: value() if value in (dropout, teacher) else value for key, value in more.items()}
    trainer = getattr(library, f"{kind}Trainer")(
        model=tiny.classifier() if kind == "Reward" else tiny.causal(), args=args, train_dataset=data(),
        processing_class=tiny.tokenizer(), callbacks=[Telling(pipe)], **made,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if folder.is_dir() else None)


def fork(name: str, folder: Path, processes: int) -> tuple[list[int], int]:
    """Train in children: (their ids, the end of a pipe where the main one writes a dot after each update)."""
    reading, writing = os.pipe()
    port = free_port()
    children = []
    for rank in range(processes):
        child = os.fork()
        if not child:
            os.close(reading)
            if processes > 1:
                variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
                os.environ.update({key: str(value) for key, value in variables.items()})
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            run(name, folder, writing)
        children.append(child)
    os.close(writing)
    return children, reading


def run(name: str, folder: Path, pipe: int) -> NoReturn:
    """In a child: train, with all that is printed in FOLDER.txt, and exit."""
    status = 1
    try:
        said = os.open(f"{folder}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        train(name, folder, pipe)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def failed(name: str, folder: Path, statuses: list[int]) -> RuntimeError:
    return RuntimeError(f"{name}: statuses {statuses}\n{Path(f'{folder}.txt').read_text()[-4000:]}")


def finish(name: str, folder: Path, processes: int) -> None:
    children, pipe = fork(name, folder, processes)
    while os.read(pipe, 64):
        pass
    os.close(pipe)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        raise failed(name, folder, statuses)


def kill(name: str, folder: Path, moments: random.Random, processes: int) -> str:
    """SIGKILL some time after some update, one process after the other. Returns where the run stood: its last
    checkpoint, or "ended"."""
    children, pipe = fork(name, folder, processes)
    for _ in range(moments.randint(2, 5)):
        os.read(pipe, 1)
    for child in moments.sample(children, processes):
        time.sleep(moments.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
    os.close(pipe)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if not any(map(os.WIFSIGNALED, statuses)):
        if any(statuses):
            raise failed(name, folder, statuses)
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


def main(folder: str, seed: str, number: str, *names: str) -> None:
    moments, processes = random.Random(int(seed)), int(number)
    found = {}
    for name in names or RUNS:
        unbroken, broken = Path(folder) / name / "unbroken", Path(folder) / name / "broken"
        unbroken.parent.mkdir(parents=True)
        finish(name, unbroken, processes)
        kills = [kill(name, broken, moments, processes) for _ in range(2)]
        finish(name, broken, processes)
        found[name] = {"kills": kills, "unbroken": ended_with(unbroken), "broken": ended_with(broken)}
    (Path(folder) / "result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
