"""accelerate's plugins for DeepSpeed and FSDP. Libraries read them to prepare models that the Trainer does not know,
such as the reference model of DPO, like the model that is trained."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from ..arguments.sharding import divides, reshards
from ..distributed.world import world

DEEPSPEED, FSDP = "DEEPSPEED", "FSDP"  # accelerate's names
_OF_LAUNCHER = ("ACCELERATE_DEEPSPEED_", "ACCELERATE_GRADIENT_", "ACCELERATE_CONFIG_DS_FIELDS")


def engine_of(args: Any) -> str | None:
    """What shards a model of PyTorch over processes, by accelerate's name; None without such an engine."""
    if world().size == 1:
        return None
    if args.deepspeed:
        return DEEPSPEED
    return FSDP if divides(args) else None


def add_plugin(state: Any, args: Any) -> None:
    """Let accelerate's AcceleratorState describe the engine on a CPU too, where accelerate leaves plugins out."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    engine = engine_of(args)
    if engine is None or plugin_in_state(state.__dict__) is plugin_of(args):
        return
    # AcceleratorState() copies it from there each time.
    state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType(engine)
    if engine == DEEPSPEED:
        state.deepspeed_plugins = plugin_of(args)
        state.deepspeed_plugins.select(_from_accelerator_state=True)
    else:
        state.fsdp_plugin = plugin_of(args)


def plugin_in_state(values: dict[str, Any]) -> Any:
    """The plugin in the shared state of accelerate; None without one."""
    return values.get("deepspeed_plugins") or values.get("fsdp_plugin")


def plugin_of(args: Any) -> Any:
    """The plugin for these arguments; None without an engine. The same object each time."""
    engine = engine_of(args)
    known, plugin = args.__dict__.get("_plugin", (None, None))
    if known != engine:
        plugin = {DEEPSPEED: _deepspeed, FSDP: _fsdp}[engine](args) if engine else None
        args.__dict__["_plugin"] = (engine, plugin)
    return plugin


def _deepspeed(args: Any) -> Any:
    """With the configuration that the run uses, in which nothing is "auto"."""
    from accelerate.utils import DeepSpeedPlugin

    from ..backends.torch import zero_config  # of torch, which may not be in use

    config = zero_config.filled(zero_config.read(args.deepspeed), args)
    with _without_settings_of_launcher():
        return DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 0}} | zero_config.finished(config, None))


@contextlib.contextmanager
def _without_settings_of_launcher() -> Iterator[None]:
    """A context without the variables in which `accelerate launch` passes on its file. The configuration has them, and
    accelerate takes them beside a configuration for a mistake."""
    own = {name: value for name, value in os.environ.items() if name.startswith(_OF_LAUNCHER)}
    for name in own:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(own)


def _fsdp(args: Any) -> Any:
    from accelerate.utils import FullyShardedDataParallelPlugin

    ignored = (args.fsdp_config or {}).get("ignored_modules")
    offload = "offload" in args.sharding.split()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, reshard_after_forward=reshards(args), cpu_offload=offload, ignored_modules=ignored
    )
    if args.mixed_precision != "no":
        plugin.set_mixed_precision(args.mixed_precision)
    return plugin
