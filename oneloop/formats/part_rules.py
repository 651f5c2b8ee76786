"""What parts of a run store in a checkpoint (see trainer/part.py), for readers of a checkpoint that have no run.

Each part declares its own keys and rules; the names here are those of all parts that have been declared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from .schema import Mismatch, Rule, record


@dataclass(frozen=True)
class PartRules:
    """The declaration of one part."""

    name: str  # its tensors are in NAME.safetensors
    title: str  # for messages
    schema: Mapping[str, Rule]  # keys of run.json
    required: tuple[str, ...] = ()  # those that run.json must have
    process_schema: Rule | None = None  # of the state of each process
    expects_tensors: Callable[[Mapping[str, Any]], bool] = lambda stored: False

    @property
    def tensor_file(self) -> str:
        return f"{self.name}.safetensors"

    def stored(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Its keys in run.json."""
        return {key: run[key] for key in self.schema if key in run}

    def lacks_tensors(self, run: Mapping[str, Any]) -> bool:
        """Whether run.json, of a checkpoint without its tensor file, says that there should be one."""
        stored = self.stored(run)
        try:
            record({}, self.schema)(stored, "")
        except Mismatch:  # which is reported where run.json is checked
            return False
        return bool(stored) and self.expects_tensors(stored)


_declared: dict[str, PartRules] = {}


def declare(rules: PartRules, reserved: frozenset[str] = frozenset()) -> None:
    """Have checkpoints checked by these rules. A part may be declared again, by a new version of its class."""
    for key in rules.schema:
        owner = next((each.name for each in _declared.values() if key in each.schema and each.name != rules.name), None)
        if key in reserved or owner is not None:
            raise ArgumentError(
                f"the part {rules.name!r} stores {key!r} in run.json, which is a key of "
                f"{'the run itself' if owner is None else f'the part {owner!r}'}. Choose another key."
            )
    _declared[rules.name] = rules


def declared() -> list[PartRules]:
    """Those of all parts."""
    return list(_declared.values())


def keys() -> list[str]:
    """The keys of run.json that belong to parts."""
    return [key for each in _declared.values() for key in each.schema]


def withdraw(name: str) -> None:
    """Forget the rules of a part."""
    _declared.pop(name, None)
