"""Models that are divided along the tensor axis, alone and with data and shard, against one process."""

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.launch import results, run
from tests.distributed.test_sequence_parallel import OF_WHOLE_BATCHES, assert_near

pytest.importorskip("transformers")
JOB = Path(__file__).with_name("layouts_job.py")
OF = {2: ("tp2",), 4: ("dp2 x tp2", "shard2 x tp2", "shard2 stage2 x tp2")}
ALL = ("alone", "tp2", "dp2", "shard2 stage1", "shard2", *OF[4], "sp2", "dp2 x sp2", "shard2 x sp2")
EVERY = [(size, layout) for size, names in OF.items() for layout in names]


def difference(left, right):
    return float(np.abs(np.array(left, dtype=np.float64) - np.array(right, dtype=np.float64)).max())


def run_all(folder, cases):
    """What each process wrote, by their number."""
    known = {}
    for size, names in cases.items():
        (folder / str(size)).mkdir(exist_ok=True)
        run(size, folder / str(size), *names, script=JOB)
        known[size] = results(folder / str(size), size)
    return known


COMMON = ("brief", "equal", "given_optimizer", "saved", "evaluated", "arrived")
RARE = (
    "configured",
    "evaluated",
    "averaged",
    "whole_matrices",
    "dropped",
    "recomputed",
    "halved",
    "skipped",
    "generated",
    "adapted",
    "counted",
)
BRIEF = [(size, layout) for size, layout in EVERY if "stage2" not in layout]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def found(folder):
    return run_all(
        folder,
        {
            1: (*COMMON, "few_left", "whole_matrices"),
            2: (*COMMON, "counted", "messages", "refused", "whole_matrices", "muon_steps"),
            4: ("brief", "saved", "crossed", "few_left", "muon_steps"),
        },
    )


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    return run_all(tmp_path_factory.mktemp("rare"), dict.fromkeys((1, 2, 4), RARE))


def check_equal(alone, together, weights=1e-5):
    assert together["steps"] == alone["steps"]
    assert difference(alone["losses"], together["losses"]) <= 1e-5
    assert difference(alone["norms"], together["norms"]) <= 1e-5
    assert together["weights"].keys() == alone["weights"].keys()
    for name, value in alone["weights"].items():
        assert difference(value, together["weights"][name]) <= weights, name


@pytest.mark.parametrize("layout", [layout for size, layout in BRIEF if size == 4])
def test_an_update_in_which_a_replica_has_no_sample(found, layout):
    (alone,) = found[1]
    first, *rest = (each["few_left"][layout] for each in found[4])
    check_equal(alone["few_left"]["alone"], first)
    assert all((each["losses"], each["norms"]) == (first["losses"], first["norms"]) for each in rest)


@pytest.mark.parametrize(("size", "layout"), BRIEF)
def test_processes_make_the_updates_of_one(size, layout, found):
    """Of a Qwen3, with accumulation, smoothed labels, and batches of which some have no labels."""
    check_equal(found[1][0]["saved"]["alone"]["whole"], found[size][0]["saved"][layout]["whole"])


def test_a_module_that_has_a_plan_of_the_arguments(found):
    check_equal(found[1][0]["equal"]["plain"]["alone"], found[2][0]["equal"]["plain"]["tp2"])


def test_an_optimizer_of_the_undivided_model(found):
    check_equal(found[1][0]["given_optimizer"], found[2][0]["given_optimizer"])


@pytest.mark.parametrize(("size", "layout"), BRIEF)
def test_all_processes_have_the_same_losses_and_norms(size, layout, found):
    first, *others = (each["saved"][layout]["whole"] for each in found[size])
    for other in others:
        assert (other["losses"], other["norms"]) == (first["losses"], first["norms"])


@pytest.mark.parametrize(("size", "layout"), BRIEF)
def test_a_run_goes_on_to_the_same_bits(size, layout, found):
    stored = found[size][0]["saved"][layout]
    assert stored["again"]["weights"] == stored["whole"]["weights"]
    assert stored["again"]["losses"] == stored["whole"]["losses"][3:]
    assert stored["again"]["norms"] == stored["whole"]["norms"][3:]


@pytest.mark.parametrize(("size", "layout"), BRIEF)
def test_the_saved_model_is_the_file_of_one_process(size, layout, found, folder):
    def header(path):
        data = path.read_bytes()
        return data[: 8 + int.from_bytes(data[:8], "little")]

    own = folder / str(size) / f"model-{layout}" / "model.safetensors"
    assert header(own) == header(folder / "1" / "model-alone" / "model.safetensors")


def check_crossed(known, size, layout):
    courses = {name: course for each in known.values() for name, course in each[0].get("saved", {}).items()}
    courses |= {name: course for each in known.values() for name, course in each[0].get("saved_whole", {}).items()}
    every = known[size][0].get("crossed", {}) | known[size][0].get("crossed_whole", {})
    assert every[layout].keys() == courses.keys()
    for source, losses in every[layout].items():
        assert difference(losses, courses[source]["whole"]["losses"][3:]) <= 1e-5, source


@pytest.mark.parametrize("layout", [layout for size, layout in BRIEF if size == 4])
def test_runs_go_on_from_other_layouts(layout, found):
    check_crossed(found, 4, layout)


# -- features


def check_evaluated(known, size, layout):
    alone = known[1][0]["evaluated"]["alone"]
    for each in known[size]:
        together = each["evaluated"][layout]
        assert difference(together["during"], alone["during"]) <= 1e-5
        assert abs(together["after"] - alone["after"]) <= 1e-5
        assert difference(together["predictions"], alone["predictions"]) <= 1e-4
        assert together["labels"] == alone["labels"]


def check_averaged(known, size, layout):
    alone, together = known[1][0]["averaged"]["alone"], known[size][0]["averaged"][layout]
    assert together["losses"][0] == together["losses"][1]
    assert difference(together["losses"], alone["losses"]) <= 1e-5
    assert together["stored"].keys() == alone["stored"].keys()
    for name, value in alone["stored"].items():
        assert difference(together["stored"][name], value) <= 1e-4, name


def check_whole_matrices(known, size, layout):
    """Norms are as far from one process as with whole weights and sharded state: Muon rounds to bfloat16."""
    alone, together = known[1][0]["whole_matrices"]["alone"], known[size][0]["whole_matrices"][layout]
    assert difference(alone["whole"]["losses"], together["whole"]["losses"]) <= 1e-5
    assert difference(alone["whole"]["norms"], together["whole"]["norms"]) <= 1e-4
    assert abs(alone["evaluated"][0] - together["evaluated"][0]) <= 1e-5
    assert together["evaluated"][0] == together["evaluated"][1]
    assert together["again"]["weights"] == together["whole"]["weights"]
    assert alone["average is saved"] and together["average is saved"]
    assert together["files"] == together["files again"] and "average.safetensors" in together["files"]


@pytest.mark.parametrize("layout", ["tp2", "shard2", "shard2 stage1"])
def test_muon_and_an_average_of_divided_weights(found, layout):
    check_whole_matrices(found, 2, layout)


@pytest.mark.parametrize("size", [2, 4])
def test_muon_steps_of_divided_matrices(found, size):
    """By rows, by columns and by both; some processes have none. Momentum has the same bits and the same parts."""
    for each in found[size]:
        for weights, momentum, is_alike in each["muon_steps"].values():
            assert weights <= 1e-7 and momentum == 0 and is_alike


def check_dropped(known, size, layout):
    alone, *together = known[1][0]["dropped"]["alone"], *(each["dropped"][layout] for each in known[size])
    first, second = together[0], together[1]  # of one tensor axis
    if layout == "tp2":  # several batches draw from several streams
        check_equal(alone["outside"], first["outside"], weights=1e-4)
    assert first["again"]["weights"] == first["inside"]["weights"]
    assert first["inside"]["losses"] == second["inside"]["losses"] != alone["inside"]["losses"]
    assert first["masks"]["outside"] == second["masks"]["outside"]
    assert first["masks"]["inside"] != second["masks"]["inside"]


def test_evaluation_and_predictions(found):
    check_evaluated(found, 2, "tp2")


def test_a_model_that_was_divided_when_it_was_loaded(found):
    alone, together = found[1][0]["arrived"], found[2][0]["arrived"]
    check_equal(alone["whole"], together["whole"])
    assert (alone["size"], together["size"]) == (1, 2)
    assert together["again"]["weights"] == together["whole"]["weights"]
    assert abs(together["eval"] - alone["eval"]) <= 1e-5


def check_counted(known, size, layout):
    """Weights and two values for each of them, and the counters of AdamW."""
    for each in known[size]:
        counted = each["counted"][layout]
        assert 3 * counted["held"] <= counted["read"] <= 3 * counted["held"] + 1000 < counted["stored"]


def test_each_process_reads_its_part(found):
    check_counted(found, 2, "tp2")


def test_messages_of_a_step(found):
    """Of two blocks: 1 + 2 x 2 all-reduces forward and 2 x 5 + 1 backward, the logits, and the norm."""
    for each in found[2]:
        told = each["messages"]
        assert told["plain"] == {"all_reduce": 16, "all_gather_into_tensor": 1, "allreduce_": 1}
        assert told["recomputed"] == told["plain"] | {"all_reduce": 18}


def test_what_cannot_be_divided_is_refused_in_words(found):
    for each in found[2]:
        told = each["refused"]
        assert "ModelError: gradients of warmth differ along the tensor axis" in told["between"]
        assert "'replicated_with_grad_allreduce'" in told["between"]
        assert told["summed"] is None
        assert "BertForMaskedLM has no plan" in told["no plan"]
        assert "the given optimizer has already made steps on the undivided model" in told["stepped"]
        assert "adafactor keeps means over whole rows and columns" in told["adafactor"]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "layout"), EVERY)
def test_features_in_every_layout(size, layout, rare):
    alone, together = rare[1][0], rare[size][0]
    check_evaluated(rare, size, layout)
    check_dropped(rare, size, layout)
    check_counted(rare, size, layout)
    recomputed = together["recomputed"][layout]
    assert recomputed["recomputed"] == recomputed["kept"] != alone["recomputed"]["alone"]["kept"]
    for dropout in ("0.0", "0.3"):
        adapted = together["adapted"][f"{layout} {dropout}"]
        assert adapted["again"]["weights"] == adapted["whole"]["weights"]
        assert adapted["files"] == alone["adapted"][f"alone {dropout}"]["files"]
    check_equal(alone["adapted"]["alone 0.0"]["whole"], together["adapted"][f"{layout} 0.0"]["whole"], weights=1e-4)
    skipped, expected = together["skipped"][layout], alone["skipped"]["alone"]
    assert skipped[0] == expected[0] == 1
    assert difference(np.nan_to_num(skipped[1][:4]), np.nan_to_num(expected[1][:4])) <= 1e-5
    check_averaged(rare, size, layout)
    check_whole_matrices(rare, size, layout)
    if "shard" not in layout:
        assert together["generated"][layout] == alone["generated"]["alone"]
        assert together["halved"][layout]["fp16"][0] == alone["halved"]["alone"]["fp16"][0] == 4


@pytest.mark.slow
def test_configurations_of_transformers_and_accelerate(rare):
    alone, together = rare[1][0]["configured"]["whole"], rare[2][0]["configured"]
    check_equal(alone, together["whole"])
    assert together["again"]["weights"] == together["whole"]["weights"]
    for size in (2, 4):
        check_equal(alone, rare[size][0]["configured"]["parallelism_config"])
        for each in rare[size]:
            for name in ("sharded", "sharded again"):
                assert "fsdp_size" in each["configured"][name] and "sharding=" in each["configured"][name], size


@pytest.mark.slow
@pytest.mark.parametrize(("size", "layout"), EVERY)
def test_half_precision_is_as_far_from_one_process_as_that_from_float32(size, layout, rare):
    one, whole = rare[1][0]["halved"]["alone"]["bf16"], rare[1][0]["halved"]["float32"]
    assert difference(rare[size][0]["halved"][layout]["bf16"], one) <= difference(one, whole)


# Of sequence_job.py: packing, mixtures, streams, spikes, adapters, and overrides.
FEATURES = ("padded", "packed", "accumulated", "adapted", "smoothed", "evaluated", "averaged", "reentrant", "mixed")
FEATURES += ("with_outputs", "loss_function", "streamed", "shifted_by_collator", "own_mask", "bad_sample")
FEATURES += ("rolled_back", "overridden")


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return play_features(tmp_path_factory.mktemp("features"), 1, "learning_rate=1e-3", *FEATURES)[0]


def play_features(folder, processes, *given):
    run(processes, folder, 1, *given, script=Path(__file__).with_name("sequence_job.py"))
    return results(folder, processes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "sharding", "without"),
    [(2, "", ()), (4, "", OF_WHOLE_BATCHES), (4, "stage3", OF_WHOLE_BATCHES)],
)
def test_packing_mixtures_spikes_and_overrides(tmp_path, features, processes, sharding, without):
    given = ("tensor_parallel_size=2", f"sharding={sharding}", "learning_rate=1e-3")
    cases = [name for name in FEATURES if name not in without]
    for each in play_features(tmp_path, processes, *given, *cases):
        assert set(each) == set(cases)
        for name, found in each.items():
            assert_near(found, features[name])


@pytest.mark.slow
def test_large_steps_scale_rounding_up(tmp_path):
    """At three times the learning rate norms are no further from one process than changed last bits are there."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (alone,) = play_features(tmp_path / "one", 1, "padded", "last_bits")
    norms = alone["padded"]["norms"]
    by_rounding = max(difference(each, norms) for each in alone["last_bits"]["norms of each"])
    for each in play_features(tmp_path / "two", 2, "tensor_parallel_size=2", "padded"):
        assert difference(each["padded"]["norms"], norms) <= by_rounding
        assert difference(each["padded"]["losses"], alone["padded"]["losses"]) <= 1e-5


@pytest.mark.slow
def test_thirty_steps(tmp_path):
    known = run_all(tmp_path, dict.fromkeys((1, 2, 4), ["thirty"]))
    for size, layout in EVERY:
        for model, course in known[size][0]["thirty"].items():
            check_equal(known[1][0]["thirty"][model]["alone"], course[layout], weights=1e-3)


@pytest.mark.slow
def test_every_layout_goes_on_from_every_other(tmp_path):
    known = run_all(tmp_path, dict.fromkeys((1, 2, 4), ["saved", "saved_whole"]))
    for size, each in run_all(tmp_path, dict.fromkeys((1, 2, 4), ["crossed", "crossed_whole"])).items():
        known[size][0] |= each[0]
    assert {name for each in known.values() for kind in ("saved", "saved_whole") for name in each[0][kind]} == set(ALL)
    for size, each in known.items():
        for layout in each[0]["crossed"] | each[0]["crossed_whole"]:
            check_crossed(known, size, layout)
