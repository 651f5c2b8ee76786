"""After a step: log, evaluate, save, and leave train() after a signal."""

import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..arguments.evaluation import higher_is_better
from ..checkpoint import store
from ..distributed.preemption import NOTHING_SAVED
from ..errors import EvaluationInterrupted, MissingMetricError
from ..introspect import accepts, is_overridden
from ..optim.scheduler import steps_by_metric

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger(__name__)


class StepEnd:
    """Carries out what callbacks set in `control`. Created for each run."""

    def __init__(self, run: "Run") -> None:
        self.run, self.core, self.trainer = run, run.core, run.core.trainer
        self.steps_by_metric = False  # the schedule follows evaluations, not updates
        self._ignore_keys: list[str] | None = None
        self._takes_snapshots = False
        self.eval_loaders: dict[str, Any] = {}  # with persistent workers, by the name of the dataset

    def start(self, ignore_keys: list[str] | None) -> None:
        self._ignore_keys = ignore_keys
        self._takes_snapshots = self.trainer.args.snapshot_steps is not None

    def keep_loaders(self, loaders: dict[str, Any]) -> None:
        """A dict in which a subclass keeps its evaluation loaders."""
        self.eval_loaders = loaders

    def release(self, loader: Any) -> None:
        """After an evaluation: stop the workers of its loader, unless it is kept for the next one."""
        loaders = self.core.backend.loaders
        if not any(kept is loader for kept in self.eval_loaders.values()):
            loaders.close(loader)

    def close_loaders(self) -> None:
        """At the end of train(): stop the workers of the evaluation loaders."""
        loaders = self.core.backend.loaders
        for loader in self.eval_loaders.values():
            loaders.close(loader)
        self.eval_loaders.clear()

    def set_scheduler(self, scheduler: Any) -> None:
        self.steps_by_metric = steps_by_metric(scheduler)

    def log_evaluate_save(self) -> None:
        """After a step or an epoch, do what the callbacks requested, or leave train() after a signal.

        The processes first agree on the requests (a collective): logging, evaluating and saving contain collectives, so
        all processes must do the same in the same order.
        """
        run, core = self.run, self.core
        trainer, checkpointer = core.trainer, run.checkpointer
        if not core.mesh.is_single:
            run.sync.sync_after_update()
        if checkpointer.writer.can_end:
            checkpointer.finalize_completed()
        if checkpointer.open_checkpoints:
            checkpointer.notify_saved()
        if run.sync.interrupted:
            self.save_and_exit()
        for check in run.hooks.check_step:
            check(not (trainer.control.should_log or trainer.control.should_evaluate))
        if trainer.control.should_log:
            self._log()
        if trainer.control.should_evaluate:
            try:
                # An evaluation may take hours, so it is abandoned; the resumed run repeats it from the same RNG state.
                with run.seeds.undone_if_interrupted():
                    metrics = self.evaluate()
            except EvaluationInterrupted:
                trainer.control.should_evaluate = True
                self.save_and_exit()
            trainer.control.should_evaluate = False
            self._note_best(metrics)
        if trainer.control.should_save:
            trainer.control.should_save = False
            checkpointer.request()
        elif self._takes_snapshots and checkpointer.snapshots.is_due():
            checkpointer.take_snapshot()
        elif not checkpointer.capture.is_reserved:
            checkpointer.capture.reserve_memory()
        if checkpointer.best.is_new:
            checkpointer.best.end_of_step()
        if core.mesh.is_single and run.sync.interrupted:  # several processes must agree first, after the next step
            self.save_and_exit()

    def exit_if_interrupted(self) -> None:
        """After the last callbacks. Nothing is saved: training is complete, and the model may be the best one."""
        run, processes = self.run, self.core.processes
        signals = run.sync.signals
        assert signals is not None
        received = [each for each in processes.all_gather_object(signals.received) if each is not None]
        if received:
            signals.agree_on(received[0])
            if not run.core.mesh.is_single:
                signals.exit_with_peers()
            signals.exit(self._outcome())

    def save_and_exit(self) -> NoReturn:
        """Save, including what is still pending at this step, and leave train()."""
        run, core = self.run, self.core
        trainer, checkpointer, signals = core.trainer, run.checkpointer, run.sync.signals
        assert signals is not None
        checkpointer.wait()
        target = f"{store.PREFIX}-{trainer.state.global_step}"
        saves = trainer.args.save_strategy != "no" and trainer.state.global_step > 0
        if saves and Path(checkpointer.last_saved or "").name != target:
            control = trainer.control
            # A save that was due at this step is repeated when what is pending has been done.
            control.should_save = control.should_save and (control.should_log or control.should_evaluate)
            checkpointer.request()
            checkpointer.wait()
            trainer.control.should_save = False
        if not core.mesh.is_single:
            # No process may exit before the main process has committed the checkpoint: launchers then kill the others.
            core.processes.barrier()
            signals.exit_with_peers()
        signals.exit(self._outcome())

    def _outcome(self) -> str:
        """What the run has saved of the current step, and how to continue."""
        trainer, saved = self.trainer, self.run.checkpointer.last_saved
        target = f"{store.PREFIX}-{trainer.state.global_step}"
        if trainer.state.global_step == 0:
            return NOTHING_SAVED
        if Path(saved or "").name != target:
            return "This step was not saved: save_strategy is 'no', or see the messages above."
        if trainer.args.save_only_model:
            return f"The model is saved in {saved}; with save_only_model=True there is no state to resume from."
        return f"Checkpoint saved to {saved}; resume with resume_from_checkpoint=True."

    def _log(self) -> None:
        run, core = self.run, self.core
        trainer, meter, engine = core.trainer, run.meter, core.engine
        loss = run.losses.pop_average()  # host sync: reads the losses since the last log
        trainer.control.should_log = False
        if loss is None:
            return
        logs: dict[str, Any] = {"loss": loss}
        norm = engine.grad_norm()
        if norm is not None:
            logs["grad_norm"] = norm
        logs["learning_rate"] = run.update.last_rate
        scale = engine.loss_scale()
        if scale is not None:
            logs["loss_scale"] = scale
        if engine.skipped:
            logs["skipped_steps"] = engine.skipped
        for log in run.hooks.log:
            logs |= log()
        step = trainer.state.global_step
        if is_overridden(trainer, "_maybe_log_save_evaluate"):
            self._log_by_override(loss * (step - meter.logged_step), norm)
            meter.since_log(step)
            return
        seconds, steps = meter.since_log(step)
        # Speeds are not among the logs: histories of two equal runs are equal.
        meter.measure(seconds, steps, steps * run.plan.rows_per_step)
        if trainer.args.log_throughput:
            logs |= meter.throughput()
        if core.behaviour.logs_interval_speeds and meter.figures.get("steps_per_second"):
            logs |= _interval_speeds(meter.figures, step, seconds)
        # Older overrides accept only the logs.
        trainer.log(logs, *([meter.started] if accepts(trainer.log, "start_time") else []))
        meter.clear_figures()

    def _log_by_override(self, total: float, norm: float | None) -> None:
        """A subclass adds its own figures to the logs of a step. Evaluation and saving follow it, without its part."""
        run, core = self.run, self.core
        trainer: Any = core.trainer
        control, trial = trainer.control, core.extensions.trial
        asked = (control.should_evaluate, control.should_save)
        control.should_log, control.should_evaluate, control.should_save = True, False, False
        loss = core.backend.tensors.from_numpy(np.asarray(total, "float32"))
        names = (loss, norm, trainer.model_wrapped, None if trial is None else trial.given, trainer.state.epoch)
        trainer._maybe_log_save_evaluate(*names, self._ignore_keys, run.meter.started, run.update.last_rate)
        for name in ("_globalstep_last_logged", "_total_loss_scalar"):  # it assigns them; the meter has them
            trainer.__dict__.pop(name, None)
        control = trainer.control
        control.should_log = False
        control.should_evaluate, control.should_save = asked

    def evaluate(self) -> dict[str, float]:
        """Evaluate at a step, through the method of the Trainer that may be overridden."""
        core = self.core
        trial = core.extensions.trial
        return core.trainer._evaluate(None if trial is None else trial.given, self._ignore_keys)

    def evaluate_and_report(self, ignore_keys: list[str] | None, skip_scheduler: bool) -> dict[str, float]:
        """Evaluate, and pass the metrics to the schedule and to a hyperparameter search."""
        run, core = self.run, self.core
        trainer = core.trainer
        started = time.perf_counter()
        metrics = trainer.evaluate(ignore_keys=ignore_keys)
        run.meter.exclude_time(time.perf_counter() - started)
        metrics = core.processes.broadcast_object(metrics)  # an override may compute them in the main process only
        if self.steps_by_metric and not skip_scheduler:
            trainer.lr_scheduler.step(self._metric_of(metrics))
        if core.extensions.trial is not None:
            trainer._report_to_hp_search(core.extensions.trial.given, trainer.state.global_step, metrics)
        return metrics

    def _metric_name(self) -> str:
        name = self.trainer.args.metric_for_best_model or "loss"
        return name if name.startswith("eval_") else f"eval_{name}"

    def _metric_of(self, metrics: dict[str, Any]) -> float:
        """The metric by which evaluations are compared."""
        name = self._metric_name()
        if isinstance(metrics.get(name), (int, float)):
            return metrics[name]
        found = f"the evaluation has no {name}"
        if name in metrics:
            found = f"the evaluation's {name} is {metrics[name]!r}, not a number"
        wanted = self.trainer.args.metric_for_best_model
        raise MissingMetricError(
            f"metric_for_best_model={wanted!r}: {found}; it has {', '.join(sorted(metrics))}. "
            "Set metric_for_best_model to one of them, or return it from compute_metrics."
        )

    @property
    def _wants_best(self) -> bool:
        """Whether the best model is saved."""
        args = self.trainer.args
        return args.load_best_model_at_end or args.save_strategy == "best"

    def _note_best(self, metrics: dict[str, float]) -> None:
        """Ask the method of the Trainer that may be overridden; an improvement is saved regardless of save_steps and
        save_strategy."""
        core, best = self.core, self.run.checkpointer.best
        trainer, trial = core.trainer, core.extensions.trial
        before = (trainer.state.best_metric, trainer.state.best_global_step)
        if not trainer._determine_best_metric(metrics=metrics, trial=None if trial is None else trial.given):
            return
        if not best.is_new:  # an override has not called super()
            best.mark_new_best(before)
        if self._wants_best:
            best.ask_for_save(not trainer.control.should_save and trainer.args.save_strategy != "best")
            trainer.control.should_save = True

    def update_best(self, metrics: dict[str, float]) -> bool:
        """Whether this evaluation is the best so far, which is kept in the state."""
        trainer, wanted = self.trainer, self._wants_best
        args, state = trainer.args, trainer.state
        if args.metric_for_best_model is None and not wanted:
            return False
        name = self._metric_name()
        if name not in metrics and not wanted:
            return False
        value, best = self._metric_of(metrics), self.run.checkpointer.best
        if math.isnan(value) and self.run.events.is_first_report("metric is NaN", name):
            logger.warning(
                "%s, the metric of the best model, is NaN at step %d: an evaluation with NaN is never the best. Later "
                "ones are not reported.",
                name,
                state.global_step,
            )
        if wanted and self._improves(value, best.before[0]) and self._is_saving_best:
            # That save may fail: then this evaluation is compared with the previous best.
            self.run.checkpointer.wait(f"{store.PREFIX}-{state.global_step}")
        if not self._improves(value, state.best_metric):
            return False
        best.mark_new_best((state.best_metric, state.best_global_step))
        state.best_metric = value
        state.best_global_step = state.global_step
        return True

    def _improves(self, value: float, best: float | None) -> bool:
        greater = self.trainer.args.greater_is_better
        if greater is None:
            greater = higher_is_better(self._metric_name())
        if best is None or math.isnan(best):  # another trainer may have left a NaN
            return not math.isnan(value)
        return value > best if greater else value < best

    @property
    def _is_saving_best(self) -> bool:
        """Whether the save of the best model is still running."""
        state = self.trainer.state
        step = state.best_global_step
        return step is not None and Path(state.best_model_checkpoint or "").name != f"{store.PREFIX}-{step}"


def _interval_speeds(figures: dict[str, float], step: int, seconds: float) -> dict[str, Any]:
    """Speeds since the last log."""
    speeds = {f"interval_{name}": figures[name] for name in ("samples_per_second", "steps_per_second")}
    return {"global_step": step, "interval_runtime": round(seconds, 4), **speeds}
