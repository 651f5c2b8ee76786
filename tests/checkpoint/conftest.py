import shutil
import tempfile
from pathlib import Path

import pytest

from tests.backends.support import names
from tests.checkpoint.children import FINISHED, Forks

# MindSpore takes so long to start a run that the default run has a part of these tests for it; the rest is slow. So it
# is on Paddle with tests that have many runs of what is the same everywhere: the order of samples, files and logs.
IN_PART_ON_PADDLE = (
    "test_from_some_steps",
    "test_while_saving",
    "test_saved_at_the_ends_of_epochs",
    "test_early_stopping_comes_at_the_same_step",
    "test_in_place_each_line_of_the_log_is_there_once",
    "test_an_error_anywhere_in_a_save",
    "test_other_troubles_of_disks",
    "test_exit_status_of_the_interpreter",
    "test_killed_while_one_is_written",
)
IN_DEFAULT = (
    "test_an_error_anywhere_in_a_save[paddle-files-ENOSPC-background]",
    "test_an_error_anywhere_in_a_save[paddle-rename-EROFS-at-once]",
    "test_exit_status_of_the_interpreter[paddle-15-75]",
    "test_from_some_steps[paddle-plain]",
    "test_from_some_steps[paddle-workers-accumulated]",
    "test_from_some_steps[paddle-fp16]",
    "test_while_saving[paddle-inside the weights]",
    "test_while_saving[paddle-between commit and rotation]",
    "test_from_some_steps[mindspore-plain]",
    "test_in_an_interpreter_of_its_own[mindspore]",
    "test_while_saving[mindspore-inside the weights]",
    "test_while_saving[mindspore-between commit and rotation]",
)


# Of the tests of strict reading, what the other frameworks do in their own code.
OF_EACH_FRAMEWORK = (
    "test_an_untouched_copy_resumes_to_the_same_weights",
    "test_moments_of_another_shape_or_type",
    "test_all_moments_of_a_parameter_are_missing",
    "test_another_optimizer",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        kit = getattr(getattr(item, "callspec", None), "params", {}).get("saved")
        if kit is not None and kit.name != names()[0] and item.originalname not in OF_EACH_FRAMEWORK:
            item.add_marker(pytest.mark.slow)
        given = getattr(getattr(item, "callspec", None), "params", {})
        in_part = given.get("forks") == "mindspore"
        in_part |= given.get("forks") == "paddle" and item.originalname in IN_PART_ON_PADDLE
        if in_part and item.name not in IN_DEFAULT:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", params=names())
def forks(request):
    """Children of each framework that start quickly; see children.Forks."""
    server = Forks(request.param)
    yield server
    server.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """tests/checkpoint/disk/calls.c, compiled."""
    from tests.checkpoint.disk import preload

    return preload.build(tmp_path_factory.mktemp("library"))


@pytest.fixture
def memory():
    """A directory in memory, where there is one: for thousands of files, and for many calls of fsync."""
    shared = Path("/dev/shm")
    folder = tempfile.mkdtemp(dir=shared if shared.is_dir() else None)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def trainer(tmp_path, request):
    """The Trainer of job.py in this process: trainer(*argv, callbacks=[...]) writes into tmp_path/run.

    On the framework of `forks`, where the test has that too, or else on the first that is installed.
    """
    import logging

    from tests.checkpoint import job

    logging.getLogger("oneloop").setLevel(logging.INFO)

    framework = request.getfixturevalue("forks").framework if "forks" in request.fixturenames else names()[0]

    def make(*argv, callbacks=(), output=None):
        words = [*map(str, argv), "--framework", framework, "--output", str(output or tmp_path / "run")]
        given = job.parse(words)
        return job.build(given, callbacks)

    return make


@pytest.fixture(scope="session")
def finished(forks, tmp_path_factory):
    """A run that has ended, with checkpoints 9, 18 and 22 and its best one: copy it, do not change it."""
    output = tmp_path_factory.mktemp("finished") / "run"
    ended = forks.run(*FINISHED, output=output)
    assert ended.status == 0, ended.output
    return output
