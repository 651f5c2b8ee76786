"""Divide the layers of a model along the tensor axis, by a plan.

A plan has names of layers, and how each is divided: {"layers.*.up": "colwise", "layers.*.down": "rowwise"}. The words
are those of the plans that models have (`tp_plan`). torch's own styles do the work: weights become DTensors, and hooks
around a layer turn its plain input into a DTensor and its output back.

| style | weight | input | output |
|---|---|---|---|
| colwise | rows | whole | columns |
| colwise_gather_output | rows | whole | whole |
| rowwise | columns | columns | whole |
| rowwise_split_input | columns | whole | whole |
| embedding_rowwise | rows (words) | whole | whole |
| embedding_colwise | columns | whole | whole |
| replicated_with_grad_allreduce | whole | divided | divided: gradients are added up |
| replicate | whole | whole | whole |

What no plan mentions stays as it is.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.utils.weak import WeakTensorKeyDictionary

from ...distributed.mesh import DATA, EXPERT, SHARD, TENSOR
from ...errors import ArgumentError, ModelError, UnsupportedError, a_type
from .._common import tensor_plans as plans
from .._common.tensor_plans import (
    COLWISE,
    EMBEDDING_COLUMNS,
    EMBEDDING_ROWS,
    GATHERED,
    ROWWISE,
    SPLITS_INPUT,
    SUMMED,
    WHOLE,
)
from . import adapters
from .models import base_of, is_adapter, unwrap


def _style(word: str) -> ParallelStyle:
    if word in COLWISE:
        return ColwiseParallel()
    if word in GATHERED:
        return ColwiseParallel(output_layouts=Replicate())
    if word in ROWWISE:
        return RowwiseParallel()
    if word in SPLITS_INPUT:
        return RowwiseParallel(input_layouts=Replicate())
    if word == EMBEDDING_ROWS:
        return RowwiseParallel(input_layouts=Replicate())
    return ColwiseParallel(output_layouts=Replicate())  # embedding_colwise


KINDS: dict[str, type[nn.Module]] = {
    **dict.fromkeys((*COLWISE, *GATHERED, *ROWWISE, *SPLITS_INPUT), nn.Linear),
    **dict.fromkeys((EMBEDDING_ROWS, EMBEDDING_COLUMNS), nn.Embedding),
}


@dataclass
class Division:
    """What was divided in a model."""

    styles: dict[str, str] = field(default_factory=dict)  # by the name of a layer
    summed: set[str] = field(default_factory=set)  # whole parameters whose gradients are added up along the axis
    # The parameters that replaced others, which nothing here keeps in memory.
    swapped: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    columns: list[nn.Module] = field(default_factory=list)  # whose output is divided
    rows: list[nn.Module] = field(default_factory=list)  # whose input is divided
    adapted: list[nn.Module] = field(default_factory=list)  # those of them that have an adapter, with its dropout


_divisions: weakref.WeakKeyDictionary[nn.Module, Division] = weakref.WeakKeyDictionary()


def is_divided(model: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())


def known_division(model: nn.Module) -> Division | None:
    """How a model was divided here, also for another Trainer."""
    return _divisions.get(base_of(model))


def size_of(model: nn.Module) -> int:
    """The number of processes over which the layers of a model are divided; 1 for a whole one."""
    for p in model.parameters():
        if isinstance(p, DTensor):
            names = p.device_mesh.mesh_dim_names
            if names is not None and "fsdp" in names:
                _refuse_sharded(model)
                return 1
            if names is None or (len(names) == 1 and names[0] not in (DATA, SHARD, EXPERT)):
                return p.device_mesh.size()
            if TENSOR in names:
                return p.device_mesh[TENSOR].size()
    return 1


def _refuse_sharded(model: nn.Module) -> None:
    """An error for a model whose loader has sharded it; experts that it has divided are explained elsewhere."""
    if not any(getattr(module, "_is_expert_parallel", False) for module in model.modules()):
        raise UnsupportedError(
            "the parameters of this model were sharded when it was loaded (fsdp_size of its DistributedConfig). Load "
            "it without fsdp_size, and pass sharding='stage3' to the arguments."
        )


def styles_of(model: nn.Module, given: dict[str, str] | None, size: int) -> dict[str, str]:
    """How each layer of a model will be divided over that many processes, by the given plan or by its own. An error for
    what cannot be divided."""
    base = base_of(model)
    styles = _matched(base, given)
    if is_adapter(unwrap(model)):
        styles = _with_adapters(base, styles)
    _check(base, styles, size)
    _check_ties(styles, _tied(base))
    return styles


def divide(model: nn.Module, mesh: DeviceMesh, given: dict[str, str] | None) -> Division:
    """Divide the layers of a whole model in place."""
    base, styles = base_of(model), styles_of(model, given, mesh.size())
    tied, before = _tied(base), dict(model.named_parameters())
    found, summed = Division(styles), list[nn.Parameter]()
    for name, word in styles.items():
        module = base.get_submodule(name)
        if word == SUMMED:
            summed += module.parameters(recurse=False)
        elif word not in WHOLE:
            parallelize_module(module, mesh, _style(word), src_data_rank=None)
    _tie_again(base, tied)
    _divisions[base] = found
    after = dict(model.named_parameters())
    found.summed = set(names_of(model, summed))
    for name, p in before.items():
        if after[name] is not p:
            found.swapped[p] = after[name]
    for name, word in styles.items():
        outer, is_adapted = _outer_name(name), name.endswith(".base_layer")
        if word in COLWISE + ROWWISE and (is_adapted or outer == name):
            layer = base.get_submodule(outer)
            (found.columns if word in COLWISE else found.rows).append(layer)
            found.adapted += [layer] * is_adapted
    return found


# -- models that arrive divided


def take_over(model: nn.Module, mesh: DeviceMesh) -> bool:
    """Put the parts of a model that was divided when it was loaded onto this mesh, and remove what its loader has put
    around its layers, so that divide() finishes it. False if somebody else has divided it, whose hooks are kept."""
    base, parts = base_of(model), {}
    ranks = mesh.mesh.flatten().tolist()
    for name, p in base.named_parameters():
        if not isinstance(p, DTensor):
            continue
        if p.device_mesh.ndim > 1 or p.device_mesh.mesh.flatten().tolist() != ranks:
            raise ModelError(
                f"{name} is divided over the ranks {p.device_mesh.mesh.tolist()}, but the tensor axis has {ranks}. "
                "Divide the model along one axis when loading it, and shard it by the argument sharding."
            )
        parts[name] = p
    layers = [layer for layer in base.modules() if _is_wrapped_by_loader(layer)]
    if not layers:
        return False
    for layer in layers:
        del layer.__dict__["forward"]
    tied = _tied(base)
    for name, p in parts.items():
        part = DTensor.from_local(
            p.to_local().detach(), mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride()
        )
        owner, _, last = name.rpartition(".")
        base.get_submodule(owner)._parameters[last] = nn.Parameter(part, p.requires_grad)
    _tie_again(base, tied)
    return True


def _is_wrapped_by_loader(layer: nn.Module) -> bool:
    """Whether its forward was replaced by that of a loader that divides models."""
    own = vars(layer).get("forward")
    return getattr(own, "__module__", "").endswith(".distributed.tensor_parallel")


# -- the plan


def _matched(model: nn.Module, given: dict[str, str] | None) -> dict[str, str]:
    """The style of each layer that the plan names. In a plan of the arguments each name has a layer; that of a model
    may name layers that this one is without."""
    known = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    plan = plans.plan_of(model, given, known)
    names = [name for name, _ in model.named_modules() if name]
    if given is None:
        _check_parameters(model, plan, names)
    return plans.matched_layers(plan, names, type(model).__name__, known, may_miss=given is None)


def _check_parameters(model: nn.Module, plan: dict[str, str], layers: list[str]) -> None:
    """An error for what the plan of a model says of a parameter by its own name, which no style here divides."""
    parameters = [name for name, _ in model.named_parameters()]
    for pattern, word in plan.items():
        of_layer = any(plans.matches(name, pattern) for name in layers)
        if word not in WHOLE and not of_layer and any(plans.matches(name, pattern) for name in parameters):
            raise _unsupported(pattern, word)


def _with_adapters(model: nn.Module, styles: dict[str, str]) -> dict[str, str]:
    """The layers inside of those that LoRA has wrapped. Of a colwise layer, A stays whole and B is divided as the
    layer; of a rowwise one, A is divided as the layer and B stays whole."""
    found: dict[str, str] = {}
    for name, word in styles.items():
        module = model.get_submodule(name)
        if not hasattr(module, "base_layer"):
            found[name] = word
            continue
        found[f"{name}.base_layer"] = word
        for part, trained in adapters.lora_layers(module):
            if word in (EMBEDDING_ROWS, EMBEDDING_COLUMNS, *GATHERED, *SPLITS_INPUT):
                raise UnsupportedError(
                    f"{name} is divided ({word}) and has an adapter, which is not supported with "
                    "tensor_parallel_size. Leave this layer out of the adapter's target_modules."
                )
            divided = "lora_B" if word in COLWISE else "lora_A"
            if part == divided:
                found[f"{name}.{part}.{trained}"] = word
    return found


def _outer_name(name: str) -> str:
    """The layer with its adapter, if this is a layer inside of it."""
    for inside in (".base_layer", ".lora_A.", ".lora_B."):
        name = name.partition(inside)[0]
    return name


# -- checks


def _unsupported(name: str, word: str) -> UnsupportedError:
    return UnsupportedError(
        f"the plan for tensor parallelism has {word!r} for {name}, which is not supported. Supported are "
        f"{', '.join((*KINDS, *WHOLE))}. Pass a tensor_parallel_plan without this layer, which then stays whole."
    )


def _check(model: nn.Module, styles: dict[str, str], size: int) -> None:
    for name, word in styles.items():
        module: Any = model.get_submodule(name)
        if word in WHOLE:
            continue
        if word not in KINDS:
            raise _unsupported(name, word)
        if not isinstance(module, KINDS[word]):
            raise UnsupportedError(
                f"{name} cannot be divided ({word}): it is {a_type(module)}; expected a "
                f"{KINDS[word].__name__}. Leave it out of tensor_parallel_plan."
            )
        if word in COLWISE:
            _check_divisible(name, "out_features", module.out_features, size)
            _check_heads(model, name, module.out_features, size)
        if word in ROWWISE or word in SPLITS_INPUT:
            _check_divisible(name, "in_features", module.in_features, size)
        if word == EMBEDDING_COLUMNS:
            _check_divisible(name, "embedding_dim", module.embedding_dim, size)
        if getattr(module, "sparse", False):
            raise UnsupportedError(f"{name}: sparse gradients cannot be divided. Create it with sparse=False.")
        if any(True for _ in module.named_children()) or torch.nn.utils.parametrize.is_parametrized(module):
            raise UnsupportedError(f"{name} has further layers or parametrizations inside, and cannot be divided")


def _check_divisible(name: str, what: str, number: int, size: int) -> None:
    if number % size:
        raise ArgumentError(
            f"{name} has {what}={number}, which tensor_parallel_size={size} does not divide. Use a divisor of {number}."
        )


def _check_heads(model: nn.Module, name: str, width: int, size: int) -> None:
    """A head is not divided."""
    of_head = _size_of_head(model, name)
    if of_head and width % of_head == 0 and (width // of_head) % size:
        raise ArgumentError(
            f"{name} has {width // of_head} heads, which tensor_parallel_size={size} does not divide. Use a "
            f"divisor of {width // of_head}."
        )


def _size_of_head(model: nn.Module, name: str) -> int:
    """That of the attention which a layer belongs to, which has it under one of these names; 0 for other layers."""
    parent: Any = model.get_submodule(_outer_name(name).rpartition(".")[0])
    sizes = (getattr(parent, attribute, None) for attribute in ("head_dim", "attention_head_size"))
    return next((size for size in sizes if isinstance(size, int) and size > 0), 0)


def divides_heads(model: nn.Module) -> bool:
    """Whether each process has some of the heads of a divided model."""
    base, found = base_of(model), known_division(model)
    return found is not None and any(w in COLWISE and _size_of_head(base, n) for n, w in found.styles.items())


# -- tied weights


def _tied(model: nn.Module) -> list[list[str]]:
    """The names of parameters that are the same."""
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    return [group for group in names.values() if len(group) > 1]


_DIVIDED_DIM = {
    **dict.fromkeys((*COLWISE, *GATHERED, EMBEDDING_ROWS), 0),
    **dict.fromkeys((*ROWWISE, *SPLITS_INPUT, EMBEDDING_COLUMNS), 1),
}


def _check_ties(styles: dict[str, str], tied: list[list[str]]) -> None:
    for names in tied:
        dims = {name: _DIVIDED_DIM.get(styles.get(name.rpartition(".")[0], "")) for name in names}
        if len(set(dims.values())) > 1:
            how = ", ".join(f"{name} ({styles.get(name.rpartition('.')[0], 'whole')})" for name in names)
            raise ModelError(
                f"tied weights would be separated: {how}. Divide all of them by the same dim in "
                f"tensor_parallel_plan, such as "
                '"embedding_rowwise" with "colwise_gather_output", or none.'
            )


def _tie_again(model: nn.Module, tied: list[list[str]]) -> None:
    for first, *others in tied:
        owner, _, last = first.rpartition(".")
        shared = model.get_submodule(owner)._parameters[last]
        for name in others:
            owner, _, last = name.rpartition(".")
            model.get_submodule(owner)._parameters[last] = shared


def names_of(model: nn.Module, parameters: list[nn.Parameter]) -> Iterator[str]:
    wanted = {id(p) for p in parameters}
    return (name for name, p in model.named_parameters() if id(p) in wanted)
