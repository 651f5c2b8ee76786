"""The checks, in the order in which they run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..place import Place
from . import libraries, memory, precision, processes, saving, training


@dataclass(frozen=True)
class Check:
    name: str
    title: str
    run: Callable[[Place], dict[str, Any]]
    limit: float = 300.0  # seconds


CHECKS = (
    Check("train", "the losses are those of the CPU, and fall", training.train),
    Check("accumulation", "accumulated batches are the undivided batch", training.accumulation),
    Check("bf16", "computes in half precision, and learns as float32 does", precision.bf16),
    Check("fp16", "computes with a loss scale, and learns as float32 does", precision.fp16),
    Check("save_stall", "training does not wait for a save to be written", saving.stall),
    Check("kill_resume", "killed and resumed: the same bytes", saving.kill_and_resume),
    Check("ddp", "several processes train as one does", processes.ddp),
    Check("stage1", "optimizer state sharded: as one process", processes.stage1),
    Check("stage2", "gradients sharded too: as one process", processes.stage2),
    Check("stage3", "weights sharded too: as one process", processes.stage3),
    Check("lora", "only the adapter is trained and saved", libraries.lora),
    Check("trl_sft", "TRL's SFTTrainer runs on oneloop", libraries.trl_sft),
    Check("plan", "the planned peak of memory is the measured one", memory.plan),
    Check("compile", "the same losses with torch_compile", training.compiled),
)
BY_NAME = {check.name: check for check in CHECKS}
