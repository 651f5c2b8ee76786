"""What is not supported under mindnlp, where torch is mindtorch on MindSpore, in addition to torch's refusals."""

from ...arguments.unsupported import (
    UnsupportedValue,
    no_invariance,
    unsupported_drawn_order,
    unsupported_tracing,
    whole_logits,
)
from ...optim.catalog import ADAMW_NAMES

_NO_COMPILER = "torch.compile returns the model unchanged there"
_NO_BF16 = "MindSpore has no bfloat16 kernels on a CPU"

UNSUPPORTED: tuple[UnsupportedValue, ...] = (
    UnsupportedValue("torch_compile", "True", lambda args: args.torch_compile, _NO_COMPILER, "remove it"),
    UnsupportedValue("jit_mode_eval", "True", lambda args: args.jit_mode_eval, _NO_COMPILER, "remove it"),
    UnsupportedValue("bf16", "True", lambda args: args.bf16, _NO_BF16, "fp16=True, or float32", ("cpu",)),
    UnsupportedValue(
        "bf16_full_eval", "True", lambda args: args.bf16_full_eval, _NO_BF16, "fp16_full_eval=True", ("cpu",)
    ),
    UnsupportedValue(
        "dataloader_num_workers", "above 0", lambda args: args.dataloader_num_workers > 0,
        "a process that has imported MindSpore cannot be forked safely", "dataloader_num_workers=0",
    ),
    UnsupportedValue(
        "optim", "other than AdamW and SGD", lambda args: args.optim not in (*ADAMW_NAMES, "sgd"),
        "mindtorch has no other optimizers", 'optim="adamw_torch" or "sgd"',
    ),
    no_invariance("mindtorch"),
    *whole_logits("mindtorch"),
    unsupported_drawn_order("mindtorch"),
    UnsupportedValue(
        "profile", "any", lambda args: bool(args.profile), "torch.profiler does not record mindtorch operators",
        "remove it",
    ),
    *unsupported_tracing("any", lambda args: True, "mindtorch has no hooks on gradients", "record the run on PyTorch"),
)  # fmt: skip
