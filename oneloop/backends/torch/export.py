"""Export of a trained model to files that run without its code: a program of torch.export, and ONNX if installed."""

import inspect
import logging
import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import DataError, ModelError
from .._common.helpers import arrays, compare_outputs
from .models import eval_mode, invoke, restore_mode, unwrap

logger = logging.getLogger(__name__)

PROGRAM, ONNX = "model.pt2", "model.onnx"


class Outputs(nn.Module):
    """The model with only tensors as outputs: no loss, no None, no classes of a library."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model = model

        def forward(**inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return self.tensors(self.model(**inputs))

        # torch.export takes the names of the inputs from the signature.
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward

    @staticmethod
    def tensors(outputs: Any) -> dict[str, torch.Tensor]:
        if isinstance(outputs, torch.Tensor):
            return {"output": outputs}
        if isinstance(outputs, (tuple, list)):
            named = {f"output_{i}": value for i, value in enumerate(outputs)}
        else:
            named = dict(outputs) if hasattr(outputs, "keys") else dict(vars(outputs))
        return {name: value for name, value in named.items() if isinstance(value, torch.Tensor) and name != "loss"}


def sizes(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Any number of rows, and any length for integer inputs (token ids)."""
    free = torch.export.Dim.DYNAMIC
    return {
        name: {axis: free for axis in range(value.ndim) if axis == 0 or not value.is_floating_point()}
        for name, value in batch.items()
    }


def export(model: nn.Module, directory: Path, batch: Any, spec: Any = None) -> list[str]:
    """Write model.pt2 and, with onnx and onnxscript installed, model.onnx; load and compare them; returns the files.

    spec: dynamic_shapes of torch.export, by the name of the input.
    """
    if not isinstance(batch, dict) or not all(isinstance(value, torch.Tensor) for value in batch.values()):
        raise DataError("export needs a batch of named tensors, but this one has other values. Pass dataset=.")
    base = unwrap(model)
    # A size of one would be treated as a constant.
    batch = {name: torch.cat([value, value]) if len(value) == 1 else value for name, value in batch.items()}
    directory.mkdir(parents=True, exist_ok=True)
    training = eval_mode(base)
    try:
        with torch.no_grad():
            plain = Outputs(base, list(batch))
            outputs = plain(**batch)
            expected = arrays(outputs, _numpy)
            program = _program(plain, batch, spec or sizes(batch))
            torch.export.save(program, directory / PROGRAM)
            loaded = torch.export.load(directory / PROGRAM).module()
            compare_outputs(expected, arrays(loaded(**batch), _numpy))
            written = [PROGRAM]
            if all(find_spec(package) for package in ("onnx", "onnxscript")):
                written += _onnx(program, directory, batch, list(outputs), expected)
            else:
                logger.warning("%s is not written: it needs onnx and onnxscript (pip install onnx onnxscript)", ONNX)
    finally:
        restore_mode(training)
    return written


def _numpy(value: Any) -> Any:
    return value.detach().double().cpu().numpy() if isinstance(value, torch.Tensor) else None


def _program(model: nn.Module, batch: dict[str, torch.Tensor], shapes: dict[str, Any]) -> Any:
    try:
        return torch.export.export(model, (), batch, dynamic_shapes=shapes)
    except Exception as error:
        invoke(model, batch)  # a model that cannot be called raises its own error
        raise ModelError(
            f"torch.export cannot trace the model's forward: {_reason(error)}. Use tensor operations there instead of "
            "Python values, or pass an input_spec with fixed sizes."
        ) from error


def _onnx(
    program: Any, directory: Path, batch: dict[str, torch.Tensor], outputs: list[str], expected: list[Any]
) -> list[str]:
    path = directory / ONNX
    options = {"verbose": False, "dynamo": True, "external_data": False, "output_names": outputs}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(program, (), str(path), **options)
        _name_axes(path)
    except Exception as error:
        raise ModelError(
            f"the model is in {directory / PROGRAM}, but cannot be converted to ONNX: {_reason(error)}. Replace that "
            f"operator, or use only {PROGRAM}."
        ) from error
    if find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(None, {name: value.cpu().numpy() for name, value in batch.items()})
        compare_outputs(expected, [array.astype("float64") for array in found])
    return [ONNX]


def _name_axes(path: Path) -> None:
    """Call the free sizes batch and sequence instead of the symbols of torch.export (s72, s43)."""
    import onnx

    model = onnx.load(str(path))
    names: dict[str, str] = {}
    for value in model.graph.input:
        for axis, size in enumerate(_sizes(value)):
            if size.dim_param and size.dim_param not in names:
                usual = {0: "batch", 1: "sequence"}.get(axis, f"{value.name}_{axis}")
                names[size.dim_param] = usual if usual not in names.values() else f"{value.name}_{axis}"
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for size in _sizes(value):
            if size.dim_param:  # may be an expression, such as 2*s72
                size.dim_param = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), size.dim_param)
    onnx.save(model, str(path))


def _sizes(value: Any) -> Any:
    """The sizes of an input or output."""
    return value.type.tensor_type.shape.dim


def _reason(error: BaseException) -> str:
    """The line of a long message that names the operator or the size; the innermost error has it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = [line for line in lines if any(word in line for word in ("operator", "aten", "Dim", "dynamic", "data-dep"))]
    return (known or lines or [type(error).__name__])[0][:400].rstrip(".")
