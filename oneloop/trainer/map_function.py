"""`map_fn`: a function over columns that is applied to mindspore.dataset datasets before batching."""

import logging
from typing import Any

from ..backends._common.mindspore_datasets import is_pipeline, yields_batches
from ..errors import ArgumentError, DataError, a_type

logger = logging.getLogger(__name__)


def is_map_function(value: Any) -> bool:
    """Whether it is a map function: it declares its input and output columns."""
    return callable(value) and hasattr(value, "input_columns") and hasattr(value, "output_columns")


def training_set(dataset: Any, map_fn: Any) -> Any:
    """The mapped training data. Datasets that are already batched are not mapped."""
    if map_fn is None:
        return dataset
    if not is_map_function(map_fn):
        raise ArgumentError(
            f"map_fn is {a_type(map_fn)}; expected a function with input_columns and output_columns, such as "
            "a subclass of mindnlp.dataset.BaseMapFunction. To process a list of samples, use a data_collator."
        )
    if dataset is None:
        return None
    if not is_pipeline(dataset):
        raise ArgumentError(
            f"map_fn requires a mindspore.dataset dataset, but train_dataset is {a_type(dataset)}: use its "
            "own map(), or pass a data_collator."
        )
    if yields_batches(dataset):
        logger.warning("Ignoring map_fn: the training dataset is already batched.")
        return dataset
    columns = dataset.get_col_names()
    missing = [name for name in _names(map_fn.input_columns) if name not in columns]
    if missing:
        raise DataError(f"map_fn needs the columns {missing}, but train_dataset has only {columns}.")
    return _mapped(dataset, map_fn)


def evaluation_sets(datasets: Any, map_fn: Any) -> Any:
    """Evaluation data, one dataset or several by name: mapped if they have the input columns of map_fn."""
    if map_fn is None or datasets is None:
        return datasets
    if isinstance(datasets, dict):
        return {name: evaluation_sets(each, map_fn) for name, each in datasets.items()}
    if not is_pipeline(datasets) or yields_batches(datasets):
        return datasets
    raw = set(_names(map_fn.input_columns)) <= set(datasets.get_col_names())
    done = set(_names(map_fn.output_columns)) <= set(datasets.get_col_names())
    return _mapped(datasets, map_fn) if raw and not done else datasets


def _mapped(dataset: Any, map_fn: Any) -> Any:
    return dataset.map(map_fn, _names(map_fn.input_columns), _names(map_fn.output_columns))


def _names(columns: Any) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)
