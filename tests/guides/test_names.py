"""The five documents name 103 training arguments between them: each is in a test here, and each is an option."""

import json
from dataclasses import fields
from importlib import util
from pathlib import Path

import pytest

from oneloop import HfArgumentParser, Seq2SeqTrainingArguments

HERE = Path(__file__).parent
SEEDS = json.loads((HERE.parent / "arguments" / "fields.json").read_text())["seeds"]
SEQ2SEQ = {
    "sortish_sampler": True,
    "predict_with_generate": True,
    "generation_max_length": 6,
    "generation_num_beams": 2,
}
# In the guides that have no list of their own; the rest of what they name is in the lists of the other two.
MINDNLP_AND_NOTES = {"eval_strategy": "epoch", "learning_rate": 2e-5, "optim": "sgd", "save_steps": 10}


def _table(module, *names):
    spec = util.spec_from_file_location(f"seeds_{module}", HERE / f"{module}.py")
    loaded = util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return [getattr(loaded, name) for name in names]


(OPTIONS,) = _table("test_paddlenlp_guide", "OPTIONS")
WORKS, REFUSED = _table("test_huggingface_guide", "WORKS", "REFUSED")
GIVEN = REFUSED | OPTIONS | WORKS | SEQ2SEQ | MINDNLP_AND_NOTES


def test_the_tests_have_all_names_of_the_documents():
    assert len(SEEDS) == 103
    assert set(SEEDS) == set(GIVEN) - {"eval_strategy"}  # a later spelling of evaluation_strategy


@pytest.mark.parametrize("name", SEEDS)
def test_a_name_as_an_argument_and_as_an_option(name):
    value = GIVEN[name]
    words = [json.dumps(value)] if isinstance(value, dict) else value if isinstance(value, list) else [str(value)]
    given = {"output_dir": "out", name: value}
    parser = HfArgumentParser(Seq2SeqTrainingArguments)
    (parsed,) = parser.parse_args_into_dataclasses(["--output_dir", given["output_dir"], f"--{name}", *words])
    written = Seq2SeqTrainingArguments(**given)
    assert parsed == written
    stored = {field.name for field in fields(written)}
    assert name in stored or name in Seq2SeqTrainingArguments.__aliases__
