import gc
import logging
import multiprocessing

import pytest

from oneloop.checkpoint import unsaved
from tests.backends.support import DEVICE, available

pytest.register_assert_rewrite("tests.trainer.lifetimes")

# Files that share what is made once in a test process: runs of several processes, and the servers that fork runs.
SHARING = {
    "distributed": ("data", "equality", "search", "state", "sharding", "adapter_sharding", "order_of_transformers"),
    "checkpoint": ("directory_lock", "exact_resume", "kill", "saving", "signals"),
}
TOGETHER = {f"tests/{folder}/test_{name}.py": folder for folder, names in SHARING.items() for name in names}


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """Tests of a file share what is expensive to make, so they stay together when they are dealt out to processes."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

    return Files(config, log)


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items):
    """`rare_on("mindspore")`: a variant of a test is a slow one on that framework: compiling graphs takes long.

    `once_on("mindspore")`: so are all variants but the last.
    """
    once = set()
    for item in reversed(items):
        given = item.callspec.params if hasattr(item, "callspec") else {}
        framework = given.get("framework", getattr(given.get("backend"), "name", None))
        if any(framework in mark.args for mark in item.iter_markers("rare_on")):
            item.add_marker(pytest.mark.slow)
        if not item.get_closest_marker("slow") and any(framework in m.args for m in item.iter_markers("once_on")):
            test = item.path, item.originalname, framework
            if test in once:
                item.add_marker(pytest.mark.slow)
            once.add(test)


def pytest_collection_finish():
    """What was imported and collected stays for good: the garbage collector need not look at it again, and processes
    that are forked from this one share it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    unsaved.forget()  # the exit status is pytest's, whatever tests have left unsaved


@pytest.fixture(scope="module", autouse=True)
def no_workers_left():
    """Workers of loaders that tests keep end with their file: they hold pipes of servers and of the browser, whose ends
    would be waited for otherwise."""
    yield
    for child in multiprocessing.active_children():
        if child.daemon:
            child.terminate()
            child.join(10)


@pytest.fixture(autouse=True)
def quiet_again():
    """log_level sets the level of oneloop's loggers for good; the next test starts without it."""
    yield
    logging.getLogger("oneloop").setLevel(logging.NOTSET)


@pytest.fixture(params=available(), ids=lambda kit: kit.name)
def backend(request):
    """The kit of each framework that is installed: see backends_support."""
    return request.param


@pytest.fixture
def arguments(tmp_path):
    """TrainingArguments into a fresh directory, quiet and without writers or checkpoints unless asked for."""
    from oneloop import TrainingArguments

    def make(output_dir=None, **given):
        options = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "device": DEVICE} | given
        return TrainingArguments(output_dir=str(output_dir or tmp_path / "out"), **options)

    return make


@pytest.fixture
def trained(arguments):
    """Train a model; the Trainer afterwards. What Trainer takes goes there, other keywords to the arguments."""
    from oneloop import Trainer

    own = {"eval_dataset", "criterion", "compute_loss_func", "compute_metrics", "callbacks", "optimizers"}
    own |= {"data_collator", "tokenizer", "processing_class", "model_init", "optimizer_cls_and_kwargs"}

    def train(model, data, trainer_class=Trainer, resume=None, **given):
        options = {key: given.pop(key) for key in own & given.keys()}
        trainer = trainer_class(model, arguments(**given), train_dataset=data, **options)
        trainer.result = trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train
