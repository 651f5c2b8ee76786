"""Steps on tensors without data, for plans: the Trainer's own training_step on a copy of the model under torch's
FakeTensorMode, as one process of any number (the process group `fake`)."""

import contextlib
import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from ...data.batch_sizes import batch_rows
from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import build
from ...errors import UnsupportedError
from .._common.helpers import map_tensors
from ..step_memory import StepMemory
from .models import recompute as enable_recompute
from .models import unwrap
from .optimizers import groups, step_optimizer
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
    core: Any, inputs: Any, rows: int, recompute: bool, sharding: str = "", world: int = 1, degree: int = 1
) -> StepMemory:
    """The memory of an update with micro-batches like `inputs`, but of `rows` samples. `sharding` has the words of the
    argument for stages 2 and 3; `degree` processes share a copy of the state."""
    if not sharding:
        return _simulated(core, inputs, rows, recompute, None, in_buckets=world > 1)
    with _process_of(world):
        args = copy.copy(core.trainer.args)
        args.__dict__.update(sharding=sharding, sharding_degree=degree)
        return _simulated(core, inputs, rows, recompute, _strategy(args, world))


@contextlib.contextmanager
def _process_of(world: int) -> Iterator[None]:
    """The first process of a group of that size, whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UnsupportedError("a plan is made in one process, without a launcher: there is a process group already")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _strategy(args: Any, world: int) -> Any:
    from .sharding import FSDPStrategy, device_mesh  # quick imports: for sharded runs only

    processes, mesh = ProcessGroup(), build(args, 0, world)
    processes.size = world
    device_mesh(args, mesh)  # made here, since it reads ranks from tensors
    return FSDPStrategy(args, processes, mesh)


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
    core: Any, inputs: Any, rows: int, recompute: bool, strategy: Any, in_buckets: bool = False
) -> StepMemory:
    tracker, trainer = StorageTracker(FAKE), core.trainer
    with _copied(core, recompute) as model, FAKE:
        batch = _resized(inputs, rows)
        if strategy is not None:
            model = strategy.wrap(model)
            strategy.prepare_optimizer(SimpleNamespace(param_groups=[]))  # which frees the unsharded parameters
            trainer.model = model
        optimizer = trainer.create_optimizer()
        local = _local_parameters(model, optimizer)
        with tracker:
            tracker.label(local.values(), "parameters")
            tracker.label((p for p in model.parameters() if id(p) not in local), "parameters")
            tracker.label(model.buffers(), "parameters")
            gradients = _Gradients(model, tracker, in_buckets)
            _make_state(optimizer, local)
            tracker.label(_state_of(optimizer), "optimizer")
            tracker.start()
            _update(trainer, model, batch, optimizer, local, strategy, gradients)
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
    model: nn.Module,
    batch: Any,
    optimizer: Any,
    local: dict[int, nn.Parameter],
    strategy: Any,
    computed: _Gradients,
) -> None:
    tracker = computed.tracker
    accumulated = min(trainer.args.gradient_accumulation_steps, MOST_ACCUMULATED)
    for number in range(accumulated):
        last = computed.are_sent = number == accumulated - 1
        with strategy.micro_batch(last) if strategy is not None else contextlib.nullcontext():
            trainer.training_step(model, batch, None)
        tracker.label((p.grad for p in model.parameters()), "gradients")
        if number == 0:
            first = len(tracker.collectives)
    # Those of more micro-batches than are simulated.
    tracker.collectives += tracker.collectives[first:] * (trainer.args.gradient_accumulation_steps - accumulated)
    for p in model.parameters():
        if id(p) in local and p.grad is not None:
            local[id(p)].grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
    gradients = [p.grad for p in local.values() if p.grad is not None]
    if strategy is not None and gradients:
        dist.all_reduce(torch._foreach_norm(gradients)[0])  # the norm
    tracker.counts_rest = False
    step_optimizer(optimizer)
    tracker.label(_state_of(optimizer), "optimizer")
    tracker.counts_rest = True
    del gradients
    for p in [*model.parameters(), *local.values()]:
        p.grad = None


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
def _copied(core: Any, recompute: bool) -> Iterator[nn.Module]:
    """A context in which the Trainer has a copy of its model without data, and no optimizer other than a copy of the
    user's."""
    trainer = core.trainer
    model = unwrap(trainer.model)
    memo: dict[int, Any] = {id(value): _fake(value) for value in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, memo)
    _set_recompute(copied, recompute, trainer.args.gradient_checkpointing_kwargs)
    given = core.user_optimizers.optimizer
    with core.with_model(copied, None if given is None else copy.deepcopy(given, memo)):
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
