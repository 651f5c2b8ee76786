"""Names that methods copied from 4.x and 5.x read on a Trainer, and functions that scripts import."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

import oneloop
from oneloop import Trainer
from oneloop.compat.transformers import warn_unused_overrides
from oneloop.trainer import validation
from tests.backends.support import rows, same_bytes
from tests.internals import backend_of, engine_of

FLAGS = ("use_apex", "is_deepspeed_enabled", "is_fsdp_enabled", "is_fsdp_xla_enabled", "is_model_parallel")


def test_ways_to_train_that_are_not_taken(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments())
    assert [getattr(trainer, name) for name in FLAGS] == [False] * len(FLAGS)
    assert trainer.deepspeed is None and trainer.scaler is None and trainer.do_grad_scaling is False
    assert trainer.args.n_gpu == 0 and trainer.label_smoother is None
    assert trainer._nested_gather((1, 2)) == (1, 2)
    trainer.use_apex = False  # copied constructors set what they find


def test_a_loss_scaler_is_seen(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments())
    engine_of(trainer).scaler = scaler = object()
    assert trainer.scaler is scaler and trainer.do_grad_scaling is True


def test_label_smoother_in_a_copied_compute_loss(backend, trained):
    class Copied(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels") if self.label_smoother is not None else None
            outputs = model(**inputs)
            loss = self.label_smoother(outputs, labels) if labels is not None else outputs["loss"]
            return (loss, outputs) if return_outputs else loss

    options = {"max_steps": 3, "label_smoothing_factor": 0.3, "learning_rate": 0.1, "logging_steps": 1}
    losses = []
    for kind, returns in ((Trainer, "dict"), (Copied, "dict"), (Copied, "tuple")):
        trainer = trained(backend.classifier(returns), rows(8), kind, **options)
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0]) and losses[2] == pytest.approx(losses[0])
    plain = trained(backend.classifier(), rows(8), **(options | {"label_smoothing_factor": 0.0}))
    assert plain.state.log_history[0]["loss"] != pytest.approx(losses[0][0])


def test_label_smoother_shifts_labels_and_can_be_set(backend, arguments):
    trainer = Trainer(backend.tagger(), arguments(label_smoothing_factor=0.1))
    logits = np.random.RandomState(0).randn(2, 4, 3).astype(np.float32)
    labels = np.array([[0, 1, 2, 0], [1, 1, -100, 2]])
    smooth = trainer.label_smoother
    shifted = smooth({"logits": backend.tensor(logits)}, backend.tensor(labels), shift_labels=True)
    by_hand = smooth((backend.tensor(logits[:, :-1]),), backend.tensor(labels[:, 1:]))
    assert float(shifted) == pytest.approx(float(by_hand))
    trainer.label_smoother = SimpleNamespace(epsilon=0.25)
    assert trainer.label_smoother.epsilon == 0.25 == trainer.args.label_smoothing_factor
    trainer.label_smoother = None
    assert trainer.label_smoother is None
    with pytest.raises(ValueError, match="compute_loss_func"):
        trainer.label_smoother = print


def test_columns(backend, arguments):
    datasets = pytest.importorskip("datasets")
    trainer = Trainer(backend.classifier(), arguments())
    assert trainer._signature_columns is None
    trainer._set_signature_columns_if_needed()
    assert trainer._signature_columns == ["x", "labels", "label", "label_ids"]
    data = datasets.Dataset.from_dict({"x": [[1.0]], "labels": [0], "text": ["a"]})
    assert trainer._remove_unused_columns(data, description="training").column_names == ["x", "labels"]
    collate = trainer._get_collator_with_removed_columns(list, description="training")
    assert collate([{"x": 1, "text": "a"}]) == [{"x": 1}]
    trainer.args.remove_unused_columns = False
    assert trainer._remove_unused_columns(data) is data
    assert trainer._get_collator_with_removed_columns(list) is list


class Own(Trainer):
    """Drops a column that the model accepts, and hands the rest on."""

    def __init__(self, *args, **kwargs):
        self.asked = []
        super().__init__(*args, **kwargs)

    def _remove_unused_columns(self, dataset, description=None):
        self.asked.append(("dataset", description, tuple(dataset.column_names)))
        return super()._remove_unused_columns(dataset, description)

    def _get_collator_with_removed_columns(self, data_collator, description=None):
        self.asked.append(("collator", description, data_collator is self.data_collator))
        inherited = super()._get_collator_with_removed_columns(data_collator, description)
        return lambda samples: inherited([{**each, "labels": 0} for each in samples])


def test_columns_are_removed_by_a_subclass(backend, arguments, caplog):
    datasets = pytest.importorskip("datasets")
    samples = [{"x": each["x"].tolist(), "labels": each["labels"], "text": "a", "length": 6} for each in rows(8)]
    data = datasets.Dataset.from_list(samples)
    names = tuple(data.column_names)
    for strategy in ("random", "group_by_length"):
        given = {"max_steps": 1, "train_sampling_strategy": strategy}
        trainer = Own(backend.classifier(), arguments(**given), train_dataset=data, eval_dataset=data)
        trainer.train()
        trainer.evaluate()
        trainer.predict(data)
        assert [each for each in trainer.asked if each[0] == "dataset"] == [
            ("dataset", what, names) for what in ("Training", "Evaluation", "test")
        ]
    assert "never calls" not in caplog.text


def test_so_are_those_of_other_data(backend, arguments):
    samples = [{**each, "text": "a"} for each in rows(8)]
    trainer = Own(backend.classifier(), arguments(max_steps=1), train_dataset=samples, eval_dataset=samples)
    trainer.train()
    assert trainer.asked == [("collator", "Training", True)]
    assert set(trainer.predict(samples).label_ids.tolist()) == {0}


def test_one_value_goes_to_the_device(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments())
    moved = trainer._prepare_input({"x": np.ones(2, np.float32), "name": "a"})
    assert backend_of(trainer).tensors.is_tensor(moved["x"]) and moved["name"] == "a"


def test_the_learning_rate(backend, trained, arguments):
    assert Trainer(backend.classifier(), arguments(learning_rate=0.5))._get_learning_rate() == 0.5
    trainer = trained(backend.classifier(), rows(8), max_steps=2, learning_rate=0.5, lr_scheduler_type="linear")
    assert trainer._get_learning_rate() == 0.0
    assert trainer._get_learning_rate() == trainer.lr_scheduler.get_last_lr()[0]


def test_overrides_that_nothing_calls(backend, arguments, caplog):
    class Old(Trainer):
        def _inner_training_loop(self, *args, **kwargs):
            raise AssertionError

        def _run_epoch(self, *args, **kwargs):
            raise AssertionError

    trainers = [kind(backend.classifier(), arguments()) for kind in (Trainer, Old)]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="oneloop"):
        warn_unused_overrides(trainers[0])
        assert not caplog.records
        warn_unused_overrides(trainers[1])
    (record,) = caplog.records
    assert "Old defines _run_epoch, _inner_training_loop, which oneloop never calls" in record.getMessage()
    assert "_prepare_for_training" not in record.getMessage()


def test_a_loop_that_calls_super(backend, arguments, trained, tmp_path, caplog):
    """It is called around each run, and gets what transformers' is given."""
    asked = []

    class Around(Trainer):
        def _inner_training_loop(self, batch_size=None, args=None, resume_from_checkpoint=None, **kwargs):
            asked.append((batch_size, args is self.args, resume_from_checkpoint, *sorted(kwargs)))
            output = super()._inner_training_loop(batch_size, args, resume_from_checkpoint, **kwargs)
            asked.append(output.global_step)
            return output._replace(training_loss=7.0)

    run = {"max_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1}
    plain = trained(backend.classifier(), rows(), output_dir=tmp_path / "plain", **run)
    around = trained(backend.classifier(), rows(), Around, **run)
    assert "never calls" not in caplog.text
    names = ("ignore_keys_for_eval", "trial")
    assert asked == [(4, True, None, *names), 2] and around.result.training_loss == 7.0
    assert same_bytes(backend.weights(around.model), backend.weights(plain.model))
    first = str(tmp_path / "out" / "checkpoint-1")
    resumed = trained(backend.classifier(), rows(), Around, resume=first, **run)
    assert asked[2:] == [(4, True, first, *names), 2]
    assert same_bytes(backend.weights(resumed.model), backend.weights(plain.model))


# -- functions


def test_has_length_is_one_function():
    assert oneloop.has_length is validation.has_length
    assert oneloop.has_length([]) and not oneloop.has_length(iter([]))


def test_target_modules():
    check = oneloop.check_target_module_exists
    assert check(["attn"], "layer.0.attn.q", True) == (True, False)
    assert check([r".*\.q"], "layer.0.attn.q", True) == (True, True)
    assert check(r".*attn.*", "layer.0.attn.q", True) == (True, True)
    assert check(["mlp"], "layer.0.attn.q") is False


def test_quantised_models():
    check = oneloop.validate_quantization_for_training
    check(SimpleNamespace())
    check(SimpleNamespace(is_quantized=True, _hf_peft_config_loaded=True))
    check(SimpleNamespace(is_quantized=True, hf_quantizer=SimpleNamespace(is_trainable=True, is_qat_trainable=True)))
    with pytest.raises(ValueError, match="adapters"):
        check(SimpleNamespace(is_quantized=True))
    with pytest.raises(ValueError, match="compile"):
        check(SimpleNamespace(is_quantized=True, _orig_mod=None))
    config = SimpleNamespace(quant_method="gptq")
    quantizer = SimpleNamespace(is_trainable=False, is_qat_trainable=True, quantization_config=config)
    with pytest.raises(ValueError, match="gptq"):
        check(SimpleNamespace(is_quantized=True, hf_quantizer=quantizer))


def test_spaces_of_a_search():
    class Trial:
        def suggest_float(self, name, low, high, log=False):
            return (low, high, log)

        def suggest_int(self, name, low, high):
            return (low, high)

        def suggest_categorical(self, name, choices):
            return choices

    names = {"learning_rate", "num_train_epochs", "seed", "per_device_train_batch_size"}
    space = oneloop.default_hp_space_optuna(Trial())
    assert set(space) == names and space["learning_rate"] == (1e-6, 1e-4, True)
    assert set(oneloop.default_hp_space_wandb(None)["parameters"]) == names


def test_a_search_without_ray(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ImportError, match=r"ray\[tune\]"):
        oneloop.default_hp_space_ray(None)


def test_special_tokens(caplog):
    config = SimpleNamespace(eos_token_id=1, bos_token_id=5, pad_token_id=None)
    model = SimpleNamespace(config=config, generation_config=SimpleNamespace(eos_token_id=1, bos_token_id=5))
    tokenizer = SimpleNamespace(eos_token_id=2, bos_token_id=None, pad_token_id=0)
    oneloop.align_special_tokens(model, SimpleNamespace(tokenizer=tokenizer))
    assert vars(config) == {"eos_token_id": 2, "bos_token_id": 5, "pad_token_id": 0}
    assert vars(model.generation_config) == {"eos_token_id": [2, 1], "bos_token_id": 5, "pad_token_id": 0}
    assert len(caplog.records) == 1
    oneloop.align_special_tokens(model, tokenizer)
    assert len(caplog.records) == 1


def test_arguments_beside_those_of_a_checkpoint(arguments, caplog):
    args = arguments(logging_steps=5, save_steps=7, per_device_train_batch_size=4)
    state = oneloop.TrainerState(logging_steps=6, eval_steps=500, save_steps=7, train_batch_size=4)
    oneloop.compare_trainer_and_checkpoint_args(args, state)
    assert "logging_steps: now 5, then 6" in caplog.text
    assert "save_steps" not in caplog.text and "batch_size" not in caplog.text


def test_progress_bars_of_the_hub_come_back():
    hub = pytest.importorskip("huggingface_hub.utils")
    before = hub.are_progress_bars_disabled()
    with oneloop.suppress_progress_bars():
        assert hub.are_progress_bars_disabled()
    assert hub.are_progress_bars_disabled() == before


def test_memory_of_a_stage():
    def train(tracker, metrics):
        tracker.start()
        tracker.stop_and_update_metrics(metrics)

    class Owner:
        def __init__(self, skip):
            self.tracker = oneloop.TrainerMemoryTracker(skip_memory_metrics=skip)
            self.tracker.start()
            self.tracker.stop_and_update_metrics()

    on, off = {}, {}
    train(Owner(False).tracker, on)
    train(Owner(True).tracker, off)
    assert {"init_mem_cpu_alloc_delta", "train_mem_cpu_alloc_delta", "train_mem_cpu_peaked_delta"} <= set(on)
    assert off == {}


def test_no_two_parts_of_the_trainer_keep_different_things_under_one_name():
    kinds = {}
    for part in Trainer.__mro__:
        for name, kind in vars(part).get("__annotations__", {}).items():
            kinds.setdefault(name, set()).add(str(kind))
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}
