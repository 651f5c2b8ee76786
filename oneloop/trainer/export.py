"""Export of the model for inference, with a batch of the data as its example."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError, UnsupportedError
from .core import core_of
from .loss import split_labels

if TYPE_CHECKING:
    from .trainer import Trainer


def export_model(trainer: "Trainer", output_dir: Any, input_spec: Any, dataset: Any) -> list[str]:
    """Trainer.export."""
    core = core_of(trainer)
    exporter = getattr(core.backend, "export", None)
    if exporter is None:
        raise UnsupportedError(
            f"export is not supported on {core.backend.NAME} in this release of oneloop. Use save_model() and the "
            "framework's own export."
        )
    checkpointer = core.run.checkpointer
    folder = Path(output_dir or checkpointer.directory.path / "export")
    with checkpointer.model_files.weights_for(None):
        names = exporter.export(trainer.model, folder, _example_batch(trainer, dataset), input_spec)
    return [str(folder / name) for name in names]


def _example_batch(trainer: "Trainer", dataset: Any) -> Any:
    """One batch without its labels, on the device."""
    given = next((each for each in (dataset, trainer.eval_dataset, trainer.train_dataset) if each is not None), None)
    if given is None:
        raise DataError("export needs an example batch: pass dataset=, or a dataset to the Trainer.")
    if isinstance(given, dict) and 0 not in given:  # several evaluation datasets by name
        given = next(iter(given.values()))
    loader = trainer.get_test_dataloader(given)
    inputs = next(iter(loader))
    core_of(trainer).backend.loaders.close(loader)
    inputs, _ = split_labels(trainer._prepare_inputs(inputs), trainer.label_names)
    return inputs
