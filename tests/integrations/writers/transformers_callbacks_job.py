"""A short run with a callback of transformers, as a program:

python -m tests.integrations.writers.transformers_callbacks_job NAME OUTPUT"""

import json
import sys
from pathlib import Path

import transformers.integrations

from oneloop import Trainer, TrainingArguments
from tests.backends.support import kit_module, names, rows

name, output = sys.argv[1], Path(sys.argv[2])
kit = kit_module(names()[0]).Kit()
args = TrainingArguments(
    str(output),
    report_to="none",
    run_name="the-run",
    project="the-project",
    max_steps=4,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=2,
    save_steps=2,
    per_device_train_batch_size=4,
    learning_rate=0.1,
    optim="sgd",
    disable_tqdm=True,
    device="cpu",
)
callback = getattr(transformers.integrations, name)()
trainer = Trainer(kit.classifier(), args, None, rows(16), rows(8, 1), callbacks=[callback])
trainer.train()
(output / "state.json").write_text(json.dumps(trainer.state.log_history))
