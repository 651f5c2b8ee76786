"""A run of the toy as a program: python -m tests.backends.toy.job OUTPUT [latest]; KILL_AT=N ends it with SIGKILL.

KILL_AT is the number of a write of a checkpoint's file, half of which is then on the disk.
"""

import os
import signal
import sys
from pathlib import Path

from oneloop import Trainer, TrainingArguments
from oneloop.backends import registry
from oneloop.checkpoint import capture, store
from oneloop.data.collators import DefaultDataCollator
from oneloop.formats import safetensors_io
from tests.backends.toy import data
from tests.backends.toy.framework import Linear
from tests.backends.toy.spec import SPEC


def kill_at(number):
    whole, calls = safetensors_io.write_bytes, iter(range(1, 10**6))

    def write(path, parts):
        if next(calls) == number:
            written = b"".join(bytes(memoryview(part)) for part in parts)
            Path(path).write_bytes(written[: len(written) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(path, parts)

    for module in (safetensors_io, capture, store):
        if hasattr(module, "write_bytes"):
            module.write_bytes = write


def main(output, resume=None):
    registry.register(SPEC)
    if os.environ.get("KILL_AT"):
        kill_at(int(os.environ["KILL_AT"]))
    args = TrainingArguments(
        output,
        optim="sgd",
        optim_args="momentum=0.9",
        learning_rate=0.02,
        num_train_epochs=3,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        Linear(data.WIDTH),
        args,
        data_collator=DefaultDataCollator(return_tensors="toy"),
        train_dataset=data.rows(26, 1),
        eval_dataset=data.rows(8, 2),
    )
    trainer.train(resume_from_checkpoint=True if resume else None)
    assert not {"torch", "paddle", "mindspore"} & sys.modules.keys()


if __name__ == "__main__":
    main(*sys.argv[1:])
