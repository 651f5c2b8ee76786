"""A run that begins on one framework and goes on on another."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.backends import loading
from oneloop.converters.framework_layout import Place, turned
from oneloop.errors import CheckpointError
from oneloop.formats import safetensors_io as files
from tests.backends.support import names
from tests.checkpoint.convert.twins import TWINS, start, texts
from tests.internals import wait_for_saves

PAIRS = list(itertools.permutations(names(), 2))
# Each framework once as the first and once as the second. The other pairs are slow; they are below too, on fewer steps.
NEXT = dict(zip(names(), [*names()[1:], *names()[:1]]))
CURVES = [pytest.param(*pair, marks=[] if NEXT[pair[0]] == pair[1] else pytest.mark.slow) for pair in PAIRS]
AXES = {"embed.weight": "nv", "convolution.weight": "oiw", "square.weight": "oi", "head.weight": "oi"}


def model_of(framework, tmp_path):
    """The twin with the first weights of `start`."""
    model = TWINS[framework]()
    backend = loading.load(framework)
    values = start()
    own, _ = backend.weights.model_tensors(model)
    raws = {}
    for name, place in backend.framework_layout.layout(model).items():
        if place.name in values:
            raws[name] = files.from_numpy(turned(values[place.name], AXES.get(place.name, ""), place.axes))
        else:
            assert place.name == "batch_norm.num_batches_tracked"
    path = tmp_path / f"{framework}.safetensors"
    files.write(path, raws)
    rest = {name: own[name] for name in own if name not in raws}
    backend.weights.load_model(model, backend.weights.load_tensors(path) | rest, {}, "the test")
    return model


def arguments(folder, steps, **given):
    options = {
        "per_device_train_batch_size": 4,
        "max_steps": steps,
        "learning_rate": 0.01,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 10,
        "weight_decay": 0.05,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 50,
        "report_to": "none",
        "disable_tqdm": True,
        "device": "cpu",
        "seed": 3,
    }
    return TrainingArguments(output_dir=str(folder), **(options | given))


def run(framework, folder, tmp_path, resume=None, trainer_class=Trainer, steps=100, **given):
    trainer = trainer_class(model_of(framework, tmp_path), arguments(folder, steps, **given), train_dataset=texts())
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer):
    return np.array([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The losses of an unbroken run on each framework, and the checkpoint in its middle."""
    known = {}

    def of(framework):
        if framework not in known:
            folder = tmp_path_factory.mktemp(framework)
            trainer = run(framework, folder / "run", folder)
            known[framework] = losses(trainer), str(folder / "run" / "checkpoint-50")
        return known[framework]

    return of


@pytest.mark.parametrize("first, second", CURVES)
def test_the_joined_curve_is_that_of_one_framework(first, second, whole, tmp_path):
    (begun, middle), (other, _) = whole(first), whole(second)
    joined = run(second, tmp_path / "second", tmp_path, resume=middle)
    curve = losses(joined)
    assert len(curve) == 100 and joined.state.global_step == 100
    assert curve[:50].tobytes() == begun[:50].tobytes()  # the history came with the checkpoint
    assert curve[50:].tobytes() != begun[50:].tobytes()  # and the rest is this framework's own arithmetic
    assert np.abs(curve - begun).max() < 1e-5
    assert np.abs(curve - other).max() < 1e-5


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_square_weight_and_its_moments_are_turned(first, second, tmp_path):
    """Axes are known by the layer's type: the shape would fit either way."""
    run(first, tmp_path / "first", tmp_path, steps=5, save_steps=5)
    trainer = run(second, tmp_path / "second", tmp_path, resume=str(tmp_path / "first" / "checkpoint-5"), steps=5)
    trainer._save_checkpoint()
    wait_for_saves(trainer)
    there, here = common_state(tmp_path / "first" / "checkpoint-5"), common_state(tmp_path / "second" / "checkpoint-5")
    assert there.keys() == here.keys()
    for name in there:
        assert there[name].shape == here[name].shape and there[name].tobytes() == here[name].tobytes(), name
    assert not np.array_equal(there["square.weight"], there["square.weight"].T)


def common_state(checkpoint):
    """Weights and moments of a checkpoint in torch's names and order."""
    from oneloop.converters import optimizer_state

    run_json = json.loads((checkpoint / "run.json").read_text())
    layout = {name: Place(*place) for name, place in run_json["layout"].items()}
    found = {}

    def add(name, word, raw):
        place = layout[name]
        if place.axes != "-":
            found[place.name + word] = np.array(turned(raw.array(), place.axes, AXES.get(place.name, "")))

    for name, raw in files.read(checkpoint / "model.safetensors").items():
        add(name, "", raw)
    stored = files.read(checkpoint / "optimizer.safetensors")
    for name, state in optimizer_state.read(run_json["framework"], stored, run_json["optimizer"], 5).items():
        assert state.step == 5
        for word, raw in state.moments.items():
            add(name, f":{word}", raw)
    return found


@pytest.mark.parametrize("first, second", PAIRS)
def test_names_that_do_not_fit_are_all_listed_and_can_be_mapped(first, second, tmp_path):
    run(first, tmp_path / "first", tmp_path, steps=2, save_steps=2)
    path = tmp_path / "first" / "checkpoint-2"
    written = json.loads((path / "run.json").read_text())
    for place in written["layout"].values():
        place[0] = place[0].replace("square.", "old.").replace("head.", "top.")
    rewrite(path, written)
    with pytest.raises(CheckpointError) as caught:
        run(second, tmp_path / "second", tmp_path, resume=str(path), steps=4)
    for name in ("old.weight", "old.bias", "top.weight", "top.bias", "square.weight", "square.bias", "head.weight"):
        assert name in str(caught.value)
    assert "rename_parameter" in str(caught.value)

    class Renaming(Trainer):
        def rename_parameter(self, name, framework):
            assert framework == first
            return name.replace("old.", "square.").replace("top.", "head.")

    trainer = run(second, tmp_path / "second", tmp_path, str(path), trainer_class=Renaming, steps=4)
    assert trainer.state.global_step == 4


def rewrite(checkpoint, run_json):
    """Change run.json and the manifest with it."""
    import hashlib

    data = (json.dumps(run_json, indent=2, sort_keys=True) + "\n").encode()
    (checkpoint / "run.json").write_bytes(data)
    manifest_path = next(path for path in Path(checkpoint).iterdir() if "manifest" in path.name)
    manifest = json.loads(manifest_path.read_text())
    manifest["files"]["run.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest_path.write_text(json.dumps(manifest))


def test_layers_of_another_kind_do_not_fit():
    """A linear weight and one that lies as it is are not the same thing, whatever their shapes."""
    with pytest.raises(ValueError, match="not the same kind of layer"):
        turned(np.zeros((4, 4)), "oi", "")
    with pytest.raises(ValueError, match="not the same kind of layer"):
        turned(np.zeros((4, 4)), "oi", "nv")


def test_axes_are_turned_by_their_letters():
    array = np.arange(24).reshape(2, 3, 4)
    assert turned(array[0], "oi", "io").tolist() == array[0].T.tolist()
    assert turned(array, "oiw", "oi1w").shape == (2, 3, 1, 4)
    assert turned(turned(array, "oiw", "oi1w"), "oi1w", "oiw").tolist() == array.tolist()
    assert turned(array, "oiw", "iow").shape == (3, 2, 4)
