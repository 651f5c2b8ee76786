"""Names and axes of the tensors, for checkpoints that another framework resumes from."""

from torch import nn

from ...converters.framework_layout import ONLY_HERE, Place
from .models import unwrap

# Axes of `weight` by layer type: o(ut), i(n), n(umber), v(ector), d(epth), h(eight), w(idth).
AXES: dict[type, str] = {
    nn.Linear: "oi",
    nn.Embedding: "nv",
    nn.EmbeddingBag: "nv",
    nn.Conv1d: "oiw",
    nn.Conv2d: "oihw",
    nn.Conv3d: "oidhw",
    nn.ConvTranspose1d: "iow",
    nn.ConvTranspose2d: "iohw",
    nn.ConvTranspose3d: "iodhw",
}


def layout(model: nn.Module) -> dict[str, Place]:
    """Every name of the model's state with its common name and its axes."""
    base = unwrap(model)
    axes = {}
    for prefix, module in base.named_modules():
        name = f"{prefix}." if prefix else ""
        # GPT-2's linear layer, Conv1D, has transposed weights.
        if type(module).__name__ == "Conv1D":
            axes[f"{name}weight"] = "io"
        axes |= {f"{name}weight": kind for layer, kind in AXES.items() if isinstance(module, layer)}
        axes[f"{name}num_batches_tracked"] = ONLY_HERE
    return {name: Place(name, axes.get(name, "")) for name in base.state_dict()}
