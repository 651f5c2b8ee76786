"""Two processes that resume from checkpoints that cannot be those of their run: `strict_job.py FOLDER CASE [CASE ...]`.

As in cases.py, each process writes the results of all cases into FOLDER/rankN.json.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

from oneloop.distributed.world import world
from oneloop.errors import CheckpointError, ProcessLostError
from oneloop.formats import safetensors_io, structure
from oneloop.formats.safetensors_io import Raw
from tests.backends.support import rows
from tests.checkpoint.mutations import reseal
from tests.distributed import cases

CASES = {}
READ_ONCE = ("manifest.json", "run.json", "trainer_state.json")


def case(function):
    CASES[function.__name__] = function
    return function


def edit_tensors(path, change):
    tensors = {name: Raw(raw.dtype, raw.shape, bytes(raw.data)) for name, raw in safetensors_io.read(path).items()}
    metadata = safetensors_io.read_metadata(path)
    change(tensors)
    safetensors_io.write(path, tensors, metadata)


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def longer(tensors):
    name = max(tensors, key=lambda name: len(tensors[name].shape))
    raw = tensors[name]
    shape = (raw.shape[0] * 2, *raw.shape[1:])
    tensors[name] = Raw(raw.dtype, shape, bytes(raw.data) * 2)


def drop_a_parameter(tensors):
    owner = sorted(tensors)[0].rsplit(":", 1)[0]
    for name in [name for name in tensors if name.startswith(f"{owner}:")]:
        del tensors[name]


def last_optimizer_file(checkpoint):
    return structure.tensor_files(checkpoint, "optimizer")[-1]


def without_index_entry(checkpoint):
    """An index that agrees with its files again."""
    index = checkpoint / "optimizer.safetensors.index.json"
    if index.is_file():
        places = {}
        for file in sorted(checkpoint.glob("optimizer-*.safetensors")):
            places |= dict.fromkeys(safetensors_io.read(file), file.name)
        index.write_text(json.dumps({"weight_map": places}))


BREAKS = {
    "moments": lambda checkpoint: edit_tensors(last_optimizer_file(checkpoint), longer),
    "a parameter": lambda checkpoint: (
        edit_tensors(last_optimizer_file(checkpoint), drop_a_parameter),
        without_index_entry(checkpoint),
    ),
    "a stream of process 1": lambda checkpoint: edit_tensors(
        checkpoint / "random.safetensors", lambda tensors: tensors.pop("rank1/numpy")
    ),
    "the position": lambda checkpoint: edit_json(checkpoint / "run.json", lambda run: run["position"].update(epoch=-5)),
    "states of process 1": lambda checkpoint: edit_json(
        checkpoint / "run.json", lambda run: run["position"].update(ranks=[{"epoch": 3}])
    ),
}


def attempt(folder, name, checkpoint, given):
    """What a resume comes to in this process."""
    model = cases.KIT.classifier(dropout=0.2, seed=3)
    try:
        trainer = cases.train(folder, name, model, rows(32), resume=str(checkpoint), **given)
    except CheckpointError as error:
        return f"CheckpointError: {error}"
    except ProcessLostError as error:  # what the main process found before anything was loaded
        return str(error).partition("Its error: ")[2]
    return f"resumed to {trainer.state.global_step}"


def run(folder, name, **given):
    given = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps"} | given
    trainer = cases.train(folder, name, cases.KIT.classifier(dropout=0.2), rows(32), **given)
    source = Path(folder) / name / "checkpoint-2"
    found = {}
    for number, (what, change) in enumerate({"nothing": lambda checkpoint: None, **BREAKS}.items()):
        checkpoint = Path(folder) / f"{name}-{number}" / "checkpoint-2"
        if world().rank == 0:
            shutil.copytree(source, checkpoint)
            change(checkpoint)
            reseal(checkpoint)
        trainer.accelerator.wait_for_everyone()
        with mock.patch("os.open", side_effect=os.open) as opened:
            found[what] = attempt(folder, f"{name}-{number}-again", checkpoint, given)
        paths = [str(call.args[0]) for call in opened.call_args_list]
        if what == "nothing":
            found["reads"] = [paths.count(str(checkpoint / file)) for file in READ_ONCE]
        trainer.accelerator.wait_for_everyone()
    found["another optimizer"] = attempt(folder, f"{name}-other", source, given | {"optim": "sgd"})
    return found


@case
def by_main(folder):
    return run(folder, "by_main", optim="adamw_torch" if cases.KIT.name == "torch" else "adamw")


@case
def in_parts(folder):
    return run(folder, "in_parts", sharding="stage1", optim="adamw_torch")


@case
def divided(folder):
    return run(folder, "divided", sharding="stage2", optim="adamw_torch")


if __name__ == "__main__":
    folder, *asked = sys.argv[1:]
    cases.main(folder, *asked, cases=CASES)
