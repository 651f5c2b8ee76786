"""Models that give a buffer the shape that it has in the file, in their own way of loading."""

import pytest

from oneloop import Trainer
from oneloop.errors import CheckpointError
from tests.backends.support import available, rows, same_bytes

RUN = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.05}
WAYS = {"torch": ("method", "submodule", "hook"), "paddle": ("method",)}


def torch_model(way):
    import torch

    from tests.backends.kits.torch_models import Classifier

    class History(torch.nn.Module):
        """The mean of every batch so far."""

        def __init__(self):
            super().__init__()
            self.register_buffer("means", torch.zeros(0))
            if way == "hook":
                self.register_load_state_dict_pre_hook(self.take_shape)

        @staticmethod
        def take_shape(module, state, prefix, *rest):
            module.means = torch.zeros_like(state[f"{prefix}means"])

        def add(self, x):
            self.means = torch.cat([self.means, x.mean().reshape(1)])

        def _load_from_state_dict(self, state, prefix, *rest):
            if way == "submodule":
                self.take_shape(self, state, prefix)
            super()._load_from_state_dict(state, prefix, *rest)

    class Model(Classifier):
        def __init__(self):
            super().__init__()
            self.history = History()

        def forward(self, x, labels=None):
            self.history.add(x)
            return super().forward(x, labels)

        def load_state_dict(self, state, *args, **kwargs):
            if way == "method":
                self.history.take_shape(self.history, state, "history.")
            return super().load_state_dict(state, *args, **kwargs)

    torch.manual_seed(0)
    return Model()


def paddle_model(way):
    import paddle

    from tests.backends.kits.paddle_models import Classifier

    class Model(Classifier):
        def __init__(self):
            super().__init__()
            self.register_buffer("means", paddle.zeros([1]))

        def forward(self, x, labels=None):
            self.means = paddle.concat([self.means, x.mean().reshape([1])])
            return super().forward(x, labels)

        def set_state_dict(self, state, *args, **kwargs):
            self.means = paddle.zeros_like(state["means"])
            return super().set_state_dict(state, *args, **kwargs)

    paddle.seed(0)
    return Model()


MODELS = {"torch": torch_model, "paddle": paddle_model}


@pytest.mark.parametrize(
    ("kit", "way"),
    [(kit, way) for kit in available() for way in WAYS.get(kit.name, ())],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_buffer_that_has_grown(kit, way, arguments, tmp_path):
    whole = Trainer(MODELS[kit.name](way), arguments(**RUN), train_dataset=rows(24))
    whole.train()
    resumed = Trainer(MODELS[kit.name](way), arguments(**RUN), train_dataset=rows(24))
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    weights = kit.weights(whole.model)
    (name,) = [name for name in weights if "means" in name]
    assert len(weights[name]) >= 4 and same_bytes(weights, kit.weights(resumed.model))


@pytest.mark.parametrize("kit", [kit for kit in available() if kit.name == "torch"], ids=lambda kit: kit.name)
def test_a_shape_that_the_model_refuses_too(kit, arguments, tmp_path):
    Trainer(torch_model("method"), arguments(**RUN), train_dataset=rows(24)).train()
    other = torch_model("method")
    other.head = type(other.head)(8, 5)
    resumed = Trainer(other, arguments(**RUN), train_dataset=rows(24))
    with pytest.raises(CheckpointError, match=r"head.weight has shape \(3, 8\), the model expects \(5, 8\)"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
