"""The best model so far, and what it means for the save of a step."""

from dataclasses import dataclass
from typing import Any


@dataclass
class BestModel:
    """How the evaluation of this step affects saving."""

    is_new: bool = False  # it is better than all previous ones
    asks_for_save: bool = False  # saved only because it is the best: save_steps does not include this step
    before: tuple[Any, Any] = (None, None)  # the previous best metric and its step

    def found(self, before: tuple[Any, Any]) -> None:
        self.is_new, self.before = True, before

    def ask_for_save(self, alone: bool) -> None:
        """`alone`: nothing else asks for a save at this step."""
        self.asks_for_save = alone

    def end_of_step(self) -> None:
        self.is_new = self.asks_for_save = False
