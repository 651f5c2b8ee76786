"""Reads checkpoints of the Trainers of PaddleNLP and PaddleFormers. Those of transformers are files of torch, and
resuming from them raises an error here."""

from pathlib import Path
from typing import Any

import numpy as np
from paddle import nn

from ...converters import paddlenlp_checkpoint
from ...converters.external_reader import UnsupportedCheckpointReader
from ...converters.parameter_groups import Loaded
from .._common.helpers import check_names_and_shapes
from . import adapters, weights
from .models import is_adapter, unwrap

LOADS_SHARDED = False
_refused = UnsupportedCheckpointReader(
    "on Paddle can only resume from checkpoints of oneloop, PaddleNLP and PaddleFormers. Load its weights into the "
    "model with the library that wrote them, and start a new run."
)


def load_weights(model: nn.Layer, path: Path, strategy: Any = None) -> None:
    """Load the weights of a checkpoint, or its adapter."""
    _check(path)
    turned = getattr(unwrap(model), "transpose_weight_keys", None)  # of PaddleFormers' models
    raws = paddlenlp_checkpoint.weights(path, turned if isinstance(turned, list) else ())
    tensors = {name: weights.from_raw(raw) for name, raw in raws.items()}
    if not is_adapter(unwrap(model)):
        weights.load_model(model, tensors, {}, str(path))
        return
    own = adapters.tensors_of(unwrap(model))
    check_names_and_shapes(tensors, own, str(path))
    for name, target in own.items():
        weights.assign(target, tensors[name])


def load_optimizer(optimizer: Any, model: nn.Layer, path: Path, strategy: Any = None) -> Loaded:
    """Load moments and powers of the betas, parameter by parameter. Rates and other options are those of this run."""
    _check(path)
    trained = {n: tuple(p.shape) for n, p in unwrap(model).named_parameters() if not p.stop_gradient}
    rule, raws = paddlenlp_checkpoint.optimizer(path, trained)
    _, own = weights.optimizer_state(optimizer, model)
    data = {"groups": own["groups"], "values": {}}
    tensors = {key: weights.from_raw(raw) for key, raw in raws.items()}
    weights.load_optimizer(optimizer, model, tensors, data, str(path))
    return Loaded(rule, [], {})  # the files have no options of parameter groups


def scheduler_state(path: Path) -> dict[str, Any]:
    _check(path)
    return paddlenlp_checkpoint.scheduler(path)


def scaler_state(path: Path) -> dict[str, Any] | None:
    _check(path)
    return paddlenlp_checkpoint.scaler(path)


def random_state(path: Path, rank: int, processes: int) -> tuple[Any, Any, dict[str, np.ndarray]] | None:
    """Their RNG state is not read: the order of their data cannot be continued."""
    _check(path)
    return None


def _check(path: Path) -> None:
    if not paddlenlp_checkpoint.wrote(path):
        _refused.load_weights(None, path)
