"""Old checkpoints are deleted once a newer one is complete."""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import store

if TYPE_CHECKING:
    from ..trainer.run import Run

logger = logging.getLogger(__name__)


def delete_superseded(run: "Run", newest: str, run_id: str, best: str | None, needed: Path | None = None) -> None:
    """Delete checkpoints that are neither among the newest nor the best, nor `needed`, after a newer one is
    complete."""
    directory, limit = run.checkpointer.directory, run.core.trainer.args.save_total_limit
    best = None if best is None else str(directory.resolve(best))
    newest = str(directory.resolve(newest))
    not_deleted = partial(_not_deleted, run)
    try:
        store.forget_superseded(directory.path, run_id, best, not_deleted)
        store.rotate(directory.path, run_id, limit, {newest, best or newest, str(needed or newest)}, not_deleted)
    except OSError as error:
        logger.error("%s is saved, but old checkpoints could not be deleted: %s.", newest, error)


def delete_later(run: "Run", step: int) -> None:
    """Delete the checkpoints that a run has after a step to which it returns."""
    for later in store.find(run.checkpointer.directory.path):
        if later.run_id == run.id and later.step > step:
            try:
                store.delete(later.path)
            except OSError as error:
                _not_deleted(run, later.path, error)


def _not_deleted(run: "Run", path: Path, error: OSError) -> None:
    if run.events.first_time("not deleted", path.name):
        logger.warning(
            "%s could not be deleted, and still takes up space: %s. Remove it by hand, or change its permissions. "
            "New checkpoints are not affected.",
            path,
            error,
        )
