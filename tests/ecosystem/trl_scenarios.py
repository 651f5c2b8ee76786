"""TRL's trainers on tiny models. Samples come in the order of the data, so that both Trainers see the same batches."""

import importlib
import itertools
from pathlib import Path
from typing import Any

from datasets import Dataset

from tests.ecosystem import tiny
from tests.ecosystem.scenario import Scenario

COMMON = {
    "report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
    "train_sampling_strategy": "sequential", "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2,
    "logging_steps": 1, "max_steps": 4, "save_strategy": "no", "learning_rate": 1e-2, "seed": 11,
}  # fmt: skip
EVALUATED = {
    "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True
}  # fmt: skip
SAVED = {"save_strategy": "steps", "save_steps": 2}
ACCUMULATED = {"gradient_accumulation_steps": 3}
N = 16


def texts(n: int = N) -> Dataset:
    return Dataset.from_dict({"text": [tiny.sentence(i, 4 + i % 5) for i in range(n)]})


def _chat(i: int, answers: bool = True) -> list[dict[str, str]]:
    asked = [{"role": "user", "content": tiny.sentence(i, 3)}]
    return [*asked, {"role": "assistant", "content": tiny.sentence(i + 3, 2 + i % 4)}] if answers else asked


def messages(n: int = N) -> Dataset:
    return Dataset.from_dict({"messages": [_chat(i) for i in range(n)]})


def completions(n: int = N) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [tiny.sentence(i, 3) for i in range(n)],
            "completion": [" " + tiny.sentence(i + 5) for i in range(n)],
        }
    )


def preferences(n: int = N) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [tiny.sentence(i, 3) for i in range(n)],
            "chosen": [" " + tiny.sentence(i + 2, 2 + i % 3) for i in range(n)],
            "rejected": [" " + tiny.sentence(i + 9, 2 + i % 2) for i in range(n)],
        }
    )


def unpaired(n: int = N) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [tiny.sentence(i, 3) for i in range(n)],
            "completion": [" " + tiny.sentence(i + 2, 2 + i % 3) for i in range(n)],
            "label": [i % 2 == 0 for i in range(n)],
        }
    )


def prompts(n: int = N) -> Dataset:
    return Dataset.from_dict({"prompt": [tiny.sentence(i, 3) for i in range(n)]})


def by_place(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that depends on the place in the batch."""
    return [float(i % 3) for i in range(len(completions))]


def by_words(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that depends on what was generated."""
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def _build(name: str, folder: Path, data: Dataset, model: Any, trainer: dict[str, Any], given: dict[str, Any]) -> Any:
    # Trainers that are not in the package itself are in a module of their own.
    library = importlib.import_module(f"trl.experimental.{MODULES[name]}" if name in MODULES else "trl")
    lora = given.pop("lora", False)
    evaluated = "eval_strategy" in given
    args = getattr(library, f"{name}Config")(output_dir=str(folder), **{**COMMON, **given})
    extra = {"peft_config": tiny.lora()} if lora else {}
    if evaluated:
        extra["eval_dataset"] = data.select(range(4)) if hasattr(data, "select") else data
    return getattr(library, f"{name}Trainer")(
        model=model, args=args, train_dataset=data, processing_class=tiny.tokenizer(), **trainer, **extra
    )


def sft(folder: Path, data: str = "texts", iterable: bool = False, n: int = N, **given: Any) -> Any:
    made: Any = {"texts": texts, "messages": messages, "completions": completions}[data](n)
    return _build("SFT", folder, made.to_iterable_dataset() if iterable else made, tiny.causal(), {}, given)


def dpo(folder: Path, **given: Any) -> Any:
    return _build("DPO", folder, preferences(), tiny.causal(), {}, given)


def kto(folder: Path, **given: Any) -> Any:
    return _build("KTO", folder, unpaired(), tiny.causal(), {}, given)


def reward(folder: Path, **given: Any) -> Any:
    return _build("Reward", folder, preferences(), tiny.classifier(), {}, given)


ONLINE = {
    "max_completion_length": 6, "num_generations": 2, "shuffle_dataset": False, "beta": 0.1,
    "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
}  # fmt: skip


def seeded(model: Any) -> Any:
    """Generation draws the same numbers in both Trainers, which consume random numbers at different moments."""
    import torch

    generate, calls = model.generate, itertools.count()

    def same(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(next(calls))
        return generate(*args, **kwargs)

    model.generate = same
    return model


def grpo(folder: Path, **given: Any) -> Any:
    model = seeded(tiny.causal())
    return _build("GRPO", folder, prompts(), model, {"reward_funcs": by_place}, {**ONLINE, **given})


# Completions of a round serve four updates: two of two micro-batches each, twice.
ROUNDS = {
    "max_completion_length": 6, "num_generations": 2, "beta": 0.1, "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2,
}  # fmt: skip


def rounds(folder: Path, **given: Any) -> Any:
    """Generation draws from the random numbers of the run, so that this is not compared with transformers."""
    options = {**ROUNDS, "max_steps": 7, "logging_steps": 3, "save_strategy": "steps", "save_steps": 1, **given}
    return _build("GRPO", folder, prompts(), tiny.causal(), {"reward_funcs": by_words}, options)


def rloo(folder: Path, **given: Any) -> Any:
    model = seeded(tiny.causal())
    return _build("RLOO", folder, prompts(), model, {"reward_funcs": by_place}, {**ONLINE, **given})


# -- experimental trainers

MODULES = {"ORPO": "orpo", "CPO": "cpo", "GKD": "gkd", "OnlineDPO": "online_dpo", "GMPO": "gmpo", "TPO": "tpo"}


def orpo(folder: Path, **given: Any) -> Any:
    return _build("ORPO", folder, preferences(), tiny.causal(), {}, {"max_length": 16, **given})


def cpo(folder: Path, **given: Any) -> Any:
    return _build("CPO", folder, preferences(), tiny.causal(), {}, {"max_length": 16, **given})


def gkd(folder: Path, **given: Any) -> Any:
    """Off-policy batches and those that the student generates, by turns that are drawn from Python's generator."""
    trainer = {"teacher_model": tiny.causal(seed=1)}
    return _build("GKD", folder, messages(), seeded(tiny.causal()), trainer, {"max_new_tokens": 4, **given})


def online_dpo(folder: Path, **given: Any) -> Any:
    options = {"max_new_tokens": 4, "per_device_train_batch_size": 2, **given}
    return _build("OnlineDPO", folder, prompts(), seeded(tiny.causal()), {"reward_funcs": by_place}, options)


def gmpo(folder: Path, **given: Any) -> Any:
    model = seeded(tiny.causal())
    return _build("GMPO", folder, prompts(), model, {"reward_funcs": by_place}, {**ONLINE, **given})


def tpo(folder: Path, **given: Any) -> Any:
    data = preferences()
    data = data.add_column("reference", [" " + tiny.sentence(i + 4, 3) for i in range(len(data))])
    return _build("TPO", folder, data, tiny.causal(), {}, given)


# -- callbacks


def rich(folder: Path, **given: Any) -> Any:
    from trl import RichProgressCallback

    class Kept(RichProgressCallback):
        shown: Any = None

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            task = self.training_bar.tasks[0]
            self.shown = [task.completed, task.total, self.training_status.status.title, len(self.evaluation_bar.tasks)]
            super().on_train_end(args, state, control, **kwargs)

    trainer = sft(folder, **given)
    trainer.add_callback(Kept())
    return trainer


def log_completions(folder: Path, **given: Any) -> Any:
    from transformers import GenerationConfig
    from trl import LogCompletionsCallback

    trainer = _build("DPO", folder, preferences(), tiny.causal(), {}, {**EVALUATED, **given})
    greedy = GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=2)
    trainer.add_callback(LogCompletionsCallback(trainer, greedy, num_prompts=3))
    return trainer


def bema(folder: Path, **given: Any) -> Any:
    from trl import BEMACallback

    trainer = sft(folder, **given)
    trainer.add_callback(BEMACallback(update_freq=2))
    return trainer


def bema_reference(folder: Path, **given: Any) -> Any:
    from trl import DPOConfig
    from trl.experimental.bema_for_ref_model import BEMACallback, DPOTrainer

    follows = BEMACallback(update_freq=1, update_ref_model=True, ref_model_update_freq=2)
    args = DPOConfig(output_dir=str(folder), **{**COMMON, **given})
    return DPOTrainer(
        tiny.causal(), args=args, train_dataset=preferences(), processing_class=tiny.tokenizer(), callbacks=[follows]
    )


def _of_callback(name: str) -> Any:
    def outcome(trainer: Any, folder: Path) -> Any:
        return next(
            [list(row) if isinstance(row, tuple) else row for row in getattr(callback, name)]
            for callback in trainer.callback_handler.callbacks
            if hasattr(callback, name)
        )

    return outcome


def _reference(trainer: Any, folder: Path) -> list[float]:
    return [float(p.double().abs().sum()) for p in trainer.ref_model.parameters()]


def _averaged(trainer: Any, folder: Path) -> list[float]:
    from safetensors.numpy import load_file

    return [float(abs(array).sum()) for _, array in sorted(load_file(folder / "bema" / "model.safetensors").items())]


CALLBACKS = [
    Scenario("callback-rich", rich, dict(EVALUATED), outcome=_of_callback("shown")),
    Scenario("callback-completions", log_completions, outcome=_of_callback("table")),
    Scenario("callback-bema", bema, outcome=_averaged),
    Scenario("callback-bema-reference", bema_reference, outcome=_reference),
    Scenario("dpo-sync-ref", dpo, {"sync_ref_model": True, "ref_model_sync_steps": 2}, outcome=_reference),
]

EXPERIMENTAL = {"orpo": orpo, "cpo": cpo, "gkd": gkd, "online-dpo": online_dpo, "gmpo": gmpo, "tpo": tpo}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lora": {"lora": True},
    "accumulation": ACCUMULATED,
    "best": EVALUATED,
}
BUILDERS = {"sft": sft, "dpo": dpo, "kto": kto, "reward": reward, "grpo": grpo, "rloo": rloo}
QUICK = {"sft-plain", "dpo-accumulation", "grpo-accumulation", "reward-best", "kto-plain", "rloo-plain"}

RESUMED = {"train_loss": "oneloop: of all steps", "num_tokens": "transformers: since the resume"}
DRAWN = "generation draws random numbers, at other moments than with transformers"

SCENARIOS = [
    *(
        Scenario(f"{name}-{variant}", build, dict(options), quick=f"{name}-{variant}" in QUICK)
        for name, build in BUILDERS.items()
        for variant, options in VARIANTS.items()
    ),
    *(
        Scenario(f"{name}-resume", build, {**SAVED}, resume=2, explained=RESUMED)
        for name, build in BUILDERS.items()
    ),
    *(
        Scenario(f"{name}-{variant}", build, dict(options))
        for name, build in EXPERIMENTAL.items()
        for variant, options in (("plain", {}), ("accumulation", ACCUMULATED), ("lora", {"lora": True}))
    ),
    Scenario("sft-messages", sft, {"data": "messages"}),
    Scenario("sft-assistant-only", sft, {"data": "messages", "assistant_only_loss": True}),
    Scenario("sft-completion-only", sft, {"data": "completions", **ACCUMULATED}, quick=True),
    Scenario("sft-whole-completion", sft, {"data": "completions", "completion_only_loss": False}),
    *(
        Scenario(f"sft-packing-{how}", sft, {"packing": True, "packing_strategy": how, "max_length": 16})
        for how in ("bfd", "bfd_split", "wrapped")
    ),
    Scenario("sft-padding-free", sft, {"padding_free": True, "max_length": None}),
    Scenario("sft-iterable", sft, {"iterable": True}),
    Scenario(
        "sft-iterable-accumulation", sft, {"iterable": True, **ACCUMULATED},
        differs="transformers adds the rest of an epoch of unknown length to the first update of the next epoch",
    ),
    # An epoch whose last batches do not go around: 13 samples, and on two processes one has none at the end.
    Scenario("sft-uneven", sft, {"n": 13, "max_steps": -1, "num_train_epochs": 2}),
    Scenario(
        "sft-uneven-whole", sft,
        {"n": 13, "max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 4},
    ),
    Scenario("dpo-precomputed", dpo, {"precompute_ref_log_probs": True}),
    Scenario("dpo-half", dpo, {"bf16": True}, tolerance=2e-2),
    *(
        Scenario(f"{name}-lora-resume", build, {**SAVED, "lora": True}, resume=2, explained=RESUMED)
        for name, build in (("sft", sft), ("dpo", dpo))
    ),
    Scenario("grpo-rounds", rounds, differs=DRAWN, quick=True),
    Scenario("grpo-rounds-resume", rounds, resume=5, differs=DRAWN, quick=True),
    *CALLBACKS,
]  # fmt: skip
