"""The coefficient by which gradients are clipped, computed on the host, is torch's own to the last bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oneloop.backends.torch.engine import _clip_coefficient


@given(
    norm=st.floats(min_value=2.0**-20, max_value=2.0**120, width=32),
    limit=st.floats(min_value=1e-6, max_value=1e6),
)
@settings(max_examples=300, deadline=None)
def test_clip_coefficient_equals_torchs(norm, limit):
    tensor = torch.tensor(norm)
    expected = torch.clamp(limit / (tensor + 1e-6), max=1.0)
    assert torch.equal(_clip_coefficient(tensor.clone(), norm, limit), expected)


@pytest.mark.parametrize("limit", [1.0, 0.3, 5.0])
def test_clipped_gradients_equal_those_of_clip_grad_norm(limit):
    generator = torch.Generator().manual_seed(3)
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (7, 130)]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    gradients = [parameter.grad.clone() for parameter in parameters]
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    torch._foreach_mul_(gradients, _clip_coefficient(norm.clone(), norm.item(), limit))
    for ours, parameter in zip(gradients, parameters):
        assert torch.equal(ours, parameter.grad)


def test_half_precision_norms_stay_with_torch():
    norm = torch.tensor(3.0, dtype=torch.bfloat16)
    expected = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
    assert torch.equal(_clip_coefficient(norm, 3.0, 1.0), expected)
