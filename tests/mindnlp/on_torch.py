"""A run on PyTorch itself, in a process without mindnlp: python on_torch.py job.json prints the losses as JSON.

The job: `config` of a BERT, `rows` to train on, `arguments`, and the checkpoint to `resume` from, or null.
"""

import json
import sys

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from oneloop import Trainer, TrainingArguments
from oneloop.backends import loading


def main(path):
    with open(path, encoding="utf-8") as f:
        job = json.load(f)
    rows = [{"input_ids": np.array(row["input_ids"], np.int64), "labels": row["labels"]} for row in job["rows"]]
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**job["config"]))
    trainer = Trainer(model=model, args=TrainingArguments(**job["arguments"]), train_dataset=rows)
    trainer.train(resume_from_checkpoint=job["resume"])
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"framework": loading.of_model(model).NAME, "losses": losses}))


if __name__ == "__main__":
    main(sys.argv[1])
