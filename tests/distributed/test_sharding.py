"""Divided state on two processes, by every strategy, against one process with the same global batch."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.launch import results, run
from tests.distributed.test_steps import check_rolled_back

JOB = Path(__file__).with_name("sharding_job.py")
EQUAL = ("sgd", "few_left", "tokens_accumulated", "shifted", "odd", "adamw")
OTHERS = ("generated", "gradients", "read_in_parts", "best", "options", "units", "keys", "given_optimizer", "refused")
STRATEGIES = ("ddp", "stage1", "stage2", "stage3")
KEYS = ("none", "kept", "resharded", "recomputed", "prefetched", "one_unit", "ignored", "loaded_once")


def difference(left, right):
    return float(np.abs(np.array(left, dtype=np.float64) - np.array(right, dtype=np.float64)).max())


@pytest.mark.slow
def test_a_rollback_leaves_out_the_same_step_with_every_strategy(tmp_path):
    run(2, tmp_path, "rolled_back", script=JOB)
    first, second = (each["rolled_back"] for each in results(tmp_path, 2))
    assert first == second and list(first) == list(STRATEGIES)
    for strategy in STRATEGIES:
        check_rolled_back(first[strategy], first["ddp"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {size: tmp_path_factory.mktemp(f"sharding{size}") for size in (1, 2)}


@pytest.fixture(scope="module")
def one(folders):
    run(
        1,
        folders[1],
        *EQUAL,
        "evaluated",
        "saved",
        "generated",
        "gradients",
        "options",
        "given_optimizer",
        "keys",
        script=JOB,
    )
    return results(folders[1], 1)[0]


@pytest.fixture(scope="module")
def two(folders):
    run(2, folders[2], *EQUAL, "evaluated", "saved", "held", "exchanged", *OTHERS, script=JOB)
    return results(folders[2], 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", EQUAL)
def test_the_update_is_that_of_the_undivided_batch(case, strategy, one, two):
    alone, together = one[case]["alone"], two[0][case][strategy]
    assert together["steps"] == alone["steps"]
    assert together["weights"].keys() == alone["weights"].keys()
    if case != "adamw":
        for name, weights in alone["weights"].items():
            assert difference(weights, together["weights"][name]) <= 1e-6, name
    assert difference(alone["losses"], together["losses"]) <= (1e-5 if case == "adamw" else 1e-6)
    assert difference(alone["norms"], together["norms"]) <= 1e-5
    assert abs(alone["train_loss"] - together["train_loss"]) <= 1e-6


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_single_gradient_is_that_of_one_process(strategy, one, two):
    assert difference(two[0]["gradients"][strategy], one["gradients"]["alone"]) <= 1e-5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_evaluation_counts_every_sample_once(strategy, one, two):
    alone = one["evaluated"]["alone"]
    for each in two:
        found = each["evaluated"][strategy]
        assert difference(found["metrics"], alone["metrics"]) <= 1e-6
        assert difference(found["one"], alone["one"]) <= 1e-6


PROMISES = {
    "stage1": {"optimizer": 2, "gradients": 1, "parameters": 1},
    "stage2": {"optimizer": 2, "gradients": 2},
    "stage3": {"optimizer": 2, "gradients": 2, "parameters": 2},
}


@pytest.mark.parametrize("strategy", PROMISES)
def test_each_process_holds_its_part_alone(strategy, two):
    for each in two:
        for what, parts in PROMISES[strategy].items():
            whole, found = each["held"]["ddp"][what], each["held"][strategy][what]
            assert abs(found * parts / whole - 1) <= 0.15, (what, found, whole)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Plans of runs on two processes with the model of the cases `held` and `exchanged`, by their accumulation."""
    from oneloop import Trainer, TrainingArguments
    from tests.backends.support import rows
    from tests.distributed.sharding_job import Even

    def plan(accumulation):
        given = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": accumulation, "optim": "adamw_torch"}
        folder = tmp_path_factory.mktemp("planned")
        args = TrainingArguments(output_dir=str(folder), report_to="none", save_strategy="no", device="cpu", **given)
        return Trainer(Even(), args, train_dataset=rows(64)).plan(world=2, largest=False)

    return {1: plan(1), 3: plan(3)}


NAMES = {"ddp": "DDP", "stage1": "stage 1", "stage2": "stage 2", "stage3": "stage 3"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_says_what_each_process_holds(strategy, two, planned):
    """Apart from the counters of AdamW, of four bytes for each parameter."""
    plan = planned[1].memory(NAMES[strategy])
    for each in two:
        held = each["held"][strategy]
        assert 0 <= plan.optimizer - held["optimizer"] <= 4 * 8
        if strategy in ("stage2", "stage3"):
            assert (plan.parameters, plan.gradients) == (held["parameters"], held["gradients"])
        else:
            assert plan.gradients == planned[1].model.gradient_bytes
            assert held["gradients"] - plan.gradients == 64  # the numbers of a step, in a bucket


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_says_what_they_send(strategy, accumulation, two, planned):
    messages = planned[accumulation].memory(NAMES[strategy]).messages
    for each in two:
        found = each["exchanged"][f"{strategy} {accumulation}"]
        assert (messages.collectives, messages.bytes) == (len(found), sum(size for _, size in found)), found


def test_nothing_whole_stays_behind(two):
    """All live tensors together: each stage holds less than the one before it."""
    for each in two:
        held = [each["held"][strategy]["everything"] for strategy in ("ddp", "stage1", "stage3")]
        assert held == sorted(held, reverse=True) and len(set(held)) == 3, held


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_goes_on_to_the_same_bits(strategy, two):
    whole, again = two[0]["saved"][strategy]["whole"], two[0]["saved"][strategy]["again"]
    assert again["weights"] == whole["weights"]
    assert again["losses"] == whole["losses"][3:]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_process_writes_its_part(strategy, two):
    parts = [f"{{}}-0000{i}-of-00002.safetensors" for i in (1, 2)] + ["{}.safetensors.index.json"]
    model = parts if strategy in ("stage2", "stage3") else ["{}.safetensors"]
    optimizer = parts if strategy != "ddp" else ["{}.safetensors"]
    expected = {part.format("model") for part in model} | {part.format("optimizer") for part in optimizer}
    found = {name for name in two[0]["saved"][strategy]["files"] if name.startswith(("model", "optimizer"))}
    assert found == expected


@pytest.mark.parametrize("strategy", ["stage2", "stage3"])
def test_each_process_reads_its_part(strategy, two):
    for each in two:
        found = each["read_in_parts"][strategy]
        assert found["stored"] > 3 * 8 * 64 * 64 * 4  # weights and two moments
        assert abs(found["read"] * 2 / found["stored"] - 1) <= 0.01


@pytest.mark.parametrize("processes", [1, 2])
def test_any_strategy_goes_on_from_any_other(processes, folders, one, two, tmp_path):
    (tmp_path / "sources").write_text("\n".join(map(str, folders.values())))
    run(processes, tmp_path, "crossed", script=JOB)
    expected = one["saved"]["alone"]["whole"]
    found = results(tmp_path, processes)[0]["crossed"]
    assert len(found) == 5 * (1 if processes == 1 else 4)
    for name, course in found.items():
        assert difference(course["losses"], expected["losses"][3:]) <= 1e-5, name
        assert difference(course["norms"], expected["norms"][3:]) <= 1e-5, name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_best_model_comes_back_and_is_written_whole(strategy, two):
    for each in two:
        found = each["best"][strategy]
        assert found["best"] == found["lowest"] == found["again"]
    names = two[0]["best"][strategy]["names"]
    assert names == two[0]["best"]["ddp"]["names"] and "embed.weight" in names


@pytest.mark.parametrize("strategy", ["ddp", "stage2", "stage3"])
def test_mixed_precision(strategy, one, two):
    for half, near in (("bf16", 2e-2), ("fp16", 4e-3)):
        alone, together = one["options"][f"{half}-ddp"], two[0]["options"][f"{half}-{strategy}"]
        assert difference(alone, together) <= near
        assert two[0]["options"][f"{half}-{strategy}-skipped"] == 0
    assert two[0]["options"][f"overflow-{strategy}-skipped"] == one["options"]["overflow-ddp-skipped"] > 0


@pytest.mark.parametrize("strategy", ["ddp", "stage2", "stage3"])
def test_a_compiled_model(strategy, one, two):
    assert two[0]["options"][f"compiled-{strategy}-graphs"] > 0
    assert difference(one["options"]["compiled-ddp"], two[0]["options"][f"compiled-{strategy}"]) <= 1e-6


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_generated_texts(strategy, one, two):
    alone = one["generated"]["alone"]
    lengths = {sum(token not in (0, -100) for token in text) for text in alone["texts"]}
    for each in two:
        assert each["generated"][strategy]["texts"] == alone["texts"]
        assert abs(each["generated"][strategy]["loss"] - alone["loss"]) <= 1e-5
    assert len(alone["texts"]) == 7 and len(lengths) > 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU")
def test_a_model_compiled_by_inductor(tmp_path):
    for size in (1, 2):
        (tmp_path / str(size)).mkdir()
        run(size, tmp_path / str(size), "inductor", script=JOB)
    alone = results(tmp_path / "1", 1)[0]["inductor"]["alone"]
    for each in results(tmp_path / "2", 2):
        for strategy in STRATEGIES:
            found = each["inductor"][strategy]
            assert found["graphs"] > 0
            assert difference(found["losses"], alone["losses"]) <= 1e-5


def test_what_is_gathered_together(two):
    found = two[0]["units"]
    assert found["found"] == ["", "blocks.0", "blocks.1"]
    assert found["classes"] == ["", "blocks.0", "blocks.0.inner", "blocks.1", "blocks.1.inner", "head"]
    assert found["size"] == ["", "blocks.0", "blocks.1"]  # the tied layers are large enough, and stay with the whole
    assert found["found-class"] == "Odd"


def test_an_optimizer_of_the_user(one, two):
    found, alone = two[0]["given_optimizer"], one["given_optimizer"]["alone"]
    for strategy in ("ddp", "stage2", "stage3"):
        assert abs(found[strategy] - alone) <= 1e-6
    assert "optimizer_cls_and_kwargs" in found["stage1"]


def test_what_cannot_be_divided_is_refused_in_words(two):
    found = two[0]["refused"]
    assert found["sparse"].startswith("UnsupportedError") and "sparse=False" in found["sparse"]
    assert found["adafactor"].startswith("UnsupportedError") and "stage1" in found["adafactor"]
    assert found["classes"].startswith("ArgumentError") and "Block" in found["classes"]


@pytest.mark.slow
def test_four_processes_as_two_copies(one, tmp_path):
    run(4, tmp_path, "hybrid", script=JOB)
    every = results(tmp_path, 4)
    alone = one["saved"]["alone"]["whole"]
    for strategy in STRATEGIES:
        found = every[0]["hybrid"][strategy]
        assert difference(found["whole"]["losses"], alone["losses"]) <= 1e-5
        assert found["again"]["losses"] == found["whole"]["losses"][3:]
        assert found["again"]["weights"] == found["whole"]["weights"]
        for each in every:
            for what, parts in PROMISES.get(strategy, {}).items():
                held, whole = each["hybrid"][strategy]["held"][what], each["hybrid"]["ddp"]["held"][what]
                assert abs(held * parts / whole - 1) <= 0.15, (strategy, what)


# -- keys of fsdp_config


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_fsdp_config(key, one, two):
    for each in two:
        found = each["keys"][key]
        assert difference(found["losses"], one["keys"]["alone"]) <= 1e-5
        assert found["resharded"] == (key != "kept")
        assert found["passes"] == each["keys"]["none"]["passes"] * (2 if key == "recomputed" else 1)
        assert found["units"] == ([""] if key == "one_unit" else ["", "blocks.0", "blocks.1"])
        assert ("blocks.0.inner.weight" in found["whole"]) == (key == "ignored")
        assert found["prefetches"] == (key == "prefetched")
        assert found["tied"]
