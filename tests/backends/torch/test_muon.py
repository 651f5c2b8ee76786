"""optim="muon": Muon for the matrices of hidden layers, AdamW for the rest, as one optimizer."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from oneloop import Trainer
from oneloop.backends.torch import unsupported
from oneloop.backends.torch.muon import MuonWithAdamW
from oneloop.errors import ArgumentError, CheckpointError, UnsupportedError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes
from tests.internals import skipped_updates

KIT = Kit()
RUN = {"optim": "muon", "max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 0.01, "weight_decay": 0.1}


class Language(nn.Module):
    """Tied to its embedding, like a small GPT."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.norm = nn.Embedding(7, 6), nn.Linear(6, 6), nn.LayerNorm(6)
        self.outer, self.head = nn.Linear(6, 6, bias=False), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, labels=None):
        logits = self.head(self.outer(self.norm(self.inner(self.embed(x)))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def names_with_muon(trainer):
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    return [names[id(p)] for group in trainer.optimizer.param_groups if group["use_muon"] for p in group["params"]]


def of(model, arguments, **given):
    trainer = Trainer(model, arguments(**RUN | given), train_dataset=rows(24))
    trainer.create_optimizer()
    return trainer


def test_which_parameters_are_muons(arguments):
    """All matrices but the embedding and the head: the tied one, or without an embedding the last one."""
    assert names_with_muon(of(Language(), arguments)) == ["inner.weight", "outer.weight"]
    model = Language()
    model.head = nn.Linear(6, 7)
    assert names_with_muon(of(model, arguments)) == ["inner.weight", "outer.weight"]
    assert names_with_muon(of(model, arguments, optim_target_modules=["inner"])) == ["inner.weight"]
    every = [name for name, p in KIT.classifier().named_parameters() if p.dim() == 2]
    assert names_with_muon(of(KIT.classifier(), arguments)) == every[:-1]
    assert names_with_muon(of(KIT.classifier(), arguments, optim_target_modules="all-linear")) == every
    with pytest.raises(ArgumentError, match="found no matrix"):
        of(nn.Linear(2, 2), arguments)


def test_arguments_of_adam_are_for_the_other_parameters(arguments):
    groups = of(KIT.classifier(), arguments, adam_beta1=0.8, adam_epsilon=1e-6, optim_args="ns_steps=3").optimizer
    for group in groups.param_groups:
        if group["use_muon"]:
            assert (group["eps"], group["ns_steps"], "betas" in group) == (1e-7, 3, False)
        else:
            assert (group["eps"], group["betas"], "ns_steps" in group) == (1e-6, (0.8, 0.999), False)


def test_the_head_of_a_model_of_transformers(arguments):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    model = transformers.BertForSequenceClassification(config)
    found = names_with_muon(of(model, arguments))
    assert "bert.encoder.layer.0.attention.self.query.weight" in found and "bert.pooler.dense.weight" in found
    assert not [name for name in found if "embeddings" in name or "classifier" in name]


def test_it_is_torchs_muon_and_adamw(arguments):
    """Step for step, with weight decay, a schedule and clipping."""
    model, data = KIT.classifier(), rows(4)
    given = RUN | {"max_steps": 3, "logging_steps": 1, "max_grad_norm": 0.5, "optim_args": "muon_lr=0.03,momentum=0.9"}
    trainer = Trainer(model, arguments(**given), train_dataset=data)
    trainer.train()
    other = KIT.classifier()
    matrices = [p for p in other.parameters() if p.dim() == 2]
    last, biases = matrices.pop(), [p for p in other.parameters() if p.dim() == 1]
    muon = torch.optim.Muon(matrices, lr=0.03, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw", eps=1e-7)
    adamw = torch.optim.AdamW(
        [{"params": [last], "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}], lr=0.01, fused=True
    )
    for step, batch in enumerate([next(iter(trainer.get_train_dataloader()))] * 3):
        for optimizer, rate in ((muon, 0.03), (adamw, 0.01)):
            for group in optimizer.param_groups:
                group["lr"] = rate * (3 - step) / 3
        other.zero_grad()
        # The four samples in the order of each epoch: the mean is that of any order up to rounding.
        other(**batch)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        muon.step()
        adamw.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert [line["learning_rate"] for line in trainer.state.log_history[:3]] == pytest.approx(
        [0.01, 0.02 / 3, 0.01 / 3]
    )


@pytest.mark.parametrize("given", [{}, {"bf16": True}, {"fp16": True}], ids=lambda given: "".join(given) or "float32")
def test_it_resumes_to_the_same_bits(arguments, tmp_path, given):
    run = RUN | given | {"save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": 2}
    whole = Trainer(KIT.classifier(dropout=0.2), arguments(**run), train_dataset=rows(48))
    whole.train()
    again = Trainer(KIT.classifier(dropout=0.2, seed=3), arguments(**run), train_dataset=rows(48))
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert same_bytes(KIT.weights(whole.model), KIT.weights(again.model))
    assert same_bytes(KIT.optimizer(whole), KIT.optimizer(again))
    assert type(again.optimizer) is MuonWithAdamW and len(KIT.optimizer(again)) > 3


def test_a_checkpoint_of_another_optimizer_or_division_is_refused(arguments, tmp_path):
    run = RUN | {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    Trainer(KIT.classifier(), arguments(**run), train_dataset=rows(24)).train()
    for given, words in (
        ({"optim": "adamw_torch"}, "is that of MuonWithAdamW, but this run's optimizer is AdamW"),
        (
            {"optim_target_modules": "all-linear"},
            "divides the parameters into other groups: head.weight, hidden.weight are one",
        ),
    ):
        other = Trainer(KIT.classifier(), arguments(**run | given | {"max_steps": 6}), train_dataset=rows(24))
        with pytest.raises(CheckpointError, match=words):
            other.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))


def test_an_update_that_is_not_finite_is_skipped(arguments):
    data = rows(12)
    data[5]["x"] = data[5]["x"] * float("nan")
    trainer = Trainer(KIT.classifier(), arguments(**RUN, nonfinite="skip"), train_dataset=data)
    trainer.train()
    assert skipped_updates(trainer) > 0
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert all(torch.isfinite(s["momentum_buffer"]).all() for s in trainer.optimizer.state.values() if len(s) == 1)


def test_deepspeed_has_no_matrices(arguments, monkeypatch):
    """Only its buffers; what else divides matrices is in tests/distributed/test_layouts.py."""
    monkeypatch.setattr(unsupported, "world", lambda: type("World", (), {"size": 2}))
    monkeypatch.setattr(unsupported.packages, "installed", lambda module: True)
    for given in ({}, {"sharding": "stage1"}, {"sharding": "stage2"}, {"sharding": "stage3"}):
        arguments(**RUN | given).check_backend("torch", "cpu")
    args = arguments(**RUN | {"deepspeed": {"zero_optimization": {"stage": 2}}})
    with pytest.raises(UnsupportedError, match="optim='muon'.*needs whole matrices.*stage2"):
        args.check_backend("torch", "cpu")


@pytest.mark.parametrize("backend", ["paddle", "mindspore"])
def test_other_frameworks_have_none(arguments, backend):
    with pytest.raises(UnsupportedError, match=f"optim='muon' cannot be used on {backend}.*has no such optimizer"):
        arguments(**RUN).check_backend(backend, "cpu")
    with pytest.raises(UnsupportedError, match="optim_target_modules.*GaLore, APOLLO and Muon"):
        arguments(**RUN, optim_target_modules="all-linear").check_backend(backend, "cpu")


def test_divided_matrices_are_shared_out_by_work():
    from oneloop.backends.torch.divided_muon import _owners

    assert _owners([(8, 8)] * 5, (4, 6)) == [4, 6, 4, 6, 4]
    assert _owners([(64, 64), (8, 8), (8, 16), (8, 8)], (0, 1)) == [0, 1, 1, 1]
