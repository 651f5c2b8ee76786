"""An accelerator that exists in software only: `torch.device("npu")`, registered from Python.

Its name is that of Ascend devices, whose own package registers them in the same place of PyTorch (PrivateUse1). A
tensor on it is a wrapper: shapes are computed at once on the meta device, as a host does that launches kernels; the
values are computed on the CPU, later. What a real device does to code that reads too early happens here every time:

- Operations are queued, and run only when the host waits for them: `synchronize()`, an event, `.item()`, `.cpu()`.
- Memory is filled with NaN (floats) or 90 in every byte (integers) until something is written to it. So is the target
  of a `non_blocking` copy to the host, until the host has waited.
- The source of a `non_blocking` copy to the device is read when the copy runs, as if its memory were pinned.
- An operation on tensors of both the host and the device raises an error, unless the host's is a single number.
- Host syncs and bytes are counted. `limit` makes it run out of memory.

PyTorch lets Python define neither a generator (`torch.Generator(device="npu")`), nor pinned memory, nor streams and
events of the types `torch.Stream` and `torch.Event`. Random numbers come from `torch.npu`'s seed and a count of random
operations, as on CUDA; streams and events are `torch.npu.Stream` and `torch.npu.Event`.
"""

import contextlib
import functools
import threading
import traceback
import weakref
from collections import deque
from types import SimpleNamespace

import torch
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten

NAME = "npu"
GARBAGE = 0x5A  # in every byte of integers that nothing was written to
LONGEST_QUEUE = 200_000  # operations; then the oldest half runs


class StreamError(RuntimeError):
    """An operation ran before the one that computes its input: the streams were not made to wait for each other."""


class Value:
    """The values of a tensor on the device: None until the operation that computes them has run."""

    __slots__ = ("data",)

    def __init__(self, data=None):
        self.data = data

    def read(self):
        if self.data is None:
            raise StreamError("a tensor was used on a stream that does not wait for the stream that computes it")
        return self.data


class Memory:
    """The device's memory, counted as its allocator would: when the host asks for it, and when it lets go of it."""

    def __init__(self):
        self.limit = None
        self.allocated = self.peak = self.failures = 0
        self._next = 1 << 20
        self._blocks = weakref.WeakValueDictionary()  # by the storage of the meta tensor

    def block_of(self, meta):
        """The block of memory of a tensor; a new one unless it shares that of another."""
        storage = meta.untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None:
            block = self._blocks[storage._cdata] = self._allocate(storage.nbytes())
        return block

    def _allocate(self, size):
        # Not in the thread of the backward pass: PyTorch ends the process if Python raises an error there.
        can_fail = self.limit is not None and threading.current_thread() is threading.main_thread()
        if can_fail and self.allocated + size > self.limit:
            self.failures += 1
            raise torch.OutOfMemoryError(f"NPU out of memory. Tried to allocate {size} bytes")
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        block = Block()
        block.address, self._next = self._next, self._next + (size + 512) // 512 * 512
        weakref.finalize(block, self._free, size).atexit = False
        return block

    def _free(self, size):
        self.allocated -= size


class Block:
    __slots__ = ("__weakref__", "address")


class Stream:
    """Operations that run in their order. `torch.npu.Stream`."""

    def __init__(self, device=None, priority=0):
        self.waiting = deque()
        self.done = 0  # operations that have run

    @property
    def queued(self):
        """Operations since the device was made; the position of the next one."""
        return self.done + len(self.waiting)

    def run(self, until):
        """Run operations up to a position."""
        with DEVICE.lock, torch.no_grad(), _without_modes():
            while self.done < until and self.waiting:
                operation = self.waiting.popleft()
                self.done += 1
                operation()

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def synchronize(self):
        DEVICE.wait("stream.synchronize", self)

    def query(self):
        return not self.waiting


class Event:
    """A place in a stream. `torch.npu.Event`."""

    def __init__(self, enable_timing=False, blocking=False):
        self.stream, self.position = None, 0

    def record(self, stream=None):
        self.stream = stream or DEVICE.stream
        self.position = self.stream.queued

    def wait(self, stream=None):
        source, position = self.stream, self.position
        if source is not None:
            DEVICE.enqueue(lambda: source.run(position), stream)

    def query(self):
        return self.stream is None or self.stream.done >= self.position

    def synchronize(self):
        if self.query():
            return
        if self.position == self.stream.queued:
            DEVICE.wait("event.synchronize", self.stream)
        else:  # the device has work after the event, so it does not stand still
            DEVICE.waits += 1
            self.stream.run(self.position)


class Device:
    """State of the simulated device."""

    def __init__(self):
        self.memory = Memory()
        self.lock = threading.RLock()
        self.default_stream = Stream()
        self.stream = self.default_stream
        self.syncs = []  # the host has waited for everything queued: (what it did, where)
        self.waits = 0  # the host has waited for an event that more work was queued after
        self.launched = 0
        self.traces = False
        self.seed, self.offset = 0, 0  # of random numbers

    def reset_counts(self):
        self.syncs, self.waits, self.launched = [], 0, 0

    def enqueue(self, operation, stream=None):
        stream = stream or self.stream
        with self.lock:
            stream.waiting.append(operation)
            self.launched += 1
        if len(stream.waiting) > LONGEST_QUEUE:
            stream.run(stream.done + LONGEST_QUEUE // 2)

    def wait(self, what, stream=None):
        """A host sync."""
        self.syncs.append((what, _caller() if self.traces else None))
        stream = stream or self.stream
        stream.run(stream.queued)

    def synchronize(self):
        self.wait("synchronize")
        self.default_stream.run(self.default_stream.queued)

    def draw(self):
        """The seed of the next random operation."""
        self.offset += 1
        return (self.seed * 0x9E3779B97F4A7C15 + self.offset * 0xBF58476D1CE4E5B9) % 2**63


def _caller():
    """The innermost line that is neither PyTorch's nor the simulation's."""
    for frame in reversed(traceback.extract_stack()):
        if "site-packages" not in frame.filename and frame.filename != __file__:
            return f"{frame.filename}:{frame.lineno} {frame.line}"
    return "?"


@contextlib.contextmanager
def _without_modes():
    """Queued operations run as they are, whatever mode is on where the host waits."""
    with torch.utils._python_dispatch._disable_current_modes():
        yield


DEVICE = Device()


# -- tensors


class DeviceTensor(torch.Tensor):
    """A tensor of the simulated device: `meta` has its shape, `value` its values, some time later."""

    @staticmethod
    def __new__(cls, meta, value, requires_grad=False):
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.size(),
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            layout=meta.layout,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        self.meta, self.value = meta, value
        self.block = DEVICE.memory.block_of(meta)
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _SPECIAL.get(func, launch)(func, args, kwargs or {})

    # nn.Module.to swaps such tensors, so that parameters stay the same objects, as they do on other devices.
    def __tensor_flatten__(self):
        return ["meta"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        raise NotImplementedError("simulated tensors cannot be traced")

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.meta, self.value, self.block = other.meta, other.value, other.block

    def numpy(self, **kwargs):
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")

    def data_ptr(self):
        return self.block.address + self.storage_offset() * self.element_size()

    def untyped_storage(self):
        size = self.meta.untyped_storage().nbytes()
        return SimpleNamespace(data_ptr=lambda: self.block.address, nbytes=lambda: size, size=lambda: size)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = self.detach().clone().requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        rebuild = functools.partial(_rebuilt, isinstance(self, torch.nn.Parameter))
        return rebuild, (self.detach().cpu(), self.requires_grad)

    def __repr__(self, **kwargs):
        return f"DeviceTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


def _rebuilt(is_parameter, host, requires_grad):
    tensor = host.to(NAME)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def spoil(tensor):
    """Fill memory that nothing was written to."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.fill_(float("nan"))
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    return tensor.fill_(int.from_bytes(bytes([GARBAGE]) * tensor.element_size(), "little"))


# -- operations


_NEEDS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def launch(func, args, kwargs):
    """Queue an operation; its results have their shapes at once."""
    flat, spec = tree_flatten((args, kwargs))
    _refuse_mixtures(func, flat)
    if _NEEDS_VALUES & set(func.tags) or _by_mask(func, flat):
        return _at_once(func, flat, spec, is_sync=True)
    try:
        shaped = _shapes(func, flat, spec)
    except NotImplementedError:  # no shapes without values, in PyTorch; a real device has its own way
        return _at_once(func, flat, spec, is_sync=False)
    known = {id(leaf.meta): leaf for leaf in flat if isinstance(leaf, DeviceTensor)}
    results, values = [], []
    outputs, form = tree_flatten(shaped)
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            results.append(output)
            values.append(None)
        elif id(output) in known:
            results.append(known[id(output)])
            values.append(None)
        else:
            values.append((Value(), output.stride()))
            results.append(DeviceTensor(output, values[-1][0]))
    _queue(func, flat, spec, values)
    return tree_unflatten(results, form)


def _queue(func, flat, spec, values):
    inputs = [_captured(leaf) for leaf in flat]
    seed = DEVICE.draw() if torch.Tag.nondeterministic_seeded in func.tags else None

    def operation():
        args, kwargs = tree_unflatten([leaf.read() if isinstance(leaf, Value) else leaf for leaf in inputs], spec)
        with _seeded(seed):
            computed = func(*args, **kwargs)
        for value, result in zip(values, tree_flatten(computed)[0]):
            if value is not None:
                cell, strides = value
                cell.data = _with_strides(result, strides) if not _is_view(func) else result

    DEVICE.enqueue(operation)


def _captured(leaf):
    """An argument as the queue keeps it. A number on the host is passed to a kernel by its value."""
    if isinstance(leaf, DeviceTensor):
        return leaf.value
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    if isinstance(leaf, torch.device) and leaf.type == NAME:
        return torch.device("cpu")
    return leaf


def _shapes(func, flat, spec):
    def shape(leaf):
        if isinstance(leaf, DeviceTensor):
            return leaf.meta
        if isinstance(leaf, torch.Tensor):
            return leaf.to("meta")
        return torch.device("meta") if isinstance(leaf, torch.device) else leaf

    args, kwargs = tree_unflatten([shape(leaf) for leaf in flat], spec)
    if _writes_only(func):
        return _written(func, args, kwargs)
    return func(*args, **kwargs)


@functools.cache
def _writes_only(func):
    """Whether all that an operation returns are arguments that it writes to, so that it need not be tried."""
    returns = func._schema.returns
    return func._schema.is_mutable and all(r.alias_info is not None and r.alias_info.is_write for r in returns)


def _written(func, args, kwargs):
    names = {argument.name: i for i, argument in enumerate(func._schema.arguments)}
    found = []
    for result in func._schema.returns:
        wanted = result.alias_info.before_set
        name = next(a.name for a in func._schema.arguments if a.alias_info and a.alias_info.before_set == wanted)
        found.append(kwargs[name] if name in kwargs else args[names[name]])
    return None if not found else found[0] if len(found) == 1 else tuple(found)


@functools.cache
def _is_view(func):
    return any(r.alias_info is not None for r in func._schema.returns)


def _with_strides(result, strides):
    """CPU kernels may lay out their results in another way than was said."""
    if not isinstance(result, torch.Tensor) or result.stride() == strides or result.numel() < 2:
        return result
    return torch.empty_strided(result.size(), strides, dtype=result.dtype).copy_(result)


@contextlib.contextmanager
def _seeded(seed):
    """Random numbers of the device: the host's generator is as before afterwards."""
    if seed is None:
        yield
        return
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def _refuse_mixtures(func, flat):
    for leaf in flat:
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor) and leaf.dim() > 0:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{NAME}:0 and {leaf.device}! (when running {func})"
            )


def _by_mask(func, flat):
    """Indexing by a mask: the size of the result is known on the device only."""
    if func not in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
        return False
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in flat[1:])


def _at_once(func, flat, spec, is_sync):
    """Run an operation whose result the host needs."""
    if is_sync:
        DEVICE.wait(str(func))
    else:
        DEVICE.stream.run(DEVICE.stream.queued)
    inputs = [_captured(leaf) for leaf in flat]
    args, kwargs = tree_unflatten([leaf.read() if isinstance(leaf, Value) else leaf for leaf in inputs], spec)
    same = {id(leaf.value.data): leaf for leaf in flat if isinstance(leaf, DeviceTensor)}
    seed = DEVICE.draw() if torch.Tag.nondeterministic_seeded in func.tags else None
    with _seeded(seed):
        computed = func(*args, **kwargs)

    def wrapped(result):
        if id(result) in same:
            return same[id(result)]
        return DeviceTensor(result.to("meta"), Value(result))

    return tree_map_only(torch.Tensor, wrapped, computed)


# -- copies between the host and the device


def _copy(func, args, kwargs):
    """aten.copy_(target, source, non_blocking)"""
    target, source = args[:2]
    later = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    if isinstance(target, DeviceTensor) and isinstance(source, DeviceTensor):
        return launch(func, args, kwargs)
    if isinstance(target, DeviceTensor):
        value = target.value
        # A copy of a few numbers is passed on at once; memory of the host is read when the copy runs.
        DEVICE.enqueue(lambda: value.read().copy_(source))
        if not later:
            DEVICE.wait("copy from the host")
        return target
    return _to_host(source, target, later)


def _copy_from(source, target, later=False):
    """torch.tensor(..., device="npu") copies without asking the class."""
    return _copy(None, (target, source, later), {})


def _to_host(source, target, later):
    value = source.value
    if later:
        spoil(target)
        DEVICE.enqueue(lambda: target.copy_(value.read()))
        return target
    DEVICE.wait("copy to the host")
    return target.copy_(value.read())


def _converted(func, args, kwargs):
    """aten._to_copy(tensor, dtype=, device=, non_blocking=)"""
    source, device = args[0], kwargs.get("device")
    if device is None or torch.device(device).type == NAME:
        return launch(func, args, kwargs | {"non_blocking": False})
    if torch.device(device).type != "cpu":
        raise RuntimeError(f"a copy from {NAME} to {device}")
    target = torch.empty_like(source.meta, device="cpu", dtype=kwargs.get("dtype") or source.dtype)
    return _to_host(source, target, kwargs.get("non_blocking", False))


def _scalar(func, args, kwargs):
    DEVICE.wait("item")
    return args[0].value.read().item()


def _equal(func, args, kwargs):
    _refuse_mixtures(func, args)
    DEVICE.wait("equal")
    return func(*(tensor.value.read() for tensor in args))


_SPECIAL = {
    aten.copy_.default: _copy,
    aten._to_copy.default: _converted,
    aten._local_scalar_dense.default: _scalar,
    aten.equal.default: _equal,
    aten.record_stream.default: lambda func, args, kwargs: None,
    aten._fused_sdp_choice.default: lambda func, args, kwargs: 0,  # PyTorch's own attention
}


def _empty(meta):
    """Memory that nothing was written to."""
    value = Value()

    def operation():
        value.data = spoil(torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype))

    DEVICE.enqueue(operation)
    return DeviceTensor(meta, value)


def _new(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _empty(torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format))


def _new_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return _empty(torch.empty_strided(size, stride, dtype=dtype, device="meta"))


def _never(name, *args, **kwargs):
    raise AssertionError(f"{name}: operations on simulated tensors come to DeviceTensor.__torch_dispatch__")


# -- autocast: PyTorch has kernels for its own devices only. Weights are cast each time they are used, not once.

_AUTOCAST = "AutocastPrivateUse1"
IN_HALF = ("linear.default", "matmul.default", "mm.default", "bmm.default", "addmm.default", "baddbmm.default")
IN_HALF += ("conv1d.default", "conv2d.default", "scaled_dot_product_attention.default")
IN_FLOAT32 = ("softmax.int", "log_softmax.int", "layer_norm.default", "nll_loss.default", "nll_loss_nd.default")
IN_FLOAT32 += ("cross_entropy_loss.default", "mse_loss.default", "binary_cross_entropy_with_logits.default")
IN_FLOAT32 += ("exp.default", "log.default", "pow.Tensor_Scalar", "sum.default", "sum.dim_IntList", "cumsum.default")


def _in_half(tensor):
    is_cast = tensor.device.type == NAME and tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return tensor.to(torch.get_autocast_dtype(NAME)) if is_cast else tensor


def _in_float32(tensor):
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _autocast(operator, cast, *args, **kwargs):
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _AUTOCAST))):
        args, kwargs = tree_map_only(torch.Tensor, cast, (args, kwargs))
        return operator(*args, **kwargs)


# -- the module torch.npu, and the registration


class Module:
    """torch.npu, with the names that torch.cuda has."""

    Event, Stream = Event, Stream

    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    set_device = staticmethod(lambda device: None)
    get_device_name = staticmethod(lambda device=None: "simulated accelerator")
    _is_in_bad_fork = staticmethod(lambda: False)
    synchronize = staticmethod(lambda device=None: DEVICE.synchronize())
    empty_cache = staticmethod(lambda: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])
    is_bf16_supported = staticmethod(lambda: True)

    # -- memory
    memory_allocated = staticmethod(lambda device=None: DEVICE.memory.allocated)
    max_memory_allocated = staticmethod(lambda device=None: DEVICE.memory.peak)

    @staticmethod
    def reset_peak_memory_stats(device=None):
        DEVICE.memory.peak = DEVICE.memory.allocated

    # -- random numbers
    @staticmethod
    def manual_seed_all(seed):
        DEVICE.seed, DEVICE.offset = seed % 2**63, 0

    manual_seed = manual_seed_all

    @staticmethod
    def get_rng_state(device=None):
        return torch.tensor([DEVICE.seed, DEVICE.offset], dtype=torch.int64).view(torch.uint8)

    @staticmethod
    def set_rng_state(state, device=None):
        DEVICE.seed, DEVICE.offset = state.clone().view(torch.int64).tolist()

    # -- streams
    @staticmethod
    def current_stream(device=None):
        return DEVICE.stream

    @staticmethod
    def default_stream(device=None):
        return DEVICE.default_stream

    @staticmethod
    @contextlib.contextmanager
    def stream(stream):
        before, DEVICE.stream = DEVICE.stream, stream
        try:
            yield
        finally:
            DEVICE.stream = before


@functools.cache
def register():
    """Make the device available in this process, for good: PyTorch cannot forget it."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _new, "PrivateUse1")
    library.impl("empty_strided", _new_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    for name in ("_fused_adamw_", "_fused_sgd_"):  # for those who ask whether there are such kernels
        library.impl(name, functools.partial(_never, name), "PrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _AUTOCAST)
    for names, cast in ((IN_HALF, _in_half), (IN_FLOAT32, _in_float32)):
        for name in names:
            operator = functools.reduce(getattr, name.split("."), aten)
            library.impl(name.removesuffix(".default"), functools.partial(_autocast, operator, cast), _AUTOCAST)
    return library, others


@contextlib.contextmanager
def at_most(limit):
    """No more than this many bytes of memory."""
    DEVICE.memory.limit = limit
    try:
        yield
    finally:
        DEVICE.memory.limit = None
