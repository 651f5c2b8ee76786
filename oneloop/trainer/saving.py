"""A checkpoint from the moment it is asked for until it is whole."""

import copy
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..checkpoint import store
from ..checkpoint.contents import Contents, room_for
from .course import STATE
from .model_files import TrainerModelFiles
from .parts import TrainerParts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Save:
    """One save, as it was when it was asked for."""

    target: str
    run_id: str
    reason: str
    state: Any
    best_before: tuple[Any, Any]

    @property
    def step(self) -> int:
        return self.state.global_step

    @property
    def best(self) -> str | None:
        return self.state.best_model_checkpoint


class TrainerSaving(TrainerParts):
    """Checkpoints: when they are whole, and who hears of it."""

    def _save_checkpoint(self, model: Any = None, trial: Any = None, metrics: Any = None) -> None:
        """Everything that a resumed run needs, in output_dir/checkpoint-STEP.

        Training waits only while it is copied; files are written in the background, and on_save follows their commit.
        """
        parent = Path(self.args.output_dir)
        self._end_saves(f"{store.PREFIX}-{self.state.global_step}")
        self.store_flos()
        save = self._new_save(parent)
        shared = self._shared_stage(parent, save.step)
        course = None if self.args.save_only_model else self._course_parts(shared is not None)
        ends = partial(self._after_save, save), partial(self._forget_best, save)
        if shared is None:
            self._save_whole(save, course, ends)
        else:
            self._save_in_parts(shared, save.step, save.state, course, partial(self._commit, save, shared), ends)

    def _new_save(self, parent: Path) -> Save:
        """What is to be said of this moment, whatever the run does while it is being written."""
        target = str(parent / f"{store.PREFIX}-{self.state.global_step}")
        state = copy.copy(self.state)
        if self._new_best:
            state.best_model_checkpoint = target
        state.stateful_callbacks = self._callback_states()
        state.log_history = list(state.log_history)
        reason = "best" if self._save_for_best and not self._is_kept(target) else "save"
        return Save(target, self._run_id, reason, state, self._best_before)

    def _after_save(self, save: Save) -> None:
        """It is whole: callbacks and the hub hear of it."""
        self._last_saved = save.target
        self.state.best_model_checkpoint = save.best
        self.control = self.callback_handler.call_event("on_save", self.args, save.state, self.control)
        self._push_checkpoint(save.state)

    def _forget_best(self, save: Save) -> None:
        """The disk did not take the best model: the one before it is the best that can be loaded."""
        if self.state.best_global_step == save.step:
            self.state.best_metric, self.state.best_global_step = save.best_before

    def _commit(self, save: Save, stage: Path, facts: dict[str, Any]) -> None:
        store.commit(stage, save.step, save.run_id, save.reason, facts)
        self._clear_superseded(save.target, save.run_id, save.best)

    def _save_whole(self, save: Save, course: dict[str, Any] | None, ends: Any) -> None:
        """By the one process that writes; the others bring what they have and hear how it ended."""
        stage = None
        with self._whole_model():
            if not self.args.should_save:
                self._awaited.append(ends)
                self._tell_saved()
                return
            try:
                stage = store.open_stage(Path(save.target).parent, save.step)
                contents = self._contents(stage, save.state, course)
            except BaseException as error:
                if stage is not None:
                    store.discard(stage)
                if not isinstance(error, OSError):
                    raise
                self._saver.refused(error, save.target)
                self._outcomes.append(False)
                self._forget_best(save)
                if self.processes.size > 1:
                    self._tell_saved()
                return

        def job() -> None:
            try:
                room_for(stage, contents.size)
                self._commit(save, stage, contents.write(stage))
            except BaseException:
                store.discard(stage)
                raise

        self._submit(job, ends, save.step)

    def make_room(self) -> None:
        """Memory for the first save's copies, once the optimizer has its state; later saves use it again."""
        self._has_room = True
        args, weights = self.args, self.backend.weights
        if args.save_strategy == "no" or not args.save_async or self.processes.size > 1 or not self._writes_as_built:
            return
        if args.save_strategy == "steps" and 0 < self.state.max_steps < self.state.save_steps:
            return
        model = self.backend.models.unwrap(self.model)
        tensors: dict[str, Any] = {}
        if not self.backend.models.is_adapter(model):
            tensors |= {f"model/{name}": t for name, t in weights.model_tensors(model)[0].items()}
        if not args.save_only_model:
            state, _ = self.strategy.optimizer_state(self.optimizer, self.model)
            tensors |= {f"optimizer/{name}": t for name, t in state.items()}
        self._buffers.prepare({name: weights.room(t) for name, t in tensors.items()}, weights.raw)

    def _submit(self, job: Any, ends: tuple[Any, Any], step: int) -> None:
        """Hand a save to the saver; what comes of it is kept for the other processes."""

        def ended(well: bool) -> None:
            self._outcomes.append(well)
            ends[0 if well else 1]()

        background = self.args.save_async
        self._saver.submit(job, partial(ended, True), partial(ended, False), background, f"{store.PREFIX}-{step}")
        self._tell_saved()

    def _clear_superseded(self, newest: str, run_id: str, best: str | None) -> None:
        """Delete what is neither among the newest nor the best, now that a newer one is whole."""
        parent = Path(self.args.output_dir)
        try:
            store.forget_superseded(parent, run_id, best)
            store.rotate(parent, run_id, self.args.save_total_limit, {newest, best or newest})
        except OSError as error:
            logger.error("%s is saved, but checkpoints that it supersedes are still there: %s.", newest, error)

    def _is_kept(self, target: str) -> bool:
        """Whether save_steps asked for this step too: then it stays, also when it is the best no more."""
        manifest = store.read_manifest(Path(target))
        return manifest is not None and manifest["run_id"] == self._run_id and manifest.get("reason") == "save"

    def _contents(self, stage: Path, state: Any, course: dict[str, Any] | None) -> Contents:
        contents = Contents()
        if self._writes_as_built:
            self._add_model(contents, stage, lambda tensors: self._buffers.copy(tensors, self.backend.weights.copy_to))
        else:
            self._save_quietly(str(stage))  # an override writes what it likes
        if course is not None:
            self._add_course(contents, course)
        contents.texts[STATE] = state.to_json().encode()
        return contents

    @property
    def _writes_as_built(self) -> bool:
        """Whether no override writes the model in a way of its own."""
        own: Any = type(self)
        return own.save_model is TrainerModelFiles.save_model and own._save is TrainerModelFiles._save

    # -- saves under way

    def _tell_saved(self) -> None:
        """on_save for every save that has been committed since the last look, in all processes."""
        self._tell_own()
        outcomes, self._outcomes, self._hears_of_saves = self._outcomes, [], False
        if self.processes.size == 1:
            return
        outcomes = self.processes.broadcast_object(outcomes)
        if not self.args.should_save:
            for well in outcomes:
                then, otherwise = self._awaited.pop(0)
                (then if well else otherwise)()

    def _tell_own(self) -> None:
        """The same in a process that writes, without a word to the others."""
        for then in self._saver.poll():
            then()

    def _end_saves(self, what: str | None = None) -> None:
        """Wait until nothing is being written; errors of the background are raised here."""
        self._saver.wait(what)
        self._tell_saved()
