"""One engine, three spellings: `sharding`, `fsdp` and `sharded_ddp` are translated into each other here."""

from typing import Any

from . import values

STAGES = ("stage1", "stage2", "stage3", "replicate")
EXTRAS = ("hybrid", "offload", "auto_wrap")
FSDP = {
    "full_shard": "stage3",
    "shard_grad_op": "stage2",
    "hybrid_shard": "stage3 hybrid",
    "hybrid_shard_zero2": "stage2 hybrid",
    "no_shard": "replicate",
}
SHARDED_DDP = {"simple": "stage1", "zero_dp_2": "stage2", "zero_dp_3": "stage3"}


def _canonical(name: str, value: Any, words: list[str]) -> str:
    stages = [word for word in STAGES if word in words]
    extras = [word for word in EXTRAS if word in words]
    if len(stages) > 1 or (extras and not stages):
        raise values.wrong(name, value, "exactly one stage of sharding, alone or with offload and auto_wrap")
    return " ".join(stages + extras)


def to_sharding(name: str, value: Any) -> str:
    words = values.to_words(name, value)
    for word in words:
        values.to_member(name, word, STAGES + EXTRAS)
    return _canonical(name, value, words)


def _translate(name: str, value: Any, table: dict[str, str], when_true: str) -> str:
    if value is True or value in ("True", "true"):
        value = when_true
    words: list[str] = []
    for word in values.to_words(name, value or ""):
        allowed = (*table, "offload", "auto_wrap")
        words += table.get(values.to_member(name, word, allowed), word).split()
    return _canonical(name, value, words)


def _back(sharding: str, table: dict[str, str]) -> str:
    words = sharding.split()
    stage = [word for word in words if word in STAGES]
    wanted = " ".join(stage + [word for word in words if word == "hybrid"])
    name = next((key for key, meaning in table.items() if meaning == wanted), None)
    return " ".join([name, *(word for word in words if word in ("offload", "auto_wrap"))]) if name else ""


def from_fsdp(value: Any, current: Any) -> str:
    return _translate("fsdp", value, FSDP, "full_shard")


def as_fsdp(sharding: str) -> str:
    """stage1 has no spelling as FSDP and reads as nothing."""
    return _back(sharding, FSDP)


def from_sharded_ddp(value: Any, current: Any) -> str:
    return _translate("sharded_ddp", value, SHARDED_DDP, "simple")


def as_sharded_ddp(sharding: str) -> str:
    return _back(sharding, SHARDED_DDP)
