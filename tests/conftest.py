import logging

import pytest

from tests.backends.support import available

pytest.register_assert_rewrite("tests.trainer.lifetimes")

# These look at the same runs of several processes.
TOGETHER = {f"tests/distributed/test_{name}.py" for name in ("data", "equality", "manners", "search", "state")}


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """Tests of a file share what is expensive to make, so they stay together when they are dealt out to processes."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "together" if file in TOGETHER else file

    return Files(config, log)


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
