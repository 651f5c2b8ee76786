"""What the guide downloads, made in place, for scripts under mindnlp.

Data, tokenizer and metrics are those of tests/guides/stand_ins.py. Models are opened by transformers' own
from_pretrained, as mindnlp has patched it, from a directory that takes the place of the download.
"""

import functools
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import transformers

_PATH = Path(__file__).parent.parent / "guides" / "stand_ins.py"
_spec = importlib.util.spec_from_file_location("seeds_stand_ins", _PATH)
_seeds = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_seeds)

load_dataset, AutoTokenizer, evaluate = _seeds.load_dataset, _seeds.AutoTokenizer, _seeds.evaluate
WORDS, HIDDEN, LONGEST, ENGLISH = _seeds.WORDS, _seeds.HIDDEN, _seeds.LONGEST, _seeds.ENGLISH


@functools.cache
def _download():
    """A model that holds the words of both labels apart from the start, as a pretrained one would."""
    from oneloop.backends.mindtorch.tensors import memory_of

    kept = np.random.get_state()
    np.random.seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * HIDDEN,
        max_position_embeddings=LONGEST,
        initializer_range=HIDDEN**-0.5,
    )
    model = transformers.BertForSequenceClassification(config)
    opinion = 3 * config.initializer_range * np.random.randn(HIDDEN).astype(np.float32)
    np.random.set_state(kept)
    table = memory_of(model.get_input_embeddings().weight)
    table[[WORDS.index(word) for word in ENGLISH[1]]] += opinion
    table[[WORDS.index(word) for word in ENGLISH[0]]] -= opinion
    memory_of(model.classifier.weight)[...] = 0
    folder = tempfile.mkdtemp(prefix="oneloop-mindnlp-")
    model.save_pretrained(folder, safe_serialization=True)
    return folder


class AutoModelForSequenceClassification:
    @staticmethod
    def from_pretrained(name, **options):
        return transformers.AutoModelForSequenceClassification.from_pretrained(_download(), **options)
