"""Steps on tensors without data, for plans: the Trainer's own training_step on a copy of the model under torch's
FakeTensorMode, as one process of any number (the process group `fake`)."""

import contextlib
import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ...data.batch_sizes import batch_rows
from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import build
from ...errors import UnsupportedError
from .._common.helpers import map_tensors
from ..step_memory import StepMemory
from . import parallel
from .ddp import DataParallelStrategy
from .divided_state import DividedState
from .even_routing import evenly_routed
from .models import recompute as enable_recompute
from .models import unwrap
from .optimizers import groups, step_optimizer
from .sharding import FSDPStrategy, device_mesh, forget_meshes
from .storage_tracker import StorageTracker

FAKE = FakeTensorMode(allow_non_fake_inputs=True)
MOST_ACCUMULATED = 2  # micro-batches of a simulated update: more are like the second


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """A context in which parameters get a shape and a type, but no memory, as soon as a module registers them."""
    register, apply = nn.Module.register_parameter, nn.Module._apply

    def registered(module: nn.Module, name: str, param: Any) -> None:
        if type(param) is nn.Parameter and not isinstance(param, FakeTensor) and param.device.type != "meta":
            param = _fake_parameter(param)
        register(module, name, param)

    def applied(module: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
        if not any(isinstance(p, FakeTensor) for p in module.parameters()):
            return apply(module, function, recurse)
        return _converted(module, function, recurse)

    # With full determinism torch.empty writes to its memory, which a layer asks for before it registers its weights.
    deterministic = torch.utils.deterministic
    fills, deterministic.fill_uninitialized_memory = deterministic.fill_uninitialized_memory, False
    nn.Module.register_parameter = registered
    nn.Module._apply = applied
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = fills
        nn.Module.register_parameter = register
        nn.Module._apply = apply


def _converted(module: nn.Module, function: Any, recurse: bool) -> nn.Module:
    """What `to`, `half` and the like do: torch would exchange tensors in place, which those without data do not allow.
    Tied parameters stay tied."""
    made: dict[int, nn.Parameter] = {}
    for each in module.modules() if recurse else [module]:
        for name, p in each._parameters.items():
            if p is None:
                continue
            if id(p) not in made:
                with torch.no_grad():
                    value = function(p)
                same = value.device == p.device and value.dtype == p.dtype
                made[id(p)] = p if same else nn.Parameter(value, p.requires_grad)
            each._parameters[name] = made[id(p)]
        for name, buffer in each._buffers.items():
            each._buffers[name] = None if buffer is None else function(buffer)
    return module


def step_memory(
    core: Any, inputs: Any, rows: int, recompute: bool, arguments: dict[str, Any], world: int = 1
) -> StepMemory:
    """The memory of an update with micro-batches like `inputs`, but of `rows` samples, in the first of `world`
    processes, with these arguments about dividing the model and its batches."""
    args = copy.copy(core.trainer.args)
    # DDP is not there: what it keeps is counted, and it would wait for values.
    args.__dict__.update(UNDIVIDED | arguments, ddp_find_unused_parameters=None, ddp_static_graph=None)
    is_whole = build(args, 0, world).num_batches == world and "stage" not in args.sharding
    if is_whole:
        return _simulated(core, args, inputs, rows, recompute, None, in_buckets=world > 1)
    with _process_of(world):
        strategy = _strategy(args, world)
        return _simulated(core, args, inputs, rows, recompute, strategy, in_buckets=_sends_buckets(strategy))


UNDIVIDED = {
    "sharding": "",
    "sharding_degree": -1,
    "tensor_parallel_size": 1,
    "sequence_parallel_size": 1,
    "expert_parallel_size": 1,
}


@contextlib.contextmanager
def _process_of(world: int) -> Iterator[None]:
    """The first process of a group of that size, whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UnsupportedError("a plan is made in one process, without a launcher: there is a process group already")
    hook = sys.excepthook  # which torch replaces by one that names the rank
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        with _meshes_with_ranks():
            yield
    finally:
        sys.excepthook = hook
        dist.destroy_process_group()
        forget_meshes()


@contextlib.contextmanager
def _meshes_with_ranks() -> Iterator[None]:
    """A context in which torch makes meshes outside of any FakeTensorMode, since it reads ranks from tensors."""
    own = {name: vars(DeviceMesh)[name] for name in ("__getitem__", "_concatenate")}

    def outside(function: Any) -> Any:
        def made(*given: Any) -> DeviceMesh:
            with unset_fake_temporarily():
                return function(*given)

        return made

    try:
        DeviceMesh.__getitem__ = outside(DeviceMesh.__getitem__)
        DeviceMesh._concatenate = staticmethod(outside(DeviceMesh._concatenate))
        yield
    finally:
        for name, method in own.items():
            setattr(DeviceMesh, name, method)


class _First(ProcessGroup):
    """The first process of a group whose messages nobody answers: all others have the same to say."""

    def __init__(self, size: int, handle: Any = None) -> None:
        self.size, self.handle = size, handle

    def subgroup(self, groups: tuple[tuple[int, ...], ...]) -> ProcessGroup:
        own = groups[0]
        return _First(len(own), dist.new_group(list(own)))

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        return [list(numbers)] * self.size


def _strategy(args: Any, world: int) -> Any:
    mesh = build(args, 0, world)
    device_mesh(args, mesh)  # made here, since it reads ranks from tensors
    strategy: Any = parallel.strategy(args, _First(world), mesh)
    if isinstance(strategy, FSDPStrategy):
        strategy._mesh()
    strategy.has_values = False
    return strategy


def _sends_buckets(strategy: Any) -> bool:
    """Whether DDP averages the gradients."""
    return isinstance(strategy, DataParallelStrategy) and not isinstance(strategy, DividedState)


class _Gradients:
    """The gradients, once they are computed. DDP then copies them into its buckets, of which they become views; but not
    those of micro-batches before the last, which are not sent."""

    def __init__(self, model: nn.Module, tracker: StorageTracker, in_buckets: bool) -> None:
        self.tracker = tracker
        self.are_sent = True
        plain = [p for p in model.parameters() if p.requires_grad and not isinstance(p, DTensor)]
        self.buckets = {id(p): torch.empty_like(p) for p in plain} if in_buckets else {}
        tracker.label(self.buckets.values(), "gradients")
        for p in plain:
            p.register_post_accumulate_grad_hook(self.computed)

    def computed(self, p: torch.Tensor) -> None:
        if self.buckets and self.are_sent:
            p.grad = self.buckets[id(p)]
        else:
            self.tracker.label([p.grad], "gradients")


def _simulated(
    core: Any, args: Any, inputs: Any, rows: int, recompute: bool, strategy: Any, in_buckets: bool
) -> StepMemory:
    tracker, trainer = StorageTracker(FAKE), core.trainer
    with _copied(core, recompute, strategy) as model, FAKE, evenly_routed(model):
        batch = _resized(inputs, rows)
        if strategy is not None:
            strategy.divide(model)
            model = trainer.model = strategy.wrap(model)
        optimizer = trainer.create_optimizer()
        if strategy is not None:
            optimizer = strategy.prepare_optimizer(optimizer)  # which frees the undivided parameters
        local = _local_parameters(model, optimizer)
        with tracker:
            tracker.label(local.values(), "parameters")
            tracker.label((p for p in model.parameters() if id(p) not in local), "parameters")
            tracker.label(model.buffers(), "parameters")
            gradients = _Gradients(model, tracker, in_buckets)
            _make_state(optimizer, local)
            tracker.label(_state_of(optimizer), "optimizer")
            tracker.start()
            # log_metric has no log to add its values to.
            quiet = core.run.logged_metrics.muted()
            with core.engine.forward_context(), core.run.chunked.assumed(model, batch), quiet:
                _update(trainer, args, model, batch, optimizer, local, strategy, gradients)
            held = tracker.held
        return StepMemory(
            peak=tracker.peak,
            parameters=held["parameters"],
            gradients=held["gradients"],
            optimizer=held["optimizer"],
            activations=tracker.most_rest,
            collectives=tuple(tracker.collectives),
        )


def _make_state(optimizer: Any, local: dict[int, nn.Parameter]) -> None:
    """The state of an optimizer, which its first step creates: it is there during all later updates."""
    trained = [p for p in local.values() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)
    step_optimizer(optimizer)
    for p in trained:
        p.grad = None


def _state_of(optimizer: Any) -> list[Any]:
    return [value for each in optimizer.state.values() if isinstance(each, dict) for value in each.values()]


def _update(
    trainer: Any,
    args: Any,
    model: nn.Module,
    batch: Any,
    optimizer: Any,
    local: dict[int, nn.Parameter],
    strategy: Any,
    computed: _Gradients,
) -> None:
    tracker = computed.tracker
    accumulated = min(args.gradient_accumulation_steps, MOST_ACCUMULATED)
    if strategy is not None and not isinstance(strategy, FSDPStrategy):
        strategy.begin(True)
    for number in range(accumulated):
        last = computed.are_sent = number == accumulated - 1
        with strategy.micro_batch(last) if strategy is not None else contextlib.nullcontext():
            trainer.training_step(model, batch, None)
        tracker.label((p.grad for p in model.parameters()), "gradients")
        if number == 0:
            first = len(tracker.collectives)
    # Those of more micro-batches than are simulated.
    tracker.collectives += tracker.collectives[first:] * (args.gradient_accumulation_steps - accumulated)
    if strategy is not None:
        _finish(model, strategy)
    for p in model.parameters():
        if id(p) in local and p.grad is not None:
            local[id(p)].grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
    tracker.counts_rest = False
    step_optimizer(optimizer)
    tracker.label(_state_of(optimizer), "optimizer")
    tracker.counts_rest = True
    for p in [*model.parameters(), *local.values()]:
        p.grad = None


def _finish(model: nn.Module, strategy: Any) -> None:
    """What a strategy does between the last micro-batch and the optimizer's step: its own method reads values."""
    for p in model.parameters():
        if isinstance(p, DTensor) and p.grad is not None and p.grad.placements != p.placements:
            p.grad = p.grad.redistribute(placements=p.placements)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    is_averaged = isinstance(strategy, DataParallelStrategy) and isinstance(strategy, DividedState)
    if is_averaged and not isinstance(strategy, FSDPStrategy):
        group = strategy.replicas.handle
        parallel.in_buckets(map(parallel.local, gradients), lambda flat: dist.all_reduce(flat, group=group))
    if gradients:
        strategy.norm(strategy.local(gradients))


# -- a copy without data


def _fake_parameter(param: torch.Tensor) -> nn.Parameter:
    with FAKE:
        data = torch.empty_strided(param.shape, param.stride(), dtype=param.dtype, device=param.device)
        made = nn.Parameter(data, requires_grad=param.requires_grad)
    made.__dict__.update(param.__dict__)
    return made


def _fake(value: torch.Tensor) -> torch.Tensor:
    if isinstance(value, nn.Parameter):
        return _fake_parameter(value)
    with FAKE:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


@contextlib.contextmanager
def _copied(core: Any, recompute: bool, strategy: Any) -> Iterator[nn.Module]:
    """A context in which the Trainer has a copy of its model without data, this strategy, and no optimizer other than a
    copy of the user's."""
    trainer = core.trainer
    model = unwrap(trainer.model)
    memo: dict[int, Any] = {id(value): _fake(value) for value in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, memo)
    _set_recompute(copied, recompute, trainer.args.gradient_checkpointing_kwargs)
    given = core.user_optimizers.optimizer
    with core.with_model(copied, None if given is None else copy.deepcopy(given, memo), strategy):
        yield copied


def _set_recompute(model: nn.Module, recompute: bool, options: dict[str, Any] | None) -> None:
    if recompute:
        enable_recompute(model, options)
        return
    disable = getattr(model, "gradient_checkpointing_disable", None)
    if disable is not None:
        disable()
    for module in model.modules():
        if "_recomputed_forward" in vars(module):
            del module.forward, module._recomputed_forward


def _resized(inputs: Any, rows: int) -> Any:
    """The inputs without data, and with another number of samples."""
    before = batch_rows(inputs)

    def resized(value: torch.Tensor) -> torch.Tensor:
        shape = list(value.shape)
        if shape and shape[0] == before:
            shape[0] = rows
        return torch.empty(shape, dtype=value.dtype, device=value.device)

    return map_tensors(inputs, lambda value: isinstance(value, torch.Tensor), resized)


def _local_parameters(model: nn.Module, optimizer: Any) -> dict[int, nn.Parameter]:
    """The parameters of the optimizer by the id of the model's: where these are sharded, the shards take their place in
    the groups. An operation on a DTensor would also compute the shape of the whole."""
    local: dict[int, nn.Parameter] = {}
    for group in groups(optimizer):
        for p in group["params"]:
            local[id(p)] = nn.Parameter(p.to_local(), p.requires_grad) if isinstance(p, DTensor) else p
        group["params"] = [local[id(p)] for p in group["params"]]
    return local
