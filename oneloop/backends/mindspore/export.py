"""Export of a trained model to files that run without its code: MINDIR, and ONNX if MindSpore can write it."""

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ...errors import DataError, ModelError
from . import bootstrap
from .models import eval_mode, forward_parameters, invoke, restore_mode, unwrap
from .tensors import is_floating, to_numpy

logger = logging.getLogger(__name__)

NAME = "model"
_TOLERANCE = 1e-4


def input_spec(inputs: list[ms.Tensor]) -> list[ms.Tensor]:
    """The inputs of the exported model, from a batch: any number of rows, and any length for integer inputs (token
    ids); other sizes are those of the batch."""
    return [ms.Tensor(shape=_any_size(value), dtype=value.dtype) for value in inputs]


def _any_size(value: ms.Tensor) -> list[int | None]:
    return [None, *value.shape[1:]] if is_floating(value) else [None] * value.ndim


def _in_order(model: nn.Cell, batch: Any) -> list[ms.Tensor]:
    """The inputs of a batch in the positional order of construct."""
    if not isinstance(batch, dict):
        return list(batch) if isinstance(batch, (list, tuple)) else [batch]
    names = forward_parameters(model) or list(batch)
    given = [name for name in names if name in batch]
    if given != names[: len(given)]:
        raise DataError(
            f"export passes inputs by position, but {type(model).__name__}.construct accepts {', '.join(names)}, of "
            f"which the batch has only {', '.join(given)}: move those that are always passed to the front."
        )
    return [batch[name] for name in given]


def export(model: Any, directory: Path, batch: Any, spec: Any = None) -> list[str]:
    """Write the model, load it again and compare the outputs for the batch; returns the files."""
    base = unwrap(model)
    inputs = _in_order(base, batch)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    training = eval_mode(base)
    try:
        expected = _arrays(invoke(base, inputs))
        with bootstrap.quiet():
            ms.export(base, *(spec or input_spec(inputs)), file_name=str(path), file_format="MINDIR")
            loaded = nn.GraphCell(ms.load(f"{path}.mindir"))
        _compare(expected, _arrays(loaded(*inputs)))
        _export_onnx(base, path, inputs, expected)
    finally:
        restore_mode(training)
    return sorted(file.name for file in directory.glob(f"{NAME}*"))


def _export_onnx(model: nn.Cell, path: Path, inputs: list[ms.Tensor], expected: list[np.ndarray]) -> None:
    """ONNX has the fixed sizes of the batch, and does not support every operation; MINDIR is written anyway."""
    file = Path(f"{path}.onnx")
    try:
        with bootstrap.quiet():
            ms.export(model, *inputs, file_name=str(path), file_format="ONNX")
        if find_spec("onnxruntime") is None:
            logger.info("%s is not compared with the model: onnxruntime is not installed.", file)
            return
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        _compare(expected, session.run(None, dict(zip(names, map(to_numpy, inputs), strict=True))))
    except Exception as error:
        file.unlink(missing_ok=True)
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        logger.warning("No ONNX file is written next to %s.mindir: %s", path, reason)


def _arrays(outputs: Any) -> list[np.ndarray]:
    if isinstance(outputs, ms.Tensor):
        return [to_numpy(outputs)]
    if hasattr(outputs, "__dict__") and not isinstance(outputs, (dict, list, tuple)):
        outputs = vars(outputs)
    values = outputs.values() if isinstance(outputs, dict) else outputs
    return [array for value in values if value is not None for array in _arrays(value)]


def _compare(expected: list[np.ndarray], found: list[np.ndarray]) -> None:
    close = len(expected) == len(found) and all(
        one.shape == other.shape and np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)
        for one, other in zip(expected, found, strict=True)
    )
    if not close:
        raise ModelError(
            "the outputs of the exported model differ from the model's: its construct depends on Python values that "
            "the export has frozen. Use tensor operations there, or pass an input_spec with fixed sizes."
        )
