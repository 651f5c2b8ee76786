"""TRL's experimental trainers, on tiny models, for trl_scenarios.py."""

from pathlib import Path
from typing import Any

from tests.ecosystem import tiny
from tests.ecosystem.trl_data import ONLINE, build, by_place, messages, preferences, prompts, rescale_for_world, seeded


def orpo(folder: Path, **given: Any) -> Any:
    return build("ORPO", folder, preferences(), tiny.causal(), {}, {"max_length": 16, **given})


def cpo(folder: Path, **given: Any) -> Any:
    return build("CPO", folder, preferences(), tiny.causal(), {}, {"max_length": 16, **given})


def _distilled(name: str, folder: Path, options: dict[str, Any], as_it_is: bool = False, **given: Any) -> Any:
    trainer = {"teacher_model": tiny.causal(seed=1)}
    made = build(name, folder, messages(), seeded(tiny.causal()), trainer, {**options, **given})
    return made if as_it_is else rescale_for_world(made)


def gkd(folder: Path, **given: Any) -> Any:
    """Off-policy batches and those that the student generates, by turns that are drawn from Python's generator."""
    return _distilled("GKD", folder, {"max_new_tokens": 4}, **given)


def online_dpo(folder: Path, **given: Any) -> Any:
    options = {"max_new_tokens": 4, "per_device_train_batch_size": 2, **given}
    return build("OnlineDPO", folder, prompts(), seeded(tiny.causal()), {"reward_funcs": by_place}, options)


def gmpo(folder: Path, **given: Any) -> Any:
    model = seeded(tiny.causal())
    return build("GMPO", folder, prompts(), model, {"reward_funcs": by_place}, {**ONLINE, **given})


def tpo(folder: Path, **given: Any) -> Any:
    data = preferences()
    data = data.add_column("reference", [" " + tiny.sentence(i + 4, 3) for i in range(len(data))])
    return build("TPO", folder, data, tiny.causal(), {}, given)


def a2po(folder: Path, **given: Any) -> Any:
    """Before training, the frozen copy of the model generates completions of each prompt."""
    options = {"max_completion_length": 6, "num_value_samples": 3, **given}
    return build("A2PO", folder, prompts(), seeded(tiny.causal()), {"reward_funcs": by_place}, options)


def gold(folder: Path, **given: Any) -> Any:
    """Off-policy and on-policy batches by turns."""
    options = {"max_completion_length": 4, "max_length": 32, "use_extended_uld": False}
    return _distilled("GOLD", folder, options, **given)


def iw_opd(folder: Path, **given: Any) -> Any:
    return _distilled("IWOPD", folder, {"max_completion_length": 4, "max_length": 32}, **given)


SELF = {"max_completion_length": 6, "num_generations": 2, "shuffle_dataset": False, "per_device_train_batch_size": 4}


def sdft(folder: Path, **given: Any) -> Any:
    """The teacher is the model of the start, with a hint in its prompt."""
    data = prompts()
    data = data.add_column("privileged_context", [tiny.sentence(i + 4, 2) for i in range(len(data))])
    return build("SDFT", folder, data, seeded(tiny.causal()), {}, {**SELF, "distillation_topk": 5, **given})


def sdpo(folder: Path, **given: Any) -> Any:
    """The teacher is a moving average of the model, with a completion of good reward in its prompt."""
    return build("SDPO", folder, prompts(), seeded(tiny.causal()), {"reward_funcs": by_place}, {**SELF, **given})


EXPERIMENTAL = {
    "orpo": orpo, "cpo": cpo, "gkd": gkd, "online-dpo": online_dpo, "gmpo": gmpo, "tpo": tpo, "a2po": a2po,
    "gold": gold, "iw-opd": iw_opd, "sdft": sdft, "sdpo": sdpo,
}  # fmt: skip
