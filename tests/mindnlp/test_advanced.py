"""The guide's advanced section, and what it does not say: half precision, recomputation, resuming, refusals."""

import json
import logging
import shutil
from pathlib import Path

import mindspore
import numpy as np
import pytest
import torch

from oneloop import Trainer
from oneloop.backends.mindtorch import backend as mindtorch
from oneloop.errors import CheckpointError, UnsupportedError
from tests.internals import engine_of, skipped_updates


def test_fp16_is_o2_and_says_so(trained, caplog, tmp_path):
    plain = trained()
    with caplog.at_level(logging.WARNING, "oneloop"):
        trainer = trained(fp16=True, save_strategy="steps", save_steps=2)
    nearest = "the closest level, O2 (half precision with float32 master weights)"
    assert f"mindtorch has no autocast; {nearest}" in caplog.text
    assert {p.dtype for p in trainer.model.parameters()} == {mindspore.float16}
    assert trainer.result.training_loss == pytest.approx(plain.result.training_loss, abs=5e-3)  # half precision
    assert trainer.result.training_loss != plain.result.training_loss
    states = list(trainer.optimizer.state.values())
    assert states and all(state["master"].dtype == state["exp_avg"].dtype == np.float32 for state in states)
    for p, state in trainer.optimizer.state.items():
        assert np.array_equal(p.asnumpy(), state["master"].astype(np.float16))
    run = json.loads((tmp_path / "out" / "checkpoint-2" / "run.json").read_text())
    assert run["engine"]["scaler"]["scale"] == engine_of(trainer).loss_scale() == 32768.0


def test_an_overflow_of_fp16_halves_the_scale_and_is_counted(trained):
    trainer = trained(fp16=True, scale_loss=2.0**40)
    assert engine_of(trainer).loss_scale() < 2.0**40
    assert trainer.result.metrics["skipped_steps"] == skipped_updates(trainer) > 0


def test_recomputed_layers_have_the_same_losses_and_weights(trained, bert, bits):
    plain = trained(bert(layers=2))
    recomputed = trained(bert(layers=2), gradient_checkpointing=True)
    assert hasattr(recomputed.model.bert.encoder.layer[0], "_recomputed_forward")
    assert bits(recomputed.model) == bits(plain.model)


@pytest.mark.parametrize("given", [{}, {"fp16": True}, {"optim": "sgd", "optim_args": "momentum=0.9"}])
def test_a_resumed_run_ends_with_the_same_bits(trained, bert, bits, tmp_path, given):
    """Dropout included: its masks come from a stream that is in the checkpoint."""
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "weight_decay": 0.1} | given
    whole = trained(**options)
    again = trained(bert(seed=5), resume=str(tmp_path / "out" / "checkpoint-3"), **options)
    assert again.result.global_step == 6
    assert bits(again.model) == bits(whole.model)


def test_accumulation_is_the_update_of_the_undivided_batch(trained, bert):
    whole = trained(bert(dropout=0.0), per_device_train_batch_size=8)
    parts = trained(bert(dropout=0.0), per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert parts.result.training_loss == pytest.approx(whole.result.training_loss, abs=1e-6)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert np.abs(one.asnumpy() - other.asnumpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bf16": True}, "no bfloat16 kernels"),
        ({"torch_compile": True}, "torch.compile returns the model unchanged"),
        ({"dataloader_num_workers": 2}, "cannot be forked"),
        ({"optim": "adafactor"}, "no other optimizers"),
        ({"deepspeed": "zero.json"}, "deepspeed"),
    ],
)
def test_what_cannot_be_had_is_refused_before_training(bert, rows, arguments, given, words):
    with pytest.raises(ValueError, match=words) as unsupported:
        Trainer(model=bert(), args=arguments(**given), train_dataset=rows)
    assert isinstance(unsupported.value, UnsupportedError) or given.get("deepspeed")


def test_a_cell_is_refused_where_mindnlp_is_imported(arguments):
    with pytest.raises(UnsupportedError, match="a process that does not import mindnlp"):
        Trainer(model=mindspore.nn.Dense(2, 2), args=arguments())


class OldModel(torch.nn.Module):
    """The layers of tests/checkpoint/old_runs/make_mindnlp.py."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.dense = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, words, labels=None):
        scores = self.head(self.norm(torch.tanh(self.dense(self.embedding(words).mean(1)))))
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


def test_a_run_of_mindnlp_0_4_goes_on_to_its_end(arguments, tmp_path):
    old = Path(__file__).parent.parent / "checkpoint" / "old_runs" / "mindnlp" / "plain"
    shutil.copytree(old / "checkpoint-8", tmp_path / "old" / "checkpoint-8")
    words = np.random.RandomState(3).randint(0, 7, size=(12, 5)).astype(np.int64)
    data = [{"words": row, "labels": int(row.sum() % 3)} for row in words]
    given = {"per_device_train_batch_size": 2, "learning_rate": 0.02, "warmup_steps": 3, "weight_decay": 0.1}
    given |= {"max_steps": 11, "max_grad_norm": 0.5, "train_sampling_strategy": "sequential"}
    trainer = Trainer(model=OldModel(), args=arguments(**given), train_dataset=data)
    trainer.train(resume_from_checkpoint=str(tmp_path / "old" / "checkpoint-8"))
    assert trainer.state.global_step == 11
    expected = json.loads((old / "expected.json").read_text())["weights"]
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_allclose(value.numpy(), np.array(expected[name], np.float32), rtol=0, atol=2e-6)


def test_checkpoints_of_other_trainers_are_refused(bert, tmp_path):
    foreign = mindtorch.external_checkpoint
    for ask in (
        lambda: foreign.load_weights(bert(), tmp_path),
        lambda: foreign.load_optimizer(None, None, tmp_path),
        lambda: foreign.scheduler_state(tmp_path),
        lambda: foreign.scaler_state(tmp_path),
    ):
        with pytest.raises(CheckpointError, match="under mindnlp can only resume from checkpoints of oneloop and"):
            ask()
