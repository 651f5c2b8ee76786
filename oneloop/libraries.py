"""What is known of other libraries' objects that a run may meet, by their names: `compat` fills it in.

Nothing is imported to recognise them. Without an entry, an object is treated like any other.
"""

from collections.abc import Callable, Mapping
from typing import Any

StateShapes = Callable[[tuple[int, ...], Mapping[str, Any]], dict[str, tuple[int, ...] | None]]

# Packages with models whose `loss_function`, or the name of whose class, says whether they shift their labels.
MODELS: set[str] = set()
# Packages with models that keep packed documents apart by position_ids that start again, as they need no mask for it.
PACKED_BY_POSITIONS: set[str] = set()
# Modules of data loaders that give each process its own batches already.
SHARDING_LOADERS: set[str] = set()
# Qualified name of an optimizer's class -> what it keeps for a parameter of a shape, with the options of its group: the
# shape of each tensor, of any type; None for a number.
OPTIMIZER_STATES: dict[str, StateShapes] = {}
# Distributions whose versions are recorded with a run, if they are installed.
RECORDED: list[str] = []
