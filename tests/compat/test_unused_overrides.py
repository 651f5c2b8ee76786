"""Overrides of methods that oneloop never calls are named when the Trainer is built."""

import inspect
import logging

import pytest

from oneloop import Trainer
from oneloop.compat.transformers import UNUSED_OVERRIDES
from oneloop.introspect import is_overridden
from oneloop.trainer.clipping import CLIPPING
from tests.trainer.test_override_counts import COUNTS

# What scripts call themselves: an override of it is called by them.
OF_SCRIPTS = {
    *("add_callback", "create_model_card", "end", "hyperparameter_search", "init_hf_repo", "num_examples"),
    *("pop_callback", "prediction_loop", "push_to_hub", "remove_callback", "tokenizer"),
    *("log_metrics", "metrics_format", "save_metrics"),
}
# Called for data of the package datasets, with push_to_hub, within a search, at a log if a subclass has it, and if it
# calls super().
CALLED = {
    *COUNTS,
    *CLIPPING,
    "_push_from_checkpoint",
    "_report_to_hp_search",
    "_remove_unused_columns",
    "_maybe_log_save_evaluate",
}
CALLED |= {"_inner_training_loop"}


def test_every_method_of_transformers_is_called_or_named():
    """Of the release that is installed. Those of older releases were read off their sources."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("accelerate")
    theirs = {
        name
        for name, member in vars(transformers.Trainer).items()
        if not name.startswith("__") and (inspect.isfunction(member) or isinstance(member, (staticmethod, property)))
    }
    assert theirs - CALLED - OF_SCRIPTS - set(UNUSED_OVERRIDES) == set()


def test_none_that_is_called_is_named():
    assert not CALLED & set(UNUSED_OVERRIDES) and not OF_SCRIPTS & set(UNUSED_OVERRIDES)


def test_overrides_are_named_with_what_to_override_instead(backend, arguments, caplog):
    own = type("Own", (Trainer,), {name: lambda self, *args, **kwargs: None for name in UNUSED_OVERRIDES})
    with caplog.at_level(logging.WARNING, "oneloop"):
        own(backend.classifier(), arguments())
    (text,) = [record.getMessage() for record in caplog.records if "never calls" in record.getMessage()]
    for name, instead in UNUSED_OVERRIDES.items():
        assert name in text and f"for {name}, {instead}" in text


def test_a_plain_trainer_is_not_warned_of(backend, arguments, caplog):
    Trainer(backend.classifier(), arguments())
    assert "never calls" not in caplog.text


def test_what_is_an_override(backend, arguments):
    class Own(Trainer):
        def log(self, *args, **kwargs):
            super().log(*args, **kwargs)

    class Derived(Own):
        pass

    for cls, answer in ((Trainer, False), (Own, True), (Derived, True)):
        assert is_overridden(cls(backend.classifier(), arguments()), "log") is answer
