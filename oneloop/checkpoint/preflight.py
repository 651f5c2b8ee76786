"""What cannot be stored or is lost in a resume: looked for before the first step and at the first save."""

import logging
import random
import zlib
from typing import Any

import numpy as np

from ..backends import registry
from ..data import streams
from ..errors import CheckpointError
from .saved_run import SavedTrainer

logger = logging.getLogger(__name__)

# Types that every framework can store; the others are tried.
_ALWAYS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_DEEPEST = 4  # levels of datasets in datasets that are searched for generators


def check(core: SavedTrainer, is_written_by_us: bool) -> None:
    """Before the first step of a run that saves: an error for tensors that cannot be stored, and a warning for data
    with random number generators of its own. `is_written_by_us`: no override writes the model."""
    trainer = core.trainer
    if trainer.args.save_strategy == "no":
        return
    models = core.backend.models
    if is_written_by_us and not models.is_adapter(models.unwrap(trainer.model)):
        _check_types(core)
    if core.mesh.is_main:
        _warn_about_generators(trainer.train_dataset, "train_dataset")
        _warn_about_generators(trainer.data_collator, "data_collator")
        _warn_about_states_in_workers(core)
        _warn_about_iterable_data(core)


def _check_types(core: SavedTrainer) -> None:
    """One tensor of each unusual type is made into bytes, as a save would."""
    weights = core.backend.weights
    tensors, _ = weights.model_tensors(core.backend.models.unwrap(core.trainer.model))
    by_type: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        dtype = str(getattr(tensor, "dtype", "float32")).rpartition(".")[2].lower()
        if dtype not in _ALWAYS:
            by_type.setdefault(dtype, []).append(name)
    for dtype, names in by_type.items():
        smallest = min((tensors[name] for name in names), key=lambda tensor: int(np.prod(tuple(tensor.shape))))
        try:
            weights.raw(weights.copy_to(smallest, None))
        except Exception as error:
            some = ", ".join(names[:6]) + (f" ({len(names)} in all)" if len(names) > 6 else "")
            raise CheckpointError(
                f"checkpoints cannot store tensors of type {dtype}: {some}. Convert them to another type (a complex "
                "one to its real and imaginary parts); register a buffer that can be computed again with "
                "persistent=False; or use save_strategy='no'."
            ) from error


# -- streams


def _warn_about_iterable_data(core: SavedTrainer) -> None:
    """What a resumed run cannot do with a stream, or only by reading it again."""
    trainer = core.trainer
    dataset: Any = trainer.train_dataset
    if dataset is None or not core.backend.loaders.is_iterable(dataset):
        return
    if stages := streams.unseeded_stages(dataset):
        logger.warning(
            "train_dataset is a pipeline of WebDataset that draws its order from the clock (%s): a resumed run reads "
            "other samples than an uninterrupted one. Pass seed= to shuffle, or use detshuffle.",
            ", ".join(stages),
        )
    if samplers := streams.samplers_with_generator(dataset):
        logger.warning(
            "train_dataset is a loader of torchdata with a sampler that draws its order (%s), whose state torchdata "
            "does not store: a run that is resumed after its first epoch reads another order. Use a sampler with "
            "set_epoch.",
            ", ".join(samplers),
        )
    reason = streams.why_not_seekable(dataset, trainer.args.dataloader_num_workers)
    if reason is None and trainer.args.data_order == "transformers" and core.mesh.num_batches > 1:
        reason = "data_order='transformers' does not use its state_dict on several processes, nor a generator in it"
    if reason is not None:
        logger.warning(
            "A resumed run reads train_dataset, a %s, again up to its position: %s.", type(dataset).__name__, reason
        )


# -- generators


def _warn_about_generators(owner: Any, where: str) -> None:
    found = next(iter(_generators(owner, where)), None)
    if found is None:
        return
    place, generator = found
    logger.warning(
        "%s keeps a random number generator of its own (%s), whose state is not in checkpoints: a resumed run draws "
        "other numbers than an uninterrupted one. Draw from random, numpy.random or the framework, whose states are "
        "stored, or give %s methods state_dict and load_state_dict.",
        place,
        f"{type(generator).__module__}.{type(generator).__name__}",
        type(owner).__name__,
    )


def _warn_about_states_in_workers(core: SavedTrainer) -> None:
    """Each worker has a copy of the dataset and of the collator, which changes on its own."""
    trainer = core.trainer
    if not trainer.args.dataloader_num_workers or core.backend.loaders.is_iterable(trainer.train_dataset):
        return
    for where, owner in (("train_dataset", trainer.train_dataset), ("data_collator", trainer.data_collator)):
        if callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None)):
            logger.warning(
                "%s, a %s, has a state_dict, but is read by workers (dataloader_num_workers=%d), whose copies of it "
                "change by themselves: their states are not in checkpoints, so a resumed run draws other numbers than "
                "an uninterrupted one. Draw from random, numpy.random or the framework, which workers seed for each "
                "sample; or use dataloader_num_workers=0.",
                where,
                type(owner).__name__,
                trainer.args.dataloader_num_workers,
            )


def _generators(owner: Any, place: str, depth: int = _DEEPEST) -> Any:
    """(name, generator) in the attributes of data, of data that it wraps, and of the script's objects in it."""
    if owner is None or hasattr(owner, "state_dict") or not depth:
        return
    for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
        if _is_generator(value):
            yield f"{place}.{name}", value
        elif name in ("dataset", "source", "data", "base") or _is_user_class(value):
            yield from _generators(value, f"{place}.{name}", depth - 1)


def _is_generator(value: Any) -> bool:
    if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
        return True
    kind = type(value)  # torch.Generator, paddle.base.core.Generator, mindspore.Generator
    return kind.__name__ == "Generator" and registry.is_framework_module(kind.__module__)


def _is_user_class(value: Any) -> bool:
    """Whether an object is of a class of the script: those of libraries are not searched."""
    module = type(value).__module__
    library = module.partition(".")[0] in (
        "builtins",
        "numpy",
        "datasets",
        "oneloop",
        "collections",
        "functools",
        "PIL",
    )
    return not library and not isinstance(value, type) and not registry.is_framework_module(module)


# -- buffers that are not saved


def unsaved_buffers(core: SavedTrainer) -> dict[str, int]:
    """Checksums of the model's buffers that are not in checkpoints (persistent=False), by name."""
    models, model = core.backend.models, core.trainer.model
    buffers = models.buffers(models.unwrap(model))
    if not buffers:
        return {}
    saved, tied = core.backend.weights.model_tensors(models.unwrap(model))
    to_numpy = core.backend.tensors.to_numpy
    return {
        buffer.name: zlib.crc32(np.ascontiguousarray(to_numpy(buffer.current)).tobytes())
        for buffer in buffers
        if buffer.name not in saved and buffer.name not in tied
    }


def warn_about_changed_buffers(core: SavedTrainer, before: dict[str, int]) -> None:
    """At the first save: which of them training has changed."""
    now = unsaved_buffers(core)
    changed = [name for name, checksum in now.items() if before.get(name) != checksum]
    if changed:
        logger.warning(
            "Training changes buffers that are not in checkpoints: %s. A resumed run starts with those of a new model, "
            "and may differ from an uninterrupted one. Register them with persistent=True, unless they can be computed "
            "again.",
            ", ".join(changed[:6]) + (f" ({len(changed)} in all)" if len(changed) > 6 else ""),
        )
