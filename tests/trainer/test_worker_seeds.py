"""What is drawn once in a process is drawn once in a run: seeds of workers that evaluations keep, and what is read to
make their loaders. A run that is interrupted and resumed ends as the unbroken one, in weights, streams and logs."""

import json
import random

import pytest

from oneloop import Trainer, randomness
from oneloop.backends import loading
from oneloop.compat import accelerate_state
from tests.backends.support import rows, same_bytes
from tests.trainer.interrupted_evaluations import Case, differences, interrupted, some_case


@pytest.fixture
def found(tmp_path):
    def find(framework, **given):
        return differences(Case(framework, **given), tmp_path)

    return find


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("data", ["augmented", "several"])
def test_reading_an_evaluation_set_to_pack_it_draws_nothing(backend, found, data):
    assert found(backend.name, packing=True, data=data) == []


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("data", ["walked", "stream"])
def test_workers_that_read_a_stream_start_each_evaluation_anew(backend, found, data):
    assert found(backend.name, data=data) == []


@pytest.mark.rare_on("mindspore", "paddle")
def test_training_on_a_stream_with_workers_that_are_kept(backend, found):
    """In its second epoch."""
    order = "transformers" if backend.name == "torch" else "oneloop"
    assert found(backend.name, data_order=order, training_data="walked", data="plain", stops=((6, "crash"),)) == []


TRANSFORMERS = {
    "several": {"data": "several"},
    "evaluated at the start": {"start": True, "stops": ((2, "signal"),)},
    "evaluated by a callback too": {"calls": "again", "stops": ((4, "signal"),)},
    "other data evaluated by a callback under the same name": {"calls": "other"},
    "the same beside a loader of the user": {"calls": "other", "loader": "eval", "data": "plain", "listed": False},
    "the same through a loader of the user": {"calls": "other", "loader": "other", "listed": False},
    "predicted by a callback": {"calls": "predict", "stops": ((5, "crash"), (7, "crash"))},
    "interrupted in the first evaluation": {"stops": ((1, "evaluation"),)},
    "interrupted in the second one of several": {"data": "several", "stops": ((2, "evaluation"), (5, "crash"))},
    "interrupted again before an evaluation": {"stops": ((4, "crash"), (5, "crash"))},
    "a stream": {"data": "stream"},
    "a loader of the user": {"loader": "eval", "data": "plain"},
    "a loader of the user that is his secret": {"loader": "eval", "data": "plain", "listed": False},
    "a new loader of the user for each evaluation": {"loader": "new", "data": "plain", "listed": False},
    "loaders that are dropped and made again": {"forgets": 5, "stops": ((3, "crash"), (7, "crash"))},
    "an evaluation loop of the user": {"loop": True},
    "a training loader of the user": {"loader": "train", "training_data": "plain", "stops": ((5, "crash"),)},
    "workers that are not kept": {"persistent": False},
}


RARE = ("evaluated by a callback too", "predicted by a callback", "workers that are not kept")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in RARE else ()) for case in TRANSFORMERS]
)
def test_in_the_order_of_transformers(found, case, monkeypatch):
    pytest.importorskip("torch")
    # If another test has imported accelerate, its loader seeds the workers of a user's evaluation loop: not covered.
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: False)
    assert found("torch", data_order="transformers", **TRANSFORMERS[case]) == []


def test_a_generator_of_the_users_sampler_is_told_from_that_of_the_workers(found):
    pytest.importorskip("torch")
    given = {"loader": "train", "training_data": "plain", "generator": True, "stops": ((5, "crash"), (6, "crash"))}
    assert found("torch", **given) == []


def test_a_loader_that_accelerate_has_prepared(tmp_path):
    """Workers that the wrapped loader keeps, of a run that had started them, are seeded without a draw."""
    torch, prepared = pytest.importorskip("torch"), pytest.importorskip("accelerate.data_loader").prepare_data_loader
    loaders = loading.load("torch").loaders
    loader = prepared(torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True))
    assert loaders.has_drawn_seed(loader) is False
    before = torch.get_rng_state()
    loaders.seed_without_drawing(loader)
    assert len(list(loader)) == 4 and torch.equal(torch.get_rng_state(), before)
    assert loaders.has_drawn_seed(loader) is True


def test_accelerate_finds_no_generator_in_the_order_of_transformers(backend, arguments):
    """It copies the generator of a loader: with one, its copy would not draw."""
    if backend.name != "torch":
        return
    for workers in (0, 1):
        args = arguments(data_order="transformers", dataloader_num_workers=workers)
        loader = Trainer(backend.classifier(), args, eval_dataset=rows(4)).get_eval_dataloader()
        assert len(list(loader)) == 1 and loader.generator is None


def test_streams_are_unchanged_after_an_error_too(backend):
    own = loading.load(backend.name)
    before = randomness.get_state(own)
    with pytest.raises(KeyError), randomness.preserve_state(own):
        randomness.set_seed(3)
        raise KeyError
    assert same_bytes(randomness.get_state(own), before)


@pytest.mark.parametrize("loader", ["eval", "train"])
def test_a_loader_of_the_user_with_workers_that_he_keeps(found, caplog, loader):
    pytest.importorskip("torch")
    given = {"data": "plain", "stops": ((3, "signal"),)} if loader == "eval" else {"training_data": "plain"}
    assert found("torch", loader=loader, **given) == []
    assert ("The training loader is your own and keeps its workers" in caplog.text) == (loader == "train")


def test_checkpoints_name_the_loaders_that_have_drawn(tmp_path):
    pytest.importorskip("torch")
    case = Case(data_order="transformers", data="several", stops=((3, "evaluation"), (5, "signal")))
    interrupted(case, tmp_path)
    named = {}
    for step in (1, 2, 4, 5, 8):
        stored = json.loads((tmp_path / f"checkpoint-{step}" / "run.json").read_text())
        named[step] = stored.get("seeded")
    assert named == {1: None, 2: ["a", "b"], 4: ["a", "b"], 5: ["a", "b"], 8: ["a", "b"]}


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("seed", range(3))
def test_random_cases(backend, tmp_path, seed):
    case = some_case(random.Random(100 + seed), backend.name)
    assert differences(case, tmp_path) == [], case
