"""Metrics of a finished training or evaluation: as a table on the screen, and as JSON files."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..checkpoint.model_files import write_json, writing
from ..formats.reading import json_object
from ..secrets import clean

if TYPE_CHECKING:
    from .core import Core


def hide_secrets(logs: dict[str, Any]) -> None:
    """Replace the secrets in texts that are logged, before they are in the history and in files."""
    if any(not isinstance(value, (int, float)) for value in logs.values()):
        logs.update(clean(logs))


class MetricsMethods:
    """A part of the Trainer."""

    if TYPE_CHECKING:  # what Trainer has
        is_world_process_zero: Callable[[], bool]
        _oneloop: "Core"

    def metrics_format(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Values in readable form: memory in MB, durations as time, operations in GF."""
        shown: dict[str, Any] = {}
        for key, value in metrics.items():
            if "_mem_" in key:
                shown[key] = f"{value / 2**20:.0f}MB"
            elif key.endswith("_runtime") or key == "runtime":
                minutes, seconds = divmod(float(value), 60)
                hours, minutes = divmod(int(minutes), 60)
                shown[key] = f"{hours}:{minutes:02d}:{seconds:05.2f}"
            elif key == "total_flos":
                shown[key] = f"{value / 1e9:.0f}GF"
            else:
                shown[key] = round(value, 4) if isinstance(value, float) else value
        return shown

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print the metrics of a split as a table.

        Args:
            split: The name of the split: train, eval, test.
            metrics: What train(), evaluate() or predict() returned.
        """
        if not self.is_world_process_zero():
            return
        shown = self.metrics_format(metrics)
        width = max(map(len, shown), default=0)
        value_width = max((len(str(value)) for value in shown.values()), default=0)
        print(f"***** {split} metrics *****")
        for key in sorted(shown):
            print(f"  {key:<{width}} = {shown[key]!s:>{value_width}}")

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write SPLIT_results.json to output_dir, and add the metrics to all_results.json.

        Args:
            split: The name of the split: train, eval, test.
            metrics: What train(), evaluate() or predict() returned.
            combined: Whether to add them to all_results.json.
        """
        if not self.is_world_process_zero():
            return
        run, metrics = self._oneloop.run, clean(metrics)
        folder = run.output_dir
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / f"{split}_results.json", metrics)
            if combined:
                path = folder / "all_results.json"
                write_json(path, json_object(path) | metrics)
        run.directory.upload_files()
