"""Several processes: how they find each other, what they say to each other, and how they share the work on a model.

A `Team` (see processes.py) carries plain values; a strategy (see backends/strategy.py) carries gradients and weights.
`strategy(args, team)` picks one: `Alone` for one process, `DataParallel` for several; those that divide the model's
state too are in sharding.py.
"""

import atexit
import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...errors import ArgumentError, ProcessLostError
from ...lifesigns import LifeSigns
from ...processes import ALONE, Team, world
from ..strategy import AS_IT_IS, Strategy

BUCKET_BYTES = 25 * 2**20  # sent at once where DDP does not do it
WORD = 16  # numbers that travel with the gradients

_team: "Processes | None" = None


# -- the group


def join(args: Any) -> Team:
    """The team of this run. The group is made at the first call, from the launcher's variables, and ends with the
    interpreter; one that the script has made itself is used, and left alone."""
    global _team
    if world().size == 1:
        return ALONE
    if _team is None:
        own = not dist.is_initialized()
        if own:
            _start_group(args)
            atexit.register(leave)
        _team = Processes(args.ddp_timeout_delta, own)
    return _team


def _start_group(args: Any) -> None:
    kind, asked = args.device.type, args.ddp_backend
    if asked is not None and not dist.is_backend_available(asked):
        known = [name for name in dist.Backend.backend_list if dist.is_backend_available(name) and name != "fake"]
        raise ArgumentError(
            f"ddp_backend (xpu_backend) {asked!r} is not in this build of PyTorch {torch.__version__}; it has "
            f"{', '.join(known)}. Leave it out to take the one for the device."
        )
    if kind == "cpu" and asked in ("nccl", "xccl", "hccl"):
        raise ArgumentError(
            f"ddp_backend={asked!r} connects accelerators, and the device is the CPU. Leave it out, or use gloo."
        )
    if kind == "cpu":
        backend = asked or "gloo"
    else:  # what the host says goes over gloo, so that it never waits for the device
        backend = f"cpu:gloo,{kind}:{asked or dist.get_default_backend_for_device(kind)}"
        getattr(torch, kind).set_device(args.device)
    try:
        dist.init_process_group(backend, timeout=args.ddp_timeout_delta)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        raise ProcessLostError(
            f"the {world().size} processes that the launcher started did not all come together within ddp_timeout "
            f"({args.ddp_timeout} s): {str(error).splitlines()[0]}. Look for one that failed at its start, for a "
            "firewall between the machines, or raise ddp_timeout."
        ) from error


def leave() -> None:
    """End the group that join() made. Left to the interpreter's end, its threads can abort the process."""
    global _team
    team, _team = _team, None
    if team is not None:
        team.close()


class Processes(Team):
    """The team over torch.distributed: short messages between hosts, over gloo."""

    speaks_ahead = True

    def __init__(self, timeout: Any, own: bool) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.own = own  # whether the group is ours to end
        config = dist.get_backend_config()
        self.host = None if "cpu" in str(config) or dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        self.signs = LifeSigns(self.rank, self.size, timeout.total_seconds(), *_board())

    def close(self) -> None:
        self.signs.stop()
        if self.own and dist.is_initialized():
            dist.destroy_process_group()

    def _speaking(self) -> contextlib.AbstractContextManager:
        self.comes()
        return self.explaining()

    def explain(self, error: BaseException) -> ProcessLostError | None:
        if isinstance(error, ProcessLostError) or not _is_of_communication(error):
            return None
        return ProcessLostError(self.signs.who_is_lost(str(error).splitlines()[0][:300]))

    def compare(self, numbers: Sequence[float]) -> list[list[float]]:
        own = torch.tensor(numbers, dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with self._speaking():
            dist.all_gather(every, own, group=self.host)
        return [of_rank.tolist() for of_rank in every]

    def comes(self) -> None:
        self.signs.meetings += 1

    def compare_later(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        own = torch.tensor(numbers, dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with self._speaking():
            message = dist.all_gather(every, own, group=self.host, async_op=True)
        rows: list[list[float]] = []

        def told() -> list[list[float]]:
            if not rows:
                with self.explaining():
                    message.wait()
                rows.extend(of_rank.tolist() for of_rank in every)
            return rows

        return told

    def everyone(self, value: Any) -> list[Any]:
        every: list[Any] = [None] * self.size
        with self._speaking():
            dist.all_gather_object(every, value, group=self.host)
        return every

    def to_main(self, value: Any) -> list[Any] | None:
        every: list[Any] | None = [None] * self.size if self.is_main else None
        with self._speaking():
            dist.gather_object(value, every, dst=0, group=self.host)
        return every

    def from_main(self, value: Any) -> Any:
        box = [value]
        with self._speaking():
            dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def meet(self) -> None:
        self.compare([0.0])


def _board() -> tuple[Callable[[str, str], None], Callable[[str], str | None]]:
    """write and read on the launcher's store, over a connection of their own: the group's may be waiting."""
    store = dist.PrefixStore("oneloop", dist.distributed_c10d._get_default_store().clone())

    def read(key: str) -> str | None:
        return store.get(key).decode() if store.check([key]) else None

    return store.set, read


def _is_of_communication(error: BaseException) -> bool:
    """Gloo raises plain RuntimeErrors, which only the name of its files in them tells apart, or one phrase of its."""
    is_of_gloo = any(sign in str(error) for sign in ("gloo/", "pair closure"))
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and is_of_gloo)


# -- strategies


class Alone(Strategy):
    """One process; and what the engine asks of every strategy on torch besides."""

    def __init__(self, args: Any, team: Team) -> None:
        super().__init__(args, team, sys.modules[__package__])

    def sent(self, loss: torch.Tensor) -> torch.Tensor:
        """A backward pass is about to start from this loss: what it starts from."""
        return loss

    def local(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """What of the gradients lies in this process: plain tensors that can be changed in place."""
        return gradients

    def unscale(self, scaler: Any, optimizer: Any) -> None:
        """Take the loss scale off the gradients, and tell the scaler whether they are finite in all processes."""
        scaler.unscale_(optimizer)

    def norm(self, gradients: list[torch.Tensor], spread_to: torch.device | None = None) -> torch.Tensor:
        """The norm of all gradients together, on the device. `spread_to`: they lie on several, and meet on this one."""
        norms = torch._foreach_norm(gradients)
        if spread_to is not None:
            norms = [n.to(spread_to) for n in norms]
        return torch.linalg.vector_norm(norms[0] if len(norms) == 1 else torch.stack(norms))


class SteadyDDP(DistributedDataParallel):
    """DDP that packs gradients in the same way from its first step on: the last parameters first.

    DDP repacks them once, after a first step, in the order in which they became ready. From three processes on, the
    order of a sum follows from the place in a pack, so a resumed run, whose first step comes later, would differ in the
    last bits.

    A `word` of a few numbers can travel in the packs: the gradient of a parameter that is no part of the model. Beside
    the gradients, a message of its own would cost a process half a millisecond.
    """

    def __init__(self, model: nn.Module, *, steady: bool, word: int = 0, **options: Any) -> None:
        self.steady = steady  # without it DDP never repacks
        self.__dict__["word"] = nn.Parameter(torch.zeros(word)) if word else None  # past nn.Module, which would own it
        with warnings.catch_warnings():
            # The new name of broadcast_buffers=False would also take over the main process's buffers here.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            super().__init__(model, **options)
        if steady:
            self.reducer._push_all_rebuilt_params()  # these are the ready ones, says the first forward pass

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        parameters, sparse = super()._build_params_for_reducer()
        if self.steady:
            parameters, sparse = parameters[::-1], sparse[::-1]
        return (parameters, sparse) if self.word is None else ([*parameters, self.word], [*sparse, False])

    def _build_debug_param_to_name_mapping(self, parameters: list[nn.Parameter]) -> dict[int, str]:
        if self.word is None:
            return super()._build_debug_param_to_name_mapping(parameters)
        return super()._build_debug_param_to_name_mapping(parameters[:-1]) | {len(parameters) - 1: "word"}

    def nothing(self) -> torch.Tensor:
        """A loss of zero that every parameter is in, without a pass through the model. DDP takes it for one."""
        run, self._run_ddp_forward = self._run_ddp_forward, self._nothing
        try:
            return self()
        finally:
            self._run_ddp_forward = run

    def _nothing(self) -> torch.Tensor:
        return torch.stack([p.flatten()[0] * 0.0 for p in self.module.parameters() if p.requires_grad]).sum()


class DataParallel(Alone):
    """Every process has the whole model; gradients are averaged by DDP while the backward pass goes on.

    An update in which some process has nothing to compute (fewer samples than processes are left) goes through the
    model itself, and gradients are averaged afterwards: DDP would wait for that process for ever. So does the first
    update unless ddp_find_unused_parameters says what to do: it shows whether the model leaves parameters unused.
    """

    def __init__(self, args: Any, team: Team) -> None:
        super().__init__(args, team)
        self.ddp: SteadyDDP | None = None
        self.model: nn.Module | None = None
        self.unused: bool | None = None
        self._direct = False
        self._own: list[nn.Parameter] = []
        self._trained: list[bool] = []
        self._changed = False
        self._closing: tuple[Any, bool] | None = None  # the loss before the pass under way, whether its own counts
        self._sent: tuple[torch.Tensor, Any] | None = None  # the loss on its way, and the message
        self._syncs = False  # the backward pass under way brings gradients together
        self._carried: list[float] | None = None  # what goes with the loss
        self._expected: float | None = None
        self._told: list[float] | None = None

    def own_buffers(self, model: nn.Module) -> list[torch.Tensor]:
        apart = self.args.ddp_broadcast_buffers is False and not self.team.is_main
        return list(model.buffers()) if apart else []

    def put_buffer(self, target: torch.Tensor, array: Any) -> None:
        target.detach().copy_(torch.tensor(array))

    def agree(self, model: nn.Module) -> None:
        _from_main([*model.parameters(), *model.buffers()])

    def wrap(self, model: nn.Module) -> nn.Module:
        args = self.args
        self.model, self.ddp, self.unused = model, None, self.known_unused(args.ddp_find_unused_parameters)
        if self.unused is None and (args.torch_compile or args.ddp_static_graph):
            self.unused = False  # these look at the wrapped model once, and for good
        self.agree(model)
        return model if self.unused is None else self._wrapped()

    def _wrapped(self) -> nn.Module:
        args, model = self.args, self.model
        assert model is not None
        options = {
            "bucket_cap_mb": args.ddp_bucket_cap_mb,
            "broadcast_buffers": args.ddp_broadcast_buffers,
            "static_graph": args.ddp_static_graph,
        }
        self._own = list(model.parameters())
        one_device = len({p.device for p in self._own}) == 1 and args.device.type != "cpu"
        self._trained = self._now_trained()
        self.ddp = SteadyDDP(
            model,
            steady=bool(args.ddp_static_graph) or not self.unused,
            device_ids=[args.device] if one_device else None,
            find_unused_parameters=bool(self.unused),
            word=WORD if self._may_carry() else 0,
            **{name: value for name, value in options.items() if value is not None},
        )
        return self.ddp

    def begin(self, all_take_part: bool) -> None:
        self._direct = self.ddp is None or not all_take_part

    def called(self, wrapped: nn.Module) -> nn.Module:
        assert self.model is not None
        # A callback may freeze or unfreeze layers in the middle of a run: what is wrapped would wait for the others.
        self._changed = self.ddp is not None and self._trained != self._now_trained()
        self._direct = self._direct or self._changed
        return self.model if self._direct else wrapped

    def _now_trained(self) -> list[bool]:
        return [p.requires_grad for p in self._own]

    @property
    def goes_ahead(self) -> bool:
        """DDP that may meet a process without a part in the loss, which then adds nothing."""
        return self.ddp is not None and not self.args.ddp_static_graph

    def _may_carry(self) -> bool:
        """On an accelerator the host would wait for the numbers. DDP that looks for unused parameters, or at the graph
        once and for good, does not find the word; a loss scaler would scale it."""
        args = self.args
        odd = self.unused or args.ddp_static_graph or args.torch_compile or args.fp16
        return self.sees_losses and not odd and args.device.type == "cpu"

    @property
    def carries(self) -> bool:
        return self.ddp is not None and self.ddp.word is not None

    def carry(self, numbers: list[float], expected: float | None) -> None:
        self._carried, self._expected = numbers, expected

    def carried(self) -> list[float]:
        assert self._told is not None
        return self._told

    def add_nothing(self) -> None:
        assert self.ddp is not None
        loss = torch.zeros(()) if self._direct else self.ddp.nothing()
        self._syncs = not self._direct
        loss = self.sent(loss)  # after DDP's own messages of a forward pass, as in the other processes
        if not self._direct:
            loss.backward()

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        self._syncs = last and not self._direct
        if last or self._direct:
            return AS_IT_IS
        assert self.ddp is not None
        return self.ddp.no_sync()

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        assert self.model is not None
        own = self._own or list(self.model.parameters())
        if self._direct:
            _average(parameters, self.team.size)
        elif len(parameters) > len(own):  # those of a criterion, which DDP does not know
            known = {id(p) for p in own}
            _average([p for p in parameters if id(p) not in known], self.team.size)
        if self._carried is not None:
            self._take_word(parameters)
        if self.ddp is None:
            self.unused = any(p.requires_grad and p.grad is None for p in own)
            return True
        return self._changed

    def rewrap(self) -> nn.Module:
        return self._wrapped()

    def closing(self, so_far: Any, counts: bool) -> None:
        self._closing = (so_far, counts)

    def sent(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss of the update goes to the others while gradients are computed: in a pack of theirs, or by itself."""
        word = torch.zeros(WORD) if self._syncs and self.carries else None
        if self._closing is not None:
            (so_far, counts), self._closing = self._closing, None
            if counts:
                so_far = loss.detach() if so_far is None else so_far + loss.detach()
            if word is None or self._carried is None:
                self._send_loss(so_far)
            else:
                word[0] = 0.0 if so_far is None else so_far
                word[1 : 1 + len(self._carried)] = torch.tensor(self._carried)
        if word is None:
            return loss
        assert self.ddp is not None and self.ddp.word is not None
        self.ddp.word.grad = None
        return loss + (self.ddp.word * word).sum()  # plus zero, and the word is its gradient

    def _take_word(self, parameters: list[nn.Parameter]) -> None:
        """The means of what all have sent. Losses were weighed for the number of items that was expected."""
        assert self.ddp is not None and self.ddp.word is not None and self._carried is not None
        if self._direct:
            means = reduce(torch.tensor(self._carried), self.team, "mean")
            word = [self.mean(None), *means]
        else:
            word = self.ddp.word.grad.tolist()
        loss, *self._told = map(float, word)
        self._carried = None
        if self._expected is not None and abs(self._told[0] / self._expected - 1) > 1e-6:
            factor = self._expected / self._told[0] if self._told[0] else math.nan  # no label in any process
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)
            loss *= factor
        self._sent = torch.tensor(loss), None

    def _send_loss(self, loss: Any) -> None:
        device = self.args.device
        value = (
            torch.zeros((), device=device) if loss is None else torch.as_tensor(loss, device=device).detach().clone()
        )
        value = value.float().reshape(())
        self._sent = value, dist.all_reduce(value, async_op=True)

    def mean(self, loss: Any) -> Any:
        if self._sent is None:
            self._send_loss(loss)
        assert self._sent is not None
        (value, message), self._sent, self._closing = self._sent, None, None
        if message is None:
            return value
        message.wait()
        return value / self.team.size

    def settle(self, model: nn.Module) -> None:
        if self.args.ddp_broadcast_buffers is not False:
            _from_main(list(model.buffers()))


def strategy(args: Any, team: Team) -> Alone:
    """The way in which these arguments let the processes share the work."""
    if team.size == 1:
        return Alone(args, team)
    from . import sharding

    return sharding.strategy(args, team) or DataParallel(args, team)


# -- tensors between processes


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    """Tensors of one type in groups of a size that is worth sending."""
    open_buckets: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        bucket = open_buckets.setdefault(tensor.dtype, [])
        bucket.append(tensor)
        if sum(t.numel() * t.element_size() for t in bucket) >= BUCKET_BYTES:
            yield open_buckets.pop(tensor.dtype)
    yield from open_buckets.values()


def _send(tensors: Iterable[torch.Tensor], exchange: Callable[[torch.Tensor], None]) -> None:
    """Let exchange change the tensors, several at a time as one flat tensor."""
    for bucket in _buckets(tensors):
        flat = torch.cat([t.detach().reshape(-1) for t in bucket])
        exchange(flat)
        for target, value in zip(bucket, flat.split([t.numel() for t in bucket])):
            target.detach().copy_(value.view_as(target))


def _from_main(values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        _send((v for v in values if v.numel()), lambda flat: dist.broadcast(flat, src=0))


NO_GRADIENT, DENSE, SPARSE = 0, 1, 2


def _average(parameters: list[nn.Parameter], size: int) -> None:
    """The mean of the gradients of all processes, of which some may have none. What nobody has stays None."""
    if not parameters:
        return
    kinds = [NO_GRADIENT if p.grad is None else SPARSE if p.grad.is_sparse else DENSE for p in parameters]
    found = torch.tensor(kinds, device=parameters[0].device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    dense = []
    for p, kind in zip(parameters, found.tolist()):
        if kind == NO_GRADIENT:
            continue
        if kind == SPARSE:
            if p.grad is None:
                p.grad = torch.sparse_coo_tensor(size=p.shape, dtype=p.dtype, device=p.device)
            dist.all_reduce(p.grad)
            p.grad = p.grad / size
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dense.append(p.grad)

    def exchange(flat: torch.Tensor) -> None:
        dist.all_reduce(flat.mul_(1.0 / size))  # in this order, as DDP does it

    _send(dense, exchange)


def gather(value: Any, team: Team) -> Any:
    """Tensors of all processes, one after the other along the first axis; numbers become a vector. Sizes of the other
    axes have to be equal."""
    if team.size == 1 or not isinstance(value, torch.Tensor):
        return value
    own = value.detach().contiguous()
    own = own.reshape(1) if own.ndim == 0 else own
    counts = [int(row[0]) for row in team.compare([own.shape[0]])]
    longest = max(counts)
    if own.shape[0] < longest:
        own = torch.cat([own, own.new_zeros(longest - own.shape[0], *own.shape[1:])])
    every = [torch.empty_like(own) for _ in counts]
    dist.all_gather(every, own)
    return torch.cat([part[:count] for part, count in zip(every, counts)])


def pad(value: Any, team: Team, axis: int, filler: float) -> Any:
    """A tensor as long on an axis as the longest of all processes."""
    if team.size == 1 or not isinstance(value, torch.Tensor) or axis >= value.ndim:
        return value
    longest = int(max(row[0] for row in team.compare([value.shape[axis]])))
    shape = list(value.shape)
    shape[axis] = longest - shape[axis]
    return torch.cat([value, value.new_full(shape, filler)], axis) if shape[axis] else value


def reduce(value: Any, team: Team, how: str) -> Any:
    """The sum or mean of a tensor over the processes."""
    if team.size == 1 or not isinstance(value, torch.Tensor):
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / team.size if how == "mean" else total
