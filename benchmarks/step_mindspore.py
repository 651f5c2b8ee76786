"""Time of a training step on MindSpore: a hand-written loop, oneloop, and MindNLP 0.5.1 and 0.4.1.

The hand-written loops are the quickest that were found: Adam on MindSpore's own kernel (without weight decay it is
AdamW), and the norm of the gradients in NumPy. "as in guides" is what the guides show: experimental.optim.AdamW (under
mindnlp torch.optim.AdamW, with the kernels that it lacks) and the framework's clipping.

Each variant is a process of its own, since both releases of MindNLP need environments of their own (bash
benchmarks/setup mindnlp, mindnlp-old), and they take turns (see turns.py): only one computes at a time. The models
`mlp` and `encoder` are cells of MindSpore; `bert` is that of transformers under mindnlp 0.5.1, and that of MindNLP
0.4.1 with the same shape. All launch operations one after the other, which is several times faster on a CPU; MindNLP
does not do so by itself.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before MindSpore is imported
os.environ.setdefault("GLOG_v", "3")

from turns import environment, measure_children, parser, report, run_child

RATE, BATCH = 1e-4, 8
SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
MODELS = {  # title, rounds, steps in a block
    "mlp": ("MLP 32-64-2, batch 8", 40, 25),
    "encoder": ("Transformer encoder, 2 layers of 128, length 64, batch 8", 20, 10),
    "bert": ("BERT of transformers, 2 layers of 128, length 64, batch 8", 20, 5),
}
CELLS = ("hand-written", "as in guides", "oneloop")
BERTS = (*CELLS, "mindnlp 0.5.1", "mindnlp 0.4.1")


def rows(kind: str) -> list[dict[str, Any]]:
    import numpy as np

    draw = np.random.RandomState(0)
    if kind == "mlp":
        return [{"x": draw.randn(32).astype("float32"), "labels": i % 2} for i in range(4000)]
    return [{"input_ids": draw.randint(5, 2000, 64).astype("int64"), "labels": i % 2} for i in range(2000)]


def batches(data: list[dict[str, Any]], steps: int, tensor: Callable[[Any], Any]) -> Any:
    """Shuffled batches for the hand-written loops."""
    import numpy as np

    draw, order = np.random.RandomState(1), np.array([], dtype=int)
    for _ in range(steps):
        if len(order) < BATCH:
            order = draw.permutation(len(data))
        chosen, order = [data[i] for i in order[:BATCH]], order[BATCH:]
        yield {key: tensor(np.stack([sample[key] for sample in chosen])) for key in chosen[0]}


def clipped(gradients: Any, limit: float = 1.0) -> list[Any]:
    """Gradients as arrays, scaled so that their norm is at most `limit`."""
    import math

    import numpy as np

    arrays = [gradient.asnumpy() for gradient in gradients]
    norm = math.sqrt(sum(float(np.dot(flat, flat)) for flat in (array.reshape(-1) for array in arrays)))
    return arrays if norm <= limit else [array * np.float32(limit / (norm + 1e-6)) for array in arrays]


def settings(folder: str, steps: int) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "learning_rate": RATE,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "linear",
        "save_strategy": "no",
        "disable_tqdm": True,
    }


# -- cells of MindSpore


def cell(kind: str, tick: Callable[[], None]) -> Any:
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_seed(0)
    ms.set_device("CPU")
    ms.runtime.launch_blocking()

    def answer(logits: Any, labels: Any) -> Any:
        if labels is None:
            return {"logits": logits}
        return {"loss": ops.cross_entropy(logits, labels.astype(ms.int32)), "logits": logits}

    class Mlp(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = nn.Dense(32, 64), nn.Dense(64, 2)

        def construct(self, x: Any, labels: Any = None) -> Any:
            tick()
            return answer(self.head(ops.relu(self.hidden(x))), labels)

    class Layer(nn.Cell):
        """Attention and a feed-forward part, each with its norm behind it."""

        def __init__(self, width: int = 128, heads: int = 2) -> None:
            super().__init__()
            self.heads = heads
            self.all, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)
            self.wide, self.narrow = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)
            self.first, self.second = nn.LayerNorm((width,)), nn.LayerNorm((width,))
            self.dropout = nn.Dropout(p=0.1)

        def construct(self, x: Any) -> Any:
            count, length, width = x.shape
            parts = self.all(x).reshape(count, length, 3, self.heads, width // self.heads).transpose(2, 0, 3, 1, 4)
            scores = ops.softmax(ops.bmm(parts[0], parts[1].swapaxes(2, 3)) * (width // self.heads) ** -0.5)
            mixed = ops.bmm(scores, parts[2]).transpose(0, 2, 1, 3).reshape(count, length, width)
            x = self.first(x + self.dropout(self.out(mixed)))
            return self.second(x + self.dropout(self.narrow(ops.gelu(self.wide(x)))))

    class Encoder(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(2000, 128), nn.Dense(128, 2)
            self.layers = nn.SequentialCell(Layer(), Layer())

        def construct(self, input_ids: Any, labels: Any = None) -> Any:
            tick()
            return answer(self.head(self.layers(self.embed(input_ids))[:, 0]), labels)

    return Mlp() if kind == "mlp" else Encoder()


def cells_by_hand(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    """As quick as it can be written: nothing is logged, and nobody is called."""
    import mindspore as ms
    from mindspore import nn, ops

    tensor = ms.Tensor.from_numpy
    model = cell(kind, tick)
    model.set_train()
    optimizer = nn.Adam(model.trainable_params(), learning_rate=RATE)
    forward = ms.value_and_grad(lambda batch: model(**batch)["loss"], None, optimizer.parameters)
    for step, batch in enumerate(batches(rows(kind), steps, tensor), 1):
        _, gradients = forward(batch)
        optimizer(tuple(tensor(array) for array in clipped(gradients)))
        ops.assign(optimizer.learning_rate, ms.Tensor(RATE * (1 - step / steps), ms.float32))


def cells_as_in_guides(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    import mindspore as ms
    from mindspore import ops
    from mindspore.experimental import optim

    model = cell(kind, tick)
    model.set_train()
    optimizer = optim.AdamW(model.trainable_params(), lr=RATE, weight_decay=0.0)
    forward = ms.value_and_grad(lambda batch: model(**batch)["loss"], None, optimizer.parameters)
    schedule = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.001, steps)
    for batch in batches(rows(kind), steps, ms.Tensor):
        _, gradients = forward(batch)
        optimizer(ops.clip_by_global_norm(gradients, 1.0))
        schedule.step()


def cells_with_oneloop(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    from oneloop import Trainer, TrainingArguments

    args = TrainingArguments(**settings(folder, steps), report_to="none", device="cpu")
    Trainer(model=cell(kind, tick), args=args, train_dataset=rows(kind)).train()


# -- transformers' BERT under mindnlp 0.5.1


def bert(tick: Callable[[], None]) -> Any:
    import mindnlp  # noqa: F401
    import mindspore as ms
    import numpy as np
    from transformers import BertConfig, BertForSequenceClassification

    ms.runtime.launch_blocking()
    np.random.seed(0)

    class Timed(BertForSequenceClassification):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            tick()
            return super().forward(input_ids, attention_mask=attention_mask, labels=labels)

    return Timed(BertConfig(vocab_size=2000, **SHAPE))


def bert_by_hand(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    """mindtorch's own gradients, and MindSpore's kernel of Adam on its parameters, which are tensors of MindSpore."""
    model = bert(tick)
    import mindspore as ms
    import numpy as np
    import torch
    from mindtorch.autograd import value_and_grad

    model.train()
    parameters = list(model.parameters())
    kernel, tensor = ms.ops.Adam(), ms.Tensor.from_numpy
    averages, squares = ([ms.Parameter(tensor(np.zeros(p.shape, np.float32))) for p in parameters] for _ in range(2))
    for step, batch in enumerate(batches(rows(kind), steps, torch.tensor), 1):
        _, gradients = value_and_grad(lambda batch=batch: model(**batch).loss, parameters, attach_grads=False)()
        rate = RATE * (1 - (step - 1) / steps)
        for p, average, square, array in zip(parameters, averages, squares, clipped(gradients)):
            kernel(p, average, square, 0.9**step, 0.999**step, rate, 0.9, 0.999, 1e-8, tensor(array))


def bert_as_in_guides(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    """mindtorch's own gradients; its AdamW and its clipping, with the kernels that it lacks on a CPU."""
    model = bert(tick)
    import torch
    from mindtorch.autograd import value_and_grad

    from oneloop.backends.mindtorch import patches

    patches.install()
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    for step, batch in enumerate(batches(rows(kind), steps, torch.tensor), 1):
        value_and_grad(lambda batch=batch: model(**batch).loss, parameters)()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = RATE * max(0.0, 1 - step / steps)
        model.zero_grad()


def bert_with_oneloop(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    model = bert(tick)
    from oneloop import Trainer, TrainingArguments

    args = TrainingArguments(**settings(folder, steps), report_to="none", device="cpu")
    Trainer(model=model, args=args, train_dataset=rows(kind)).train()


def bert_with_transformers(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    """transformers' Trainer as mindnlp has patched it; what it lacks on a CPU is lent to it."""
    model = bert(tick)
    from transformers import Trainer, TrainingArguments

    from oneloop.backends.mindtorch import patches

    patches.install()
    args = TrainingArguments(**settings(folder, steps), report_to="none", use_cpu=True, optim="adamw_torch")
    Trainer(model=model, args=args, train_dataset=rows(kind)).train()


# -- MindNLP 0.4.1


def lend_to_old_mindnlp() -> None:
    """MindNLP 0.4.1 was written for MindSpore before 2.7, whose wheels are no longer to be had: three names that it
    asks for have gone since."""
    import types

    import mindspore as ms
    import numpy as np

    stub = types.ModuleType("mindspore.common._stub_tensor")
    stub.StubTensor = type("StubTensor", (), {})  # type: ignore[attr-defined]
    sys.modules[stub.__name__] = ms.common._stub_tensor = stub

    def empty(given: list[Any]) -> Any:
        size, dtype, _ = given
        return ms.Tensor(np.zeros(tuple(size), ms.dtype_to_nptype(dtype)))

    ms._c_expression.pyboost_empty = empty
    ms.Tensor.grad = None


def bert_with_old_mindnlp(kind: str, tick: Callable[[], None], steps: int, folder: str) -> None:
    import mindspore as ms

    lend_to_old_mindnlp()
    from mindnlp.engine import Trainer, TrainingArguments
    from mindnlp.transformers import BertConfig, BertForSequenceClassification

    ms.runtime.launch_blocking()

    class Timed(BertForSequenceClassification):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            tick()
            return super().forward(input_ids, attention_mask=attention_mask, labels=labels)

    data = ms.dataset.GeneratorDataset(
        [(row["input_ids"], row["labels"]) for row in rows(kind)], ["input_ids", "labels"], shuffle=True
    )
    args = TrainingArguments(**settings(folder, steps), optim="adamw")
    Trainer(model=Timed(BertConfig(vocab_size=2000, **SHAPE)), args=args, train_dataset=data).train()


TRAIN = {
    ("cells", "hand-written"): cells_by_hand,
    ("cells", "as in guides"): cells_as_in_guides,
    ("cells", "oneloop"): cells_with_oneloop,
    ("bert", "hand-written"): bert_by_hand,
    ("bert", "as in guides"): bert_as_in_guides,
    ("bert", "oneloop"): bert_with_oneloop,
    ("bert", "mindnlp 0.5.1"): bert_with_transformers,
    ("bert", "mindnlp 0.4.1"): bert_with_old_mindnlp,
}


def pythons(kind: str) -> dict[str, str]:
    """Which interpreter runs a variant; those that are not there are left out."""
    here = sys.executable if find_spec("mindspore") else None
    new, old = environment("../.venv-mindnlp"), environment(".venv-mindnlp-old")
    found = dict.fromkeys(CELLS, here) if kind != "bert" else dict.fromkeys(BERTS[:4], new) | {BERTS[4]: old}
    return {name: python for name, python in found.items() if python is not None}


def main() -> None:
    given = parser(__doc__.splitlines()[0], MODELS).parse_args()
    if given.child:
        train = TRAIN["bert" if given.model == "bert" else "cells", given.child]
        run_child(given, lambda tick, steps, folder: train(given.model, tick, steps, folder))
        return
    for kind in MODELS if given.model == "all" else [given.model]:
        title, rounds, block = MODELS[kind]
        every = BERTS if kind == "bert" else CELLS
        asked = [name for name in every if name == "hand-written" or not given.variants or name in given.variants]
        found = {name: python for name, python in pythons(kind).items() if name in asked}
        if "hand-written" not in found:
            print(f"\n{title}: not installed; bash benchmarks/setup mindnlp")
            continue
        block, warmup = (3, 2) if given.quick else (block, 2 * block)
        rounds = given.rounds or (2 if given.quick else rounds)
        missing = [name for name in asked if name not in found]
        report(title, measure_children("step_mindspore.py", kind, found, rounds, block, warmup), missing)


if __name__ == "__main__":
    main()
