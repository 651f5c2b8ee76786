import itertools
import warnings

import numpy as np
import pytest

from tests.backends.support import names
from tests.golden import golden


@pytest.mark.parametrize("framework", names())
def test_losses_have_the_golden_digits(framework, tmp_path):
    """All bits on the versions and the processor that wrote the file; elsewhere as near as rounding lets them be."""
    written, expected = golden.read(framework)
    found = golden.losses(framework, tmp_path)
    assert len(found) == len(expected) == 100
    if written == golden.circumstances(framework):
        assert found.tobytes() == expected.tobytes()
    else:
        warnings.warn(f"golden losses of {written}; here it is {golden.circumstances(framework)}", stacklevel=1)
        assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("first, second", itertools.combinations(names(), 2))
def test_frameworks_agree(first, second):
    assert np.abs(golden.read(first)[1] - golden.read(second)[1]).max() < 1e-5
