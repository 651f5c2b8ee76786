from oneloop.backends._common import device_moves

from .framework import Tensor


def available(kind):
    return int(kind == "cpu")


def resolve(spec):
    kind, _ = device_moves.choose(spec, {"cpu": "cpu"}, ("cpu",), available, "the toy")
    return kind


def kind(device):
    return device


def title(device):
    return None


def move_model(model, device):
    return model


def move(batch, device, non_blocking=True):
    return device_moves.map_batch(batch, lambda value: value, Tensor)


def is_out_of_memory(error):
    return isinstance(error, MemoryError)


def empty_cache(device):
    pass


def allow_tf32(on):
    pass
