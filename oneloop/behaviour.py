"""Behaviour that may be chosen for a process: one frozen object, which the core reads and never sets.

A process that runs a script written for another trainer gets the behaviour that the script expects; what builds it
stands on top of the core. The core only ever asks a field, never on whose behalf it was chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Behaviour:
    """Each field is read by one place of the core. The defaults are oneloop's own behaviour."""

    # -- arguments
    zero_is_no_save_limit: bool = False  # save_total_limit of 0 or less keeps all checkpoints, and is no error
    best_metric_must_be_named: bool = False  # save_strategy="best" does not choose the loss by itself
    subclasses_may_skip_validation: bool = False  # arguments whose __post_init__ validates nothing are left as they are
    pins_no_memory_on_cpu: bool = False  # device="cpu" switches dataloader_pin_memory off
    accepts_options_without_effect: bool = False  # loader options that change no result are accepted
    accumulation_from_accelerator_config: bool = False  # num_steps there is gradient_accumulation_steps
    needs_max_steps_without_length: bool = False  # training data without a length need max_steps

    # -- the command line
    parser: Callable[[], Any] | None = None  # makes the class that parses dataclasses without anything of oneloop
    namespace_has_defaults: bool = False  # parse_known_args() fills in the defaults of the dataclasses
    unknown_words_raise: bool = False  # a ValueError, and do not end the script
    script_fields_win: bool = False  # over arguments of oneloop with the same name

    # -- the Trainer
    positional_parameters: Callable[[], tuple[str, ...]] | None = None  # names of those passed after model_init
    extra_loggers: tuple[str, ...] = ()  # whose level log_level sets too
    label_names_are_forward_parameters: bool = False  # of models that return their loss without labels
    every_layer_trains: bool = False  # training puts every layer into training mode
    autocast: str = "step"  # what mixed precision covers: all of "step", or the model's "forward" pass alone
    chunks_losses: bool = True  # large logits are not computed whole, without having been asked
    loss_func_may_be_sign: bool = False  # a compute_loss_func that is no function says that compute_loss has divided
    step_may_update_model: bool = False  # a training_step that leaves no gradients has updated the model itself
    initial_epoch: float | None = None  # state.epoch before training
    optimizer_options_without_rate: bool = False  # get_optimizer_cls_and_kwargs returns no learning rate
    optimizer_factories: Mapping[str, Callable[[], Any]] = field(default_factory=dict)  # classes that replace ours

    # -- evaluation
    metrics_see_whole_batches: bool = False  # batch_eval_metrics: inputs on the device, and a loss as an array of one
    eval_drops_last: bool = False  # dataloader_drop_last holds for evaluations too
    default_ignored_outputs: tuple[str, ...] = ("past_key_values",)  # of models without a config
    collator_sees_all_columns: bool = False  # unused columns of lists of rows are not removed
    evaluates_dataset_as_given: bool = False  # get_eval_dataloader gets None where evaluate() got none
    evaluates_first_logged_step: bool = True  # logging_first_step evaluates too
    evaluates_last_step: bool = False  # with eval_strategy="steps"
    batched_pipelines_keep_batch_size: bool = False  # a batched pipeline of data wins over the batch size

    # -- logs
    logs_train_runtime: bool = False  # beside train_tokens_per_second
    logs_interval_speeds: bool = False  # global_step, interval_runtime, progress_or_epoch … in each log
    progress_prints_losses: bool = False  # beside the progress bar, as lines
    history_has_added_keys: bool = True  # what a callback's on_log adds to the logs is in log_history too
    prints_logs_only: bool = False  # numbers as text; without a bar, no step and nothing that the run says

    # -- stopping, saving, resuming
    early_stopping_checks_arguments: bool = False  # raises for a missing metric or no evaluations
    stop_is_final: bool = True  # a run that a callback stopped stays stopped when it is resumed
    on_save_before_next_step: bool = False  # a callback's on_save comes before the next step
    missing_checkpoint_is_error: bool = False  # resume_from_checkpoint=True without a checkpoint

    # -- the framework
    framework: str | None = None  # the backend to assume before there is a model, if its framework is imported


OWN = Behaviour()
_chosen: tuple[Behaviour, Mapping[str, Behaviour]] = (OWN, {})


def choose(behaviour: Behaviour, by_framework: Mapping[str, Behaviour] | None = None) -> None:
    """Use this behaviour in the whole process, and another one for models of some frameworks."""
    global _chosen
    _chosen = (behaviour, by_framework or {})


def current() -> Behaviour:
    """The behaviour of this process."""
    return _chosen[0]


def of(framework: str) -> Behaviour:
    """The behaviour for models of a framework."""
    return _chosen[1].get(framework, _chosen[0])
