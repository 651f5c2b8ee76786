"""State that cannot be forgotten: every field of every object of a run survives a resume, or is named here.

Two ways to look. The attributes of the parts of a run, its position, engine and callbacks in the step after a save are
compared with those of a run that was resumed there: what is not saved at all, or not restored, differs. And every value
of a checkpoint is changed, the run is resumed and saves at once, before a step: the new checkpoint has the changed
values, also on other numbers of processes, where a sum that each process restores would be there several times.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from oneloop.formats import part_rules
from oneloop.formats.safetensors_io import read, write
from tests.backends.support import kit_module, names
from tests.checkpoint import state_job
from tests.checkpoint.mutations import reseal
from tests.checkpoint.state_job import SAVED
from tests.distributed.launch import run_script

CHECKPOINT = f"checkpoint-{SAVED}"
COMPILED = r"engine\._differentiate.*"  # on MindSpore
# Attributes that may differ after a resume, and why. A new one belongs into the state of its part, or here.
OF_THE_PROCESS = {
    r"meter\.(_logged|_waited|first_step|started|last_data_wait).*": "speed is that of this process",
    r"process_times\..*": "speed is that of this process",
    r"chunked_loss\._stored": "whether the checkpoint has it on",
    r"curve\.figures\.(_before\.seconds|_excluded)": "a time; speed is that of this process",
    r"curve\.due|callbacks\[0\]\._saved_at|callbacks\[\d+\]\._began.*": "a time",
    r"update\.broadcasts\.is_done": "looks at the first batches of this process",
    r"logged_metrics\.(averages|of_all|_unread).*": "added up as the sums of sources are",
    r"logged_metrics\._is_shared": "what the code of the script says, asked once",
    r"nonfinite\.count": "decides which messages are shown",
    COMPILED: "a function that is made for the model",
    r"engine\.(_bad|_extra|_gradients|_loss|_pending)": "of the last update, which the next one replaces",
    r"skipped_update_buffers\._(copies|has_looked).*": "copies of buffers, taken anew in the first update",
    r"sources\.(of_all|sums).*": "added up for each log and save; the first process continues the sums of all",
}


# In a process that writes no checkpoint, losses stay on the device until a log reads them.
NOT_MAIN = {r"curve\._step|losses\.(_unread.*|lost_since_log)": "read by the main process at a save"}


def check_fields(left, right, more=()):
    allowed = re.compile("|".join((*OF_THE_PROCESS, *more)))
    paths = [path for path in sorted({*left, *right}) if not allowed.fullmatch(path)]
    assert len(paths) > 200
    wrong = [f"{path}: {left.get(path)} -> {right.get(path)}" for path in paths if left.get(path) != right.get(path)]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module", params=names())
def one(request, tmp_path_factory):
    """(kit, folder, fields) of a run of one process."""
    folder = tmp_path_factory.mktemp(f"fields_{request.param}")
    kit = kit_module(request.param).Kit()
    whole = state_job.walk(kit, folder / "run")
    return kit, folder, {"whole": whole}


def test_a_resumed_run_has_every_field(one):
    kit, folder, fields = one
    resumed = state_job.walk(kit, folder / "run", folder / "run" / CHECKPOINT)
    check_fields(fields["whole"], resumed)


def test_the_fields_that_may_differ_are_there(one):
    """A name that has changed is not left in the list."""
    kit, _, fields = one
    patterns = [each for each in OF_THE_PROCESS if each != COMPILED and kit.name == "torch"]
    assert [each for each in patterns if not any(re.fullmatch(each, path) for path in fields["whole"])] == []


# -- changed values

# Keys that only some runs have, each with a test of what is kept: test_chunked_loss.py, test_world_invariance.py.
DECIDED = ("chunked_loss", "world_invariant")
CHANGED = ("engine", "grad_norm")  # and the keys of all parts


def changed(value, key=""):
    """Another value of the same kind."""
    if isinstance(value, dict):
        return {name: changed(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [changed(inner, key) for inner in value]
    if isinstance(value, bool) or value is None or key in ("version", "kind", "last", "last_epoch", "scheduled"):
        return value
    if isinstance(value, int):
        return value + 3
    if isinstance(value, float):
        return value * 1.25 + 0.25
    if re.fullmatch(r"-?(0x[0-9a-f.]+p[+-]\d+|nan|inf)", value):
        number = float.fromhex(value)
        return (number * 1.25 + 0.25 if number == number else 0.75).hex()
    return value


def change(checkpoint):
    """Change all that run.json has of the parts, the engine, and the state of the Trainer; and give
    each declared key a value, so that none is left out."""
    run = json.loads((checkpoint / "run.json").read_text())
    spike = {"step": 2, "name": "loss", "value": "0x1.8p+3", "median": "0x1.4p+0", "limit": "0x1.2p+1"}
    run["seeded"] = ["eval", "other/own"]
    run["spikes"]["rollbacks"] = [{"spike": spike, "checkpoint": 1, "steps": [2, 2], "positions": [0, 6, 12]}]
    run["spikes"]["scheduled"] = 4
    run |= {key: changed(run[key], key) for key in (*CHANGED, *part_rules.keys()) if key in run and key != "seeded"}
    run["optimizer"]["groups"] = [
        group | {key: changed(group[key]) for key in ("weight_decay", "eps", "epsilon") if key in group}
        for group in run["optimizer"]["groups"]
    ]
    (checkpoint / "run.json").write_text(json.dumps(run))
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["best_metric"] = changed(state["best_metric"])  # tokens and operations follow from run.json
    for each in state["stateful_callbacks"].values():
        each["attributes"] = changed(each["attributes"])
    state["log_history"][0]["eval_loss"] = 0.125
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    average = checkpoint / "average.safetensors"
    tensors = read(average)
    write(average, {name: raw.__class__(raw.dtype, raw.shape, bytes(raw.data)[::-1]) for name, raw in tensors.items()})
    reseal(checkpoint)


def change_in(folder):
    shutil.copytree(folder / "run" / CHECKPOINT, folder / "changed" / CHECKPOINT)
    change(folder / "changed" / CHECKPOINT)
    return folder / "changed" / CHECKPOINT


def compare(before, after, same_processes):
    """That the checkpoint that was saved at once is the one that was resumed."""
    left, right = (json.loads((path / "run.json").read_text()) for path in (before, after))
    missing = [key for part in part_rules.declared() for key in part.schema if key not in {*left, *DECIDED}]
    assert missing == [], "the run of state_job.py has something of every part"
    if not same_processes:  # how many there are, and what each of them had
        for run in (left, right):
            moved = ("processes", "accumulation", "gradient_accumulation_steps")
            run["course"] = {k: v for k, v in run["course"].items() if k not in moved}
            run["position"] = {k: v for k, v in run["position"].items() if k not in ("ranks", "parts")}
            run.pop("strategy")
    same(left, right)
    left, right = (json.loads((path / "trainer_state.json").read_text()) for path in (before, after))
    for key in ("save_steps", "total_flos", "num_input_tokens_seen"):  # another argument; computed from run.json
        left.pop(key), right.pop(key)
    same(left, right)
    files = ["model.safetensors", "optimizer.safetensors", "average.safetensors"]
    for name in files + ["random.safetensors"] * same_processes:
        assert contents(before / name) == contents(after / name), name


def same(left, right):
    left, right = dict(leaves(left)), dict(leaves(right))
    wrong = [f"{key}: {left.get(key)} -> {right.get(key)}" for key in left | right if left.get(key) != right.get(key)]
    assert not wrong, "\n".join(wrong)


def leaves(value, path=""):
    if not isinstance(value, (dict, list)) or not value:
        yield path, repr(value)
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(inner, f"{path}/{key}")


def contents(file):
    return {name: (raw.dtype, tuple(raw.shape), bytes(raw.data)) for name, raw in read(file).items()}


def test_every_changed_value_is_restored_and_saved(one):
    kit, folder, _ = one
    before = change_in(folder)
    state_job.save_again(kit, folder / "again", before)
    compare(before, folder / "again" / CHECKPOINT, same_processes=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    if "torch" not in names():
        pytest.skip("its processes are soon started")
    folder = tmp_path_factory.mktemp("fields_of_two")
    run_script("torch", 2, folder, Path(state_job.__file__), "train")
    return folder


def test_two_processes_that_are_resumed_have_every_field(two):
    for rank in range(2):
        fields = json.loads((two / f"fields-{rank}.json").read_text())
        check_fields(fields["whole"], fields["resumed"], NOT_MAIN if rank else ())


@pytest.mark.parametrize("processes", [2, 1, 3])
def test_values_of_two_processes_are_restored_on_any_number(two, processes):
    before = two / "changed" / CHECKPOINT
    if not before.exists():
        change_in(two)
    run_script("torch", processes, two, Path(state_job.__file__), "again")
    compare(before, two / f"again-{processes}" / CHECKPOINT, same_processes=processes == 2)
