"""Two parameters whose gradients are one array: clipping scales them once."""

import numpy as np
import pytest

from tests.backends.support import FEATURES, rows

RATE, LIMIT = 0.5, 0.25


def summing(name):
    """loss = 10 * sum((first + second) * mean(x)): both parameters have the gradient 10 * mean(x)."""
    start = np.ones(FEATURES, np.float32)
    if name == "torch":
        import torch

        class Summing(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = torch.nn.Parameter(torch.from_numpy(start.copy()))
                self.second = torch.nn.Parameter(torch.from_numpy(start.copy()))

            def forward(self, x):
                return {"loss": ((self.first + self.second) * x.mean(0)).sum() * 10}

    elif name == "paddle":
        import paddle

        class Summing(paddle.nn.Layer):
            def __init__(self):
                super().__init__()
                ones = paddle.nn.initializer.Assign(start)
                self.first = self.create_parameter([FEATURES], default_initializer=ones)
                self.second = self.create_parameter([FEATURES], default_initializer=ones)

            def forward(self, x):
                return {"loss": ((self.first + self.second) * x.mean(0)).sum() * 10}

    else:
        import mindspore as ms

        class Summing(ms.nn.Cell):
            def __init__(self):
                super().__init__()
                self.first = ms.Parameter(ms.Tensor(start), name="first")
                self.second = ms.Parameter(ms.Tensor(start), name="second")

            def construct(self, x):
                return {"loss": ((self.first + self.second) * x.mean(0)).sum() * 10}

    return Summing()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_gradient_of_two_parameters_is_clipped_once(backend, trained, accumulation):
    model, data = summing(backend.name), [{"x": row["x"]} for row in rows(8)]
    trained(
        model,
        data,
        max_grad_norm=LIMIT,
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_steps=1,
        per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation,
    )
    gradient = 10 * np.stack([row["x"] for row in data]).mean(0, dtype=np.float64)
    norm = np.sqrt(2 * (gradient**2).sum())
    assert norm > 4 * LIMIT
    for name, value in backend.weights(model).items():
        np.testing.assert_allclose(value, 1 - RATE * gradient * LIMIT / norm, atol=1e-5, err_msg=name)
