"""Recipes as files and as options: their keys, and what is wrong with them."""

import json
import re
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml

from oneloop.cli.main import main
from oneloop.errors import MissingPackageError, UnsupportedError
from oneloop.recipes import job, libraries, recipe, script, template
from oneloop.recipes.tasks import TASKS
from tests.recipes import kitchen

BASE = ["--task", "classification", "--model", "bert", "--data", "reviews.jsonl"]
REGRESSION = ["--task", "regression", *BASE[2:]]


def fails(words, capsys):
    """The message of a command that fails."""
    try:
        assert main(["train", *words]) == 2
    except SystemExit as end:
        assert end.code == 2
    return capsys.readouterr().err


def resolve(*words):
    return job.resolve(recipe.read([*BASE, *words]))[0]


def test_a_file_and_options_are_the_same_recipe(at, tmp_path):
    keys = {"task": "classification", "model": "bert", "data": "reviews.jsonl", "learning_rate": "1e-3", "max_steps": 5}
    (tmp_path / "recipe.json").write_text(json.dumps(keys))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(keys))
    options = script.write(resolve("--learning_rate", "1e-3", "--max_steps", "5"))
    for name in ("recipe.json", "recipe.yaml"):
        found = job.resolve(recipe.read([str(tmp_path / name)]))[0]
        assert script.write(found).replace('"1e-3"', "0.001") == options
    found = job.resolve(recipe.read([str(tmp_path / "recipe.yaml"), "--max-steps", "7", "--eval_split", "0"]))[0]
    assert found.arguments["max_steps"] == 7 and "eval_strategy" not in found.arguments


def test_options_override_the_file_by_any_alias(at, tmp_path):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"evaluation_strategy": "steps", "eval_steps": 3}))
    found = job.resolve(recipe.read([str(tmp_path / "recipe.yaml"), *BASE, "--eval_strategy", "no"]))[0]
    assert found.arguments["eval_strategy"] == "no" and "evaluation_strategy" not in found.arguments
    assert "load_best_model_at_end" not in found.arguments


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*BASE, "--lerning_rate", "1"], "unknown option --lerning_rate (did you mean --learning_rate?)"),
        ([*BASE, "--colums", "a=b"], "did you mean --columns?"),
        (BASE[2:], "no task . Tasks:\n  classification"),
        (["--task", "clasification", *BASE[2:]], "clasification"),
        (BASE[:4], "the recipe has no data"),
        ([*BASE, "--columns", "txt=review"], "its roles are text, text_pair, label, labels. Did you mean text?"),
        ([*BASE, "--columns", "text=reviw"], "only 'review', 'sentiment', 'id'. Did you mean 'review'?"),
        ([*BASE, "--columns", "review"], "expected ROLE=COLUMN"),
        ([*BASE, "--labels", "a", "a"], "each once"),
        ([*BASE, "--labels", "animal", "plant"], "its label 'thing' is not one of the labels"),
        ([*BASE, "--max_length", "100"], "accepts at most 32 tokens"),
        ([*BASE, "--packing", "true"], "packing is for language models"),
        ([*BASE, "--lora", '{"rank": 8}'], "lora: unknown option 'rank'; expected r, alpha"),
        ([*BASE, "--from_scratch"], "from_scratch is for pretrain"),
        ([*BASE, "--search", '{"learning_rate": 1}', "--device", "cpu"], "expected a list of values, or low and high"),
        ([*BASE, "--eval_split", "1"], "expected a fraction"),
        ([*BASE[:2], "--model", "./nowhere", *BASE[4:]], "there is no folder ./nowhere with a model"),
        ([*BASE, "recipe.yaml"], "the recipe comes first"),
        (["reviews.jsonl"], "is not a recipe"),
        (["missing.yaml"], "missing.yaml cannot be read"),
        (["--task", "sft", *BASE[2:]], "sft needs columns for prompt and completion or messages"),
        ([*REGRESSION, "--columns", "text=review", "number=sentiment"], "expected a finite number"),
        ([*REGRESSION, "--columns", "text=review", "number=id", "--labels", "a", "b"], "labels are for classes"),
    ],
)  # fmt: skip
def test_mistakes(words, message, at, capsys):
    assert message in fails(words, capsys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerning_rate: 1\n", "unknown key 'lerning_rate' (did you mean 'learning_rate'?)"),
        ("task: sft\ntask: sft\n", "occurs twice"),
        ("- a\n", "expected a mapping"),
        ("data: [1, 2]\n", "data: expected a file or a list of files"),
        ("data: {a: []}\n", "data: a: expected a file or a list of files"),
        ("columns: {text: [a]}\n", "expected the name of a column for each role"),
        ("a: !!python/object/apply:os.system [echo]\n", "not valid YAML"),
    ],
)
def test_mistakes_in_a_file(text, message, at, tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    given = [word for key in ("task", "model", "data") if f"{key}:" not in text for word in _option(key)]
    assert message in fails([str(path), *given], capsys)


def _option(key):
    return BASE[BASE.index(f"--{key}") :][:2]


@pytest.mark.parametrize("task", TASKS)
def test_a_new_recipe_says_what_it_needs_and_is_valid(task, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--task", task]) == 0
    assert main(["init", "--task", task]) == 2  # it is there
    assert main(["init", "--task", task, "--force", "recipe.yaml"]) == 0
    given = recipe.read(["recipe.yaml"])
    assert given.recipe.task == task and given.recipe.data == "data.jsonl"
    # Each line that is commented out is a key that exists.
    lines = [line[2:] for line in template.write(task).splitlines() if line.startswith("# ")]
    keys = {line.split(":")[0]: line for line in lines if re.match(r"[a-z_]+: ", line) and not line.startswith(task)}
    keys.pop("data", None)
    assert len(keys) > 10
    with open("recipe.yaml", "a") as f:
        f.writelines(line + "\n" for line in keys.values())
    given = recipe.read(["recipe.yaml"])
    assert (
        given.recipe.lora is True
        and given.arguments["num_train_epochs"] == TASKS[task].defaults["num_train_epochs"].value
    )


def test_an_unknown_task_is_near_a_known_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--task", "clasification"]) == 2
    assert "Did you mean classification?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# -- what is decided


def test_columns_by_their_names(at, tmp_path):
    rows = kitchen.read_jsonl(at / "reviews.jsonl")
    variants = {
        ("Sentence1", "Sentence2", "LABEL"): {"text": "Sentence1", "text_pair": "Sentence2", "label": "LABEL"},
        ("premise", "hypothesis", "label"): {"text": "premise", "text_pair": "hypothesis", "label": "label"},
        ("comment", "other", "category"): {"text": "comment", "label": "category"},
    }
    for names, columns in variants.items():
        kitchen.write_jsonl(
            tmp_path / "a.jsonl", [dict(zip(names, (r["review"], r["review"], r["sentiment"]))) for r in rows]
        )
        assert resolve("--data", str(tmp_path / "a.jsonl")).columns == columns


@pytest.mark.parametrize(
    ("column", "values", "role"),
    [
        ("tags", ["red", "red;green"], "labels"),  # the first row has one of several
        ("labels", ['["red"]', '["red", "green"]'], "labels"),
        ("categories", ["red;green", ""], "labels"),
        ("label", ["red;green", "blue"], "label"),
        ("labels", ["red", "green"], "label"),
        ("label", [["red"], ["green", "red"]], "labels"),
    ],
)
def test_one_label_or_several_by_the_values(column, values, role, at, tmp_path):
    rows = [{"text": f"cat {word}", column: values[i % 2]} for i, word in enumerate(kitchen.tiny_text.WORDS)]
    kitchen.write_jsonl(tmp_path / "a.jsonl", rows)
    found = resolve("--data", str(tmp_path / "a.jsonl"), "--bad_rows", "skip")
    assert found.columns == {"text": "text", role: column}


def test_a_column_has_one_role(at, tmp_path):
    rows = kitchen.read_jsonl(at / "reviews.jsonl")
    kitchen.write_jsonl(tmp_path / "a.jsonl", [{"text": row["sentiment"], "review": row["review"]} for row in rows])
    found = resolve("--data", str(tmp_path / "a.jsonl"), "--columns", "label=text")
    assert found.columns == {"text": "review", "label": "text"}
    pairs = [{"sentence1": row["review"], "sentence2": row["sentiment"]} for row in rows]
    kitchen.write_jsonl(tmp_path / "b.jsonl", pairs)
    found = resolve("--data", str(tmp_path / "b.jsonl"), "--columns", "label=sentence2")
    assert found.columns == {"text": "sentence1", "label": "sentence2"}


def test_numbers_as_labels_are_in_their_order(at, tmp_path):
    rows = [{"text": f"cat {word}", "label": i % 12} for i, word in enumerate(kitchen.tiny_text.WORDS)]
    kitchen.write_jsonl(tmp_path / "a.jsonl", rows)
    assert resolve("--data", str(tmp_path / "a.jsonl")).labels == [str(i) for i in range(12)]


def test_labels_of_the_model_keep_their_order(at, tmp_path):
    kitchen.tiny_text.bert(
        tmp_path / "own", "BertForSequenceClassification", id2label={0: "thing", 1: "animal", 2: "plant"}
    )
    assert resolve("--model", str(tmp_path / "own")).labels == ["thing", "animal", "plant"]
    assert resolve().labels == ["animal", "thing"]
    assert resolve("--labels", "thing", "animal").labels == ["thing", "animal"]


def test_a_column_of_numbers_is_hardly_a_label(at, tmp_path, capsys):
    rows = [{"text": f"cat {i}", "label": f"{i}"} for i in range(150)]
    kitchen.write_jsonl(tmp_path / "a.jsonl", rows)
    assert "150 different labels in 150 rows" in fails([*BASE, "--data", str(tmp_path / "a.jsonl")], capsys)
    kitchen.write_jsonl(tmp_path / "a.jsonl", [{**row, "label": "a"} for row in rows])
    assert "all rows have the label 'a'" in fails([*BASE, "--data", str(tmp_path / "a.jsonl")], capsys)


def test_defaults_make_way_for_what_is_given(at):
    found = resolve("--warmup_steps", "5", "--max_steps", "9", "--eval_steps", "3", "--save_steps", "3").arguments
    assert not {"num_train_epochs", "warmup_ratio"} & set(found)
    assert found["eval_strategy"] == found["save_strategy"] == "steps"
    assert resolve().arguments["learning_rate"] == 3e-5
    assert resolve("--lora").arguments["learning_rate"] == 3e-4


def test_the_best_model_is_the_one_with_the_better_metric(at):
    found = resolve().arguments
    assert (found["metric_for_best_model"], found["greater_is_better"]) == ("accuracy", True)
    for words, metric in (
        (["--task", "regression", "--data", "stars.csv"], "rmse"),
        (["--task", "sft", "--model", "llama", "--data", "answers.jsonl"], "loss"),
    ):
        found = resolve(*words).arguments
        assert (found["metric_for_best_model"], found["greater_is_better"]) == (metric, False)


def test_no_secret_is_written_into_a_script(at, capsys):
    token = "hf_" + "a1B2" * 8
    assert main(["train", *BASE, "--hub_token", token, "--script"]) == 0
    said = capsys.readouterr()
    assert token not in said.out + said.err
    assert "# hub_token: a secret" in said.out
    compile(said.out, "script.py", "exec")


def test_names_cannot_write_code_into_a_script(at, tmp_path):
    name = 'x"]\n)\nraise SystemExit(1)\n"""'
    rows = kitchen.read_jsonl(at / "reviews.jsonl")
    file = tmp_path / 'a"\n#.jsonl'
    kitchen.write_jsonl(file, [{name: row["review"], "label": row["sentiment"] + name} for row in rows])
    found = job.resolve(recipe.read([*BASE[:4], "--data", str(file), "--columns", f"text={name}"]))[0]
    found.model = name
    text = script.write(found)
    names = {}
    exec(compile(text, "script.py", "exec"), names)  # main() is not called
    assert names["COLUMNS"] == {"text": name, "label": "label"} and names["MODEL"] == name
    assert names["LABELS"] == found.labels


def test_a_row_that_a_chat_template_rejects_is_shown(at, tmp_path, capsys):
    from tests.ecosystem import tiny

    words = tiny.tokenizer()
    words.chat_template = "{{ raise_exception('no system messages') if messages[0]['role'] == 'system' else 'yes' }}"
    words.save_pretrained(tmp_path / "words")
    answer = {"role": "assistant", "content": "yes"}
    chats = [[{"role": role, "content": "hello"}, answer] for role in ("user", "system")]
    kitchen.write_jsonl(tmp_path / "a.jsonl", [{"messages": chat} for chat in chats])
    given = ["--task", "sft", "--model", "llama", "--tokenizer", str(tmp_path / "words"), "--eval_split", "0"]
    said = fails([*given, "--data", str(tmp_path / "a.jsonl")], capsys)
    assert "a row cannot be encoded: no system messages" in said and '"role": "system"' in said
    words.chat_template = None
    words.save_pretrained(tmp_path / "none")
    given[given.index("--tokenizer") + 1] = str(tmp_path / "none")
    assert "chat_template is not set" in fails([*given, "--data", "chats.jsonl"], capsys)


# -- libraries


def test_a_framework_without_models_names_the_command(at, capsys, monkeypatch):
    monkeypatch.setattr(libraries.Library, "is_installed", property(lambda self: False))
    said = fails([*BASE, "--framework", "paddle"], capsys)
    assert "Run `pip install paddlepaddle paddleformers` or `pip install paddlepaddle paddlenlp==2.8.1 " in said
    assert "`pip install mindspore==2.7.0 mindnlp==0.5.1 " in fails([*BASE, "--framework", "mindspore"], capsys)
    assert "pip install 'oneloop[torch,transformers]'" in fails(BASE, capsys)


def test_bad_rows_of_the_data_to_evaluate(at, tmp_path, capsys):
    """They are treated as those to train: named or left out, also for a label that the recipe does not have."""
    rows = [{"review": "the cat sat", "sentiment": label} for label in ("animal", "thing", "plant")]
    kitchen.write_jsonl(tmp_path / "test.jsonl", [*rows, {"review": None, "sentiment": "thing"}])
    given = ["--eval_data", str(tmp_path / "test.jsonl"), "--labels", "animal", "thing"]
    said = fails([*BASE, *given], capsys)
    assert "2 of 4 rows cannot be used" in said
    assert "test.jsonl:3: its label 'plant' is not one of the labels" in said and "test.jsonl:4" in said
    made, data, _ = job.resolve(recipe.read([*BASE, *given, "--bad_rows", "skip"]))
    assert len(data.held_out) == 2 and "2 rows, 2 left out" in dict(made.said)["eval_data"]


@pytest.fixture
def stand_in(monkeypatch):
    """A library of Paddle as `stand_in(**names)` describes it: the names in its module."""

    def make(**names):
        monkeypatch.setitem(sys.modules, "a_library", SimpleNamespace(**names))
        return libraries.Library("paddle", "a_library", "a_library", "pip install a_library")

    return make


def test_a_library_that_cannot_be_imported_names_releases_that_can(stand_in, monkeypatch):
    library = stand_in()
    monkeypatch.setitem(sys.modules, "a_library", None)
    with pytest.raises(MissingPackageError, match="a_library is installed, but cannot .*`pip install a_library`"):
        libraries.tokenizer(library, "bert")


def test_a_kind_of_model_that_the_library_does_not_have(stand_in):
    def from_pretrained(name, **options):
        raise AttributeError("no attribute 'LlamaForSequenceClassification'")

    library = stand_in(AutoModelForSequenceClassification=SimpleNamespace(from_pretrained=from_pretrained))
    words = "a_library has no AutoModelForSequenceClassification for llama .*LlamaForSeq.*another framework"
    with pytest.raises(UnsupportedError, match=words):
        libraries.model(library, TASKS["classification"], "llama", {})
    with pytest.raises(UnsupportedError, match="a_library has no AutoModelForSeq2SeqLM, so it cannot do this task"):
        libraries.model(library, TASKS["seq2seq"], "llama", {})


def test_labels_are_counted_by_the_name_that_the_library_has_for_it():
    seen = {}
    options = next(each for each in libraries.LIBRARIES if each.distribution == "paddlenlp").options
    module = SimpleNamespace(
        AutoModelForSequenceClassification=SimpleNamespace(from_pretrained=lambda name, **given: seen.update(given))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "a_library", module)
        library = libraries.Library("paddle", "a_library", "a_library", "", options=options)
        libraries.model(library, TASKS["classification"], "bert", {"num_labels": 3, "id2label": {}})
    assert seen == {"num_classes": 3, "id2label": {}}


def test_a_model_that_is_in_no_folder_was_looked_for_on_the_hub(at, capsys, monkeypatch):
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", Mock(side_effect=OSError("gone")))
    said = fails([*BASE[:2], "--model", "brt", *BASE[4:]], capsys)
    assert f"the tokenizer of brt cannot be loaded (there is no folder brt in {at}, so the Hub was asked): gone" in said
    assert "so the Hub was asked" not in fails(BASE, capsys)


def test_tags_need_the_words_of_tokens(at, capsys, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", False)
    said = fails(["--task", "token-classification", "--model", "bert", "--data", "names.jsonl"], capsys)
    assert "token-classification needs a tokenizer that knows the word of each token" in said


@pytest.mark.parametrize(
    ("config", "tokenizer", "limit"),
    [
        ({"max_position_embeddings": 512}, {"model_max_length": 128}, 128),
        ({"max_position_embeddings": 64}, {"model_max_length": 10**30}, 64),  # of a tokenizer that knows none
        ({"n_positions": 32}, {}, 32),
        ({"max_position_embeddings": -1}, {"model_max_length": None}, None),
    ],
)
def test_the_most_tokens_that_a_model_accepts(config, tokenizer, limit):
    assert libraries.limit(SimpleNamespace(**config), SimpleNamespace(**tokenizer)) == limit


def test_a_missing_peft_names_the_command(at, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    assert "pip install peft" in fails([*BASE, "--lora", "--device", "cpu", "--report_to", "none"], capsys)


def test_help_has_the_keys_of_a_recipe_and_all_arguments(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert all(option in said for option in ("--task", "--columns", "--bad_rows", "--learning_rate", "--script"))
