"""PaddleNLP's CompressionArguments: many of its scripts use them for training only, which is supported here."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from .docstrings import describe
from .fields import Group
from .training import TrainingArguments

WHY = (
    "model compression (pruning, quantization, distillation with PaddleSlim) is not part of oneloop: train here, then "
    "compress with PaddleNLP"
)


def _only(default: Any) -> Any:
    return field(default=default, metadata={"help": "PaddleNLP: used only for model compression."})


@dataclass(repr=False)
class Compression(Group):
    warmup_ratio: float = field(
        default=0.1, metadata={"help": "Warmup as a ratio of all steps; overridden by warmup_steps."}
    )
    logging_steps: float = field(default=100, metadata={"help": "Steps between logs."})
    save_steps: float = field(default=100, metadata={"help": "Steps between checkpoints."})
    do_compress: bool = field(default=False, metadata={"help": "PaddleNLP: compress the model. Not supported."})
    strategy: str | None = _only("dynabert+ptq")
    input_dtype: str | None = _only("int64")
    prune_embeddings: bool = _only(False)
    onnx_format: bool | None = _only(True)
    width_mult_list: list[str] | None = _only(None)
    weight_quantize_type: str | None = _only("channel_wise_abs_max")
    activation_quantize_type: str | None = _only(None)
    algo_list: list[str] | None = _only(None)
    batch_num_list: list[int] | None = _only(None)
    batch_size_list: list[int] | None = _only(None)
    round_type: str | None = _only("round")
    bias_correction: bool | None = _only(False)
    input_infer_model_path: str | None = _only(None)
    use_pact: bool | None = _only(True)
    moving_rate: float | None = _only(0.9)


if TYPE_CHECKING:
    from .signatures import CompressionFields
else:
    CompressionFields = Compression


class CompressionArguments(CompressionFields, TrainingArguments):
    """TrainingArguments with PaddleNLP's defaults for three arguments, plus PaddleNLP's compression arguments.

    The latter can be set and read, for scripts that compress in a separate run; do_compress=True is not supported.
    """

    def check_together(self) -> None:
        super().check_together()
        if self.do_compress:
            raise UnsupportedError(f"do_compress=True is not supported: {WHY}.")


dataclass(repr=False)(CompressionArguments)
describe(CompressionArguments)

FIELDS = frozenset(
    item.name for item in fields(CompressionArguments) if item.name not in TrainingArguments.__dataclass_fields__
)
