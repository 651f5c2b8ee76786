"""What several processes do together: decisions, logs, options, metrics."""

import json

import numpy as np
import pytest


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["two", "four"])
def many(request, shared):
    return shared(request.param)


def test_what_one_process_asks_for_all_do(many):
    for each in many:
        found = each["asked_by_one"]
        assert (found["saved"], found["steps"]) == ([[2] * len(many)], 5)
        assert found["evaluated"] == many[0]["asked_by_one"]["evaluated"]
        assert [step for step, _ in found["evaluated"]] == [3]


DISAGREEING = {
    "max_steps": "ArgumentError, nothing trained: The processes differ in max_steps: 2 in process 0, 3 in process 1",
    "gradient_accumulation_steps": "differ in gradient_accumulation_steps: 1 in process 0, 2 in process 1",
    "learning_rate": "differ in learning_rate: 0.1 in process 0, 0.2 in process 1",
    "seed": "differ in data_seed: 1 in process 0, 2 in process 1",
    "training samples": "DataError, nothing trained: The processes differ in the number of training samples: 16 in "
    "process 0, 24 in process 1",
    "evaluation samples": "differ in the number of evaluation samples of 'own': 4 in process 0, 5 in process 1",
    "learning rates": "ArgumentError, nothing trained: The processes differ in the learning rates: [0.1",
}


def check_disagreeing(found, processes):
    for name, words in DISAGREEING.items():
        assert words in found[name]
        assert f"in process {processes - 1}" in found[name]
    assert isinstance(found["what may differ"], int)


def test_values_that_differ_between_processes_are_named_before_the_first_step(many):
    for each in many:
        check_disagreeing(each["disagreeing"], len(many))


def test_a_callback_of_one_process_speaks_for_all(many):
    for each in many:
        assert each["callback_of_one"] == {"steps": 5, "saved": ["checkpoint-2"]}


def test_a_step_waits_for_no_message_but_its_gradients(shared):
    """A callback that only looks on costs nothing; one that may ask for something costs one message a step."""
    for each in shared(2):
        found = each["messages"]
        assert found["looks_on"] <= 3
        assert found["asks"] >= found["steps"]


def test_an_unused_layer_is_found_and_the_main_processs_weights_count(many):
    for each in many:
        assert each["unused_parameters"]["finds"] is True
        assert each["unused_parameters"]["weights"] == many[0]["unused_parameters"]["weights"]


def test_without_unused_layers_none_are_looked_for(shared):
    """DDP is given what ddp_ arguments say."""
    for each in shared(2):
        found = each["options_of_ddp"]
        assert found["is_ddp"] is True
        assert (found["bucket"], found["buffers"], found["finds"]) == (3 * 2**20, False, False)
        assert found["static"] is True
        assert found["losses"] == shared(2)[0]["options_of_ddp"]["losses"]


def test_an_update_that_is_not_finite_in_one_process_is_left_out_in_all(many, shared):
    alone = shared(1)[0]["one_bad_sample"]
    for each in many:
        assert each["one_bad_sample"] == many[0]["one_bad_sample"]
        assert (each["one_bad_sample"]["skipped"], each["one_bad_sample"]["steps"]) == (1, alone["steps"])
        assert each["one_bad_sample"]["finite"], "also the statistics of a norm in the process that has seen it"


def check_rolled_back(found, alone):
    assert found["left_out"] == [[14, 14]] and found["logged"] == [step for step in range(1, 19) if step != 14]
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5), "with step 13 twice"
    assert len(found["losses"]) == 18


def test_a_loss_spike_in_one_process_rolls_all_back(many, shared):
    for each in many:
        assert each["rolled_back"] == many[0]["rolled_back"]
        check_rolled_back(each["rolled_back"], shared(1)[0]["rolled_back"])


def check_rolled_back_at_an_epoch(found, alone):
    for name in ("rows", "stream"):
        assert found[name]["ends"] == [4, 8, 12, 16, 20, 22] and found[name]["steps"] == 22
        assert found[name]["returned"] == [["checkpoint-12", [13, 13]], ["checkpoint-16", [18, 20]]]
        for key, weights in alone[name]["weights"].items():
            assert np.array(found[name]["weights"][key]) == pytest.approx(np.array(weights), abs=1e-5)


def test_a_step_that_all_leave_out_is_the_first_of_an_epoch(many, shared):
    for each in many:
        assert each["rolled_back_at_an_epoch"] == many[0]["rolled_back_at_an_epoch"]
        check_rolled_back_at_an_epoch(each["rolled_back_at_an_epoch"], shared(1)[0]["rolled_back_at_an_epoch"])


def test_a_signal_to_one_process_in_an_evaluation_of_a_callback(many):
    for each in many:
        assert each["signal_in_an_evaluation"] == {"status": 75, "saved": ["checkpoint-2"], "steps": 2}


def test_weights_that_are_not_finite_stop_all_processes_at_the_save(many):
    for each in many:
        assert each["infinite_weights"] == many[0]["infinite_weights"]
        assert each["infinite_weights"]["saved"] == ["checkpoint-1", "checkpoint-2"]
        assert "checkpoint-3: the model has weights" in each["infinite_weights"]["error"]


def test_a_process_that_runs_out_of_memory_computes_in_smaller_parts(many, shared):
    alone = shared(1)[0]["sgd"]
    for each in many:
        found = each["out_of_memory"]
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-6)
        assert found["weights"] == many[0]["out_of_memory"]["weights"]
    assert many[-1]["out_of_memory"]["rows"] == 2 and many[0]["out_of_memory"]["rows"] == 8 // len(many)


def test_each_machine_can_have_its_own_disk(many):
    """Every first process of a machine writes the same checkpoint, and a run goes on from its own."""
    for each in many:
        found = each["each_node"]
        assert found["files"] == many[0]["each_node"]["files"] and "manifest.json" in found["files"]
        assert found["again"]["weights"] == found["whole"]["weights"]
        assert found["again"]["losses"] == found["whole"]["losses"][4:]


def test_the_main_process_comes_first_and_alone_saves_and_logs(many):
    found = [each["first_and_later"] for each in many]
    assert [each["found"] for each in found] == [False, *[True] * (len(many) - 1)]
    assert [each["save"] for each in found] == [True, *[False] * (len(many) - 1)]
    assert [each["log"] for each in found] == [True, *[False] * (len(many) - 1)]
    assert {each["timeout"] for each in found} == {60}


def test_tokens_and_operations_are_those_of_all_processes(many, shared):
    for each in many:
        assert each["counted"] == shared(1)[0]["counted"]


def test_metrics_that_only_the_main_process_has_decide_for_all(many):
    for each in many:
        assert each["metrics_of_main"]["best"] == [0, 4]
        assert each["metrics_of_main"]["weights"] == many[0]["metrics_of_main"]["weights"]


def test_metrics_by_batches_see_every_batch_in_the_main_process(many):
    main, *others = [each["batch_metrics"] for each in many]
    assert sum(main["seen"]) == main["count"] == 31
    assert len(main["seen"]) == main["batches"]
    assert all(other["seen"] == [] and other["count"] == 31 for other in others)


def test_an_error_in_compute_metrics_is_one_of_all_processes(many):
    main, *others = [each["failing_metrics"] for each in many]
    assert main == "ZeroDivisionError: nothing to divide"
    for other in others:
        assert other.startswith("ProcessLostError: process 0 failed in compute_metrics")
        assert "nothing to divide" in other


def test_parameters_of_a_criterion_are_averaged_too(many, shared):
    alone = shared(1)[0]["criterion_with_weights"]
    for each in many:
        found = each["criterion_with_weights"]
        assert abs(found["scale"] - alone["scale"]) <= 1e-6 and found["scale"] != 1.0
        assert found["weights"] == many[0]["criterion_with_weights"]["weights"]


def test_a_log_is_written_once(shared):
    """log.jsonl has each step once, with the loss of all processes."""
    shared(2)
    lines = [json.loads(line) for line in (shared.folders[2] / "sgd" / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, 9))
    assert [line["loss"] for line in lines if "loss" in line] == shared(2)[0]["sgd"]["losses"]


def test_the_finer_curve_is_written_once(shared):
    """curve.jsonl has each step once, with the loss of all processes."""
    found = []
    for processes in (1, 2):
        shared(processes)
        lines = (shared.folders[processes] / "counted" / "curve.jsonl").read_text().splitlines()
        found.append([json.loads(line) for line in lines])
        assert [entry["step"] for entry in found[-1]] == list(range(1, 9))
    alone, together = ([entry["loss"] for entry in entries] for entries in found)
    assert together == pytest.approx(alone, rel=1e-6)


def test_what_overrides_gather_themselves(many):
    size = len(many)
    for rank, each in enumerate(many):
        found = each["accelerators"]
        assert found["gathered"] == [[float(r)] * 2 for r in range(size) for _ in range(r + 1)]
        assert found["scalars"] == found["nested"] == list(range(size))
        assert found["padded"] == [[float(rank)] * 2] * (rank + 1) + [[-1.0, -1.0]] * (size - rank - 1)
        assert (found["sum"], found["mean"]) == (size, sum(range(size)) / size)


def test_what_is_done_once_in_an_update(many):
    """Equally often, and last, in all processes, also in those that only join in."""
    for each in many:
        found, size = each["closing"], len(many)
        assert found["places"] == [False, False, True, False, True] and found["after"] is True
        assert found["sums"] == [3 * size, 5 * size]
