"""The attributes that the parts of a Trainer share."""

from types import ModuleType
from typing import Any

from ..callbacks import CallbackHandler
from ..state import TrainerControl, TrainerState


class TrainerParts:
    """Declared once for the type checker; Trainer.__init__ fills them."""

    args: Any
    backend: ModuleType
    model: Any
    model_wrapped: Any
    model_init: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    criterion: Any
    compute_loss_func: Any
    compute_metrics: Any
    preprocess_logits_for_metrics: Any
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: Any
    callback_handler: CallbackHandler
    state: TrainerState
    control: TrainerControl
    engine: Any
    accelerator: Any
    label_names: list[str]
    is_in_train: bool

    _train_batch_size: int
    _counts_items: bool
    _micro_items: list[int]
    _share: float | None
    _shifts_labels: bool
    _past: Any
