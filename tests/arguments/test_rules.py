"""The rules of every argument, from its declaration: ranges at their bounds, lists of values, None and spellings."""

import math
import operator
import types
import typing

import pytest

from oneloop import Seq2SeqTrainingArguments
from oneloop.arguments import values
from oneloop.arguments.fields import declared
from oneloop.errors import ArgumentError

ARGUMENTS = declared(Seq2SeqTrainingArguments)
# What every number may be, written again: a bound that is changed has to be changed here too.
RANGES = {
    "seed": ">= 0, <= 4294967295",
    "data_seed": ">= 0, <= 4294967295",
    "past_index": ">= -1",
    "per_device_train_batch_size": ">= 1",
    "max_tokens_per_batch": ">= 1",
    "per_device_eval_batch_size": ">= 1",
    "gradient_accumulation_steps": ">= 1",
    "dataloader_num_workers": ">= 0",
    "dataloader_prefetch_factor": ">= 1",
    "max_length": ">= 1",
    "mixture_temperature": ">= 0.001",
    "learning_rate": ">= 0",
    "weight_decay": ">= 0",
    "adam_beta1": ">= 0, < 1",
    "adam_beta2": ">= 0, < 1",
    "adam_epsilon": ">= 0",
    "max_grad_norm": ">= 0, infinite",
    "warmup_ratio": ">= 0, <= 1",
    "cooldown_steps": ">= 1",
    "num_train_epochs": ">= 0",
    "max_steps": ">= -1, != 0",
    "ema_decay": ">= 0, < 1",
    "averaging_steps": ">= 1",
    "label_smoothing_factor": ">= 0, < 1",
    "neftune_noise_alpha": ">= 0",
    "scale_loss": ">= 1",
    "torch_empty_cache_steps": ">= 1",
    "eval_delay": ">= 0",
    "eval_accumulation_steps": ">= 1",
    "minimum_eval_times": ">= -1",
    "nonfinite_limit": ">= 0",
    "loss_spike_threshold": ">= 0, != 0",
    "loss_spike_window": ">= 8",
    "loss_spike_skip_steps": ">= 1",
    "loss_spike_limit": ">= 1",
    "device_peak_flops": ">= 0, != 0",
    "save_total_limit": ">= 1",
    "save_interval_minutes": ">= 0, != 0",
    "snapshot_steps": ">= 1",
    "local_rank": ">= -1",
    "sharding_degree": ">= -1, != 0",
    "tensor_parallel_size": ">= 1",
    "sequence_parallel_size": ">= 1",
    "expert_parallel_size": ">= 1",
    "ddp_bucket_cap_mb": ">= 1",
    "ddp_timeout": ">= 1",
    "tpu_num_cores": ">= 1",
    "generation_max_length": ">= 1",
    "generation_num_beams": ">= 1",
    "verify_steps": ">= 0",
}
HOLDS = {">=": operator.ge, "<=": operator.le, "<": operator.lt, "!=": operator.ne}


def is_whole(hint):
    return int in members(hint)


def members(hint):
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def plain(*kinds):
    """The arguments of these types, or None, that are read by no function of their own."""
    found = {name: set(members(hint)) & set(kinds) for name, (hint, _) in ARGUMENTS.items()}
    return [name for name, each in found.items() if each and ARGUMENTS[name][1]["convert"] is None]


def numbers_near(bounds, whole):
    """The bounds, what is just above and below them, and some that are far away."""
    found = {-5, -1, 0, 1, 2, 10**6}
    for _, bound in bounds:
        steps = (bound - 1, bound, bound + 1)
        found |= set(steps if whole else (*steps, math.nextafter(bound, -math.inf), math.nextafter(bound, math.inf)))
    return sorted(found)


def bounds_of(name):
    rules = [rule.split() for rule in RANGES[name].split(", ") if rule != "infinite"]
    return [(sign, float(bound) if "." in bound else int(bound)) for sign, bound in rules]


def test_every_number_with_a_range_is_known():
    limited = ("low", "high", "below")
    found = {name for name, (_, rules) in ARGUMENTS.items() if any(rules[each] is not None for each in limited)}
    found |= {name for name, (_, rules) in ARGUMENTS.items() if rules["never"] or not rules["finite"]}
    assert found == RANGES.keys()


@pytest.mark.parametrize("name", RANGES)
def test_numbers_at_their_bounds(name):
    hint, rules = ARGUMENTS[name]
    public, bounds = rules["public"] or name, bounds_of(name)
    for number in numbers_near(bounds, is_whole(hint)):
        if rules["convert"] is None and all(HOLDS[sign](number, bound) for sign, bound in bounds):
            assert values.convert(public, number, hint, rules) == number
        elif not all(HOLDS[sign](number, bound) for sign, bound in bounds):
            with pytest.raises(ArgumentError, match=f"Invalid {public}="):
                values.convert(public, number, hint, rules)


@pytest.mark.parametrize("name", RANGES)
def test_a_number_outside_is_refused_by_the_constructor(name, tmp_path):
    """Just outside of each bound; the message has what was given and the bound."""
    hint, rules = ARGUMENTS[name]
    outside = {">=": -1, "<=": 1, "<": 0, "!=": 0}
    for sign, bound in bounds_of(name):
        bad = bound + outside[sign]
        with pytest.raises(ArgumentError) as caught:
            Seq2SeqTrainingArguments(str(tmp_path), **{name: bad})
        said = str(caught.value)
        assert f"{rules['public'] or name}={bad!r}" in said and str(bound) in said


@pytest.mark.parametrize("name", plain(float))
def test_infinite_and_undefined_numbers(name):
    hint, rules = ARGUMENTS[name]
    with pytest.raises(ArgumentError):
        values.convert(name, math.nan, hint, rules)
    if "infinite" not in RANGES.get(name, ""):
        with pytest.raises(ArgumentError):
            values.convert(name, math.inf, hint, rules)


@pytest.mark.parametrize("name", [name for name, (_, rules) in ARGUMENTS.items() if rules["choices"] is not None])
def test_lists_of_values(name):
    """Each is accepted as it is and as an enum's member; one more letter is not."""
    hint, rules = ARGUMENTS[name]
    for choice in rules["choices"]:
        if rules["convert"] is None:
            found = values.convert(name, choice, hint, rules)
            assert found == choice or found == [choice]
        if rules["enum"] is not None:
            assert values.convert(name, rules["enum"](choice), hint, rules) == choice
    with pytest.raises(ArgumentError, match=f"Invalid {rules['public'] or name}="):
        values.convert(rules["public"] or name, f"{rules['choices'][0]}x", hint, rules)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_none_stands_for_the_default_where_it_is_declared(name):
    hint, rules = ARGUMENTS[name]
    if type(None) in members(hint):
        assert values.convert(name, None, hint, rules) is None
    elif rules["none"]:
        default = rules["default"]
        assert values.convert(name, None, hint, rules) == (default() if callable(default) else default)
    else:
        with pytest.raises(ArgumentError, match=f"Invalid {name}=None: expected a value other than None"):
            values.convert(name, None, hint, rules)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_default_follows_its_own_rules(name):
    hint, rules = ARGUMENTS[name]
    default = rules["default"]() if callable(rules["default"]) else rules["default"]
    if default is not None:
        assert values.convert(name, default, hint, rules) == default


@pytest.mark.parametrize("name", [name for name in plain(int, float, bool, str) if not ARGUMENTS[name][1]["choices"]])
def test_values_of_another_type(name):
    """Text that is no value, and a container, are refused; the text of a value is read."""
    hint, rules = ARGUMENTS[name]
    for bad in ([3], {"a": 1}, object()) + (("three",) if str not in members(hint) else ()):
        with pytest.raises(ArgumentError, match=f"Invalid {name}="):
            values.convert(name, bad, hint, rules)
    default = rules["default"]
    if default is not None:
        assert values.convert(name, str(default), hint, rules) == default
    if {int, float} & set(members(hint)):
        with pytest.raises(ArgumentError):
            values.convert(name, True, hint, rules)
