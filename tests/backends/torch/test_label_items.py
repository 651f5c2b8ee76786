"""The items of a batch beside the labels that the loss reads, and beside what transformers counts, for its classes."""

import pytest
import torch
import transformers

from oneloop import Trainer
from tests.backends.torch import tiny_transformers

# Where transformers' Trainer counts other labels than those that the loss is a mean of.
COUNTS_ALL = {  # their loss leaves the first of each row out
    "BertGenerationDecoder", "BertLMHeadModel", "CTRLLMHeadModel", "EvollaForProteinText2Text", "GPT2LMHeadModel",
    "OpenAIGPTLMHeadModel",
}  # fmt: skip
COUNTS_BUT_FIRST = {  # their loss reads all
    "BartForCausalLM", "BigBirdPegasusForCausalLM", "BlenderbotForCausalLM", "BlenderbotSmallForCausalLM",
    "CpmAntForCausalLM", "MBartForCausalLM", "MarianForCausalLM", "MvpForCausalLM", "PLBartForCausalLM",
    "PegasusForCausalLM", "ProphetNetForCausalLM", "TrOCRForCausalLM", "WhisperForCausalLM",
}  # fmt: skip

# Declared by a loss function, by being an encoder and a decoder, or by nothing.
QUICK = [
    "LlamaForCausalLM", "GPT2LMHeadModel", "BertLMHeadModel", "LlavaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration", "Gemma3ForConditionalGeneration", "BlipForConditionalGeneration",
    "T5ForConditionalGeneration", "XLNetLMHeadModel", "XLMWithLMHeadModel",
    "BartForCausalLM", "WhisperForCausalLM", "BertForMaskedLM", "BertForTokenClassification",
]  # fmt: skip
SHIFTED = {*QUICK[:7]}


def labelled(model, given):
    """A batch in which the first label of each row counts, and some others do not."""
    labels = torch.randint(*((0, 2) if tiny_transformers.values_of(model) == (0, 1) else (5, 60)), (2, 8))
    labels[0, 2:4] = labels[1, 7] = -100
    return {**given, "labels": labels}


def counted(model, batch, arguments):
    """By oneloop, and by transformers' Trainer."""
    ours = Trainer(model, arguments())._get_num_items_in_batch([batch], torch.device("cpu"))
    args = transformers.TrainingArguments(arguments().output_dir, report_to="none", use_cpu=True)
    theirs = transformers.Trainer(model, args)
    theirs.model_accepts_loss_kwargs = True  # otherwise it does not count
    return ours, int(theirs._get_num_items_in_batch([batch], torch.device("cpu")))


def expected(batch, read):
    return int((batch["labels"][:, read] != -100).sum())


@pytest.mark.parametrize("name", QUICK)
def test_items_are_the_labels_that_the_loss_reads(name, arguments):
    model, given, read = tiny_transformers.built(name)
    assert read == list(range(name in SHIFTED, 8))
    batch = labelled(model, given)
    ours, theirs = counted(model, batch, arguments)
    assert ours == expected(batch, read)
    assert (ours != theirs) == (name in COUNTS_ALL | COUNTS_BUT_FIRST)


def test_a_class_of_its_own_name(arguments):
    """transformers derives the kind of loss from the name, and does not know this one."""
    own = type("Storyteller", (transformers.LlamaForCausalLM,), {})
    model = own(tiny_transformers.build("LlamaForCausalLM").config)
    ids = torch.randint(5, 60, (2, 8))
    assert counted(model, {"input_ids": ids, "labels": ids}, arguments) == (14, 16)

    class Aligned(transformers.LlamaForCausalLM):
        """With a forward of its own, whose labels the data set has shifted."""

        def forward(self, input_ids, labels=None):
            outputs = super().forward(input_ids)
            loss = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())
            return {"loss": loss, "logits": outputs.logits}

    assert counted(Aligned(model.config), {"input_ids": ids, "labels": ids}, arguments)[0] == 16

    class StoriesForMaskedLM(transformers.BertForMaskedLM):
        """With a forward of its own, and a loss that is not that of its name."""

        def forward(self, input_ids, labels=None):
            logits = super().forward(input_ids).logits
            return {"loss": torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}

    model = StoriesForMaskedLM(tiny_transformers.build("BertForMaskedLM").config)
    assert counted(model, {"input_ids": ids, "labels": ids}, arguments)[0] == 14


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "T5ForConditionalGeneration", "BertForTokenClassification"])
def test_what_a_model_declares_is_not_computed(name, arguments):
    model, given, _ = tiny_transformers.built(name)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    counted(model, labelled(model, given), arguments)
    assert not calls


def test_weights_in_half_precision(arguments):
    class Heard(torch.nn.Module):
        """Of features, which have to be in half precision as well."""

        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(4, 60)

        def forward(self, features, labels=None):
            logits = self.head(features).float()
            return {"loss": torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}

    trainer = Trainer(Heard(), arguments(bf16=True, fp16_opt_level="O3"))
    batch = {"features": torch.randn(2, 8, 4), "labels": torch.randint(5, 60, (2, 8))}
    assert trainer._get_num_items_in_batch([batch], None) == 14


def test_a_loss_function_that_is_replaced(arguments):
    def aligned(logits, labels, vocab_size, **kwargs):
        return torch.nn.functional.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))

    model = tiny_transformers.build("LlamaForCausalLM")
    model.loss_function = aligned
    ids = torch.randint(5, 60, (2, 8))
    assert counted(model, {"input_ids": ids, "labels": ids}, arguments)[0] == 16


def test_buffers_that_a_forward_pass_changes_are_put_back(arguments):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Embedding(60, 60)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("replaced", torch.zeros(()))

        def forward(self, input_ids, labels=None):
            self.calls += 1
            self.replaced = self.replaced + 1
            return {"loss": torch.nn.functional.cross_entropy(self.head(input_ids).flatten(0, 1), labels.flatten())}

    model, ids = Counting(), torch.randint(5, 60, (2, 8))
    assert counted(model, {"input_ids": ids, "labels": ids}, arguments)[0] == 16
    assert model.calls == 0 and model.replaced == 0 and model.training


@pytest.mark.slow
def test_all_classes_that_can_be_built_tiny(arguments):
    """Causal, image-text, speech and encoder-decoder models, masked ones, and token classification."""
    failed, wrong, differs = {}, [], set()
    names = tiny_transformers.classes()
    for name in names:
        try:
            model, given, read = tiny_transformers.built(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        batch = labelled(model, given)
        ours, theirs = counted(model, batch, arguments)
        if ours != expected(batch, read):
            wrong.append((name, ours, expected(batch, read)))
        if ours != theirs:
            differs.add(name)
    for name, why in failed.items():
        print(f"not built: {name} ({names[name]}): {why}")
    print(f"{len(names) - len(failed)} of {len(names)} classes; other items than transformers: {sorted(differs)}")
    assert not wrong
    assert differs == COUNTS_ALL | COUNTS_BUT_FIRST
    assert len(names) - len(failed) > 380
