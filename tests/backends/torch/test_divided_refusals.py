"""What sharding refuses before anything is divided."""

from types import SimpleNamespace

import pytest

from oneloop.backends.torch import sharding
from oneloop.checkpoint.convert import from_transformers
from oneloop.errors import RefusedError
from tests.backends.torch.test_adapters import adapted


def test_an_adapter_is_not_divided():
    with pytest.raises(RefusedError, match="a PEFT model writes its own files.*sharding='stage1'"):
        sharding._check(adapted("mine"))


@pytest.mark.parametrize("strategy", [sharding.SharedOptimizer, sharding.FullyShared])
def test_a_checkpoint_of_transformers_is_not_divided(strategy, tmp_path):
    core = SimpleNamespace(trainer=None, strategy=SimpleNamespace(in_parts=strategy.in_parts))
    with pytest.raises(RefusedError, match="for one step without sharding"):
        from_transformers.load_run(SimpleNamespace(core=core), tmp_path)
