"""The way out: a checkpoint as another program resumes from it, with optimizer, schedule and step.

`transformers`: a directory of transformers' Trainer. `dcp`: a folder of torch.distributed.checkpoint with the weights
under "model" and the optimizer, by the names of parameters, under "optimizer", as get_optimizer_state_dict has it.
"""

import re
import shutil
import uuid
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from ..checkpoint import store
from ..checkpoint.reader import Checkpoint
from ..checkpoint.run_state import RANDOM, RunState
from ..errors import ArgumentError, CheckpointError
from ..formats import safetensors_io
from ..formats.durable import sync_tree
from ..formats.safetensors_io import Raw
from ..formats.structure import ARGUMENTS, INDEX, MANIFEST, RUN, WEIGHTS, tied_names

FORMATS = ("transformers", "dcp")
# Optimizers whose state is tensors and numbers for each parameter, under the names of torch's classes.
_PLAIN = ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "Adafactor")
_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_OWN = re.compile(
    rf"{MANIFEST}|{RUN}|{RANDOM}|{ARGUMENTS}|optimizer.*\.safetensors(\.index\.json)?|average\.safetensors|"
    r"adapter_rest\.safetensors"
)
_UNDECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")  # by transformers' Trainer


@dataclass
class Exported:
    """Where it is, and what it has and has not."""

    path: Path
    step: int
    kept: list[str]
    left: list[str] = field(default_factory=list)


def export(directory: Path, to: str, output: Path | None = None) -> Exported:
    """Write a checkpoint, or the newest complete one of a run, for another program."""
    checkpoint = _chosen(directory)
    target = output or checkpoint.path.with_name(f"{checkpoint.path.resolve().name}.{to}")
    if target.exists():
        raise ArgumentError(f"{target} exists. Remove it, or name another place with --output.")
    run = checkpoint.complete_run()
    if run.framework != "torch":
        raise CheckpointError(
            f"{checkpoint.path} is a checkpoint of {run.framework}, and {to} reads states of PyTorch. Resume from it "
            "with the model in PyTorch for one step, and export the checkpoint of that step."
        )
    if find_spec("torch") is None:
        raise CheckpointError("export writes files of PyTorch, which is not installed. Install it: pip install torch")
    state = _State(checkpoint, run)
    stage = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    stage.mkdir(parents=True)
    try:
        found = (_as_transformers if to == "transformers" else _as_dcp)(state, stage)
        sync_tree(stage)
        stage.rename(target)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    return Exported(target, checkpoint.manifest["step"], found[0], found[1] + state.left)


def _chosen(directory: Path) -> Checkpoint:
    """The checkpoint that is meant, which has to be whole."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory. Pass the output_dir of a run, or a checkpoint in it.")
    path = directory
    if store.read_manifest(directory) is None:
        if store.is_external(directory):
            raise CheckpointError(
                f"{directory} was written by another trainer; only checkpoints of oneloop are exported"
            )
        newest = next((c for c in store.newest_first(directory) if c.run_id and not c.open().problems()), None)
        if newest is None:
            raise CheckpointError(f"{directory} has no complete checkpoint of oneloop")
        path = newest.path
    checkpoint = Checkpoint(path)
    wrong = checkpoint.problems()
    if wrong:
        raise CheckpointError(f"the checkpoint {path} is incomplete or corrupt: {'; '.join(wrong)}")
    return checkpoint


class _State:
    """What both formats have, read from the files."""

    def __init__(self, checkpoint: Checkpoint, run: RunState) -> None:
        from ..backends.torch import torch_files  # torch takes a second

        self.checkpoint, self.run, self.files = checkpoint, run, torch_files
        self.is_adapter = checkpoint.has("adapter_model.safetensors")
        self.left = [words for name, words in _LEFT.items() if run.parts.get(name)]
        if checkpoint.has("average.safetensors"):
            self.left.append("the averaged weights")
        self.states, self.groups = self._optimizer()

    def read(self, kind: str) -> dict[str, Raw]:
        return {n: r for file in self.checkpoint.tensor_files(kind) for n, r in safetensors_io.read(file).items()}

    def _optimizer(self) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
        """The state of each parameter, and the groups with `names` and options."""
        data, path = self.run.optimizer, self.checkpoint.path
        if not data:
            raise CheckpointError(
                f"{path} has no optimizer state of oneloop's: an override of _save_optimizer_and_scheduler stored it"
            )
        tensors = self.read("optimizer")
        values = data.get("values", {})
        odd = next((key for key in tensors if "/" in key.rpartition(":")[2]), None)
        odd = odd or next((f"{n}:{k}" for n, v in values.items() for k in v if isinstance(v[k], dict)), None)
        if data["class"] not in _PLAIN or odd:
            raise CheckpointError(
                f"{path} has the state of {data['class']}, which is exported only for {', '.join(_PLAIN)}, whose state "
                "is one tensor or number for each name. The weights can be used as they are: the directory opens with "
                "from_pretrained, if the model has it."
            )
        states: dict[str, dict[str, Any]] = {name: dict(own) for name, own in values.items()}
        for key, raw in tensors.items():
            name, _, part = key.rpartition(":")
            states.setdefault(name, {})[part] = self.files.tensor(raw)
        nameless = [n for group in data["groups"] for n in group["names"] if re.fullmatch(r"parameter\.\d+", n)]
        if nameless:
            raise CheckpointError(
                f"{path} has an optimizer with {len(nameless)} parameters that the model does not have"
            )
        return states, [self._group(group, i) for i, group in enumerate(data["groups"])]

    def _group(self, group: dict[str, Any], i: int) -> dict[str, Any]:
        unsaved = [key for key, value in group.items() if isinstance(value, dict) and "unsaved" in value]
        found = {key: self.files.option(value) for key, value in group.items() if key not in (*unsaved, "names")}
        rates = (self.run.scheduler or {}).get("base_lrs")
        if isinstance(rates, list) and i < len(rates):
            found.setdefault("initial_lr", rates[i])
        return found | {"names": group["names"]}

    def scheduler(self) -> dict[str, Any] | None:
        """As torch's LambdaLR, which transformers' schedules are, stores it; None for a schedule of another kind."""
        stored = self.run.scheduler or {}
        if not isinstance(stored.get("last_epoch"), int) or not isinstance(stored.get("base_lrs"), list):
            return None
        rates = [group.get("lr") for group in self.groups]
        return {
            "base_lrs": list(stored["base_lrs"]),
            "last_epoch": stored["last_epoch"],
            "_step_count": stored["last_epoch"] + 1,
            "_is_initial": False,
            "_get_lr_called_within_step": False,
            "_last_lr": rates,
            "lr_lambdas": [None] * len(rates),
        }

    def weights(self) -> dict[str, Any]:
        """Under all of their names: tied ones are stored once."""
        files = self.checkpoint.tensor_files("model")
        found = {name: self.files.tensor(raw) for name, raw in self.read("model").items()}
        tied = tied_names(files[0]) if files else {}
        return found | {name: found[first] for name, first in tied.items() if first in found}


# Keys of run.json of parts that other programs do not have.
_LEFT = {"spikes": "the record of loss spikes", "cooldown": "the cooldown of the schedule"}


# -- a directory of transformers' Trainer


def _as_transformers(state: _State, stage: Path) -> tuple[list[str], list[str]]:
    checkpoint, files = state.checkpoint, state.files
    schedule = state.scheduler()
    if schedule is None:
        raise CheckpointError(
            f"{checkpoint.path} has a schedule that follows a metric, or is the script's own, and transformers reads "
            "an optimizer only with a schedule. Export it with --to dcp."
        )
    if not state.is_adapter and not (checkpoint.has(WEIGHTS) or checkpoint.has(INDEX)):
        raise CheckpointError(f"{checkpoint.path} has no {WEIGHTS}: an override of save_model stored the model")
    for name in checkpoint.manifest["files"]:
        if not _OWN.fullmatch(name):
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint.path / name, stage / name)
    groups, left = _groups_of_transformers(state)
    number = {name: i for i, name in enumerate(n for group in groups for n in group["names"])}
    stored = {
        "state": {number[name]: own for name, own in state.states.items() if name in number},
        "param_groups": [
            {key: value for key, value in group.items() if key != "names"}
            | {"params": [number[n] for n in group["names"]], "param_names": list(group["names"])}
            for group in groups
        ],
    }
    files.save(stored, stage / "optimizer.pt")
    files.save(schedule | {"_last_lr": [group.get("lr") for group in groups]}, stage / "scheduler.pt")
    kept = ["weights", f"state of {state.run.optimizer['class']}", "schedule", "step and log history"]
    scaler = state.run.engine.get("scaler")
    if scaler:
        files.save({key: scaler[key] for key in _SCALER if key in scaler}, stage / "scaler.pt")
        kept.append("loss scale")
    processes = state.run.processes
    for rank, streams in _random_states(state):
        name = "rng_state.pth" if processes == 1 else f"rng_state_{rank}.pth"
        files.save(files.random_state(streams), stage / name)
    kept.append(f"random states of {processes} process(es)")
    if checkpoint.has("adapter_rest.safetensors"):
        left.append("what training changed beside the adapter (adapter_rest.safetensors)")
    left.append("training_args.bin: use the arguments of this run there")
    left.append('the order of the data, unless this run had data_order="transformers"')
    return kept, left


def _random_states(state: _State) -> list[tuple[int, dict[str, Any]]]:
    """By process; those of process 0 have no prefix."""
    every = {name: raw.array() for name, raw in safetensors_io.read(state.checkpoint.path / RANDOM).items()}
    found = []
    for rank in range(state.run.processes):
        prefix = f"rank{rank}/" if rank else ""
        own = {n.removeprefix(prefix): v for n, v in every.items() if n.startswith(prefix)}
        if {"python", "numpy", "python.gauss", "numpy.rest", "torch.cpu"} <= set(own):
            found.append((rank, {name: value for name, value in own.items() if "/" not in name}))
    return found


def _groups_of_transformers(state: _State) -> tuple[list[dict[str, Any]], list[str]]:
    """Its Trainer has two groups, with and without weight decay, by a rule of its own; groups that a script made are
    left as they are."""
    groups = state.groups
    if len(groups) != 2 or groups[1].get("weight_decay") or any("bias" in name for name in groups[0]["names"]):
        return groups, []
    still, every = set(groups[1]["names"]), {n for group in groups for n in group["names"]}
    # A norm that its rule does not know by name is without decay there if it is torch's LayerNorm. Norms with running
    # means are none.
    by_name = {n for n in every if any(re.search(pattern, n.lower()) for pattern in _UNDECAYED)}
    of_class = {n for n in still - by_name if f"{n.rpartition('.')[0]}.running_mean" not in (state.run.layout or {})}
    if by_name | of_class == still:
        return groups, []
    order, decayed = _order_of_transformers(state, every)
    found = [
        groups[0] | {"names": [n for n in order if n in decayed]},
        groups[1] | {"names": [n for n in order if n not in decayed]},
    ]
    moved = sorted(set(found[1]["names"]) ^ still)
    return found, [f"the weight decay of {', '.join(moved[:5])}: transformers has another rule"] if moved else []


def _order_of_transformers(state: _State, trained: set[str]) -> tuple[list[str], set[str]]:
    """The parameters in the order of the model, and those with weight decay, by the release that is installed."""
    path = state.checkpoint.path
    try:
        import transformers

        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        model = state.files.without_memory(lambda: getattr(transformers, config.architectures[0])(config))
        order = [name for name, _ in model.named_parameters() if name in trained]
        if set(order) == trained:
            return order, set(transformers.Trainer.get_decay_parameter_names(cast(Any, None), model))
        reason = f"the model of {path / 'config.json'} has other parameters"
    except Exception as error:  # of a library that builds a model from a file
        reason = f"{type(error).__name__}: {str(error)[:200]}"
    raise CheckpointError(
        f"{path}: transformers' Trainer would divide the parameters into other groups than this run, and the model, "
        f"whose order it takes, cannot be built ({reason}). Export with --to dcp, which has names."
    )


# -- a folder of torch.distributed.checkpoint


def _as_dcp(state: _State, stage: Path) -> tuple[list[str], list[str]]:
    if state.is_adapter:
        raise CheckpointError(
            f"{state.checkpoint.path} has an adapter without the weights under it. Export it with --to transformers."
        )
    groups = [
        {key: value for key, value in group.items() if key != "names"} | {"params": list(group["names"])}
        for group in state.groups
    ]
    step = state.checkpoint.manifest["step"]
    tree: dict[str, Any] = {
        "model": state.weights(),
        "optimizer": {"state": state.states, "param_groups": groups},
        "step": step,
    }
    kept = ["weights (model)", f"state of {state.run.optimizer['class']} (optimizer)", "step"]
    schedule = state.scheduler()
    if schedule is not None:
        tree["lr_scheduler"] = schedule
        kept.append("schedule (lr_scheduler)")
    state.files.save_parts(tree, stage)
    left = [] if schedule is not None else ["the schedule, which is not a function of the step"]
    return kept, [*left, "random states", "log history", "the position in the data, which is that of the step"]


def check_format(to: Any) -> str:
    if to not in FORMATS:
        raise ArgumentError(f"export needs --to {' or --to '.join(FORMATS)}")
    return to
