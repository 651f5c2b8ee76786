"""Sequences that are divided between processes (sequence_job.py): runs are those of one process."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.distributed.launch import run

pytest.importorskip("transformers")
pytest.importorskip("peft")

SCRIPT = Path(__file__).with_name("sequence_job.py")
SHORT = ("padded", "windows", "packed", "accumulated", "adapted", "smoothed", "overridden", "pooled", "evaluated")
SHORT += ("repeated", "restored")
LONG = ("averaged", "reentrant", "with_outputs", "loss_function", "unmasked", "masked_words", "mixed", "streamed")
LONG += ("shifted_by_collator", "own_mask", "bad_sample", "rolled_back", "generated")
# Their loss is no sum over the samples of a batch, or has masks that depend on its padding, and so on who has which.
OF_WHOLE_BATCHES = ("overridden", "own_mask")
STATE = ("saved", "plain_saved")
ONCE = ("resumed", "dropped", "messages", "refused", "accelerator")
NEAR = 1e-5


class Runs:
    """Results of every process, by layout."""

    def __init__(self, folder):
        self.folder = folder

    def play(self, name, processes, size, *cases):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        run(processes, folder, size, *cases, script=SCRIPT)
        return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("sequence"))


@pytest.fixture(scope="module")
def one(runs):
    return runs.play("one", 1, 1, *SHORT, *STATE, "dropped")[0]


@pytest.fixture(scope="module")
def two(runs, one):
    """Two processes that divide each sequence; one of the runs goes on from the checkpoint of one process."""
    return runs.play("two", 2, 2, *SHORT, *STATE, *ONCE, f"from:{runs.folder}/one")


def assert_near(found, expected, near=NEAR):
    """The values of a case, and what has to be equal in it."""
    for key, value in found.items():
        if key in ("losses", "norms", "values"):
            assert value == pytest.approx(expected[key], rel=0, abs=near), key
        elif key != "weights":
            assert value == expected[key], key


@pytest.mark.parametrize("name", SHORT)
def test_runs_are_those_of_one_process(one, two, name):
    for each in two:
        assert_near(each[name], one[name])
    assert two[0][name].get("weights") == two[1][name].get("weights"), "in every byte"


def test_messages_of_a_step(two):
    """Two all-to-alls for each of two layers, twice; logits are gathered only where an override sees them."""
    for each in two:
        found = each["messages"]
        assert found["default"] == {"all_to_all": 8, "all_gather": 0, "all_reduce": 1}
        assert found["smoothed"] == found["after_evaluation"] == found["default"]
        assert found["recomputed"] == {"all_to_all": 12, "all_gather": 0, "all_reduce": 1}
        assert found["overridden"] == {"all_to_all": 12, "all_gather": 1, "all_reduce": 1}


def test_dropout_is_common_before_the_layers_and_independent_within(one, two):
    (first, second), (other, _), (single, _) = ([each["dropped"]["dropped"][i] for i in (0, 1)] for each in (*two, one))
    assert first["embeddings"] == other["embeddings"] == single["embeddings"]
    assert first["embeddings"] != second["embeddings"]
    assert len(first["layer"][0][0]) == len(other["layer"][0][0]) == 4, "positions of a part"
    assert first["layer"] != other["layer"] and first["layer"] != second["layer"]
    heads = [each["dropped"]["head"] for each in two]
    assert len(heads[0][0][0]) == 4 and heads[0][0] != heads[1][0] and heads[0][0] != heads[0][1]
    assert two[0]["dropped"]["drawn"] == two[1]["dropped"]["drawn"], "data is loaded with the common stream"


def test_a_resumed_run_has_the_same_bytes(runs, two):
    for each in two:
        assert each["resumed"]["weights"] == each["saved"]["weights"]
        assert each["resumed"]["losses"] == each["saved"]["losses"][3:]
    left, right = (runs.folder / "two" / name / "checkpoint-6" for name in ("saved", "resumed"))
    for path in sorted(left.glob("*.safetensors")):
        assert path.read_bytes() == (right / path.name).read_bytes(), path.name


def test_checkpoints_are_those_of_one_process(runs, one, two):
    left, right = (runs.folder / name / "plain_saved" / "checkpoint-3" for name in ("one", "two"))
    assert sorted(path.name for path in left.iterdir()) == sorted(path.name for path in right.iterdir())
    for name in ("model.safetensors", "optimizer.safetensors"):
        expected, found = load_file(left / name), load_file(right / name)
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    assert (left / "random.safetensors").read_bytes() == (right / "random.safetensors").read_bytes()


def test_a_run_of_one_process_goes_on_with_divided_sequences(one, two):
    for each in two:
        assert each["from:one"]["losses"] == pytest.approx(one["plain_saved"]["losses"][3:], rel=0, abs=NEAR)


def test_models_that_cannot_be_divided_are_refused(two):
    for each in two:
        found = each["refused"]
        assert (
            "the 3 attention heads of LlamaForCausalLM (model.layers.0.self_attn) cannot be divided by 2"
            in found["heads"]
        )
        assert "LlamaForCausalLM has attn_implementation='eager'" in found["eager"]
        assert "OwnAttention is not a transformers model" in found["module"]
        assert "T5ForConditionalGeneration has cross attention" in found["cross"]
        assert "DebertaV2ForTokenClassification has attn_implementation='eager'" in found["deberta"]
        assert "Qwen3MoeForCausalLM has an auxiliary loss" in found["router"]
        assert "LlamaForCausalLM mixes positions outside of its attention" in found["mixing"]
        assert "layer 1 of LlamaForCausalLM (LlamaDecoderLayer) does not call attention" in found["layer"]
        assert "cannot be combined with torch_compile" in found["compile"]
        assert "sequence_parallel_size=2 cannot be combined with use_cache=True" in found["cache"]
        assert "do not divide the 1 of 2 that are left" in found["tensor"]


def test_libraries_see_processes_with_different_batches(two):
    for rank, each in enumerate(two):
        expected = {"num_processes": 1, "process_index": 0, "use_distributed": True, "gathered": [7]}
        expected |= {"by accelerate": [[0]], "objects": ["0"]}
        assert each["accelerator"] == expected | {"is_main_process": rank == 0, "is_last_process": rank == 1}


def test_two_shards_by_two_parts(runs, one):
    """Stage 3, and a run that goes on from the checkpoint of one process."""
    cases = ("packed", "accumulated", "evaluated")
    more = ("accelerator", "refused_axes", f"from:{runs.folder}/one")
    for rank, each in enumerate(runs.play("shard3", 4, 2, "sharding=stage3", *cases, *more)):
        for name in cases:
            assert_near(each[name], one[name])
        assert each["from:one"]["losses"] == pytest.approx(one["plain_saved"]["losses"][3:], rel=0, abs=NEAR)
        seen = each["accelerator"]
        assert (seen["num_processes"], seen["process_index"], seen["gathered"]) == (2, rank // 2, [7, 7])
        assert (seen["by accelerate"], seen["objects"]) == ([[0], [2]], ["0", "2", "2"])
        assert set(each["refused_axes"]) == {"tensor_parallel_size", "expert_parallel_size"}
        assert "cannot be combined with tensor_parallel_size=2" in each["refused_axes"]["tensor_parallel_size"]


# -- the rest


@pytest.fixture(scope="module")
def every(runs):
    return runs.play("every", 1, 1, *SHORT, *LONG, "bfloat16", "plain_saved")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "processes", "size", "sharding"),
    [
        ("sp2", 2, 2, ""),
        ("dp2_sp2", 4, 2, ""),
        ("sp4", 4, 4, ""),
        ("shard2_sp2_stage1", 4, 2, "stage1"),
        ("shard2_sp2_stage2", 4, 2, "stage2"),
        ("shard2_sp2_stage3", 4, 2, "stage3"),
    ],
)
def test_every_case_is_that_of_one_process(runs, every, layout, processes, size, sharding):
    cases = set(SHORT) | set(LONG)
    if processes > size:
        cases -= {*OF_WHOLE_BATCHES}
    if sharding in ("stage2", "stage3"):
        cases -= {"generated"}  # the main process alone cannot gather weights
    cases = sorted(cases)
    found = runs.play(layout, processes, size, f"sharding={sharding}", *cases, "bfloat16", "plain_saved")
    for each in found:
        for name in cases:
            assert_near(each[name], every[name])
        rounding = distance(every["bfloat16"]["losses"], every["padded"]["losses"])
        assert distance(each["bfloat16"]["losses"], every["bfloat16"]["losses"]) <= rounding


def distance(left, right):
    return max(abs(one - other) for one, other in zip(left, right, strict=True))
