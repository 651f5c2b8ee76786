"""Packed documents in training: apart from each other, with the loss that they have alone, resumed exactly."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from oneloop import (
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Mixture,
    Trainer,
    TrainingArguments,
    randomness,
)
from oneloop.arguments.data import packing_of
from oneloop.backends import loading
from oneloop.data.collators.base import to_numpy
from oneloop.errors import ArgumentError, DataError, ModelError
from oneloop.trainer import packing
from tests.backends.support import WORDS, same_bytes
from tests.internals import backend_of


def documents(lengths=(5, 3, 9, 1, 14, 6, 2, 8, 4, 7), seed=0):
    random = np.random.RandomState(seed)
    return [{"input_ids": random.randint(1, WORDS, length).tolist()} for length in lengths]


def batches(trainer):
    loader = trainer.get_train_dataloader()
    return list(loader)


def logits(backend, trainer, batch):
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    outputs = backend_of(trainer).models.invoke(trainer.model, inputs)
    return backend.numpy(outputs["logits"] if isinstance(outputs, dict) else outputs.logits)


def changed(backend, batch, row, columns):
    """The batch with other tokens in these columns of a row."""
    ids = backend.numpy(batch["input_ids"]).copy()
    ids[row, columns] = ids[row, columns] % (WORDS - 1) + 1
    return {**batch, "input_ids": backend.tensor(ids)}


@pytest.mark.parametrize("how", ["end_to_end", "best_fit"])
def test_neighbours_are_bit_identical_when_a_document_changes(backend, arguments, how):
    trainer = Trainer(
        backend.language_model(), arguments(packing=how, max_length=16), train_dataset=documents((5, 4, 7) * 4)
    )
    batch = batches(trainer)[0]
    positions = backend.numpy(batch["position_ids"])
    before = logits(backend, trainer, batch)
    for row, of_row in enumerate(positions):
        starts = [*np.flatnonzero(of_row == 0), len(of_row)]
        assert len(starts) > 2
        for start, stop in zip(starts, starts[1:]):
            after = logits(backend, trainer, changed(backend, batch, row, slice(start, stop)))
            others = np.ones(before.shape[:2], bool)
            others[row, start:stop] = False
            assert after[others].tobytes() == before[others].tobytes()
            assert not np.array_equal(after[row, start:stop], before[row, start:stop])


def test_the_loss_is_that_of_the_documents_alone(backend, trained):
    """An update with packed rows, beside one in which every document is a batch of its own."""
    data = documents((5, 3, 9, 2, 14, 6, 2, 8, 4, 7, 4))
    given = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.5, "logging_steps": 1, "max_grad_norm": 0.0}
    packed = trained(
        backend.language_model(), data, packing="best_fit", max_length=16, per_device_train_batch_size=16, **given
    )
    rows = [{"input_ids": np.array(each["input_ids"]), "labels": np.array(each["input_ids"])} for each in data]
    single = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": len(rows)}
    alone = trained(backend.language_model(), rows, **single, **given)
    losses = [trainer.state.log_history[0]["loss"] for trainer in (packed, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, weight in backend.weights(packed.model).items():
        assert np.allclose(weight, backend.weights(alone.model)[name], atol=1e-5), name


def test_the_number_of_items_is_that_of_the_targets(backend, trained):
    class Counting(Trainer):
        seen = []

        def get_batch_samples(self, *given, **more):
            found = super().get_batch_samples(*given, **more)
            self.seen.append(found[1])
            return found

    data = documents()
    given = {"packing": "best_fit", "max_length": 16, "per_device_train_batch_size": 2, "num_train_epochs": 1}
    trained(backend.language_model(), data, Counting, gradient_accumulation_steps=2, **given)
    assert sum(Counting.seen) == sum(len(each["input_ids"]) - 1 for each in data)


def test_tokens_are_counted_without_padding(backend, trained):
    data = documents()
    tokens = sum(len(each["input_ids"]) for each in data)
    given = {"max_length": 16, "num_train_epochs": 2, "include_num_input_tokens_seen": "non_padding"}
    trainer = trained(backend.language_model(), data, packing="best_fit", **given)
    assert trainer.state.num_input_tokens_seen == 2 * tokens


def test_a_packed_mixture_resumes_in_the_middle(backend, trained, tmp_path):
    """In the middle of a document: rows are shorter than most documents."""

    def mixture():
        return Mixture({"a": documents((20, 31, 3)), "b": documents((40, 5), seed=1)}, [0.6, 0.4], stop=30)

    given = {"per_device_train_batch_size": 3, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4}
    given |= {"packing": True, "max_length": 8, "save_total_limit": None}
    whole = trained(backend.language_model(), mixture(), output_dir=tmp_path / "whole", **given)
    assert whole.state.global_step == 20
    checkpoint = str(tmp_path / "whole" / "checkpoint-12")
    again = trained(backend.language_model(), mixture(), output_dir=tmp_path / "again", resume=checkpoint, **given)
    for name, weight in backend.weights(whole.model).items():
        assert weight.tobytes() == backend.weights(again.model)[name].tobytes(), name


def test_rows_of_a_mixture_are_of_one_dataset_each(backend, trained):
    """Its tokens are counted without padding, and its losses are those of its own rows."""
    parts = {"a": documents((20, 31, 3)), "b": documents((40, 5, 4), seed=1)}
    tokens = {name: sum(len(each["input_ids"]) for each in part) for name, part in parts.items()}
    given = {"packing": "best_fit", "max_length": 8, "per_device_train_batch_size": 4, "num_train_epochs": 1}
    mixture = Mixture(parts, stop="all_exhausted")
    trainer = trained(backend.language_model(), mixture, logging_steps=1, learning_rate=0.0, **given)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert {name: logs[-1][f"num_tokens/{name}"] for name in parts} == tokens
    assert all(entry[f"loss/{name}"] > 0 for entry in logs for name in parts if f"loss/{name}" in entry)
    assert {name for entry in logs for name in parts if f"loss/{name}" in entry} == set(parts)


def test_workers_make_the_same_batches(backend, arguments):
    found = []
    for workers in (0, 2):
        args = arguments(packing=True, max_length=16, per_device_train_batch_size=2, dataloader_num_workers=workers)
        made = batches(Trainer(backend.language_model(), args, train_dataset=documents()))
        found.append([{name: to_numpy(value).tolist() for name, value in batch.items()} for batch in made])
    assert found[0] == found[1]


def test_evaluations_pack_and_predictions_do_not(backend, trained):
    data = documents()
    trainer = trained(backend.language_model(), data, eval_dataset=data, packing=True, max_length=16, max_steps=1)
    assert np.isfinite(trainer.evaluate()["eval_loss"])
    assert trainer.num_examples(trainer.get_eval_dataloader()) == 4
    predictions = trainer.predict(data).predictions
    assert predictions.shape == (10, 14, WORDS)


def test_documents_in_their_order_and_evaluations_without_packing(backend, arguments):
    data = documents()
    args = arguments(packing=True, max_length=16, train_sampling_strategy="sequential", eval_packing=False)
    trainer = Trainer(backend.language_model(), args, train_dataset=data, eval_dataset=data)
    modes = [trainer.model.training]
    tokens = [id for batch in batches(trainer) for row in backend.numpy(batch["input_ids"]) for id in row.tolist()]
    modes.append(trainer.model.training)
    expected = [token for each in data for token in each["input_ids"]]
    assert tokens[: len(expected)] == expected and not any(tokens[len(expected) :])
    assert trainer.num_examples(trainer.get_eval_dataloader()) == len(data)
    assert modes[0] == modes[1]  # although it was evaluated, to find out how it keeps documents apart


def test_finding_out_how_documents_are_kept_apart_draws_no_random_numbers(backend, arguments, monkeypatch):
    """A model may draw some even in evaluation mode."""
    original, drawn = packing._output, []
    monkeypatch.setattr(packing, "_output", lambda *given: drawn.append(np.random.rand()) or original(*given))
    trainer = Trainer(backend.language_model(), arguments(packing=True, max_length=16), train_dataset=documents())
    framework = loading.load(backend.name)
    before = randomness.get_state(framework)
    trainer.get_train_dataloader()
    assert drawn and same_bytes(before, randomness.get_state(framework))


def test_the_run_says_how_full_the_rows_are(backend, trained):
    trainer = trained(backend.language_model(), documents(), packing=True, max_length=16, max_steps=1)
    lines = [json.loads(line) for line in Path(trainer.args.output_dir, "run.jsonl").read_text().splitlines()]
    event = next(line for line in lines if line["event"] == "packing")
    assert (event["documents"], event["packs"], event["fill"]) == (10, 4, round(59 / 64, 4))


# -- rows as one document


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("is_stream", [False, True])
def test_wrapped_rows_are_one_document(backend, arguments, is_stream, masked):
    """The tokens are those of end_to_end; every token but the first of a row is a target, and attention reaches over
    borders. A model that mixes documents is not refused."""
    data = Stream() if is_stream else documents((5, 4, 7) * 4)
    found = {}
    for how in ("end_to_end", "wrapped") if masked else ("wrapped",):
        args = arguments(packing=how, max_length=16, max_steps=2)
        trainer = Trainer(backend.language_model(masked=masked), args, train_dataset=data)
        found[how] = batches(trainer)[0]
    batch = found["wrapped"]
    ids, labels = backend.numpy(batch["input_ids"]), backend.numpy(batch["labels"])
    assert (labels[:, 0] == -100).all() and (labels[:, 1:] == ids[:, 1:]).all() and ids.shape[1] == 16
    before = logits(backend, trainer, batch)
    after = logits(backend, trainer, changed(backend, batch, 0, slice(0, 1)))
    assert not np.array_equal(after[0, -1], before[0, -1])
    assert after[1:].tobytes() == before[1:].tobytes()
    if masked:
        np.testing.assert_array_equal(ids, backend.numpy(found["end_to_end"]["input_ids"]))
        assert (backend.numpy(batch["position_ids"]) == np.arange(16)).all()
        assert (backend.numpy(found["end_to_end"]["labels"]) == -100).sum() > len(ids)


def test_wrapped_rows_are_trained_on(backend, trained):
    trainer = trained(backend.language_model(masked=False), documents(), packing="wrapped", max_length=16, max_steps=3)
    assert trainer.state.global_step == 3 and np.isfinite(trainer.evaluate(documents(seed=1))["eval_loss"])


# -- what is refused


def test_a_model_that_mixes_documents_is_refused_before_the_first_step(backend, arguments):
    trainer = Trainer(
        backend.language_model(masked=False), arguments(packing=True, max_length=16), train_dataset=documents()
    )
    with pytest.raises(ModelError, match=r"Unmasked does not keep the documents of a row apart.*`attention_mask`"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_projections_that_start_at_zero_do_not_hide_that_documents_are_mixed(backend, arguments):
    args = arguments(packing=True, max_length=16)
    for masked in (True, False):
        model = backend.language_model(masked)
        backend.set_to_zero(model.value)
        before = backend.weights(model)
        trainer = Trainer(model, args, train_dataset=documents())
        if masked:
            trainer.get_train_dataloader()
        else:
            with pytest.raises(ModelError, match="does not keep the documents of a row apart"):
                trainer.get_train_dataloader()
        for name, weight in backend.weights(model).items():
            assert weight.tobytes() == before[name].tobytes(), name


def test_a_model_that_expects_another_mask_is_refused(arguments):
    torch = pytest.importorskip("torch")
    from tests.backends.kits.torch_language import LanguageModel

    class ForPadding(LanguageModel):
        def forward(self, input_ids, labels=None, attention_mask=None):
            rows, tokens = attention_mask.shape
            mask = attention_mask[:, None, None, :].expand(rows, 1, tokens, tokens)
            return super().forward(input_ids, labels, mask.bool() & torch.ones(tokens, tokens).tril().bool())

    trainer = Trainer(ForPadding(), arguments(packing=True, max_length=16), train_dataset=documents())
    with pytest.raises(ModelError, match=r"An attempt failed with ValueError: too many values to unpack"):
        trainer.train()


def test_a_model_without_position_ids_is_told_of(arguments, caplog):
    pytest.importorskip("torch")
    from tests.backends.kits.torch_language import LanguageModel

    class WithoutPlaces(LanguageModel):
        def forward(self, input_ids, labels=None, attention_mask=None):
            return super().forward(input_ids, labels, attention_mask)

    args = arguments(packing=True, max_length=16, max_steps=1)
    Trainer(WithoutPlaces(), args, train_dataset=documents()).train()
    assert "depends on its position in the row" in caplog.text
    caplog.clear()
    Trainer(LanguageModel(), args, train_dataset=documents()).train()
    assert "depends on its position" not in caplog.text


@pytest.mark.parametrize(
    "given, data, error, message",
    [
        ({"max_length": None}, documents(), ArgumentError, "packing='end_to_end' needs max_length"),
        ({"packing": "tight"}, documents(), ArgumentError, "True, False, 'end_to_end', 'best_fit' or 'wrapped'"),
        ({}, [{"text": "a"}], DataError, "packing needs token ids in 'input_ids'"),
        ({}, [{"input_ids": []}], DataError, "only empty documents"),
        ({"train_sampling_strategy": "group_by_length"}, documents(), DataError, "cannot order packed documents"),
    ],
)
def test_what_cannot_be_packed(backend, trained, given, data, error, message):
    with pytest.raises(error, match=message):
        trained(backend.language_model(), data, **{"packing": True, "max_length": 16, "max_steps": 1} | given)


def test_collators_that_packing_replaces_and_others(backend, trained):
    class Tokenizer:
        pad_token_id, pad_token = 0, "p"

    given = {"packing": True, "max_length": 16, "max_steps": 1}
    causal = DataCollatorForLanguageModeling(Tokenizer(), mlm=False)
    trained(backend.language_model(), documents(), data_collator=causal, **given)

    def own(samples):
        return samples

    with pytest.raises(DataError, match=r"there is a data_collator \(own\)"):
        trained(backend.language_model(), documents(), data_collator=own, **given)


# -- fields of the same names


def test_fields_of_a_subclass_are_its_own(backend, tmp_path, caplog):
    @dataclass
    class Config(TrainingArguments):
        packing: bool = False
        max_length: str = "long"

    args = Config(str(tmp_path), packing=True, report_to="none", save_strategy="no", max_steps=1, device="cpu")
    assert args.max_length == "long" and packing_of(args) is None
    rows = [{"input_ids": np.arange(4), "labels": np.arange(4)}] * 8
    Trainer(backend.language_model(), args, train_dataset=rows).train()
    assert "packing is a field that Config declares, so it is left to your code" in caplog.text


def test_fields_of_other_dataclasses_on_the_command_line(tmp_path):
    @dataclass
    class Script:
        max_length: int = 7
        packing: str = "x"

    parser = HfArgumentParser((Script, TrainingArguments))
    script, args = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--max_length", "9"])
    assert (script.max_length, script.packing, args.max_length, args.packing) == (9, "x", None, False)
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--max_length", "9", "--packing", "best_fit"]
    )
    assert (args.max_length, args.packing) == (9, "best_fit")


# -- streams


class Stream:
    """Documents without a length, with a position that can be stored."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < 60:
            self.position += 1
            yield documents((3 + 7 * self.position % 31,), seed=self.position)[0]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.mark.parametrize("how", ["end_to_end", "best_fit", "wrapped"])
def test_a_packed_stream_resumes_in_the_middle_of_a_document(backend, trained, tmp_path, caplog, how):
    given = {"per_device_train_batch_size": 3, "max_steps": 9, "save_strategy": "steps", "save_steps": 4}
    given |= {"packing": how, "max_length": 8, "save_total_limit": None}
    whole = trained(backend.language_model(), Stream(), output_dir=tmp_path / "whole", **given)
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    state = json.loads((checkpoint / "run.json").read_text())["position"]["data"]
    assert state["waiting"] and state["source"]["position"] > 1
    again = trained(backend.language_model(), Stream(), output_dir=tmp_path / "again", resume=str(checkpoint), **given)
    assert "is not seekable" not in caplog.text
    for name, weight in backend.weights(whole.model).items():
        assert weight.tobytes() == backend.weights(again.model)[name].tobytes(), name


def test_workers_make_the_same_batches_of_a_stream(backend, arguments):
    found = []
    for workers in (0, 2):
        args = arguments(packing=True, max_length=16, max_steps=3, dataloader_num_workers=workers)
        made = batches(Trainer(backend.language_model(), args, train_dataset=Stream()))
        found.append([{name: to_numpy(value).tolist() for name, value in batch.items()} for batch in made])
    assert found[0] == found[1] and len(found[0]) > 2


def test_streams_are_evaluated(backend, trained):
    trainer = trained(
        backend.language_model(), Stream(), eval_dataset=Stream(), packing=True, max_length=16, max_steps=1
    )
    assert np.isfinite(trainer.evaluate()["eval_loss"])
