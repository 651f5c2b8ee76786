"""A seed that is set before the framework is imported is the framework's from its import on."""

import ast
import functools
import os
import subprocess
import sys
from importlib import import_module

import pytest

from oneloop import set_seed
from tests.backends.support import names

DRAW = {
    "torch": "torch.rand(4).tolist()",
    "paddle": "paddle.rand([4]).tolist()",
    "mindspore": "mindspore.ops.rand(4).asnumpy().tolist()",
}
OWN_SEED = {"torch": "torch.manual_seed(5)", "paddle": "paddle.seed(5)", "mindspore": "mindspore.set_seed(5)"}
SEED = "from oneloop import set_seed; set_seed(11)"


def printed(*lines):
    """The last line that these statements print in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(params=names())
def framework(request):
    return request.param


@functools.cache
def drawn_after(framework):
    """What is drawn where the import comes first: with the seed 11, with 12, and with the framework's own seed of 5."""
    module, found = {framework: import_module(framework)}, []
    for seed in ("set_seed(11)", "set_seed(12)", OWN_SEED[framework]):
        eval(seed, module | {"set_seed": set_seed})
        found.append(eval(DRAW[framework], module))
    return found


ASK_DETERMINISM = {
    "torch": "torch.are_deterministic_algorithms_enabled()",
    "paddle": "__import__('os').environ.get('FLAGS_cudnn_deterministic') == '1'",
    "mindspore": "mindspore.get_context('deterministic') == 'ON'",
}


# MindSpore cannot be imported after the others. All in one process: what is seeded late is seeded one by one.
ORDER = [name for name in ("mindspore", "torch", "paddle") if name in names()]


@functools.cache
def imported_after():
    """By framework: whether it is deterministic, what is drawn, and what is drawn with its own seed then."""
    lines = [
        "from oneloop import enable_full_determinism, set_seed; set_seed(12)",
        "enable_full_determinism(11)",
        "import sys; from importlib.util import find_spec; import importlib.machinery as machinery",
        "assert not [name for name in ('torch', 'paddle', 'mindspore') if name in sys.modules]",
        "from oneloop.backends import loading",
        "from oneloop.backends import late_seeding",
        "assert late_seeding._FINDER is sys.meta_path[0]",
        "assert find_spec('torch') is None or find_spec('torch').origin.endswith('__init__.py')",
        "found = {}",
    ]
    for name in ORDER:
        lines += [f"import {name}", f"first = {DRAW[name]}", OWN_SEED[name], f"loading.load({name!r})"]
        lines += [f"found[{name!r}] = [{ASK_DETERMINISM[name]}, first, {DRAW[name]}]"]
        lines += [f"assert type({name}.__spec__.loader) is machinery.SourceFileLoader"]
    lines += [f"assert len(late_seeding._waiting) == 3 - {len(ORDER)}"]
    lines += [f"assert (late_seeding._FINDER in sys.meta_path) == {len(ORDER) < 3}", "print(found)"]
    return ast.literal_eval(printed(*lines))


def test_the_import_may_come_after_the_seed_and_a_seed_of_the_users_own_stays(framework):
    """Determinism is asked for then too. Nothing is imported by that, and nothing is left behind."""
    first, second, own = drawn_after(framework)
    assert imported_after()[framework] == [True, first, own]
    assert first != second


@functools.cache
def loaded_after():
    lines = [f"loading.load({name!r}); import {name}; found[{name!r}] = {DRAW[name]}" for name in ORDER]
    return ast.literal_eval(
        printed(
            SEED,
            "from oneloop import Trainer; from oneloop.backends import loading; found = {}",
            *lines,
            "print(found)",
        )
    )


def test_the_backend_may_be_what_imports_the_framework(framework):
    assert loaded_after()[framework] == drawn_after(framework)[0]


def test_an_import_that_fails_fails_as_ever(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no such library')")
    error = printed(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})",
        SEED,
        "try:\n    import torch\nexcept ImportError as error:\n    print(error)",
    )
    assert error == "no such library"
