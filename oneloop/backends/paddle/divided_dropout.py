"""Dropout of activations that are divided over processes: drawn as on one process.

The random streams of processes that compute the same batch are equal. Paddle draws the mask of a divided tensor for
each part by itself, so all parts would have the same one. Here every process draws the mask of the whole tensor, as one
process does, and takes its part: runs have the dropout of one process, and the streams stay equal.
"""

from typing import Any

import paddle
from paddle import _C_ops
from paddle.distributed.auto_parallel.api import dtensor_from_local

from ...errors import UnsupportedError

_installed = False


def install() -> None:
    """Replace the two operators in this process; tensors that are not divided are passed to Paddle's own."""
    global _installed
    if not _installed:
        _installed = True
        operators: Any = _C_ops
        operators.dropout = _replacing(operators.dropout)
        operators.dropout_ = _refusing(operators.dropout_)


def _divided_dim(x: Any) -> int | None:
    placements = x.placements if isinstance(x, paddle.Tensor) and x.is_dist() else None
    if not placements or not placements[0].is_shard():
        return None
    return placements[0].get_dim() % x.ndim


def _replacing(own: Any) -> Any:
    def dropout(x: Any, seed: Any, p: Any, is_test: bool, *rest: Any) -> Any:
        dim = None if is_test else _divided_dim(x)
        if dim is None:
            return own(x, seed, p, is_test, *rest)
        with paddle.no_grad():
            mask = own(paddle.ones(x.shape, x.dtype), seed, p, is_test, *rest)
            size = x._local_shape[dim]
            start = x.process_mesh.process_ids.index(paddle.distributed.get_rank()) * size
            local = paddle.slice(mask, [dim], [start], [start + size])
            divided = dtensor_from_local(local, x.process_mesh, x.placements)
        return x * divided

    return dropout


def _refusing(own: Any) -> Any:
    def dropout_(x: Any, seed: Any, p: Any, is_test: bool, *rest: Any) -> Any:
        if not is_test and _divided_dim(x) is not None:
            raise UnsupportedError(
                "dropout in place is not supported where tensor_parallel_size divides activations. Use "
                "paddle.nn.functional.dropout without inplace=True."
            )
        return own(x, seed, p, is_test, *rest)

    return dropout_
