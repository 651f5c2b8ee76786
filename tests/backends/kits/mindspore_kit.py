"""MindSpore's part of the tests that run on every backend."""

import contextlib

import numpy as np


class Kit:
    """Models in MindSpore. Weights depend on nothing but `seed`."""

    name = "mindspore"
    half = ("fp16",)  # what a CPU can compute in
    masks_updates = False  # the norm is read before every update
    is_late = False  # whether the host learns of an update that is not finite a step later

    def classifier(self, returns="dict", dropout=0.0, norm=False, seed=0):
        """construct(x, labels): a hidden layer and a cross entropy. `returns`: dict, tuple, object, scalar, logits."""
        from tests.backends.kits.mindspore_models import Classifier, fill

        return fill(Classifier(returns, dropout, norm), seed)

    def tagger(self, signature="plain", seed=0):
        """construct(input_ids, labels): the mean over labelled tokens. signature: plain or kwargs."""
        from tests.backends.kits.mindspore_models import KwargsTagger, Tagger, fill

        return fill(KwargsTagger() if signature == "kwargs" else Tagger(), seed)

    def language_model(self, masked=True, seed=0):
        """construct(input_ids, labels, attention_mask, position_ids); without the last two if it is not masked."""
        from tests.backends.kits.mindspore_language import LanguageModel, Unmasked
        from tests.backends.kits.mindspore_models import fill

        return fill(LanguageModel() if masked else Unmasked(), seed)

    def set_to_zero(self, layer):
        import mindspore

        for p in layer.get_parameters():
            p.set_data(mindspore.Tensor(np.zeros(p.shape), mindspore.float32))

    def weights(self, model):
        """Copies of all weights and buffers by name, as NumPy arrays."""
        return {name: value.asnumpy().copy() for name, value in model.parameters_and_names()}

    def tensor(self, array):
        import mindspore

        return mindspore.Tensor(np.array(array))

    def half_collator(self, kind):
        """A collator whose "x" is in the half precision that an argument such as bf16_full_eval names."""
        import mindspore

        dtype = mindspore.bfloat16 if kind.startswith("bf16") else mindspore.float16

        def collate(samples):
            batch = {key: self.tensor(np.stack([sample[key] for sample in samples])) for key in samples[0]}
            return batch | {"x": batch["x"].astype(dtype)}

        return collate

    def freeze(self, model, frozen=True):
        for p in model.get_parameters():
            p.requires_grad = not frozen

    def cross_entropy(self, logits, labels, reduction="mean", ignore_index=-100):
        from tests.backends.kits.mindspore_models import cross_entropy

        return cross_entropy(logits, labels, reduction, ignore_index=ignore_index)

    def criterion(self, weight=None, **options):
        """The framework's cross entropy as a layer, over the last axis of the logits; weights of classes as a list."""
        import mindspore

        class Tokens(mindspore.nn.CrossEntropyLoss):
            def construct(self, logits, labels):
                labels = labels.reshape(-1).astype(mindspore.int32)
                return super().construct(logits.reshape(-1, logits.shape[-1]), labels)

        return Tokens(weight=None if weight is None else mindspore.Tensor(weight, mindspore.float32), **options)

    def binary_criterion(self, weight):
        """A layer whose weights are no weights of classes."""
        import mindspore

        return mindspore.nn.BCEWithLogitsLoss(weight=mindspore.Tensor(weight, mindspore.float32))

    def sgd(self, model, rate=0.1):
        """The framework's own optimizer."""
        from mindspore.experimental import optim

        return optim.SGD(list(model.get_parameters()), lr=rate)

    def has_gradients(self, model):
        return any(getattr(p, "grad", None) is not None for p in model.get_parameters())

    def optimizer(self, trainer):
        """The optimizer's state by parameter, as NumPy arrays."""
        from oneloop.backends.mindspore import weights

        tensors, _ = weights.optimizer_state(trainer.optimizer, trainer.model)
        return {name: weights.copy_to(value, None) for name, value in tensors.items()}

    def smoothed(self, logits, labels, epsilon):
        from tests.backends.kits.mindspore_models import cross_entropy

        return cross_entropy(logits, labels, smoothing=epsilon)

    def dtypes(self, model):
        """Names of the dtypes that the weights have."""
        return {str(p.dtype).lower() for p in model.get_parameters()}

    def is_deterministic(self):
        import mindspore

        return mindspore.get_context("deterministic") == "ON"

    @contextlib.contextmanager
    def undone_determinism(self):
        """Switched off before, whatever other tests have left, and after what full_determinism=True switches on."""
        from oneloop.backends.mindspore import randomness

        randomness.deterministic(False)
        try:
            yield
        finally:
            randomness.deterministic(False)

    def numpy(self, value):
        return value.asnumpy()


class Job:
    """The framework's part of tests/checkpoint/job.py."""

    warm = ("safetensors.numpy",)

    def model(self, seed=3, dropout=0.3, norm=True):
        from tests.backends.kits.mindspore_models import Reader, fill

        return fill(Reader(dropout, norm), seed)

    def draw(self):
        """A number from the framework's global stream."""
        from mindspore import ops

        return float(ops.rand(1).asnumpy()[0])

    def tensor(self, array):
        import mindspore

        return mindspore.Tensor(array)

    def weights(self, model):
        return {name: value.asnumpy() for name, value in model.parameters_and_names()}
