"""Pretraining of a small language model on a stream: the sources of Python's standard library, as bytes.

pip install 'oneloop[torch,transformers]'
python examples/language_model_stream.py --max_steps 500
python examples/language_model_stream.py --max_steps 1000 --resume_from_checkpoint true    # goes on at the same file
"""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from oneloop import ArgumentParser, Trainer, TrainingArguments, set_seed

LENGTH = 128


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "outputs/pretrain"
    max_steps: int = 500
    per_device_train_batch_size: int = 8
    learning_rate: float = 2e-3
    lr_scheduler_type: str = "cosine"
    warmup_steps: float = 20
    logging_steps: float = 20
    save_steps: float = 100
    save_total_limit: int = 2


class Packed(torch.utils.data.IterableDataset):
    """Files one after the other, cut into blocks of one length. Nothing is padded and nothing is dropped between files.

    With state_dict and load_state_dict a resume opens the file where the checkpoint was. Without them it would read
    everything again up to there.
    """

    def __init__(self, files):
        self.files, self.next_file, self.waiting = files, 0, b""

    def __iter__(self):
        while self.next_file < len(self.files):
            while len(self.waiting) >= LENGTH:
                block, self.waiting = self.waiting[:LENGTH], self.waiting[LENGTH:]
                ids = np.frombuffer(block, np.uint8).astype(np.int64)
                yield {"input_ids": ids, "labels": ids}
            self.waiting += self.files[self.next_file].read_bytes()
            self.next_file += 1
        self.next_file = 0  # the next epoch

    def state_dict(self):
        return {"next_file": self.next_file, "waiting": self.waiting.hex()}

    def load_state_dict(self, state):
        self.next_file, self.waiting = state["next_file"], bytes.fromhex(state["waiting"])


def main():
    (args,) = ArgumentParser(Arguments).parse_args_into_dataclasses()
    set_seed(args.seed)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=Packed(files))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)

    prompt = torch.tensor([list(b"def __init__(self")], device=args.device)
    written = trainer.model.eval().generate(prompt, max_new_tokens=40, do_sample=False, pad_token_id=0)
    print(bytes(written[0].tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main()
