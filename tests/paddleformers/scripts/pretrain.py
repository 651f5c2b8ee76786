"""Pretraining of a tiny model from scratch, with PaddleFormers' Trainer, parser and model."""

import json
import os
from dataclasses import dataclass, field

import numpy as np
import paddle
from paddleformers.trainer import (
    PdArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_last_checkpoint,
    set_seed,
)
from paddleformers.transformers import LlamaConfig, LlamaForCausalLM


@dataclass
class DataArguments:
    max_seq_length: int = field(default=8, metadata={"help": "Tokens in a row."})
    documents: int = field(default=32, metadata={"help": "Rows."})
    losses: str = field(default="losses.json", metadata={"help": "Where the losses go."})


class Rows(paddle.io.Dataset):
    def __init__(self, count, length):
        starts = np.random.RandomState(7).randint(0, 20, size=(count, 1))
        self.rows = (starts + np.arange(length + 1)) % 20  # each token follows from the one before

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        row = self.rows[place].astype("int64")
        return {"input_ids": row[:-1], "labels": row[1:]}


class Losses(TrainerCallback):
    def __init__(self):
        self.found = {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.found[state.global_step] = logs["loss"]


def tiny_model():
    """With the same weights in every process."""
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, fuse_rms_norm=False,
    )  # fmt: skip
    model, draw = LlamaForCausalLM(config), np.random.RandomState(3)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.set_value(draw.normal(0, 0.2, parameter.shape).astype("float32"))
    return model


def main():
    parser = PdArgumentParser((DataArguments, TrainingArguments))
    data, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    losses = Losses()
    rows = Rows(data.documents, data.max_seq_length)
    trainer = Trainer(model=tiny_model(), args=args, train_dataset=rows, callbacks=[losses])
    result = trainer.train(resume_from_checkpoint=last)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    weights = {name: value.numpy().tolist() for name, value in trainer.model.state_dict().items()}
    with open(data.losses, "w") as file:
        json.dump({"losses": losses.found, "weights": weights}, file)


if __name__ == "__main__":
    main()
