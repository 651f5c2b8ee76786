"""optim="muon": torch.optim.Muon for matrices of hidden layers and AdamW for the other parameters, as one optimizer."""

from typing import Any

import torch

from ...errors import ArgumentError

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
            inner.step()
        return loss


def check_release() -> None:
    """Raise an error if torch has no Muon."""
    if not hasattr(torch.optim, "Muon"):
        raise ArgumentError(
            f"optim='muon' needs torch.optim.Muon, which PyTorch has since 2.9; this is {torch.__version__}. Update "
            "PyTorch, or use optim='adamw_torch'."
        )
