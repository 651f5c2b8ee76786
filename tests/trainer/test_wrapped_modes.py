"""A model in evaluation mode, as from_pretrained returns it, in a wrapper that is in training mode."""

import pytest


def test_torch():
    torch = pytest.importorskip("torch")
    from oneloop.backends.torch import models

    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).eval()
    wrapper = torch.nn.DataParallel(inner)
    assert wrapper.training and not inner.training
    models.train_mode(wrapper)
    assert inner.training and inner[1].training
    inner[1].eval()  # frozen by the user: stays as it is
    models.train_mode(wrapper)
    assert not inner[1].training


def test_paddle():
    paddle = pytest.importorskip("paddle")
    from oneloop.backends.paddle import models

    inner = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Dropout(0.5))
    wrapper = models.Compiled(inner, None)
    inner.eval()
    assert wrapper.training and not inner.training
    models.train_mode(wrapper)
    assert inner.training and inner[1].training
