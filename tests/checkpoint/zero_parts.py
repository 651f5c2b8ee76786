"""Divides a checkpoint of transformers' Trainer as DeepSpeed does at ZeRO stages 1 to 3, without the package.

The files have what those of DeepSpeed 0.19 have; scripts/takeover compares with the real writer.
"""

import contextlib
import enum
import functools
import sys
import types
from collections import OrderedDict

import torch
from safetensors.torch import load_file

SCALER = {"cur_scale": 1024.0, "cur_iter": 6, "last_overflow_iter": 2, "scale_factor": 2.0, "scale_window": 3}


class ZeroStageEnum(int, enum.Enum):
    optimizer_states, gradients, weights = 1, 2, 3


class DynamicLossScaler:
    def __init__(self):
        self.dynamic = True
        vars(self).update(SCALER)


class fragment_address:
    def __init__(self, numel, start):
        self.numel, self.start = numel, start


PLACES = {
    "deepspeed.runtime.zero.config": ZeroStageEnum,
    "deepspeed.runtime.fp16.loss_scaler": DynamicLossScaler,
    "deepspeed.utils.tensor_fragment": fragment_address,
}


@contextlib.contextmanager
def package():
    """The classes are where the files of DeepSpeed say that they are, while they are written."""
    parents = {".".join(name.split(".")[:n]) for name in PLACES for n in range(1, name.count(".") + 2)}
    before = {name: sys.modules.get(name) for name in parents}
    modules = {cls: cls.__module__ for cls in PLACES.values()}
    for name in parents:
        sys.modules[name] = types.ModuleType(name)
    for name, cls in PLACES.items():
        setattr(sys.modules[name], cls.__name__, cls)
        cls.__module__ = name
    try:
        yield
    finally:
        for cls, name in modules.items():
            cls.__module__ = name
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def divide(path, groups, stage, processes, frozen=(), scaler=False, subgroups=2):
    """Replace optimizer.pt and the weights of a checkpoint by parts. `groups`: the names in each group."""
    stored = torch.load(path / "optimizer.pt", weights_only=True)
    weights = load_file(path / "model.safetensors")
    numbers = {
        name: n for names, group in zip(groups, stored["param_groups"]) for name, n in zip(names, group["params"])
    }
    state = {name: stored["state"][n] for name, n in numbers.items()}
    options = [{k: v for k, v in group.items() if k != "params"} for group in stored["param_groups"]]
    flats = [names for names in groups if names]
    owner = [i for i, names in enumerate(groups) if names]
    if stage == 3:
        cut = [(i, names[k::subgroups]) for i, names in enumerate(groups) for k in range(subgroups)]
        flats, owner = [names for _, names in cut if names], [i for i, names in cut if names]
    shapes = [OrderedDict((name, weights[name].shape) for name in names) for names in flats]
    target = path / "global_step6"
    target.mkdir()
    (path / "latest").write_text(target.name)
    for rank in range(processes):
        part = functools.partial(_part, stage=stage, processes=processes, rank=rank)
        inner = {
            "state": {
                i: {"step": state[names[0]]["step"]}
                | {key: part([state[n][key] for n in names])[0] for key in ("exp_avg", "exp_avg_sq")}
                for i, names in enumerate(flats)
            },
            "param_groups": [
                each | {"params": [k for k, i in enumerate(owner) if i == g]} for g, each in enumerate(options)
            ],
        }
        exact = [part([weights[n] for n in names]) for names in flats]
        own = {
            "loss_scaler": DynamicLossScaler() if scaler else None,
            "zero_stage": ZeroStageEnum(stage),
            "partition_count": processes if stage == 3 else [processes] * len(flats),
            "param_slice_mappings": [OrderedDict((n, fragment_address(3, 0)) for n in names) for names in flats],
        }
        if stage == 3:
            # With attributes of their own, as DeepSpeed has them.
            tensors = [torch.nn.Parameter(value) if rank else value.requires_grad_() for value, _ in exact]
            for tensor in tensors:
                tensor.ds_id = "0"
            own |= {"optimizer_state_dict": inner, "fp32_flat_groups": tensors}
        else:
            own |= {"base_optimizer_state": inner}
            own |= {"single_partition_of_fp32_groups": [value[: len(value) - pad].clone() for value, pad in exact]}
            own |= {"param_alignment_paddings": [[0] * len(names) for names in flats]}
        half = {name: value.bfloat16() for name, value in weights.items() if name in numbers}
        module = {n: half.get(n, v) for n, v in weights.items()}
        empty = {n: torch.empty(0) for n in (*numbers, *frozen)}
        whole = {
            "module": OrderedDict(module | empty if stage == 3 else module),
            "buffer_names": [n for n in weights if n not in numbers and n not in frozen],
            "param_shapes": shapes,
            "frozen_param_shapes": OrderedDict((n, weights[n].shape) for n in frozen),
            "frozen_param_fragments": OrderedDict(
                (n, part([weights[n]])[0] if stage == 3 else weights[n]) for n in frozen
            ),
            "shared_params": {},
            "lr_scheduler": None,
            "ds_version": "0.19.8",
            "ds_config": {"zero_optimization": {"stage": stage}},
        }
        with package():
            torch.save({"optimizer_state_dict": own}, target / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
            if stage == 3:
                torch.save(whole, target / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
            elif rank == 0:
                torch.save(whole, target / "mp_rank_00_model_states.pt")
    (path / "optimizer.pt").unlink()
    (path / "model.safetensors").unlink()


def _part(tensors, stage, processes, rank):
    """What a process has of these, as one flat tensor; and how many of its elements are padding at the end."""
    if stage == 3:
        return torch.cat([_chunk(value.flatten(), processes, rank, 1)[0] for value in tensors]), 0
    return _chunk(torch.cat([value.flatten() for value in tensors]), processes, rank, 2)


def _chunk(flat, processes, rank, align):
    size = -(-len(flat) // (processes * align)) * align
    padded = torch.cat([flat, torch.zeros(size * processes - len(flat), dtype=flat.dtype)])
    return padded[rank * size : (rank + 1) * size].clone(), min(size, max(0, (rank + 1) * size - len(flat)))
