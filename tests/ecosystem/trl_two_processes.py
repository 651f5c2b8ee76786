"""TRL's trainers on two processes: the grid of trl_scenarios.py, and what is another there with transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ecosystem import trl_scenarios
from tests.ecosystem.scenario import Scenario
from tests.ecosystem.trl_data import EVALUATED
from tests.ecosystem.trl_experimental import EXPERIMENTAL, gkd, gold, iw_opd
from tests.ecosystem.trl_scenarios import BUILDERS, grpo

VARIANTS = ("plain", "lora", "accumulation", "best", "resume")
_NAMES = [f"{trainer}-{variant}" for trainer in (*BUILDERS, *EXPERIMENTAL) for variant in VARIANTS]
_MORE = ("sft-lora-resume", "dpo-lora-resume", "dpo-sync-ref", "grpo-rounds", "grpo-rounds-resume")
GRID = [each for each in trl_scenarios.SCENARIOS if each.name in (*_NAMES, *_MORE)]

# -- what differs: the losses of evaluations are recorded, of each process


def _with_losses(build: Callable[..., Any]) -> Callable[..., Any]:
    def made(folder: Path, **given: Any) -> Any:
        trainer = build(folder, **given)
        step, trainer.losses = trainer.prediction_step, []

        def prediction_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            found = step(model, inputs, *args, **kwargs)
            is_generated = isinstance(inputs, list)  # of prompts, which have no labels
            trainer.losses.append([float(found[0]), 0 if is_generated else int((inputs["labels"] != -100).sum())])
            return found

        trainer.prediction_step = prediction_step
        return trainer

    return made


def _losses(trainer: Any, folder: Path) -> list[Any]:
    import torch

    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, trainer.losses)
    return found


UNEVEN = {**EVALUATED, "evaluated_on": range(4)}
DIVIDED = [
    Scenario(f"{name}-as-it-is", build, {"as_it_is": True})
    for name, build in (("gkd", gkd), ("gold", gold), ("iw-opd", iw_opd))
]
# The same samples in an update on two processes and on one.
OFF_POLICY = Scenario("gkd-off-policy", gkd, {"as_it_is": True, "lmbda": 0.0})
ALONE = Scenario("gkd-off-policy-alone", gkd, {"as_it_is": True, "lmbda": 0.0, "per_device_train_batch_size": 4})
GENERATED = Scenario("grpo-few-prompts", _with_losses(grpo), UNEVEN, outcome=_losses)
WEIGHTED = Scenario("iw-opd-uneven", _with_losses(iw_opd), UNEVEN, outcome=_losses)
# On oneloop alone: a model that is sharded, so that all processes generate or none.
SHARDED = Scenario("gkd-sharded", gkd, {"fsdp": "full_shard"})

SCENARIOS = [*GRID, *DIVIDED, OFF_POLICY, ALONE, GENERATED, WEIGHTED, SHARDED]
