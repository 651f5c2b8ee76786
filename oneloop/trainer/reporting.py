"""Logs, metrics files and evaluation results."""

import json
import logging
import math
import time
from pathlib import Path
from typing import Any, NoReturn

from .. import randomness
from ..arguments.evaluation import higher_is_better
from ..checkpoint import store
from ..errors import ArgumentError, EvaluationInterrupted
from ..losses import accepts
from .model_files import write_json, writing
from .parts import TrainerParts

logger = logging.getLogger(__name__)


class TrainerReporting(TrainerParts):
    """log, log_metrics, save_metrics and the moment when the loop logs, evaluates and saves."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hand values to the history and to every callback that listens."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
            if self._as_paddlenlp:
                logs["progress_or_epoch"] = round(self.state.epoch, 4)
        if self._counts_tokens != "no":
            self.store_flos()
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                seconds = time.time() - start_time
                logs["train_tokens_per_second"] = round(self.state.num_input_tokens_seen / max(seconds, 1e-9), 3)
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs=logs)

    def log_evaluate_save(self) -> None:
        """Do what the callbacks, or a signal, asked for after a step or an epoch."""
        self.agree()
        if self._saver.has_news if self.team.size == 1 else self._hears_of_saves:
            self._tell_saved()
        if self.interrupted:
            self._leave()
        if self.control.should_log:
            self._log_step()
        if self.control.should_evaluate:
            streams = randomness.get_state(self.backend)
            try:
                metrics = self._evaluate(self._ignore_keys_for_eval)
            except EvaluationInterrupted:
                # Nobody waits hours for an evaluation to end: the resumed run makes it anew, from the same streams.
                randomness.set_state(self.backend, streams)
                self.control.should_evaluate = True
                self._leave()
            self.control.should_evaluate = False
            self._find_best(metrics)
        if self.control.should_save:
            self.control.should_save = False
            self._save_checkpoint(self.model, None)
        elif not self._has_room:
            self.make_room()
        self._save_for_best = self._new_best = False
        if self.team.size == 1 and self.interrupted:  # several processes look again after the next step
            self._leave()

    @property
    def interrupted(self) -> bool:
        """A signal has asked the run to leave."""
        if not self.is_in_train:
            return False
        # Of several processes, none leaves on a signal that the others have not heard of.
        return (self._watch.received if self.team.size == 1 else self._agreed) is not None

    def _leave(self) -> NoReturn:
        """Save, with what is still to be done at this step, and leave train()."""
        self._end_saves()
        target = f"{store.PREFIX}-{self.state.global_step}"
        if self.args.save_strategy != "no" and Path(self._last_saved or "").name != target:
            self.control.should_save = False
            self._save_checkpoint(self.model, None)
            self._end_saves()
        if self.team.size > 1:
            self.team.meet()  # nobody leaves before the main process has committed: launchers end the rest at once
            self._watch.leave_with_others()
        self._watch.leave(self._last_saved if Path(self._last_saved or "").name == target else None)

    def _log_step(self) -> None:
        loss = self.losses.take()
        self.control.should_log = False
        if loss is None:
            return
        logs: dict[str, Any] = {"loss": loss}
        norm = self.engine.grad_norm()
        if norm is not None:
            logs["grad_norm"] = norm
        logs["learning_rate"] = self._rate_used
        scale = self.engine.loss_scale()
        if scale is not None:
            logs["loss_scale"] = scale
        if self.engine.skipped:
            logs["skipped_steps"] = self.engine.skipped
        now, step = time.perf_counter(), self.state.global_step
        seconds, steps = now - self._log_clock[0], step - self._log_clock[1]
        if seconds > 0 and steps > 0:
            logs["steps_per_second"] = round(steps / seconds, 3)
            logs["samples_per_second"] = round(steps * self._plan.rows_per_step / seconds, 3)
            if self._as_paddlenlp:
                logs |= _in_words_of_paddlenlp(logs, step, seconds)
        self._log_clock = (now, step)
        self._figures = self._figures_of_step(seconds)
        # Overrides written for 4.x take the logs alone.
        self.log(logs, *([self._train_started] if accepts(self.log, "start_time") else []))
        self._figures = {}

    def _evaluate(self, ignore_keys: list[str] | None) -> dict[str, float]:
        started = time.perf_counter()
        metrics = self.evaluate(ignore_keys=ignore_keys)
        # Time spent on evaluation is not the training's.
        self._log_clock = (self._log_clock[0] + time.perf_counter() - started, self._log_clock[1])
        metrics = self.team.from_main(metrics)  # an override may compute them in the main process alone
        if self._steps_by_metric:
            self.lr_scheduler.step(self._metric_of(metrics))
        if self._trial is not None:
            self._report_to_hp_search(self._trial.given, self.state.global_step, metrics)
        return metrics

    def _metric_name(self) -> str:
        name = self.args.metric_for_best_model or "loss"
        return name if name.startswith("eval_") else f"eval_{name}"

    def _metric_of(self, metrics: dict[str, Any]) -> float:
        """The number that says how good an evaluation is."""
        name = self._metric_name()
        if isinstance(metrics.get(name), (int, float)):
            return metrics[name]
        found = f"the evaluation has no {name}"
        if name in metrics:
            found = f"the evaluation's {name} is {metrics[name]!r}, not a number"
        raise ArgumentError(
            f"metric_for_best_model={self.args.metric_for_best_model!r}: {found}; it has {', '.join(sorted(metrics))}. "
            "Name one of them, or return it from compute_metrics."
        )

    def _find_best(self, metrics: dict[str, float]) -> None:
        """Keep the best evaluation; one that improves is saved whatever save_steps and save_strategy say."""
        wanted = self.args.load_best_model_at_end or self.args.save_strategy == "best"
        if self.args.metric_for_best_model is None and not wanted:
            return
        name = self._metric_name()
        if name not in metrics and not wanted:
            return
        value = self._metric_of(metrics)
        if wanted and self._improves(value, self._best_before[0]) and self._is_saving_best:
            # The disk may refuse that one: then this evaluation is compared with the best before it.
            self._end_saves(f"{store.PREFIX}-{self.state.global_step}")
        if not self._improves(value, self.state.best_metric):
            return
        self._best_before = (self.state.best_metric, self.state.best_global_step)
        self.state.best_metric = value
        self.state.best_global_step = self.state.global_step
        self._new_best = True
        if wanted:
            self._save_for_best = not self.control.should_save and self.args.save_strategy != "best"
            self.control.should_save = True

    def _improves(self, value: float, best: float | None) -> bool:
        greater = self.args.greater_is_better
        if greater is None:
            greater = higher_is_better(self._metric_name())
        if best is None or math.isnan(best):  # another trainer may have left a NaN
            return not math.isnan(value)
        return value > best if greater else value < best

    @property
    def _is_saving_best(self) -> bool:
        """Whether the save of the best model has not ended yet."""
        step = self.state.best_global_step
        return step is not None and Path(self.state.best_model_checkpoint or "").name != f"{store.PREFIX}-{step}"

    # -- metrics for people

    def metrics_format(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Values as a person reads them: memory in MB, durations as time, operations in GF."""
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
        """Print the metrics of a split as a table."""
        if not self.is_world_process_zero():
            return
        shown = self.metrics_format(metrics)
        width = max(map(len, shown), default=0)
        value_width = max((len(str(value)) for value in shown.values()), default=0)
        print(f"***** {split} metrics *****")
        for key in sorted(shown):
            print(f"  {key:<{width}} = {shown[key]!s:>{value_width}}")

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write SPLIT_results.json, and add the metrics to all_results.json."""
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / f"{split}_results.json", metrics)
            if combined:
                path = folder / "all_results.json"
                before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
                write_json(path, before | metrics)


def _in_words_of_paddlenlp(logs: dict[str, Any], step: int, seconds: float) -> dict[str, Any]:
    """The keys that callbacks and readers of PaddleNLP's logs look for."""
    speeds = {f"interval_{name}": logs[name] for name in ("samples_per_second", "steps_per_second")}
    return {"global_step": step, "interval_runtime": round(seconds, 4), **speeds}
