"""TRL's trainers on tiny models. Samples come in the order of the data, so that both Trainers see the same batches."""

from pathlib import Path
from typing import Any

from tests.ecosystem import tiny
from tests.ecosystem.scenario import Scenario
from tests.ecosystem.trl_data import (
    ACCUMULATED,
    COMMON,
    EVALUATED,
    ONLINE,
    ROUNDS,
    SAVED,
    N,
    build,
    by_place,
    by_words,
    completions,
    messages,
    preferences,
    prompts,
    seeded,
    texts,
    unpaired,
)
from tests.ecosystem.trl_experimental import EXPERIMENTAL, sdft, sdpo
from tests.ecosystem.trl_images import IMAGES


def sft(folder: Path, data: str = "texts", iterable: bool = False, n: int = N, **given: Any) -> Any:
    made: Any = {"texts": texts, "messages": messages, "completions": completions}[data](n)
    return build("SFT", folder, made.to_iterable_dataset() if iterable else made, tiny.causal(), {}, given)


def dpo(folder: Path, **given: Any) -> Any:
    return build("DPO", folder, preferences(), tiny.causal(), {}, given)


def kto(folder: Path, **given: Any) -> Any:
    return build("KTO", folder, unpaired(), tiny.causal(), {}, given)


def reward(folder: Path, **given: Any) -> Any:
    return build("Reward", folder, preferences(), tiny.classifier(), {}, given)


def grpo(folder: Path, **given: Any) -> Any:
    model = seeded(tiny.causal())
    return build("GRPO", folder, prompts(), model, {"reward_funcs": by_place}, {**ONLINE, **given})


def rounds(folder: Path, **given: Any) -> Any:
    """Generation draws from the random numbers of the run, so that this is not compared with transformers."""
    options = {**ROUNDS, "max_steps": 7, "logging_steps": 3, "save_strategy": "steps", "save_steps": 1, **given}
    return build("GRPO", folder, prompts(), tiny.causal(), {"reward_funcs": by_words}, options)


def rloo(folder: Path, **given: Any) -> Any:
    model = seeded(tiny.causal())
    return build("RLOO", folder, prompts(), model, {"reward_funcs": by_place}, {**ONLINE, **given})


def distillation(folder: Path, **given: Any) -> Any:
    trainer = {"teacher_model": tiny.causal(seed=1)}
    options = {"max_completion_length": 6, "shuffle_dataset": False, **given}
    return build("Distillation", folder, prompts(), seeded(tiny.causal()), trainer, options)


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

    trainer = build("DPO", folder, preferences(), tiny.causal(), {}, {**EVALUATED, **given})
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


def _entropy_coefficient(trainer: Any, folder: Path) -> float:
    return round(trainer.entropy_coef, 6)


CALLBACKS = [
    Scenario("callback-rich", rich, dict(EVALUATED), outcome=_of_callback("shown")),
    Scenario("callback-completions", log_completions, outcome=_of_callback("table")),
    Scenario("callback-bema", bema, outcome=_averaged),
    Scenario("callback-bema-reference", bema_reference, outcome=_reference),
    Scenario("dpo-sync-ref", dpo, {"sync_ref_model": True, "ref_model_sync_steps": 2}, outcome=_reference),
]

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lora": {"lora": True},
    "accumulation": ACCUMULATED,
    "best": EVALUATED,
}
BUILDERS = {
    "sft": sft, "dpo": dpo, "kto": kto, "reward": reward, "grpo": grpo, "rloo": rloo, "distillation": distillation
}  # fmt: skip
QUICK = {"sft-plain", "dpo-accumulation", "grpo-accumulation", "reward-best", "kto-plain", "rloo-plain"}

# The coefficient of the entropy in the loss grows by 0.01 in an update of three micro-batches: to 0.03.
ENTROPY = {
    **ACCUMULATED, "max_steps": 3, "use_adaptive_entropy": True, "entropy_coef_delta": 0.01, "entropy_target": 10.0
}  # fmt: skip
RESUMED = {"train_loss": "oneloop: of all steps", "num_tokens": "transformers: since the resume"}
MOVING = "transformers loses the moving average that is the teacher"
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
        for variant, options in VARIANTS.items()
        # A2PO takes no adapter, and Online DPO cannot be evaluated.
        if (name, variant) not in (("a2po", "lora"), ("online-dpo", "best"))
    ),
    *(
        Scenario(f"{name}-resume", build, {**SAVED}, resume=2, explained=RESUMED)
        for name, build in EXPERIMENTAL.items()
        if name != "sdpo"
    ),
    *(
        Scenario(f"{name}-ema-{variant}", build, {"teacher_model_kind": "ema", **options})
        for name, build in (("sdft", sdft), ("sdpo", sdpo))
        for variant, options in (("plain", {}), ("lora", {"lora": True}))
    ),
    # With LoRA, transformers cannot resume it: the adapter of the teacher is loaded, and then added again.
    Scenario("sdpo-resume", sdpo, {**SAVED}, resume=2, differs=MOVING),
    Scenario("sft-messages", sft, {"data": "messages"}),
    Scenario("sft-assistant-only", sft, {"data": "messages", "assistant_only_loss": True}),
    Scenario("sft-completion-only", sft, {"data": "completions", **ACCUMULATED}, quick=True),
    Scenario("sft-whole-completion", sft, {"data": "completions", "completion_only_loss": False}),
    *(
        # By TRL: `packing` and `max_length` of its SFTConfig are not those of TrainingArguments.
        Scenario(
            f"sft-packing-{how}", sft, {"packing": True, "packing_strategy": how, "max_length": 16}, quick=how == "bfd"
        )
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
    Scenario("grpo-entropy", grpo, ENTROPY, outcome=_entropy_coefficient, quick=True),
    Scenario(
        "grpo-entropy-resume", grpo, {**ENTROPY, **SAVED}, resume=2, explained=RESUMED, outcome=_entropy_coefficient
    ),
    Scenario("grpo-rounds", rounds, differs=DRAWN, quick=True),
    Scenario("grpo-rounds-resume", rounds, resume=5, differs=DRAWN, quick=True),
    *CALLBACKS,
    *IMAGES,
]  # fmt: skip
