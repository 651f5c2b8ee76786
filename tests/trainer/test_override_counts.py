"""How often a run calls each method that a subclass may override, as (train, resume, evaluate and predict, save).

A run of 5 updates of 2 micro-batches each, 3 updates an epoch, which logs, evaluates and saves every 2 steps and loads
the best model at its end; then the same resumed from step 2; then an evaluation and a prediction; then the files.
"""

import inspect
from collections import Counter
from pathlib import Path

import pytest

from oneloop import Trainer
from tests.backends.support import available, rows, same_bytes

RUN = {
    "max_steps": 5,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_async": False,
    "load_best_model_at_end": True,
    "learning_rate": 0.05,
}
TRAIN, EVAL = rows(24), rows(10, 1)  # two batches to evaluate on

COUNTS = {
    "_determine_best_metric": (2, 1, 0, 0),
    "_evaluate": (2, 1, 0, 0),
    "_get_collator_with_removed_columns": (3, 2, 2, 0),
    "_get_dataloader": (3, 2, 2, 0),
    "_get_eval_sampler": (2, 1, 2, 0),
    "_get_learning_rate": (5, 3, 0, 0),
    "_get_num_items_in_batch": (6, 4, 0, 0),
    "_get_train_sampler": (1, 1, 0, 0),
    "_load_best_model": (1, 1, 0, 0),
    "_load_callback_state": (0, 1, 0, 0),
    "_load_from_checkpoint": (0, 1, 0, 0),
    "_load_optimizer_and_scheduler": (0, 1, 0, 0),
    "_load_rng_state": (0, 1, 0, 0),
    "_load_scaler": (0, 1, 0, 0),
    "_move_model_to_device": (2, 1, 0, 0),
    "_prepare_context_parallel_inputs": (10, 6, 0, 0),
    "_prepare_input": (42, 24, 12, 0),  # the batch and its two parts
    "_prepare_inputs": (14, 8, 4, 0),
    "_rotate_checkpoints": (3, 2, 0, 0),
    "_save": (3, 2, 0, 1),
    "_save_checkpoint": (3, 2, 0, 0),
    "_save_optimizer_and_scheduler": (3, 2, 0, 0),
    "_save_rng_state": (3, 2, 0, 0),
    "_save_scaler": (3, 2, 0, 0),
    "_set_signature_columns_if_needed": (3, 2, 2, 0),
    "_wrap_model": (3, 2, 2, 0),
    "call_model_init": (2, 1, 0, 0),
    "compare_trainer_and_checkpoint_args": (0, 1, 0, 0),
    "compute_loss": (14, 8, 4, 0),
    "compute_loss_context_manager": (4, 2, 4, 0),
    "create_accelerator_and_postprocess": (1, 0, 0, 0),
    "create_optimizer": (1, 1, 0, 0),
    "create_optimizer_and_scheduler": (1, 1, 0, 0),
    "create_scheduler": (1, 1, 0, 0),
    "evaluate": (2, 1, 1, 0),
    "evaluation_loop": (2, 1, 2, 0),
    "floating_point_ops": (10, 6, 0, 0),
    "get_batch_samples": (6, 4, 0, 0),
    "get_decay_parameter_names": (1, 1, 0, 0),
    "get_eval_dataloader": (2, 1, 1, 0),
    "get_num_trainable_parameters": (2, 2, 0, 0),
    "get_optimizer_cls_and_kwargs": (1, 1, 0, 0),
    "get_test_dataloader": (0, 0, 1, 0),
    "get_total_train_batch_size": (1, 1, 0, 0),
    "get_train_dataloader": (1, 1, 0, 0),
    "is_local_process_zero": (2, 1, 0, 0),
    "is_world_process_zero": (4, 3, 0, 0),
    "log": (5, 3, 1, 0),
    "predict": (0, 0, 1, 0),
    "prediction_step": (4, 2, 4, 0),
    "save_model": (3, 2, 0, 1),
    "save_state": (0, 0, 0, 1),
    "store_flos": (4, 3, 0, 1),
    "train": (1, 1, 0, 0),
    "training_step": (10, 6, 0, 0),
}
# A run has no use for these: they answer scripts.
NEVER = (
    *("_get_output_dir", "_remove_unused_columns"),  # the data here are not of the package datasets
    *("_report_to_hp_search", "add_callback", "create_model_card"),
    *("_push_from_checkpoint", "_sorted_checkpoints"),
    *("autocast_smart_context_manager", "end", "export", "export_model"),
    *("get_cp_size", "get_learning_rates", "get_optimizer_group", "get_sp_size", "get_tp_size", "init_hf_repo"),
    *("hyperparameter_search", "log_metrics", "metrics_format", "num_examples", "pop_callback", "prediction_loop"),
    *("print_config", "push_to_hub", "remove_callback", "rename_parameter", "save_metrics"),
    *("set_initial_training_values", "torch_jit_model_eval"),
)


def counting(names, counts):
    """A subclass that overrides these methods, counts the calls and hands them on."""

    def override(name):
        inherited = getattr(Trainer, name)

        def method(self, *args, **kwargs):
            counts[name] += 1
            return inherited(self, *args, **kwargs)

        def static(*args, **kwargs):
            counts[name] += 1
            return inherited(*args, **kwargs)

        is_static = isinstance(inspect.getattr_static(Trainer, name), staticmethod)
        return staticmethod(static) if is_static else method

    return type("Counting", (Trainer,), {name: override(name) for name in names})


def phases(cls, backend, arguments, folder):
    """Goes through the four phases; the weights after training and after resuming."""
    weights = []
    trainer = cls(
        args=arguments(folder, **RUN),
        model_init=lambda: backend.classifier(dropout=0.2),
        train_dataset=TRAIN,
        eval_dataset=EVAL,
    )
    trainer.train()
    weights.append(backend.weights(trainer.model))
    yield weights
    trainer.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-2"))
    weights.append(backend.weights(trainer.model))
    yield weights
    trainer.evaluate()
    trainer.predict(EVAL)
    yield weights
    trainer.save_model()
    trainer.save_state()
    yield weights


def counted(names, backend, arguments, folder):
    """(how often each was called in the four phases, the weights)"""
    counts, by_phase = Counter(), []
    for weights in phases(counting(names, counts), backend, arguments, folder):  # noqa: B007
        by_phase.append(dict(counts))
        counts.clear()
    return {name: tuple(phase.get(name, 0) for phase in by_phase) for name in names}, weights


PLAIN = {}  # weights of a run with nothing overridden, by framework


@pytest.fixture
def plain(backend, arguments, tmp_path):
    if backend.name not in PLAIN:
        *_, PLAIN[backend.name] = phases(Trainer, backend, arguments, tmp_path / "plain")
    return PLAIN[backend.name]


def test_all_overridden_at_once(backend, arguments, tmp_path, plain):
    found, weights = counted((*COUNTS, *NEVER), backend, arguments, tmp_path / "counted")
    assert found == COUNTS | dict.fromkeys(NEVER, (0, 0, 0, 0))
    assert all(same_bytes(*pair) for pair in zip(weights, plain))


@pytest.mark.parametrize("backend", available()[:1], ids=lambda kit: kit.name)
@pytest.mark.parametrize("name", COUNTS)
def test_one_overridden(backend, arguments, tmp_path, plain, name):
    """Other overrides may hide that one alone changes the way, as compute_loss, save_model and others do."""
    found, weights = counted((name,), backend, arguments, tmp_path / "counted")
    assert found == {name: COUNTS[name]}
    assert all(same_bytes(*pair) for pair in zip(weights, plain))
