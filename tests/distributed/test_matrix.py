"""Arguments in layouts that divide the model: equal to one process, or refused by name (matrix.py)."""

import json
import random

import pytest

pytest.importorskip("transformers")

from oneloop import TrainingArguments
from oneloop.arguments.fields import declared
from tests.distributed import matrix
from tests.distributed.matrix_job import DIVIDED, ELSEWHERE, ENTRIES

QUICK = 8  # entries of the default suite, from a fixed seed


def wrong(verdicts):
    return {(layout, ENTRIES[n][:2]): said for (layout, n), said in verdicts.items() if said[:1].isupper()}


def test_some_arguments_with_two_processes(tmp_path):
    slow = ("torch_compile", "torch_compile_mode", "torch_compile_backend", "dataloader_multiprocessing_context")
    quick = [n for n, entry in enumerate(ENTRIES) if entry[0] not in slow]
    numbers = sorted(random.Random(31).sample(quick, QUICK))
    verdicts, _ = matrix.compare(tmp_path, ["tp2", "sp2"], numbers)
    assert wrong(verdicts) == {} and len(verdicts) == 2 * QUICK
    on_page = matrix.cells(matrix.PAGE.read_text())
    for (layout, n), said in verdicts.items():
        assert on_page[matrix.label(n)][DIVIDED.index(layout)] == said, "python -m tests.distributed.matrix --write"


@pytest.mark.slow
def test_every_argument_in_every_layout(tmp_path):
    verdicts, every = matrix.compare(tmp_path, DIVIDED, range(len(ENTRIES)))
    assert wrong(verdicts) == {}
    assert matrix.page(verdicts, every, DIVIDED, range(len(ENTRIES))) == matrix.PAGE.read_text()


def test_the_page_has_every_argument_and_nothing_that_is_wrong():
    on_page = matrix.cells(matrix.PAGE.read_text())
    assert list(on_page) == list(dict.fromkeys(matrix.label(n) for n in range(len(ENTRIES))))
    assert all(len(row) == len(DIVIDED) and set(row) <= set(matrix.GOOD) for row in on_page.values())


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


def number_of(argument):
    return next(n for n, entry in enumerate(ENTRIES) if entry[0] == argument)


def test_what_a_run_is_compared_with():
    seed, batches, several = map(number_of, ("seed", "average_tokens_across_devices", "fsdp_config"))
    assert matrix.reference("tp2", seed) == ("alone", seed)
    assert matrix.reference("ep2", seed) == ("alone with experts", seed)
    assert matrix.reference("tp2", batches) == ("alone", batches)
    assert matrix.reference("tp2 x shard2", batches) == ("dp2", batches)
    assert matrix.reference("tp2 x shard2", several) == ("alone", matrix.PLAIN)


def test_half_precision_may_be_as_far_as_it_is_from_float32():
    half = RUN | {"losses": [1.01]}
    for loss, said in ((1.015, "equal"), (1.025, "DIFFERENT losses")):
        here = {"trained": half | {"losses": [loss], "norms": [9.0]}}
        assert matrix.verdict(("bf16", True, {}), "tp2", here, {"trained": half}, RUN).startswith(said)


def test_processes_that_die_fail_one_run_and_the_others_are_made(tmp_path, monkeypatch):
    def outcome(processes, folder, layout, *numbers, script):
        done = numbers if numbers[0] != 0 else numbers[:2]  # they die in the run of number 2
        lines = [json.dumps({"number": n, "trained": RUN}) + "\n" for n in done]
        with (tmp_path / f"{layout}.jsonl").open("a") as file:
            file.write("".join(lines))
        return [1, 0] if done != numbers else [0, 0], "killed"

    monkeypatch.setattr(matrix, "outcome", outcome)
    found = matrix.run_all(tmp_path, "tp2", range(5))
    assert list(found) == [0, 1, 2, 3, 4] and "killed" in found[2].pop("failed") and found[2] == {}
    assert all(found[n] == {"trained": RUN} for n in (0, 1, 3, 4))


def test_a_page_has_a_cell_for_each_layout():
    numbers = [number_of("seed"), number_of("bf16_full_eval")]
    verdicts = dict.fromkeys(((layout, n) for layout in ("tp2", "sp2") for n in numbers), "equal")
    verdicts["tp2", numbers[0]] = "DIFFERENT losses: 1 and 2"
    verdicts["sp2", numbers[1]] = "refused"
    every = {"sp2": {numbers[1]: {"refused": "UnsupportedError: it is | divided. Use another"}}}
    text = matrix.page(verdicts, every, ["tp2", "sp2"], numbers)
    labels = [matrix.label(n) for n in numbers]
    assert matrix.cells(text) == {labels[0]: ["**different**", "equal"], labels[1]: ["equal", "refused"]}
    assert "| `bf16_full_eval` | sp2 | it is / divided |" in text
    assert all(f"| `{argument}` | " in text for argument in ELSEWHERE)
