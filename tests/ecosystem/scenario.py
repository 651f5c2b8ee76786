"""A scenario: how to build a Trainer of some library, and what is done with it. Played by play.py on both Trainers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """build(folder, **options) returns a Trainer whose output_dir is the folder. With `resume`, it trains, a second
    Trainer of the same arguments goes on from that checkpoint, and the logs are the second one's."""

    name: str
    build: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    resume: int | None = None
    # Log keys and files that only one of the two has, beyond those of compare.py, with the reason.
    explained: dict[str, str] = field(default_factory=dict)
    differs: str = ""  # why numbers differ: then only files are compared
    quick: bool = False  # part of the default suite
    tolerance: float = 1e-5
    outcome: Callable[[Any, Path], Any] | None = (
        None  # of (Trainer, folder): what else is compared, such as a callback's
    )

    def trainer(self, folder: Path) -> Any:
        return self.build(folder, **self.options)


def by_name(scenarios: list[Scenario]) -> dict[str, Scenario]:
    found = {each.name: each for each in scenarios}
    assert len(found) == len(scenarios), "two scenarios have the same name"
    return found
