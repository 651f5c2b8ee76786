"""Arguments that have no effect in a run, or less, because of other arguments: one warning each, before it starts."""

import logging
from collections.abc import Iterator
from typing import Any

from ..arguments.fields import was_set_by_user
from ..optim import catalog

logger = logging.getLogger(__name__)

_NO_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")


def warn_unused(args: Any, max_steps: int, computes_metrics: bool, default_compute_loss: bool = True) -> None:
    """Warn about each. None is an error, since scripts written for other trainers contain such combinations."""
    if args.torch_compile and not default_compute_loss:
        logger.warning(
            "compute_loss is overridden: torch_compile compiles the model that it calls, but compute_loss itself is "
            "not compiled."
        )
    for words in find_unused(args, max_steps, computes_metrics):
        logger.warning(words)


def find_unused(args: Any, max_steps: int, computes_metrics: bool) -> Iterator[str]:
    """The text of each warning."""
    evaluates = args.eval_strategy != "no"
    if args.save_strategy == "best" and not evaluates:
        yield (
            "save_strategy='best' saves after evaluations, but eval_strategy is 'no': nothing will be saved. Set "
            "eval_strategy, or save_strategy='steps'."
        )
    elif args.load_best_model_at_end and not evaluates and not args.eval_on_start:
        yield (
            "load_best_model_at_end=True has no effect: eval_strategy is 'no', so the model at the end is the last "
            "one. Set eval_strategy."
        )
    yield from _find_unused_by_script(args)
    times = args.minimum_eval_times
    if times and args.eval_strategy != "steps":
        yield (
            f"minimum_eval_times={times} lowers eval_steps, which eval_strategy='{args.eval_strategy}' does not use. "
            "Set eval_strategy='steps'."
        )
    elif times and 0 < max_steps < times:
        yield f"minimum_eval_times={times} is more than the {max_steps} steps of this run: every step is evaluated."
    optimizer = catalog.chosen(args)
    warms_up = args.lr_scheduler_type not in _NO_WARMUP or (optimizer is not None and optimizer.own_warmup)
    if not warms_up and (args.warmup_steps or args.warmup_ratio):
        name = "warmup_steps" if args.warmup_steps else "warmup_ratio"
        instead = "; use 'constant_with_warmup'" if args.lr_scheduler_type == "constant" else ""
        yield (
            f"{name}={getattr(args, name)} has no effect: the schedule '{args.lr_scheduler_type}' has no "
            f"warmup{instead}."
        )
    if args.loss_spike != "off" and 0 < max_steps <= args.loss_spike_window:
        yield (
            f"loss_spike={args.loss_spike!r} has no effect: this run has {max_steps} steps, and the first "
            f"{args.loss_spike_window} are compared with none. Set a smaller loss_spike_window."
        )
    if args.prediction_loss_only and computes_metrics and evaluates:
        yield "prediction_loss_only=True keeps no outputs, so compute_metrics is not called in evaluations."
    if args.gradient_checkpointing_kwargs and not args.gradient_checkpointing:
        yield "gradient_checkpointing_kwargs has no effect: gradient_checkpointing (recompute) is False."


def _find_unused_by_script(args: Any) -> Iterator[str]:
    """Arguments that a script gives, and that have no effect."""
    if args.eval_strategy != "steps" and was_set_by_user(args, "eval_steps"):
        yield f"eval_steps={args.eval_steps} has no effect: eval_strategy is '{args.eval_strategy}', not 'steps'."
    saves = args.save_strategy != "no" or args.load_best_model_at_end or args.save_interval_minutes
    if not saves and was_set_by_user(args, "save_total_limit"):
        yield f"save_total_limit={args.save_total_limit} has no effect: save_strategy is 'no', so nothing is saved."
    idle = {"off": ("threshold", "window", "skip_steps", "limit"), "warn": ("skip_steps", "limit")}
    for name in (f"loss_spike_{each}" for each in idle.get(args.loss_spike, ())):
        if was_set_by_user(args, name):
            yield f"{name}={getattr(args, name)} has no effect: loss_spike is {args.loss_spike!r}."
    if not args.push_to_hub and was_set_by_user(args, "hub_model_id"):
        yield (
            f"hub_model_id={args.hub_model_id!r} has no effect during training: push_to_hub is False. Set it, or call "
            "trainer.push_to_hub() afterwards."
        )
    optimizer = catalog.chosen(args)
    if optimizer is not None and not optimizer.betas:
        for name in ("adam_beta1", "adam_beta2", "adam_epsilon"):
            if was_set_by_user(args, name):
                yield f"{name}={getattr(args, name)} has no effect: optim is '{args.optim}', which has no such option."
