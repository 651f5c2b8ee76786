"""Changes to the files of a checkpoint, chosen by bytes, with checksums that are right again afterwards.

The same bytes make the same change, so that Hypothesis and the fuzzer (fuzz.py) can look for changes that break a
resume, and what they find can be kept as a file of a few bytes in fuzz_seeds.
"""

import copy
import json
import shutil
from pathlib import Path

import numpy as np

from oneloop import EarlyStoppingCallback, PrinterCallback, Trainer, TrainingArguments
from oneloop.checkpoint import store
from oneloop.errors import CheckpointError
from oneloop.formats import safetensors_io
from oneloop.formats.safetensors_io import Raw
from tests.backends.support import rows

JSON_FILES = ("run.json", "trainer_state.json", "manifest.json", "training_args.json")
TENSOR_FILES = ("optimizer.safetensors", "random.safetensors", "model.safetensors")
FILES = (*JSON_FILES, *TENSOR_FILES)
SAVED, LAST = 2, 4
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "U16", "U32", "U64", "BOOL")
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 5, 2**31, 2**53, 2**64, 10**400, 0.5, -0.5, 1e-300, 1e300, float("nan")),
    *(float("inf"), -float("inf"), "", "a", "0x1.8p+1", "nan", "\0", "\ud800", "../../x", "/dev/zero", [], {}, [1]),
    *([[]], [None], {"a": 1}, {"": None}, [0.9, 0.999], {"tensor": 1.0}, {"torch.dtype": "load"}, {"stored": "x"}),
    *({"args": {}, "attributes": {}}, {"args": {"a": 1}, "attributes": {"state": 1}}, ["a"] * 3, "checkpoint-9"),
)


class Choices:
    """Decisions from bytes; zeros when they have run out."""

    def __init__(self, data):
        self.data, self.place = bytes(data), 0

    def below(self, count):
        """A number from 0 up to count."""
        width = 1 if count <= 256 else 2
        taken = self.data[self.place : self.place + width].ljust(width, b"\0")
        self.place += width
        return int.from_bytes(taken, "little") % max(1, count)

    def of(self, options):
        return options[self.below(len(options))]

    @property
    def are_left(self):
        return self.place < len(self.data)

    def rest(self, most):
        taken = self.data[self.place : self.place + most]
        self.place += most
        return taken


# -- changes


def mutate(checkpoint, data):
    """Change one file of a checkpoint or some, and make the manifest agree with them."""
    choices = Choices(data)
    for _ in range(4):
        name = choices.of(FILES)
        path = checkpoint / name
        if not path.is_file():
            break
        if choices.below(8) == 7:
            change_bytes(path, choices)
        elif name in JSON_FILES:
            change_json(path, choices)
        else:
            change_tensors(path, choices)
        if not choices.are_left:
            break
    reseal(checkpoint)


def reseal(checkpoint):
    """Give the manifest the sizes and checksums of the files that it lists."""
    path = checkpoint / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        files = manifest["files"]
        for name, entry in files.items():
            file = checkpoint / name
            if ".." not in name and file.is_file() and isinstance(entry, dict):
                entry |= {"bytes": file.stat().st_size, "sha256": store.checksum(file)}
        path.write_text(json.dumps(manifest))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        pass


def change_bytes(path, choices):
    content = bytearray(path.read_bytes())
    place = choices.below(len(content) + 1)
    piece = choices.rest(1 + choices.below(8))
    kind = choices.below(3)
    if kind == 0:
        content[place : place + len(piece)] = piece
    elif kind == 1:
        content[place:place] = piece
    else:
        del content[place : place + 1 + choices.below(64)]
    path.write_bytes(content)


def places(value, found=None):
    """All containers in a JSON value, with the keys in them."""
    found = [] if found is None else found
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        places(inner, found)
    return found


def change_json(path, choices):
    try:
        value = json.loads(path.read_text())
    except ValueError:
        return
    for _ in range(1 + choices.below(2)):
        every = places(value)
        if not every:
            break
        owner, key = every[choices.below(len(every))]
        kind = choices.below(8)
        if kind == 0:
            del owner[key]
        elif kind == 1:
            owner[key] = [owner[key]]
        elif kind == 2 and isinstance(owner, dict):
            owner[choices.of(("x", "", *owner))] = copy.deepcopy(choices.of(VALUES))
        elif kind == 3:
            other, place = every[choices.below(len(every))]
            owner[key] = copy.deepcopy(other[place])
        else:
            owner[key] = copy.deepcopy(choices.of(VALUES))
    path.write_text(json.dumps(value))


def change_tensors(path, choices):
    try:
        tensors = {name: Raw(raw.dtype, raw.shape, bytes(raw.data)) for name, raw in safetensors_io.read(path).items()}
    except CheckpointError:
        return
    metadata = safetensors_io.read_metadata(path)
    if not tensors:
        return
    name = sorted(tensors)[choices.below(len(tensors))]
    raw, kind = tensors[name], choices.below(9)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[choices.of(("x", "", "a:b", ":", "rank1/python", "buffer/0", f"{name}/0", *sorted(tensors)))] = raw
    elif kind == 2:
        tensors[name] = tensors[choices.of(sorted(tensors))]
    elif kind == 3:
        shape = choices.of(((), (0,), (1,), (3,), (1, 1), (5000,), (*raw.shape, 1), raw.shape[::-1], (2, *raw.shape)))
        width = max(1, len(raw.data) // max(1, int(np.prod(raw.shape))))
        tensors[name] = Raw(raw.dtype, tuple(shape), bytes(int(np.prod(shape)) * width))
    elif kind == 4:
        dtype = choices.of(DTYPES)
        bits = {"BOOL": 8, "BF16": 16}.get(dtype) or int("".join(filter(str.isdigit, dtype)))
        tensors[name] = Raw(dtype, raw.shape, bytes(int(np.prod(raw.shape)) * bits // 8))
    elif kind == 5:
        metadata = {
            **metadata,
            choices.of(("tied", "format", "x")): choices.of(("[]", "{}", '{"a": 1}', "{", '{"a":"b"}')),
        }
    else:
        content = bytearray(raw.data)
        place = choices.below(len(content) + 1)
        piece = choices.rest(8) or b"\xff" * 8
        content[place : place + len(piece)] = piece[: max(0, len(content) - place)]
        tensors[name] = Raw(raw.dtype, raw.shape, bytes(content[: len(raw.data)]))
    safetensors_io.write(path, tensors, metadata)


# -- a run, and whether it resumes


def build(kit, output, **given):
    options = {"report_to": "none", "disable_tqdm": True, "device": "cpu", "max_steps": LAST, "save_steps": SAVED}
    options |= {"save_strategy": "no", "per_device_train_batch_size": 4, "logging_steps": 1, "log_level": "error"}
    options |= {"nonfinite": "ignore"}  # values that were changed may be NaN
    options |= {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "weight_decay": 0.01}
    options |= {
        "load_best_model_at_end": False,
        "lr_scheduler_type": "cosine",
        "restore_callback_states_from_checkpoint": True,
    }
    trainer = Trainer(
        kit.classifier(dropout=0.1),
        TrainingArguments(output_dir=str(output), **options | given),
        train_dataset=rows(24),
        eval_dataset=rows(4, seed=1),
        callbacks=[EarlyStoppingCallback(100)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def save(kit, output, **given):
    """A run of a few steps; returns its first checkpoint."""
    build(kit, output, save_strategy="steps", **given).train()
    shutil.rmtree(Path(output) / f"checkpoint-{LAST}")
    return Path(output) / f"checkpoint-{SAVED}"


def outcome(kit, checkpoint, output, **given):
    """ "refused", if the resume is a CheckpointError, or "resumed", if it trains to its end; all else is raised."""
    try:
        trainer = build(kit, output, **given)
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except CheckpointError as error:
        assert str(error).isprintable() or "\n" in str(error)
        return "refused"
    assert trainer.state.global_step >= SAVED
    return "resumed"
