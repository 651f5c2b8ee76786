"""How many samples a batch has, by which its loss counts."""

import numpy as np
import pytest

from oneloop.data.batch_sizes import batch_rows

PROMPT = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "user", "content": "c"}]
ROWS = [
    ({"x": np.zeros((4, 2)), "labels": np.zeros(4)}, 4),
    ((np.zeros((3, 2)), np.zeros(3)), 3),
    ({"name": "a", "pixels": [np.zeros((5, 2, 2)), np.zeros((5, 2, 2))]}, 5),
    ([{"ids": np.zeros((6, 2))}, {"ids": np.zeros((6, 3))}], 6),
    # text that is tokenized later: columns, as a CrossEncoder takes them, and samples
    ({"query": ["a", "b"], "answer": ["c", "d"]}, 2),
    ({"dataset_name": "a", "query": ["a", "b"], "answer": ["c", "d"]}, 2),
    ({"query": ["a", "b"], "docs": [["c"] * 3, ["d"] * 3], "label": [np.zeros(3), np.zeros(3)]}, 2),
    ((["a", "b", "c"], ["d", "e", "f"]), 3),
    (["a", "b", "c"], 3),
    ([{"prompt": "a"}, {"prompt": "b"}], 2),
    ([{"prompt": PROMPT}, {"prompt": PROMPT}], 2),
    ({"name": "a", "n": 3}, None),
    ({}, None),
    ([], None),
    (None, None),
]


@pytest.mark.parametrize(("batch", "rows"), ROWS)
def test_rows(batch, rows):
    assert batch_rows(batch) == rows
