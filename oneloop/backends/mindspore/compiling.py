"""The model behind mindspore.jit."""

import logging
from typing import Any

from mindspore import nn

logger = logging.getLogger(__name__)


class Compiled:
    """Calls a cell; the graph compiler comes later."""

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.cell(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "cell":
            raise AttributeError(name)
        return getattr(self.cell, name)
