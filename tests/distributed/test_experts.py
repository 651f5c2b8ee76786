"""Expert parallelism on PyTorch: MoE models of transformers whose experts are divided train as on one process."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.distributed.launch import results, run

pytest.importorskip("transformers")
pytest.importorskip("peft")
from tests.distributed import experts_job as job

JOB = job.__file__
COMMON = ("equal", "saved", "others")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process wrote, by their number."""
    folder, known = tmp_path_factory.mktemp("experts"), {}
    for size, cases in {1: COMMON, 2: (*COMMON, "crossed", "refused")}.items():
        (folder / str(size)).mkdir()
        run(size, folder / str(size), *cases, script=JOB)
        known[size] = results(folder / str(size), size)
    return folder, known


def assert_same(course, expected):
    assert course["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert course["norms"] == pytest.approx(expected["norms"], rel=1e-5)


@pytest.mark.parametrize("name", job.RUNS)
def test_divided_experts_train_as_one_process(found, name):
    (expected,) = found[1][1]
    for each in found[1][2]:
        assert_same(each["equal"][name], expected["equal"][name])
        assert each["equal"][name]["eval"] == pytest.approx(expected["equal"][name]["eval"], rel=1e-5)
        assert set(each["equal"][name]["held"]) == {2} and set(expected["equal"][name]["held"]) == {4}


@pytest.mark.parametrize("name", ["frozen", "given", "second"])
def test_frozen_experts_given_optimizers_and_second_runs(found, name):
    (expected,) = found[1][1]
    for each in found[1][2]:
        assert_same(each["others"][name], expected["others"][name])
    assert found[1][2][0]["others"]["frozen"]["trained"] == expected["others"]["frozen"]["trained"]
    assert not all(expected["others"]["frozen"]["trained"])


def test_muon_and_an_average_of_the_weights(found):
    (expected,) = (each["others"]["muon"] for each in found[1][1])
    for each in (each["others"]["muon"] for each in found[1][2]):
        assert each["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert each["norms"] == pytest.approx(expected["norms"], rel=1e-4), "Muon rounds to bfloat16"
        assert each["eval"] == pytest.approx(expected["eval"], rel=1e-5)


def test_a_resumed_run_has_the_same_bits(found):
    for each in found[1][2]:
        whole, again = each["saved"]["whole"], each["saved"]["again"]
        assert again["weights"] == whole["weights"]
        assert again["losses"] == whole["losses"][3:] and again["norms"] == whole["norms"][3:]


def test_it_goes_on_from_one_process_and_the_other_way_round(found):
    folder, known = found
    for each in known[2]:
        for size, losses in each["crossed"].items():
            assert losses == pytest.approx(known[int(size)][0]["saved"]["whole"]["losses"][3:], rel=1e-5), size
    alone = folder / "back"
    alone.mkdir()
    run(1, alone, "crossed", script=JOB)
    (back,) = results(alone, 1)
    assert back["crossed"]["2"] == pytest.approx(known[2][0]["saved"]["whole"]["losses"][3:], rel=1e-5)


def test_the_saved_model_is_that_of_one_process(found):
    folder, _ = found
    one, two = (load_file(folder / size / "final" / "model.safetensors") for size in "12")
    assert {name: value.shape for name, value in one.items()} == {name: value.shape for name, value in two.items()}
    for name, value in one.items():
        assert np.abs(value - two[name]).mean() < 1e-5, name


REASONS = {
    "adapter": "an adapter is not supported with expert_parallel_size",
    "no experts": "expert_parallel_size=2 divides experts, but Linear has none",
    "three experts": "has 3 experts, which expert_parallel_size=2 does not divide",
    "tied experts": "tied weights would be separated: inner.model.layers.0.mlp.experts.down_proj",
    "divided already": "model.layers.0.mlp.experts is already divided",
    "divided by transformers": "gives experts a part of their gradient",
    "compiled": "expert_parallel_size=2 is not supported with torch_compile",
    "adafactor": "adafactor keeps one scale",
}


@pytest.mark.parametrize("name", job.REFUSED)
def test_what_is_refused_is_named(found, name):
    for each in found[1][2]:
        kind, _, said = each["refused"][name].partition(": ")
        assert kind in ("ArgumentError", "ModelError", "UnsupportedError"), each["refused"][name]
        assert REASONS[name] in said


@pytest.mark.slow
def test_every_layout_goes_on_from_every_other(tmp_path):
    stored, every = {}, [layout for layouts in job.LAYOUTS.values() for layout in layouts]
    for size in job.LAYOUTS:
        (tmp_path / str(size)).mkdir()
        run(size, tmp_path / str(size), "stored", script=JOB)
        stored |= results(tmp_path / str(size), size)[0]["stored"]
    assert len(every) == 6
    for layout in every:
        assert stored[layout]["losses"] == pytest.approx(stored["alone"]["losses"], rel=1e-5), layout
    for size, layouts in job.LAYOUTS.items():
        run(size, tmp_path / str(size), "spread", script=JOB)
        for each in results(tmp_path / str(size), size):
            for layout in layouts:
                assert set(each["spread"][layout]) == set(every)
                for source, losses in each["spread"][layout].items():
                    assert losses == pytest.approx(stored[source]["losses"][3:], rel=1e-5), (layout, source)


def tokens_of_experts(courses):
    """How many tokens chose each expert of each layer in 30 steps, over processes with parts of the batch."""
    layers = courses[0]["chosen"]
    return {layer: np.concatenate([each["chosen"][layer] for each in courses]).sum(axis=0).tolist() for layer in layers}


@pytest.mark.slow
def test_thirty_steps_on_two_and_four_processes(tmp_path):
    """Also the router's decisions are those of one process: where rounding changed one, runs would part from there."""
    known = {}
    for size, cases in {1: ("thirty", "halves"), 2: ("thirty",), 4: ("thirty",)}.items():
        (tmp_path / str(size)).mkdir()
        run(size, tmp_path / str(size), *cases, script=JOB)
        known[size] = results(tmp_path / str(size), size)
    for size, reference in {2: "thirty", 4: "halves"}.items():
        for name in job.RUNS:
            expected, found = known[1][0][reference][name], [each["thirty"][name] for each in known[size]]
            assert tokens_of_experts(found[::2]) == tokens_of_experts([expected]), (name, size)
            for each in found:
                assert_same(each, expected)
                assert size == 4 or each["chosen"] == expected["chosen"], name


@pytest.mark.slow
def test_a_router_without_a_gradient_follows_rounding_errors(tmp_path):
    """Why the runs above have none: on one process, the last bit of one weight decides about tokens' experts."""
    run(1, tmp_path, "rounding", script=JOB)
    ((plain, changed),) = (found["rounding"] for found in results(tmp_path, 1))
    assert max(plain["router"]) < 1e-8 < min(plain["norms"])
    assert plain["losses"][0] == pytest.approx(changed["losses"][0], rel=1e-6)
    assert plain["chosen"] != changed["chosen"]
    assert plain["losses"][-1] != pytest.approx(changed["losses"][-1], rel=1e-5)
