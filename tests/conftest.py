import logging

import pytest

from tests.backends_support import available

# These look at the same runs of several processes.
TOGETHER = tuple(f"test_{name}" for name in ("data", "equality", "manners", "search", "state"))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which puts the group into the name of a test
def pytest_collection_modifyitems(items):
    """Tests of a file share what is expensive to make, so they stay together when tests are dealt out to processes."""
    for item in items:
        folder, name = item.path.parent.name, item.path.stem
        together = folder == "processes" and name in TOGETHER
        item.add_marker(pytest.mark.xdist_group("processes" if together else f"{folder}/{name}"))


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
        options = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "device": "cpu"} | given
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
