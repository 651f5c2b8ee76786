"""One model on three frameworks, and one run that goes through all of them: PyTorch, then PaddlePaddle, then MindSpore.

    pip install 'oneloop[all]'
    python examples/three_frameworks.py
    python examples/three_frameworks.py --frameworks paddle torch     # any order, any of them

Each resumes from the checkpoint of the one before, with weights, AdamW's moments, the schedule and the position in the
data. The names of the parameters have to be the same.
"""

from dataclasses import dataclass, field

import numpy as np

from oneloop import ArgumentParser, Trainer, TrainingArguments


@dataclass
class Options:
    frameworks: list[str] = field(default_factory=lambda: ["torch", "paddle", "mindspore"])
    steps: int = 40  # on each framework


def network(framework):
    """Linear, tanh, linear, with a cross entropy: the same names in each framework."""
    if framework == "torch":
        from torch import nn
        from torch.nn.functional import cross_entropy, tanh

        base, linear = nn.Module, nn.Linear
    elif framework == "paddle":
        from paddle import nn
        from paddle.nn.functional import cross_entropy, tanh

        base, linear = nn.Layer, nn.Linear
    else:
        from mindspore import nn
        from mindspore.ops import cross_entropy, tanh

        base, linear = nn.Cell, nn.Dense

    class Network(base):
        def __init__(self):
            super().__init__()
            self.hidden = linear(8, 32)
            self.head = linear(32, 3)

        def forward(self, x, labels):
            logits = self.head(tanh(self.hidden(x)))
            return {"loss": cross_entropy(logits, labels), "logits": logits}

        construct = forward  # MindSpore's name for it

    return Network()


def main():
    (options,) = ArgumentParser(Options).parse_args_into_dataclasses()
    if {"paddle", "mindspore"} <= set(options.frameworks):
        import mindspore  # noqa: F401 - it has to be imported before Paddle
    x = np.random.default_rng(0).normal(size=(1200, 8)).astype("float32")
    rows = [{"x": row, "labels": int(row[:3].argmax())} for row in x]
    last = None
    for part, framework in enumerate(options.frameworks, start=1):
        args = TrainingArguments(
            f"outputs/frameworks/{part}-{framework}",
            max_steps=options.steps * part,
            save_steps=options.steps * part,
            logging_steps=10,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
        )
        trainer = Trainer(network(framework), args, train_dataset=rows[:1000], eval_dataset=rows[1000:])
        trainer.train(resume_from_checkpoint=last)
        last = trainer.state.best_model_checkpoint or f"{args.output_dir}/checkpoint-{args.max_steps}"
        print(f"{framework}: step {trainer.state.global_step}, evaluation loss {trainer.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
