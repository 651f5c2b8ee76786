"""The plan of tensor parallelism: which layers of a model are divided, and how."""

from typing import TYPE_CHECKING, Any

from . import values

if TYPE_CHECKING:
    from .given import Config

# As in the plans of transformers' models. What a backend does with each is in its module tensor_parallel.
STYLES = (
    "colwise",
    "colwise_gather_output",
    "colwise_rep",
    "rowwise",
    "rowwise_split_input",
    "rowwise_rep",
    "embedding_rowwise",
    "embedding_colwise",
    "replicated_with_grad_allreduce",
    "replicate",
)


def to_tensor_plan(name: str, value: "Config") -> dict[str, Any]:
    """Names of layers, with `*` for one part of a name, and how each is divided."""
    plan = values.to_config(name, value)
    for layer, style in plan.items():
        if not layer:
            raise values.invalid(name, value, "names of layers, such as layers.*.up, but one is empty")
        values.to_member(f"{name}[{layer!r}]", style, STYLES)
    return plan
