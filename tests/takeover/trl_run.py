"""A run of TRL: `trl_run.py FOLDER SFT|DPO CHECKPOINT|- [here]`. With `here` on oneloop, otherwise on transformers.

Samples are shuffled, and an epoch has eight updates. The losses go to FOLDER/losses.json.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

if "here" in sys.argv:
    from oneloop.compat.redirect import redirect

    redirect("transformers")

from tests.ecosystem import tiny
from tests.ecosystem.trl_data import COMMON, build, preferences, texts
from tests.takeover import common


def main(folder, kind, checkpoint, *more):
    given = {"train_sampling_strategy": "random", "max_steps": common.STEPS, "learning_rate": 1e-2}
    given |= {"save_strategy": "steps", "save_steps": common.SAVED, "warmup_steps": 3}
    given |= {"data_order": "transformers"} if "here" in more else {}
    data = texts() if kind == "SFT" else preferences()
    trainer = build(kind, Path(folder) / "out", data, tiny.causal(), {}, COMMON | given)
    trainer.train(resume_from_checkpoint=None if checkpoint == "-" else checkpoint)
    if "here" in more:
        assert "oneloop" in {cls.__module__.split(".")[0] for cls in type(trainer).__mro__}
    (Path(folder) / "losses.json").write_text(json.dumps(common.losses(trainer)))


if __name__ == "__main__":
    main(*sys.argv[1:])
