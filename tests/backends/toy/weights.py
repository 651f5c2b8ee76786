import numpy as np

from oneloop.backends._common.helpers import check_names_and_shapes, check_optimizer_names
from oneloop.errors import UnsupportedError
from oneloop.formats import safetensors_io as files

LAYOUT = "np"


def _array(tensor):
    return np.asarray(getattr(tensor, "array", tensor))


def model_tensors(model):
    return {name: p.array for name, p in model.parameters().items()}, {}


def copy_to(tensor, buffer):
    return np.array(_array(tensor))


def allows_threaded_copy(tensor):
    return False


def empty_like_host(tensor):
    return np.empty_like(_array(tensor))


def raw(tensor):
    return files.from_numpy(_array(tensor))


def load_tensors(path):
    return {name: np.array(stored.array()) for name, stored in files.read(path).items()}


def load_model(model, tensors, tied, source):
    own = model.parameters()
    check_names_and_shapes(tensors, own, source)
    for name, p in own.items():
        p.array = np.array(_array(tensors[name]))


def save_adapter(model, directory, tensors=None):
    raise UnsupportedError("the toy has no adapters")


load_adapter = save_adapter


def optimizer_names(optimizer, model):
    return {id(p): name for name, p in model.parameters().items()}


def optimizer_state(optimizer, model):
    names = optimizer_names(optimizer, model)
    tensors = {f"{names[p]}:{word}": value for p, kept in optimizer.state.items() for word, value in kept.items()}
    groups = [
        {"names": [names[id(p)] for p in group["params"]]} | {k: v for k, v in group.items() if k != "params"}
        for group in optimizer.param_groups
    ]
    return tensors, {"class": type(optimizer).__name__, "groups": groups, "values": {}}


def load_optimizer(optimizer, model, tensors, data, source):
    own = model.parameters()
    check_optimizer_names({name for group in data["groups"] for name in group["names"]}, set(own), source)
    optimizer.state.clear()
    for key, value in tensors.items():
        name, word = key.rsplit(":", 1)
        optimizer.state.setdefault(id(own[name]), {})[word] = np.array(value)
    for group, stored in zip(optimizer.param_groups, data["groups"], strict=True):
        group |= {key: value for key, value in stored.items() if key != "names"}
