"""Several processes with sharded optimizer state, resumed on one process with the same batches.

    pip install 'oneloop[torch]'
    torchrun --nproc-per-node 2 examples/sharded_resume.py --max_steps 30     # the first half, on two processes
    python examples/sharded_resume.py --resume_from_checkpoint true           # the second half, on one
    python examples/sharded_resume.py --output_dir outputs/whole --gradient_accumulation_steps 2    # to compare

An update has 16 samples in each case: two processes take 8 each, one process takes 8 twice (gradient accumulation). The
resumed run changes to that by itself. On GPUs the commands are the same; --sharding stage2 and stage3 divide gradients
and weights as well.
"""

from dataclasses import dataclass

import numpy as np
from torch import nn

from oneloop import ArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "outputs/sharded"
    max_steps: int = 60
    per_device_train_batch_size: int = 8
    learning_rate: float = 1e-2
    lr_scheduler_type: str = "constant"
    logging_steps: float = 10
    save_steps: float = 10
    sharding: str = "stage1"


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    (args,) = ArgumentParser(Arguments).parse_args_into_dataclasses()
    set_seed(args.seed)  # the same weights at the start of each run
    x = np.random.default_rng(0).normal(size=(2000, 16)).astype("float32")
    rows = [{"x": row, "labels": int(np.abs(row[:4]).argmax())} for row in x]

    trainer = Trainer(Network(), args, train_dataset=rows[:1600], eval_dataset=rows[1600:])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"step {trainer.state.global_step} on {args.world_size} process(es): evaluation loss {loss:.6f}")


if __name__ == "__main__":
    main()
