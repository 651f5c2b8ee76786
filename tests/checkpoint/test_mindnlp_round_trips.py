"""States of mindnlp's optimizers, written for any parameter groups and read again by name. No framework."""

import pickle
import random
import zipfile

import numpy as np
import pytest

from oneloop.converters import mindnlp_checkpoint
from oneloop.converters.parameter_groups import Parameter
from oneloop.errors import CheckpointError

SHAPES = {"embed.weight": (7, 4), "dense.weight": (4, 3), "dense.bias": (3,), "norm.weight": (5,), "head.bias": (2, 1)}
PARAMETERS = [Parameter(name, True, in_norm=name.startswith("norm")) for name in SHAPES]


def written(folder, groups, steps, seed=0):
    """The file of an optimizer with these groups of names; its numbers count through the groups. And its moments."""
    draw = np.random.RandomState(seed)
    names = [name for group in groups for name in group]
    states = {
        number: {
            "exp_avg": draw.randn(*SHAPES[name]).astype(np.float32),
            "exp_avg_sq": draw.rand(*SHAPES[name]).astype(np.float32),
            "step": steps,
        }
        for number, name in enumerate(names)
    }
    numbers = iter(range(len(names)))
    options = [
        {"params": [next(numbers) for _ in group], "eps": 0.5, "weight_decay": 0.25 * i}
        for i, group in enumerate(groups)
    ]
    with zipfile.ZipFile(folder / "optimizer.ckpt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"state": states, "param_groups": options}, 2))
    return {f"{name}:{key}": value for number, name in enumerate(names) for key, value in states[number].items()}


def partitions(count):
    """Groups as a script may make them: any parameter in any group."""
    source = random.Random(3)
    for _ in range(count):
        names = list(SHAPES)
        source.shuffle(names)
        cuts = sorted(source.sample(range(1, len(names)), source.randint(0, 3)))
        yield [names[start:end] for start, end in zip([0, *cuts], [*cuts, len(names)])]


@pytest.mark.parametrize("steps", [0, 1, 8])
def test_any_groups_are_read_by_name(steps, tmp_path):
    """Also before the first update."""
    for seed, groups in enumerate(partitions(30)):
        stored = written(tmp_path, groups, steps, seed)
        own = mindnlp_checkpoint.Groups(groups, [{"weight_decay": 0.25 * i} for i in range(len(groups))])
        loaded, found, options = mindnlp_checkpoint.optimizer(tmp_path, "AdamW", PARAMETERS, SHAPES, own)
        assert found.keys() == stored.keys()
        for name, value in stored.items():
            assert found[name].dtype == np.float32 and found[name].tobytes() == np.array(value, np.float32).tobytes()
        assert loaded.sources == [{i} for i in range(len(groups))] and loaded.decay == {}
        assert options == [{"eps": 0.5, "weight_decay": 0.25 * i} for i in range(len(groups))]


def test_a_changed_weight_decay_is_named(tmp_path):
    groups = [["embed.weight", "dense.weight"], ["dense.bias", "norm.weight", "head.bias"]]
    written(tmp_path, groups, 3)
    own = mindnlp_checkpoint.Groups(groups, [{"weight_decay": 0.5}, {"weight_decay": 0.25}])
    loaded, _, _ = mindnlp_checkpoint.optimizer(tmp_path, "AdamW", PARAMETERS, SHAPES, own)
    assert loaded.decay == {"embed.weight": (0.0, 0.5), "dense.weight": (0.0, 0.5)}


def test_a_parameter_without_a_state_is_an_error(tmp_path):
    names = list(SHAPES)
    written(tmp_path, [names[:-1]], 3)
    own = mindnlp_checkpoint.Groups([names], [{}])
    with pytest.raises(CheckpointError):
        mindnlp_checkpoint.optimizer(tmp_path, "AdamW", PARAMETERS, SHAPES, own)
