"""Checked by mypy and never imported: every backend has the modules, functions and parameters of base.Backend.

Each module is compared separately first, so that the error names the function.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import base
    from .mindspore import backend as mindspore
    from .mindtorch import backend as mindtorch
    from .paddle import backend as paddle
    from .paddle.group_sharding import GroupShardedEngine
    from .paddle.sharded_gradients import ShardEngine
    from .torch import backend as torch
    from .torch.zero import ZeroEngine

    devices: list[base.Devices] = [torch.devices, paddle.devices, mindspore.devices, mindtorch.devices]
    models: list[base.Models] = [torch.models, paddle.models, mindspore.models, mindtorch.models]
    tensors: list[base.Tensors] = [torch.tensors, paddle.tensors, mindspore.tensors, mindtorch.tensors]
    engine: list[base.Engines] = [torch.engine, paddle.engine, mindspore.engine, mindtorch.engine]
    engine_classes: list[base.EngineClass] = [ShardEngine, GroupShardedEngine, ZeroEngine]  # of sharded training
    optimizers: list[base.Optimizers] = [
        torch.optimizers,
        paddle.optimizers,
        mindspore.optimizers,
        mindtorch.optimizers,
    ]
    loaders: list[base.Loaders] = [torch.loaders, paddle.loaders, mindspore.loaders, mindtorch.loaders]
    weights: list[base.Weights] = [torch.weights, paddle.weights, mindspore.weights, mindtorch.weights]
    randomness: list[base.Randomness] = [
        torch.randomness,
        paddle.randomness,
        mindspore.randomness,
        mindtorch.randomness,
    ]
    framework_layout: list[base.FrameworkLayout] = [
        torch.framework_layout,
        paddle.framework_layout,
        mindspore.framework_layout,
        mindtorch.framework_layout,
    ]
    external_checkpoint: list[base.ExternalCheckpoint] = [
        torch.external_checkpoint,
        paddle.external_checkpoint,
        mindspore.external_checkpoint,
        mindtorch.external_checkpoint,
    ]
    memory: list[base.Memory] = [torch.memory, paddle.memory, mindspore.memory, mindtorch.memory]
    nan_hooks: list[base.NanHooks] = [torch.nan_hooks, paddle.nan_hooks, mindspore.nan_hooks, mindtorch.nan_hooks]
    parallel: list[base.Parallel] = [torch.parallel, paddle.parallel, mindspore.parallel]
    export: list[base.Export] = [torch.export, paddle.export, mindspore.export]
    profiling: list[base.Profiling] = [torch.profiling, paddle.profiling, mindspore.profiling]
    planning: list[base.Planning] = [torch.planning, paddle.planning, mindspore.planning]
    chunked_loss: list[base.ChunkedLoss] = [torch.chunked_loss, paddle.chunked_loss, mindspore.chunked_loss]
    tracing: list[base.Tracing] = [torch.tracing, paddle.tracing, mindspore.tracing]
    backends: list[base.Backend] = [torch, paddle, mindspore, mindtorch]
