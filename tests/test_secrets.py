"""No secret in anything that is written, pushed or printed; and nothing hidden that is none."""

import dataclasses
import json
import logging

import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments, secrets
from oneloop.errors import ArgumentError, DataError
from oneloop.integrations.writers.base import configuration, public_arguments
from tests.backends.support import rows
from tests.integrations.hub.stand_in import serving

CANARY = "c4n4ry-"
SECRET_NAMES = (
    "hub_token token HF_TOKEN api_token bearer_token github_token refreshToken push_to_hub_token openai_api_key apikey "
    "openaiApiKey WANDB_API_KEY db_password passwd passphrase client_secret secret aws_secret_access_key "
    "aws_access_key_id private_key ssh_key AZURE_STORAGE_KEY connection_string gcp_credentials slack_webhook_url "
    "session_cookie authorization jwt"
).split()
INNOCENT_NAMES = (
    "tokenizer_name max_new_tokens num_input_tokens_seen pad_token_id pad_token eos_token bos_token unk_token "
    "sep_token cls_token mask_token image_token decoder_start_token_id additional_special_tokens tokens "
    "tokens_per_second include_tokens_per_second include_num_input_tokens_seen token_type_ids tokenizer_kwargs "
    "skip_special_tokens keyword key label_key sort_key primary_key hub_model_id author authors monkey turkey "
    "tokenize max_tokens min_tokens num_key_value_heads key_value_cache add_eos_token ignore_keys_for_eval private "
    "hub_private_repo keys passed secretary cookiecutter authentication tool_call_token stop_token prompt_token "
    "encoder_key_dim first_token max_token_length key_padding_mask token_dropout compass_direction"
).split()


def test_names_of_secrets_and_innocent_ones():
    assert [name for name in SECRET_NAMES if not secrets.is_secret(name)] == []
    assert len(INNOCENT_NAMES) >= 50
    assert [name for name in INNOCENT_NAMES if secrets.is_secret(name)] == []


def canary(name, depth=0):
    return f"{CANARY}{name}-{depth}".lower()


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


def make_arguments(tmp_path, **given):
    cls = dataclasses.make_dataclass(
        "Mine",
        [
            *((name, str, None) for name in SECRET_NAMES if name not in DECLARED),
            ("settings", dict, dataclasses.field(default_factory=dict)),
            ("innocent", dict, dataclasses.field(default_factory=dict)),
        ],
        bases=(TrainingArguments,),
    )
    secret = {name: canary(name) for name in SECRET_NAMES if name != DECLARED[1]}
    innocent = {name: f"{name} is shown" for name in INNOCENT_NAMES}
    return cls(str(tmp_path / "out"), **secret, settings={"a": [nested(1)]}, innocent=innocent, **given)


class Talkative(TrainerCallback):
    """Writes secrets wherever it can."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.record_event("own", note=f"used {args.openai_api_key}", token=args.token, tokens=3)


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
    print(args, repr(args), args.to_sanitized_dict(), public_arguments(args))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"training_args.json", "run.jsonl", "README.md"} <= {path.name for path in files}
    assert [str(path) for path in files if CANARY.encode() in contents(path).lower()] == []
    assert [path for path, data in hub.tree().items() if CANARY.encode() in data.lower()] == []
    assert {"README.md", "training_args.json"} <= set(hub.tree())
    assert canary("hub_token") in hub.tokens
    printed = capfd.readouterr()
    assert CANARY not in (printed.out + printed.err + caplog.text).lower()
    stored = json.loads((tmp_path / "model" / "training_args.json").read_text())
    assert stored["innocent"] == {name: f"{name} is shown" for name in INNOCENT_NAMES}
    assert stored["openai_api_key"] == "<OPENAI_API_KEY>"
    assert "openai_api_key" not in public_arguments(args) and "innocent" in public_arguments(args)


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
    assert again.hub_token is None
    assert "<HUB_TOKEN>" not in again.to_dict().values()
