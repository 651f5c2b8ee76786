"""Data parallelism on torch: every process has the whole model, and DDP averages their gradients."""

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import Mesh
from ...distributed.strategy import AS_IT_IS
from .parallel import SingleProcessStrategy, average, from_main, reduce

WORD = 16  # numbers sent with the gradients


class SteadyDDP(DistributedDataParallel):
    """DDP with the same gradient buckets from its first step on: the last parameters first.

    DDP rebuilds its buckets once, after the first step, in the order in which gradients became ready. With three or
    more processes, the order of a sum depends on the position in a bucket, so a resumed run, whose first step comes
    later, would differ in the last bits.

    A `word` of a few numbers can be sent in the buckets, as the gradient of a parameter that is not part of the model.
    A separate message would take half a millisecond per update.
    """

    def __init__(self, model: nn.Module, *, steady: bool, word: int = 0, **options: Any) -> None:
        self.steady = steady  # without it DDP never rebuilds its buckets
        # Bypasses nn.Module, which would register it.
        self.__dict__["word"] = nn.Parameter(torch.zeros(word)) if word else None
        with warnings.catch_warnings():
            # The new name of broadcast_buffers=False would also copy the main process's buffers here.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            super().__init__(model, **options)
        if steady:
            self.reducer._push_all_rebuilt_params()  # the first forward pass reports these as ready

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
        """A loss of zero that depends on every parameter, without a forward pass of the model. DDP treats it as one."""
        own: Any = self  # torch's method is replaced for one call
        run, own._run_ddp_forward = own._run_ddp_forward, own._nothing
        try:
            return self()
        finally:
            own._run_ddp_forward = run

    def _nothing(self) -> torch.Tensor:
        return torch.stack([p.flatten()[0] * 0.0 for p in self.module.parameters() if p.requires_grad]).sum()


class DataParallelStrategy(SingleProcessStrategy):
    """Every replica has the whole model; DDP averages gradients during the backward pass.

    An update in which a process has nothing to compute (fewer samples than processes are left) uses the model without
    DDP, and gradients are averaged afterwards: DDP would wait for that process forever. So does the first update unless
    ddp_find_unused_parameters is set: it shows whether the model has unused parameters.
    """

    can_join_without_grad = True

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.ddp: SteadyDDP | None = None
        self.model: nn.Module | None = None
        self.has_unused_parameters: bool | None = None
        self._direct = False
        self._own: list[nn.Parameter] = []
        self._trained: list[bool] = []
        self._changed = False
        self._last_backward_loss: tuple[Any, bool] | None = (
            None  # the loss before the current pass, whether its own counts
        )
        self._sent: tuple[torch.Tensor, Any] | None = None  # the loss being sent, and the message
        self._syncs = False  # the current backward pass averages gradients
        self._carried: list[float] | None = None  # sent with the loss
        self._expected: float | None = None
        self._told: list[float] | None = None
        self._word: list[float] | None = None  # the numbers that the next backward pass sends

    def local_buffers(self, model: nn.Module) -> list[torch.Tensor]:
        apart = self.args.ddp_broadcast_buffers is False and self.mesh.batch_index > 0
        return list(model.buffers()) if apart else []

    def load_buffer(self, target: torch.Tensor, array: Any) -> None:
        target.detach().copy_(torch.tensor(array))

    def wrap(self, model: nn.Module) -> nn.Module:
        args = self.args
        self.model, self.ddp, self.has_unused_parameters = (
            model,
            None,
            self.expects_unused_parameters(args.ddp_find_unused_parameters),
        )
        if self.has_unused_parameters is None and (args.torch_compile or args.ddp_static_graph):
            self.has_unused_parameters = False  # these inspect the wrapped model only once
        self.broadcast_weights(model)
        return model if self.has_unused_parameters is None else self._wrapped()

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
            steady=bool(args.ddp_static_graph) or not self.has_unused_parameters,
            device_ids=[args.device] if one_device else None,
            find_unused_parameters=bool(self.has_unused_parameters),
            gradient_as_bucket_view=True,  # one copy of the gradients less, in time and in memory
            word=WORD if self._can_piggyback() else 0,
            process_group=self.replicas.handle,
            **{name: value for name, value in options.items() if value is not None},
        )
        return self.ddp

    def begin(self, all_take_part: bool) -> None:
        self._direct = self.ddp is None or not all_take_part

    def forward_module(self, wrapped: nn.Module) -> nn.Module:
        assert self.model is not None
        # A callback may freeze or unfreeze layers during a run: DDP would wait for their gradients.
        self._changed = self.ddp is not None and self._trained != self._now_trained()
        self._direct = self._direct or self._changed
        return self.model if self._direct else wrapped

    def _now_trained(self) -> list[bool]:
        return [p.requires_grad for p in self._own]

    @property
    def skips_presync(self) -> bool:
        """DDP that supports processes without a contribution to the loss, which then add nothing."""
        return self.ddp is not None and not self.args.ddp_static_graph

    def _can_piggyback(self) -> bool:
        """On an accelerator, reading the numbers would be a host sync. DDP that searches for unused parameters, or has
        a static graph, does not find the word; a loss scaler would scale it."""
        args = self.args
        odd = self.has_unused_parameters or args.ddp_static_graph or args.torch_compile or args.fp16
        odd = odd or self.replicas is not self.processes  # the word is for all processes, not only for the replicas
        return self.engine_runs_backward and not odd and args.device.type == "cpu"

    @property
    def can_piggyback(self) -> bool:
        return self.ddp is not None and self.ddp.word is not None

    def piggyback(self, numbers: list[float], expected: float | None) -> None:
        self._carried, self._expected = numbers, expected

    def piggybacked(self) -> list[float]:
        assert self._told is not None
        return self._told

    def contribute_zero_grads(self) -> None:
        assert self.ddp is not None
        loss = torch.zeros(()) if self._direct else self.ddp.nothing()
        self._syncs = not self._direct
        # After DDP's own collectives of a forward pass, in the same order as in the other processes.
        self.send(loss)
        if not self._direct:
            self.backward(loss)

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        self._syncs = last and not self._direct
        if last or self._direct:
            return AS_IT_IS
        assert self.ddp is not None
        return self.ddp.no_sync()

    def discard_gradients(self, wrapped: nn.Module) -> contextlib.AbstractContextManager:
        return _same_gradients(list(wrapped.parameters()))

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        assert self.model is not None
        own = self._own or list(self.model.parameters())
        if self._direct:
            average(parameters, self.replicas)
        elif len(parameters) > len(own):  # those of a criterion, which DDP does not have
            known = {id(p) for p in own}
            average([p for p in parameters if id(p) not in known], self.replicas)
        if self._carried is not None:
            self._read_piggybacked(parameters)
        if self.ddp is None:
            self.has_unused_parameters = any(p.requires_grad and p.grad is None for p in own)
            return True
        return self._changed

    def rewrap(self) -> nn.Module:
        return self._wrapped()

    def attach_loss_to_last_backward(self, so_far: Any, counts: bool) -> None:
        self._last_backward_loss = (so_far, counts)

    def send(self, loss: torch.Tensor) -> None:
        """Send the loss of the update to the others while gradients are computed: in a gradient bucket, or
        separately."""
        self._word = [] if self._syncs and self.can_piggyback else None
        if self._last_backward_loss is None:
            return
        (so_far, counts), self._last_backward_loss = self._last_backward_loss, None
        if counts:
            so_far = loss.detach() if so_far is None else so_far + loss.detach()
        if self._word is None or self._carried is None:
            self._send_loss(so_far)
        else:
            self._word = [0.0 if so_far is None else float(so_far), *self._carried]

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        numbers, self._word = self._word, None
        if self._syncs:
            self.reached_exchange = time.perf_counter()
        if numbers is None:
            loss.backward(**kwargs)
            return
        assert self.ddp is not None and self.ddp.word is not None
        self.ddp.word.grad = None
        # The pass starts from the word as well, whose gradient is given: no operation of its own is recorded for it.
        word = torch.tensor(numbers + [0.0] * (WORD - len(numbers)))
        torch.autograd.backward((loss, self.ddp.word), (kwargs.pop("gradient", None), word), **kwargs)

    def _read_piggybacked(self, parameters: list[nn.Parameter]) -> None:
        """The means over all processes. Losses were weighted with the expected number of items."""
        assert self.ddp is not None and self.ddp.word is not None and self._carried is not None
        if self._direct:
            means = reduce(torch.tensor(self._carried), self.replicas, "mean")
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
        self._sent = value, dist.all_reduce(value, group=self.replicas.handle, async_op=True)

    def mean(self, loss: Any) -> Any:
        if self._sent is None:
            self._send_loss(loss)
        assert self._sent is not None
        (value, message), self._sent, self._last_backward_loss = self._sent, None, None
        if message is None:
            return value
        message.wait()
        return value / self.replicas.size

    def prepare_eval(self, model: nn.Module) -> None:
        if self.args.ddp_broadcast_buffers is not False:
            from_main(list(model.buffers()), self.equals)


@contextlib.contextmanager
def _same_gradients(parameters: list[nn.Parameter]) -> Iterator[None]:
    """A context after which the gradients are those of before."""
    held = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        yield
    finally:
        for p, gradient in zip(parameters, held):
            p.grad = gradient
