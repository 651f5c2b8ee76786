"""PaddlePaddle's part of the tests that run on every backend."""

import contextlib
import os

import numpy as np

from tests.backends.support import JOB_CLASSES, JOB_WIDTH, JOB_WORDS


@contextlib.contextmanager
def seeded(seed):
    """Random numbers from this seed in here; those outside go on as if nothing had been drawn."""
    import paddle

    before = paddle.get_rng_state()
    paddle.seed(seed)
    try:
        yield
    finally:
        paddle.set_rng_state(before)


class Kit:
    """Models in Paddle. Weights depend on nothing but `seed`."""

    name = "paddle"
    half = ()  # what a CPU can compute in
    masks_updates = False  # optimizers ask for the flag on the host
    is_late = False  # whether the host learns of an update that is not finite a step later

    def classifier(self, returns="dict", dropout=0.0, norm=False, seed=0):
        """forward(x, labels): a hidden layer and a cross entropy. `returns`: dict, tuple, object, scalar or logits."""
        from tests.backends.kits.paddle_models import Classifier

        with seeded(seed):
            return Classifier(returns, dropout, norm)

    def tagger(self, signature="plain", seed=0):
        """forward(input_ids, labels): the mean over labelled tokens. signature: plain or kwargs."""
        from tests.backends.kits.paddle_models import KwargsTagger, Tagger

        with seeded(seed):
            return KwargsTagger() if signature == "kwargs" else Tagger()

    def language_model(self, masked=True, seed=0):
        """forward(input_ids, labels, attention_mask, position_ids); without the last two if it is not masked."""
        from tests.backends.kits.paddle_language import LanguageModel, Unmasked

        with seeded(seed):
            return LanguageModel() if masked else Unmasked()

    def set_to_zero(self, layer):
        for p in layer.parameters():
            p.set_value(np.zeros(p.shape, "float32"))

    def weights(self, model):
        """Copies of all weights and buffers by name, as NumPy arrays."""
        return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}

    def tensor(self, array):
        import paddle

        return paddle.to_tensor(np.array(array))

    def half_collator(self, kind):
        """A collator whose "x" is in the half precision that an argument such as bf16_full_eval names."""
        dtype = "bfloat16" if kind.startswith("bf16") else "float16"

        def collate(samples):
            batch = {key: self.tensor(np.stack([sample[key] for sample in samples])) for key in samples[0]}
            return batch | {"x": batch["x"].astype(dtype)}

        return collate

    def freeze(self, model, frozen=True):
        for p in model.parameters():
            p.stop_gradient = frozen

    def cross_entropy(self, logits, labels, reduction="mean", ignore_index=-100):
        import paddle

        from tests.backends.kits.paddle_models import mean_cross_entropy

        if reduction == "mean" and ignore_index < 0:
            return mean_cross_entropy(logits, labels)
        logits, labels = logits.reshape([-1, logits.shape[-1]]), labels.reshape([-1])
        return paddle.nn.functional.cross_entropy(logits, labels, reduction=reduction, ignore_index=ignore_index)

    def criterion(self, weight=None, **options):
        """The framework's cross entropy as a layer, over the last axis of the logits; weights of classes as a list."""
        import paddle

        class Tokens(paddle.nn.CrossEntropyLoss):
            def forward(self, logits, labels):
                return super().forward(logits.reshape([-1, logits.shape[-1]]), labels.reshape([-1]))

        return Tokens(weight=None if weight is None else paddle.to_tensor(weight), **options)

    def binary_criterion(self, weight):
        """A layer whose weights are no weights of classes."""
        import paddle

        return paddle.nn.BCEWithLogitsLoss(weight=paddle.to_tensor(weight))

    def sgd(self, model, rate=0.1):
        """The framework's own optimizer."""
        import paddle

        return paddle.optimizer.SGD(learning_rate=rate, parameters=model.parameters())

    def has_gradients(self, model):
        return any(p.grad is not None for p in model.parameters())

    def optimizer(self, trainer):
        """The optimizer's state by parameter, as NumPy arrays."""
        names = {p.name: name for name, p in trainer.model.named_parameters()}
        return {
            f"{names[place]}:{key}": value.numpy().copy()
            for key, by_parameter in trainer.optimizer._accumulators.items()
            for place, value in by_parameter.items()
        }

    def smoothed(self, logits, labels, epsilon):
        import paddle

        return paddle.nn.functional.cross_entropy(logits, labels, label_smoothing=epsilon)

    def dtypes(self, model):
        """Names of the dtypes that the weights have."""
        return {str(p.dtype).removeprefix("paddle.") for p in model.parameters()}

    def is_deterministic(self):
        return os.environ.get("FLAGS_cudnn_deterministic") == "1"  # noqa: SIM112

    @contextlib.contextmanager
    def undone_determinism(self):
        """Switched off before, whatever other tests have left, and after what full_determinism=True switches on."""
        from oneloop.backends.paddle import randomness

        randomness.deterministic(False)
        try:
            yield
        finally:
            randomness.deterministic(False)

    def numpy(self, value):
        return value.detach().numpy()


class Job:
    """The framework's part of tests/checkpoint/job.py."""

    warm = ()  # what takes long to import, besides the backend

    def model(self, seed=3, dropout=0.3, norm=True):
        from paddle import nn

        class Reader(nn.Layer):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(JOB_WORDS, JOB_WIDTH)
                self.norm = nn.BatchNorm1D(JOB_WIDTH) if norm else nn.Identity()
                self.dropout = nn.Dropout(dropout)
                self.head = nn.Linear(JOB_WIDTH, JOB_CLASSES)

            def forward(self, input_ids, labels=None):
                known = (input_ids > 0).unsqueeze(-1).astype("float32")
                mean = (self.embed(input_ids) * known).sum(1) / known.sum(1)
                logits = self.head(self.dropout(self.norm(mean)))
                loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
                return {"loss": loss, "logits": logits} if loss is not None else {"logits": logits}

        with seeded(seed):
            return Reader()

    def draw(self):
        """A number from the framework's global stream."""
        import paddle

        return paddle.rand([]).item()

    def tensor(self, array):
        import paddle

        return paddle.to_tensor(array)

    def weights(self, model):
        return {name: value.detach().numpy() for name, value in model.state_dict().items()}
