"""Models that are divided along the tensor axis, alone and with data and shard, against one process."""

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.launch import results, run

pytest.importorskip("transformers")
JOB = Path(__file__).with_name("layouts_job.py")
OF = {2: ("tp2",), 4: ("dp2 x tp2", "shard2 x tp2", "shard2 stage2 x tp2")}
ALL = ("alone", "tp2", "dp2", "shard2 stage1", "shard2", *OF[4])
EVERY = [(size, layout) for size, names in OF.items() for layout in names]


def difference(left, right):
    return float(np.abs(np.array(left, dtype=np.float64) - np.array(right, dtype=np.float64)).max())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process wrote, by their number."""
    folder, known = tmp_path_factory.mktemp("layouts"), {}
    for size, cases in {1: ("equal", "saved"), 2: ("equal", "saved"), 4: ("equal", "saved", "crossed")}.items():
        (folder / str(size)).mkdir()
        run(size, folder / str(size), *cases, script=JOB)
        known[size] = results(folder / str(size), size)
    known["folder"] = folder
    return known


def check_equal(alone, together, weights=2e-5):
    assert together["steps"] == alone["steps"]
    assert difference(alone["losses"], together["losses"]) <= 1e-5
    assert difference(alone["norms"], together["norms"]) <= 1e-5
    assert together["weights"].keys() == alone["weights"].keys()
    for name, value in alone["weights"].items():
        assert difference(value, together["weights"][name]) <= weights, name


@pytest.mark.parametrize("model", ["llama", "qwen3", "bert", "plain"])
def test_two_processes_make_the_updates_of_one(model, found):
    check_equal(found[1][0]["equal"][model]["alone"], found[2][0]["equal"][model]["tp2"])


@pytest.mark.parametrize("layout", OF[4])
def test_four_processes_make_the_updates_of_one(layout, found):
    """With accumulation, smoothed labels, and batches in which some have no labels."""
    check_equal(found[1][0]["equal"]["qwen3"]["alone"], found[4][0]["equal"]["qwen3"][layout])


def test_all_processes_have_the_same_losses_and_norms(found):
    for size in (2, 4):
        first, *others = found[size]
        for model, by_layout in first["equal"].items():
            for layout, course in by_layout.items():
                for other in others:
                    assert other["equal"][model][layout]["losses"] == course["losses"]
                    assert other["equal"][model][layout]["norms"] == course["norms"]


@pytest.mark.parametrize(("size", "layout"), EVERY)
def test_a_run_goes_on_to_the_same_bits(size, layout, found):
    stored = found[size][0]["saved"][layout]
    assert stored["again"]["weights"] == stored["whole"]["weights"]
    assert stored["again"]["losses"] == stored["whole"]["losses"][3:]
    assert stored["again"]["norms"] == stored["whole"]["norms"][3:]


@pytest.mark.parametrize(("size", "layout"), EVERY)
def test_the_saved_model_is_the_file_of_one_process(size, layout, found):
    def header(path):
        data = path.read_bytes()
        return data[: 8 + int.from_bytes(data[:8], "little")]

    own = found["folder"] / str(size) / f"model-{layout}" / "model.safetensors"
    assert header(own) == header(found["folder"] / "1" / "model-alone" / "model.safetensors")


def check_crossed(known, size, layout):
    courses = {name: course for each in known.values() for name, course in each[0].get("saved", {}).items()}
    courses |= {name: course for each in known.values() for name, course in each[0].get("saved_whole", {}).items()}
    every = known[size][0].get("crossed", {}) | known[size][0].get("crossed_whole", {})
    assert every[layout].keys() == courses.keys()
    for source, losses in every[layout].items():
        assert difference(losses, courses[source]["whole"]["losses"][3:]) <= 1e-5, source


@pytest.mark.parametrize("layout", OF[4])
def test_runs_go_on_from_other_layouts(layout, found):
    check_crossed({size: found[size] for size in (1, 2, 4)}, 4, layout)


@pytest.mark.slow
def test_thirty_steps(tmp_path):
    for size in (1, 2, 4):
        (tmp_path / str(size)).mkdir()
        run(size, tmp_path / str(size), "thirty", script=JOB)
    (alone,) = results(tmp_path / "1", 1)
    for size, layout in EVERY:
        for model, course in results(tmp_path / str(size), size)[0]["thirty"].items():
            check_equal(alone["thirty"][model]["alone"], course[layout], weights=1e-3)


@pytest.mark.slow
def test_every_layout_goes_on_from_every_other(tmp_path):
    known = {}
    for case in ("saved", "crossed"):
        for size in (1, 2, 4):
            (tmp_path / str(size)).mkdir(exist_ok=True)
            run(size, tmp_path / str(size), case, f"{case}_whole", script=JOB)
            known.setdefault(size, [{}])[0].update(results(tmp_path / str(size), size)[0])
    assert {name for each in known.values() for kind in ("saved", "saved_whole") for name in each[0][kind]} == set(ALL)
    for size, each in known.items():
        for layout in each[0]["crossed"] | each[0]["crossed_whole"]:
            check_crossed(known, size, layout)
