"""One shape for all writers: open at the start of training, write scalars, close at its end."""

from typing import Any

from ..callbacks import TrainerCallback
from ..errors import ArgumentError


def tag(name: str) -> str:
    """eval_loss -> eval/loss, test_loss -> test/loss, loss -> train/loss."""
    for split in ("eval", "test"):
        if name.startswith(f"{split}_"):
            return f"{split}/{name[len(split) + 1 :]}"
    return f"train/{name}"


class Writer(TrainerCallback):
    """Subclasses define open, scalar, text and close. Only the main process writes."""

    def __init__(self) -> None:
        self.is_open = False

    def open(self, directory: str, resumed_step: int) -> None:
        raise NotImplementedError

    def scalar(self, name: str, value: float, step: int) -> None:
        raise NotImplementedError

    def text(self, name: str, value: str) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Make what was written visible to readers."""

    def close(self) -> None:
        raise NotImplementedError

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._ensure_open(args, state)
        self.text("run_name", str(args.run_name))
        self.text("args", args.to_json_string())
        config: Any = getattr(model, "config", None)
        if hasattr(config, "to_json_string"):
            self.text("model_config", config.to_json_string())

    def _ensure_open(self, args: Any, state: Any) -> None:
        if not self.is_open:
            try:
                self.open(args.logging_dir, state.global_step)
            except OSError as error:
                raise ArgumentError(
                    f"logging_dir={str(args.logging_dir)!r} cannot be written: {error.strerror or error}. Choose "
                    'another directory, or report_to="none".'
                ) from error
            self.is_open = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        self._ensure_open(args, state)
        for name, value in logs.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self.scalar(tag(name), float(value), state.global_step)
        self.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.is_open:
            self.close()
            self.is_open = False
