"""Runs several scripts, one after the other, as `oneloop run` does: what they import is imported once.

several.py FOLDER PLAN [models]: makes the models in FOLDER if asked, runs PLAN, a JSON list of command lines, and
writes what came of each to FOLDER/outcomes.json.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path


def main(folder: str, plan: str, models: str = "") -> None:
    os.environ["HF_DATASETS_CACHE"] = f"{folder}/cache"
    from oneloop.cli.main import main as oneloop

    os.chdir(folder)
    if models:
        import local

        local.models(Path())
    commands, outcomes = json.loads(plan), []
    Path("outcomes.json").write_text("[]")
    for words in commands:
        shown, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
            try:
                code = oneloop(["run", *words])
            except SystemExit as left:
                code = left.code or 0
        outcomes.append({"code": code, "stdout": shown.getvalue(), "stderr": told.getvalue()})
        Path("outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
