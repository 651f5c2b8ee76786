"""All argument groups as one dataclass, and the checks across groups."""

import os
from dataclasses import dataclass

from .. import behaviour
from ..errors import ArgumentError
from . import values
from .data import Data
from .evaluation import Evaluation, higher_is_better
from .optimization import Optimization
from .precision import Precision
from .processes import Processes
from .reporting import Logging
from .run import RunArguments
from .saving import Saving

GROUPS = (RunArguments, Data, Optimization, Precision, Evaluation, Logging, Saving, Processes)


# A dataclass lists the fields of its last base first, and output_dir must come first.
@dataclass(repr=False)
class Groups(Processes, Saving, Logging, Evaluation, Precision, Optimization, Data, RunArguments):
    def validate(self) -> None:
        """Convert and check every value; called again by Trainer, since attributes may have been assigned."""
        self.__dict__.setdefault("_defaulted", {})
        self.convert_all()
        for group in GROUPS:
            group.check(self)
        self.check_together()

    def check_together(self) -> None:
        """Defaults and checks that depend on more than one group."""
        self.fill_logging_dir(self.output_dir or "")
        self._resolve_evaluation()
        if self.loss_spike == "rollback" and (self.save_strategy == "no" or self.save_only_model):
            which = "save_strategy is 'no'" if self.save_strategy == "no" else "save_only_model is True"
            raise ArgumentError(
                f"loss_spike='rollback' returns to the last checkpoint of the run, but {which}. Save complete "
                "checkpoints, or use loss_spike='warn'."
            )
        if self.push_to_hub or (self.hub_model_id or "").endswith("/"):
            name = os.path.basename(os.path.abspath(self.output_dir or ""))
            self.fill("hub_model_id", name)
            if self.hub_model_id and self.hub_model_id.endswith("/"):
                self.hub_model_id += name

    def _resolve_evaluation(self) -> None:
        if self.eval_strategy != "no":
            self.do_eval = True
        if self.eval_strategy == "steps":
            self.fill("eval_steps", self.logging_steps)
            if not self.eval_steps:
                raise values.invalid(
                    "logging_steps", 0, "at least 1, since eval_steps defaults to it; or set eval_steps"
                )
        follows = self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
        if follows and self.eval_strategy == "no":
            raise ArgumentError(
                f"lr_scheduler_type='{self.lr_scheduler_type}' needs evaluations, but eval_strategy is 'no'; "
                "set eval_strategy to 'steps' or 'epoch'."
            )
        saves_best = self.save_strategy == "best" and not behaviour.current().best_metric_must_be_named
        if self.load_best_model_at_end or saves_best or follows:
            self.fill("metric_for_best_model", "loss")
        if self.metric_for_best_model is not None:
            self.fill("greater_is_better", higher_is_better(self.metric_for_best_model))
