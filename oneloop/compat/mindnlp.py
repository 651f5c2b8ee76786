"""MindNLP's `map_fn`: a function over columns that data sets of mindspore.dataset go through before batching."""

import logging
from typing import Any

from ..backends._common.mindspore_datasets import is_pipeline, makes_batches
from ..errors import ArgumentError, DataError

logger = logging.getLogger(__name__)


def is_map_function(value: Any) -> bool:
    """Whether it is one of MindNLP's (BaseMapFunction): it says which columns it reads and which it makes."""
    return callable(value) and hasattr(value, "input_columns") and hasattr(value, "output_columns")


def training_set(dataset: Any, map_fn: Any) -> Any:
    """The training data, mapped. Batches that the data set makes itself pass as they are, as they do in MindNLP."""
    if map_fn is None:
        return dataset
    if not is_map_function(map_fn):
        raise ArgumentError(
            f"map_fn is a {type(map_fn).__name__}; expected a function with input_columns and output_columns, such as "
            "a subclass of mindnlp.dataset.BaseMapFunction. A function of a list of samples is a data_collator."
        )
    if dataset is None:
        return None
    if not is_pipeline(dataset):
        raise ArgumentError(
            f"map_fn works on data sets of mindspore.dataset, and train_dataset is a {type(dataset).__name__}: map it "
            "with its own map(), or pass a data_collator."
        )
    if makes_batches(dataset):
        logger.warning("map_fn is left aside: the training data makes batches itself, and they pass as they are.")
        return dataset
    columns = dataset.get_col_names()
    missing = [name for name in _names(map_fn.input_columns) if name not in columns]
    if missing:
        raise DataError(f"map_fn reads the columns {missing}, and train_dataset has {columns}.")
    return _mapped(dataset, map_fn)


def evaluation_sets(datasets: Any, map_fn: Any) -> Any:
    """Evaluation data, one set or several by name: mapped where they still have the columns that map_fn reads."""
    if map_fn is None or datasets is None:
        return datasets
    if isinstance(datasets, dict):
        return {name: evaluation_sets(each, map_fn) for name, each in datasets.items()}
    if not is_pipeline(datasets) or makes_batches(datasets):
        return datasets
    raw = set(_names(map_fn.input_columns)) <= set(datasets.get_col_names())
    done = set(_names(map_fn.output_columns)) <= set(datasets.get_col_names())
    return _mapped(datasets, map_fn) if raw and not done else datasets


def _mapped(dataset: Any, map_fn: Any) -> Any:
    return dataset.map(map_fn, _names(map_fn.input_columns), _names(map_fn.output_columns))


def _names(columns: Any) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)
