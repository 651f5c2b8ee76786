"""A search of several processes: the main one proposes, and all train the same trials."""

import pytest


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["two", "four"])
def many(request, shared):
    return shared(request.param)


def test_all_processes_train_the_trials_of_the_main_one(many, shared):
    first = many[0]["searched"]
    for other in many[1:]:
        assert other["searched"] == first
    alone = shared(1)[0]["searched"]
    assert first["trial"] == "run-1" and first["steps"] == alone["steps"] == 1, "the second trial was pruned"
    assert first["best"][0] == alone["best"][0] == "0"
    assert first["best"][2] == alone["best"][2] and set(first["best"][2]) == {"learning_rate", "weights"}
    assert abs(first["best"][1] - alone["best"][1]) <= 1e-6
    assert max(abs(a - b) for a, b in zip(first["losses"], alone["losses"])) <= 1e-6
