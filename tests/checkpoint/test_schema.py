"""Rules for values that were read from JSON: what each accepts, and how the others are named."""

import math

import pytest

from oneloop.errors import CheckpointError
from oneloop.formats import schema
from oneloop.formats.schema import MOST, Mismatch, alike, check, integer, listing, mapping, number, one_of, optional

NAN, INF = math.nan, math.inf
STEP = schema.record({"step": integer()}, {"reason": schema.text()})
CLOSED = schema.record({"step": integer()}, is_closed=True)

# rule, values that it accepts, values that it does not
RULES = {
    "flag": (schema.flag, [True, False], [0, 1, None, "true"]),
    "integer": (integer(), [0, 7, MOST], [-1, MOST + 1, True, 1.0, "1", None]),
    "integer of a range": (integer(-2, 2), [-2, 0, 2], [-3, 3, False]),
    "number": (number(), [0, -1.5, 10**300], [NAN, INF, 10**400, True, "1", None]),
    "number of a range": (number(0.0, 1.0), [0, 0.5, 1], [-0.1, 1.1]),
    "number above": (number(above=0.0), [1e-9, 5], [0, 0.0, -1]),
    "any number": (schema.any_number, [1, NAN, -INF, "nan", "inf", "-inf"], [True, "NaN", "1", None]),
    "hex number": (schema.hex_number, ["0x1.8p+1", "nan", "-inf"], ["x", 1.5, None]),
    "text": (schema.text(), ["", "a"], [1, None, "a\0b", "\ud800"]),
    "text of a pattern": (schema.text("[a-f]+"), ["abc"], ["abcx", "xabc", ""]),
    "optional": (optional(integer()), [None, 3], ["3"]),
    "unless empty": (schema.unless_empty(STEP), [{}, {"step": 1}], [{"reason": "a"}, []]),
    "one of": (one_of(integer(), schema.text("auto")), [3, "auto"], ["3", None]),
    "list": (listing(integer()), [[], [1], [1, 2, 3]], [[1, "2"], ["1", 2], (1,), {}]),
    "list of two": (listing(integer(), 2), [[1, 2]], [[1], [1, 2, 3], []]),
    "mapping": (mapping(integer()), [{}, {"a": 1, "b": 2}], [{"a": 1, "b": "2"}, [], {"a\0": 1}]),
    "record": (
        STEP,
        [{"step": 1}, {"step": 1, "reason": "a", "more": []}],
        [{}, {"step": "1"}, {"step": 1, "reason": 2}],
    ),
    "closed record": (CLOSED, [{"step": 1}], [{"step": 1, "more": 2}]),
    "like null": (alike(None), [None, True, "a", 1.5], [NAN, [1], {"a": 1}]),
    "like a flag": (alike(True), [None, False], [0, "true"]),
    "like a number": (alike(0.5), [1, -2.5], [NAN, INF, True, "1", None]),
    "like a number, maybe NaN": (alike(0.5, is_finite_only=False), [1, NAN, INF], [True, "1", None]),
    "like text": (alike("a"), ["", "b"], [1, None]),
    "like a list": (alike([0.9, 0.99]), [[0.1, 0.2], (1, 2)], [[0.1], [0.1, 0.2, 0.3], [0.1, "0.2"], 0.5]),
    "like an object": (
        alike({"a": 1, "b": [1]}),
        [{}, {"a": 2, "b": [0]}, {"c": "x"}],
        [{"a": "2"}, {"b": [1, 2]}, []],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_accepts(name):
    rule, good, bad = RULES[name]
    for value in good:
        assert check(value, rule, "run.json") is value
    for value in bad:
        with pytest.raises(CheckpointError, match=r"run\.json is not valid: "):
            check(value, rule, "run.json")


@pytest.mark.parametrize(
    "rule, value, message",
    [
        (integer(), "7", "it is '7', expected an integer from 0 to 9007199254740992"),
        (STEP, {"reason": "a"}, "it has no step"),
        (CLOSED, {"step": 1, "more": 2, "and": 3}, "it has the unknown field 'and'"),
        (schema.record({"a": STEP}), {"a": {"step": []}}, "a.step is a list of 0, expected an integer from 0 to"),
        (listing(listing(integer())), [[1], [1, {}]], r"\[1\]\[1\] is an object of 0, expected an integer"),
        (mapping(integer()), {"a": -1}, "'a' is -1, expected an integer from 0 to"),
        (number(0.0, 1.0), 2, "it is 2, expected a finite number of at least 0 up to 1"),
        (one_of(schema.flag, integer(0, 3)), 4, "it is 4, expected true or false or an integer from 0 to 3"),
        (alike({"betas": [0.9]}), {"betas": ["x"]}, r"betas\[0\] is 'x', expected a finite number"),
        (schema.text(), "x" * 90 + "\0", r"it is 'x{56}\.\.\., expected text"),
    ],
)
def test_a_message_names_the_place(rule, value, message):
    with pytest.raises(Mismatch, match=message):
        rule(value, "")
