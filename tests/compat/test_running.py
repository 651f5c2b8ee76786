"""`oneloop run` is `python`: arguments, paths, exit codes and tracebacks."""

import os
import subprocess
import sys

import pytest

from tests.compat.support import environment

STORE = """
import atexit, os, sys
import beside
print(__name__, __file__, sys.argv, sys.path[0], __spec__, __package__, beside.NAME, __doc__)
print(sorted(name for name in globals() if name != "__annotations__"))
atexit.register(lambda: print("left", len(sys.argv)))
"""
SCRIPTS = {
    "plain": STORE,
    "exits": "import sys\nsys.exit(3)\n",
    "says": "import sys\nsys.exit('it went wrong')\n",
    "fails": "def inner():\n    raise ValueError('no')\n\n\ntry:\n    {}['x']\nexcept KeyError:\n    inner()\n",
    "refuses": "from oneloop.errors import UnsupportedError\nraise UnsupportedError('not here')\n",
    "no_file": "open('/no/such/file')\n",
    "syntax": "x = (1,\n",
    "interrupted": (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(9)\n"
    ),
}


def run(folder, *words, **more):
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment() | more, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_as_plain_python(name, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / f"{name}.py").write_text(SCRIPTS[name])
    (tmp_path / "own" / "beside.py").write_text("NAME = __name__\n")
    words = [f"own/{name}.py", "a", "--as", "transformers", "--", "-x", "--help"]
    plain = run(tmp_path, *words)
    ours = run(tmp_path, "-m", "oneloop", "run", *words)
    assert ours.returncode == plain.returncode
    assert ours.stdout == plain.stdout
    if name == "interrupted":  # Python itself adds frames of its own
        assert ours.stderr.rstrip().endswith("KeyboardInterrupt")
    else:
        assert ours.stderr == plain.stderr


def test_a_script_that_is_not_there(tmp_path):
    done = run(tmp_path, "-m", "oneloop", "run", "nothing.py")
    assert done.returncode == 2
    assert done.stderr == ("oneloop run: script nothing.py not found; pass its path before its arguments.\n")


STAND_IN = """
from functools import partial
from paddlenlp.trainer import (CompressionArguments, PdArgumentParser, Trainer, TrainingArguments, get_last_checkpoint)
from paddlenlp.trainer.trainer_callback import TrainerState
from paddlenlp.trainer.trainer_utils import IntervalStrategy
from paddlenlp.data import DataCollatorForSeq2Seq
from paddlenlp.utils.log import logger
from mindnlp.engine import Trainer as Other, Evaluator
from mindnlp.engine.utils import EvalPrediction, PREFIX_CHECKPOINT_DIR
from mindnlp.engine.callbacks import BestModelCallback, TrainerCallback
import oneloop
from oneloop.errors import UnsupportedError

assert Trainer is Other is oneloop.Trainer and PdArgumentParser is oneloop.PdArgumentParser
assert TrainerState is oneloop.TrainerState and EvalPrediction is oneloop.EvalPrediction
logger.info("nothing")
assert PREFIX_CHECKPOINT_DIR == "checkpoint"
for refused in (partial(CompressionArguments, do_compress=True), Evaluator, BestModelCallback):
    try:
        refused(output_dir="x")
    except UnsupportedError as error:
        print(error)
try:
    PdArgumentParser((Evaluator,))
except UnsupportedError as error:
    print("parser:", error)
for missing in ("paddlenlp.transformers", "mindnlp.transformers.models"):
    try:
        __import__(missing)
    except ModuleNotFoundError as error:
        print(error)
try:
    from paddlenlp.trainer import get_wsd_schedule
except ImportError as error:
    print(error)
"""


def test_a_library_that_is_not_installed(tmp_path):
    (tmp_path / "script.py").write_text(STAND_IN)
    hide = (
        "import sys, importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "hidden = lambda name, *rest: None if name in ('paddlenlp', 'mindnlp') else find(name, *rest)\n"
        "m.PathFinder.find_spec = staticmethod(hidden)\n"
        "from oneloop.cli.main import main\n"
        "sys.exit(main(['run', 'script.py']))\n"
    )
    done = run(tmp_path, "-c", hide)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("do_compress=True is not supported: model compression (pruning, quantization")
    assert lines[1].startswith("Evaluator is not supported under oneloop: it has its own training loop")
    assert lines[2].endswith("MindNLP's first Trainer; use load_best_model_at_end.")
    assert lines[3].startswith("parser: Evaluator is not supported")
    assert "oneloop only replaces its Trainer: pip install paddlenlp" in lines[4]
    assert "oneloop only replaces its Trainer: pip install mindnlp" in lines[5]
    assert "cannot import name 'get_wsd_schedule'" in lines[6]


def test_only_the_chosen_library_is_redirected(tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys\nfrom oneloop.compat.redirect import Finder\n"
        "(finder,) = [each for each in sys.meta_path if isinstance(each, Finder)]\n"
        "print(sorted({name.partition('.')[0] for name in finder.plans}))\n"
    )
    assert run(tmp_path, "-m", "oneloop", "run", "--as", "paddlenlp", "script.py").stdout == "['paddlenlp']\n"
    (tmp_path / "script.py").write_text((tmp_path / "script.py").read_text() + "if 0:\n    import helper\n")
    (tmp_path / "helper.py").write_text("import transformers.trainer\n")
    # TRL's command line starts processes, which have to be redirected as well.
    assert run(tmp_path, "-m", "oneloop", "run", "script.py").stdout == "['transformers', 'trl']\n"


def test_a_module_as_by_python_m(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nfrom transformers import Trainer\n"
        "print(__name__, Trainer.__module__, sys.argv[1:], sys.argv[0].endswith('train.py'))\nsys.exit(3)\n"
    )
    done = run(tmp_path, "-m", "oneloop", "run", "-m", "package.train", "--x", "1")
    assert done.returncode == 3
    assert done.stdout.split() == ["__main__", "oneloop.public", "['--x',", "'1']", "True"]
    missing = run(tmp_path, "-m", "oneloop", "run", "-m", "no_such_module")
    assert missing.returncode == 2 and "no_such_module not found" in missing.stderr


def test_a_command_that_is_installed(tmp_path):
    """A bare name that is no file is looked for among commands; one that is not Python is not run."""
    (tmp_path / "tool").write_text(
        f"#!{sys.executable}\nfrom transformers import Trainer\nprint(Trainer.__module__, __name__)\n"
    )
    (tmp_path / "other").write_text("#!/bin/sh\necho no\n")
    for name in ("tool", "other"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run(tmp_path / "elsewhere", "-m", "oneloop", "run", "tool", PATH=path)
    assert done.stdout == "oneloop.public __main__\n"
    assert "not found" in run(tmp_path / "elsewhere", "-m", "oneloop", "run", "other", PATH=path).stderr


def test_a_library_that_is_imported_for_what_that_does_is_missed(tmp_path):
    (tmp_path / "script.py").write_text("import mindnlp\nfrom mindnlp.engine import Trainer\n")
    hide = (
        "import sys, importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = staticmethod(lambda name, *rest: None if name == 'mindnlp' else find(name, *rest))\n"
        "from oneloop.cli.main import main\n"
        "sys.exit(main(['run', 'script.py']))\n"
    )
    done = run(tmp_path, "-c", hide)
    assert done.returncode == 1 and done.stderr.endswith("ModuleNotFoundError: No module named 'mindnlp'\n")


def test_a_library_that_was_imported_before(tmp_path):
    (tmp_path / "paddlenlp" / "trainer").mkdir(parents=True)
    (tmp_path / "paddlenlp" / "__init__.py").write_text("from . import trainer\n")
    (tmp_path / "paddlenlp" / "trainer" / "__init__.py").write_text("from .trainer import *\nOTHER = 'theirs'\n")
    (tmp_path / "paddlenlp" / "trainer" / "trainer.py").write_text("class Trainer: pass\nclass Else: pass\n")
    (tmp_path / "script.py").write_text(
        "import paddlenlp.trainer, oneloop\n"
        "before = paddlenlp.trainer.Trainer\n"
        "from oneloop.compat.check import redirect\n"
        "redirect('paddlenlp')\n"
        "redirect('paddlenlp')\n"
        "from paddlenlp.trainer import *\n"
        "from paddlenlp.trainer.trainer import Else as same\n"
        "assert Trainer is paddlenlp.trainer.Trainer is paddlenlp.trainer.trainer.Trainer is oneloop.Trainer\n"
        "assert before is not Trainer and OTHER == 'theirs' and same.__name__ == 'Else'\n"
        "assert 'OTHER' in dir(paddlenlp.trainer) and 'get_last_checkpoint' in dir(paddlenlp.trainer)\n"
    )
    done = run(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("end", ["", "import sys\nsys.exit(0)\n"])
def test_a_script_without_a_trainer_prints_a_note(tmp_path, end):
    (tmp_path / "paddlenlp").mkdir()
    (tmp_path / "paddlenlp" / "__init__.py").write_text("")
    (tmp_path / "script.py").write_text(f"import paddlenlp\nfrom paddlenlp.trainer import Trainer, set_seed\n{end}")
    done = run(tmp_path, "-m", "oneloop", "run", "script.py")
    assert done.returncode == 0
    assert done.stderr == "oneloop run: script.py created no Trainer, so none of it ran on oneloop.\n"
