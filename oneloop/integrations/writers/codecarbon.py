"""CodeCarbon: the energy used by training, in emissions.csv of the output directory."""

from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerControl, TrainerState
from .base import Writer


class CodeCarbonCallback(Writer):
    """One row per start of the run; all rows of a run have its id as experiment_id."""

    name = "codecarbon"

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        experiment = self.run.get("id") or self.run_id() or args.run_name
        self._tracker = self.package().EmissionsTracker(
            project_name=args.run_name, output_dir=args.output_dir, experiment_id=experiment
        )
        self._tracker.start()
        self.run = {"id": experiment}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Does nothing: logs are not used, and a standalone evaluation is not measured."""

    def write(self, values: dict[str, float], step: int) -> None:
        """Does nothing: CodeCarbon measures by itself."""

    def close(self) -> None:
        self._tracker.stop()
