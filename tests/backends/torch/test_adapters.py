"""Adapters with names, weights in several files, and what generation is told."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import oneloop
from oneloop import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes

KIT = Kit()
OPTIONS = {"max_steps": 4, "learning_rate": 0.1, "save_strategy": "steps", "save_steps": 2}


def adapted(*names):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    model = peft.get_peft_model(KIT.classifier(), peft.LoraConfig(r=2, target_modules=["hidden"]), names[0])
    for name in names[1:]:
        model.add_adapter(name, peft.LoraConfig(r=3, target_modules=["head"]))
    model.set_adapter(names[-1])
    return model


@pytest.mark.parametrize("names", [("mine",), ("default", "other"), ("one", "two")])
def test_a_run_goes_on_with_the_names_of_its_adapters(trained, tmp_path, names):
    model = adapted(*names)
    trainer = trained(model, rows(8), **OPTIONS)
    folder = tmp_path / "out" / "checkpoint-2"
    assert (folder / names[-1] / "adapter_model.safetensors").is_file()
    other = adapted(*names)
    with torch.no_grad():  # so that nothing fits that was not read
        for name, parameter in other.named_parameters():
            if "lora" in name:
                parameter.add_(1)
    Trainer(other, trainer.args, train_dataset=rows(8)).train(resume_from_checkpoint=str(folder))
    assert same_bytes(KIT.weights(model), KIT.weights(other))


def test_an_adapter_of_another_name(trained, tmp_path):
    trainer = trained(adapted("mine"), rows(8), **OPTIONS)
    again = Trainer(adapted("default"), trainer.args, train_dataset=rows(8))
    with pytest.raises(ValueError, match="no adapter default; it has mine"):
        again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))


def test_the_model_under_an_adapter():
    model = adapted("mine")
    assert oneloop.unwrap_peft_model(model) is model.get_base_model()
    plain = KIT.classifier()
    assert oneloop.unwrap_peft_model(plain) is plain


# -- load_sharded_checkpoint


def _shards(folder, tensors):
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in places if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_weights_in_several_files(tmp_path):
    source, model = KIT.classifier(seed=1), KIT.classifier(seed=2)
    _shards(tmp_path, source.state_dict())
    assert oneloop.load_sharded_checkpoint(model, tmp_path) == ([], [])
    assert same_bytes(KIT.weights(source), KIT.weights(model))
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        oneloop.load_sharded_checkpoint(model, tmp_path / "nothing")


def test_weights_in_several_files_that_fit_in_part(tmp_path):
    source, model = KIT.classifier(seed=1), KIT.classifier(seed=2)
    before = KIT.weights(model)
    tensors = source.state_dict() | {"more": torch.ones(2)}
    del tensors["head.bias"]
    _shards(tmp_path, tensors)
    with pytest.raises(ValueError, match=r"missing: head\.bias; not in the model: more"):
        oneloop.load_sharded_checkpoint(model, tmp_path)
    found = oneloop.load_sharded_checkpoint(model, tmp_path, strict=False)
    assert found.missing_keys == ["head.bias"] and found.unexpected_keys == ["more"]
    expected = KIT.weights(source) | {"head.bias": before["head.bias"]}
    assert same_bytes(expected, KIT.weights(model))


def test_tied_weights_in_several_files(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.free = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(2, 2)
            self.two.weight = self.one.weight

    source, model = Tied(), Tied()
    tensors = source.state_dict()
    del tensors["one.weight"]  # the name that comes first, so the other one stands for both
    _shards(tmp_path, tensors)
    assert oneloop.load_sharded_checkpoint(model, tmp_path) == ([], [])
    assert same_bytes(KIT.weights(source), KIT.weights(model))


# -- generation


class Echo(nn.Module):
    """Generates as many ones as it is told."""

    def __init__(self):
        super().__init__()
        self.inner, self.asked = nn.Embedding(5, 5), []

    def forward(self, input_ids, labels=None):
        logits = self.inner(input_ids)
        return {"loss": logits.mean(), "logits": logits}

    def generate(self, input_ids, **options):
        self.asked.append(options)
        return torch.ones(len(input_ids), options["max_length"], dtype=torch.long)


@pytest.mark.parametrize("own", [True, False])
def test_every_set_of_several_is_generated_with_the_given_arguments(tmp_path, own):
    data = [{"input_ids": np.array([1, 2]), "labels": np.array([1, 2])}] * 2
    sets = {"a": data, "b": data}
    args = Seq2SeqTrainingArguments(
        str(tmp_path), report_to="none", disable_tqdm=True, predict_with_generate=True, generation_max_length=3
    )
    model = Echo()
    trainer = Seq2SeqTrainer(
        model, args, eval_dataset=sets if own else None, compute_metrics=lambda p: {"width": p.predictions.shape[1]}
    )
    given = {} if own else {"eval_dataset": sets}
    metrics = trainer.evaluate(**given, max_length=7, num_beams=2)
    assert (metrics["eval_a_width"], metrics["eval_b_width"]) == (7, 7)
    assert model.asked == [{"max_length": 7, "num_beams": 2}] * 2
    assert trainer.evaluate(**given)["eval_b_width"] == 3  # and they are forgotten afterwards


def test_an_override_of_evaluate_may_pass_nothing_along(tmp_path):
    """As published trainers do, which set what generate is given themselves."""

    class Own(Seq2SeqTrainer):
        def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval", **gen_kwargs):
            self._gen_kwargs = gen_kwargs
            loader = self.get_eval_dataloader(eval_dataset)
            return self.evaluation_loop(loader, "Evaluation", None, ignore_keys, metric_key_prefix).metrics

    data = [{"input_ids": np.array([1, 2]), "labels": np.array([1, 2])}] * 2
    args = Seq2SeqTrainingArguments(str(tmp_path), report_to="none", disable_tqdm=True, predict_with_generate=True)
    model = Echo()
    Own(model, args, eval_dataset=data, compute_metrics=lambda p: {}).evaluate(max_length=4, num_beams=None)
    assert model.asked == [{"max_length": 4}]
