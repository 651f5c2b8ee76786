"""What the states of a power failure must have: the old files or the new ones, whole, and nothing else."""

import json
import shutil
from collections import Counter
from itertools import islice

from oneloop.checkpoint import resume, saved_model, store
from oneloop.checkpoint.reader import problems
from oneloop.formats.safetensors_io import read
from tests.checkpoint.disk.crash_states import Record, all_states, materialize, snapshot

INDEX = "model.safetensors.index.json"


def record_in(folder, order=None):
    return Record(folder / "before", folder / "inodes.json", folder / "calls", order)


def checkpoint_problem(state, folder, whole):
    """What is wrong with a directory of checkpoints after a failure; None if a resume finds the old or the new one, and
    nothing else is left."""
    parents = [folder, folder / "deep" / "run"]
    parent = next((p for p in parents[::-1] if p.is_dir()), folder)
    store.remove_leftovers(parent)
    left = sorted(p.name for p in parent.glob(".checkpoint-*"))
    torn = sorted(p.name for p in parent.glob("checkpoint-*") if problems(p))
    if left or torn:  # nobody would remove them
        return f"left over after the next start: {left + torn}"
    try:
        checkpoint, _ = resume.find(True, str(parent))
    except Exception as error:
        return f"none can be resumed: {error}"
    path = None if checkpoint is None else checkpoint.path
    if path is None:
        return None if not whole["old"] and "returned" not in state.marks else "there is none"
    found = snapshot(path)
    if "returned" in state.marks and found != whole["new"]:
        return f"the save had returned, and {path.name} is not the new one"
    if found in (whole["old"], whole["new"]):
        return None
    listed = {name: data for name, data in found.items() if name in store.read_manifest(path)["files"]}
    if "added.bin" in whole["new"] and listed == whole["unsealed"]:
        return None  # the new one, before what an override has added is a part of it
    return f"{path.name} is neither the old nor the new one: {sorted(found)}"


def check_checkpoints(records, folder, memory, first_only=False, every=1, seen=()):
    """(states, those with something wrong); `every`: 10 for a tenth of the states; `seen`: states to leave out"""
    old, new = (sorted(p for p in (folder / part).rglob("checkpoint-*") if p.is_dir()) for part in ("before", "after"))
    whole = {"old": snapshot(old[-1]) if old else {}, "new": snapshot(new[-1])}
    whole["unsealed"] = {name: data for name, data in whole["new"].items() if name not in ("added.bin", store.MANIFEST)}
    count, wrong = 0, Counter()
    for state in islice(all_states(*records, seen=seen), 0, None, every):
        count += 1
        place = memory / "state"
        place.mkdir()
        materialize(state, place)
        problem = checkpoint_problem(state, place, whole)
        if problem:
            wrong[problem] += 1
        shutil.rmtree(place)
        if wrong and first_only:
            break
    return count, wrong


def values(folder):
    """(values of the weights, configuration, tokenizer) as a reader finds them; None if there is no model."""
    if (folder / INDEX).is_file():
        files = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    elif (folder / "model.safetensors").is_file():
        files = {"model.safetensors"}
    else:
        return None
    weights = {bytes(raw.data) for file in files for raw in read(folder / file).values()}
    others = (folder / name for name in ("config.json", "tokenizer.json"))
    return weights, *(path.read_bytes() if path.exists() else None for path in others)


def apart(folder):
    """A file that does not have to fit to the others."""
    return (folder / "training_args.json").read_bytes()


def check_models(record, folder, memory, first_only=False, seen=()):
    old, new = values(folder / "before"), values(folder / "after")
    old_apart, new_apart = apart(folder / "before"), apart(folder / "after")
    assert old != new and len(old[0]) == len(new[0]) == 1
    count, wrong = 0, Counter()
    for state in all_states(record, seen=seen):
        count += 1
        place = memory / "state"
        place.mkdir()
        materialize(state, place)
        try:
            found = values(place)
            saved_model.recover(place)
            end = values(place)
        except Exception as error:
            wrong[f"cannot be read: {type(error).__name__}: {error}"] += 1
        else:
            if found not in (old, new, None):
                wrong["a mixture"] += 1
            if apart(place) not in ([new_apart] if "returned" in state.marks else [old_apart, new_apart]):
                wrong["training_args.json is neither the old nor the new one"] += 1
            if end not in (old, new):
                wrong["no model, or a mixture, after the next start"] += 1
            if "returned" in state.marks and end != new:
                wrong["the save had returned, and the model is not the new one"] += 1
        shutil.rmtree(place)
        if wrong and first_only:
            break
    return count, wrong


def check_file(record, folder, memory, first_only=False, seen=()):
    """Of a single file that is replaced."""
    old, new = snapshot(folder / "before"), snapshot(folder / "after")
    count, wrong = 0, Counter()
    for state in all_states(record, seen=seen):
        count += 1
        found = {name: data for name, data in state.files if not name.startswith(".")}
        if found not in ([new] if "returned" in state.marks else [old, new]):
            wrong["the file is neither the old nor the new one"] += 1
        if wrong and first_only:
            break
    return count, wrong
