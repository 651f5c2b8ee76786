"""One leg of a run of tests/checkpoint/interrupted_runs.py, on several processes.

    interrupted_job.py OUTPUT KIND INTERRUPTION RESUME

INTERRUPTION is JSON: [where, number, how], or null. At the end of the run the main process writes OUTPUT/result.json.
"""

import json
import sys
from pathlib import Path

from oneloop.distributed.world import world
from tests.checkpoint.interrupted_runs import Aborted, Course, Interruption, build
from tests.checkpoint.job import result

OPTIONS = {
    "gradient_accumulation_steps": 2,  # five batches, three steps an epoch
    "max_steps": 8,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "step",
    "greater_is_better": True,
}


def main(output, kind, interruption, resume):
    found = json.loads(interruption)
    course = Course(kind, samples=10 * world().size, options=OPTIONS)
    trainer = build(course, output, {}, None if found is None else Interruption(*found))
    try:
        trainer.train(resume_from_checkpoint=resume == "resume")
    except Aborted:
        return  # with status 0: the other process is killed otherwise, and its save with it
    if world().is_main:
        (Path(output) / "result.json").write_text(json.dumps(result(trainer, output)))


if __name__ == "__main__":
    main(*sys.argv[1:])
