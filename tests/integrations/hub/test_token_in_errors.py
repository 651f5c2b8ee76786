"""Errors of an upload that quote the token, wherever it came from: it is in no log, no message and no file."""

import logging

import pytest

from oneloop import Trainer
from oneloop.errors import HubError
from tests.backends.support import rows
from tests.integrations.hub.stand_in import serving

pytest.importorskip("huggingface_hub")

TOKEN, OTHER = "hf_quotedInAnError", "hf_ofThisPushAlone"
RUN = {"max_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1}
RUN |= {"push_to_hub": True, "hub_model_id": "me/model", "hub_strategy": "every_save", "log_level": "debug"}


@pytest.fixture
def quoting(monkeypatch, tmp_path):
    """A Hub that refuses commits and quotes the token that they came with; this machine is logged in nowhere."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no token"))
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)

        def commit(repository, revision, body):
            return 403, {"error": f"{' and '.join(sorted(hub.tokens))} may not write to {repository}"}

        monkeypatch.setattr(hub, "commit", commit)
        yield hub


def by_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return {}


def by_old_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", TOKEN)
    return {}


def by_login(monkeypatch, tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    return {}


def by_argument(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    return {"hub_token": TOKEN}


@pytest.mark.parametrize("given", [by_variable, by_old_variable, by_login, by_argument])
@pytest.mark.once_on("mindspore")
def test_a_push_that_fails(backend, arguments, quoting, monkeypatch, tmp_path, caplog, capfd, given):
    options = RUN | given(monkeypatch, tmp_path)
    with caplog.at_level(logging.DEBUG):
        trainer = Trainer(backend.classifier(), arguments(**options), None, rows(16))
        trainer.train()
        with pytest.raises(HubError, match="may not write to me/model") as caught:
            trainer.push_to_hub()
    assert quoting.tokens == {TOKEN}, "it is the one that was used"
    own = [record.getMessage() for record in caplog.records if record.name.startswith("oneloop")]
    assert sum("<HUB_TOKEN> may not write to me/model" in text for text in own) >= 2
    said = capfd.readouterr()
    for text in (*own, said.out, said.err, str(caught.value), str(caught.value.__cause__)):
        assert TOKEN not in text
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_a_token_that_is_given_to_one_push(backend, arguments, quoting, caplog):
    """Later errors may quote it as well."""
    args = arguments(**RUN, hub_token=TOKEN)
    trainer = Trainer(backend.classifier(), args, None, rows(16))
    for token in (OTHER, None):
        with pytest.raises(HubError, match="<HUB_TOKEN> and <HUB_TOKEN> may not write") as caught:
            trainer.push_to_hub(token=token)
        assert OTHER not in str(caught.value) and TOKEN not in str(caught.value)
    assert quoting.tokens == {TOKEN, OTHER}
    assert OTHER not in caplog.text and TOKEN not in caplog.text
