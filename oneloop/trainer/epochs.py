"""The epochs of a run: an iterator over the micro-batches of each, from any step on, with the right RNG state."""

import hashlib
import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import randomness
from ..checkpoint.run_state import ATTRIBUTES, BUFFER, GENERATOR, RANDOM, DataStates, ResumePoint
from ..data import streams
from ..data.feistel import key_of
from ..data.iterable import has_shuffle_buffer
from ..data.order import BatchSampler
from ..data.process_sharding import source_state
from ..data.transformers_order import Lookahead, ShardedBatches
from ..data.worker_seeding import seed_rngs
from ..errors import CheckpointError
from ..formats.reading import restoring
from ..formats.safetensors_io import read as read_tensors
from ..formats.structure import check_rng_states
from . import dataloaders
from .validation import has_length

if TYPE_CHECKING:
    from .core import Core
    from .run import Run

logger = logging.getLogger(__name__)

# Prefixes of RNG states that are not those at the save.
EPOCH = "epoch/"  # at the start of the epoch
AHEAD = "ahead/"  # before the batch that was waiting was fetched
_BATCHES = -105  # separates the seeds of the batches from all other seeds


def start_batch_streams(core: "Core") -> None:
    """Seed the RNGs differently for every batch of the mesh, or dropout would be the same in all. The first one keeps
    its own."""
    number = core.mesh.batch_index
    alike = core.in_transformers_order or core.trainer.args.world_invariant  # these seed all processes alike
    if number and not alike:
        key = key_of(core.trainer.args.seed, number, core.trainer.state.global_step, _BATCHES)
        of_python = random.getstate()
        seed_rngs(core.backend.NAME, key >> 1)
        if core.extensions.shares_python_random:
            random.setstate(of_python)


def _load_python_of_main(path: Path, prefix: str) -> None:
    stored = read_tensors(path / RANDOM)
    if f"{prefix}python" in stored:
        randomness.set_state_of_python(*(stored[f"{prefix}{name}"].array() for name in ("python", "python.gauss")))


@dataclass(frozen=True)
class RandomSnapshot:
    """The RNG state, the states of the generators that a user's sampler draws from, and those of the dataset and the
    collator, which may draw from their own."""

    streams: dict[str, Any]
    generators: list[Any]
    states: dict[str, Any]


class EpochBatches:
    """The batches of an epoch; knows whether it is over. `after_first` is called after the first batch."""

    def __init__(self, batches: Any, is_over: bool = False, after_first: Callable[[], Any] | None = None) -> None:
        self.is_over = is_over
        self._batches = batches
        self._after_first = after_first

    def __iter__(self) -> "EpochBatches":
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self.is_over = True
            raise
        if self._after_first is not None:
            after_first, self._after_first = self._after_first, None
            after_first()
        return batch


class Epochs:
    """Created for each run. `resume` is consumed by the first epoch that is opened."""

    def __init__(self, run: "Run") -> None:
        self.run, self.core, self.trainer = run, run.core, run.core.trainer
        self.loaders = run.core.backend.loaders
        self.resume = ResumePoint()
        self.streams: dict[str, Any] | None = None  # RNG state at the start of the epoch, for data that is not seekable
        self.generators: list[Any] = []  # states at the start of the epoch of those that a user's sampler draws from
        self.source: EpochBatches | None = None  # the batches of an epoch of data that keeps its own position
        self.ahead: Lookahead | None = None  # data_order="transformers": the batches of the epoch
        self.first_batch: str | None = None  # digest of the state of such data after the first batch of the epoch
        self._state_moves = False  # reading has changed that state

    def start_from(self, resume: ResumePoint) -> None:
        self.resume = resume

    def open(self, epoch: int, done: int) -> Any:
        """An iterator over the micro-batches of an epoch, from the given step on. A resume computes its position;
        only data that is not seekable is read again and discarded, with a warning."""
        core, plan = self.core, self.run.plan
        loader = plan.loader
        self.run.update.forget_past()
        sampler: Any = getattr(loader, "batch_sampler", None)
        if not done:  # what is told the epoch may seed its generator with it
            self._restore_generators(loader)
        self._set_epoch(loader, epoch)
        has_ended = self.resume.data.has_ended
        is_over, is_next = has_ended and done > 0, has_ended and not done
        skip = 0 if is_over else self._position(loader, sampler, done * plan.accumulation)
        if done:
            self._restore_generators(loader, EPOCH)
        self.generators = core.backend.loaders.generator_states(loader)
        if not done:
            self._restore_rng_state()
        elif (skip or not _is_seekable(sampler)) and self.resume.random is not None:
            # The loader draws its order from the RNG state at the start of the epoch.
            self.load_rng_state(self.resume.random, EPOCH)
        # Data that is not seekable must be read again from the start of its epoch.
        self.streams = None if _is_seekable(sampler) else randomness.get_state(core.backend)
        core.backend.loaders.begin_epoch(loader, core.data_seed, epoch)
        batches: Any = iter(()) if is_over else self._batches_of(loader, sampler, epoch)
        if skip:
            self._skip_by_reading(batches, skip)
        if is_next:
            batches = self._restart_if_empty(batches)
        seen = self.resume.data.take_first_batch()
        self.first_batch = seen if done else None
        if self.first_batch is not None and not is_over:
            batches = self._ended_if_restarted(batches, self.first_batch)
        self.source = self._tracked(batches, is_over, is_new=not done)
        batches, self.ahead = batches if self.source is None else self.source, None
        if getattr(loader, "fetches_ahead", False):
            batches = self.ahead = Lookahead(batches, self._states_of_fetch)
            self._refetch_ahead(self.ahead, done)
        if skip or is_over:
            self._restore_generators(loader)
        if not isinstance(sampler, BatchSampler):
            batches = self._until_length(batches, done * plan.accumulation)
        # Within an epoch this must follow iter(): creating the iterator may draw random numbers, which the
        # uninterrupted run drew at the start of the epoch.
        self._restore_rng_state()
        return batches

    def _restart_if_empty(self, batches: Any) -> Any:
        """The state that was loaded at the start of an epoch may be that of the end of the one before: then there is
        no batch, and iterating again starts anew."""
        core, is_empty = self.core, True
        before = randomness.get_state(core.backend)
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            randomness.set_state(core.backend, before)
            yield from dataloaders.local_batches(core, self.run.plan.loader)

    def _tracked(self, batches: Any, is_over: bool, is_new: bool) -> EpochBatches | None:
        """The batches of data that keeps its own position; None for other data."""
        owner = self._owner_of_position()
        if owner is None:
            return None
        is_read_ahead = getattr(self.run.plan.loader, "fetches_ahead", False)
        if not is_new or is_read_ahead or not streams.keeps_state_across_epochs(owner):
            return EpochBatches(batches, is_over)
        return EpochBatches(batches, is_over, partial(self._record_first_batch, _digest(self._loader_state())))

    def _record_first_batch(self, before: str | None) -> None:
        found = _digest(self._loader_state())
        self._state_moves = self._state_moves or found != before
        self.first_batch = found if self._state_moves else None

    def _ended_if_restarted(self, batches: Any, first_batch: str) -> Any:
        """Batches from the position that was loaded. At the end of a pass, data may begin anew when it is iterated:
        then reading leads to the state that followed the first batch of this epoch. It had ended: what was read is
        undone."""
        position, before = self.resume.data.position, self.before_evaluation()
        for batch in batches:
            if _digest(self._loader_state()) == first_batch:
                break
            yield batch
            yield from batches
            return
        else:
            return
        del batches
        self.abandon_evaluation(before)
        self._load_position(position)

    def _set_epoch(self, loader: Any, epoch: int) -> None:
        """Which epoch begins, to all parts of the data that want to know."""
        core = self.core
        sampler, dataset = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
        parts: list[Any] = [sampler, getattr(loader, "sampler", None), dataset, loader]
        if not hasattr(sampler, "set_epoch"):  # not every batch sampler forwards it to its sampler
            parts += [getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None)]
        for part in {id(p): p for p in parts}.values():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        streams.begin_epoch(dataset, epoch)
        if core.in_transformers_order or dataset is None or not core.backend.loaders.is_iterable(dataset):
            return
        core.backend.loaders.reseed_generator(dataset, core.data_seed + epoch)

    def _batches_of(self, loader: Any, sampler: Any, epoch: int) -> Any:
        """Batches from the position on; the order is drawn if it has to be."""
        core = self.core
        # Workers that are kept were seeded in the first epoch; new ones of a resumed run must not change the streams.
        if epoch and core.backend.loaders.has_drawn_seed(loader) is False and not self.resume.is_external:
            core.backend.loaders.seed_without_drawing(loader)
            if not core.backend.loaders.is_own(loader):
                logger.warning(
                    "The training loader is your own and keeps its workers (persistent_workers=True): their random "
                    "numbers continue from epoch to epoch and are not in checkpoints, so this resume draws "
                    "different ones. Set persistent_workers=False, or let the Trainer make the loader."
                )
        batches = dataloaders.local_batches(core, loader)
        if isinstance(sampler, ShardedBatches):
            sampler.begin()
        return batches

    def _position(self, loader: Any, sampler: Any, skip: int) -> int:
        """Seek to the position; returns how many batches remain to be read and discarded."""
        is_next = self.resume.data.has_ended
        stored, owner = self.resume.data.take_position(), self._owner_of_position()
        if isinstance(sampler, BatchSampler):
            sampler.start_at(min(skip, len(sampler)))
            return 0
        if stored is None or owner is None or not (skip or (is_next and streams.keeps_state_across_epochs(owner))):
            return skip
        self._load_position(stored)
        return 0

    def _load_position(self, stored: Any) -> None:
        with restoring("the position in the training data", "the checkpoint"):
            is_divided = self.core.mesh.num_batches > 1
            self._owner_of_position().load_state_dict(stored if is_divided else source_state(stored))

    def _owner_of_position(self) -> Any:
        """The loader or dataset whose state says which samples are next; None if there is none. That of a map-style
        dataset does not, and that of a shuffle buffer is not exact: it has to be filled again from the start."""
        loader = self.run.plan.loader
        dataset = getattr(loader, "dataset", None)
        if isinstance(getattr(loader, "batch_sampler", None), BatchSampler) or has_shuffle_buffer(dataset):
            return None
        is_iterable = dataset is not None and self.loaders.is_iterable(dataset)
        if streams.has_partial_state(loader):
            return None
        owners = [loader, dataset if is_iterable else None]
        return next((owner for owner in owners if callable(getattr(owner, "load_state_dict", None))), None)

    def _length(self) -> int | None:
        """How many batches are taken from the loader in an epoch, by which steps are planned. A user's sampler may
        yield more, if its length is an estimate. None: as many as there are."""
        core, loader = self.core, self.run.plan.loader
        dataset = getattr(loader, "dataset", None)
        if dataset is not None and core.backend.loaders.is_iterable(dataset):
            return None  # its workers may yield more batches, each an incomplete one
        return dataloaders.length_of(core, loader)

    def _until_length(self, batches: Any, done: int) -> Any:
        length = self._length()
        return batches if length is None else islice(batches, max(0, length - done))

    def _skip_by_reading(self, batches: Any, count: int) -> None:
        """Read and discard as many batches as the run had taken; the last update of an epoch may have had fewer. What
        reading changes is as it was at the save then: the streams and generators, which are restored later, and the
        states of the dataset and the collator."""
        length = self._length()
        self._drop(batches, count if length is None else min(count, length))
        self.resume.data.load()

    def _refetch_ahead(self, ahead: Lookahead, done: int) -> None:
        """After a resume within an epoch, fetch what had been fetched at the save, with the RNG state of then."""
        if not done:
            return
        if self.resume.batches_before:
            ahead.fetch(self.resume.batches_before)
        elif self.resume.random is not None and self.load_rng_state(self.resume.random, AHEAD):
            data = self.resume.data
            data.load(is_ahead=True)
            ahead.fetch()
            if any(data.ahead.values()):  # otherwise those at the save are not known
                data.load()

    def _drop(self, batches: Any, count: int) -> None:
        from tqdm.auto import tqdm

        if has_shuffle_buffer(getattr(self.run.plan.loader, "dataset", None)):
            why = "The training data is shuffled through a buffer, which is not in the checkpoint"
        elif streams.has_partial_state(self.run.plan.loader):
            why = "The state of a StatefulDataLoader with workers does not have their random numbers"
        else:
            why = "The training data is not seekable"
        logger.warning(
            "%s: the resumed run reads %d batches again and skips them. "
            "A dataset with __len__ and __getitem__ resumes immediately, and so does one with state_dict and "
            "load_state_dict that is not loaded by workers (dataloader_num_workers=0); ignore_data_skip=True restarts "
            "the epoch.",
            why,
            count,
        )
        for _ in tqdm(range(count), desc="skipping", disable=self.trainer.args.disable_tqdm):
            if next(batches, None) is None:
                return

    # -- RNG state

    def do_pending(self) -> None:
        """Before the next step, do the logging and evaluation that an interruption by a signal had postponed."""
        resume, core = self.resume, self.core
        if not any(resume.pending.values()):
            return
        for name, value in resume.pending.items():
            setattr(core.trainer.control, name, value)
        if self.run.is_over and core.trainer.args.save_strategy != "no":
            # No later step is saved: without this, the last checkpoint would keep what is done now as pending.
            core.trainer.control.should_save = True
        if resume.random is not None:
            self._load_random(resume.random)
        self._restore_generators(self.run.plan.loader)
        resume.begin_pending()
        self.run.step_end.log_evaluate_save()
        after = self.before_evaluation()
        resume.continue_with(after.streams, after.generators, after.states)

    def _restore_rng_state(self) -> None:
        resume = self.resume
        if resume.streams is not None:
            with restoring("the RNG state", "the checkpoint"):
                randomness.set_state(self.core.backend, resume.streams)
        elif resume.random is not None:
            self._load_random(resume.random)
        resume.rng_state_restored()

    def _load_random(self, path: Path) -> None:
        """What random.safetensors has of this process: its own buffers, and the RNG state at the save."""
        core, stored = self.core, self.local_tensors(path)
        for i, buffer in enumerate(core.strategy.local_buffers(core.trainer.model)):
            if (array := stored.get(f"{BUFFER}{i}")) is not None:
                _check_buffer(f"{BUFFER}{i}", array, buffer)
                core.strategy.load_buffer(buffer, array)
        core.trainer._load_rng_state(str(path))

    def _restore_generators(self, loader: Any, prefix: str = "") -> None:
        """Those of a user's sampler, as they were at the save or, with a prefix, at the start of its epoch: they draw
        the order of each epoch anew."""
        core, path = self.core, self.resume.random
        if path is None or self.resume.is_external or not core.backend.loaders.generator_states(loader):
            return
        found = self.resume.generators
        if prefix or found is None:
            found = self._stored_generators(path, prefix)
        with restoring("the state of a sampler's generator", path / RANDOM):
            self.loaders.set_generator_states(loader, found)

    def _generators(self) -> list[Any]:
        """The current states of the generators; none before the loader is made."""
        loaders, plan = self.loaders, getattr(self.run, "plan", None)
        return loaders.generator_states(getattr(plan, "loader", None))

    def _stored_generators(self, path: Path, prefix: str) -> list[Any]:
        """A process that the run did not have takes the states of the main one."""
        name = f"{prefix}{GENERATOR}"
        stored = {key: raw.array() for key, raw in self.resume.read(path).items() if name in key}
        own = f"rank{self.core.mesh.batch_index}/{name}"
        found = [array for key, array in sorted(stored.items()) if key.startswith(own)]
        return found or [array for key, array in sorted(stored.items()) if key.startswith(name)]

    def local_tensors(self, path: Path) -> dict[str, Any]:
        """The tensors of this process in random.safetensors, which has them by batch; none if the run had fewer."""
        number = self.core.mesh.batch_index
        tensors = self.resume.read(path)
        check_rng_states(tensors)
        stored = {name: raw.array() for name, raw in tensors.items()}
        own = f"rank{number}/"
        # With world_invariant all processes have the same.
        is_new = self.trainer.args.world_invariant and not any(name.startswith(own) for name in stored)
        if not number or is_new:
            return {name: array for name, array in stored.items() if not name.startswith("rank")}
        return {name.removeprefix(own): array for name, array in stored.items() if name.startswith(own)}

    def load_rng_state(self, path: Path, prefix: str = "") -> bool:
        """The RNG state at the save or, with a prefix, at another time: at the start of its epoch, or before the batch
        that was waiting was fetched. Returns whether that was stored."""
        core, stored = self.core, self.local_tensors(path)
        if core.mesh.batch_index and not stored:  # the run now has more batches than when it was saved
            start_batch_streams(core)
            if core.extensions.shares_python_random:
                _load_python_of_main(path, prefix)
        not_streams = (BUFFER, ATTRIBUTES, GENERATOR, f"{EPOCH}{GENERATOR}")
        stored = {name: array for name, array in stored.items() if not name.startswith(not_streams)}
        others = tuple(p for p in (EPOCH, AHEAD) if p != prefix)
        states = {name: array for name, array in stored.items() if name.startswith(prefix)}
        states = {name.removeprefix(prefix): array for name, array in states.items() if not name.startswith(others)}
        if self.resume.crosses_from:
            states = {name: array for name, array in states.items() if randomness.is_common(name)}
        if states:
            randomness.check_state(core.backend, states, f"{path / RANDOM}", bool(self.resume.crosses_from))
            with restoring("the RNG state", path / RANDOM):
                randomness.set_state(core.backend, states)
        return bool(states)

    def finish(self) -> None:
        """After the last step. A resumed run that had no step left ends with the RNG state of its checkpoint too."""
        if self.resume.is_waiting:
            self._restore_rng_state()

    def close(self) -> None:
        """At the end of train(): stop the workers of the training loader, if it was made."""
        if hasattr(self.run, "plan"):
            self.loaders.close(self.run.plan.loader)

    def before_evaluation(self) -> "RandomSnapshot":
        """What an evaluation may draw from, to be put back if a signal interrupts it."""
        trainer = self.trainer
        states = {"collator": own_state(trainer.data_collator), "dataset": self._indexed_data_state()}
        return RandomSnapshot(randomness.get_state(self.core.backend), self._generators(), states)

    def abandon_evaluation(self, before: "RandomSnapshot") -> None:
        """The checkpoint that follows is as if it had not begun."""
        trainer, backend = self.trainer, self.core.backend
        randomness.set_state(backend, before.streams)
        if before.generators:
            backend.loaders.set_generator_states(self.run.plan.loader, before.generators)
        DataStates(
            owners={"collator": trainer.data_collator, "dataset": trainer.train_dataset}, own=before.states
        ).load()

    # -- what a checkpoint stores

    def random_state(self) -> dict[str, Any]:
        """The RNG state of this process, now and at the start of the epoch, and its own buffers."""
        core = self.core
        if self.resume.is_waiting:
            streams = self._unopened()
        else:
            streams = randomness.get_state(core.backend)
            streams |= {f"{EPOCH}{name}": array for name, array in (self.streams or {}).items()}
            now = core.backend.loaders.generator_states(self.run.plan.loader)
            for prefix, states in (("", now), (EPOCH, self.generators)):
                streams |= {f"{prefix}{GENERATOR}{i}": state for i, state in enumerate(states)}
            if self.ahead is not None and self.ahead.before is not None:
                taken, _ = self.ahead.before
                streams |= {f"{AHEAD}{name}": array for name, array in randomness.as_arrays(taken).items()}
        for i, buffer in enumerate(core.strategy.local_buffers(core.trainer.model)):
            streams[f"{BUFFER}{i}"] = core.backend.tensors.to_numpy(buffer)
        return streams

    def _unopened(self) -> dict[str, Any]:
        """The same before the resumed run has opened its epoch, such as after a pending evaluation. Loader and streams
        do not have the state of the epoch yet, so it is that of the checkpoint."""
        core, resume = self.core, self.resume
        assert resume.random is not None
        now = randomness.get_state(core.backend)
        stored = self.local_tensors(resume.random)
        kept = {name: array for name, array in stored.items() if name.startswith((EPOCH, AHEAD))}
        kept = {name: array for name, array in kept.items() if not name.startswith(f"{EPOCH}{GENERATOR}")}
        if resume.crosses_from:  # what the framework of then drew from means nothing here
            of_epoch = {prefix for prefix in (EPOCH, AHEAD) if any(name.startswith(prefix) for name in kept)}
            kept = {name: array for name, array in kept.items() if randomness.is_common(name.partition("/")[2])}
            kept = {f"{prefix}{name}": array for prefix in of_epoch for name, array in now.items()} | kept
        for prefix in ("", EPOCH):
            is_live = resume.is_restored and not prefix
            states = self._generators() if is_live else self._stored_generators(resume.random, prefix)
            kept |= {f"{prefix}{GENERATOR}{i}": state for i, state in enumerate(states)}
        if not resume.is_restored:
            now |= {name: array for name, array in stored.items() if name in now}
        return now | kept

    def data_states(self) -> dict[str, Any]:
        """The state_dict of the loader, the collator and the dataset as plain JSON; None for those without one. A batch
        that is waiting will be fetched again, for which there are the states of before."""
        now = self._current_data_states()
        if self.resume.is_waiting:
            data = self.resume.data
            return now | {
                "ahead": data.ahead or None,
                "exhausted": data.exhausted,
                "first_batch": data.first_batch,
            }
        if self.ahead is None or self.ahead.before is None:
            # Data that keeps its own position may have no batch left: its state may be that of a new start then.
            if self.resume.data.is_waiting:
                is_over = self.resume.data.exhausted
            else:
                has_ended = getattr(self.run.plan.loader, "ended", False)
                is_over = self.source is not None and (self.source.is_over or has_ended or self._is_read_to_its_length)
            return now | {"exhausted": is_over and now["data"] is not None, "first_batch": self.first_batch}
        before = dict(self.ahead.before[1])
        now["data"] = before.pop("data")
        return now | {"ahead": before if any(before.values()) else None}

    @property
    def _is_read_to_its_length(self) -> bool:
        """Whether as many samples were taken in the epoch as a stream with a length says that it has."""
        plan, core, dataset = self.run.plan, self.core, self.trainer.train_dataset
        if self.trainer.args.packing or not core.backend.loaders.is_own(plan.loader):
            return False
        if core.mesh.num_batches > 1 or not streams.keeps_state_across_epochs(self._owner_of_position()):
            return False
        return has_length(dataset) and self.run.position.step_in_epoch * plan.samples_per_step >= len(dataset)

    def _states_of_fetch(self) -> tuple[Any, dict[str, Any]]:
        """What the fetch of a batch may change."""
        return randomness.read_raw_state(self.core.backend), self._current_data_states()

    def _current_data_states(self) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "data": self._loader_state(),
            "collator": own_state(trainer.data_collator),
            "dataset": self._indexed_data_state(),
        }

    def _indexed_data_state(self) -> Any:
        """A map-style dataset needs no position, but may draw random numbers from its own RNG."""
        core = self.core
        trainer = core.trainer
        if trainer.args.dataloader_num_workers or core.backend.loaders.is_iterable(trainer.train_dataset):
            return None
        return own_state(trainer.train_dataset)

    def _counted_state(self, loader: Any) -> Any:
        """The state of a stream that is computed from the number of samples, also where workers read it."""
        core, plan = self.core, self.run.plan
        batches, size = self.run.position.step_in_epoch * plan.accumulation, self.run.batch_size
        workers = core.trainer.args.dataloader_num_workers
        return streams.counted_state(loader.dataset, batches * size, size, workers, core.mesh.num_batches)

    def _loader_state(self) -> Any:
        """The state of data that tracks its own position; None for other data."""
        loader = self.run.plan.loader
        if isinstance(getattr(loader, "batch_sampler", None), BatchSampler):
            return None
        if self.resume.data.is_waiting:
            return self.resume.data.position
        if streams.counts_samples(getattr(loader, "dataset", None)):
            return self._counted_state(loader)
        owner = self._owner_of_position()
        if owner is not loader and getattr(loader, "num_workers", False):
            return None  # the workers iterate over copies of the dataset; this one has not advanced
        return own_state(owner)


def _digest(state: Any) -> str | None:
    return None if state is None else hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _check_buffer(name: str, array: Any, buffer: Any) -> None:
    if tuple(array.shape) != tuple(buffer.shape):
        raise CheckpointError(
            f"{name} in {RANDOM} has shape {tuple(array.shape)}, the buffer of the model {tuple(buffer.shape)}"
        )


def _is_seekable(sampler: Any) -> bool:
    """Whether the order of an epoch can be computed without the RNG state at its start."""
    return isinstance(sampler, BatchSampler) and not (isinstance(sampler, ShardedBatches) and sampler.is_drawn)


def own_state(owner: Any) -> Any:
    """The state_dict of a loader, dataset or collator as plain JSON; None without one."""
    if not callable(getattr(owner, "state_dict", None)) or not callable(getattr(owner, "load_state_dict", None)):
        return None
    if getattr(owner, "use_stateful_dataloader", None) is False:  # it was prepared without a state
        return None
    try:
        return json.loads(json.dumps(owner.state_dict()))
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        logger.warning(
            "The state_dict of %s cannot be stored as JSON (%s), so a resumed run cannot restore it.",
            type(owner).__name__,
            error,
        )
        return None
