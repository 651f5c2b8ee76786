"""One of several processes of a run in object storage: python processes_job.py URL RESULT SHARDING [STEP TO DIE AT]"""

import hashlib
import json
import sys
from pathlib import Path

import torch

from oneloop import Trainer, TrainingArguments
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows
from tests.storage.support import RUN, At, die


def main(url, result, sharding, dies_at=None):
    args = TrainingArguments(url, **RUN | {"per_device_train_batch_size": 2}, sharding=sharding)
    callbacks = [At(int(dies_at), die)] if dies_at else []
    trainer = Trainer(Kit().classifier(), args, train_dataset=rows(16), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    digest = hashlib.sha256()
    if trainer.is_world_process_zero():
        digest.update(Path(args.output_dir, "model.safetensors").read_bytes())
        Path(result).write_text(json.dumps({"digest": digest.hexdigest(), "step": trainer.state.global_step}))
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
