"""Each service in its local or offline mode: where it writes, and how to read that back."""

import csv
import json
import sqlite3
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Found:
    """What a service has: {curve: [(step, value), ...]} in the order of writing, and the ids of its runs."""

    curves: dict[str, list[tuple[int, float]]]
    runs: list[str]
    text: str = ""  # parameters, as the service keeps them


def _curves(points):
    found: dict[str, list] = {}
    for name, step, value in points:
        found.setdefault(name, []).append((int(step), float(value)))
    return found


def wandb(folder: Path) -> Found:
    from oneloop.integrations.writers.wandb import _rows

    points, runs, text = [], set(), ""
    for path in sorted((folder / "wandb").rglob("offline-run-*/*.wandb")):
        runs.add(path.stem)
        text += path.read_bytes().decode(errors="replace")
        for row in _rows(path):
            points += [(name, row["train/global_step"], value) for name, value in row.items() if "/" in name]
    return Found(_curves(p for p in points if p[0] != "train/global_step"), sorted(runs), text)


def mlflow(folder: Path) -> Found:
    with sqlite3.connect(folder / "mlflow.db") as base:
        points = base.execute("select key, step, value from metrics order by timestamp, step").fetchall()
        runs = [row[0] for row in base.execute("select run_uuid from runs")]
        text = str(base.execute("select key, value from params").fetchall())
    return Found(_curves(points), runs, text)


def comet_ml(folder: Path) -> Found:
    points, runs, text = [], set(), ""
    for path in sorted((folder / "comet").glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            runs.add(json.loads(archive.read("experiment.json"))["offline_id"])
            lines = archive.read("messages.json").decode().splitlines()
        text += "\n".join(lines)
        for metric in (json.loads(line)["payload"].get("metric") for line in lines):
            if metric and metric["metricName"].split("/")[0] in ("train", "eval", "test"):
                points.append((metric["metricName"], metric["step"], metric["metricValue"]))
    return Found(_curves(points), sorted(runs), text)


def clearml(folder: Path) -> Found:
    points, runs, text = [], [], ""
    for path in sorted((folder / "clearml" / "offline").glob("*/metrics.jsonl")):
        runs.append(path.parent.name)
        text += (path.parent / "task.json").read_text()
        for event in (event for line in path.read_text().splitlines() for event in json.loads(line)):
            if event.get("metric") in ("train", "eval", "test"):
                points.append((f"{event['metric']}/{event['variant']}", event["iter"], event["value"]))
    return Found(_curves(points), runs, text)


def neptune(folder: Path) -> Found:
    """The newest of its folders: offline, a run that goes on is a new one that has all of the history."""
    points, text = [], ""
    every = sorted((folder / "cwd" / ".neptune" / "offline").glob("run__*"), key=lambda path: path.stat().st_mtime)
    decoder = json.JSONDecoder()
    for path in sorted(every[-1].glob("data-*.log")):
        rest = path.read_text()
        text += rest
        while rest.strip():
            entry, end = decoder.raw_decode(rest.lstrip())
            rest = rest.lstrip()[end:]
            place = entry["obj"]["path"]
            if entry["obj"]["type"] == "LogFloats" and place[0] == "finetuning":
                points += [("/".join(place[1:]), v["step"], v["value"]) for v in entry["obj"]["values"]]
    return Found(_curves(points), [every[-1].name.split("__")[1]], text)


def swanlab(folder: Path) -> Found:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    from oneloop.integrations.writers.offline_files import records

    points, runs, text = [], set(), ""
    for path in sorted((folder / "swanlab").glob("run-*/*.swanlab")):
        runs.add(path.stem)
        text += (path.parent / "files" / "config.yaml").read_text()
        for record in map(Record.FromString, records(path)):
            if record.HasField("scalar"):
                points.append((record.scalar.key, record.scalar.step, record.scalar.value.number))
    own = [point for point in points if point[0].split("/")[0] in ("train", "eval", "test")]
    return Found(_curves(own), sorted(runs), text)


def trackio(folder: Path) -> Found:
    with sqlite3.connect(folder / "trackio" / "the-project.db") as base:
        rows = base.execute("select run_name, step, metrics from metrics order by id").fetchall()
        text = str(base.execute("select config from configs").fetchall())
    points = [(name, step, value) for _, step, data in rows for name, value in json.loads(data).items()]
    return Found(_curves(points), sorted({row[0] for row in rows}), text)


def dvclive(folder: Path) -> Found:
    live, points = folder / "cwd" / "dvclive", []
    for path in sorted((live / "plots" / "metrics").rglob("*.tsv")):
        name = path.relative_to(live / "plots" / "metrics").with_suffix("").as_posix()
        with open(path, newline="") as f:
            points += [(name, row["step"], row[path.stem]) for row in csv.DictReader(f, delimiter="\t")]
    return Found(_curves(points), ["dvclive"], (live / "params.yaml").read_text())


@dataclass
class Service:
    module: str
    read: Any
    environment: dict[str, str]  # FOLDER stands for the test's
    bare: bool = False  # curves have the names that they were logged by


SERVICES = {
    "wandb": Service("wandb", wandb, {"WANDB_MODE": "offline", "WANDB_DIR": "FOLDER/wandb"}),
    "mlflow": Service("mlflow", mlflow, {"MLFLOW_TRACKING_URI": "sqlite:///FOLDER/mlflow.db"}, bare=True),
    "comet_ml": Service(
        "comet_ml",
        comet_ml,
        {"COMET_START_ONLINE": "0", "COMET_OFFLINE_DIRECTORY": "FOLDER/comet", "COMET_AUTO_LOG_CO2": "false"},
    ),
    "clearml": Service("clearml", clearml, {"CLEARML_OFFLINE_MODE": "1", "CLEARML_CACHE_DIR": "FOLDER/clearml"}),
    "neptune": Service("neptune", neptune, {"NEPTUNE_MODE": "offline"}),
    "swanlab": Service("swanlab", swanlab, {"SWANLAB_MODE": "offline", "SWANLAB_LOG_DIR": "FOLDER/swanlab"}),
    "trackio": Service("trackio", trackio, {"TRACKIO_DIR": "FOLDER/trackio"}),
    "dvclive": Service("dvclive", dvclive, {}),
}
