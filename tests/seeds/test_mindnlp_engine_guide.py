"""MindNLP's older guide: evaluation_strategy, and compute_metrics with an annotated EvalPrediction.

Its remark about data that is already batched is about MindSpore's data sets and has no counterpart on torch.
"""

import torch

from oneloop import Trainer, TrainingArguments


def test_the_script(run_script, tmp_path):
    names = run_script("mindnlp_engine", where="a/b")
    trainer = names["trainer"]
    history = trainer.state.log_history
    assert names["training_args"].evaluation_strategy == "steps"
    assert [entry["step"] for entry in history if "loss" in entry] == [50, 100]
    (evaluation,) = (entry for entry in history if "eval_accuracy" in entry)
    assert evaluation["step"] == 100 and evaluation["eval_accuracy"] > 0.9
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[1] < losses[0]
    saved = {path.name for path in (tmp_path / "output").glob("checkpoint-*")}
    assert saved == {"checkpoint-40", "checkpoint-80", "checkpoint-120"}


def test_the_optimizers_it_names(tmp_path):
    found = {}
    for name in ("adamw", "sgd"):
        args = TrainingArguments(str(tmp_path), optim=name, report_to="none")
        found[name] = type(Trainer(torch.nn.Linear(2, 2), args).create_optimizer())
    assert found == {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
