"""Small models and data for the tests that run on every backend.

A backend takes part in all of tests/trainer and tests/callbacks when it has a kit here: a class with the methods of
TorchKit, listed in KITS. Data is plain Python and NumPy, so only models and their weights need writing again.
"""

import contextlib
from importlib.util import find_spec

import numpy as np

FEATURES = 6
CLASSES = 3
WORDS = 17


def rows(count=24, seed=0, features=FEATURES, classes=CLASSES):
    """Samples of a small classification: {"x": ..., "labels": ...}."""
    random = np.random.RandomState(seed)
    x = random.randn(count, features).astype(np.float32)
    labels = (np.abs(x).sum(axis=1) * 7).astype(np.int64) % classes
    return [{"x": x[i], "labels": int(labels[i])} for i in range(count)]


def tagged(lengths, seed=0, width=None, unlabelled=()):
    """Samples of token classification, padded to one width with -100; those in `unlabelled` have no label at all."""
    random = np.random.RandomState(seed)
    width = width or max(lengths)
    samples = []
    for i, length in enumerate(lengths):
        ids = random.randint(1, WORDS, width)
        labels = np.where(np.arange(width) < length, ids % CLASSES, -100)
        if i in unlabelled:
            labels[:] = -100
        samples.append({"input_ids": ids.astype(np.int64), "labels": labels.astype(np.int64)})
    return samples


class TorchKit:
    """Models in PyTorch. Weights depend on nothing but `seed`."""

    name = "torch"

    def classifier(self, returns="dict", dropout=0.0, norm=False, seed=0):
        """forward(x, labels): a hidden layer and a cross entropy. `returns`: dict, tuple, object, scalar or logits."""
        import torch

        from tests.torch_models import Classifier

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Classifier(returns, dropout, norm)

    def tagger(self, signature="plain", seed=0):
        """forward(input_ids, labels): the mean over labelled tokens. signature: plain or kwargs."""
        import torch

        from tests.torch_models import KwargsTagger, Tagger

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return KwargsTagger() if signature == "kwargs" else Tagger()

    def weights(self, model):
        """Copies of all weights and buffers by name, as NumPy arrays."""
        return {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}

    def tensor(self, array):
        import torch

        return torch.from_numpy(np.array(array))

    def half_collator(self, kind):
        """A collator whose "x" is in the half precision that an argument such as bf16_full_eval names."""
        import torch

        dtype = torch.bfloat16 if kind.startswith("bf16") else torch.float16

        def collate(samples):
            batch = {key: self.tensor(np.stack([sample[key] for sample in samples])) for key in samples[0]}
            return batch | {"x": batch["x"].to(dtype)}

        return collate

    def freeze(self, model):
        model.requires_grad_(False)

    def cross_entropy(self, logits, labels, reduction="mean"):
        import torch

        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction=reduction
        )

    def sgd(self, model, rate=0.1):
        """The framework's own optimizer."""
        import torch

        return torch.optim.SGD(model.parameters(), lr=rate)

    def has_gradients(self, model):
        return any(p.grad is not None for p in model.parameters())

    def optimizer(self, trainer):
        """The optimizer's state by parameter, as NumPy arrays."""
        names = {id(p): name for name, p in trainer.model.named_parameters()}
        state = {}
        for p, values in trainer.optimizer.state.items():
            state |= {f"{names[id(p)]}:{key}": self.numpy(value).copy() for key, value in values.items()}
        return state

    def smoothed(self, logits, labels, epsilon):
        import torch

        return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=epsilon)

    def dtypes(self, model):
        """Names of the dtypes that the weights have."""
        return {str(p.dtype).removeprefix("torch.") for p in model.parameters()}

    def is_deterministic(self):
        import torch

        return torch.are_deterministic_algorithms_enabled()

    @contextlib.contextmanager
    def undone_determinism(self):
        """Puts back what full_determinism=True switches on."""
        from oneloop.backends.torch import randomness

        try:
            yield
        finally:
            randomness.deterministic(False)

    def numpy(self, value):
        return value.detach().cpu().numpy()


KITS = {"torch": TorchKit}


def available():
    return [kit() for name, kit in KITS.items() if find_spec(name) is not None]


def same_bytes(left, right):
    """Whether two {name: array} hold the same names and the same bits."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and left[name].tobytes() == right[name].tobytes() for name in left
    )


def largest_difference(left, right):
    assert left.keys() == right.keys()
    return max(float(np.abs(np.float64(left[name]) - np.float64(right[name])).max()) for name in left)
