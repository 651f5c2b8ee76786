"""Image classification without a download: handwritten digits of scikit-learn, 1,797 images of 8 x 8 pixels.

pip install 'oneloop[torch]' scikit-learn
python examples/image_classification.py                  # about 10 seconds on a CPU, accuracy above 97 %
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from oneloop import ArgumentParser, Trainer, TrainingArguments


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "outputs/digits"
    num_train_epochs: float = 10
    per_device_train_batch_size: int = 32
    per_device_eval_batch_size: int = 256
    learning_rate: float = 3e-3
    logging_steps: float = 10
    eval_strategy: str = "epoch"
    load_best_model_at_end: bool = True
    metric_for_best_model: str = "accuracy"
    save_total_limit: int = 1


class Digits(torch.utils.data.Dataset):
    """Images as arrays; training images are shifted by up to one pixel."""

    def __init__(self, images, labels, shift=False):
        self.images, self.labels, self.shift = images, labels, shift

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.shift:
            image = np.roll(image, np.random.randint(-1, 2, size=2), axis=(0, 1))
        return {"image": image[None], "labels": self.labels[index]}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.BatchNorm2d(64), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 4 * 4, 10))

    def forward(self, image):
        return self.head(self.second(self.first(image)))


def accuracy(output):
    return {"accuracy": (output.predictions.argmax(-1) == output.label_ids).mean()}


def main():
    (args,) = ArgumentParser(Arguments).parse_args_into_dataclasses()
    digits = load_digits()
    images, labels = (digits.images / 16).astype("float32"), digits.target
    train, test = Digits(images[:1400], labels[:1400], shift=True), Digits(images[1400:], labels[1400:])
    trainer = Trainer(
        model=Network(),
        args=args,
        train_dataset=train,
        eval_dataset=test,
        criterion=nn.CrossEntropyLoss(),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    print(f"accuracy on {len(test)} test images: {trainer.evaluate()['eval_accuracy']:.1%}")


if __name__ == "__main__":
    main()
