"""Azure Machine Learning: the run that the job is in."""

from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer


class AzureMLCallback(Writer):
    """Logs metrics to the Azure ML run of this job, or to a run that you pass."""

    name = "azure_ml"

    def __init__(self, azureml_run: Any = None) -> None:
        super().__init__()
        self._given = azureml_run

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        self._run = self._given or self.package("azureml.core.run").Run.get_context()
        self.run = {"id": str(self._run.id)}

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._run.log(name, value, description=name, step=step)

    def flush(self) -> None:
        self._run.flush()

    def close(self) -> None:
        """Does nothing: Azure ends the run with the job."""
