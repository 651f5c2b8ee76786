"""Data parallel on torch: every process has the whole model, and DDP brings their gradients together."""

import contextlib
import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...distributed.collectives import ProcessGroup
from ...distributed.strategy import AS_IT_IS
from .parallel import Alone, average, from_main, reduce

WORD = 16  # numbers that travel with the gradients


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
        own: Any = self  # torch's method is replaced for one call
        run, own._run_ddp_forward = own._run_ddp_forward, own._nothing
        try:
            return self()
        finally:
            own._run_ddp_forward = run

    def _nothing(self) -> torch.Tensor:
        return torch.stack([p.flatten()[0] * 0.0 for p in self.module.parameters() if p.requires_grad]).sum()


class DataParallel(Alone):
    """Every process has the whole model; gradients are averaged by DDP while the backward pass goes on.

    An update in which some process has nothing to compute (fewer samples than processes are left) goes through the
    model itself, and gradients are averaged afterwards: DDP would wait for that process for ever. So does the first
    update unless ddp_find_unused_parameters says what to do: it shows whether the model leaves parameters unused.
    """

    def __init__(self, args: Any, processes: ProcessGroup) -> None:
        super().__init__(args, processes)
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
        apart = self.args.ddp_broadcast_buffers is False and not self.processes.is_main
        return list(model.buffers()) if apart else []

    def put_buffer(self, target: torch.Tensor, array: Any) -> None:
        target.detach().copy_(torch.tensor(array))

    def agree(self, model: nn.Module) -> None:
        from_main([*model.parameters(), *model.buffers()])

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
            average(parameters, self.processes.size)
        elif len(parameters) > len(own):  # those of a criterion, which DDP does not know
            known = {id(p) for p in own}
            average([p for p in parameters if id(p) not in known], self.processes.size)
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
            means = reduce(torch.tensor(self._carried), self.processes, "mean")
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
        return value / self.processes.size

    def settle(self, model: nn.Module) -> None:
        if self.args.ddp_broadcast_buffers is not False:
            from_main(list(model.buffers()))
