"""Arguments in layouts that divide the model: equal to one process, or refused by name (matrix.py)."""

import random

import pytest

pytest.importorskip("transformers")

from oneloop import TrainingArguments
from oneloop.arguments.fields import declared
from tests.distributed import matrix
from tests.distributed.matrix_job import ELSEWHERE, ENTRIES, LAYOUTS

QUICK = 8  # entries of the default suite, from a fixed seed


def wrong(verdicts):
    return {(layout, ENTRIES[n][:2]): said for (layout, n), said in verdicts.items() if said[:1].isupper()}


def test_some_arguments_with_two_processes(tmp_path):
    slow = ("torch_compile", "torch_compile_mode", "torch_compile_backend", "dataloader_multiprocessing_context")
    quick = [n for n, entry in enumerate(ENTRIES) if entry[0] not in slow]
    numbers = sorted(random.Random(31).sample(quick, QUICK))
    verdicts, _ = matrix.compare(tmp_path, ["tp2", "sp2"], numbers)
    assert wrong(verdicts) == {} and len(verdicts) == 2 * QUICK


@pytest.mark.slow
def test_every_argument_in_every_layout(tmp_path):
    names = [name for name in LAYOUTS if "alone" not in name]
    verdicts, _ = matrix.compare(tmp_path, names, range(len(ENTRIES)))
    assert wrong(verdicts) == {}


def test_every_argument_is_in_the_table_or_has_a_reason():
    known = {argument for argument, _, _ in ENTRIES} | set(ELSEWHERE)
    assert known == set(declared(TrainingArguments))


RUN = {"losses": [1.0], "norms": [2.0], "steps": 1, "eval_loss": 3.0, "weights": [4.0]}


@pytest.mark.parametrize(
    ("here", "alone", "said"),
    [
        ({"trained": RUN}, {"trained": RUN}, "equal"),
        ({"trained": RUN | {"losses": [1.0001]}}, {"trained": RUN}, "DIFFERENT losses"),
        ({"trained": RUN | {"norms": [2.0001]}}, {"trained": RUN}, "DIFFERENT norms"),
        ({"trained": RUN | {"weights": [4.1]}}, {"trained": RUN}, "DIFFERENT weights"),
        ({"trained": RUN | {"eval_loss": 3.0001}}, {"trained": RUN}, "DIFFERENT evaluation"),
        ({"trained": RUN | {"steps": 2}}, {"trained": RUN}, "DIFFERENT steps"),
        ({"refused": "UnsupportedError: seed cannot"}, None, "refused"),
        ({"refused": "UnsupportedError: not with tensor_parallel_size"}, {"trained": RUN}, "refused"),
        ({"refused": "UnsupportedError: no"}, {"trained": RUN}, "NAMELESS"),
        ({"refused": "UnsupportedError: no"}, {"refused": "UnsupportedError: no"}, "also on one process"),
        ({"failed": "KeyError: 1"}, {"trained": RUN}, "FAILED"),
        ({"failed": "KeyError: 1"}, {"failed": "KeyError: 1"}, "also on one process"),
        ({"trained": RUN}, {"refused": "ArgumentError: no"}, "TRAINS"),
    ],
)
def test_verdicts(here, alone, said):
    assert matrix.verdict(("seed", 1, {}), "tp2", here, alone, RUN).startswith(said)
