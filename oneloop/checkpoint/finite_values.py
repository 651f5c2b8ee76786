"""A checkpoint whose weights are not finite is not committed: it would be resumed from instead of the good one."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..backends._common.helpers import some
from ..errors import NonFiniteError
from ..formats.safetensors_io import Raw
from .contents import Contents

if TYPE_CHECKING:
    from ..trainer.internals import Internals

logger = logging.getLogger(__name__)

BLOCK = 1 << 20  # elements looked at together, so that other threads can run in between

# Types that NumPy lacks, as unsigned integers: the bits of the exponent, which are all set if a value is not finite.
_EXPONENTS = {"BF16": 0x7F80, "F8_E5M2": 0x7C, "F8_E4M3": 0x7F}


def is_finite(raw: Raw) -> bool:
    """Whether a stored tensor has neither NaN nor infinity; types without them do not."""
    if not raw.size or not raw.dtype.startswith(("F", "BF")):
        return True
    values, bits = raw.array().reshape(-1), _EXPONENTS.get(raw.dtype)
    blocks = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    if bits is None:
        return all(bool(np.isfinite(block).all()) for block in blocks)
    return not any(bool(((block & bits) == bits).any()) for block in blocks)


class FiniteValues:
    """Looks at what a checkpoint stores of the model: trainable parameters, and buffers that were finite when train()
    began. Created for each run."""

    def __init__(self, core: "Internals") -> None:
        self.core = core
        self._exempt: set[str] = set()

    def start(self) -> None:
        """When train() begins, with the weights that it starts from: masks of minus infinity are meant to be so."""
        self._exempt = set(self._bad_buffers())

    def _bad_buffers(self) -> list[str]:
        models, tensors = self.core.backend.models, self.core.backend.tensors
        return [
            buffer.name for buffer in models.buffers(self.core.trainer.model) if not tensors.is_finite(buffer.current)
        ]

    def _names(self) -> set[str]:
        """Of the tensors that have to be finite. Asked for by the thread that trains."""
        core = self.core
        models, model = core.backend.models, core.trainer.model
        trained = {name for name, _ in models.named_parameters(model)}
        return (trained | {buffer.name for buffer in models.buffers(model)}) - self._exempt

    def checking(self, contents: Contents, what: str) -> Callable[[], None]:
        """A function that looks at copies, for the thread that writes them."""
        return partial(self._check_contents, contents, self._names(), what)

    def _check_contents(self, contents: Contents, names: set[str], what: str) -> None:
        self._conclude(
            [
                name
                for file, (group, _) in contents.tensors.items()
                if file.startswith("model")
                for name, raw in group.items()
                if name in names and not is_finite(raw)
            ],
            what,
        )

    def check_model(self, what: str) -> None:
        """Look at the model itself, whose files others write. A host sync."""
        core = self.core
        if core.strategy.in_parts:  # each process has a shard of some tensors
            return
        models, tensors = core.backend.models, core.backend.tensors
        bad = [name for name, p in models.named_parameters(core.trainer.model) if not tensors.is_finite(p)]
        self._conclude([*bad, *(name for name in self._bad_buffers() if name not in self._exempt)], what)

    def _conclude(self, bad: list[str], what: str) -> None:
        if not bad:
            return
        words = f"the model has weights or buffers that are not finite: {some(sorted(bad))}"
        if self.core.trainer.args.nonfinite != "ignore":
            raise NonFiniteError(words)
        logger.warning("%s is saved, but %s (nonfinite='ignore').", what, words)
