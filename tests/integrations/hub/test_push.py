"""push_to_hub, against a Hub of this machine: what is pushed when, and that no push ever costs a training."""

import json
import logging
import shutil

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.errors import HubError, MissingPackageError
from oneloop.integrations.hub import card
from oneloop.integrations.hub.pushing import HubPushes
from tests.backends.support import rows
from tests.integrations.hub.stand_in import serving
from tests.internals import extension_of

pytest.importorskip("huggingface_hub")

TOKEN = "hf_neverseenanywhere"
RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "logging_steps": 1, "max_steps": 4}
SAVES = {"save_strategy": "steps", "save_steps": 2, "save_async": False}


@pytest.fixture
def hub(monkeypatch):
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def make(backend, arguments):
    """A Trainer that pushes to me/model."""

    def build(trainer_class=Trainer, callbacks=None, compute_metrics=None, **given):
        options = {"push_to_hub": True, "hub_model_id": "me/model", "hub_token": TOKEN} | RUN | SAVES | given
        return trainer_class(
            backend.classifier(),
            arguments(**options),
            None,
            rows(16),
            rows(8, 1),
            callbacks=callbacks,
            compute_metrics=compute_metrics,
        )

    return build


def roots(paths):
    return {path.split("/")[0] for path in paths}


COURSE = {"optimizer.safetensors", "random.safetensors", "run.json", "trainer_state.json", "manifest.json"}


@pytest.mark.parametrize(
    ("strategy", "messages", "folders"),
    [
        ("end", ["End of training"], set()),
        ("every_save", ["Training in progress, step 2", "Training in progress, step 4"], set()),
        ("checkpoint", ["Training in progress, step 2", "Training in progress, step 4"], {"last-checkpoint"}),
        (
            "all_checkpoints",
            ["Training in progress, step 2", "Training in progress, step 4"],
            {"checkpoint-2", "checkpoint-4"},
        ),
    ],
)
@pytest.mark.once_on("mindspore")
def test_the_four_strategies(make, hub, strategy, messages, folders, tmp_path):
    trainer = make(hub_strategy=strategy, hub_always_push=True)
    trainer.train()
    assert [commit.message for commit in hub.commits] == messages
    tree = hub.tree()
    assert {path for path in roots(tree) if "checkpoint" in path} == folders
    assert {"model.safetensors", "README.md", "training_args.json"} <= tree.keys()
    assert not COURSE & tree.keys(), "what belongs to the run alone is no part of the model"
    for folder in folders:
        assert {f"{folder}/{name}" for name in COURSE} <= tree.keys()
    last = tmp_path / "out" / "checkpoint-4" / "model.safetensors"
    assert tree["model.safetensors"] == last.read_bytes()
    if strategy == "checkpoint":
        assert tree["last-checkpoint/manifest.json"] == (last.parent / "manifest.json").read_bytes()
    assert hub.repositories == {"me/model": None} and trainer.hub_model_id == "me/model"
    assert not list((tmp_path / "out").glob(".pushes/*"))


def test_a_commit_holds_what_its_checkpoint_held(make, hub, tmp_path):
    """save_total_limit deletes the checkpoint while its upload waits."""
    hub.gate.clear()

    class Opens(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            hub.gate.set()

    make(
        hub_strategy="all_checkpoints", save_steps=1, save_total_limit=1, hub_always_push=True, callbacks=[Opens()]
    ).train()
    assert sorted(path for path in roots(hub.tree()) if "checkpoint" in path) == [
        f"checkpoint-{n}" for n in (1, 2, 3, 4)
    ]
    manifests = [json.loads(hub.tree()[f"checkpoint-{n}/manifest.json"]) for n in (1, 2, 3, 4)]
    assert [manifest["step"] for manifest in manifests] == [1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-4"]


def test_a_push_under_way_is_not_overtaken_and_the_last_step_arrives(make, hub):
    """Training does not wait for the upload of step 1; the last one is pushed at the end."""
    hub.gate.clear()
    steps = []

    class Opens(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(len(hub.commits))

        def on_train_end(self, args, state, control, **kwargs):
            hub.gate.set()

    make(hub_strategy="every_save", save_steps=1, callbacks=[Opens()]).train()
    assert steps == [0, 0, 0, 0], "all steps were trained before the first upload ended"
    assert [commit.message for commit in hub.commits] == ["Training in progress, step 1", "End of training"]


def test_a_hub_that_fails_costs_nothing_but_the_push(make, hub, caplog):
    hub.refuses = 403
    trainer = make(hub_strategy="every_save")
    with caplog.at_level(logging.ERROR):
        assert trainer.train().global_step == 4
    assert "was NOT pushed" in caplog.text and TOKEN not in caplog.text
    assert hub.commits == []
    with pytest.raises(HubError, match="me/model") as caught:
        trainer.push_to_hub()
    assert TOKEN not in str(caught.value) and caught.value.__suppress_context__
    hub.refuses = None
    assert trainer.push_to_hub("Second try").commit_url.startswith(hub.url)
    assert hub.commits[-1].message == "Second try"


def test_a_repository_that_cannot_be_made_is_an_error_before_training(make, hub, monkeypatch):
    monkeypatch.setattr(hub, "answer", lambda *_: (401, {"error": f"no such user: {TOKEN}"}))
    with pytest.raises(HubError, match="hub_model_id") as caught:
        make()
    assert TOKEN not in str(caught.value)


def test_the_token_is_used_and_seen_nowhere(make, hub, tmp_path, caplog, capsys):
    with caplog.at_level(logging.DEBUG, logger="oneloop"):
        trainer = make(hub_strategy="all_checkpoints", report_to="tensorboard")
        trainer.train()
        trainer.push_to_hub()
    assert hub.tokens == {TOKEN}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(TOKEN.encode() in path.read_bytes() for path in written)
    assert not any(TOKEN.encode() in data for data in hub.tree().values())
    shown = capsys.readouterr()
    for text in (
        caplog.text,
        shown.out,
        shown.err,
        repr(trainer.args),
        str(trainer.args),
        repr(extension_of(trainer, HubPushes).repository),
    ):
        assert TOKEN not in text


def test_a_token_that_no_header_can_hold_is_not_shown(make, hub):
    with pytest.raises(HubError) as caught:
        make(hub_token=f"{TOKEN}\n{TOKEN}")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("private", [True, False, None])
def test_private_or_not(make, hub, private):
    make(hub_private_repo=private)
    assert hub.repositories == {"me/model": private}


def test_a_name_without_owner_and_a_repository_that_is_there(make, hub):
    hub.repositories["me/model"] = False
    assert make(hub_model_id="model").hub_model_id == "me/model"


def test_a_branch(make, hub):
    make(hub_revision="dev", hub_strategy="end").train()
    assert hub.branches == ["dev"] and hub.tree("dev") and not hub.tree("main")


def test_save_model_pushes(make, hub, tmp_path):
    trainer = make(save_strategy="no", hub_strategy="end")
    trainer.save_model()
    extension_of(trainer, HubPushes).repository.wait()
    (commit,) = hub.commits
    assert commit.message == "Model save"
    assert commit.files["model.safetensors"] == (tmp_path / "out" / "model.safetensors").read_bytes()


def test_push_to_hub_without_the_argument(backend, arguments, hub, tmp_path):
    """A script may push once, by hand; results go along, checkpoints and hidden files do not."""
    args = arguments(tmp_path / "model", hub_token=TOKEN, **RUN, **SAVES)
    trainer = Trainer(backend.classifier(), args, None, rows(16))
    trainer.save_metrics("train", trainer.train().metrics)
    push = trainer.push_to_hub("By hand", blocking=False, tags="fruit")
    assert push.result().commit_message == "By hand"
    names = hub.tree(repository="me/model").keys()
    assert {"model.safetensors", "train_results.json", "log.jsonl", "README.md"} <= names
    assert not any(name.startswith((".", "checkpoint")) for name in names)


def test_callbacks_hear_of_pushes(make, hub):
    heard = []

    class Listens(TrainerCallback):
        def on_push_begin(self, args, state, control, **kwargs):
            heard.append(state.global_step)

    make(callbacks=[Listens()], hub_always_push=True).train()
    assert heard == [2, 4]


def test_the_best_model_is_what_the_end_pushes(make, hub, backend):
    scores = iter([2.0, 1.0, 0.0])
    trainer = make(
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        hub_strategy="end",
        compute_metrics=lambda prediction: {"score": next(scores)},
    )
    trainer.train()
    assert trainer.state.best_global_step == 2 and trainer.state.global_step == 4
    best = f"{trainer.state.best_model_checkpoint}/model.safetensors"
    with open(best, "rb") as f:
        assert hub.tree()["model.safetensors"] == f.read()


def test_without_the_package(make, monkeypatch):
    from oneloop.arguments import packages

    monkeypatch.setattr(packages, "installed", lambda name: False)
    with pytest.raises(MissingPackageError, match="huggingface_hub"):
        make()


# -- the card


def test_the_model_card(backend, arguments, tmp_path):
    yaml = pytest.importorskip("yaml")
    args = arguments(eval_strategy="steps", eval_steps=2, weight_decay=0.125, hub_token=TOKEN, **RUN)
    trainer = Trainer(
        backend.classifier(),
        args,
        None,
        rows(16),
        rows(8, 1),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )
    trainer.train()
    trainer.create_model_card(
        language="zh", license="apache-2.0", tags=["fruit"], tasks="text-classification", dataset_tags="pears",
        finetuned_from="someone/base", model_name="the model",
    )  # fmt: skip
    text = (tmp_path / "out" / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["language"] == ["zh"] and about["license"] == "apache-2.0" and about["base_model"] == "someone/base"
    assert about["tags"] == ["fruit", "generated_from_trainer", "oneloop"] and about["metrics"] == ["accuracy"]
    (result,) = about["model-index"][0]["results"]
    last = [entry for entry in trainer.state.log_history if "eval_loss" in entry][-1]
    assert {m["name"]: m["value"] for m in result["metrics"]} == {
        "loss": last["eval_loss"],
        "accuracy": last["eval_accuracy"],
    }
    assert "| weight_decay | `0.125` |" in body and "| learning_rate | `0.1` |" in body
    assert f"| eval_accuracy | {last['eval_accuracy']:.4g} |" in body
    assert [line.split("|")[2].strip() for line in body.splitlines() if line.startswith(("| 0.5 |", "| 1 |"))] == [
        "2",
        "4",
    ]
    assert TOKEN not in text and "HUB_TOKEN" not in text


def test_a_card_has_no_paths_of_the_machine(backend, arguments, tmp_path):
    (tmp_path / "somewhere" / "base").mkdir(parents=True)
    trainer = Trainer(backend.classifier(), arguments(**RUN | {"output_dir": tmp_path / "out"}), None, rows(16))
    trainer.create_model_card(finetuned_from=str(tmp_path / "somewhere" / "base"), dataset="pears")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "fine-tuned from `base` on pears" in text and "base_model" not in text and "huggingface.co" not in text
    assert "somewhere" not in text and str(tmp_path) not in text


def test_the_library_of_a_model():
    model = type("Model", (), {})
    assert card.library_of(model()) is None
    derived = type("Own", (type("Base", (), {"__module__": "transformers.models.bert"}),), {})()
    assert card.library_of(derived) == "transformers"
    derived.peft_config = {"default": object()}
    assert card.library_of(derived) == "peft"
    derived.peft_config = None
    assert card.library_of(derived) == "transformers"


def test_a_card_that_somebody_changed_stays(backend, arguments, tmp_path, caplog):
    trainer = Trainer(backend.classifier(), arguments(**RUN), None, rows(16))
    trainer.create_model_card(model_name="first")
    path = tmp_path / "out" / "README.md"
    trainer.create_model_card(model_name="second")
    assert "# second" in path.read_text()
    path.write_text(path.read_text().replace("please add", "I added"))
    trainer.create_model_card(model_name="third")
    assert "# second" in path.read_text() and "left as it is" in caplog.text


def test_a_push_of_a_checkpoint_may_be_overridden(make, hub, tmp_path):
    """As in sentence-transformers: the override copies the checkpoint to output_dir; super() uploads."""
    calls = []

    class Own(Trainer):
        def _push_from_checkpoint(self, checkpoint_folder):
            before = self.push_in_progress
            (tmp_path / "out" / "extra.txt").write_text("of the override")
            for path in (tmp_path / "out" / f"checkpoint-{self.state.global_step}").iterdir():
                shutil.copy(path, tmp_path / "out" / path.name)
            super()._push_from_checkpoint(checkpoint_folder)
            calls.append((checkpoint_folder, before is None))
            self.push_in_progress.wait_until_done()
            assert self.push_in_progress.is_done()

    make(Own, hub_strategy="every_save").train()
    folder = tmp_path / "out"
    assert calls == [(str(folder / "checkpoint-2"), True), (str(folder / "checkpoint-4"), False)]
    assert [commit.message for commit in hub.commits] == [f"Training in progress, step {step}" for step in (2, 4)]
    assert (folder / "extra.txt").exists() and not COURSE & {path.name for path in folder.iterdir()}


def test_an_override_may_leave_out_a_push(make, hub):
    class Own(Trainer):
        def _push_from_checkpoint(self, checkpoint_folder):
            assert self.push_in_progress is None

    make(Own, hub_strategy="every_save").train()
    assert [commit.message for commit in hub.commits] == ["End of training"]
