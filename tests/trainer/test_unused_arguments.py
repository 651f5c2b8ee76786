"""Arguments that come to nothing because of others are said before the run, which goes on."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.trainer.unused_arguments import find_unused
from tests.backends.support import rows

RUN = {"max_steps": 2, "per_device_train_batch_size": 4}
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 1}
SAID = {
    "best without evaluations": ({"save_strategy": "best"}, "save_strategy='best'.*nothing will be saved"),
    "best to be loaded": ({"load_best_model_at_end": True}, "load_best_model_at_end=True.*is the last one"),
    "times by epoch": ({"minimum_eval_times": 3, "eval_strategy": "epoch"}, "minimum_eval_times=3.*'epoch'"),
    "more times than steps": ({"minimum_eval_times": 9, **BY_STEPS}, "minimum_eval_times=9 is more than the 2 steps"),
    "warmup": ({"warmup_steps": 2, "lr_scheduler_type": "constant"}, "warmup_steps=2.*'constant_with_warmup'"),
    "ratio": (
        {"warmup_ratio": 0.5, "lr_scheduler_type": "reduce_lr_on_plateau", **BY_STEPS},
        "warmup_ratio=0.5.*'reduce_lr_on_plateau' has no warmup",
    ),
    "steps of no evaluation": ({"eval_steps": 5}, "eval_steps=5 has no effect: eval_strategy is 'no'"),
    "steps of an evaluation by epoch": ({"eval_steps": 5, "eval_strategy": "epoch"}, "eval_strategy is 'epoch'"),
    "limit of no saves": ({"save_total_limit": 2}, "save_total_limit=2 has no effect"),
    "repository of no push": ({"hub_model_id": "me/model"}, "hub_model_id='me/model' has no effect during"),
    "window of no guard": ({"loss_spike_window": 8}, "loss_spike_window=8 has no effect: loss_spike is 'off'"),
    "fewer steps than the window": ({"loss_spike": "warn"}, "loss_spike='warn' has no effect: this run has 2 steps"),
    "beta of SGD": ({"optim": "sgd", "adam_beta1": 0.8}, "adam_beta1=0.8 has no effect: optim is 'sgd'"),
    "metrics": (
        {"prediction_loss_only": True, "compute_metrics": lambda prediction: {}, **BY_STEPS},
        "prediction_loss_only=True.*compute_metrics",
    ),
}


def notices(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "oneloop.trainer.unused_arguments"]


def test_what_only_a_rollback_uses(arguments):
    args = arguments(loss_spike="warn", loss_spike_limit=2, loss_spike_window=50)
    assert list(find_unused(args, 100, False)) == ["loss_spike_limit=2 has no effect: loss_spike is 'warn'."]


@pytest.mark.parametrize("case", SAID)
def test_it_is_said_once_and_the_run_goes_on(backend, trained, caplog, case):
    given, words = SAID[case]
    trainer = trained(backend.classifier(), rows(8), eval_dataset=rows(4), **RUN, **given)
    (said,) = notices(caplog)
    assert trainer.state.global_step == 2
    assert re.search(words, said)


def test_options_of_a_recomputation_that_is_off(trained, caplog):
    """On torch: MindSpore refuses them."""
    from tests.backends.kits.torch_kit import Kit

    trained(Kit().classifier(), rows(8), gradient_checkpointing_kwargs={"use_reentrant": False}, **RUN)
    (said,) = notices(caplog)
    assert said.startswith("gradient_checkpointing_kwargs has no effect")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"save_strategy": "best", **BY_STEPS},
        {"load_best_model_at_end": True, "eval_strategy": "epoch"},
        {"minimum_eval_times": 2, "eval_strategy": "steps", "eval_steps": 5},
        {"warmup_steps": 1, "lr_scheduler_type": "constant_with_warmup"},
        {"prediction_loss_only": True, **BY_STEPS},
        {"optim": "sgd", "adam_beta1": 0.9, "eval_steps": None, "hub_model_id": None},
        {"adam_beta1": 0.8, "save_total_limit": 2, "load_best_model_at_end": True, "eval_strategy": "epoch"},
    ],
    ids=lambda given: "-".join(given) or "nothing",
)
def test_what_works_is_not_said(backend, trained, caplog, given):
    trained(backend.classifier(), rows(8), eval_dataset=rows(4), **RUN, **given)
    assert notices(caplog) == []


def test_an_overridden_compute_loss_around_a_compiled_model(backend, trained, caplog):
    """It need not turn the compiler off: it calls the compiled model, and has the same losses."""

    class Doubles(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            called.add(model is self.model)
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            return (2 * loss, outputs) if return_outputs else 2 * loss

    runs, compiler = [], {"torch_compile_backend": "eager"} if backend.name == "torch" else {}
    for given in ({}, {"torch_compile": True, **compiler}):
        called = set()
        trainer = trained(backend.classifier(), rows(8), Doubles, logging_steps=1, **RUN, **given)
        assert called == {not given}
        runs.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    np.testing.assert_allclose(*runs, rtol=1e-5)
    (said,) = notices(caplog)
    assert said.startswith("compute_loss is overridden: torch_compile compiles the model that it calls")


def test_what_a_library_sets_is_not_said(backend, arguments, caplog):
    """Another default of a derived class, and values that are assigned or repeated."""

    @dataclass
    class Config(TrainingArguments):
        save_total_limit: int | None = 1
        adam_beta2: float = 0.95

    given = arguments(optim="sgd", **RUN).to_dict()
    given = {key: value for key, value in given.items() if key not in ("save_total_limit", "adam_beta2")}
    args = Config(**given | {"eval_steps": None})
    args.eval_steps = 7
    Trainer(backend.classifier(), args, train_dataset=rows(8)).train()
    assert (args.save_total_limit, args.adam_beta2, args.eval_steps) == (1, 0.95, 7)
    assert notices(caplog) == []
