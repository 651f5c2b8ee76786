"""Progress as a bar in a terminal, as a table in a notebook, or as plain lines."""

import sys
from typing import TYPE_CHECKING, Any

from ..state import TrainerControl, TrainerState
from .base import TrainerCallback

if TYPE_CHECKING:
    from ..arguments import TrainingArguments


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


class ProgressCallback(TrainerCallback):
    """tqdm bars for training and evaluation; logs are printed above the bar."""

    def __init__(self, max_str_len: int = 100) -> None:
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.max_str_len = max_str_len
        self._shown = 0

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            from tqdm.auto import tqdm

            total = state.max_steps if state.max_steps > 0 else None
            self.training_bar = tqdm(total=total, initial=state.global_step, dynamic_ncols=True, desc="train")
        self._shown = state.global_step

    def on_step_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.training_bar is not None:
            self.training_bar.update(state.global_step - self._shown)
            self._shown = state.global_step

    def on_prediction_step(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero:
            return
        if self.prediction_bar is None:
            from tqdm.auto import tqdm

            try:
                total = len(eval_dataloader)
            except TypeError:
                total = None
            self.prediction_bar = tqdm(total=total, leave=self.training_bar is None, dynamic_ncols=True, desc="eval")
        self.prediction_bar.update(1)

    def _close_prediction(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
            self.prediction_bar = None

    def on_evaluate(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._close_prediction()

    def on_predict(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self._close_prediction()

    def on_log(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self.training_bar is None or not logs:
            return
        shown = {}
        for key, value in logs.items():
            if key == "total_flos":
                continue
            if isinstance(value, str) and len(value) > self.max_str_len:
                value = f"[string of {len(value)} characters]"
            shown[key] = _short(value)
        self.training_bar.write(str(shown))

    def on_train_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.training_bar is not None:
            self.training_bar.close()
            self.training_bar = None


class PrinterCallback(TrainerCallback):
    """Prints each log as one line."""

    def on_log(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_local_process_zero and logs:
            print({key: _short(value) for key, value in logs.items() if key != "total_flos"}, flush=True)


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel."""
    if "ipykernel" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "ZMQ" in type(shell).__name__


class NotebookProgressCallback(ProgressCallback):
    """A progress bar and a table of losses and metrics, updated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._display: Any = None

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.rows, self._display = [], None

    def on_log(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or not state.is_world_process_zero:
            return
        hidden = ("runtime", "per_second", "total_flos", "grad_norm")
        row = {"step": state.global_step}
        row |= {k: _short(v) for k, v in logs.items() if not k.endswith(hidden) and k not in ("step", "train_loss")}
        if len(row) <= 2:
            return
        if self.rows and self.rows[-1]["step"] == row["step"]:
            self.rows[-1] |= row
        else:
            self.rows.append(row)
        self._draw()

    def html(self) -> str:
        """The table, with one row per log and one column per value."""
        import html

        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(row.get(c, '')))}</td>" for c in columns) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _draw(self) -> None:
        from IPython.display import HTML, display

        if self._display is None:
            self._display = display(HTML(self.html()), display_id=True)
        else:
            self._display.update(HTML(self.html()))
