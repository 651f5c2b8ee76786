"""Tiny models, tokenizers and texts, made in place: no download."""

import random
from pathlib import Path

from tests.backends import tiny_bert

WORDS = """red green blue small large old new fast slow cat dog bird fish horse eats sees likes finds takes apple pear
stone house river today here there never always a the one two three""".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sentences(count, seed=0, length=5, words=WORDS):
    """Different sentences of random words."""
    drawn, found = random.Random(seed), dict.fromkeys(())
    while len(found) < count:
        found[" ".join(drawn.choice(words) for _ in range(length))] = None
    return list(found)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=32, **names)


def bert(folder, kind="BertModel", dropout=0.0, **more):
    """A folder with a BERT of one layer and its tokenizer. Two libraries are compared without dropout: they draw other
    random numbers."""
    import transformers
    from safetensors.torch import save_file

    transformers.set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "max_position_embeddings": 32}
    config = tiny_bert.config(dropout, vocab_size=len(SPECIAL) + len(WORDS), **sizes, **more)
    model = getattr(transformers, kind)(config)
    model.config.architectures = [kind]
    model.config.save_pretrained(folder)
    # Not model.save_pretrained: on several processes it writes in the main one alone.
    weights = {name: value.clone() for name, value in model.state_dict().items()}  # some are tied
    save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
    tokenizer().save_pretrained(folder)
    return str(folder)
