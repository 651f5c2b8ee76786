"""The loss of a language model from its hidden states and its head, in chunks: whole logits never exist.

For the time of a forward pass the head's `forward` is replaced: it computes the loss of its input, and returns one row
of zeros in place of the logits. A model that computes its loss by a loss function that is known is given its labels,
and that function returns the loss computed already, so that whatever else the model adds to its loss (of experts) is
added. Any other model is called without labels.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from ...errors import ArgumentError, ModelError, UnsupportedError, a_type
from .._common import chunked_loss as common
from .._common.chunked_loss import IGNORED, Between, ChunkedTokenLosses
from .cross_entropy import HALF, Heads, mean_loss, token_losses
from .models import base_of, invoke, shifts_labels, unwrap
from .sequence_loss import calls_loss_function, positions_of

PRECISION, PRECISION_HALF = 1e-4, 2e-2  # relative, of the row that is computed both ways

Compute = Callable[[torch.Tensor], None]


def head_of(model: nn.Module, name: str | None) -> "Head":
    """The head of a model: by the name of its layer, or as its method get_output_embeddings tells."""
    base: Any = base_of(model)
    if name is not None:
        try:
            layer = base.get_submodule(name)
        except AttributeError:
            raise ArgumentError(
                f"chunked_loss_layer={name!r}: {type(base).__name__} has no layer of this name. Its layers are those "
                "of model.named_modules()."
            ) from None
    else:
        layer = getattr(base, "get_output_embeddings", lambda: None)()
    if not isinstance(layer, nn.Module):
        raise UnsupportedError(
            f"{type(base).__name__} does not say which layer computes its logits (get_output_embeddings); "
            "chunked_loss_layer names it"
        )
    drops = [each for each in layer.modules() if isinstance(each, nn.modules.dropout._DropoutNd) and each.p > 0]
    if drops:
        raise UnsupportedError(f"its head has dropout ({drops[0].p}), which would draw other numbers in chunks")
    return Head(unwrap(model), base, layer)


class Head:
    """The layer that computes a model's logits, and how its loss follows from them."""

    def __init__(self, model: nn.Module, base: Any, layer: nn.Module) -> None:
        self.model, self.base, self.layer = model, base, layer
        self.words = _words_of(layer)
        # Whether its own loss function compares a position with the next label or with the same; None: another loss.
        own = positions_of(getattr(base, "loss_function", None))
        self.own_loss = own if calls_loss_function(getattr(base.forward, "__func__", base.forward)) else None
        self.between = Between()
        self.shifts = own == "next"
        self._compute: Compute | None = None
        self._calls = 0
        self._is_half = False

    def covers(self, model: nn.Module) -> bool:
        """Whether this is the model with this head, maybe in wrappers."""
        return unwrap(model) is self.model

    def describe(self) -> str:
        """The layer, and what is done with its logits."""
        name = next((name for name, module in self.base.named_modules() if module is self.layer), "")
        return f"{name or type(self.layer).__name__}{self.between.describe()}"

    # -- losses

    def mean_loss(
        self, model: nn.Module, inputs: Any, rest: Any, labels: torch.Tensor, epsilon: float
    ) -> ChunkedTokenLosses:
        """The mean loss of a batch with label smoothing `epsilon`. `rest`: the inputs without labels."""
        is_own = self.own_loss is not None and not epsilon
        shifted = inputs.get("shift_labels") if is_own and isinstance(inputs, Mapping) else None
        targets = self._targets(labels) if shifted is None else shifted
        found: list[ChunkedTokenLosses] = []

        def compute(hidden: torch.Tensor) -> None:
            flat, chosen, index = _that_count(hidden, targets)
            loss, losses = mean_loss(self._head(), flat, chosen, epsilon)
            found.append(ChunkedTokenLosses(loss, _placed(losses, index, targets).flatten(1).sum(1)))

        def own_loss(logits: Any, labels: Any, *given: Any, **options: Any) -> torch.Tensor:
            if options.get("ignore_index", IGNORED) != IGNORED:
                raise ModelError(
                    f"the model ignores labels of {options['ignore_index']} in its loss; expected {IGNORED}. Use "
                    "chunked_loss=False."
                )
            loss, items = found[0].loss, options.get("num_items_in_batch")
            return loss if items is None else loss * ((targets != IGNORED).sum() / items)

        outputs = self._run(model, inputs if is_own else rest, compute, own_loss if is_own else None)
        return ChunkedTokenLosses(_loss_of(outputs), found[0].by_row) if is_own else found[0]

    def log_probs(self, model: nn.Module, rest: Any, labels: torch.Tensor) -> torch.Tensor:
        """The log-probability of each label, in its place; 0 for those that are ignored."""
        targets = self._targets(labels)
        found: list[torch.Tensor] = []

        def compute(hidden: torch.Tensor) -> None:
            flat, chosen, index = _that_count(hidden, targets)
            found.append(_placed(-token_losses(self._head(), flat, chosen), index, targets))

        self._run(model, rest, compute, None)
        return nn.functional.pad(found[0][..., :-1], (1, 0)) if self.shifts else found[0]

    def _head(self) -> Heads:
        return Heads(self.layer, self._own_forward, self.between)

    def _targets(self, labels: torch.Tensor) -> torch.Tensor:
        """The label that each position is compared with."""
        return nn.functional.pad(labels[..., 1:], (0, 1), value=IGNORED) if self.shifts else labels

    # -- a forward pass

    def _run(self, model: Any, inputs: Any, compute: Compute, own_loss: Callable[..., Any] | None) -> Any:
        """The outputs of the model, whose head calls `compute` with its input."""
        own = vars(self.layer)
        before = own.get("forward")
        self._own_forward, self._compute, self._calls = self.layer.forward, compute, 0
        own["forward"] = self._forward
        try:
            with self._replaced_loss(own_loss):
                outputs = invoke(model, inputs)
        finally:
            self._compute = None
            if before is None:
                del own["forward"]
            else:
                own["forward"] = before
        if self._calls != 1:
            raise UnsupportedError(f"its forward calls the head {self._calls} times")
        return outputs

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """In place of the head's own."""
        self._calls += 1
        mesh = getattr(hidden, "device_mesh", None)  # where the words are divided, its input is whole in each process
        if mesh is not None:
            hidden = hidden.to_local()
        if self._calls == 1:
            assert self._compute is not None
            self._compute(hidden)
        logits = self._in_place_of_logits(hidden)
        return logits if mesh is None else _whole_in_each(logits, mesh)

    def _in_place_of_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros((1,) * (hidden.ndim - 1) + (self.words,), device=hidden.device)

    @contextlib.contextmanager
    def _replaced_loss(self, function: Callable[..., Any] | None) -> Iterator[None]:
        if function is None:
            yield
            return
        base, had = self.base, vars(self.base).get("_loss_function")
        base._loss_function = function
        try:
            yield
        finally:
            if had is None:
                del base._loss_function
            else:
                base._loss_function = had

    # -- whether that is all that the model does

    def check(self, inputs: Mapping[str, Any], label_name: str) -> None:
        """Compute one row both ways, in evaluation mode and without gradients; an error if the model does more than its
        head and a mean cross entropy."""
        short, shape = common.short_row(inputs, [label_name])
        device = inputs[label_name].device
        labels = torch.from_numpy(common.made_up_labels(shape, self.words)).to(device)
        whole = {**short, label_name: labels}
        self._find_between(short, whole)
        if self.own_loss is None:
            self.shifts = self._shifts_labels(whole, label_name)
        plain = _loss_of(invoke(self.model, whole))
        if not isinstance(plain, torch.Tensor) or plain.numel() != 1:
            raise UnsupportedError("it returns no loss for labels")
        wanted = float(plain)
        found = float(self.mean_loss(self.model, whole, short, labels, 0.0).loss)
        if not abs(found - wanted) <= (PRECISION_HALF if self._is_half else PRECISION) * abs(wanted):
            raise UnsupportedError(
                f"its loss is more than the mean cross entropy of its logits: one row has the loss {wanted:.6g}, and "
                f"{found:.6g} from hidden states and head"
            )

    def _shifts_labels(self, whole: dict[str, Any], label_name: str) -> bool:
        """Whether position i is compared with label i + 1: then the first label alone leaves no loss."""
        declared = shifts_labels(self.model)
        if declared is not None:
            return declared
        labels = whole[label_name].clone()
        labels[:, 1:] = IGNORED
        loss = _loss_of(invoke(self.model, {**whole, label_name: labels}))
        return not (isinstance(loss, torch.Tensor) and float(loss) > 0.0)

    def _find_between(self, short: Any, whole: Any) -> None:
        """What the model does with its logits before the loss, seen on made-up ones."""
        given = common.made_up_logits(self.words)
        seen: list[Any] = []
        watch = _WatchParameters()
        replaced = self._in_place_of_logits

        def made_up(hidden: torch.Tensor) -> torch.Tensor:
            watch.__enter__()
            watch.is_on = True
            return torch.from_numpy(given).to(hidden.device).reshape((1,) * (hidden.ndim - 1) + (-1,))

        def compute(hidden: torch.Tensor) -> None:
            head = self._head()
            self._is_half = (head.dtype or hidden.dtype) in HALF

        def receive(logits: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            seen.append(logits)
            return logits.new_zeros(())

        is_own = self.own_loss is not None
        self._in_place_of_logits = made_up  # type: ignore[method-assign]
        try:
            outputs = self._run(self.model, whole if is_own else short, compute, receive if is_own else None)
        finally:
            self._in_place_of_logits = replaced  # type: ignore[method-assign]
            if watch.is_on:
                watch.__exit__(None, None, None)
        if not is_own:
            seen = [_logits_of(outputs)]
        if len(seen) != 1 or not isinstance(seen[0], torch.Tensor):
            raise UnsupportedError("it returns no logits, or calls its loss function several times")
        if watch.found:
            raise UnsupportedError("it changes the logits by parameters before its loss")
        self.between = common.find_between(given, seen[0].detach().float().cpu().numpy().reshape(-1))


class _WatchParameters(TorchFunctionMode):
    """Notes whether parameters are used."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = self.found = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [*args, *(kwargs or {}).values()]
        self.found = self.found or any(isinstance(value, nn.Parameter) for value in values)
        return function(*args, **(kwargs or {}))


def _words_of(layer: Any) -> int:
    for found in (getattr(layer, "out_features", None), *getattr(getattr(layer, "weight", None), "shape", ())[:1]):
        if isinstance(found, int) and found > 1:
            return found
    inner = next((each for name, each in layer.named_modules() if name and hasattr(each, "out_features")), None)
    if inner is None:
        raise UnsupportedError(f"its head, {a_type(layer)}, does not say how many words it has (out_features)")
    return int(inner.out_features)


def _loss_of(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return outputs.get("loss")
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def _logits_of(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return outputs.get("logits")
    return outputs[0] if isinstance(outputs, (tuple, list)) else getattr(outputs, "logits", outputs)


def _that_count(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The hidden states of the positions whose labels count, these labels, and their places; None for all of them.
    A host sync: how many there are."""
    if hidden.shape[:-1] != targets.shape:
        raise UnsupportedError(
            f"its head has an input of shape {tuple(hidden.shape)} for labels of shape {tuple(targets.shape)}"
        )
    flat, labels = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    if isinstance(flat, FakeTensor):  # in a plan: how many there are is not known, and all of them at most
        return flat, labels, None
    index = (labels != IGNORED).nonzero().squeeze(1)
    if len(index) == len(labels):
        return flat, labels, None
    return flat.index_select(0, index), labels.index_select(0, index), index


def _whole_in_each(value: torch.Tensor, mesh: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Replicate  # imported already, where something is divided

    return DTensor.from_local(value, mesh, [Replicate()], run_check=False)


def _placed(values: torch.Tensor, index: Any, targets: torch.Tensor) -> torch.Tensor:
    """Values of labels that count in the places of these; 0 in others."""
    if index is not None:
        values = values.new_zeros(targets.numel()).index_put((index,), values)
    return values.reshape(targets.shape)
