"""Seeds of loader workers that a run draws from its random streams once, and keeps.

A loader with persistent workers draws their seed when it is first iterated, and never again. For evaluations that is a
draw of the run: a process that resumes it starts new workers, but must not take another number from the streams. So
checkpoints name the loaders that have drawn. The loader of the training data needs no name: its first epoch draws.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import EvaluationInterrupted
from ..formats.schema import listing, text
from .part import Part, RunContext

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

OWN = "/own"


class WorkerSeeds(Part):
    """Loaders of evaluations have the names under which `StepEnd` keeps them. Those of the user
    are named by the prefix of their metrics, followed by OWN: he may keep them, and nobody knows."""

    name = "seeds"
    schema = {"seeded": listing(text())}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._restored: set[str] = set()  # drawn by an earlier process, by loaders that are not iterated here yet
        self._begun: set[str] = set()  # of the user: their loaders drew in this process
        self._kept: set[str] = set()  # of the user: and were iterated again, so they are kept
        self._given_up: list[str] | None = None  # the names from before an evaluation that a signal interrupted

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        self._restored = set(stored.get("seeded", ()))

    def state(self) -> dict[str, Any]:
        return {"seeded": names} if (names := self._names()) else {}

    def _names(self) -> list[str]:
        """The loaders that have drawn."""
        if self._given_up is not None:
            return self._given_up
        has_drawn = self.backend.loaders.has_drawn_seed
        own = {name for name, loader in self.context.eval_loaders.items() if has_drawn(loader)}
        return sorted(self._restored | self._kept | own)

    def before_iterating(self, loader: Any, prefix: str) -> None:
        """Before an evaluation: a loader whose seed an earlier process of the run has drawn does not draw again."""
        loaders = self.backend.loaders
        has_drawn = loaders.has_drawn_seed(loader)
        if has_drawn is None:
            return
        kept = (name for name, each in self.context.eval_loaders.items() if each is loader)
        name = next(kept, None)
        if name is not None:
            if not has_drawn and name in self._restored:
                loaders.seed_without_drawing(loader)
            self._restored.discard(name)
        elif not loaders.is_own(loader):  # one of ours that is not kept draws for each evaluation
            self._before_users(loader, prefix + OWN, has_drawn)

    def _before_users(self, loader: Any, name: str, has_drawn: bool) -> None:
        """A loader of the user, who may keep it or make a new one for each evaluation. Nobody can tell which when it is
        iterated for the first time, so it does not draw from the streams, except where data_order
        reproduces these draws."""
        loaders = self.backend.loaders
        if has_drawn:
            self._kept |= {name} & self._begun
        elif self.context.args.data_order != "transformers":
            loaders.seed_without_drawing(loader)
        elif name in self._restored:
            loaders.seed_without_drawing(loader)
            self._restored.discard(name)
            self._kept.add(name)
        else:
            self._begun.add(name)

    @contextlib.contextmanager
    def undone_if_interrupted(self) -> Iterator[None]:
        """An evaluation that a signal interrupts leaves the random streams, and what it draws from, as if it had not
        begun. The run then ends, with a checkpoint from which it is repeated."""
        epochs, names = self.context.epochs, self._names()
        before = epochs.before_evaluation()
        try:
            yield
        except EvaluationInterrupted:
            epochs.abandon_evaluation(before)
            self._given_up = names
            raise
