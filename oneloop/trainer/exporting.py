"""The trained model as files that run without its code."""

from pathlib import Path
from typing import Any

from ..errors import DataError, RefusedError
from .loss import split_labels
from .parts import TrainerParts


class TrainerExporting(TrainerParts):
    """export(), which scripts call when args.do_export is set."""

    def export(self, output_dir: Any = None, input_spec: Any = None, dataset: Any = None) -> list[str]:
        """Write the model for inference into output_dir (args.output_dir/export); the names of the files.

        Inputs are read off the first batch of a data set: the one given, the evaluation set or the training set. What
        was written is loaded again and compared with the model on that batch. input_spec, in the framework's own
        words, says otherwise what the exported model takes.
        """
        exporter = getattr(self.backend, "export", None)
        if exporter is None:
            raise RefusedError(
                f"export on {self.backend.NAME} is not part of this release of oneloop yet. Use save_model() and the "
                "framework's own export."
            )
        folder = Path(output_dir or Path(self.args.output_dir) / "export")
        return exporter.export(self.model, folder, self._export_batch(dataset), input_spec)

    def _export_batch(self, dataset: Any) -> Any:
        """One batch without its labels, on the device."""
        given = next((each for each in (dataset, self.eval_dataset, self.train_dataset) if each is not None), None)
        if given is None:
            raise DataError("export needs a batch to look at: pass dataset=, or a Trainer that has data.")
        if isinstance(given, dict) and 0 not in given:  # several evaluation sets by name
            given = next(iter(given.values()))
        loader = self.get_test_dataloader(given)
        inputs = next(iter(loader))
        self.backend.loaders.close(loader)
        inputs, _ = split_labels(self._prepare_inputs(inputs), self.label_names)
        return inputs
