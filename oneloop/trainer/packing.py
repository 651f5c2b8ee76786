"""Packing in a Trainer: which data is packed, how the model keeps documents apart, and the messages about it."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import libraries, randomness
from ..arguments.data import packing_of
from ..callbacks import tell
from ..data.collators.packs import PackCollator
from ..data.length_grouping import measure_lengths
from ..data.mixture import Mixture
from ..data.packed_documents import (
    DOCUMENTS,
    IGNORED,
    MADE,
    MASK,
    POSITIONS,
    ROW_INDICES,
    SEQUENCE_LENGTHS,
    Columns,
    PackedDocuments,
    PackOrder,
    Unpacked,
    extra_columns,
    layouts_of,
    pack_of,
    token_columns,
)
from ..data.packed_streams import PACKERS, PackedStream, SinglePacker
from ..errors import DataError, ModelError
from . import setup
from .loss import find_loss, logits_of, loss_function, split_labels

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)

# Collators whose work packing does itself.
_REPLACED = (
    *("DefaultDataCollator", "default_data_collator", "DataCollatorWithPadding", "DataCollatorWithFlattening"),
    "DataCollatorForLanguageModeling",
)
WRAPPED = "wrapped"
FORMS = (
    f"`{MASK}` of shape (rows, 1, tokens, tokens), True where a token may attend to another; or `{DOCUMENTS}` of shape "
    "(rows, tokens), the number of each token's document"
)


def packed(core: "Core", dataset: Any, where: str, train: bool) -> tuple[Any, PackCollator]:
    """The dataset of packs, and its collator."""
    how = packing_of(core.trainer.args)
    assert how is not None
    _refuse(core, dataset, where)
    args = core.trainer.args
    assert args.max_length is not None  # packing needs it
    is_packed = train or (where == "eval_dataset" and args.eval_packing is not False)
    if core.backend.loaders.is_iterable(dataset):
        packer = PACKERS[how] if is_packed else SinglePacker
        accepted = core.backend.models.forward_parameters(core.trainer.model) or ()
        stream = PackedStream(dataset, packer(args.max_length), accepted, _keeps_first(core), how == WRAPPED)
        return stream, _collator(core, np.arange(args.max_length) % 2)
    sources = list(dataset.datasets.values()) if isinstance(dataset, Mixture) else [dataset]
    if len(dataset) == 0:
        raise DataError(f"{where} is empty. Pass a dataset with at least one sample.")
    token_columns(sources[0][0], what=f"the first document of {where}")
    extra, dropped = _columns(core, sources[0][0])
    lengths = _lengths(core, sources, where)
    if is_packed:
        shuffle = train and args.train_sampling_strategy != "sequential"
        layouts: Sequence[Any] = layouts_of(how, lengths, args.max_length, core.data_seed, shuffle)
    else:
        layouts = [Unpacked(of_source) for of_source in lengths]
    if isinstance(dataset, Mixture) or hasattr(dataset, "select_columns"):
        sources = [_selected(each, extra) for each in sources]
    made = PackedDocuments(dataset, layouts, extra, _keeps_first(core), sources, how == WRAPPED)
    _log_packing(core, made, where, dropped)
    return made, _collator(core, made[0]["input_ids"], extra)


def orders(core: "Core", dataset: PackedDocuments) -> Any:
    """A function from the epoch to the order of the packs for training."""
    args = core.trainer.args
    shuffle = args.train_sampling_strategy != "sequential"
    if isinstance(dataset.dataset, Mixture):
        per_update = core.trainer.get_total_train_batch_size(args)
        return dataset.dataset.orders(core.data_seed, per_update, shuffle, packs=dataset.sizes)
    return lambda epoch: PackOrder(len(dataset), core.data_seed, epoch, shuffle)


def warn_about_packing_fields(core: "Core") -> None:
    """Where a subclass of TrainingArguments has a `packing` of its own, nothing is packed here. Subclasses of
    the Trainer may pack their data themselves; anyone else may have wanted a new default."""
    args, trainer = core.trainer.args, core.trainer
    if not getattr(args, "packing", False) or not core.run.events.is_first_report("packing", "a field of its own"):
        return
    owner = next(cls for cls in type(args).__mro__ if "packing" in cls.__dict__.get("__annotations__", {}))
    of_library = owner.__module__.partition(".")[0] == type(trainer).__module__.partition(".")[0] != "__main__"
    logger.log(
        logging.INFO if of_library else logging.WARNING,
        "packing is a field that %s declares, so it is left to %s: oneloop packs nothing. To have it packed, do not "
        "declare `packing` and `max_length` again, but pass their values: %s(packing=..., max_length=...).",
        owner.__name__,
        "its library" if of_library else "your code",
        owner.__name__,
    )


# -- the data


def _refuse(core: "Core", dataset: Any, where: str) -> None:
    """Raise an error for what does not go with packing."""
    args, collator = core.trainer.args, core.trainer.data_collator
    name = getattr(collator, "__name__", type(collator).__name__)
    if name not in _REPLACED or getattr(collator, "mlm", False):
        raise DataError(
            f"packing makes the batches itself, but there is a data_collator ({name}). Remove one of them; what the "
            "collator does to single documents belongs in the dataset."
        )
    if hasattr(dataset, "create_dict_iterator"):
        raise DataError(
            f"packing expects documents, one by one, but {where} is a pipeline of mindspore.dataset. Pass a list, a "
            "dataset with __len__ and __getitem__, or an iterable of dicts."
        )
    for refused, what in (
        (args.train_sampling_strategy == "group_by_length", "train_sampling_strategy='group_by_length'"),
        (core.in_transformers_order, "data_order='transformers'"),
    ):
        if refused:
            raise DataError(f"{what} cannot order packed documents, which have an order of their own. Remove it.")


def _columns(core: "Core", sample: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Columns besides tokens and labels that are packed, and those that are dropped."""
    extra = extra_columns(sample, core.backend.models.forward_parameters(core.trainer.model) or ())
    known = {"input_ids", "labels", *MADE, *extra, core.trainer.args.length_column_name}
    return extra, [name for name in sample if name not in known]


def _selected(dataset: Any, extra: Sequence[str]) -> Any:
    """A dataset of `datasets` without columns that would be read for nothing; any other as it is."""
    if not hasattr(dataset, "select_columns") or dataset.format["type"] == "custom":  # a transform may need them all
        return dataset
    wanted = ("input_ids", "labels", MASK, *extra)
    return dataset.select_columns([name for name in dataset.column_names if name in wanted])


def _lengths(core: "Core", sources: Sequence[Any], where: str) -> list[np.ndarray]:
    args = core.trainer.args
    shown = not args.disable_tqdm
    lengths = [measure_lengths(each, args.length_column_name, "input_ids", shown, "packing") for each in sources]
    if not all(of_source.sum() for of_source in lengths):
        raise DataError(f"{where} has only empty documents, or one of its parts has. Packing needs tokens.")
    return lengths


def _keeps_first(core: "Core") -> bool:
    """Whether labels are known to be compared with their own position, as in token classification. Where it is not
    known, the first label of each document is left out, rather than predicted from another one."""
    return bool(core.model_info.keeps_first_label)


def _log_packing(core: "Core", data: PackedDocuments, where: str, dropped: list[str]) -> None:
    if not core.mesh.is_main or not core.run.events.is_first_report("packing", where):
        return
    documents = sum(len(layout.lengths) for layout in data.layouts)
    facts = {"documents": documents, "packs": len(data), "fill": round(data.fill, 4)}
    rows = f"{len(data)} rows of up to {max(layout.width for layout in data.layouts)} tokens"
    fill = f"{100 * data.fill:.1f} % of them text"
    tell(core.trainer.args, logger, f"{where}: {documents} documents in {rows}, {fill}.")
    if where == "train_dataset" and core.trainer.is_in_train:
        core.run.events.add("packing", **facts)
    if dropped:
        logger.info("%s: packing drops the columns %s.", where, ", ".join(sorted(map(str, dropped))))


# -- how the model keeps documents apart


def _collator(core: "Core", tokens: np.ndarray, extra: Sequence[str] = ()) -> PackCollator:
    """`tokens` are some that the model has, to find out how it keeps documents apart."""
    pad = getattr(core.trainer.processing_class, "pad_token_id", None)
    columns, rows = core.model_info.pack_columns, _probe_rows(tokens, extra)
    if core.model_info.is_causal is None:
        core.inspect_model(is_causal=_find_causal(core, rows))
    if packing_of(core.trainer.args) == WRAPPED:
        columns = _find_columns_of_whole_rows(core, rows)
    elif columns is None:
        columns = _find_columns(core, rows)
        core.inspect_model(pack_columns=columns)
    return PackCollator(core.backend.NAME, columns, 0 if pad is None else pad, core.model_info.is_causal)


def _restarts_at_positions(model: Any) -> bool:
    """Whether the model is of a library whose models keep documents apart by positions that start again."""
    roots = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    return not roots.isdisjoint(libraries.PACKED_BY_POSITIONS)


def _find_causal(core: "Core", rows: Sequence[Columns] | None) -> bool:
    """Whether the mask also has to exclude the tokens that follow: in models of libraries, if the last token changes
    nothing of what they say about the first one. Your own model may declare `is_causal = False`."""
    base = core.backend.models.base_of(core.trainer.model)
    if not _restarts_at_positions(base):
        return getattr(base, "is_causal", True) is not False
    if rows is None:
        return bool(core.model_info.shifts_labels)
    row = rows[-1]
    ids = row["input_ids"].copy()
    ids[-1] = next(token for token in rows[0]["input_ids"] if token != ids[-1])
    try:
        outputs = _outputs(core, PackCollator(core.backend.NAME, (), 0), [row, {**row, "input_ids": ids}])
    except Exception as error:
        if core.backend.devices.is_out_of_memory(error):
            raise
        return bool(core.model_info.shifts_labels)
    first, second = (each[:1] if each.ndim else each for each in outputs)
    if not first.ndim:  # a loss alone
        return bool(core.model_info.shifts_labels)
    return _equal(first, second, _rounding(core))


def _candidates(core: "Core") -> Iterator[tuple[str, ...]]:
    """Columns that may keep documents apart in this model, the cheapest first."""
    models, model = core.backend.models, core.trainer.model
    accepted = models.forward_parameters(model) or ()
    config = models.config_of(model)
    positions = (POSITIONS,) if POSITIONS in accepted else ()
    if _restarts_at_positions(models.base_of(model)) and positions:
        flash = "flash" in str(getattr(config, "_attn_implementation", ""))
        yield (POSITIONS, SEQUENCE_LENGTHS) if flash else positions
    for name in (DOCUMENTS, ROW_INDICES, MASK):
        if name in accepted:
            yield (*positions, name)
    yield positions


def _find_columns(core: "Core", rows: Sequence[Columns] | None) -> tuple[str, ...]:
    """The first columns with which changing one document does not change what the model says about the next one."""
    if rows is None:  # fewer than two tokens: nothing to mix
        return next(_candidates(core))
    error: Exception | None = None
    tried = []
    for columns in dict.fromkeys(_candidates(core)):
        tried.append(" and ".join(columns) or "none")
        try:
            collate = PackCollator(core.backend.NAME, columns, 0, core.model_info.is_causal)
            first, second, alone = _outputs(core, collate, rows)
        except Exception as raised:
            if core.backend.devices.is_out_of_memory(raised):
                raise
            error = error or raised
            continue
        rounding = _rounding(core)
        if _equal(first, second, rounding):
            if not _equal(first, alone, max(rounding, 1e-3)) and core.mesh.is_main:
                logger.warning(
                    "packing: what %s computes for a document depends on its position in the row. Its forward takes "
                    "no position_ids (rows, tokens), which restart at 0 for each document, or ignores them.",
                    type(core.trainer.model).__name__,
                )
            return columns
    known = " and ".join(sorted(libraries.PACKED_BY_POSITIONS))
    raise ModelError(
        f"packing=True: {type(core.trainer.model).__name__} does not keep the documents of a row apart. Tried, of the "
        f"columns that its forward accepts: {', '.join(tried)}. Models from {known} do this with position_ids, "
        f"unless use_cache=True. Your own model should take {FORMS}. Otherwise set packing=False."
        + (f" An attempt failed with {type(error).__name__}: {str(error).splitlines()[0][:200]}" if error else "")
    ) from error


def _find_columns_of_whole_rows(core: "Core", rows: Sequence[Columns] | None) -> tuple[str, ...]:
    """Where a row is like one document. Causal models of libraries need nothing for it. Your own model may need a
    mask to be causal, or for padding, so it is given what it would be given for several documents, if it takes that."""
    if _restarts_at_positions(core.backend.models.base_of(core.trainer.model)) and core.model_info.is_causal:
        return ()
    try:
        return _find_columns(core, rows)
    except ModelError:  # it does not keep documents apart
        return ()


def _probe_rows(tokens: np.ndarray, extra: Sequence[str]) -> list[Columns] | None:
    """Three rows: two documents, another one before the same second one, and the second one alone."""
    others = np.unique(tokens)
    if len(others) < 2:
        return None
    half = len(tokens) // 2
    first, second = tokens[:half], tokens[half : 2 * half]
    changed = others[(np.searchsorted(others, first) + 1) % len(others)]

    def piece(ids: np.ndarray, counts: bool) -> Columns:
        labels = ids if counts else np.full(half, IGNORED)
        return {"input_ids": ids, "labels": labels, **{name: np.zeros(half, np.int64) for name in extra}}

    known = piece(second, True)
    return [pack_of([piece(each, False), known]) for each in (first, changed)] + [pack_of([known])]


def _outputs(core: "Core", collate: PackCollator, rows: Sequence[Columns]) -> list[np.ndarray]:
    """What the model says about the second document of each row: its logits or, if it has none, its loss."""
    trainer, backend = core.trainer, core.backend
    training = backend.models.eval_mode(trainer.model)
    context = trainer.compute_loss_context_manager()
    try:
        with randomness.preserve_state(backend), backend.engine.no_gradients(), context, _without_zeros(core):
            return [_output(core, collate([row]), len(rows[-1]["input_ids"])) for row in rows]
    finally:
        backend.models.restore_mode(training)


@contextlib.contextmanager
def _without_zeros(core: "Core") -> Iterator[None]:
    """Other values in place of weights that are all zero, such as the last projection of a block at the start of
    training: attention that is multiplied by them would leave no trace in the outputs."""
    tensors = core.backend.tensors
    trained = [weight for _, weight in core.backend.models.named_parameters(core.trainer.model)]
    zeros = [weight for weight in trained if not tensors.to_numpy(tensors.detach((weight * weight).sum())).any()]
    copies = tensors.keep(zeros, [None] * len(zeros))
    random = np.random.RandomState(0)
    try:
        for weight in zeros:
            values = (0.1 * random.standard_normal(tuple(weight.shape))).astype(np.float32)
            value = core.strategy.part_of(weight, core.to_device(tensors.from_numpy(values)))
            tensors.restore_copies([weight], tensors.keep([value], [None]))
        yield
    finally:
        tensors.restore_copies(zeros, copies)


def _output(core: "Core", batch: Any, tokens: int) -> np.ndarray:
    trainer, backend = core.trainer, core.backend
    inputs = core.to_device(batch)
    if trainer.criterion is not None or loss_function(trainer) is not None:
        inputs, _ = split_labels(inputs, trainer.label_names)
    outputs = backend.models.invoke(trainer.model, inputs)
    width = inputs["input_ids"].shape[1]
    found = logits_of(outputs)
    for value in found if isinstance(found, (tuple, list)) else (found,):
        if backend.tensors.is_tensor(value) and tuple(value.shape[:2]) == (1, width):
            return backend.tensors.to_numpy(backend.tensors.detach(value))[0, width - tokens :]
    return backend.tensors.to_numpy(backend.tensors.detach(find_loss(outputs, inputs)))


def _rounding(core: "Core") -> float:
    return 2.0**-6 if setup.half(core.trainer.args) else 2.0**-17


def _equal(first: np.ndarray, second: np.ndarray, rounding: float) -> bool:
    """Equal but for rounding: a kernel may add in another order."""
    scale = max(float(np.abs(first).max(initial=0.0)), 1e-6)
    return first.shape == second.shape and bool(np.abs(first - second).max(initial=0.0) <= rounding * scale)
