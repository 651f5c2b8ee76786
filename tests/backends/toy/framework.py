"""A framework for tests: tensors are NumPy's, and a loss carries the gradients of its parameters."""

import numpy as np

stream = np.random.default_rng(0)  # what training draws from: the noise on the inputs


class Tensor:
    """An array, and for a loss the gradient of each parameter."""

    def __init__(self, array, gradients=()):
        self.array = np.asarray(array)
        self.gradients = list(gradients)

    @property
    def shape(self):
        return self.array.shape

    @property
    def ndim(self):
        return self.array.ndim

    def detach(self):
        return Tensor(self.array)

    def mean(self):
        return Tensor(self.array.mean(), self.gradients)

    def __getitem__(self, rows):
        return Tensor(self.array[rows])

    def __truediv__(self, number):
        return Tensor(self.array / number, [(p, g / number) for p, g in self.gradients])

    def __mul__(self, number):
        return Tensor(self.array * number, [(p, g * number) for p, g in self.gradients])

    def __add__(self, other):
        return Tensor(self.array + other.array)

    def __float__(self):
        return float(self.array)


class Parameter(Tensor):
    grad = None


class Model:
    """Named parameters, a mode, and a forward method."""

    training = True

    def parameters(self):
        return {name: value for name, value in vars(self).items() if isinstance(value, Parameter)}

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def forward(self, *args, **kwargs):
        raise NotImplementedError


class Linear(Model):
    """Linear regression; in training the inputs get noise from the framework's stream."""

    def __init__(self, width, seed=0):
        values = np.random.RandomState(seed).randn(width)
        self.weight = Parameter(values.astype(np.float32))
        self.bias = Parameter(np.zeros((), np.float32))

    def forward(self, x, labels=None):
        inputs = x.array
        if self.training:
            inputs = inputs + stream.normal(0, 0.01, inputs.shape).astype(np.float32)
        found = inputs @ self.weight.array + self.bias.array
        if labels is None:
            return {"logits": Tensor(found)}
        error = found - labels.array
        slope = (2 * error / len(error)).astype(np.float32)
        gradients = [(self.weight, slope @ inputs), (self.bias, slope.sum())]
        return {"loss": Tensor((error**2).mean(), gradients), "logits": Tensor(found)}


class SGD:
    """Gradient descent with momentum."""

    def __init__(self, groups, lr, momentum=0.0):
        self.param_groups = [{"lr": lr, "momentum": momentum, **group} for group in groups]
        self.state = {}

    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                kept = self.state.setdefault(id(p), {})
                moved = group["momentum"] * kept.get("momentum_buffer", np.zeros_like(p.array)) + p.grad
                kept["momentum_buffer"] = moved.astype(np.float32)
                p.array = (p.array - np.float32(group["lr"]) * kept["momentum_buffer"]).astype(np.float32)
