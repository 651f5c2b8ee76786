"""The model compiled with mindspore.jit if that computes the same; otherwise the uncompiled model, with a warning."""

import logging
from functools import partial
from typing import Any

import mindspore as ms
from mindspore import nn

from . import dropout

try:
    from mindspore.graph.api import _pynative_executor
except ImportError:  # before 2.9
    from mindspore.common.api import _pynative_executor

logger = logging.getLogger(__name__)


class Again(Exception):
    """Raised when the compiler fails during a forward pass that is being differentiated: run it again."""


class Compiled:
    """Calls a cell through a graph, of which there is one for training and one for evaluation."""

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell
        self.graphs: dict[bool, Any] = {}  # by cell.training; None if the cell itself is called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        training = self.cell.training
        if training not in self.graphs:
            reason = obstacle(self.cell)
            # Without fullgraph, unsupported code falls back to Python, and gradients are silently lost there.
            jit = partial(ms.jit, fullgraph=True)
            self.graphs[training] = jit(self.cell.construct) if reason is None else self._give_up(reason)
        graph = self.graphs[training]
        if graph is None:
            return self.cell(*args, **kwargs)
        watched = _pynative_executor.grad_flag()  # read before, since a failure of the compiler resets it
        try:
            return graph(*args, **kwargs)
        except Exception as error:
            self.graphs[training] = self._give_up(_first_line(error))
            if watched:
                raise Again from error
            return self.cell(*args, **kwargs)

    def _give_up(self, reason: str) -> Any:
        """Returns None: the cell itself is called from now on."""
        what = "training" if self.cell.training else "evaluation"
        logger.warning("mindspore.jit is not used for %s: %s. The model runs uncompiled.", what, reason)
        return None

    def __getattr__(self, name: str) -> Any:
        if name == "cell":
            raise AttributeError(name)
        return getattr(self.cell, name)


def obstacle(cell: nn.Cell) -> str | None:
    """What a graph would freeze although it must change in each forward pass; None if there is nothing."""
    if cell.training and dropout.is_active(cell):
        return "the masks of dropout layers come from an RNG outside of the graph, so that a resume has the same masks"
    for name, inner in cell.cells_and_names():
        if inner._forward_hook or inner._forward_pre_hook:
            return f"{name or 'the model'} has a hook (neftune_noise_alpha and debug set such)"
    return None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    return f"{type(error).__name__}: {lines[0][:200].rstrip('.') if lines else 'no reason given'}"
