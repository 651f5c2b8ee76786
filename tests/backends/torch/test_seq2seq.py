"""Models that generate."""

import numpy as np
import pytest
import torch

from oneloop import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

transformers = pytest.importorskip("transformers")
RUN = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "per_device_eval_batch_size": 2}


def t5():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=19,
        d_model=8,
        d_kv=4,
        d_ff=8,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        dropout_rate=0.0,
    )
    return transformers.T5ForConditionalGeneration(config)


def pairs(lengths=(3, 6, 2, 5, 4)):
    random = np.random.RandomState(0)
    return [
        {"input_ids": random.randint(2, 19, n).tolist(), "labels": random.randint(2, 19, max(1, n - 1)).tolist()}
        for n in lengths
    ]


@pytest.fixture
def make(tmp_path):
    from tokenizers import Tokenizer, models

    core = Tokenizer(models.WordLevel({f"w{i}": i for i in range(19)}, unk_token="w2"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w2", pad_token="w0")

    def trainer(model=None, compute_metrics=None, **given):
        model = model or t5()
        return Seq2SeqTrainer(
            model,
            Seq2SeqTrainingArguments(str(tmp_path), **(RUN | given)),
            DataCollatorForSeq2Seq(tokenizer, model=model),
            pairs(),
            pairs(),
            tokenizer,
            compute_metrics=compute_metrics,
        )

    return trainer


def test_predictions_are_what_the_model_generates(make):
    trainer = make(predict_with_generate=True, generation_max_length=7)
    output = trainer.predict(pairs())
    model = trainer.model.eval()
    for row, sample in zip(output.predictions, pairs()):
        alone = model.generate(torch.tensor([sample["input_ids"]]), max_length=7)[0].tolist()
        assert row[: len(alone)].tolist() == alone
    assert output.predictions.shape[1] <= 7 and output.metrics["test_loss"] > 0
    assert trainer.predict(pairs(), max_length=4, num_beams=2).predictions.shape[1] <= 4


def test_without_generation_predictions_are_logits(make):
    logits = make().predict(pairs()).predictions
    logits = logits[0] if isinstance(logits, tuple) else logits
    assert logits.shape[0] == 5 and logits.shape[-1] == 19


def test_evaluation_by_generated_text_while_training(make):
    seen = []

    def compute(prediction):
        seen.append(prediction)
        return {"length": float((prediction.predictions >= 0).sum(1).mean())}

    trainer = make(
        compute_metrics=compute,
        predict_with_generate=True,
        generation_max_length=5,
        eval_strategy="epoch",
        num_train_epochs=2,
    )
    trainer.train()
    assert [e["eval_length"] <= 5 for e in trainer.state.log_history if "eval_length" in e] == [True, True]
    assert seen[0].predictions.dtype.kind == "i" and seen[0].label_ids.shape == (5, 5)


def test_sorting_by_length_keeps_predictions_in_the_order_of_the_data(make):
    plain, sortish = make(predict_with_generate=True), make(predict_with_generate=True, sortish_sampler=True)
    expected, output = plain.predict(pairs()), sortish.predict(pairs())
    for left, right in zip(expected.label_ids, output.label_ids):
        assert [t for t in left if t != -100] == [t for t in right if t != -100]


def test_label_smoothing_of_an_encoder_and_decoder(make):
    trainer = make(label_smoothing_factor=0.2, per_device_eval_batch_size=5)
    batch = trainer.data_collator(pairs())
    model = trainer.model.eval()
    logits = model(**batch).logits
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.2, ignore_index=-100
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_a_model_that_cannot_generate(make):
    class Silent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Embedding(19, 19)

        def forward(self, input_ids, labels=None):
            return {"loss": self.inner(input_ids).mean(), "logits": self.inner(input_ids)}

    with pytest.raises(ValueError, match="generate method, but Silent has none"):
        make(Silent(), predict_with_generate=True).predict(pairs())
