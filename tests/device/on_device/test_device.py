"""The simulated accelerator itself: late, forgetful of what was never written, and unwilling to mix with the host."""

import pytest
import torch

from tests.device.simulated import NAME, StreamError, at_most


@pytest.fixture
def numbers(device):
    """A tensor that is computed on the device, later."""
    return torch.arange(6.0).to(NAME, non_blocking=True).reshape(2, 3) * 2


def test_a_copy_to_the_host_is_garbage_until_it_is_waited_for(device, numbers):
    host = numbers.to("cpu", non_blocking=True)
    event = torch.npu.Event()
    event.record()
    assert torch.isnan(host).all() and not event.query()
    event.synchronize()
    assert host.tolist() == [[0, 2, 4], [6, 8, 10]] and event.query()


@pytest.mark.parametrize(
    "dtype, garbage", [(torch.float32, None), (torch.int64, 0x5A5A5A5A5A5A5A5A), (torch.uint8, 90), (torch.bool, True)]
)
def test_memory_that_nothing_was_written_to(device, dtype, garbage):
    value = torch.empty(3, dtype=dtype, device=NAME).cpu()
    assert torch.isnan(value).all() if garbage is None else value.tolist() == [garbage] * 3


def test_a_host_tensor_that_changes_before_it_was_copied(device):
    host = torch.ones(3)
    copy = host.to(NAME, non_blocking=True)
    host.fill_(7.0)
    assert copy.cpu().tolist() == [7.0] * 3
    copy = host.to(NAME)  # waits
    host.fill_(8.0)
    assert copy.cpu().tolist() == [7.0] * 3


def test_host_and_device_do_not_mix(device, numbers):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        numbers + torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.linear(numbers, torch.ones(4, 3))
    with pytest.raises(TypeError, match="can't convert npu"):
        numbers.numpy()
    assert (numbers + torch.tensor(1.0)).cpu().tolist() == [[1, 3, 5], [7, 9, 11]], "numbers may come from the host"


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: x[x > 2],
        lambda x: torch.equal(x, x),
        lambda x: x.nonzero(),
        lambda x: torch.tensor([1.0], device=NAME),
        lambda x: torch.npu.synchronize(),
        lambda x: torch.npu.current_stream().synchronize(),
    ],
)
def test_what_makes_the_host_wait(device, numbers, read):
    read(numbers)
    assert len(device.syncs) >= 1


@pytest.mark.parametrize(
    "work",
    [
        lambda x: (x @ x.T).relu().sum(),
        lambda x: torch.where(x > 2, x, 0),
        lambda x: x.to(torch.bfloat16),
        lambda x: torch.zeros(3, device=NAME) + x,
        lambda x: torch.nn.functional.dropout(x, 0.5),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: torch._foreach_norm([x, x]),
    ],
)
def test_what_does_not(device, numbers, work):
    work(numbers)
    assert device.syncs == []


def test_an_event_with_work_behind_it_is_no_sync(device, numbers):
    event = torch.npu.Event()
    event.record()
    numbers + 1
    event.synchronize()
    assert device.syncs == [] and device.waits == 1 and not torch.npu.current_stream().query()


def test_streams_have_to_wait_for_each_other(device, numbers):
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        early = numbers + 1
    with pytest.raises(StreamError, match="does not wait"):
        side.synchronize()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        late = numbers + 1
    side.synchronize()
    assert late.value.data.tolist() == [[1, 3, 5], [7, 9, 11]] and early.value.data is None


def test_memory_is_counted_and_freed(device):
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    x = torch.zeros(1000, device=NAME)
    view = x[10:].reshape(-1, 10)
    assert torch.npu.memory_allocated() - before == 4000, "a view needs none"
    y = x * 2
    del x, y
    assert torch.npu.memory_allocated() - before == 4000, "the view keeps it"
    del view
    assert torch.npu.memory_allocated() == before and torch.npu.max_memory_allocated() - before == 8000
    with at_most(before + 100), pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.zeros(1000, device=NAME)


def test_random_numbers_are_the_devices_own(device):
    torch.manual_seed(3)
    torch.npu.manual_seed_all(5)
    host = torch.get_rng_state()
    first = torch.rand(4, device=NAME)
    state = torch.npu.get_rng_state()
    second = torch.rand(4, device=NAME)
    assert not torch.equal(first, second) and torch.equal(host, torch.get_rng_state())
    torch.npu.set_rng_state(state)
    assert torch.equal(second, torch.rand(4, device=NAME))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(device, dtype):
    layer = torch.nn.Linear(3, 2).to(NAME)
    x = torch.ones(4, 3, device=NAME)
    with torch.autocast(NAME, dtype=dtype):
        y = layer(x)
        assert y.dtype == dtype and (y.float() @ x[:2, :2]).dtype == dtype
        assert torch.softmax(y, -1).dtype == torch.float32
    assert layer(x).dtype == torch.float32
    y.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_tied_weights_stay_tied(device):
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second).to(NAME)
    assert model[0].weight is model[1].weight and model[0].weight.device.type == NAME
    assert model[0].weight.data_ptr() != model[0].bias.data_ptr()
