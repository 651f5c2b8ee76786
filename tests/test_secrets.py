"""No secret in anything that is written, pushed or printed; and nothing hidden that is none."""

import dataclasses
import importlib.util
import json
import keyword
import logging
import re
import subprocess
import types
from pathlib import Path

import pytest

from oneloop import ArgumentParser, MLflowCallback, Trainer, TrainerCallback, TrainingArguments, secrets
from oneloop.checkpoint.sharded import note_text
from oneloop.cli import doctor
from oneloop.cli.main import main
from oneloop.errors import ArgumentError, DataError, StorageError
from oneloop.integrations.hub import card
from oneloop.integrations.search.trials import format_values
from oneloop.integrations.writers.base import configuration, public_arguments
from oneloop.report import write_comparison, write_page
from oneloop.state import ExportableState
from oneloop.trainer.event_log import LONGEST, Record
from tests.backends.support import rows
from tests.integrations.hub.stand_in import serving
from tests.secret_cases import (
    CANARY,
    INNOCENT_NAMES,
    INNOCENT_TEXTS,
    SECRET_NAMES,
    TOKENS,
    Client,
    Mail,
    Pair,
    canary,
    objects,
    seen,
    texts,
)


@pytest.fixture(autouse=True)
def forgets(monkeypatch):
    """Secrets that earlier tests of this process gave are hidden in every text."""
    monkeypatch.setattr(secrets, "_known", {})


def test_names_of_secrets_and_innocent_ones():
    assert len(SECRET_NAMES) >= 60 and len(INNOCENT_NAMES) >= 80
    assert [name for name in SECRET_NAMES if not secrets.is_secret(name)] == []
    assert [name for name in INNOCENT_NAMES if secrets.is_secret(name)] == []


def test_no_argument_of_ours_or_of_other_libraries_is_hidden(tmp_path):
    own = {item.name for item in dataclasses.fields(TrainingArguments)}
    assert {name for name in own if secrets.is_secret(name)} == {"hub_token", "push_to_hub_token"} & own
    shown = TrainingArguments(str(tmp_path), hub_token=canary("mine")).to_dict()
    assert [name for name, value in shown.items() if "<" in str(value)] == ["hub_token"]


@pytest.mark.parametrize("module", ["transformers", "peft", "trl"])
def test_no_field_of_other_libraries_is_hidden(module):
    """Their names are read from the source: importing all classes of transformers takes half a minute."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        pytest.skip(f"{module} is not installed")
    names = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        if "config" in path.name or "training_args" in path.name:
            names |= set(re.findall(r"^ {4,8}([a-z]\w*)\s*: ", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(names) > 100 and {"peft": "lora_alpha", "trl": "beta"}.get(module, "max_steps") in names
    secret = {name for name in names if secrets.hides(name, "some value")}
    assert secret <= {"hub_token", "push_to_hub_token", "token", "use_auth_token"}


def nested(depth):
    """Secrets of every name, `depth` dictionaries and lists deep."""
    values = {name: canary(name, depth) for name in SECRET_NAMES}
    for level in range(depth):
        values = {"inner": [values, {"plain": level}]} if level % 2 else {"inner": values, "tokens": 3}
    return values


@pytest.mark.parametrize("depth", range(6))
def test_data_at_any_depth(depth):
    text = json.dumps(secrets.clean(nested(depth)))
    assert CANARY not in text and text.count("<") == len(SECRET_NAMES)


def test_everything_below_the_name_of_a_secret_is_hidden():
    found = secrets.clean({"credentials": {"user": "me", "parts": ["one", 2], "key": {"id": "x"}}, "tokens": ["a"]})
    assert found == {
        "credentials": {
            "user": "<CREDENTIALS>",
            "parts": "<CREDENTIALS>",
            "key": {"id": "<CREDENTIALS>"},
        },
        "tokens": ["a"],
    }


def test_innocent_values_come_through_unchanged():
    values = {name: f"value of {name}" for name in INNOCENT_NAMES}
    assert secrets.clean({"a": [values]}) == {"a": [values]}
    assert secrets.clean({"hub_token": None, "use_auth_token": True}) == {"hub_token": None, "use_auth_token": True}


@pytest.mark.parametrize("text", texts())
def test_texts_with_secrets(monkeypatch, text):
    monkeypatch.setattr(secrets, "_known", {})
    found = secrets.clean_text(text)
    assert seen(found) == [] and "<" in found
    assert secrets.clean_text(found) == found
    assert seen(str(DataError(f"cannot read: {text}"))) == [] == seen(str(StorageError(None, f"no answer: {text}")))


@pytest.mark.parametrize("text", INNOCENT_TEXTS)
def test_innocent_texts_come_through_unchanged(text):
    assert secrets.clean_text(text) == text


@pytest.mark.parametrize("name", objects())
def test_objects_with_secrets(monkeypatch, name):
    monkeypatch.setattr(secrets, "_known", {})
    found = secrets.clean({name: objects()[name]})
    assert seen(json.dumps(found, default=str) + repr(found)) == []
    secrets.remember(name, objects()[name])  # and from now on in any text, wherever it was
    assert secrets._known or name in ("path", "raw", "words", "argv", "pairs", "PASSWORD_AS_NUMBER")


def test_objects_without_secrets_stay_what_they_are():
    @dataclasses.dataclass
    class Shape:
        max_tokens: int = 3
        sort_key: str = "length"

    values = {
        "shape": Shape(),
        "kind": Shape,
        "path": Path("/tmp/tokenizer"),
        "raw": b"tokens",
        "loss": print,
        "x": 0.5,
    }
    found = secrets.clean(values)
    assert all(found[name] is value for name, value in values.items())
    assert secrets.clean({"api_tokens": [1, 2], "smtp_pass": "", "eval_password_f1": 0.5, "hub_tokens": []}) == {
        "api_tokens": [1, 2],
        "smtp_pass": "",
        "eval_password_f1": 0.5,
        "hub_tokens": [],
    }


def test_what_the_value_says_where_the_name_is_not_enough():
    shown = {
        "rollout_key": "completion",
        "acme_key": "messages.0.content",
        "user_token": "<|user|>",
        "file_pat": "data",
    }
    assert secrets.clean(shown) == shown
    hidden = {
        "rollout_key": "9f86d081884c",
        "acme_key": "AbXyKqPwZz",
        "user_token": "u1-7c9e6679",
        "file_pat": "a7/x==",
    }
    assert secrets.clean(hidden) == {name: f"<{name.upper()}>" for name in hidden}


def test_passwords_of_urls_are_known_afterwards(monkeypatch):
    monkeypatch.setattr(secrets, "_known", {})
    secrets.remember("database_url", f"postgres://me:{canary('url')}@db/x")
    assert secrets.clean_text(f"authentication of me with {canary('url')} failed") == (
        "authentication of me with <PASSWORD> failed"
    )
    monkeypatch.setenv("REDIS_URL", f"redis://:{canary('redis')}@cache/0")
    assert secrets.clean_text(f"no {canary('redis')}") == "no <PASSWORD>"


def test_a_secret_with_line_breaks_is_found_as_errors_quote_it(monkeypatch):
    monkeypatch.setattr(secrets, "_known", {})
    secrets.remember("hub_token", f"{canary('first')}\n'{canary('second')}")
    assert seen(secrets.clean_text(repr([f"x {canary('first')}\n'{canary('second')}"]))) == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("postgres://me:hunter22@db.example/x", "postgres://me:<PASSWORD>@db.example/x"),
        ("see https://example.org:8080/a@b", "see https://example.org:8080/a@b"),
        (f"401 for hf_{'a1' * 17}.", "401 for <TOKEN>."),
        (f"key sk-proj-{'b2' * 12}", "key <TOKEN>"),
        ("id AKIAIOSFODNN7EXAMPLE", "id <TOKEN>"),
        ("hf_hub_download failed", "hf_hub_download failed"),
        ("sk-learn and risk-averse-investors-in-the-market", "sk-learn and risk-averse-investors-in-the-market"),
    ],
)
def test_text_with_values_in_well_known_formats(text, expected):
    assert secrets.clean_text(text) == expected


def test_a_value_of_the_environment_is_found_in_any_text(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_API_KEY", canary("environment"))
    assert secrets.clean_text(f"refused: {canary('environment')}!") == "refused: <MY_SERVICE_API_KEY>!"
    assert CANARY not in str(DataError(f"cannot read {canary('environment')}"))


def test_a_secret_that_begins_with_another_and_secrets_in_lists(monkeypatch):
    monkeypatch.setattr(secrets, "_known", {})
    secrets.remember("api_keys", [canary("first"), {"inner": canary("inner")}])
    secrets.remember("hub_token", canary("first") + "-and-more")
    text = f"{canary('first')}-and-more, {canary('first')}, {canary('inner')}"
    assert secrets.clean_text(text) == "<HUB_TOKEN>, <API_KEYS>, <API_KEYS>"


def test_a_token_passed_to_a_wrong_argument_is_not_printed(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    for name in ("learning_rate", "push_to_hub", "lr_scheduler_type", "max_steps", "eval_strategy"):
        for value in ("hf_abcdefghijklmnop", "9f86d081884c7d659a2feaa0c55ad015"):
            with pytest.raises(ArgumentError) as caught:
                TrainingArguments("out", **{name: value})
            assert value not in str(caught.value) and name in str(caught.value)


DECLARED = ("hub_token", "push_to_hub_token")  # by TrainingArguments itself
FIELDS = [name for name in SECRET_NAMES if name.isidentifier() and not keyword.iskeyword(name)]


def make_arguments(tmp_path, **given):
    cls = dataclasses.make_dataclass(
        "Mine",
        [
            *((name, str, None) for name in FIELDS if name not in DECLARED),
            ("settings", dict, dataclasses.field(default_factory=dict)),
            ("things", dict, dataclasses.field(default_factory=dict)),
            ("mail", Mail, None),
            ("notes", list, None),
            ("innocent", dict, dataclasses.field(default_factory=dict)),
        ],
        bases=(TrainingArguments,),
    )
    secret = {name: canary(name) for name in FIELDS if name != DECLARED[1]}
    secret |= {"things": objects(), "mail": Mail(), "notes": texts()}
    innocent = {name: f"{name} is shown" for name in INNOCENT_NAMES}
    return cls(str(tmp_path / "out"), **secret, settings={"a": [nested(1)]}, innocent=innocent, **given)


class Talkative(TrainerCallback, ExportableState):
    """Writes secrets wherever it can, which nobody has seen before."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.settings = {"api_key": canary("state", 7), "url": f"https://me:{canary('url', 7)}@host", "count": 0}

    def state(self):
        return {"args": {"hub_tokens": [canary("state arguments", 7)]}, "attributes": {"settings": self.settings}}

    def on_step_end(self, args, state, control, **kwargs):
        self.settings["count"] += 1
        self.trainer.record_event("own", note=f"used {args.openai_api_key}", token=args.token, tokens=3)
        self.trainer.record_event("own", more=nested(7), texts=texts(7), mail=Mail(password=canary("mail", 7)))
        self.trainer.record_event("own", text="x" * (LONGEST - 10) + f" password={canary('cut', 7)}")
        self.trainer.log({"note": f"hub_token={canary('log', 7)}", "smtp_pass": canary("log", 8), "tokens": 3})


@pytest.fixture
def hub(monkeypatch):
    pytest.importorskip("huggingface_hub")
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def contents(path):
    """What is in the file; nothing if it was a copy for an upload that has ended since, which the hub has then."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_a_run_writes_no_secret_anywhere(backend, hub, tmp_path, capfd, caplog):
    caplog.set_level(logging.DEBUG, logger="oneloop")
    run = {"max_steps": 2, "save_steps": 1, "logging_steps": 1, "report_to": "tensorboard"}
    args = make_arguments(tmp_path, **run, push_to_hub=True, hub_model_id="me/model", hub_strategy="all_checkpoints")
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8))
    trainer.add_callback(Talkative(trainer))
    trainer.train()
    trainer.push_to_hub()
    trainer.save_model(str(tmp_path / "model"))
    trainer.create_model_card()
    trainer.save_metrics("train", {"train_loss": 1.0, "url": texts(9)[0]})
    print(args, repr(args), args.to_json_string(), args.to_sanitized_dict(), public_arguments(args))
    args.print_config()
    args.print_config(Mail(), "Mail")
    write_page(tmp_path / "out", arguments={"openai_key": canary("page", 7), "note": texts(9)[0]})
    (tmp_path / "given.html").write_bytes((tmp_path / "out" / "report.html").read_bytes())
    write_page(tmp_path / "out")
    write_comparison([tmp_path / "out"], tmp_path / "compare.html")
    main(["checkpoints", str(tmp_path / "out")])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    expected = {"training_args.json", "run.jsonl", "README.md", "report.html", "compare.html", "trainer_state.json"}
    assert expected | {"log.jsonl", "train_results.json"} <= {path.name for path in files}
    assert [f"{path}: {found}" for path in files if (found := seen(contents(path)))] == []
    assert [f"{path}: {found}" for path, data in hub.tree().items() if (found := seen(data))] == []
    assert {"README.md", "training_args.json"} <= set(hub.tree())
    assert canary("hub_token") in hub.tokens
    printed = capfd.readouterr()
    assert seen(printed.out + printed.err + caplog.text) == []
    stored = json.loads((tmp_path / "model" / "training_args.json").read_text())
    assert stored["innocent"] == {name: f"{name} is shown" for name in INNOCENT_NAMES}
    assert stored["openai_api_key"] == "<OPENAI_API_KEY>"
    assert stored["mail"] == "Mail(host='mail.example', password='<PASSWORD>')"
    assert "openai_api_key" not in public_arguments(args) and "innocent" in public_arguments(args)
    assert [entry["tokens"] for entry in trainer.state.log_history if "tokens" in entry] == [3, 3]


def test_a_callback_goes_on_with_its_own_secrets(backend, tmp_path):
    def run(steps):
        args = TrainingArguments(str(tmp_path / "out"), max_steps=steps, save_steps=1, report_to="none")
        args.restore_callback_states_from_checkpoint = True
        trainer = Trainer(backend.classifier(), args, train_dataset=rows(8))
        callback = Talkative(trainer)
        callback.on_step_end = lambda *_, **__: callback.settings.update(count=callback.settings["count"] + 1)
        callback.hub_tokens = [canary("of this process")]
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=steps > 1)
        return callback

    first, second = run(1), run(2)
    assert second.settings == {**first.settings, "count": 2}
    assert second.hub_tokens == [canary("of this process")]
    state = (tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text()
    assert seen(state) == [] and '"count": 2' in state


def test_a_models_configuration_is_reported_without_secrets():
    class Model:
        config = {"hidden_size": 3, "pad_token_id": 0, "api_key": canary("model"), "hub": {"auth_token": canary("hub")}}

    found = configuration(Model())
    assert found == {"hidden_size": 3, "pad_token_id": 0, "hub": {"auth_token": "<AUTH_TOKEN>"}}


def test_a_failed_run_records_no_secret(backend, tmp_path):
    args = make_arguments(tmp_path, max_steps=2, report_to="none", save_strategy="no")
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8))

    class Failing(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise DataError(f"the service refused {args.client_secret} and {args.settings['a'][0]['inner']['jwt']}")

    trainer.add_callback(Failing())
    with pytest.raises(DataError) as caught:
        trainer.train()
    assert CANARY not in str(caught.value) and "<CLIENT_SECRET>" in str(caught.value)
    assert CANARY not in (tmp_path / "out" / "run.jsonl").read_text()


def test_names_that_read_back_as_masks_are_not_taken_for_secrets(tmp_path):
    args = make_arguments(tmp_path)
    again = type(args).from_dict(args.to_dict())
    assert again.hub_token is None and again.openai_key is None and again.basic_auth is None
    assert seen(json.dumps(again.to_dict(), default=str)) == []
    assert "<HUB_TOKEN>" not in again.to_dict().values()


def test_secrets_that_are_assigned_are_hidden(tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "_known", {})
    args = make_arguments(tmp_path)
    args.wandb_key = canary("assigned")
    assert args.to_dict()["wandb_key"] == "<WANDB_KEY>"
    assert str(DataError(f"refused {canary('assigned')}")) == "refused <WANDB_KEY>"


def test_a_command_line_with_secrets(capsys):
    @dataclasses.dataclass
    class Options:
        smtp_pass: int = 3
        openai_key: str = canary("default")
        hub_tokens: list[str] = dataclasses.field(default_factory=lambda: [canary("made")])

    parser = ArgumentParser(Options)
    for words in (["--smtp_pass", canary("wrong type")], ["--smtp_pas", "x"], [f"hub_token={canary('stray')}"]):
        with pytest.raises(SystemExit):
            parser.parse_args_into_dataclasses(words, look_for_args_file=False)
    parser.print_help()
    printed = capsys.readouterr()
    assert seen(printed.out + printed.err) == [] and "<OPENAI_KEY>" in printed.out


def test_a_checked_script_with_secrets(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import Trainer, TrainingArguments\n"
        f"args = TrainingArguments('out', **{{'hub_token': '{canary('script')}'}})\nTrainer(args=args)\n"
    )
    for options in ([], ["--json"]):
        main(["check", *options, str(script)])
    assert seen(capsys.readouterr().out) == []


def test_a_page_of_files_that_were_written_with_secrets(tmp_path):
    """By another trainer, or by an earlier release."""
    event = {"run": "r", "time": 1.0, "step": 0, "event": "started", "arguments": {"openai_key": canary("old")}}
    lines = [event, {**event, "event": "own", "note": texts()[0]}, {**event, "event": "failed", "message": texts()[6]}]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "log.jsonl").write_text(json.dumps({"run": "r", "step": 1, "time": 2.0, "loss": 1.0}) + "\n")
    write_page(tmp_path)
    write_comparison([tmp_path], tmp_path / "compare.html")
    assert seen((tmp_path / "report.html").read_bytes() + (tmp_path / "compare.html").read_bytes()) == []


def test_a_page_of_stored_arguments_with_secrets(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps({"run": "r", "step": 1, "time": 2.0, "loss": 1.0}) + "\n")
    (tmp_path / "training_args.json").write_text(json.dumps({"openai_key": canary("old"), "sort_key": "is shown"}))
    page = write_page(tmp_path).read_text()
    assert seen(page) == [] and "is shown" in page


def test_events_are_cut_after_secrets_are_taken_out(tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "_known", {})
    text = "x" * (LONGEST - 20) + f" {TOKENS[0]}"  # what a cut leaves of it is not in its format any more
    Record().add(tmp_path, "own", "r", 0, {"client": Client(), "text": text})
    written = (tmp_path / "run.jsonl").read_text()
    assert seen(written) == [] and TOKENS[0][:8] not in written and "Client(<_API_KEY>)" in written


def test_short_secrets_of_named_tuples(tmp_path):
    args = make_arguments(tmp_path)
    args.things = {"pair": Pair("me", "zq97")}
    assert "zq97" not in args.to_json_string() and "Pair(user='me', password='<PASSWORD>')" in args.to_json_string()


def test_a_path_in_the_environment_is_no_secret(monkeypatch):
    monkeypatch.setenv("GCP_CREDENTIALS", "/etc/keys/service.json")
    assert secrets.clean_text("cannot read /etc/keys/service.json") == "cannot read /etc/keys/service.json"


def test_long_texts_take_no_longer_than_they_are():
    """Patterns that try again from everywhere would take minutes for these: a test that hangs has found one."""
    for piece in (
        "x",
        "a-",
        "a://",
        "x:",
        "password='",
        "--token ",
        "auth=(",
        "s3://a:",
        '\\"',
        "-----BEGIN",
        "a:b@",
        " ",
    ):
        secrets.clean_text("http://a:" + piece * (60_000 // len(piece)))


def test_a_header_within_a_sentence():
    assert secrets.clean_text("sent X-Api-Key: swordfish to it") == "sent X-Api-Key: <X-API-KEY> to it"


def test_what_is_restored_has_no_masks():
    stored = {"api_key": "<API_KEY>", "count": 3, "url": "https://me:<PASSWORD>@host"}
    assert secrets.restored(stored, {"count": 1}) == {"api_key": None, "count": 3, "url": stored["url"]}
    current = {"api_key": "swordfish", "url": "https://me:swordfish@host", "count": 1}
    assert secrets.restored(stored, current) == {**current, "count": 3}


def test_a_cycle_of_objects_ends():
    client = Client()
    client.itself = [client, {"again": client}]
    assert seen(str(secrets.clean({"client": client}))) == []


def test_two_spellings_of_a_token_with_different_values(capsys):
    words = ["--output_dir", "x", "--hub_token", canary("one"), "--push_to_hub_token", canary("other")]
    with pytest.raises(SystemExit):
        ArgumentParser(TrainingArguments).parse_args_into_dataclasses(words, look_for_args_file=False)
    printed = capsys.readouterr().err
    assert "have different values" in printed and seen(printed) == []

    @dataclasses.dataclass
    class Options:
        openai_key: str = dataclasses.field(default="", metadata={"aliases": ["--gpt_key"]})

    with pytest.raises(ArgumentError, match="are aliases of one argument") as raised:
        ArgumentParser(Options).parse_dict({"openai_key": canary("one"), "gpt_key": canary("other")})
    assert seen(str(raised.value)) == []


def test_notes_trials_and_cards_have_no_secrets():
    assert seen(note_text(None, OSError(5, texts()[0]))) == []
    assert (
        format_values({"openai_key": canary("trial"), "learning_rate": 0.1})
        == "openai_key='<OPENAI_KEY>', learning_rate=0.1"
    )
    facts = {"model_name": "m", "class": "M", "framework": "torch", "finetuned_from": texts()[0], "tags": [texts()[6]]}
    text = card.write(facts, {}, {}, [])
    assert seen(text) == [] and card.is_ours(text)


def test_a_framework_that_fails_is_reported_without_secrets_and_controls(monkeypatch, capsys):
    error = f"ImportError: \x1b[2J cannot read https://me:{canary('index')}@host/simple"
    failed = subprocess.CompletedProcess([], 1, "", f"Traceback\n{error}\n")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: failed)
    for as_json in (False, True):
        assert doctor.run(as_json) == 1
        printed = capsys.readouterr().out
        assert "ImportError" in printed and seen(printed) == [] and "\x1b" not in printed


def test_a_run_of_mlflow_that_is_gone_is_told_without_secrets(caplog):
    class Gone(Exception):
        pass

    def get_run(_):
        raise Gone(f"404 from https://me:{canary('mlflow')}@host")

    writer = MLflowCallback()
    writer.run, writer._client = {"id": "r1"}, types.SimpleNamespace(get_run=get_run)
    module = types.SimpleNamespace(exceptions=types.SimpleNamespace(MlflowException=Gone))
    assert writer._still_there(module) is None
    assert "r1 no longer exists (404 from" in caplog.text and seen(caplog.text) == []
