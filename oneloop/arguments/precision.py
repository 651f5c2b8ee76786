"""Mixed precision, memory and compilation."""

from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from .fields import Group, declare

arg = declare("Precision and memory")


@dataclass
class Precision(Group):
    fp16: bool = arg(False, "Mixed precision with float16 and loss scaling.")
    bf16: bool = arg(False, "Mixed precision with bfloat16.")
    fp16_opt_level: str = arg(
        "O1",
        "For fp16 and bf16: O0 off, O1 autocast, O2 half weights with float32 master weights, O3 pure half.",
        choices=("O0", "O1", "O2", "O3"),
    )
    half_precision_backend: str = arg(
        "auto",
        "Mixed-precision implementation.",
        aliases=("fp16_backend",),
        choices=("auto", "cuda_amp", "apex", "cpu_amp"),
    )
    scale_loss: float = arg(32768.0, "Initial loss scale for fp16; steps that overflow are skipped and counted.", low=1)
    bf16_full_eval: bool = arg(False, "Evaluate with bfloat16 weights.")
    fp16_full_eval: bool = arg(False, "Evaluate with float16 weights.", aliases=("f16_full_eval",))
    tf32: bool | None = arg(
        None, "TF32 matrix multiplication on GPUs that support it.", shown="the framework's", per_process=True
    )
    gradient_checkpointing: bool = arg(
        False, "Recompute activations in the backward pass: same losses, less memory.", aliases=("recompute",)
    )
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = arg(
        None,
        "Additional options of gradient_checkpointing, as a dict or JSON.",
        aliases=("recompute_kwargs",),
        hint=dict[str, Any] | None,
    )
    torch_compile: bool = arg(
        False,
        "Compile the model with the framework's graph compiler. Enabled by a backend or a mode.",
        aliases=("to_static",),
    )
    torch_compile_backend: str | None = arg(
        None,
        "Compiler backend; enables torch_compile.",
        aliases=("torchdynamo",),
        shown="the framework's",
    )
    torch_compile_mode: str | None = arg(None, "Compiler mode; enables torch_compile.", shown="the framework's")
    jit_mode_eval: bool = arg(False, "Evaluate with the compiled graph.")
    use_ipex: bool = arg(False, "Intel Extension for PyTorch.", per_process=True)
    use_liger_kernel: bool = arg(False, "Liger kernels for transformers models.")
    liger_kernel_config: dict[str, Any] | str | None = arg(
        None, "Which Liger kernels to use, as a dict or JSON.", hint=dict[str, Any] | None
    )
    use_cache: bool = arg(False, "Keep the model's key-value cache enabled during training.")
    torch_empty_cache_steps: int | None = arg(
        None, "Empty the accelerator's memory cache every this many steps.", low=1, shown="never", per_process=True
    )

    def check(self) -> None:
        for first, second in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
            if getattr(self, first) and getattr(self, second):
                raise ArgumentError(f"{first} and {second} are both True; expected at most one. Remove one.")
        if self.torch_compile_backend or self.torch_compile_mode:
            self.torch_compile = True
