"""Half precision, memory, noise and smoothing: each switch changes what it should and nothing else."""

import logging

import numpy as np
import pytest

from oneloop import Trainer
from oneloop.errors import NonFiniteError
from tests.backends.support import RESOLUTION, largest_difference, refuses_half, rows, same_bytes, tagged

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 8, "max_steps": 6, "logging_steps": 1}


def losses(trainer):
    return [e["loss"] for e in trainer.state.log_history if "loss" in e]


@pytest.fixture
def results(backend, trained):
    """(losses, weights) of a run of the classifier."""

    def run(data=None, model=None, **given):
        model = model or backend.classifier()
        trainer = trained(model, data or rows(24), **(RUN | given))
        return losses(trainer), backend.weights(model)

    return run


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_autocast_changes_the_numbers_a_little(backend, arguments, results, half):
    if refuses_half(backend, arguments, **{half: True}):
        return
    full, low = results(), results(**{half: True})
    assert full[0] != low[0]
    np.testing.assert_allclose(full[0], low[0], rtol=RESOLUTION[half])
    assert 0 < largest_difference(full[1], low[1]) < RESOLUTION[half]
    assert low[1]["head.weight"].dtype == np.float32, "weights stay in float32"


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_o0_is_off(results, half):
    full, off = results(), results(**{half: True}, fp16_opt_level="O0")
    assert full[0] == off[0] and same_bytes(full[1], off[1])


def test_o3_keeps_the_weights_in_half_precision(backend, arguments):
    if refuses_half(backend, arguments, bf16=True, fp16_opt_level="O3"):
        return
    model = backend.classifier()
    args = arguments(bf16=True, fp16_opt_level="O3", **RUN)
    trainer = Trainer(model, args, backend.half_collator("bf16"), rows(24))
    trainer.train()
    assert backend.dtypes(trainer.model) == {"bfloat16"}
    assert np.isfinite(losses(trainer)).all()


def test_evaluation_uses_autocast_too(backend, arguments):
    if refuses_half(backend, arguments, bf16=True):
        return
    scores = []
    for half in (False, True):
        trainer = Trainer(backend.classifier(), arguments(bf16=half), eval_dataset=rows(24))
        scores.append(trainer.evaluate()["eval_loss"])
    assert scores[0] != scores[1] and scores[0] == pytest.approx(scores[1], rel=RESOLUTION["bf16"])


def test_label_smoothing_is_the_frameworks(backend, arguments):
    data = rows(8)
    trainer = Trainer(backend.classifier(), arguments(label_smoothing_factor=0.3))
    logits = backend.tensor(trainer.predict(data).predictions)
    labels = backend.tensor(np.array([row["labels"] for row in data]))
    expected = float(backend.numpy(backend.smoothed(logits, labels, 0.3)))
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert Trainer(backend.classifier(), arguments()).evaluate(data)["eval_loss"] != pytest.approx(expected, rel=1e-5)


def test_noise_on_embeddings_changes_training_and_not_evaluation(backend, trained):
    def run(**given):
        model = backend.tagger()
        trainer = trained(model, tagged([4] * 16), eval_dataset=tagged([4] * 4, 1), **(RUN | given))
        return losses(trainer), backend.weights(model), trainer

    plain, noisy = run(), run(neftune_noise_alpha=5.0)
    assert plain[0] != noisy[0] and not same_bytes(plain[1], noisy[1])
    assert noisy[2].evaluate()["eval_loss"] == noisy[2].evaluate()["eval_loss"]
    again = Trainer(noisy[2].model, plain[2].args, eval_dataset=tagged([4] * 4, 1))
    assert noisy[2].evaluate()["eval_loss"] == again.evaluate()["eval_loss"], "the noise ends with training"
    quiet = run(neftune_noise_alpha=5.0, eval_strategy="steps", eval_steps=1)
    assert noisy[0] == quiet[0], "an evaluation in the middle draws no noise"


def test_debug_names_the_layer_and_the_step(backend, arguments):
    data = rows(24)
    data[5]["x"] = np.full_like(data[5]["x"], np.inf)
    model = backend.classifier()
    args = arguments(debug="underflow_overflow", **(RUN | {"max_steps": 3}))
    trainer = Trainer(model, args, train_dataset=data)
    with pytest.raises(NonFiniteError, match=r"step \d: .*output of layer 'hidden' \((Linear|Dense)\)"):
        trainer.train()
    trainer.evaluate(data)  # the watch has been taken off
    with pytest.raises(NonFiniteError, match="Samples"):
        Trainer(model, arguments(**RUN), train_dataset=data).train()


class TooLarge(Trainer):
    """Out of memory for more than `limit` samples at once."""

    limit = 3
    sizes: list

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        size = len(inputs["labels"])
        self.sizes.append(size)
        if size > self.limit:
            raise RuntimeError("out of memory: tried to allocate 8 GiB")
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("data", ["rows", "tokens"])
def test_a_batch_that_does_not_fit_is_cut_and_the_update_stays(backend, trained, caplog, accumulation, data):
    make = backend.classifier if data == "rows" else backend.tagger
    data = rows(24) if data == "rows" else tagged([4, 1, 2, 7, 1, 3] * 4)
    options = RUN | {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 8 // accumulation}
    expected, model = make(), make()
    plain = trained(expected, data, **options)

    class Limited(TooLarge):
        sizes = []

    trainer = trained(model, data, Limited, auto_find_batch_size=True, **options)
    assert trainer.state.global_step == plain.state.global_step == 6
    assert largest_difference(backend.weights(expected), backend.weights(model)) < 2e-6
    np.testing.assert_allclose(losses(plain), losses(trainer), rtol=1e-5)
    said = [r.getMessage() for r in caplog.records if "Out of memory at step 1" in r.getMessage()]
    assert said and "the global batch size does not change" in said[-1]
    assert all(size <= 3 for size in Limited.sizes[-6:]), "later steps are cut from the start"
    tries = [size for size in Limited.sizes if size > 3]
    assert len(tries) <= 2, "what has been learnt is not tried again"
    assert trainer.state.train_batch_size == 8 // accumulation


def test_one_sample_that_does_not_fit(backend, arguments):
    class Limited(TooLarge):
        sizes, limit = [], 0

    trainer = Limited(backend.classifier(), arguments(auto_find_batch_size=True, **RUN), train_dataset=rows(24))
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert Limited.sizes == [8, 4, 2, 1]


def test_without_the_argument_memory_is_the_users_affair(backend, arguments):
    class Limited(TooLarge):
        sizes = []

    with pytest.raises(RuntimeError, match="out of memory"):
        Limited(backend.classifier(), arguments(**RUN), train_dataset=rows(24)).train()
    assert Limited.sizes == [8]


def test_other_errors_pass_through(backend, arguments):
    class Broken(Trainer):
        def compute_loss(self, *args, **kwargs):
            raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        Broken(backend.classifier(), arguments(auto_find_batch_size=True, **RUN), train_dataset=rows(24)).train()


def test_tokens_of_a_step_that_is_computed_again_are_counted_once(backend, trained):
    class Limited(TooLarge):
        sizes, limit = [], 4

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if len(self.sizes) == 1:  # the second half of the first step
                self.sizes.append(0)
                raise RuntimeError("out of memory")
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    options = RUN | {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 2}
    data = tagged([5] * 16)
    trainer = trained(
        backend.tagger(), data, Limited, auto_find_batch_size=True, include_num_input_tokens_seen=True, **options
    )
    assert trainer.state.num_input_tokens_seen == 2 * 8 * 5


def test_memory_figures(backend, trained):
    keys = {
        "before_init_mem_cpu",
        "init_mem_cpu_alloc_delta",
        "train_mem_cpu_alloc_delta",
        "train_mem_cpu_peaked_delta",
    }
    plain = trained(backend.classifier(), rows(24), **RUN)
    trainer = trained(backend.classifier(), rows(24), skip_memory_metrics=False, eval_dataset=rows(4), **RUN)
    assert keys <= trainer.result.metrics.keys() and not keys & plain.result.metrics.keys()
    assert "eval_mem_cpu_alloc_delta" in trainer.evaluate()
    assert "test_mem_cpu_alloc_delta" in trainer.predict(rows(4)).metrics
    assert isinstance(trainer.result.metrics["train_mem_cpu_peaked_delta"], int)
    assert trainer.result.metrics["before_init_mem_cpu"] > 2**20, "what the process had"


def test_tokens_per_second_and_operations(backend, trained):
    options = RUN | {"max_steps": 3}
    trainer = trained(backend.tagger(), tagged([5] * 24), include_tokens_per_second=True, **options)
    assert trainer.result.metrics["train_tokens_per_second"] > 0
    assert trainer.state.num_input_tokens_seen == 3 * 8 * 5
    assert trainer.result.metrics["total_flos"] == 6 * (3 * 8 * 5) * (8 * 3 + 3), "embeddings do no arithmetic"


def test_full_determinism_is_said_to_the_framework(backend, arguments):
    weights = []
    for _ in range(2):
        model = backend.classifier(dropout=0.5)
        with backend.undone_determinism():
            Trainer(model, arguments(full_determinism=True, **RUN), train_dataset=rows(24)).train()
            assert backend.is_deterministic()
        weights.append(backend.weights(model))
    assert same_bytes(*weights) and not backend.is_deterministic()


@pytest.mark.parametrize("level, shown", [("info", True), ("error", False), ("passive", False)])
def test_log_levels(backend, trained, caplog, level, shown):
    logger = logging.getLogger("oneloop")
    before = logger.level
    try:
        trained(backend.classifier(), rows(24), log_level=level, **RUN)
        assert ("Training" in caplog.text) is shown
    finally:
        logger.setLevel(before)
