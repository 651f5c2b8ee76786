"""Two processes under the launchers of Paddle and MindSpore against one with the same global batch."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import safe_open

from tests.backends import support as backends_support
from tests.distributed.launch import results, run_cases
from tests.distributed.test_data import DROPOUT, check_dropout
from tests.distributed.test_equality import check_loss_table, difference
from tests.distributed.test_steps import check_disagreeing, check_rolled_back, check_rolled_back_at_an_epoch

FRAMEWORKS = [name for name in backends_support.names() if name != "torch"]  # to which the rest of this folder belongs
EQUAL = ("sgd", "few_left", "tokens_accumulated", "adamw", "iterable_in_parts", "shifted")
CASES = (
    *EQUAL,
    "evaluated",
    "elastic",
    "resumed",
    "frozen",
    "own_means",
    "one_bad_sample",
    "rolled_back",
    "rolled_back_at_an_epoch",
    "infinite_weights",
    "signal_in_an_evaluation",
    "asked_by_one",
    "metrics_of_main",
    "first_and_later",
    "disagreeing",
    "searched",
    "dropout_of_each",
    "closing",
    "loss_table",
)


@pytest.fixture(scope="module", params=FRAMEWORKS)
def runs(request, tmp_path_factory):
    """All cases on one process and on two, and what each number of processes makes of the other's checkpoint.

    Interpreters take long to start, so a launched job has many cases. A process that ends badly fails here.
    """
    folder = tmp_path_factory.mktemp(request.param)
    places = {name: folder / name for name in ("one", "two", "back")}
    for place in places.values():
        place.mkdir()

    def checkpoints(place):
        return [f"from:{places[place] / case / 'checkpoint-4'}" for case in ("elastic", *more)]

    framework = request.param
    more = ["stage1"] if framework == "paddle" else []
    own = [*more, "half", "model_again"] if framework == "paddle" else []
    run_cases(framework, 1, places["one"], *CASES, *own)
    said = run_cases(framework, 2, places["two"], *CASES, *own, *checkpoints("one"))
    run_cases(framework, 1, places["back"], *checkpoints("two"))
    return SimpleNamespace(
        framework=framework,
        said=said,
        places=places,
        one=results(places["one"], 1)[0],
        two=results(places["two"], 2),
        back=results(places["back"], 1)[0],
    )


def test_values_that_differ_between_processes_are_named_before_the_first_step(runs):
    for each in runs.two:
        check_disagreeing(each["disagreeing"], 2)


@pytest.mark.parametrize("case", EQUAL)
def test_the_update_is_that_of_the_undivided_batch(case, runs):
    alone = runs.one[case]
    for together in runs.two:
        assert together[case]["steps"] == alone["steps"]
        for name, weights in alone["weights"].items():
            assert difference(weights, together[case]["weights"][name]) <= (1e-5 if case == "adamw" else 1e-6)
        assert difference(alone["losses"], together[case]["losses"]) <= 1e-6
        assert difference(alone["norms"], together[case]["norms"]) <= 1e-5
    first, second = (of_rank[case] | {"asked": 0} for of_rank in runs.two)
    assert first == second


def test_who_divides_the_loss(runs):
    check_loss_table(runs.one["loss_table"], [each["loss_table"] for each in runs.two])


def test_each_global_batch_has_the_same_samples(runs):
    """29 samples and 8 an update: 4 and 4 three times, then 3 and 2."""
    alone = runs.one["sgd"]["asked"]
    first, second = (of_rank["sgd"]["asked"] for of_rank in runs.two)
    found = []
    for epoch in (0, 1):
        mine, other = first[15 * epoch :][:15], second[14 * epoch :][:14]
        for update in range(4):
            found += mine[4 * update :][:4] + other[4 * update :][:4]
    assert found == alone


def test_a_sample_that_is_left_over_is_seen_once(runs):
    """17 samples and 8 an update: the last update of an epoch is one process's alone."""
    first, second = (of_rank["few_left"]["asked"] for of_rank in runs.two)
    assert (len(first), len(second)) == (18, 16)
    assert sorted(first[:9] + second[:8]) == sorted(first[9:] + second[8:]) == list(range(17))


def test_what_is_done_once_in_an_update(runs):
    """The second process has one micro-batch less in the last update, and does not join in: it closes it all the
    same."""
    assert runs.one["closing"]["places"] == [False, False, True, False, True]
    first, second = (each["closing"] for each in runs.two)
    assert (first["places"], second["places"]) == ([False, False, True, False, True], [False, False, True, True])
    assert first["sums"] == second["sums"] == [6, 9] and first["after"] is second["after"] is True


@pytest.mark.parametrize("data", DROPOUT)
def test_dropout_differs_between_processes(data, runs):
    check_dropout(data, [each["dropout_of_each"] for each in runs.two])


def test_an_evaluation_counts_every_sample_once_and_in_order(runs):
    alone = runs.one["evaluated"]
    for each in runs.two:
        found = each["evaluated"]
        assert found["labels"] == alone["labels"]
        assert difference(found["predictions"], alone["predictions"]) <= 1e-6
        assert found["metrics"]["eval_count"] == 31
        assert found["metrics"]["eval_accuracy"] == alone["metrics"]["eval_accuracy"]
        assert abs(found["metrics"]["eval_loss"] - alone["metrics"]["eval_loss"]) <= 1e-6
        assert abs(found["test_loss"] - alone["test_loss"]) <= 1e-6


def test_data_that_are_walked_through_are_predicted_in_order(runs):
    alone = runs.one["iterable_in_parts"]
    for each in runs.two:
        assert each["iterable_in_parts"]["labels"] == alone["labels"]
        assert abs(each["iterable_in_parts"]["test_loss"] - alone["test_loss"]) <= 1e-6


def test_two_processes_resume_to_the_same_bits(runs):
    for case in ("resumed", "frozen", "own_means"):
        for each in (runs.one, *runs.two):
            whole, again = each[case]["whole"], each[case]["again"]
            assert again["weights"] == whole["weights"], case
            assert again["losses"] == whole["losses"][4:], case
    assert difference(runs.two[0]["frozen"]["whole"]["losses"], runs.one["frozen"]["whole"]["losses"]) <= 1e-5
    assert runs.two[0]["resumed"]["files"] == runs.one["resumed"]["files"]


def test_every_process_brings_its_random_state(runs):
    folder = runs.places["two"] / "whole" / "checkpoint-4"
    with safe_open(folder / "random.safetensors", framework="np") as f:
        own = [name for name in f.keys() if name.startswith(f"{runs.framework}.")]  # noqa: SIM118
        assert own
        assert all(f"rank1/{name}" in f.keys() for name in own)  # noqa: SIM118
        assert any(not np.array_equal(f.get_tensor(name), f.get_tensor(f"rank1/{name}")) for name in own)
    assert len(json.loads((folder / "run.json").read_text())["position"]["ranks"]) == 1


def test_a_run_goes_on_with_another_number_of_processes(runs):
    alone = runs.one["elastic"]["losses"]
    assert difference(runs.two[0]["elastic"]["losses"], alone) <= 1e-6
    assert "was written by 1 process(es), this run has 2: an update keeps its 12 samples" in runs.said
    for each in (*runs.two, runs.back):
        assert difference(each["from:elastic"]["losses"], alone[4:]) <= 1e-6
    asked = runs.two[0]["from:elastic"]["asked"] + runs.two[1]["from:elastic"]["asked"]
    assert sorted(asked) == sorted(runs.back["from:elastic"]["asked"]) == list(range(44))


def test_what_one_process_meets_or_asks_for_concerns_all(runs):
    for each in runs.two:
        assert each["one_bad_sample"] == runs.two[0]["one_bad_sample"]
        assert each["one_bad_sample"]["skipped"] == 1 and each["one_bad_sample"]["finite"]
        assert each["rolled_back"] == runs.two[0]["rolled_back"]
        check_rolled_back(each["rolled_back"], runs.one["rolled_back"])
        assert each["rolled_back_at_an_epoch"] == runs.two[0]["rolled_back_at_an_epoch"]
        check_rolled_back_at_an_epoch(each["rolled_back_at_an_epoch"], runs.one["rolled_back_at_an_epoch"])
        assert each["signal_in_an_evaluation"] == {"status": 75, "saved": ["checkpoint-2"], "steps": 2}
        assert each["infinite_weights"] == runs.two[0]["infinite_weights"]
        assert each["infinite_weights"]["saved"] == ["checkpoint-1", "checkpoint-2"]
        assert each["asked_by_one"]["saved"] == [[2, 2]]
        assert each["asked_by_one"]["steps"] == 5
        assert [step for step, _ in each["asked_by_one"]["evaluated"]] == [3]
        assert each["metrics_of_main"]["best"] == [0, 4]


def test_a_search_trains_the_same_trials_in_all_processes(runs):
    main, other, alone = runs.two[0]["searched"], runs.two[1]["searched"], runs.one["searched"]
    assert main == other and main["trial"] == "run-1" and main["steps"] == alone["steps"] == 1
    assert main["best"][2] == alone["best"][2] and set(main["best"][2]) == {"learning_rate", "weights"}
    assert difference(main["losses"], alone["losses"]) <= 1e-6


def test_the_main_process_goes_first_and_writes_and_logs(runs):
    main, other = (each["first_and_later"] for each in runs.two)
    assert main == {"found": False, "log": True, "save": True, "timeout": 60}
    assert other == {"found": True, "log": False, "save": False, "timeout": 60}


def test_logs_are_written_once(runs):
    lines = (runs.places["two"] / "sgd" / "log.jsonl").read_text().splitlines()
    assert [line["step"] for line in map(json.loads, lines) if "loss" in line] == list(range(1, 9))


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
def test_stage_1_divides_the_optimizer_state_and_nothing_else(runs):
    alone = runs.one["stage1"]
    for each in runs.two:
        found = each["stage1"]
        assert difference(found["whole"]["losses"], alone["whole"]["losses"]) <= 1e-5
        for name, weights in alone["whole"]["weights"].items():
            assert difference(found["whole"]["weights"][name], weights) <= 1e-5
        assert found["again"]["weights"] == found["whole"]["weights"]
        assert found["again"]["losses"] == found["whole"]["losses"][4:]
        assert 0.4 <= found["numbers"] / alone["numbers"] <= 0.6
    assert sum(each["stage1"]["numbers"] for each in runs.two) == alone["numbers"]


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
def test_stage_1_divides_the_state_of_parameter_groups(runs):
    alone = runs.one["stage1"]["groups"]
    assert difference(alone["losses"], runs.one["stage1"]["whole"]["losses"]) > 1e-3, "another optimizer"
    for each in runs.two:
        found = each["stage1"]
        assert difference(found["groups"]["losses"], alone["losses"]) <= 1e-5
        for name, weights in alone["weights"].items():
            assert difference(found["groups"]["weights"][name], weights) <= 1e-5
        assert found["groups_again"]["weights"] == found["groups"]["weights"]
        assert found["groups_again"]["losses"] == found["groups"]["losses"][4:]


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
@pytest.mark.parametrize("case", ["stage2", "stage2_groups", "few_left"])
def test_stage_2_divides_the_gradients_too(runs, case):
    alone = runs.one["stage1"][case]
    numbers = [each["stage1"]["gradients"] for each in runs.two]
    assert sum(numbers) == runs.one["stage1"]["gradients"] and min(numbers) >= 0.4 * sum(numbers)
    for each in runs.two:
        found = each["stage1"]
        assert difference(found[case]["losses"], alone["losses"]) <= 1e-5
        for name, weights in alone["weights"].items():
            assert difference(found[case]["weights"][name], weights) <= 1e-5
        assert found["few_left"]["skipped"] == 2 == runs.one["stage1"]["few_left"]["skipped"]
        assert found["stage2_again"]["weights"] == found["stage2"]["weights"]
        assert found["stage2_again"]["losses"] == found["stage2"]["losses"][4:]


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
def test_a_model_is_trained_again_after_another_one(runs):
    """Hooks of the first DataParallel stay on the parameters, and must not use what was freed; nothing stays in memory
    after the model."""
    alone = runs.one["model_again"]
    assert len(alone["losses"]) == 12
    for each in runs.two:
        found = each["model_again"]
        assert difference(found["losses"], alone["losses"]) <= 1e-6
        assert difference(found["norms"], alone["norms"]) <= 1e-5
        assert found["freed"] == [True] * 4


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
def test_an_overflow_that_one_process_has_is_skipped_by_all(runs):
    """Sharding gives the layer whose gradients overflow in float16 to process 0, and the other one to process 1."""
    passes, ends = ["scale", "backward", "reduce"] * 2, ["agree", "norm"]
    stepped = [*passes, "unscale, overflow: False", *ends, "step, overflow: False", "changed", "update"]
    for rank, each in enumerate(runs.two):
        found = each["half"]
        skipped = [*passes, f"unscale, overflow: {rank == 0}", *ends, "step, overflow: True", "skipped", "update"]
        calls = found["stage2"]["calls"]
        updates = [calls[i : i + len(stepped)] for i in range(0, len(calls), len(stepped))]
        assert [update for update in updates if update != stepped] == [skipped, skipped] and len(updates) == 8
        # The checkpoint has the loss scale: with the first one, the resumed run would overflow again.
        assert found["again"]["calls"] == 4 * stepped
        assert found["again"]["weights"] == found["stage2"]["weights"]
        assert found["again"]["losses"] == found["stage2"]["losses"][4:]
        for case in ("", "stage1", "stage2", "again"):
            assert (found[case]["skipped"], found[case]["scale"]) == (2, 2.0**17)


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
@pytest.mark.parametrize(("case", "undivided"), [("stage1", ""), ("stage2", ""), ("groups", "groups of all")])
def test_float16_updates_are_those_without_sharding(runs, case, undivided):
    for each in runs.two:
        alone, found = each["half"][undivided], each["half"][case]
        assert difference(found["losses"], alone["losses"]) <= 1e-6
        norms = [np.array(run["norms"]) for run in (found, alone)]
        assert np.isnan(norms[0]).sum() == found["skipped"] == alone["skipped"] >= 1
        assert found["scale"] == alone["scale"]
        np.testing.assert_allclose(*norms, rtol=0, atol=1e-5)
        for name, weights in alone["weights"].items():
            assert difference(found["weights"][name], weights) <= 1e-6


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
def test_float16_with_stage_2_is_float32_up_to_rounding(runs):
    alone = runs.one["half"]["float32"]
    for each in runs.two:
        found = each["half"]["fitting"]
        assert (found["skipped"], found["scale"]) == (0, 1024.0)
        assert 1e-6 < difference(found["losses"], alone["losses"]) <= 5e-4
        for name, weights in alone["weights"].items():
            assert difference(found["weights"][name], weights) <= 5e-4


@pytest.mark.slow
@pytest.mark.skipif("paddle" not in FRAMEWORKS, reason="Paddle is not installed")
def test_two_groups_of_two_processes_share_the_state(tmp_path):
    for size in (1, 4):
        (tmp_path / str(size)).mkdir()
        run_cases("paddle", size, tmp_path / str(size), "in_groups")
    alone = results(tmp_path / "1", 1)[0]["in_groups"]
    for rank, each in enumerate(results(tmp_path / "4", 4)):
        found = each["in_groups"]
        assert found["members"] == [[[0, 1], [2, 3]][rank // 2], [[0, 2], [1, 3]][rank % 2]]
        for stage in ("stage1", "stage2"):
            assert difference(found[stage]["losses"], alone[stage]["losses"]) <= 1e-6
            assert difference(found[stage]["norms"], alone[stage]["norms"]) <= 1e-5
            for name, weights in alone[stage]["weights"].items():
                assert difference(found[stage]["weights"][name], weights) <= 1e-5
            assert found[f"{stage} again"]["weights"] == found[stage]["weights"]
            assert found[f"{stage} again"]["losses"] == found[stage]["losses"][4:]


@pytest.mark.parametrize("runs", ["paddle"], indirect=True)
def test_a_checkpoint_of_stage_1_is_whole(runs):
    for each in (*runs.two, runs.back):  # without sharding, on two processes from one and on one from two
        losses = runs.one["stage1"]["whole"]["losses"][4:]
        assert difference(each["from:stage1"]["losses"], losses) <= 1e-5


@pytest.mark.skipif("paddle" not in FRAMEWORKS, reason="Paddle is not installed")
def test_a_process_of_paddle_that_fails_is_named_with_its_error(tmp_path):
    said = run_cases("paddle", 2, tmp_path, "fails", succeeds=False)
    assert re.search(r"ProcessLostError: Process 1 \(pid \d+ on .*\) exited after an error: KeyError: 'broken'", said)
    assert (tmp_path / "fails" / "checkpoint-2" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.skipif("mindspore" not in FRAMEWORKS, reason="MindSpore is not installed")
@pytest.mark.parametrize(("case", "words"), [("dies", "has died"), ("fails", "exited after an error: KeyError")])
def test_a_process_of_mindspore_that_is_lost_is_named(case, words, tmp_path):
    """At once, by the others; msrun's switchboard misses it, and ends them, half a minute later."""
    said = run_cases("mindspore", 2, tmp_path, case, succeeds=False)
    assert re.search(rf"Process 1 \(pid \d+ on .*\) {words}.* This process \(0 of 2\)", said)
    assert (tmp_path / case / "checkpoint-2" / "manifest.json").is_file()
