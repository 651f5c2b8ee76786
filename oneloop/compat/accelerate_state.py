"""The state objects of accelerate, where it is installed: libraries on top of transformers read them by themselves.

transformers' TrainingArguments initialise `PartialState`, and its Trainer `AcceleratorState`. Here they are initialised
at the same moments, if some code has imported accelerate by then. They describe the run; nothing in oneloop depends on
them. Without accelerate, and on other frameworks than PyTorch, `ProcessState` has the names that are asked for.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any

from ..arguments.packages import installed
from ..backends import loading
from ..distributed.world import world
from ..errors import ArgumentError
from . import mode

_FRAMEWORK = "torch"  # accelerate's


def is_imported() -> bool:
    """Whether code of this process can have asked accelerate for its state."""
    return "accelerate.state" in sys.modules


def _is_for(args: Any) -> bool:
    """Whether accelerate can describe a run with these arguments: it knows PyTorch alone."""
    if importlib.util.find_spec("accelerate") is None:
        return False
    launcher = world().launcher
    return (args.__dict__.get("_backend") or launcher or loading.guess()) == _FRAMEWORK


def initialise_processes(args: Any) -> None:
    """Initialise PartialState in a script of transformers that uses accelerate; called when arguments have been made.
    On several processes this makes their group, which other scripts get when they ask for it."""
    if world().size > 1 and (args.fsdp_config or {}).get("cpu_ram_efficient_loading"):
        args.processes.rank  # noqa: B018 (from_pretrained leaves out weights in other processes only if it finds a group)
    if not mode.emulates("transformers"):
        return
    if args.accelerator_config.use_configured_state and not _is_configured():
        raise ArgumentError(
            "accelerator_config has use_configured_state=True, but there is no PartialState or AcceleratorState of "
            "accelerate yet. Create it (or an Accelerator) before the TrainingArguments."
        )
    if is_imported() and _is_for(args):
        partial_state(args)


def divide_loaded_models(args: Any) -> None:
    """With ZeRO 3, have from_pretrained of transformers create models under deepspeed.zero.Init for as long as the
    arguments live, unless zero3_init_flag of accelerate's file is false; called when arguments have been made."""
    wanted = os.environ.get("ACCELERATE_DEEPSPEED_ZERO3_INIT", "true").strip().lower() != "false"
    if not args.deepspeed or not wanted or world().size == 1 or "transformers" not in sys.modules:
        return
    if not installed("deepspeed") or not _is_for(args):
        return
    from ..backends.torch import zero, zero_config  # of torch, which may not be in use

    config = zero_config.filled(zero_config.read(args.deepspeed), args)
    if config.get("zero_optimization", {}).get("stage") != 3:
        return
    from transformers.integrations import HfDeepSpeedConfig

    args.processes.rank  # noqa: B018 (the group, which DeepSpeed takes over)
    zero.package(args).init_distributed(auto_mpi_discovery=False)
    args.__dict__["_zero3"] = HfDeepSpeedConfig(zero_config.finished(config, None))  # transformers has a weak reference


def _is_configured() -> bool:
    """Whether some code has initialised accelerate's state."""
    return is_imported() and bool(sys.modules["accelerate.state"].PartialState._shared_state)


def partial_state(args: Any) -> Any:
    """accelerate's PartialState of this process, initialised; None where accelerate cannot be used."""
    if not _is_for(args):
        return None
    from accelerate.state import PartialState

    uses_cpu = bool(args.use_cpu)
    if world().size > 1:
        args.processes.rank  # noqa: B018 (the group is made here with oneloop's options; accelerate takes it over)
        # accelerate takes processes without an accelerator for independent ones, unless it is told to use the CPU.
        uses_cpu = args.device.type == "cpu"
    if PartialState._shared_state:
        held = PartialState()
        if (uses_cpu and held.device.type != "cpu") or held.num_processes != world().size:
            PartialState._reset_state()  # it was made for another device, or before the processes were known
    return PartialState(cpu=uses_cpu)


def accelerator_state(args: Any) -> Any:
    """accelerate's AcceleratorState for these arguments, initialised, or a ProcessState."""
    if not _is_for(args):
        return ProcessState.of(args)
    from accelerate.state import AcceleratorState

    from . import accelerate_plugins as plugins  # for several processes, with accelerate

    made, wanted = AcceleratorState._shared_state, plugins.plugin_of(args)
    if made and plugins.plugin_in_state(made) is not wanted:  # a later Trainer may use another engine
        AcceleratorState._reset_state(reset_partial_state=True)
    processes = partial_state(args)
    # Or another precision, which an initialised state does not accept. With DeepSpeed it is in the plugin.
    precision = made.get("_mixed_precision") if args.deepspeed else args.mixed_precision
    if made and (made["_mixed_precision"], made["device"]) != (precision, processes.device):
        AcceleratorState._reset_state()
    from accelerate.utils import TorchDynamoPlugin

    engine = plugins.engine_of(args)
    state = AcceleratorState(
        mixed_precision=args.mixed_precision,
        dynamo_plugin=TorchDynamoPlugin(),
        cpu=processes.device.type == "cpu",
        parallelism_config=args.parallelism_config,
        deepspeed_plugin=wanted if engine == plugins.DEEPSPEED else None,
        fsdp_plugin=wanted if engine == plugins.FSDP else None,
        _from_accelerator=True,
    )
    plugins.add_plugin(state, args)
    return state


@dataclass(frozen=True)
class ProcessState:
    """What libraries read of accelerate's state, without accelerate."""

    device: Any
    distributed_type: str
    num_processes: int
    process_index: int
    local_process_index: int
    mixed_precision: str
    deepspeed_plugin: Any = None
    fsdp_plugin: Any = None

    @classmethod
    def of(cls, args: Any) -> "ProcessState":
        here = world()
        kind = "NO" if here.size == 1 else "MULTI_GPU" if args.n_gpu else "MULTI_CPU"
        return cls(args.device, kind, here.size, here.rank, here.local_rank, args.mixed_precision)

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0


@dataclass
class OwnGradientState:
    """What scripts read of accelerate's GradientState, without accelerate. It is of one Trainer, the other of a
    process."""

    plugin_kwargs: dict[str, Any]
    sync_gradients: bool = True
    in_dataloader: bool = False
    end_of_dataloader: bool = False
    remainder: int = -1

    @property
    def num_steps(self) -> int:
        return self.plugin_kwargs.get("num_steps", 1)

    @property
    def adjust_scheduler(self) -> bool:
        return self.plugin_kwargs.get("adjust_scheduler", False)

    @property
    def sync_with_dataloader(self) -> bool:
        return self.plugin_kwargs.get("sync_with_dataloader", True)


def gradient_state(args: Any) -> Any:
    """accelerate's GradientState with the options of accelerator_config, or the same names."""
    # The Trainer accumulates, so accelerate has one micro-batch a step, as with transformers.
    options = {**(args.accelerator_config.gradient_accumulation_kwargs or {}), "num_steps": 1}
    if not is_imported():
        return OwnGradientState(options)
    from accelerate.state import GradientState
    from accelerate.utils import GradientAccumulationPlugin

    return GradientState(GradientAccumulationPlugin(**options))


def hf_deepspeed_config(args: Any) -> Any:
    """accelerate's view of the DeepSpeed configuration; None without one."""
    if not args.deepspeed or not _is_for(args):
        return None
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    return HfDeepSpeedConfig(args.deepspeed)


def deepspeed_plugin(args: Any) -> Any:
    """accelerate's plugin for the DeepSpeed configuration; None without one."""
    config = args.hf_deepspeed_config
    if config is None:
        return None
    from accelerate.utils import DeepSpeedPlugin

    return DeepSpeedPlugin(hf_ds_config=config)
