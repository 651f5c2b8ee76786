"""docs/arguments.md says what the code does."""

import json
import re
from pathlib import Path

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments, page
from oneloop.arguments.support import all_unsupported, answer

LISTS = json.loads((Path(__file__).parent / "fields.json").read_text())


def test_the_page_is_up_to_date():
    assert page.PAGE.read_text(encoding="utf-8") == page.render()
    assert page.main(["--check"]) == 0


def test_a_page_that_is_not_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "PAGE", tmp_path / "arguments.md")
    assert page.main(["--check"]) == 1
    assert "python -m oneloop.arguments.page" in capsys.readouterr().err
    assert page.main([]) == 0
    assert page.main(["--check"]) == 0


@pytest.mark.parametrize("name", sorted(set().union(*LISTS.values())))
def test_every_name_is_on_the_page(name):
    assert f"`{name}`" in page.render()


def test_every_row_says_where_the_argument_works():
    rows = [line for line in page.render().split("## Aliases")[0].splitlines() if line.startswith("| `")]
    assert len(rows) == len(page.declared(Seq2SeqTrainingArguments))
    for row in rows:
        cells = re.split(r"(?<!\\)\|", row)[1:-1]
        assert len(cells) == 4 and all(cell.strip() for cell in cells)


@pytest.mark.parametrize(
    ("name", "torch", "paddle"),
    [
        ("learning_rate", "works", "works"),
        ("optim", "works in part", "works in part"),
        ("tf32", "works in part", "works in part"),
        ("bf16", "works", "works in part"),
        ("torch_compile_mode", "works", "refuses"),
        ("ddp_timeout", "idle", "idle"),
        ("use_ipex", "refuses", "refuses"),
        ("push_to_hub", "works in part", "works in part"),
        ("hub_token", "works in part", "works in part"),
        ("project", "works in part", "works in part"),
        ("sharding", "idle", "idle"),
    ],
)
def test_answers(name, torch, paddle):
    assert answer(name, "torch") == torch
    assert answer(name, "paddle") == paddle


def test_one_answer_stands_for_all_frameworks_and_otherwise_each_is_named():
    where = {}
    for line in page.render().split("## Aliases")[0].splitlines():
        if line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            where[re.findall(r"`([^`]+)`", cells[0])[0]] = cells[-1].strip()
    assert where["learning_rate"] == "everywhere"
    assert where["ddp_timeout"] == "for several processes"
    assert where["torch_compile_mode"] == "torch: works<br>paddle, mindspore: [refuses](#refused)"
    assert where["optim"] == "everywhere, with [exceptions](#refused)"


def test_every_refusal_stands_on_the_page():
    refused = page.render().split("## Refused")[1]
    for unsupported in all_unsupported():
        assert any(
            f"`{unsupported.argument}`" in line and unsupported.value_text in line for line in refused.splitlines()
        )
