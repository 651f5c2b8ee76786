"""The structure that docs/architecture.md describes, kept: who owns which state, and what is nobody's by accident."""

import pytest

from tests.structure import ownership

# Private methods and attributes of transformers' Trainer that oneloop's objects call, since they may be overridden.
OVERRIDABLE = {
    *("_evaluate", "_get_eval_sampler", "_get_train_sampler", "_load_best_model", "_report_to_hp_search", "_save"),
    *("_move_model_to_device", "_push_from_checkpoint", "_save_checkpoint", "_set_signature_columns_if_needed"),
    *("_signature_columns", "_wrap_model", "_clip_grad_norm", "_get_grad_norm"),
    *("_determine_best_metric", "_get_learning_rate", "_inner_training_loop", "_maybe_log_save_evaluate"),
    *("_prepare_inputs", "_remove_unused_columns", "_get_collator_with_removed_columns"),
    *("_load_callback_state", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state"),
    *("_load_scaler", "_rotate_checkpoints", "_save_optimizer_and_scheduler", "_save_rng_state", "_save_scaler"),
}
# Methods and properties that transformers' Trainer, of 4.45 or of 5.22, has not: each is documented.
OFFERED = {
    *("compress", "export", "export_model", "print_config", "set_optimizer_grouped_parameters"),  # PaddleNLP's
    *("batch_cost", "log_metric", "plan", "record_event", "rename_parameter"),
}


def test_the_trainer_has_few_private_attributes_and_each_is_written_in_one_file():
    ours = {name: files for name, files in ownership.private_attributes().items() if name not in OVERRIDABLE}
    assert {name: files for name, files in ours.items() if len(files) > 1} == {}


def test_nobody_else_touches_what_is_private_to_the_trainer():
    assert set(ownership.touched_by_others()) - OVERRIDABLE == {"_oneloop"}
    assert ownership.touched_by_others()["_oneloop"] == {"trainer/core.py"}


@pytest.mark.parametrize("name", sorted(set(ownership.OWNERS.values()) & set(ownership.classes())))
def test_an_object_with_state_is_written_in_its_own_module(name):
    assert ownership.written_elsewhere(name) == []


def test_the_trainer_is_one_class_with_few_parts_beside_it():
    assert ownership.bases_of_trainer() == list(ownership.PARTS)
    assert ownership.bases_of_trainer("public.py") == [*ownership.ON_TOP, "trainer.Trainer"]


def test_no_class_of_the_core_lets_every_name_type_check():
    """Those that pass attributes on to what they wrap, at run time, are no escape for a type checker."""
    wrappers = ("backends/", "compat/redirect.py", "data/", "trainer/output_streams.py")
    assert [each for each in ownership.any_escapes() if not each.startswith(wrappers)] == []


def test_the_core_imports_no_framework():
    assert ownership.frameworks_imported_by_core() == []


def test_public_methods_are_documented_and_few_are_not_those_of_transformers():
    methods = ownership.public_methods()
    assert [name for name, has_docstring in methods.items() if not has_docstring] == []
    assert set(methods) >= OFFERED


def test_methods_beyond_those_of_transformers():
    """Of the release that is installed; properties under which 4.45 keeps attributes, and its old names, count too."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("accelerate")
    beyond = {name for name in ownership.public_methods() if not hasattr(transformers.Trainer, name)}
    attributes = {
        *("can_return_loss", "current_gradient_accumulation_steps", "hub_model_id", "label_smoother"),
        *("gather_function", "neftune_noise_alpha", "push_in_progress"),
        *("deepspeed", "is_deepspeed_enabled", "is_fsdp_enabled"),
        *("do_grad_scaling", "scaler"),  # attributes until 4.30
        "compare_trainer_and_checkpoint_args",  # a method in 4.45, a function in 5.22
    }
    assert len(beyond - attributes) < 17
    assert beyond >= OFFERED
