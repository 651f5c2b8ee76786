"""Divide the layers of a model along the tensor axis, by a plan: {"layers.*.up": "colwise", "layers.*.down":
"rowwise"}.

A divided parameter has its part only (shards.py). Layers compute with `paddle.distributed`'s DTensors of the whole
shape, which they are given for their parameters; so a model needs no changes, and what its code does with heads or with
the weights of another layer stays right. What goes into the model and comes out of it are plain tensors.

| style | weight of a Linear (in, out) or an Embedding | output |
|---|---|---|
| colwise | columns, and the bias | divided |
| colwise_gather_output, colwise_rep | columns, and the bias | whole |
| rowwise, rowwise_split_input, rowwise_rep | rows | whole |
| embedding_rowwise | rows (words) | whole |
| embedding_colwise | columns | whole |
| replicate, replicated_with_grad_allreduce | whole | as it comes |
"""

from typing import Any

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.autograd import PyLayer
from paddle.distributed.auto_parallel.api import dtensor_from_local

from ...errors import ArgumentError, ModelError, UnsupportedError, a_type
from .._common import tensor_plans as plans
from .._common.helpers import map_tensors
from . import divided_dropout
from .adapters import is_adapter
from .models import unwrap
from .parts import Part, part_of
from .shards import divide as keep_part

_COLUMNS = (*plans.COLWISE, *plans.GATHERED)
_EMBEDDINGS = (plans.EMBEDDING_ROWS, plans.EMBEDDING_COLUMNS)
# Of a weight; biases are divided with columns.
_DIMS = {
    **dict.fromkeys((*_COLUMNS, plans.EMBEDDING_COLUMNS), 1),
    **dict.fromkeys((*plans.ROWWISE, *plans.SPLITS_INPUT, plans.EMBEDDING_ROWS), 0),
}
_DIVIDED, _VIEWS = "oneloop_divided", "_oneloop_views"


def is_divided(model: nn.Layer) -> bool:
    return hasattr(unwrap(model), _DIVIDED)


def has_views(layer: nn.Layer) -> bool:
    """Whether the class of a layer was made here, from its own."""
    return _VIEWS in vars(type(layer))


def divide(model: nn.Layer, mesh: Any, given: dict[str, str] | None) -> None:
    """Divide the layers of a whole model in place. An error, before anything is changed, for what cannot be divided."""
    base = unwrap(model)
    if is_adapter(base):
        raise UnsupportedError(
            "an adapter is not supported with tensor_parallel_size on Paddle. Merge it into its model, or use "
            "tensor_parallel_size=1."
        )
    layers = {name: layer for name, layer in base.named_sublayers() if name}
    known = [name for name, layer in layers.items() if isinstance(layer, (nn.Linear, nn.Embedding))]
    styles = plans.matched_layers(plans.plan_of(base, given, known), list(layers), type(base).__name__, known)
    dims = _dims(layers, styles, len(mesh.process_ids))
    _check_lists(base)
    index = mesh.process_ids.index(dist.get_rank())
    for p in base.parameters():
        if (dim := dims.get(id(p))) is not None:
            keep_part(p, Part(dim, len(mesh.process_ids), index))
    for name, style in styles.items():
        if style not in (*plans.COLWISE, *plans.WHOLE):
            layers[name].register_forward_post_hook(lambda layer, inputs, output: _whole(output))
    for layer in base.sublayers(include_self=True):
        _compute_with_views(layer, mesh)
    base.register_forward_pre_hook(_detached_inputs, with_kwargs=True)
    base.register_forward_post_hook(_plain_outputs(mesh))
    setattr(base, _DIVIDED, True)
    divided_dropout.install()


# -- the plan


def _dims(layers: dict[str, nn.Layer], styles: dict[str, str], size: int) -> dict[int, int | None]:
    """The dim by which each parameter of the planned layers is divided, by its id; None: whole."""
    dims: dict[int, int | None] = {}
    names: dict[int, str] = {}
    for name, style in styles.items():
        layer: Any = layers[name]
        own = layer.named_parameters(include_sublayers=False)
        if style in plans.WHOLE:
            wanted: dict[str, int | None] = {part: None for part, _ in own}
        else:
            _check_kind(name, style, layer)
            wanted = {"weight": _DIMS[style], "bias": 0 if style in _COLUMNS else None}
        for part, dim in wanted.items():
            p = getattr(layer, part, None)
            if p is None:
                continue
            full = f"{name}.{part}"
            if dim is not None and p.shape[dim] % size:
                raise ArgumentError(
                    f"{full} has {p.shape[dim]} {'columns' if dim else 'rows'}, which tensor_parallel_size={size} does "
                    f"not divide. Use a divisor of {p.shape[dim]}, or leave {name} out of tensor_parallel_plan."
                )
            if id(p) in dims and dims[id(p)] != dim:
                raise ModelError(
                    f"tied weights would be separated: {names[id(p)]} and {full} are the same parameter, and the "
                    f"plan divides "
                    "it in two ways. Name one of them in tensor_parallel_plan."
                )
            dims[id(p)], names[id(p)] = dim, full
    return dims


def _check_kind(name: str, style: str, layer: Any) -> None:
    expected = nn.Embedding if style in _EMBEDDINGS else nn.Linear
    if not isinstance(layer, expected):
        raise UnsupportedError(
            f"{name} cannot be divided ({style}): it is {a_type(layer)}; expected a "
            f"{expected.__name__}. Leave it out of tensor_parallel_plan."
        )
    if getattr(layer, "_sparse", False):
        raise UnsupportedError(f"{name}: sparse gradients cannot be divided. Create it with sparse=False.")


def _check_lists(model: nn.Layer) -> None:
    """Parameters in lists are read by Paddle without the attribute of a layer that this module replaces."""
    for name, layer in model.named_sublayers(include_self=True):
        if isinstance(layer, nn.ParameterList):
            raise UnsupportedError(
                f"{name or type(model).__name__} is a ParameterList, which is not supported with tensor_parallel_size "
                "on Paddle. Make its parameters attributes of a layer."
            )


# -- DTensors of the parameters


def _compute_with_views(layer: nn.Layer, mesh: Any) -> None:
    """Have the attributes of a layer that are parameters or buffers read as DTensors of their whole shape.

    They are in the class of the layer, since Paddle looks there first; `parameters()` and `state_dict()` have what is
    stored.
    """
    names = [*layer._parameters, *layer._buffers]
    if names:
        kind = type(layer)
        views = {name: property(_view_of(name, mesh)) for name in names}
        made = {"__module__": kind.__module__, "__doc__": kind.__doc__, _VIEWS: True}
        layer.__class__ = type(kind.__name__, (kind,), made | views)


def _view_of(name: str, mesh: Any) -> Any:
    def view(layer: nn.Layer) -> Any:
        stored = layer._parameters.get(name)
        stored = layer._buffers.get(name) if stored is None else stored
        if stored is None or not stored._is_initialized():
            return stored
        part = part_of(stored)
        placement = dist.Replicate() if part is None else dist.Shard(part.dim)
        return _View.apply(stored, mesh, placement)

    return view


class _View(PyLayer):
    """A stored tensor as a DTensor on the same memory; its gradient is that of the part that is stored."""

    @staticmethod
    def forward(ctx: Any, stored: Any, mesh: Any, placement: Any) -> Any:
        ctx.mesh, ctx.placement = mesh, placement
        return dtensor_from_local(stored.detach(), mesh, [placement])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if not gradient.is_dist():
            return gradient
        if gradient.placements != [ctx.placement]:
            gradient = dist.reshard(gradient, ctx.mesh, [ctx.placement])
        return gradient._local_value()


class _Plain(PyLayer):
    """A DTensor as a plain tensor, whole in each process."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mesh: Any) -> Any:
        ctx.mesh = mesh  # that of the tensor would be freed with it
        return _replicated(tensor.detach())._local_value()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient if gradient.is_dist() else dtensor_from_local(gradient, ctx.mesh, [dist.Replicate()])


def _replicated(tensor: Any) -> Any:
    wanted = [dist.Replicate()]
    return tensor if tensor.placements == wanted else dist.reshard(tensor, tensor.process_mesh, wanted)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, paddle.Tensor)


def _whole(output: Any) -> Any:
    return _replicated(output) if _is_tensor(output) and output.is_dist() else output


def _plain_outputs(mesh: Any) -> Any:
    def plain(tensor: Any) -> Any:
        return _Plain.apply(tensor, mesh) if tensor.is_dist() else tensor

    return lambda layer, inputs, outputs: map_tensors(outputs, _is_tensor, plain)


def _detached_inputs(layer: nn.Layer, inputs: Any, options: Any) -> Any:
    """Paddle makes plain tensors that meet DTensors into DTensors in place: here copies of the caller's, on the same
    memory."""

    def alias(tensor: Any) -> Any:
        return tensor.detach() if tensor.stop_gradient else _Alias.apply(tensor)

    return map_tensors(inputs, _is_tensor, alias), map_tensors(options, _is_tensor, alias)


class _Alias(PyLayer):
    """Another tensor on the same memory, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _replicated(gradient)._local_value() if gradient.is_dist() else gradient
