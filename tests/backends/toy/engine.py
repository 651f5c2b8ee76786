import contextlib
import math

import numpy as np

from oneloop.backends._common.engines import FunctionEngine

RECORDS_TRAINING_STEP = False


class Engine(FunctionEngine):
    def __init__(self, model, device, *, half=None, loss_scale=32768.0, max_grad_norm=1.0, nonfinite="stop"):
        self.parameters = list(model.parameters().values())
        self.scaler = None
        self.max_grad_norm, self.nonfinite = max_grad_norm, nonfinite
        self.norm, self.skipped = None, 0
        self._bad, self._loss = False, None

    def autocast(self, cache_enabled=True):
        return contextlib.nullcontext()

    def backward(self, loss, **kwargs):
        for p, gradient in loss.gradients:
            p.grad = gradient if p.grad is None else p.grad + gradient

    def loss_and_gradients(self, compute, divisor=None):
        loss = compute()
        loss = loss if divisor is None else loss / divisor
        self.backward(loss)
        return loss.detach()

    def include(self, optimizer):
        pass

    def clear(self):
        for p in self.parameters:
            p.grad = None

    def prepare_update(self, optimizer, loss):
        self._loss = None if loss is None else float(loss)
        self.norm = math.sqrt(sum(float(np.square(p.grad).sum()) for p in self.parameters))
        self._bad = not math.isfinite(self.norm) or self.loss_is_lost()
        if not self._bad and 0 < self.max_grad_norm < self.norm:
            for p in self.parameters:
                p.grad = (p.grad * np.float32(self.max_grad_norm / self.norm)).astype(np.float32)

    def loss_is_lost(self):
        return self._loss is not None and not math.isfinite(self._loss)

    def step(self, optimizer):
        optimizer.step()


def no_gradients():
    return contextlib.nullcontext()


def clip_norm(parameters, max_norm, norm_type=2.0):
    raise NotImplementedError
