"""The user's module is found in wrappers, and a layer that is called `module` is not taken for one."""

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from oneloop.backends.torch.models import unwrap  # noqa: E402


class Holder(nn.Module):
    """Has a layer of the name under which wrappers have the model."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class DeepSpeedEngine(Holder):
    """As DeepSpeed's engine is recognised, whose package need not be installed."""


DeepSpeedEngine.__module__ = "deepspeed.runtime.engine"


class Hybrid(DeepSpeedEngine):
    pass


@pytest.mark.parametrize("wrapper", [nn.DataParallel, DeepSpeedEngine, Hybrid])
def test_wrappers(wrapper):
    model = nn.Linear(2, 2)
    assert unwrap(wrapper(model)) is model
    assert unwrap(torch.compile(wrapper(model), backend="eager")) is model
    assert unwrap(wrapper(torch.compile(model, backend="eager"))) is model


def test_a_layer_of_that_name_is_no_wrapped_model():
    model = Holder(nn.Linear(2, 2))
    assert unwrap(model) is model
    assert unwrap(nn.DataParallel(model)) is model
