"""Playing the scenarios of a library on transformers' Trainer and on oneloop, each side in one process of its own."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]


def play_all(play, offline, side, folder, names):
    """play(folder, side, name) for each name. The files of a run go to FOLDER/SIDE/NAME, in which colons become dashes,
    and an error to FOLDER/SIDE/NAME.error."""
    os.environ.update(offline)
    if side == "oneloop":
        from oneloop.compat.redirect import redirect

        redirect("transformers")
    for name in names:
        try:
            play(folder, side, name)
        except (Exception, SystemExit):
            (Path(folder) / side).mkdir(exist_ok=True)
            (Path(folder) / side / f"{name.replace(':', '-')}.error").write_text(traceback.format_exc())
    return 0


def run(offline, *arguments):
    """Python with these arguments, which has to succeed; what it said."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | offline
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def result(folder, side, name):
    """The files of a run that has to have succeeded."""
    error = folder / side / f"{name}.error"
    assert not error.exists(), error.read_text()
    return folder / side / name
