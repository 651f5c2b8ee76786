import json

import numpy as np

from oneloop.data.torch_randperm import randperm as randperm

from . import framework


def seed(value):
    framework.stream.bit_generator.state = np.random.PCG64(value).state


def get_state():
    text = json.dumps(framework.stream.bit_generator.state)
    return {"toy.stream": np.frombuffer(text.encode(), np.uint8)}


def set_state(state):
    if "toy.stream" in state:
        framework.stream.bit_generator.state = json.loads(np.asarray(state["toy.stream"], np.uint8).tobytes())


def deterministic(on=True):
    pass


def worker_seed():
    return 0
