"""GaLore and APOLLO, where their packages are installed: a step, a checkpoint and a resume to the same bits."""

import pytest

pytest.importorskip("torch")

import torch

from oneloop import Trainer
from oneloop.backends.torch import projectors, unsupported
from oneloop.errors import ArgumentError, CheckpointError, UnsupportedError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes

KIT = Kit()
RUN = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.01,
    "weight_decay": 0.1,
    "optim_target_modules": "all-linear",
}
PACKAGES = {"galore_adamw": "galore_torch", "galore_adafactor": "galore_torch", "apollo_adamw": "apollo_torch"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("galore_adamw", ""),
        ("galore_adamw", ",proj_type=full"),
        ("galore_adafactor", ""),
        ("apollo_adamw", ""),
        ("apollo_adamw", ",proj=svd"),
    ],
)
def test_they_train_and_resume_to_the_same_bits(arguments, tmp_path, name, options):
    pytest.importorskip(PACKAGES[name])
    run = RUN | {"optim": name, "optim_args": f"rank=2,update_proj_gap=2{options}", "save_steps": 3}
    whole = Trainer(KIT.classifier(dropout=0.2), arguments(save_strategy="steps", **run), train_dataset=rows(24))
    before = KIT.weights(whole.model)
    whole.train()
    assert not same_bytes(before, KIT.weights(whole.model))
    groups = {len(group["params"]): group for group in whole.optimizer.param_groups if "rank" in group}
    assert list(groups) == [sum(p.dim() == 2 for p in whole.model.parameters())]
    assert [group["weight_decay"] for group in groups.values()] == [0.1]
    again = Trainer(
        KIT.classifier(dropout=0.2, seed=3), arguments(save_strategy="steps", **run), train_dataset=rows(24)
    )
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert same_bytes(KIT.weights(whole.model), KIT.weights(again.model))


def test_what_a_checkpoint_may_say_of_a_projection():
    unpack = projectors.unpacked
    for wrong in (
        {"module": "os", "attributes": {}},
        {"module": "galore_torch.galore_projector", "attributes": {"__class__": 1}},
        {"module": "galore_torch.galore_projector"},
        [1],
    ):
        with pytest.raises(CheckpointError, match="projection that cannot be read"):
            unpack(wrong, lambda value: value, "here")


def test_targets_have_to_exist(arguments):
    from oneloop.backends.torch.target_groups import linear_weights

    with pytest.raises(ArgumentError, match="matches no linear layer.*The model has hidden"):
        linear_weights(KIT.classifier(), ["nowhere"], "galore_adamw")
    found = linear_weights(KIT.classifier(), "h.*", "galore_adamw")
    assert len(found) == 2


@pytest.mark.parametrize("name", PACKAGES)
def test_whole_matrices_are_needed(arguments, monkeypatch, name):
    from oneloop.arguments import packages

    monkeypatch.setattr(packages, "installed", lambda module: True)
    monkeypatch.setattr(unsupported, "world", lambda: type("World", (), {"size": 2}))
    arguments(**RUN, optim=name).check_backend("torch", "cpu")
    with pytest.raises(UnsupportedError, match="needs whole matrices"):
        arguments(**RUN, optim=name, sharding="stage1").check_backend("torch", "cpu")


def test_groups_of_the_user_are_divided_too(arguments):
    """An override of get_decay_parameter_names counts."""
    from oneloop.backends.torch.target_groups import TargetGroups

    model = KIT.classifier()
    weight = dict(model.named_parameters())["hidden.weight"]
    made = TargetGroups(model, {id(weight)}, {"rank": 2}, 0.1)
    assert [(len(group["params"]), group.get("rank"), group["weight_decay"]) for group in made] == [
        (1, None, 0.1),
        (2, None, 0.0),
        (1, 2, 0.1),
    ]
    other = made.divide([{"params": list(model.parameters()), "weight_decay": 0.3}])
    assert [(len(group["params"]), group.get("rank"), group["weight_decay"]) for group in other] == [
        (3, None, 0.3),
        (1, 2, 0.3),
    ]
    assert isinstance(other[1]["params"][0], torch.nn.Parameter)
