"""Time of a training step on Paddle: a hand-written loop, oneloop and PaddleNLP's Trainer.

The hand-written loop is the quickest that was found with Paddle's public functions; "as in guides" is the one that its
guides show, with a DataLoader and clip_grad_norm_. All compute with the same kernels: what oneloop sets for AMD
processors is set for all.

Each variant is a process of its own, since PaddleNLP needs an environment of its own (bash benchmarks/setup paddle),
and they take turns (see turns.py): only one computes at a time. The model `ernie` is PaddleNLP's, with random weights,
so with it all variants run in that environment.
"""

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before Paddle is imported

from turns import environment, measure_children, parser, report, run_child

RATE, BATCH = 1e-4, 8
PEER = ".venv-paddle"
MODELS = {  # title, rounds, steps in a block
    "mlp": ("MLP 32-64-2, batch 8", 60, 50),
    "encoder": ("Transformer encoder, 2 layers of 128, length 64, batch 8", 30, 10),
    "ernie": ("ERNIE of PaddleNLP, 2 layers of 128, length 64, batch 8", 30, 10),
}
VARIANTS = ("hand-written", "as in guides", "oneloop", "paddlenlp")


# -- models and data, in the child


def rows(kind: str) -> list[dict[str, Any]]:
    import numpy as np

    draw = np.random.RandomState(0)
    if kind == "mlp":
        return [{"x": draw.randn(32).astype("float32"), "labels": i % 2} for i in range(4000)]
    return [{"input_ids": draw.randint(5, 2000, 64).astype("int64"), "labels": i % 2} for i in range(2000)]


def make(kind: str, tick: Callable[[], None]) -> Any:
    """The model. It returns (loss, logits), which all three take, and reads the clock when it is called."""
    import paddle
    from paddle import nn

    paddle.seed(0)

    class Timed(nn.Layer):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def loss(self, logits: Any, labels: Any) -> Any:
            return (nn.functional.cross_entropy(logits, labels), logits) if labels is not None else logits

    class Mlp(Timed):
        def forward(self, x: Any, labels: Any = None) -> Any:
            tick()
            return self.loss(self.inner(x), labels)

    class Tokens(Timed):
        def forward(self, input_ids: Any, labels: Any = None) -> Any:
            tick()
            return self.loss(self.inner(input_ids), labels)

    class Encoder(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(2000, 128)
            layer = nn.TransformerEncoderLayer(128, 2, 512, dropout=0.1, activation="gelu")
            self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(128, 2)
            self.layers.enable_recompute = False  # PaddleNLP changes the class when it is imported, and asks for it

        def forward(self, input_ids: Any) -> Any:
            return self.head(self.layers(self.embed(input_ids))[:, 0])

    if kind == "mlp":
        return Mlp(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)))
    if kind == "encoder":
        return Tokens(Encoder())
    from paddlenlp.transformers import ErnieConfig, ErnieForSequenceClassification

    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    return Tokens(ErnieForSequenceClassification(ErnieConfig(vocab_size=2000, num_labels=2, **shape)))


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    import numpy as np
    import paddle

    return {key: paddle.to_tensor(np.stack([sample[key] for sample in samples])) for key in samples[0]}


# -- variants


def shuffled(data: list[Any], steps: int) -> Iterator[dict[str, Any]]:
    """Batches without paddle.io.DataLoader, whose queue and thread cost more than the steps of a small model."""
    import numpy as np

    draw, order = np.random.RandomState(1), np.array([], dtype=int)
    for _ in range(steps):
        if len(order) < BATCH:
            order = draw.permutation(len(data))
        chosen, order = order[:BATCH], order[BATCH:]
        yield collate([data[i] for i in chosen])


def hand_written(model: Any, data: list[Any], steps: int, folder: str) -> None:
    """As quick as it can be written: nothing is logged, nothing is read from the device, and nobody is called."""
    import paddle

    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.AdamW(RATE, parameters=model.parameters(), weight_decay=0.0, grad_clip=clip)
    model.train()
    for step, batch in enumerate(shuffled(data, steps), 1):
        loss, _ = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.set_lr(RATE * (1 - step / steps))
        optimizer.clear_grad(set_to_zero=False)


def as_in_guides(model: Any, data: list[Any], steps: int, folder: str) -> None:
    import paddle

    optimizer = paddle.optimizer.AdamW(RATE, parameters=model.parameters(), weight_decay=0.0)
    loader = paddle.io.DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=collate)
    model.train()
    step = 0
    while step < steps:
        for batch in loader:
            loss, _ = model(**batch)
            loss.backward()
            paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            optimizer.set_lr(RATE * max(0.0, 1 - step / steps))
            optimizer.clear_grad()
            if step >= steps:
                return


def with_trainer(package: str) -> Callable[[Any, list[Any], int, str], None]:
    """oneloop and PaddleNLP: the same script with another import."""

    def train(model: Any, data: list[Any], steps: int, folder: str) -> None:
        module = __import__(f"{package}.trainer" if package == "paddlenlp" else package, fromlist=["Trainer"])
        args = module.TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            max_grad_norm=1.0,
            lr_scheduler_type="linear",
            save_strategy="no",
            report_to=[],
            device="cpu",
            disable_tqdm=True,
        )
        module.Trainer(model=model, args=args, data_collator=collate, train_dataset=Rows(data)).train()

    return train


class Rows:
    """A list that PaddleNLP takes for a data set: it asks for no more than an index and a length."""

    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


TRAIN = {
    "hand-written": hand_written,
    "as in guides": as_in_guides,
    "oneloop": with_trainer("oneloop"),
    "paddlenlp": with_trainer("paddlenlp"),
}


def pythons(kind: str) -> dict[str, str]:
    """Which interpreter runs a variant; those that are not there are left out."""
    peer = environment(PEER) or (sys.executable if find_spec("paddlenlp") else None)
    here = sys.executable if find_spec("paddle") else peer
    found = dict.fromkeys(VARIANTS[:3], peer if kind == "ernie" else here) | {"paddlenlp": peer}
    return {name: python for name, python in found.items() if python is not None}


def main() -> None:
    given = parser(__doc__.splitlines()[0], MODELS).parse_args()
    if given.child:
        run_child(
            given,
            lambda tick, steps, folder: TRAIN[given.child](make(given.model, tick), rows(given.model), steps, folder),
        )
        return
    from oneloop.backends._common.environment import prepare

    prepare()  # the children inherit what it sets
    asked = ["hand-written", *(given.variants or VARIANTS[1:])]
    for kind in MODELS if given.model == "all" else [given.model]:
        title, rounds, block = MODELS[kind]
        found = {name: python for name, python in pythons(kind).items() if name in asked}
        if "hand-written" not in found:
            print(f"\n{title}: not installed; bash benchmarks/setup paddle")
            continue
        block, warmup = (5, 3) if given.quick else (block, 2 * block)
        rounds = given.rounds or (2 if given.quick else rounds)
        missing = [name for name in asked if name not in found]
        report(title, measure_children("step_paddle.py", kind, found, rounds, block, warmup), missing)


if __name__ == "__main__":
    main()
