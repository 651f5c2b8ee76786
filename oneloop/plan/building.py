"""Builds the plan of a Trainer: sizes and lengths from its model, data and arguments, memory from the backend."""

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import randomness
from ..arguments.support import unsupported_by
from ..backends.step_memory import StepMemory
from ..data.batch_sizes import batch_rows, loader_rows
from ..data.order import BatchSampler, NoBatch
from ..errors import ArgumentError, DataError
from ..state import TrainerState
from ..steps import plan_steps
from ..trainer import dataloaders, setup
from ..trainer.core import core_of
from . import effects, layouts, messages, optimizer_state, sizes
from . import search as layout_search
from .layouts import Axes, ParallelLayout, Tensor
from .memory import Memories
from .results import CheckpointSizes, Messages, ModelSizes, RunLength, Search, StrategyPlan, TrainingPlan

if TYPE_CHECKING:
    from ..trainer.core import Core

LOOKED_AT = 8  # micro-batches whose tokens are counted, and of which the largest is measured


def build_plan(
    trainer: Any,
    world: int | None = None,
    device_memory: Any = None,
    per_machine: int = 8,
    largest: bool = True,
    search: bool = False,
    progress: Callable[[str], None] | None = None,
) -> TrainingPlan:
    """Build the plan of a Trainer for `world` processes on devices with this much memory."""
    core, args = core_of(trainer), trainer.args
    world = args.world_size if world is None else int(world)
    if world < 1 or per_machine < 1:
        raise ArgumentError(f"Invalid world={world}, per_machine={per_machine}: expected numbers of processes above 0")
    if args.max_tokens_per_batch is not None:
        raise ArgumentError(
            f"a plan is of micro-batches with the same number of samples, and max_tokens_per_batch="
            f"{args.max_tokens_per_batch} gives them different ones. For a plan of the largest one, remove it and set "
            "per_device_train_batch_size to as many of the longest samples as are within the budget."
        )
    limit = sizes.parse("device_memory", device_memory)
    axes = Axes.of(args)
    if world % axes.size:
        raise ArgumentError(f"{axes} needs a multiple of {axes.size} processes, but world={world}. Pass such a world.")
    if search and limit is None:
        raise ArgumentError("a search for layouts needs device_memory, such as 80GB, to see which ones fit.")
    setup.bind(args, core.backend)
    streams = randomness.get_state(core.backend)
    loader = trainer.get_train_dataloader()
    batches = _first_batches(core, loader)
    randomness.set_state(core.backend, streams)
    tensors = _trainable(core)
    memories = Memories(trainer, max(batches, key=_elements), world, progress)
    model = _model_sizes(core, tensors, memories)
    length = _length(core, loader, batches, world // axes.size)
    checkpoint = _checkpoint(core, model, length)
    plans = [
        _strategy(core, layout, tensors, model, memories, world, limit, largest)
        for layout in layouts.layouts(world, per_machine, core.backend.NAME == "torch", axes)
    ]
    found = None
    if search and limit is not None:
        found = _search(core, tensors, model, memories, world, per_machine, limit, length.samples_per_step)
    if _is_for_cpus(core, limit) and any(each.peak is not None for each in plans):
        memories.notes += _of_host_allocator()
    memories.notes += _of_activations(memories, plans)
    return TrainingPlan(
        framework=core.backend.NAME,
        device=core.backend.devices.kind(args.device),
        world=world,
        device_memory=limit,
        micro_batch=args.train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        recompute=memories.recomputes,
        model=model,
        activations=memories.activations(False),
        activations_recomputed=memories.activations(True),
        length=length,
        checkpoint=checkpoint,
        strategies=tuple(plans),
        arguments=tuple(effects.of(core, length.steps or -1)),
        notes=tuple(memories.notes),
        search=found,
    )


def _is_for_cpus(core: "Core", limit: int | None) -> bool:
    """Whether the processes will run on CPUs. A plan for devices with a given memory is made for others, on any
    machine."""
    return core.backend.devices.kind(core.trainer.args.device) == "cpu" and limit is None


def _of_activations(memories: Memories, plans: Sequence[StrategyPlan]) -> list[str]:
    """Why a peak can be lower than the activations of one process."""
    whole = memories.activations(memories.recomputes)
    lower = [plan for plan in plans if plan.peak is not None and whole is not None and plan.peak < whole]
    if not lower:
        return []
    lowest = min(lower, key=lambda plan: plan.peak or 0)
    return [
        f"Activations of {sizes.show(whole)} are those of one process with the whole model. They depend on the layout: "
        f"with {lowest.name} they are {sizes.show(lowest.activations)}, and its peak of {sizes.show(lowest.peak)} "
        "includes these. Axes divide them, and stages 2 and 3 compute whole layers in half precision, where autocast "
        "keeps residuals and norms in float32."
    ]


def _of_host_allocator() -> list[str]:
    """On a CPU, peaks are those of the process only if freed memory goes back to the system."""
    if os.environ.get("MALLOC_MMAP_THRESHOLD_"):
        return []
    return [
        "On a CPU, glibc keeps part of what is freed: a process may take a fifth more than its tensors. Peaks are as "
        "shown with MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072."
    ]


# -- the model and the data


def _trainable(core: "Core") -> list[Tensor]:
    measure = core.backend.tensors.size
    return [
        Tensor(name, tuple(map(int, p.shape)), str(p.dtype).rpartition(".")[2].lower(), int(measure(p)))
        for name, p in core.backend.models.named_parameters(core.trainer.model)
    ]


def _model_sizes(core: "Core", tensors: list[Tensor], memories: Memories) -> ModelSizes:
    models, model = core.backend.models, core.trainer.model
    trained = sum(tensor.size for tensor in tensors)
    state = memories.optimizer_state()
    if state is None:
        state = optimizer_state.size(core.trainer.args, [tensor.elements for tensor in tensors])
    return ModelSizes(
        parameters=models.num_parameters(model),
        trainable=sum(tensor.elements for tensor in tensors),
        parameter_bytes=trained + _frozen_bytes(core, trained),
        gradient_bytes=trained,
        optimizer_bytes=state,
    )


def _frozen_bytes(core: "Core", trained: int) -> int:
    planning = getattr(core.backend, "planning", None)
    if planning is not None:
        return planning.frozen_bytes(core.trainer.model)
    stored, _ = core.backend.weights.model_tensors(core.trainer.model)
    return max(0, sum(int(core.backend.tensors.size(value)) for value in stored.values()) - trained)


def _first_batches(core: "Core", loader: Any) -> list[Any]:
    found = islice(core.backend.loaders.iterate(loader), LOOKED_AT)
    batches = [batch for batch in found if not isinstance(batch, NoBatch)]
    if not batches:
        raise DataError("the training data yielded no batch. Pass data with at least one sample.")
    return batches


def _elements(batch: Any) -> int:
    """The elements of all tensors of a batch, which decide about its memory."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return sum(map(_elements, batch))
    shape = getattr(batch, "shape", ())
    return math.prod(shape) if len(shape) else 0


def _length(core: "Core", loader: Any, batches: list[Any], world: int) -> RunLength:
    args = core.trainer.args
    accumulation = args.gradient_accumulation_steps
    in_epoch = _micro_batches(core, loader, world)
    per_epoch = None if in_epoch is None else -(-in_epoch // accumulation)
    if per_epoch == 0:
        raise DataError(f"with {world} processes, the training loader has no batches: dataloader_drop_last drops them")
    steps, epochs = plan_steps(per_epoch, args)
    per_step = args.train_batch_size * accumulation * world
    samples = loader_rows(loader)
    if samples is not None and args.dataloader_drop_last and in_epoch is not None:
        samples = min(samples, in_epoch * args.train_batch_size * world)
    trained = steps * per_step if steps > 0 else None
    if trained is not None and samples is not None and per_epoch:  # the last update of an epoch may have fewer
        whole, rest = divmod(steps, per_epoch)
        trained = whole * samples + rest * per_step
    counted = [(core.run.meter.tokens_in(batch), batch_rows(batch) or 1) for batch in batches]
    per_row = sum(tokens for tokens, _ in counted) / sum(rows for _, rows in counted)
    return RunLength(
        samples=samples,
        samples_per_step=per_step,
        steps_per_epoch=per_epoch,
        steps=steps if steps > 0 else None,
        epochs=float(epochs if args.max_steps <= 0 else steps / per_epoch if per_epoch else 1),
        tokens_per_step=round(per_row * per_step) or None,
        tokens=None if trained is None else round(per_row * trained) or None,
    )


def _micro_batches(core: "Core", loader: Any, world: int) -> int | None:
    """Micro-batches of one process in an epoch, with that many processes."""
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchSampler):
        other = copy.copy(sampler)
        other.num_shards, other.shard_id = world, 0
        return len(other)
    batches = dataloaders.length_of(core, loader)
    return None if batches is None else -(-batches * core.mesh.num_batches // world)


def _checkpoint(core: "Core", model: ModelSizes, length: RunLength) -> CheckpointSizes:
    args, models = core.trainer.args, core.backend.models
    weights = model.gradient_bytes if models.is_adapter(core.trainer.model) else model.parameter_bytes
    state = 0 if args.save_only_model else model.optimizer_bytes
    saves = _saves(args, length)
    kept = saves if saves is None or not args.save_total_limit else min(saves, args.save_total_limit)
    on_disk = None if kept is None or state is None else kept * (weights + state)
    return CheckpointSizes(weights, state, saves, kept, on_disk)


def _saves(args: Any, length: RunLength) -> int | None:
    kind = str(getattr(args.save_strategy, "value", args.save_strategy))
    if kind == "no":
        return 0
    if kind == "epoch" and length.steps and length.steps_per_epoch:
        return math.ceil(length.steps / length.steps_per_epoch)
    if kind != "steps" or length.steps is None:
        return None
    state = TrainerState()
    state.compute_steps(args, length.steps)
    return length.steps // state.save_steps if state.save_steps else None


# -- the ways of distributing it


def _strategy(
    core: "Core",
    layout: ParallelLayout,
    tensors: list[Tensor],
    model: ModelSizes,
    memories: Memories,
    world: int,
    limit: int | None,
    largest: bool,
) -> StrategyPlan:
    why = _refusal(core, layout)
    if why is not None:
        return StrategyPlan(layout.name, layout.arguments(), refused=why)
    kept, recomputed = (memories.peak(layout, recompute, tensors, model, world) for recompute in (False, True))
    now = recomputed if memories.recomputes else kept
    parameters, gradients, state = _resident(layout, tensors, model, now)
    peak = None if now is None else now.peak
    return StrategyPlan(
        name=layout.name,
        arguments=layout.arguments(),
        parameters=parameters,
        gradients=gradients,
        optimizer=state,
        activations=None if now is None else now.activations,
        peak=peak,
        peak_kept=None if kept is None else kept.peak,
        peak_recomputed=None if recomputed is None else recomputed.peak,
        save_copy=layouts.save_copy(core.trainer.args, layout, model),
        fits=_fits(limit, peak, parameters, gradients, state),
        largest_micro_batch=memories.find_max_batch(layout, tensors, model, world, limit)
        if largest and limit
        else None,
        messages=_messages(core, layout, tensors, memories, world, now),
    )


def _resident(
    layout: ParallelLayout, tensors: list[Tensor], model: ModelSizes, step: StepMemory | None
) -> tuple[int | None, int | None, int | None]:
    """Bytes of (parameters, gradients, optimizer state). What axes divide is known from a simulated step."""
    if not layout.axes.used:
        return layouts.resident(layout, tensors, model)
    if step is None:
        return None, None, None
    return step.parameters, round(model.gradient_bytes * step.parameters / model.parameter_bytes), step.optimizer


def _search(
    core: "Core",
    tensors: list[Tensor],
    model: ModelSizes,
    memories: Memories,
    world: int,
    per_machine: int,
    limit: int,
    samples: int,
) -> Search | None:
    """The layouts that fit, with as many samples in an update as the arguments have."""
    args, planning = core.trainer.args, memories.planning
    if planning is None or world == 1:
        return None
    possible = [
        layout
        for layout in layout_search.candidates(partial(planning.sizes, core), world, per_machine, samples)
        if _refusal(core, layout) is None
    ]

    def count(each: layout_search.Candidate, step: StepMemory) -> Messages:
        return _messages(core, each.layout, tensors, memories, world, step)

    half = bool(args.bf16 or args.fp16)
    return layout_search.search(memories, tensors, model, possible, count, samples, limit, half)


def _fits(limit: int | None, peak: int | None, *resident: int | None) -> bool | None:
    """Whether it fits; without a peak, only that it cannot is known."""
    if limit is None:
        return None
    if peak is not None:
        return peak <= limit
    return False if sum(size or 0 for size in resident) > limit else None


def _refusal(core: "Core", layout: ParallelLayout) -> str | None:
    args, backend = copy.copy(core.trainer.args), core.backend
    if not core.mesh.is_single and layout.sharding != args.sharding:
        return None
    wanted = {"sharding": layout.sharding, "sharding_degree": -1} | layout.axes.arguments()
    args.__dict__.update(wanted)
    kind = backend.devices.kind(args.device)
    for unsupported in unsupported_by(backend.NAME):
        if unsupported.argument in wanted and unsupported.applies(args, backend.NAME, kind):
            return f"{unsupported.why}. Instead: {unsupported.instead}"
    return None


def _messages(
    core: "Core",
    layout: ParallelLayout,
    tensors: Sequence[Tensor],
    memories: Memories,
    world: int,
    step: StepMemory | None,
) -> Messages:
    args = core.trainer.args
    if world == 1:
        return Messages(0, 0, 0)
    gradients = [(tensor.kind, tensor.size) for tensor in tensors]
    whole = sum(size for _, size in gradients)
    if core.backend.NAME != "torch":
        found = messages.total([("all_reduce", whole, world)])
        return Messages(None, found.bytes, found.sent)
    replicas = world // layout.axes.size * layout.axes.sequence
    if layout.shards_gradients or layout.axes.used:
        if step is not None:
            counted = messages.total([*messages.before_update(world), *step.collectives])
            if layout.shards_gradients or layout.axes.size > layout.axes.sequence:
                return counted
            return messages.joined(counted, messages.data_parallel(gradients, args.ddp_bucket_cap_mb, replicas, True))
        gathers = (2 if "stage3" in layout.sharding else 1) * args.gradient_accumulation_steps
        moved = [("all_gather", whole, layout.degree)] * gathers
        moved += [("reduce_scatter", whole, layout.degree)] * args.gradient_accumulation_steps
        moved.append(("all_reduce", whole // layout.degree, world // layout.degree))
        found = messages.total(moved)
        return Messages(None, found.bytes, found.sent)
    kind = core.backend.devices.kind(args.device)
    piggybacks = kind == "cpu" and not (args.fp16 or args.torch_compile or args.ddp_static_graph)
    reduced = messages.data_parallel(gradients, args.ddp_bucket_cap_mb, world, piggybacks)
    if not layout.sharding:
        return reduced
    writers = min(world, len(tensors))  # each broadcasts what it has updated
    shared = messages.total([("broadcast", whole // writers, world)] * writers)
    return messages.joined(reduced, shared)
