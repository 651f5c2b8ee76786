"""SetFit on oneloop, beside the same scripts on transformers' own Trainer."""

import json

import pytest

from tests.ecosystem.needs import needs
from tests.ecosystem.test_sentence_transformers import assert_same_run, play

needs("setfit", "optuna")


@pytest.mark.slow
def test_the_run_is_that_of_transformers(tmp_path):
    theirs, ours = (play(trainer, tmp_path / trainer, "setfit")["setfit"] for trainer in ("transformers", "oneloop"))
    assert_same_run("setfit", theirs, ours)
    assert ours["predictions"] == theirs["predictions"] and len(set(ours["predictions"])) == 2
    # SetFit hands its own arguments and its own model to callbacks.
    assert ours["heard"] == theirs["heard"] == [["setfit.training_args", "SetFitModel", 4]] * ours["steps"]
    assert any("embedding_loss" in log for log in ours["history"])


@pytest.mark.slow
def test_a_search_trains_the_model_of_each_trial(tmp_path):
    """The best trial, trained again, is the run with its hyperparameters on transformers."""
    found = play("oneloop", tmp_path / "oneloop", "setfit_search")["setfit_search"]
    search = found["search"]
    assert search["parameters"].keys() == {"body_learning_rate", "max_steps"}
    assert found["steps"] == search["parameters"]["max_steps"]
    words = json.dumps(search["parameters"])
    alone = play("transformers", tmp_path / "alone", "setfit_parameters", PARAMETERS=words)["setfit_parameters"]
    for name, sums in alone["weights"].items():
        assert found["weights"][name] == pytest.approx(sums, rel=1e-5, abs=1e-5), name
    assert found["predictions"] == alone["predictions"]
