"""Small checkpoints of other programs in each form, and changes of them as an enemy would make: the pickle inside an
archive with its checksum made right again, records of it, metadata, lengths."""

import io
import json
import pickle
import random
import shutil
import struct
import zipfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from tests.checkpoint import zero_parts

FORMS = ("lightning", "lightning-folder", "torch.save", "dcp", "fsdp", "stage1", "stage3", "transformers")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.head(self.layer(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trained():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    schedule.last_epoch = 1
    return model, optimizer, schedule


def make(form, folder):
    """A checkpoint in a folder; its path."""
    model, optimizer, schedule = trained()
    weights, names = model.state_dict(), [name for name, _ in model.named_parameters()]
    named = {n: optimizer.state[p] for n, p in model.named_parameters()}
    options = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    state = {"state": named, "param_groups": [options | {"params": names}]}
    rest = {"global_step": 1, "epoch": 0, "pytorch-lightning_version": "2.6.6", "loops": {"fit_loop": {}}}
    rest |= {"callbacks": {"A": {"b": 1}}, "lr_schedulers": [schedule.state_dict()]}
    if form in ("lightning", "torch.save"):
        path = folder / "last.ckpt"
        whole = {"state_dict": weights, "optimizer_states": [optimizer.state_dict()]}
        script = {"model": weights, "optimizer": optimizer.state_dict(), "step": 1}
        torch.save(whole | rest if form == "lightning" else script, path)
        return path
    path = folder / ("checkpoint-1" if form == "transformers" else "saved")
    if form.startswith("stage"):
        path.mkdir()
        from safetensors.torch import save_file

        torch.save(optimizer.state_dict(), path / "optimizer.pt")
        save_file(weights, path / "model.safetensors")
        zero_parts.divide(path, [names], int(form[-1]), 2)
        for file in path.glob("global_step6/*_model_states.pt"):
            found = torch.load(file, weights_only=True)
            torch.save(found | {"global_steps": 1}, file)
        return path
    if form == "transformers":
        path.mkdir()
        from safetensors.torch import save_file

        save_file(weights, path / "model.safetensors")
        torch.save(optimizer.state_dict(), path / "optimizer.pt")
        torch.save(schedule.state_dict(), path / "scheduler.pt")
        logs = [{"epoch": 0.5, "loss": 1.0, "step": 1}]
        known = {"global_step": 1, "epoch": 0.5, "max_steps": 4, "log_history": logs, "stateful_callbacks": {}}
        (path / "trainer_state.json").write_text(json.dumps(known | {"best_metric": None, "train_batch_size": 8}))
        return path
    if form == "fsdp":
        dcp.save({"model": weights}, checkpoint_id=path / "pytorch_model_fsdp_0", no_dist=True)
        dcp.save({"optimizer": state}, checkpoint_id=path / "optimizer_0", no_dist=True)
        torch.save(schedule.state_dict(), path / "scheduler.bin")
        return path
    key = "optimizer_0" if form == "lightning-folder" else "optimizer"
    tree = {"state_dict" if form == "lightning-folder" else "model": weights, key: state}
    dcp.save(tree | ({} if key == "optimizer_0" else {"step": 1}), checkpoint_id=path, no_dist=True)
    if form == "lightning-folder":
        torch.save(rest, path / "meta.pt")
    return path


# -- changes


def change(path, draw):
    """Change a copy of a checkpoint; what was done, in words."""
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    file = draw.choice(files)
    kind = draw.choice(("bytes", "cut", "pickle", "pickle", "pickle", "record", "gone", "other"))
    data = file.read_bytes()
    if kind == "gone" and path.is_dir():
        file.unlink()
    elif kind == "other" and path.is_dir():
        shutil.copy(draw.choice(files), file.with_suffix(".copy"))
        file.with_suffix(".copy").replace(file)
    elif kind == "cut":
        file.write_bytes(data[: draw.randrange(len(data))])
    elif kind in ("pickle", "record") and data[:2] == b"PK" and file.suffix != ".distcp":
        file.write_bytes(_archive(data, kind, draw))
    elif kind == "pickle" and file.name == ".metadata":
        file.write_bytes(_pickle(data, draw))
    else:
        file.write_bytes(_scattered(data, draw))
    return f"{kind} of {file.name}"


def _scattered(data, draw):
    data = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
    return bytes(data)


def _archive(data, kind, draw):
    """With checksums that are right."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w") as changed:
        names = source.namelist()
        dropped = draw.choice(names) if kind == "record" else None
        for name in names:
            content = source.read(name)
            if name.endswith("data.pkl") and kind == "pickle":
                content = _pickle(content, draw)
            if name == dropped:
                if draw.random() < 0.3:
                    continue
                content = content[: draw.randrange(len(content) + 1)]
            method = zipfile.ZIP_DEFLATED if name == dropped and draw.random() < 0.3 else zipfile.ZIP_STORED
            changed.writestr(name, content, method)
    return target.getvalue()


_INTEGERS = {pickle.BININT1: 1, pickle.BININT2: 2, pickle.BININT: 4}
_PIECES = (
    *(b"N", b"}", b"]", b")", b"\x88", b"K\x00", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7),
    *(b"0", b"1", b"(", b"t", b"R", b"Q", b"h\x00", b"\x85", b"\x86", b"s", b"u", b"a", b"e", b"b", b"\x81", b"q\x00"),
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"X\x01\x00\x00\x00x",
    b"G" + struct.pack(">d", float("inf")),
    b"G" + struct.pack(">d", float("nan")),
)


def _pickle(data, draw):
    """Other numbers, other instructions, strings that differ, parts twice or not at all."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(2, len(data))
        kind = draw.choice(("integer", "piece", "twice", "gone", "byte", "string"))
        if kind == "integer":
            places = [i for i in range(at, min(at + 400, len(data) - 5)) if bytes(data[i : i + 1]) in _INTEGERS]
            for i in places[:1]:
                width = _INTEGERS[bytes(data[i : i + 1])]
                data[i + 1 : i + 1 + width] = draw.choice((b"\xff", b"\x7f", b"\x00", b"\x01")) * width
        elif kind == "piece":
            data[at:at] = draw.choice(_PIECES)
        elif kind == "twice":
            end = at + draw.randint(1, 60)
            data[at:at] = data[at:end] * draw.randint(1, 50)
        elif kind == "gone":
            del data[at : at + draw.randint(1, 40)]
        elif kind == "string":
            place = data.find(b"X", at)
            if 0 <= place < len(data) - 6:
                data[place + 5 : place + 6] = b"/"
        else:
            data[at] = draw.randrange(256)
    return bytes(data)


def copied(path, folder):
    target = Path(folder) / path.name
    if target.is_dir():
        shutil.rmtree(target)
    return Path(shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target))


def draws(seed):
    return random.Random(seed)
