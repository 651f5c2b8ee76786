"""Supervised fine-tuning with answers as labels, of all weights or of a LoRA adapter, on PaddleFormers' Trainer."""

import json
from dataclasses import dataclass, field

import numpy as np
import paddle
from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.trainer import PdArgumentParser, Trainer, TrainerCallback, TrainingArguments, set_seed
from pretrain import tiny_model


@dataclass
class FineTuningArguments:
    lora: bool = field(default=False, metadata={"help": "Train an adapter."})
    losses: str = field(default="losses.json", metadata={"help": "Where the losses go."})


def example(number):
    """A question of three tokens and its answer of two to four; the rest is padding."""
    question = [number % 7, (number * 3) % 11, 19]
    answer = [(number + i) % 13 for i in range(2 + number % 3)]
    tokens = question + answer
    room = 8 - len(tokens)
    labels = [-100] * (len(question) - 1) + answer + [-100] * (room + 1)
    return {"input_ids": np.array(tokens + [0] * room, "int64"), "labels": np.array(labels, "int64")}


class Losses(TrainerCallback):
    def __init__(self):
        self.found = {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.found[state.global_step] = logs["loss"]


def collate(samples):
    return {key: paddle.to_tensor(np.stack([sample[key] for sample in samples])) for key in samples[0]}


def main():
    parser = PdArgumentParser((FineTuningArguments, TrainingArguments))
    own, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    model = tiny_model()
    if own.lora:
        targets = [".*q_proj.*", ".*v_proj.*"]
        model = LoRAModel(model, LoRAConfig(target_modules=targets, r=2, lora_alpha=4, lora_dropout=0.0))
        model.mark_only_lora_as_trainable()
        draw = np.random.RandomState(5)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.set_value(draw.normal(0, 0.1, parameter.shape).astype("float32"))
    losses = Losses()
    trainer = Trainer(
        model=model, args=args, train_dataset=[example(i) for i in range(24)], data_collator=collate, callbacks=[losses]
    )
    trainer.train()
    trainer.save_model()
    trained = {name: p.numpy().tolist() for name, p in trainer.model.named_parameters() if not p.stop_gradient}
    with open(own.losses, "w") as file:
        json.dump({"losses": losses.found, "weights": trained}, file)


if __name__ == "__main__":
    main()
