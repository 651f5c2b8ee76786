"""The state of a run as it is now, for a save: gathered from all processes and overrides, and as run.json stores it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.streams import properties as stream_properties
from ..formats.durable import native_errors
from ..state import has_state, states_by_class
from .overrides import Gathered
from .run_state import RunState
from .sharded import any_failed, failed_elsewhere

if TYPE_CHECKING:
    from ..trainer.run import Run

# Arguments that change how a run continues, in addition to those in run_properties.
_ARGUMENTS = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("label_smoothing_factor", "neftune_noise_alpha", "bf16", "fp16", "fp16_opt_level", "dataloader_drop_last"),
)


def gather(run: "Run", is_sharded: bool, output_dir: Path) -> Gathered:
    """A collective on several processes: gather the RNG and data states of each, and the optimizer's state."""
    core, overrides = run.core, run.checkpointer.overrides
    attributes, tensors = core.extensions.collect_state()
    streams = run.epochs.random_state() | tensors
    position = replace(run.position_state(), trainer=attributes)
    own = (streams, position.own_states())
    everywhere = core.trainer.args.save_on_each_node
    every = core.processes.all_gather_object(own) if everywhere else core.processes.gather_object(own)
    if every is not None:
        for rank, (more, _) in enumerate(every[1:], 1):
            streams |= {f"rank{rank}/{name}": array for name, array in more.items()}
        position = replace(position, ranks=[states for _, states in every[1:]])
    gathered = Gathered(streams, position, is_sharded)
    error = None
    try:
        with native_errors():
            overrides.gather_parts(gathered, output_dir)
    except OSError as raised:
        error = raised
    # Each process may have written files, so all wait for each other.
    if overrides.write_parts and any_failed(core.processes, error):
        raise error or failed_elsewhere(str(output_dir))
    return gathered


def run_state(run: "Run", gathered: Gathered) -> RunState:
    """What run.json of a save holds."""
    core, meter, update = run.core, run.meter, run.update
    layout = core.backend.framework_layout.layout(core.trainer.model)
    norm = core.engine.grad_norm()
    return RunState(
        run_id=run.id,
        framework=core.backend.NAME,
        optimizer=gathered.optimizer[1],
        scheduler=gathered.scheduler,
        engine=core.engine.state() | ({} if gathered.has_scaler else {"scaler": None}),
        losses=meter.losses.state(),
        work=meter.work.state(),
        position=gathered.position,
        properties=run_properties(run),
        layout={name: [place.name, place.axes] for name, place in layout.items()},
        measured={
            "strategy": core.strategy.state(),
            # Of the last step, in case the end of the epoch logs it; it may be infinite, which JSON does not
            # support.
            "grad_norm": None if norm is None else norm.hex(),
            "learning_rate": update.last_rate,
            "split": update.split,
            **update.modes.average.state(),
            **({} if run.plan.cooldown is None else {"cooldown": run.plan.cooldown.state()}),
        }
        | ({} if meter.sources is None else {"sources": meter.sources.state()})
        | meter.spikes.state()
        | run.step_end.seeds.state(),
    )


def run_properties(run: "Run") -> dict[str, Any]:
    """What should be the same in a resumed run."""
    plan, args = run.plan, run.core.trainer.args
    chosen = {} if args.data_order == "oneloop" else {"data_order": args.data_order}
    if run.update.modes.average.kind is not None:
        chosen = chosen | {name: getattr(args, name) for name in ("ema_decay", "swa_start", "averaging_steps")}
    if plan.cooldown is not None:
        chosen = chosen | {"cooldown_steps": args.cooldown_steps, "cooldown_type": args.cooldown_type}
    if args.loss_spike == "rollback":
        names = ("loss_spike", "loss_spike_threshold", "loss_spike_window", "loss_spike_skip_steps")
        chosen = chosen | {name: getattr(args, name) for name in names}
    if args.stream_sharding != "samples":
        chosen = chosen | {"stream_sharding": args.stream_sharding}
    return (
        chosen
        | stream_properties(run.core.trainer.train_dataset)
        | {
            "samples": plan.samples,
            "samples_per_step": plan.samples_per_step,
            "processes": args.world_size,
            "accumulation": plan.accumulation,
            "max_steps": plan.max_steps,
            "seed": args.seed,
            "data_seed": run.core.data_seed,
            "sampling": str(args.train_sampling_strategy),
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": str(args.lr_scheduler_type),
            "weight_decay": args.weight_decay,
            "max_grad_norm": args.max_grad_norm,
            "optim": str(args.optim),
            "workers": args.dataloader_num_workers > 0,
        }
        | {name: _plain(getattr(args, name)) for name in _ARGUMENTS}
    )


def callback_states(trainer: Any) -> dict[str, Any]:
    """The states of the control and of the callbacks that have one, by class; a list for several of a class."""
    stateful = [callback for callback in trainer.callback_handler.callbacks if has_state(callback)]
    return states_by_class([trainer.control, *stateful])


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, dict, list, type(None))) else str(value)
