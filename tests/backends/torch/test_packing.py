"""Packed documents in models of transformers: kept apart as the library does it, with the loss that they have alone."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from oneloop import Trainer  # noqa: E402
from oneloop.errors import ModelError  # noqa: E402

WORDS = 50


def llama(attention="sdpa", **more):
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, attn_implementation=attention, **more))


def gpt2():
    sizes = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "eos_token_id": 1}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **none))


def bert():
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.BertForMaskedLM(
        transformers.BertConfig(**sizes, intermediate_size=48, max_position_embeddings=64)
    )


MODELS = {"llama": llama, "llama-eager": lambda: llama("eager"), "gpt2": gpt2, "bert": bert}


def documents(lengths, seed=0):
    random = np.random.RandomState(seed)
    return [{"input_ids": random.randint(2, WORDS, length).tolist()} for length in lengths]


def made(name):
    torch.manual_seed(0)
    return MODELS[name]().eval()


@pytest.mark.parametrize("name", MODELS)
def test_neighbours_are_bit_identical_when_a_document_changes(arguments, name):
    data = documents((5, 4, 7) * 4)
    trainer = Trainer(made(name), arguments(packing=True, max_length=16), train_dataset=data)
    batch = next(iter(trainer.get_train_dataloader()))
    assert ("attention_mask" in batch) == (name == "bert")
    trainer.model.eval()
    with torch.no_grad():
        before = trainer.model(**batch).logits
        for row, positions in enumerate(batch["position_ids"]):
            starts = [*(positions == 0).nonzero().flatten().tolist(), len(positions)]
            assert len(starts) > 2
            for start, stop in zip(starts, starts[1:]):
                ids = batch["input_ids"].clone()
                ids[row, start:stop] = (ids[row, start:stop] + 1) % WORDS
                after = trainer.model(**{**batch, "input_ids": ids}).logits
                others = torch.ones(ids.shape, dtype=torch.bool)
                others[row, start:stop] = False
                assert torch.equal(after[others], before[others])
                assert not torch.equal(after[row, start:stop], before[row, start:stop])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_loss_is_that_of_the_documents_alone(arguments, name):
    data = documents((5, 3, 9, 2, 14, 6, 2, 8, 4, 7, 4))
    args = arguments(packing="best_fit", max_length=16, per_device_train_batch_size=16)
    trainer = Trainer(made(name), args, train_dataset=data)
    (batch,) = trainer.get_train_dataloader()
    with torch.no_grad():
        packed = trainer.model(**batch).loss
        rows = [torch.tensor([each["input_ids"]]) for each in data]
        losses = [trainer.model(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1) for ids in rows]
    torch.testing.assert_close(packed, sum(losses) / sum(ids.shape[1] - 1 for ids in rows), rtol=1e-6, atol=1e-6)


def test_a_cache_hides_the_packing_from_transformers(arguments):
    trainer = Trainer(
        made("llama"), arguments(packing=True, max_length=16, use_cache=True), train_dataset=documents((5, 4, 7) * 4)
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert "attention_mask" in batch  # by which they are kept apart all the same


def test_prefixes_that_every_document_sees_are_no_way_around(arguments):
    """A model that ignores what it is given."""

    class Deaf(transformers.LlamaForCausalLM):
        def forward(self, input_ids, labels=None, position_ids=None, attention_mask=None):
            return super().forward(input_ids=input_ids, labels=labels)

    model = Deaf(llama().config)
    trainer = Trainer(model, arguments(packing=True, max_length=16), train_dataset=documents((5, 4, 7) * 4))
    with pytest.raises(ModelError, match="Tried, of the columns that its forward accepts: position_ids, position_ids"):
        trainer.train()


def test_tokens_are_what_flash_attention_takes(arguments, monkeypatch):
    """Its kernels need a GPU: only the batch is looked at."""
    trainer = Trainer(made("llama"), arguments(packing=True, max_length=16), train_dataset=documents((5, 4, 7) * 4))
    monkeypatch.setattr(trainer.model.config, "_attn_implementation_internal", "flash_attention_2")
    from oneloop.trainer import packing

    assert next(packing._candidates(trainer._oneloop)) == ("position_ids", "cu_seq_lens_q")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_wrapped_rows_are_given_without_a_mask(arguments, name):
    """As a language model is usually pretrained: the loss is that of the rows as plain text."""
    trainer = Trainer(made(name), arguments(packing="wrapped", max_length=16), train_dataset=documents((5, 4, 7) * 4))
    batch = next(iter(trainer.get_train_dataloader()))
    assert set(batch) == {"input_ids", "labels"}
    trainer.model.eval()
    with torch.no_grad():
        loss = trainer.model(**batch).loss
        alone = trainer.model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
    assert loss.item() == alone.item()


def test_wrapped_rows_of_a_model_that_is_not_causal_have_their_padding_masked(arguments):
    trainer = Trainer(made("bert"), arguments(packing="wrapped", max_length=16), train_dataset=documents((5, 4, 10)))
    batches = list(trainer.get_train_dataloader())
    (batch,) = batches
    mask = batch["attention_mask"][:, 0]
    assert mask[0].all() and mask[1, :3, :3].all() and not mask[1, :3, 3:].any()


def test_a_subclass_with_a_name_of_its_own_is_causal_too(arguments):
    """Its labels are counted without the first of each row, as they are in the loss."""

    class Own(transformers.LlamaForCausalLM):
        pass

    model = Own(llama().config)
    trainer = Trainer(model, arguments(packing="wrapped", max_length=16), train_dataset=documents((5, 4, 7) * 4))
    batch = next(iter(trainer.get_train_dataloader()))
    assert set(batch) == {"input_ids", "labels"}
    ids = batch["input_ids"]
    plain = {"input_ids": ids, "labels": ids}
    assert trainer.get_batch_samples(iter([plain]), 1)[1] == ids.numel() - len(ids)
    bert_of_own = Trainer(type("Own", (transformers.BertForMaskedLM,), {})(made("bert").config), arguments())
    assert bert_of_own.get_batch_samples(iter([plain]), 1)[1] == ids.numel()


def test_a_causal_model_whose_labels_are_not_shifted(arguments):
    """Bart's decoder: its mask excludes the tokens that follow, and first labels are not predicted from another
    document."""
    sizes = {"vocab_size": WORDS, "d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2}
    data = [each | {"labels": each["input_ids"]} for each in documents((5, 4, 7) * 4)]
    model = transformers.BartForCausalLM(
        transformers.BartConfig(**sizes, decoder_ffn_dim=48, max_position_embeddings=64)
    )
    trainer = Trainer(model, arguments(packing=True, max_length=16), train_dataset=data)
    batch = next(iter(trainer.get_train_dataloader()))
    mask = batch["attention_mask"][:, 0]
    assert not mask.triu(1).any() and mask.diagonal(dim1=1, dim2=2).all()
    starts = torch.nn.functional.pad(~mask.diagonal(-1, 1, 2), (1, 0), value=True)
    assert starts.sum() > len(starts) and (batch["labels"][starts] == -100).all()


def test_a_model_whose_labels_are_shifted_and_that_is_not_causal(arguments):
    """Without is_decoder, BERT sees the tokens that follow, packed as alone."""
    model = transformers.BertLMHeadModel(made("bert").config)
    trainer = Trainer(model, arguments(packing=True, max_length=16), train_dataset=documents((5, 4, 7) * 4))
    assert next(iter(trainer.get_train_dataloader()))["attention_mask"].triu(1).any()
