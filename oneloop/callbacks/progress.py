"""Progress as a bar in a terminal, as a table in a notebook, or as plain lines."""

import logging
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..state import TrainerControl, TrainerState
from .base import TrainerCallback

if TYPE_CHECKING:
    from ..arguments import TrainingArguments


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _numbers(shown: dict[str, Any], logs: dict[str, Any]) -> dict[str, Any]:
    """Rounded numbers as numbers, unless the behaviour asks for text."""
    if behaviour.current().prints_logs_only:
        return shown
    return {key: float(shown[key]) if isinstance(logs[key], float) else shown[key] for key in shown}


def tell(args: "TrainingArguments", logger: logging.Logger, text: str) -> None:
    """Say something about the run in the main process: as a log, and where nobody sees those, as a line."""
    logger.info("%s", text)
    is_quiet = behaviour.current().prints_logs_only and args.disable_tqdm
    if is_quiet or logger.isEnabledFor(logging.INFO) or not logger.isEnabledFor(logging.WARNING):
        return
    # A notebook shows stderr in a red box.
    print(text, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


class ProgressCallback(TrainerCallback):
    """tqdm bars for training and evaluation, with the loss and the learning rate; metrics are printed above the bar.
    Losses are in the bar, and printed too where the behaviour says so."""

    writes_logs = True

    def __init__(self, max_str_len: int = 100) -> None:
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.max_str_len = max_str_len
        self.current_step = 0

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            from tqdm.auto import tqdm

            if self.training_bar is not None:  # of a run that did not end, or was rolled back
                self.training_bar.close()
            total = state.max_steps if state.max_steps > 0 else None
            self.training_bar = tqdm(total=total, initial=state.global_step, dynamic_ncols=True, desc="train")
        self.current_step = state.global_step

    def on_step_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.training_bar is not None:
            self.training_bar.update(state.global_step - self.current_step)
            self.current_step = state.global_step

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
        if "loss" in logs and not behaviour.current().progress_prints_losses:  # of a step: the bar has it
            parts = {"loss": "loss", "lr": "learning_rate", "grad": "grad_norm"}
            self.training_bar.set_postfix_str(", ".join(f"{k} {shown[v]}" for k, v in parts.items() if v in shown))
            return
        self.training_bar.write(str(_numbers(shown, logs)))

    def on_train_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.training_bar is not None:
            self.training_bar.close()
            self.training_bar = None


class PrinterCallback(TrainerCallback):
    """Prints each log as one line, with the step and the time left."""

    writes_logs = True
    _began: tuple[float, int] | None = None  # when, and at which step

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began = time.monotonic(), state.global_step

    def on_train_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began = None

    def on_log(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_local_process_zero or not logs:
            return
        shown = {key: _short(value) for key, value in logs.items() if key != "total_flos"}
        place = "" if behaviour.current().prints_logs_only else self._place(state)
        print(f"{place}{_numbers(shown, logs)}", flush=True)

    def _place(self, state: TrainerState) -> str:
        """The step, of how many, and the time left."""
        if self._began is None:
            return ""
        began, first = self._began
        if state.max_steps <= 0:
            return f"[step {state.global_step}] "
        done, left = state.global_step - first, state.max_steps - state.global_step
        seconds = round((time.monotonic() - began) / done * left) if done else None
        time_left = "" if seconds is None or left <= 0 else f", {timedelta(seconds=seconds)} left"
        return f"[step {state.global_step}/{state.max_steps}{time_left}] "


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel."""
    if "ipykernel" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "ZMQ" in type(shell).__name__


class NotebookProgressCallback(ProgressCallback):
    """A progress bar and a table of losses and metrics in one display, which is updated in place.

    It is plain HTML: no widgets are needed, and it is still there in an exported notebook.
    """

    EVERY = 0.25  # seconds between two updates of the bar

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._display: Any = None
        self._loss: Any = None  # the last training loss
        self._bars: dict[str, tuple[int, int | None, float, int]] = {}  # (done, of, since when, from where) by name
        self._drawn = 0.0

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.rows, self._display, self._loss, self._bars = [], None, None, {}
        if state.is_world_process_zero:
            total = state.max_steps if state.max_steps > 0 else None
            self._bars["train"] = (state.global_step, total, time.monotonic(), state.global_step)
            self._draw()

    def on_step_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if "train" in self._bars:
            self._advance("train", state.global_step)

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
        if "eval" not in self._bars:
            try:
                total = len(eval_dataloader)
            except TypeError:
                total = None
            self._bars["eval"] = (0, total, time.monotonic(), 0)
        self._advance("eval", self._bars["eval"][0] + 1)

    def _close_prediction(self) -> None:
        if self._bars.pop("eval", None) is not None:
            self._draw()
        if not self._bars:
            self._display = None  # of an evaluation on its own, whose bar is gone

    def on_log(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "train" not in self._bars:
            return
        self._loss = logs.get("loss", self._loss)
        row = {_title(key): _short(value) for key, value in logs.items() if _title(key)}
        if not row:
            return
        row = {"Step": state.global_step, "Training Loss": "" if self._loss is None else _short(self._loss), **row}
        if self.rows and self.rows[-1]["Step"] == row["Step"]:
            self.rows[-1] |= row
        else:
            self.rows.append(row)
        self._draw()

    def on_train_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._bars:
            self._draw()
        self.rows, self._display, self._bars = [], None, {}  # what was drawn stays; an evaluation has its own display

    # -- the display

    def html(self) -> str:
        """The bars, and the table with one row per step."""
        import html

        first = [name for name in ("Step", "Training Loss", "Validation Loss") if any(name in row for row in self.rows)]
        columns = [*first, *dict.fromkeys(key for row in self.rows for key in row if key not in first)]
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(row.get(c, '')))}</td>" for c in columns) + "</tr>"
            for row in self.rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self.rows else ""
        return "".join(_bar(name, *bar) for name, bar in self._bars.items()) + table

    def _advance(self, name: str, done: int) -> None:
        self._bars[name] = (done, *self._bars[name][1:])
        if time.monotonic() - self._drawn >= self.EVERY:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML, display

        self._drawn = time.monotonic()
        if self._display is None:
            self._display = display(HTML(self.html()), display_id=True)
        else:
            self._display.update(HTML(self.html()))


_HIDDEN = ("runtime", "per_second", "total_flos", "grad_norm", "epoch", "learning_rate", "train_loss", "step")


def _title(key: str) -> str:
    """The column of a logged value in a notebook; "" for what is not shown there."""
    if key.endswith(_HIDDEN):
        return ""
    words = key.removeprefix("eval_").removesuffix("_loss" if key != "eval_loss" else "").replace("_", " ").title()
    if key == "loss":
        return "Training Loss"
    if key == "eval_loss":
        return "Validation Loss"
    return f"Validation Loss {words}" if key.startswith("eval_") and key.endswith("_loss") else words


def _bar(name: str, done: int, total: int | None, since: float, first: int) -> str:
    """One line: a bar, what is done of what, the speed and the time left."""
    took = max(time.monotonic() - since, 1e-9)
    speed = (done - first) / took
    text = f"{done}/{total}" if total else str(done)
    if speed:
        text += f" &middot; {speed:.3g} it/s"
        text += f" &middot; {timedelta(seconds=round(took))}"
        text += f" &lt; {timedelta(seconds=round((total - done) / speed))}" if total else ""
    bar = (
        f'<progress value="{done}" max="{total}" style="width:16em; vertical-align:middle"></progress> '
        if total
        else ""
    )
    return f"<div>{name} {bar}{text}</div>"
