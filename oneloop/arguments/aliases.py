"""Aliases of arguments: accepted by the constructor, in dicts, on the command line, and as attributes.

An alias that only renames is declared with the argument (`aliases=` of `arg`). Aliases that also convert the value are
listed here. An alias set to None, "" or [] is ignored, so that dumped defaults have no effect.
"""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import _FIELD, Field, dataclass, field  # type: ignore[attr-defined]
from functools import cache
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..errors import ArgumentError, OneloopError, UnknownArgumentError, shorten
from . import fixed, values
from .fields import declared, stored_fields, user_set_names
from .sharding import as_fsdp, as_sharded_ddp, from_fsdp, from_sharded_ddp

UNSET: Any = type("Unset", (), {"__repr__": lambda self: "unset", "__bool__": lambda self: False})()


@dataclass(frozen=True)
class Alias:
    """An alias of `target`. write: (value, current value of target) -> new value of target; read: the inverse."""

    name: str
    target: str
    type: Any
    help: str
    choices: list[Any] | None = None
    write: Callable[[Any, Any], Any] = lambda value, current: value
    read: Callable[[Any], Any] = lambda current: current
    merges: bool = False  # adds to the target's value instead of replacing it
    default: Any = None


def flag(name: str, target: str, on: Any, off: Any, help: str) -> Alias:
    """A bool that selects one value of the target; False only unselects that value."""

    def write(value: Any, current: Any) -> Any:
        if values.to_bool(name, value):
            return on
        return off if current == on else current

    return Alias(name, target, bool, help, write=write, read=lambda current: current == on, default=False)


def word(name: str, target: str, item: str, joined: bool, help: str) -> Alias:
    """A bool that adds one item to the target's list (joined: to its space-separated string)."""

    def write(value: Any, current: Any) -> Any:
        words = [each for each in values.to_words(target, current or []) if each != item]
        words += [item] if values.to_bool(name, value) else []
        return " ".join(words) if joined else words

    def read(current: Any) -> bool:
        return item in values.to_words(target, current or [])

    return Alias(name, target, bool, help, write=write, read=read, merges=True, default=False)


def key(name: str, target: str, item: str, kind: Any, default: Any, help: str) -> Alias:
    """An alias of one key of the target's dict."""

    def write(value: Any, current: Any) -> dict[str, Any]:
        return {**(current or {}), item: values.CONVERTERS[kind](name, value)}

    def read(current: Any) -> Any:
        return (current or {}).get(item, default)

    return Alias(name, target, kind, help, write=write, read=read, merges=True, default=default)


def degree(name: str, target: str) -> Alias:
    """A size of an axis of parallelism; -1, the default in dumped files, is ignored."""

    def write(value: Any, current: Any) -> Any:
        number = values.CONVERTERS[int](name, value)
        return current if number == -1 else number

    return Alias(name, target, int, f"The same as {target}; -1 is ignored.", write=write, default=1)


def _organization(value: Any, current: Any) -> str:
    """The repository's owner; an id that ends in "/" is completed with the name of output_dir later."""
    return f"{value}/{(current or '').split('/')[-1]}"


def _shuffled(value: Any, current: Any) -> Any:
    if not values.to_bool("dataloader_shuffle", value):
        return "sequential"
    return "random" if current == "sequential" else current


def _recomputed(value: Any, current: Any) -> bool:
    if value != "full":
        raise ArgumentError(f"Invalid recompute_granularity={value!r}: expected 'full'; every block is recomputed.")
    return True


TRANSLATED = (
    Alias("device", "device_spec", str | None, "", read=lambda current: current),  # its attribute is in properties.py
    flag("use_cpu", "device_spec", "cpu", None, 'True sets device="cpu".'),
    flag("no_cuda", "device_spec", "cpu", None, 'True sets device="cpu".'),
    flag("use_mps_device", "device_spec", "mps", None, 'True sets device="mps".'),
    flag("adafactor", "optim", "adafactor", "adamw_torch", 'True sets optim="adafactor".'),
    flag(
        "group_by_length",
        "train_sampling_strategy",
        "group_by_length",
        "random",
        'True sets train_sampling_strategy="group_by_length".',
    ),
    Alias(
        "dataloader_shuffle",
        "train_sampling_strategy",
        bool,
        'False: train_sampling_strategy="sequential".',
        write=_shuffled,
        read=lambda current: current != "sequential",
        default=True,
    ),
    flag("deterministic_mode", "full_determinism", True, False, "True sets full_determinism=True."),
    Alias(
        "recompute_granularity",
        "gradient_checkpointing",
        str | None,
        '"full": gradient_checkpointing=True.',
        write=_recomputed,
        read=lambda current: "full" if current else None,
    ),
    degree("tensor_parallel_degree", "tensor_parallel_size"),
    degree("tensor_model_parallel_size", "tensor_parallel_size"),
    degree("sep_parallel_degree", "sequence_parallel_size"),
    degree("sep_parallel_size", "sequence_parallel_size"),
    degree("context_parallel_size", "sequence_parallel_size"),
    degree("expert_model_parallel_size", "expert_parallel_size"),
    word("include_inputs_for_metrics", "include_for_metrics", "inputs", False, "True adds it to include_for_metrics."),
    word("tpu_metrics_debug", "debug", "tpu_metrics_debug", True, "True adds it to debug."),
    Alias(
        "fsdp",
        "sharding",
        str,
        "full_shard = stage3, shard_grad_op = stage2, hybrid_shard, no_shard; optionally offload, auto_wrap.",
        write=from_fsdp,
        read=as_fsdp,
        default="",
    ),
    Alias(
        "sharded_ddp",
        "sharding",
        str,
        "simple = stage1, zero_dp_2 = stage2, zero_dp_3 = stage3; optionally offload, auto_wrap.",
        write=from_sharded_ddp,
        read=as_sharded_ddp,
        default="",
    ),
    key("fsdp_min_num_params", "fsdp_config", "min_num_params", int, 0, "fsdp_config's min_num_params."),
    key(
        "fsdp_transformer_layer_cls_to_wrap",
        "fsdp_config",
        "transformer_layer_cls_to_wrap",
        str,
        None,
        "fsdp_config's transformer_layer_cls_to_wrap.",
    ),
    key("num_cycles", "lr_scheduler_kwargs", "num_cycles", float, 0.5, "lr_scheduler_kwargs's num_cycles."),
    key("lr_end", "lr_scheduler_kwargs", "lr_end", float, 1e-7, "lr_scheduler_kwargs's lr_end."),
    key("power", "lr_scheduler_kwargs", "power", float, 1.0, "lr_scheduler_kwargs's power."),
    Alias(
        "push_to_hub_organization",
        "hub_model_id",
        str,
        "The owner (organization) in hub_model_id.",
        write=_organization,
        read=lambda current: current.split("/")[0] if current and "/" in current else None,
        merges=True,
    ),
)


# Aliases that transformers has as fields. Parsers of other libraries offer fields alone, and pass all of them on.
FIELDS = ("use_cpu", "fsdp")


def as_field(alias: Alias) -> Field:
    """A field that is not stored: its default is ignored, and its value goes to the alias's target."""
    made: Any = field(default=UNSET, compare=False, repr=False, metadata={"help": alias.help})
    made.name, made.type, made._field_type = alias.name, alias.type, _FIELD
    return made


def collect(cls: type, translated: tuple[Alias, ...] = TRANSLATED) -> dict[str, Alias]:
    """All aliases of the arguments of this class."""
    known = declared(cls)
    found = {}
    for target, (hint, rules) in known.items():
        for name in rules["aliases"]:
            found[name] = Alias(
                name, target, hint, f"The same as {target}.", rules["choices"], default=rules["default"]
            )
    for alias in translated:
        if alias.target in known:
            rules = known[alias.target][1]
            found[alias.name] = Alias(**{**vars(alias), "help": alias.help or rules["help"]})
    return found


def attribute(alias: Alias) -> property:
    """A property that reads and sets the alias's target."""

    def get(self: Any) -> Any:
        return alias.read(getattr(self, alias.target))

    def set_(self: Any, value: Any) -> None:
        if value is UNSET:  # the default of a field of this name
            return
        setattr(self, alias.target, alias.write(value, getattr(self, alias.target)))

    return property(get, set_, doc=alias.help)


# Names by which other libraries and other scripts know an argument, where no spelling is near.
COMMON_MISTAKES = {
    "per_device_train_batch_size": "batch_size bs train_bs micro_batch_size per_device_batch_size",
    "per_device_eval_batch_size": "val_batch_size valid_batch_size test_batch_size",
    "num_train_epochs": "epochs epoch n_epochs num_epochs max_epochs nb_epochs total_epochs train_epochs",
    "max_steps": "steps train_steps num_steps total_steps max_iters iterations num_training_steps",
    "learning_rate": "lr base_lr init_lr rate",
    "optim": "optimizer optimizer_name",
    "lr_scheduler_type": "scheduler lr_scheduler schedule lr_schedule",
    "max_grad_norm": "clip gradient_clip_val grad_clip clip_grad_norm gradient_clipping clip_norm",
    "gradient_accumulation_steps": "accumulate_grad_batches accumulation accum_steps grad_accum",
    "dataloader_num_workers": "num_workers workers n_workers",
    "logging_steps": "log_every_n_steps log_interval log_steps log_every print_every",
    "eval_steps": "val_check_interval eval_interval validation_steps eval_every",
    "save_steps": "save_interval checkpoint_steps save_every",
    "output_dir": "out_dir save_dir default_root_dir checkpoint_dir",
    "report_to": "logger loggers",
    "gradient_checkpointing": "recompute_activations activation_checkpointing",
    "bf16=True or fp16=True": "precision amp mixed_precision half use_amp",
    "EarlyStoppingCallback(early_stopping_patience=...) in callbacks=": "patience early_stopping early_stop",
    "one process for each device (torchrun --nproc-per-node=N train.py)": "gpus num_gpus n_gpus devices num_devices "
    "ngpu strategy num_nodes num_processes",
}
_MISTAKE_FOR = {habit: target for target, habits in COMMON_MISTAKES.items() for habit in habits.split()}


def unknown(cls: Any, name: str, known: list[str]) -> UnknownArgumentError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if name in cls.__elsewhere__:
        hint = f"it belongs to {cls.__elsewhere__[name]}"
    elif name in _MISTAKE_FOR:
        target = _MISTAKE_FOR[name]
        hint = f"did you mean '{target}'?" if target in known else f"instead, use {target}"
    else:
        hint = f"did you mean '{near[0]}'?" if near else f"help(oneloop.{cls.__name__}) lists all arguments"
    return UnknownArgumentError(f"{cls.__name__} has no argument '{name}'; {hint}" + ("" if hint[-1] == "?" else "."))


def _conflict(first: str, first_value: Any, second: str, second_value: Any) -> ArgumentError:
    return ArgumentError(
        f"{first}={values.format_value(first, first_value)} and {second}={values.format_value(second, second_value)} "
        "are aliases of one argument, but have different values; expected one of them. Remove the other."
    )


@cache
def _parameters(cls: Any) -> tuple[frozenset[str], bool]:
    """Parameter names of __init__, which a subclass may have written itself, and whether it accepts **kwargs."""
    parameters = inspect.signature(cls.__init__).parameters
    return frozenset(parameters), any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def resolve(cls: Any, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The given values by stored name, and stored name -> the alias that the user wrote; raises on conflicts."""
    stored = {item.name for item in stored_fields(cls)}
    aliases = {name: alias for name, alias in cls.__aliases__.items() if name not in stored}
    accepts, open_ended = _parameters(cls)
    for name in given:
        if name in fixed.FIXED_ARGUMENTS and name not in stored:
            fixed.check(name, given[name])
        elif name not in stored and name not in aliases and name not in accepts and not open_ended:
            raise unknown(cls, name, [*stored, *aliases])

    dropped = aliases.keys() | (fixed.FIXED_ARGUMENTS.keys() - stored)
    result = {name: value for name, value in given.items() if name not in dropped}
    chosen = {name: name for name, value in result.items() if value is not None}
    used = [aliases[name] for name, value in given.items() if name in aliases and _has_meaning(value)]
    if used and stored <= given.keys():
        used = [alias for alias in used if not _repeats(cls, alias, given)]
        # dataclasses.replace() passes every stored value as well as the changes: there the alias is the change.
        chosen = {}
    # Aliases that merge are applied last, and a False after whatever it may contradict.
    for alias in sorted(used, key=lambda alias: (alias.merges, given[alias.name] is False)):
        _apply(cls, alias, given, result, chosen)
    return result, chosen


def _has_meaning(value: Any) -> bool:
    return value is not UNSET and value not in (None, "", [], ())


def _repeats(cls: Any, alias: Alias, given: dict[str, Any]) -> bool:
    """Whether a field that is an alias has the value which its target has anyway."""
    return alias.name in cls.__spelled_fields__ and given[alias.name] == alias.read(given[alias.target])


def _apply(cls: Any, alias: Alias, given: dict[str, Any], result: dict[str, Any], chosen: dict[str, str]) -> None:
    """Write one alias into the result, unless it contradicts the value that `chosen` records for the target."""
    value, target = given[alias.name], alias.target
    hint, rules = declared(cls)[target]
    current = result.get(target, UNSET)
    if current is not UNSET and current is not None:
        current = values.convert(chosen.get(target, target), current, hint, rules)
    written = alias.write(value, current)
    if written is UNSET:
        return
    written = values.convert(alias.name, written, hint, rules)
    if target in chosen:
        before = alias.read(current)
        differs = before not in (alias.default, alias.read(written)) if alias.merges else written != current
        if differs:
            raise _conflict(chosen[target], given[chosen[target]], alias.name, value)
    result[target] = written
    chosen.setdefault(target, alias.name)


class ArgumentsMeta(type):
    """Resolves aliases on construction, also for dataclasses that users derive."""

    if not TYPE_CHECKING:  # for a type checker, signatures.pyi says what the constructors take

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return cls._make(*args, **kwargs)
            except OneloopError as error:
                raise shorten(error)  # noqa: B904 (it is the same error)

        def _make(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) > 1:
                raise ArgumentError(
                    f"{cls.__name__} accepts only output_dir as a positional argument, but got {len(args)}; pass the "
                    "others by name, since their order differs between versions."
                )
            if args and "output_dir" in kwargs:
                raise ArgumentError(
                    f"output_dir is given twice: {args[0]!r} and {kwargs['output_dir']!r}; pass it once."
                )
            result, chosen = resolve(cls, kwargs)
            made = super().__call__(*args, **result)
            made.__dict__["_spelling_of"] = {target: name for target, name in chosen.items() if name != target}
            made.__dict__["_given"] = user_set_names(made, result)
            # For a subclass whose __post_init__ does not call super().__post_init__(). The Trainer validates it anyway.
            if "_defaulted" not in made.__dict__ and not behaviour.current().subclasses_may_skip_validation:
                made.validate()
            return made

    @property
    def __signature__(cls) -> inspect.Signature:
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])
