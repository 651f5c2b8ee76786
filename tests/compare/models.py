"""Tiny models and data for the runs, on each framework. Weights follow from names and shapes of parameters alone."""

import hashlib

import numpy as np

FEATURES, CLASSES, WORDS, WIDTH = 6, 3, 17, 8


def digest(arrays):
    """One hash over the names, types and bytes of {name: array}."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


class Rows:
    """Samples of a small classification; which ones this process was asked for is kept in `asked`."""

    def __init__(self, count=23, seed=0, bad=None):
        random = np.random.RandomState(seed)
        self.x = random.randn(count, FEATURES).astype(np.float32)
        self.labels = (np.abs(self.x).sum(axis=1) * 7).astype(np.int64) % CLASSES
        if bad is not None:
            self.x[bad] = np.nan
        self.asked = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.asked.append(int(index))
        return {"x": self.x[index], "labels": int(self.labels[index])}


class FetchedByBatch(Rows):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Sentences(Rows):
    """Token classification with sentences of many lengths; Kit.pad is its collator."""

    def __init__(self, count=23, seed=0):
        random = np.random.RandomState(seed)
        self.x = [random.randint(1, WORDS, 1 + (5 * i) % 9) for i in range(count)]
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(int(index))
        return {"input_ids": self.x[index], "labels": self.x[index] % CLASSES}


class Kit:
    """What the frameworks have in common; a subclass says how each calls its layers."""

    def classifier(self, dropout=0.0, norm=False, largest=None):
        """forward(x, labels). Batches of more than `largest` samples are out of memory."""
        kit = self

        class Classifier(kit.Model):
            def __init__(self):
                super().__init__()
                self.first = kit.Linear(FEATURES, WIDTH)
                self.norm = kit.BatchNorm(WIDTH) if norm else None
                self.blocks = kit.Blocks([kit.Linear(WIDTH, WIDTH) for _ in range(2)])
                self.dropout = kit.Dropout(dropout)
                self.head = kit.Linear(WIDTH, CLASSES)

            def forward(self, x, labels=None):
                if largest is not None and x.shape[0] > largest:
                    raise MemoryError("Out of memory")
                x = self.first(x)
                if self.norm is not None:
                    x = self.norm(x)
                for block in self.blocks:
                    x = kit.tanh(block(x))
                return kit.outputs(self.head(self.dropout(x)), labels)

            construct = forward

        return self.filled(Classifier())

    def tagger(self):
        """forward(input_ids, labels), with the mean over labels that are not -100."""
        kit = self

        class Tagger(kit.Model):
            def __init__(self):
                super().__init__()
                self.embed = kit.Embedding(WORDS, WIDTH)
                self.head = kit.Linear(WIDTH, CLASSES)

            def forward(self, input_ids, labels=None):
                return kit.outputs(self.head(kit.tanh(self.embed(input_ids))), labels)

            construct = forward

        return self.filled(Tagger())

    def outputs(self, logits, labels):
        return {"logits": logits} if labels is None else {"loss": self.loss(logits, labels), "logits": logits}

    def filled(self, model):
        random = np.random.RandomState(7)
        for _, parameter in sorted(self.parameters(model).items()):
            self.fill(parameter, random.uniform(-0.5, 0.5, tuple(parameter.shape)).astype(np.float32))
        return model

    def stream(self, samples):
        """The samples as data that can only be walked through."""

        class Stream(self.Iterable):
            def __iter__(self):
                return iter([samples[i] for i in range(len(samples))])

        return Stream()

    def pad(self, samples):
        """The collator of Sentences."""
        width = max(len(sample["input_ids"]) for sample in samples)
        batch = {}
        for key, filler in (("input_ids", 0), ("labels", -100)):
            rows = [np.pad(sample[key], (0, width - len(sample[key])), constant_values=filler) for sample in samples]
            batch[key] = self.tensor(np.stack(rows).astype(np.int64))
        return batch


class Torch(Kit):
    def __init__(self):
        import torch
        from torch import nn

        self.torch = torch
        self.Model, self.Iterable, self.Blocks = nn.Module, torch.utils.data.IterableDataset, nn.ModuleList
        self.Linear, self.Embedding, self.BatchNorm, self.Dropout = nn.Linear, nn.Embedding, nn.BatchNorm1d, nn.Dropout
        self.tensor, self.tanh = torch.as_tensor, torch.tanh

    def loss(self, logits, labels, reduction="mean"):
        logits, labels = logits.float().reshape(-1, logits.shape[-1]), labels.reshape(-1)
        return self.torch.nn.functional.cross_entropy(logits, labels, reduction=reduction)

    def parameters(self, model):
        return dict(model.named_parameters())

    def fill(self, parameter, value):
        parameter.data.copy_(self.tensor(value))

    def arrays(self, model):
        """Weights and buffers as NumPy arrays; of divided weights, this process's part."""
        state = {name: getattr(value, "to_local", lambda v=value: v)() for name, value in model.state_dict().items()}
        return {name: value.detach().cpu().numpy() for name, value in state.items()}

    def sgd(self, model, rate):
        return self.torch.optim.SGD(model.parameters(), lr=rate)


class Paddle(Kit):
    def __init__(self):
        import paddle
        from paddle import nn

        self.paddle = paddle
        self.Model, self.Iterable, self.Blocks = nn.Layer, paddle.io.IterableDataset, nn.LayerList
        self.Linear, self.Embedding, self.BatchNorm, self.Dropout = nn.Linear, nn.Embedding, nn.BatchNorm1D, nn.Dropout
        self.tensor, self.tanh = paddle.to_tensor, nn.functional.tanh

    def loss(self, logits, labels, reduction="mean"):
        """Paddle's own mean is over all labels, also over those that are -100."""
        logits, labels = logits.reshape([-1, logits.shape[-1]]), labels.reshape([-1])
        total = self.paddle.nn.functional.cross_entropy(logits, labels, reduction="sum")
        return total if reduction == "sum" else total / (labels != -100).astype("float32").sum()

    def parameters(self, model):
        return dict(model.named_parameters())

    def fill(self, parameter, value):
        parameter.set_value(value)

    def arrays(self, model):
        return {name: value.numpy() for name, value in model.state_dict().items()}

    def sgd(self, model, rate):
        return self.paddle.optimizer.SGD(learning_rate=rate, parameters=model.parameters())


class MindSpore(Kit):
    def __init__(self):
        import mindspore
        from mindspore import nn

        self.mindspore = mindspore
        self.Model, self.Iterable, self.Blocks = nn.Cell, object, nn.CellList
        self.Linear, self.Embedding, self.BatchNorm = nn.Dense, nn.Embedding, nn.BatchNorm1d
        self.Dropout = lambda share: nn.Dropout(p=share)
        self.tensor, self.tanh = mindspore.Tensor, mindspore.ops.tanh

    def loss(self, logits, labels, reduction="mean"):
        """By log_softmax: the kernel of ops.cross_entropy gives up the last bit in some of its first launches."""
        ops, ms = self.mindspore.ops, self.mindspore
        scores = ops.log_softmax(logits.reshape(-1, logits.shape[-1]).astype(ms.float32))
        return ops.nll_loss(scores, labels.reshape(-1).astype(ms.int32), ignore_index=-100, reduction=reduction)

    def parameters(self, model):
        return {name: p for name, p in model.parameters_and_names() if p.requires_grad}

    def fill(self, parameter, value):
        parameter.set_data(self.tensor(value))

    def arrays(self, model):
        return {name: value.asnumpy() for name, value in model.parameters_and_names()}

    def sgd(self, model, rate):
        from mindspore.experimental import optim

        return optim.SGD(list(model.get_parameters()), lr=rate)


KITS = {"torch": Torch, "paddle": Paddle, "mindspore": MindSpore}
