"""The properties of a model that a Trainer needs, determined once per model."""

from dataclasses import dataclass, field
from typing import Any

from ..introspect import returns_loss_by_default


@dataclass(frozen=True)
class ModelInfo:
    """Created once per model."""

    shifts_labels: bool  # position i is compared with label i + 1
    is_shift_guessed: bool  # the model does not declare it, and it has not been computed as yet; see label_shift.py
    returns_loss: bool  # without labels: `return_loss` is True by default
    makes_decoder_inputs: bool  # from labels
    main_input_name: str
    has_several_labels: bool  # each sample: multi-label classification, for which labels cannot be smoothed
    matrix_parameters: int  # for the estimate of floating-point operations
    keeps_first_label: bool = False  # in packing: declared to be compared with its own position
    # Fp16 or bf16 while the weights are in pure half precision, which does not accept float32 inputs.
    input_half: str | None = None
    # The columns by which it keeps the documents of a row apart; None if it was not asked to.
    pack_columns: tuple[str, ...] | None = None
    is_causal: bool | None = None  # a position does not see those that follow; None if it was not asked for
    model: Any = field(default=None, repr=False, compare=False)  # the one that was prepared

    @classmethod
    def of(cls, model: Any, models: Any) -> "ModelInfo":
        """`models` is the backend's module of that name."""
        base, declared = models.base_of(model), models.shifts_labels(model)
        return cls(
            shifts_labels=models.guess_label_shift(model) if declared is None else declared,
            is_shift_guessed=declared is None,
            keeps_first_label=declared is False,
            returns_loss=returns_loss_by_default(models.forward_of(model)),
            makes_decoder_inputs=hasattr(base, "prepare_decoder_input_ids_from_labels"),
            main_input_name=getattr(base, "main_input_name", "input_ids"),
            has_several_labels=getattr(models.config_of(base), "problem_type", None) == "multi_label_classification",
            matrix_parameters=models.num_matrix_parameters(model),
        )
