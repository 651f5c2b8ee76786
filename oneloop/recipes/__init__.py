"""Recipes: from data files to a trained model without Python.

`oneloop train`, `oneloop predict` and `oneloop init` are made of this package. A script that `oneloop train --script`
printed imports `read_rows` and `split_rows` from here; the rest of it is the public API.
"""

from .rows import read_rows, split_rows

__all__ = ["read_rows", "split_rows"]
