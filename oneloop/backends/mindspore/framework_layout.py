"""Names and axes of the tensors, for checkpoints that another framework resumes from."""

from typing import Any

from mindspore import nn

from ...converters.framework_layout import Place
from .models import unwrap

# By layer type: its own name of the weight, and the axes: o(ut), i(n), n(umber), v(ector), d(epth), h(eight), w(idth).
AXES: dict[type, tuple[str, str]] = {
    nn.Dense: ("weight", "oi"),
    nn.Embedding: ("embedding_table", "nv"),
    nn.Conv1d: ("weight", "oi1w"),
    nn.Conv2d: ("weight", "oihw"),
    nn.Conv3d: ("weight", "oidhw"),
    nn.Conv1dTranspose: ("weight", "io1w"),
    nn.Conv2dTranspose: ("weight", "iohw"),
    nn.Conv3dTranspose: ("weight", "iodhw"),
}
NAMES = {  # the common names are torch's
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embedding_table": "weight",
}


def layout(model: Any) -> dict[str, Place]:
    """Every name of the model's state with its common name and its axes."""
    base = unwrap(model)
    found = {}
    for prefix, cell in base.cells_and_names():
        at = f"{prefix}." if prefix else ""
        word, axes = next((entry for known, entry in AXES.items() if isinstance(cell, known)), ("", ""))
        ours = type(cell).__module__.startswith("mindspore.nn")  # a user's own `gamma` keeps its name
        for own in cell._params:
            common = NAMES.get(own, own) if ours else own
            found[f"{at}{own}"] = Place(f"{at}{common}", axes if own == word else "")
    return found
