"""Names and axes of the tensors, for checkpoints that another framework resumes from."""

from paddle import nn

from ...converters.framework_layout import Place
from .models import unwrap

# Axes of `weight` by layer type: o(ut), i(n), n(umber), v(ector), d(epth), h(eight), w(idth).
AXES: dict[type, str] = {
    nn.Linear: "io",
    nn.Embedding: "nv",
    nn.Conv1D: "oiw",
    nn.Conv2D: "oihw",
    nn.Conv3D: "oidhw",
    nn.Conv1DTranspose: "iow",
    nn.Conv2DTranspose: "iohw",
    nn.Conv3DTranspose: "iodhw",
}
NAMES = {"_mean": "running_mean", "_variance": "running_var"}  # the common names are torch's


def layout(model: nn.Layer) -> dict[str, Place]:
    """Every name of the model's state with its common name and its axes."""
    base = unwrap(model)
    axes: dict[str, str] = {}
    names: dict[str, str] = {}
    for prefix, layer in base.named_sublayers(include_self=True):
        at = f"{prefix}." if prefix else ""
        axes |= {f"{at}weight": kind for known, kind in AXES.items() if isinstance(layer, known)}
        if "norm" in type(layer).__name__.lower():
            names |= {f"{at}{own}": f"{at}{common}" for own, common in NAMES.items()}
    return {name: Place(names.get(name, name), axes.get(name, "")) for name in base.state_dict()}
