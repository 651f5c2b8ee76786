"""Export of a trained model to files that Paddle Inference runs without the model's code."""

import warnings
from pathlib import Path
from typing import Any

import paddle

from ...errors import DataError, UnsupportedError
from .._common.helpers import arrays, compare_outputs
from .models import eval_mode, forward_parameters, invoke, restore_mode, unwrap
from .parts import part_of

NAME = "model"


def input_spec(model: paddle.nn.Layer, batch: dict[str, Any]) -> list[Any]:
    """The inputs of the exported model, from a batch: any number of rows, and any length for integer inputs (token
    ids); other sizes are those of the batch."""
    names = [name for name in forward_parameters(model) or list(batch) if name in batch]
    spec = paddle.static.InputSpec
    return [spec(_any_size(batch[name]), str(batch[name].dtype).removeprefix("paddle."), name) for name in names]


def _any_size(value: paddle.Tensor) -> list[int | None]:
    if value.is_floating_point():
        return [None, *value.shape[1:]]
    return [None] * len(value.shape)


def export(model: paddle.nn.Layer, directory: Path, batch: Any, spec: Any = None) -> list[str]:
    """Write the model with paddle.jit.save, load it again and compare the outputs for the batch; returns the files."""
    base = unwrap(model)
    if any(part_of(p) is not None for p in base.parameters()):
        raise UnsupportedError(
            "a model that tensor_parallel_size divides cannot be exported: each process has a part of it. Save it with "
            "save_model, load it in one process and export it there."
        )
    if spec is None:
        if not isinstance(batch, dict):
            raise DataError("export needs a batch with names; pass input_spec= for one without.")
        spec = input_spec(base, batch)
    inputs = batch
    if isinstance(batch, dict):
        names = [getattr(one, "name", None) or name for one, name in zip(spec, forward_parameters(base) or batch)]
        inputs = {name: batch[name] for name in names if name in batch}
    directory.mkdir(parents=True, exist_ok=True)
    training = eval_mode(base)
    try:
        with paddle.no_grad():
            expected = arrays(_by_name(invoke(base, inputs)), _numpy)
        _save(base, spec, directory)
        loaded = paddle.jit.load(str(directory / NAME))
        given = list(inputs.values()) if isinstance(inputs, dict) else inputs
        found = arrays(loaded(*given), _numpy)
    finally:
        restore_mode(training)
    compare_outputs(expected, found)
    return sorted(path.name for path in directory.glob(f"{NAME}*"))


def _by_name(outputs: Any) -> Any:
    """A graph returns the values of a dict in the order of their names."""
    return {name: outputs[name] for name in sorted(outputs)} if isinstance(outputs, dict) else outputs


def _numpy(value: Any) -> Any:
    return value.astype("float64").numpy() if isinstance(value, paddle.Tensor) else None


def _save(base: paddle.nn.Layer, spec: list[Any], directory: Path) -> None:
    """The whole forward as one graph; Paddle's warning (about the order of a dict's values) is covered by the
    comparison."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        graph = paddle.jit.to_static(base.forward, input_spec=spec, full_graph=True)
        # Without pruning, inputs that the model accepts but does not use stay inputs.
        paddle.jit.save(graph, str(directory / NAME), skip_prune_program=True)
