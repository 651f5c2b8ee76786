"""Why a step fails, in words: ids beyond an embedding, texts that are too long, labels out of range, columns that did
not reach the model, integers where floats are expected."""

import difflib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError, ModelError, OneloopError

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)

_RANGE = re.compile(
    r"out of (bounds|range)|OutOfRange|must be in \[|in the range \[|expected >= 0 and <|device-side assert",
    re.IGNORECASE,
)
_SHAPE = re.compile(r"expanded size|must match|mismatch|broadcast|shape", re.IGNORECASE)
_DTYPE = re.compile(
    r"dtype|data ?type|type of|result type|Double|Float64|not implemented for|not registered", re.IGNORECASE
)
_INTEGER = re.compile(r"long|int", re.IGNORECASE)

# Methods of a module that is trained by another loop than this one.
_HOOKS = ("training_step", "configure_optimizers")

# Names under which datasets have what the model calls labels.
_LABEL_LIKE = ("label", "labels", "label_ids", "target", "targets", "y", "class", "classes", "category", "score")


def explain(error: Exception, batch: Any, core: "Core", dataset: Any = None) -> OneloopError | None:
    """An error for the user in place of the framework's or the model's; None if the batch does not explain it.

    `dataset` is what the batch was made of, if it is known: its columns may not have reached the model.
    """
    try:
        return _explain(error, batch, core, dataset)
    except Exception:  # of whatever a batch or a model may be; the error itself is what counts
        logger.debug("could not explain %r", error, exc_info=True)
        return None


def _explain(error: Exception, batch: Any, core: "Core", dataset: Any) -> OneloopError | None:
    if not isinstance(batch, Mapping):
        return _foreign_module(error, core)
    step = _Step(batch, core)
    if not isinstance(error, OneloopError):
        for hint in (step.too_large_ids, step.too_long, step.wrong_dtype, step.labels_out_of_range):
            if found := hint(str(error)):
                return DataError(f"{found} ({_short(error)})")
    return _foreign_module(error, core) or step.missing_columns(error, dataset)


class _Step:
    """A batch that failed, and the model that it was for."""

    def __init__(self, batch: Mapping[str, Any], core: "Core") -> None:
        self.models, self.tensors = core.backend.models, core.backend.tensors
        self.model = core.trainer.model
        self.batch = batch
        self.kinds = {name: _kind(value) for name, value in batch.items() if self.tensors.is_tensor(value)}
        self.label_names = core.trainer.label_names
        self.labels = [name for name in self.label_names if name in self.kinds]

    def too_large_ids(self, said: str) -> str | None:
        if not _RANGE.search(said):
            return None
        tables = self.models.embedding_rows(self.model)
        for column, values in self._integer_inputs():
            table = _table_of(column, tables)
            if table is None or not values.size or (values.min() >= 0 and values.max() < tables[table][0]):
                continue
            rows = tables[table][0]
            wrong = values.max() if values.max() >= rows else values.min()
            advice = "Check that the data was tokenized for this model"
            if hasattr(self.models.base_of(self.model), "resize_token_embeddings"):
                advice += ", or enlarge the embedding: model.resize_token_embeddings(len(tokenizer))"
            return (
                f"column {column} has the id {wrong}, but the embedding {table} has {rows} rows, for ids from 0 to "
                f"{rows - 1}. {advice}."
            )
        return None

    def too_long(self, said: str) -> str | None:
        if not _RANGE.search(said) and not _SHAPE.search(said):
            return None
        config = self.models.config_of(self.models.base_of(self.model))
        limits = [getattr(config, "max_position_embeddings", None)]
        for name, (rows, padding) in self.models.embedding_rows(self.model).items():
            if "position" in name or name.rpartition(".")[2] == "wpe":
                limits.append(rows if padding is None else rows - padding - 1)
        limit = min((each for each in limits if isinstance(each, int) and each > 0), default=None)
        for column, values in self._integer_inputs():
            if limit is not None and values.ndim == 2 and values.shape[1] > limit:
                return (
                    f"column {column} has {values.shape[1]} tokens in a row, but the model has positions for {limit} "
                    f"(max_position_embeddings). Truncate when tokenizing: tokenizer(text, truncation=True, "
                    f"max_length={limit})."
                )
        return None

    def wrong_dtype(self, said: str) -> str | None:
        if not _DTYPE.search(said):
            return None
        wide = [name for name, kind in self.kinds.items() if kind == "float64"]
        if wide:
            return (
                f"column {_listed(wide)} in float64, but models compute in float32. Convert it in the dataset or the "
                "data_collator, for example with .astype('float32'), or convert the model."
            )
        real = [name for name in self.labels if self.kinds[name].startswith(("float", "bfloat"))]
        if real:
            return (
                f"column {_listed(real)} in {self.kinds[real[0]]}, but a classification loss takes integer classes. "
                "Convert the labels to integers, or use a regression loss (MSE)."
            )
        if not _INTEGER.search(said):
            return None
        features = [name for name, _ in self._integer_inputs()]
        if features and not self.models.embedding_rows(self.model):
            return (
                f"column {_listed(features)} in {self.kinds[features[0]]}, but models compute in float32. Convert it "
                "in the dataset or the data_collator, for example with .astype('float32')."
            )
        whole = [name for name in self.labels if self.kinds[name].startswith(("int", "uint", "bool"))]
        if whole:
            return (
                f"column {_listed(whole)} in {self.kinds[whole[0]]}, but this loss takes floats, as losses of several "
                "labels for each sample (binary cross entropy) and of regression do. Convert it in the dataset or the "
                "data_collator, for example with .astype('float32')."
            )
        return None

    def labels_out_of_range(self, said: str) -> str | None:
        whole = [name for name in self.labels if self.kinds[name].startswith(("int", "uint"))]
        if not whole or not _RANGE.search(said):
            return None
        values = np.asarray(self.tensors.to_numpy(self.batch[whole[0]]))
        values = values[values != -100]
        if not values.size:
            return None
        return (
            f"the values of column {whole[0]} are {values.min()} to {values.max()} in this batch. Classes are "
            "counted from 0 to the number of classes - 1: check the labels, and the size of the model's last layer "
            "(num_labels)."
        )

    def missing_columns(self, error: Exception, dataset: Any) -> OneloopError | None:
        """The columns of the dataset that did not reach the model, if it fails for want of them."""
        if not isinstance(error, (DataError, ModelError, TypeError, ValueError, AttributeError, KeyError)):
            return None
        sample = _first_sample(dataset)
        accepted = self.models.forward_parameters(self.model) or []
        lacks_labels = not any(name in self.batch for name in self.label_names)
        lacks_inputs = all(name in self.label_names for name in self.batch)
        if not lacks_labels and not lacks_inputs and not isinstance(error, OneloopError):
            return None
        free = [name for name in accepted if name not in self.batch]
        reasons = []
        for name, value in sample.items():
            if name not in self.batch and (reason := self._why_missing(name, value, free, lacks_labels)):
                reasons.append(reason)
        if not reasons:
            return None
        has = f"the columns {', '.join(self.batch)}" if self.batch else "no columns"
        return DataError(
            f"the model gets only {has} ({_short(error)}). The dataset has more, which did not reach it: "
            f"{'; '.join(reasons)}."
        )

    def _why_missing(self, name: str, value: Any, free: list[str], lacks_labels: bool) -> str | None:
        """Why a column of the dataset is not in the batch, and what to do."""
        is_text = isinstance(value, str) or (isinstance(value, (list, tuple)) and value and isinstance(value[0], str))
        wanted = self.label_names[0] if self.label_names else "labels"
        if is_text and (name in self.label_names or (lacks_labels and name in _LABEL_LIKE)):
            rename = "" if name in self.label_names else f" as the column {wanted}"
            return f"{name} contains words ({_quoted(value)}), not class numbers: number the classes from 0{rename}"
        near = difflib.get_close_matches(name, [each for each in free if each not in self.label_names], 1, 0.75)
        if near:
            return (
                f"{name} was removed, because forward has no parameter of this name; did you mean {near[0]}? Rename it"
            )
        if lacks_labels and name in _LABEL_LIKE:
            return f"{name} was removed, because forward has no parameter of this name; rename it to {wanted}"
        if is_text and "input_ids" in free:
            return f"{name} contains text ({_quoted(value)}): tokenize it, for example with tokenizer(sample[{name!r}])"
        if is_text:
            return f"{name} contains text ({_quoted(value)}), which is not converted to numbers"
        return None

    def _integer_inputs(self) -> Iterator[tuple[str, np.ndarray]]:
        for name, kind in self.kinds.items():
            if name not in self.label_names and kind.startswith(("int", "uint")) and "mask" not in name:
                yield name, np.asarray(self.tensors.to_numpy(self.batch[name]))


def _table_of(column: str, tables: Mapping[str, Any]) -> str | None:
    """The embedding that the ids of a column are looked up in: by its name, such as token_type of token_type_ids;
    otherwise the largest."""
    stem = column.removesuffix("_ids").removesuffix("_id")
    if stem not in ("input", "decoder_input"):
        return next((name for name in tables if stem in name), None)
    return max(tables, key=lambda name: tables[name][0], default=None)


def _foreign_module(error: Exception, core: "Core") -> ModelError | None:
    """The error of a module that has its own training step, which nobody calls here, and a forward without a loss."""
    model = core.backend.models.base_of(core.trainer.model)
    trains_itself = all(callable(getattr(model, name, None)) for name in _HOOKS)
    if not isinstance(error, (DataError, ModelError)) or not trains_itself:
        return None
    return ModelError(
        f"{type(model).__name__} defines {' and '.join(_HOOKS)}, as a LightningModule does. The Trainer calls neither: "
        "it calls forward with the columns of a batch and takes the loss that it returns. Let forward accept the batch "
        "and return the loss, or override compute_loss and create_optimizer in a subclass of the Trainer; the guide "
        f'"Coming from Lightning" shows both. ({_short(error)})'
    )


def _first_sample(dataset: Any) -> Mapping[str, Any]:
    """The first sample of a map-style dataset of dicts; empty if there is none."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return {}
    try:
        sample = dataset[0]
    except Exception:
        return {}
    return sample if isinstance(sample, Mapping) else {}


def _kind(value: Any) -> str:
    """The name of a dtype, as NumPy has it: torch.float64, paddle.float64 and Float64 are float64."""
    return str(value.dtype).rpartition(".")[2].lower()


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else value[0]
    return repr(text if len(text) <= 30 else text[:27] + "...")


def _short(error: Exception) -> str:
    said = str(error).strip()
    if isinstance(error, OneloopError):  # its advice is not needed where there is better
        return said.partition(". ")[0]
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__
