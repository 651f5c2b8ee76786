"""PyTorch's part of the tests that run on every backend."""

import contextlib

import numpy as np

from tests.backends.support import JOB_CLASSES, JOB_WIDTH, JOB_WORDS


class Kit:
    """Models in PyTorch. Weights depend on nothing but `seed`."""

    name = "torch"
    half = ("bf16", "fp16")  # what a CPU can compute in
    masks_updates = True  # a flag on the device can leave an update out, and is read later
    is_late = False  # whether the host learns of an update that is not finite a step later

    def classifier(self, returns="dict", dropout=0.0, norm=False, seed=0):
        """forward(x, labels): a hidden layer and a cross entropy. `returns`: dict, tuple, object, scalar or logits."""
        import torch

        from tests.backends.kits.torch_models import Classifier

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Classifier(returns, dropout, norm)

    def tagger(self, signature="plain", seed=0):
        """forward(input_ids, labels): the mean over labelled tokens. signature: plain or kwargs."""
        import torch

        from tests.backends.kits.torch_models import KwargsTagger, Tagger

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return KwargsTagger() if signature == "kwargs" else Tagger()

    def language_model(self, masked=True, seed=0):
        """forward(input_ids, labels, attention_mask, position_ids); without the last two if it is not masked."""
        import torch

        from tests.backends.kits.torch_language import LanguageModel, Unmasked

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return LanguageModel() if masked else Unmasked()

    def set_to_zero(self, layer):
        import torch

        with torch.no_grad():
            for p in layer.parameters():
                p.zero_()

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

    def freeze(self, model, frozen=True):
        model.requires_grad_(not frozen)

    def cross_entropy(self, logits, labels, reduction="mean", ignore_index=-100):
        import torch

        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction=reduction, ignore_index=ignore_index
        )

    def criterion(self, weight=None, **options):
        """The framework's cross entropy as a layer, over the last axis of the logits; weights of classes as a list."""
        import torch

        class Tokens(torch.nn.CrossEntropyLoss):
            def forward(self, logits, labels):
                return super().forward(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

        return Tokens(weight=None if weight is None else torch.tensor(weight), **options)

    def binary_criterion(self, weight):
        """A layer whose weights are no weights of classes."""
        import torch

        return torch.nn.BCEWithLogitsLoss(weight=torch.tensor(weight))

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
        """Switched off before, whatever other tests have left, and after what full_determinism=True switches on."""
        from oneloop.backends.torch import randomness

        randomness.deterministic(False)
        try:
            yield
        finally:
            randomness.deterministic(False)

    def numpy(self, value):
        return value.detach().cpu().numpy()


class Job:
    """The framework's part of tests/checkpoint/job.py."""

    warm = ("safetensors.torch", "torch._dynamo")  # what takes long to import; optimizers import the last when made

    def model(self, seed=3, dropout=0.3, norm=True):
        import torch
        from torch import nn

        class Reader(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(JOB_WORDS, JOB_WIDTH)
                self.norm = nn.BatchNorm1d(JOB_WIDTH) if norm else nn.Identity()
                self.dropout = nn.Dropout(dropout)
                self.head = nn.Linear(JOB_WIDTH, JOB_CLASSES)

            def normed(self, mean):
                """A single sample has no variance: it takes that of the batches before."""
                if len(mean) > 1 or not (self.training and norm):
                    return self.norm(mean)
                of_past = self.norm.running_mean, self.norm.running_var
                return nn.functional.batch_norm(mean, *of_past, self.norm.weight, self.norm.bias)

            def forward(self, input_ids, labels=None):
                known = (input_ids > 0).unsqueeze(-1)
                mean = (self.embed(input_ids) * known).sum(1) / known.sum(1)
                logits = self.head(self.dropout(self.normed(mean)))
                loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
                return {"loss": loss, "logits": logits} if loss is not None else {"logits": logits}

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Reader()

    def adapted(self):
        """The same model under LoRA, with dropout of its own. The running means of the base go on."""
        import peft
        import torch

        model = self.model()
        config = peft.LoraConfig(r=3, lora_alpha=8, lora_dropout=0.2, target_modules=["embed", "head"])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            return peft.get_peft_model(model, config)

    def draw(self):
        """A number from the framework's global stream."""
        import torch

        return float(torch.rand(()))

    def tensor(self, array):
        import torch

        return torch.from_numpy(array)

    def weights(self, model):
        return {name: value.detach().numpy() for name, value in model.state_dict().items()}
