"""optim="muon": torch.optim.Muon for matrices of hidden layers and AdamW for the other parameters, as one optimizer."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ...errors import ArgumentError
from . import divided_muon
from .models import unwrap
from .optimizer_fields import Fields, adam_fields, like
from .optimizers import fused_works
from .target_groups import TargetGroups, ids, matches

MATRIX_EPS = 1e-7  # of Muon, which divides by the norm of a matrix


class MuonWithAdamW(torch.optim.Optimizer):
    """Groups with use_muon=True are updated by torch.optim.Muon, the others by torch.optim.AdamW.

    One object with one state, so that schedules, loss scalers and checkpoints treat it like any other optimizer. With
    adjust_lr_fn="match_rms_adamw", updates of a matrix are as large as those of AdamW: one learning rate is for all.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool | None = None,
    ) -> None:
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self._matrices = torch.optim.Muon(
            [{"params": []}],
            **shared,
            momentum=momentum,
            nesterov=nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
            eps=MATRIX_EPS,
        )
        self._others = torch.optim.AdamW([{"params": []}], **shared, betas=betas, eps=eps, fused=fused)
        super().__init__(params, {**shared, "use_muon": False})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        muon = param_group.setdefault("use_muon", False)
        for key, value in (self._matrices if muon else self._others).defaults.items():
            param_group.setdefault(key, value)
        super().add_param_group(param_group)
        shapes = [tuple(p.shape) for p in self.param_groups[-1]["params"] if muon and p.dim() != 2]
        if shapes:
            raise ValueError(f"Muon updates matrices only, but a parameter has shape {shapes[0]}")

    @staticmethod
    def state_fields(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
        """What is kept for a parameter."""
        return {"momentum_buffer": like(p)} if group.get("use_muon") else adam_fields(p, group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner, is_muon in ((self._matrices, True), (self._others, False)):
            # Those of this object: loading a checkpoint and callbacks may have replaced them.
            inner.param_groups = [group for group in self.param_groups if group["use_muon"] is is_muon]
            inner.state = self.state
            divided_muon.step(inner) if is_muon else inner.step()
        return loss


def class_and_options(
    args: Any, model: nn.Module | None, options: dict[str, Any], extra: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """`muon_lr` in optim_args is the learning rate of the matrices."""
    if not hasattr(torch.optim, "Muon"):
        raise ArgumentError(
            f"optim='muon' needs torch.optim.Muon, which PyTorch has since 2.9; this is {torch.__version__}. Update "
            "PyTorch, or use optim='adamw_torch'."
        )
    extra = dict(extra)
    of_matrices = {"use_muon": True, "lr": extra.pop("muon_lr", args.learning_rate), "eps": MATRIX_EPS}
    options |= ({"fused": True} if fused_works(model) else {}) | extra
    if model is not None:
        targets = hidden_matrices(model, args.optim_target_modules)
        options["params"] = TargetGroups(model, targets, of_matrices, args.weight_decay)
    return MuonWithAdamW, options


def hidden_matrices(model: nn.Module, wanted: Any) -> set[int]:
    """The ids of the parameters for Muon: matrices of `wanted` modules (optim_target_modules); without these, all that
    belong neither to an embedding nor to the head of the model."""
    model = unwrap(model)
    if wanted:
        modules = [module for name, module in model.named_modules() if name and matches(wanted, name, module)]
        found = ids(p for module in modules for p in _matrices(module))
    else:
        modules = [module for module in model.modules() if _matrices(module)]
        tables = [module for module in modules if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
        found = ids(p for module in modules for p in _matrices(module))
        found -= ids(p for module in tables for p in module.parameters())
        # Modules are in the order of their definition, so that the last one is usually the head. It may be tied to an
        # embedding.
        found -= _head(model) or ids(p for module in modules[-1:] for p in _matrices(module))
    if not found:
        raise ArgumentError(
            "optim='muon' found no matrix to update: the model has none between its embeddings and its head, or "
            "optim_target_modules matches none. Name modules in optim_target_modules, or use optim='adamw_torch'."
        )
    return found


def _matrices(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters(recurse=False) if p.dim() == 2]


def _head(model: nn.Module) -> set[int]:
    """The ids of the parameters after the hidden layers, for models that tell: those outside of its base model, if it
    names one (base_model_prefix), and its output embeddings."""
    found: set[int] = set()
    base = getattr(model, getattr(model, "base_model_prefix", None) or "", None)
    if isinstance(base, nn.Module) and base is not model:
        found |= ids(model.parameters()) - ids(base.parameters())
    output = None
    with contextlib.suppress(AttributeError, NotImplementedError):
        output = model.get_output_embeddings()
    return found | (ids(output.parameters()) if isinstance(output, nn.Module) else set())
