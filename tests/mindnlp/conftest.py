"""Tests of models under mindnlp: `bash scripts/mindnlp` runs them, in the environment that it makes.

`import mindnlp` puts mindtorch in the place of torch for the whole process, so these tests never run beside others:
they are collected only where mindnlp was imported before them (pytest -p mindnlp).
"""

import sys

if "mindnlp" not in sys.modules:
    collect_ignore_glob = ["test_*.py"]

import runpy
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "guides" / "scripts"


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """run_script(name, *options): runs a guide's script of tests/guides in an empty directory; the names it defined.

    What the script downloads comes from stand_ins.py of this folder.
    """
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)

    def run(name, *options):
        path = SCRIPTS / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, options)])
        return runpy.run_path(str(path), run_name="__main__")

    return run


@pytest.fixture
def rows():
    """Sentences of 12 words, of which the fourth tells the label."""
    draw = np.random.RandomState(1)
    found = []
    for i in range(32):
        ids = draw.randint(5, 40, 12)
        ids[3] = 45 + i % 2
        found.append({"input_ids": ids.astype(np.int64), "labels": i % 2})
    return found


@pytest.fixture
def bert():
    """bert(dropout=0.1, seed=0, layers=1): a small BERT whose weights depend on nothing but the seed."""
    from transformers import BertConfig, BertForSequenceClassification

    from oneloop.backends import loading

    loading.load("mindtorch")  # whose stand-ins draw weights too: the first model would differ from the next ones

    def make(dropout=0.1, seed=0, layers=1):
        kept = np.random.get_state()
        np.random.seed(seed)
        config = BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        model = BertForSequenceClassification(config)
        np.random.set_state(kept)
        return model

    return make


@pytest.fixture
def arguments(tmp_path):
    from oneloop import TrainingArguments

    def make(**given):
        options = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "max_steps": 4}
        options |= {"per_device_train_batch_size": 8, "learning_rate": 1e-3, "output_dir": str(tmp_path / "out")}
        return TrainingArguments(**options | given)

    return make


@pytest.fixture
def trained(bert, rows, arguments):
    """trained(**arguments): a Trainer after train()."""
    from oneloop import Trainer

    def train(model=None, resume=None, trainer_class=Trainer, **given):
        trainer = trainer_class(model=model or bert(), args=arguments(**given), train_dataset=rows)
        trainer.result = trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


@pytest.fixture
def bits():
    """bits(model): the bytes of all its weights by name."""
    return lambda model: {name: value.asnumpy().tobytes() for name, value in model.state_dict().items()}
