"""A short run that reports to one service, as a program: the child process of the tests in this directory.

    python -m tests.integrations.writers.job SERVICE OUTPUT [--steps 8] [--die-at 5 [--softly]] [--resume]

It logs every step, evaluates every second one and saves every third. `--die-at N` ends the process by SIGKILL once step
N has been logged, or, `--softly`, by an exception. `state.json` in OUTPUT has what a run that ends well has logged.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from oneloop import Trainer, TrainerCallback, TrainingArguments
from tests.backends.support import kit_module, names, rows


class Dies(TrainerCallback):
    def __init__(self, step, softly):
        self.step, self.softly = step, softly

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step and self.softly:
            sys.exit(0)
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("service")
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--softly", action="store_true")
    parser.add_argument("--resume", nargs="?", const=True)
    parser.add_argument("--framework", default=None)
    given = parser.parse_args()
    kit = kit_module(given.framework or names()[0]).Kit()
    args = TrainingArguments(
        str(given.output),
        report_to=given.service,
        run_name="the-run",
        project="the-project",
        hub_token=sys.stdin.read(),  # comet and clearml keep the source of the script
        max_steps=given.steps,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=3,
        save_async=False,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        optim="sgd",
        lr_scheduler_type="constant",
        disable_tqdm=True,
        device="cpu",
    )
    callbacks = [] if given.die_at is None else [Dies(given.die_at, given.softly)]
    trainer = Trainer(kit.classifier(), args, None, rows(16), rows(8, 1), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=given.resume)
    trainer.predict(rows(8, 2))
    (given.output / "state.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main()
