"""The writers of report_to, as callbacks of a Trainer."""

from typing import Any

from ...extension import Extension
from . import make_writers
from .base import Writer


class WriterCallbacks(Extension):
    """Creates them, and links each writer with the current run."""

    def callbacks(self) -> list[Any]:
        return make_writers(self.trainer.args.report_to)

    def callbacks_changed(self) -> None:
        """Give the writers access to the id of the run, its directory, and a function that saves the model."""
        core = self.core
        for callback in core.trainer.callback_handler.callbacks:
            if isinstance(callback, Writer):
                callback.link(
                    lambda: core.run.id,
                    lambda folder: core.run.checkpointer.model_files.save_without_side_effects(folder),
                    lambda: core.run.output_dir,
                )
