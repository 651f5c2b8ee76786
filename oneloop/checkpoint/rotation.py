"""Old checkpoints are deleted once a newer one is complete."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from . import store

if TYPE_CHECKING:
    from ..trainer.run import Run

logger = logging.getLogger(__name__)


def delete_superseded(run: "Run", newest: str, run_id: str, best: str | None) -> None:
    """Delete checkpoints that are neither among the newest nor the best, after a newer one is complete."""
    directory, limit = run.checkpointer.directory, run.core.trainer.args.save_total_limit
    best = None if best is None else str(directory.resolve(best))
    newest = str(directory.resolve(newest))

    def not_deleted(path: Path, error: OSError) -> None:
        if run.events.first_time("not deleted", path.name):
            logger.warning(
                "%s could not be deleted, and still takes up space: %s. Remove it by hand, or change its permissions. "
                "New checkpoints are not affected.",
                path,
                error,
            )

    try:
        store.forget_superseded(directory.path, run_id, best, not_deleted)
        store.rotate(directory.path, run_id, limit, {newest, best or newest}, not_deleted)
    except OSError as error:
        logger.error("%s is saved, but old checkpoints could not be deleted: %s.", newest, error)
