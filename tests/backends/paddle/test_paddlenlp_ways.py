"""Ways of PaddleNLP's Trainer that its published scripts rely on, where they differ from others'."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from oneloop import CompressionArguments, PdArgumentParser, Trainer, TrainingArguments  # noqa: E402
from oneloop.backends import loading  # noqa: E402
from oneloop.data.samplers import GivenBatches  # noqa: E402
from oneloop.distributed.mesh import Mesh  # noqa: E402
from oneloop.errors import ArgumentError, CheckpointError, DataError, UnsupportedError  # noqa: E402
from oneloop.formats.safetensors_io import write  # noqa: E402
from tests.backends.kits.paddle_kit import Kit  # noqa: E402
from tests.backends.kits.paddle_models import Classifier  # noqa: E402
from tests.backends.support import rows, same_bytes  # noqa: E402
from tests.emulation import emulate  # noqa: E402
from tests.internals import backend_of  # noqa: E402

KIT = Kit()
SHORT = {"max_steps": 4, "logging_steps": 2, "learning_rate": 0.1, "per_device_train_batch_size": 4}


@pytest.fixture
def as_paddlenlp(monkeypatch):
    """Within a script for PaddleNLP, as `oneloop run` has it."""
    emulate(monkeypatch, {"paddlenlp"})


# -- arguments


def test_minimum_eval_times_of_minus_one_is_off(trained):
    options = {"eval_strategy": "steps", "eval_steps": 2, "eval_dataset": rows(4), **SHORT}
    for times, steps in ((-1, [2, 4]), (0, [2, 4]), (4, [1, 2, 3, 4])):
        trainer = trained(KIT.classifier(), rows(), minimum_eval_times=times, **options)
        assert [row["step"] for row in trainer.state.log_history if "eval_loss" in row] == steps


def test_compression_arguments_are_for_training_too(trained, tmp_path):
    words = ["--output_dir", str(tmp_path), "--strategy", "ptq", "--batch_size_list", "4", "8", "--device", "cpu"]
    (args,) = PdArgumentParser(CompressionArguments).parse_args_into_dataclasses(words)
    assert (args.warmup_ratio, args.logging_steps, args.save_steps) == (0.1, 100, 100)
    assert (args.do_compress, args.strategy, args.batch_size_list, args.width_mult_list) == (False, "ptq", [4, 8], None)
    args.max_steps, args.report_to = 2, "none"
    trainer = Trainer(KIT.classifier(), args, train_dataset=rows(8))
    assert trainer.train().global_step == 2
    assert args.get_warmup_steps(20) == 2
    for refused in (lambda: CompressionArguments(str(tmp_path), do_compress=True), trainer.compress):
        with pytest.raises(UnsupportedError, match="PaddleSlim"):
            refused()


@dataclass
class Own:
    debug: bool = field(default=False, metadata={"help": "The script's own."})


def test_a_field_of_the_script_beats_an_argument_that_paddlenlp_has_not(as_paddlenlp, monkeypatch):
    parser = PdArgumentParser((Own, TrainingArguments))
    own, args = parser.parse_args_into_dataclasses(["--output_dir", "o", "--debug", "True", "--device", "cpu"])
    assert (own.debug, args.debug) == (True, "")
    emulate(monkeypatch, set())
    with pytest.raises(ArgumentError, match=r"Own\.debug and TrainingArguments\.debug would both define the option"):
        PdArgumentParser((Own, TrainingArguments))


def test_its_framework_is_paddle_whatever_else_is_imported(as_paddlenlp, monkeypatch):
    pytest.importorskip("torch")
    assert loading.guess() == "paddle"
    emulate(monkeypatch, {"paddlenlp", "transformers"})
    assert loading.guess() == "torch"


# -- data


class Noted(Classifier):
    """Notes the first feature of every sample that it sees."""

    def __init__(self):
        super().__init__("dict", 0.0, False)
        self.seen = []

    def forward(self, x, labels=None):
        self.seen.append(x[:, 0].numpy().tolist())
        return super().forward(x, labels)


class Batches(Trainer):
    """Batch samplers, as PaddleNLP's Trainer has them."""

    def _get_train_sampler(self):
        return paddle.io.BatchSampler(self.train_dataset, batch_size=3, drop_last=True)

    def _get_eval_sampler(self, eval_dataset):
        return paddle.io.DistributedBatchSampler(eval_dataset, 2, num_replicas=1, rank=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler_is_taken_as_it_is(trained, workers):
    data = rows(11)
    first = [float(row["x"][0]) for row in data]
    options = {"num_train_epochs": 1, "eval_dataset": data[:4], "dataloader_num_workers": workers}
    trainer = trained(Noted(), data, Batches, **options)
    assert trainer.state.global_step == 3  # 11 samples by three, and the rest dropped
    assert trainer.model.seen == [first[0:3], first[3:6], first[6:9]]
    trainer.model.seen.clear()
    trainer.evaluate()
    assert trainer.model.seen == [first[0:2], first[2:4]]


def test_a_run_with_a_batch_sampler_is_resumed_exactly(trained, tmp_path):
    options = {"max_steps": 6, "learning_rate": 0.1, "save_strategy": "steps", "save_steps": 2}
    whole = trained(KIT.classifier(dropout=0.2), rows(11), Batches, **options)
    again = trained(KIT.classifier(dropout=0.2), rows(11), Batches, resume=f"{tmp_path}/out/checkpoint-4", **options)
    assert same_bytes(KIT.weights(whole.model), KIT.weights(again.model))


def test_a_batch_sampler_that_knows_no_processes_is_refused_among_several():
    two = Mesh.of_batches(2, 1)
    with pytest.raises(DataError, match="the same batches on each of the 2 processes"):
        GivenBatches(paddle.io.BatchSampler(rows(8), batch_size=2), mesh=two)
    dealt = paddle.io.DistributedBatchSampler(rows(8), 2, num_replicas=2, rank=1)
    batches = GivenBatches(dealt, placed=True, mesh=two)
    assert [(list(batch), batch.position) for batch in batches] == [([2, 3], (0, 0, 2)), ([6, 7], (0, 1, 6))]


def test_a_collator_sees_whole_samples(as_paddlenlp, trained, monkeypatch):
    def collate(samples):
        assert set(samples[0]) == {"text"}
        return {name: paddle.to_tensor(np.stack([s["text"][name] for s in samples])) for name in ("x", "labels")}

    data = [{"text": row} for row in rows(8)]
    assert trained(KIT.classifier(), data, data_collator=collate, max_steps=2).state.global_step == 2
    emulate(monkeypatch, ())
    with pytest.raises(DataError, match="none of the columns"):
        trained(KIT.classifier(), data, data_collator=collate, max_steps=2)


# -- evaluation


def test_max_eval_iters_ends_a_pass_and_an_iterator_goes_on(trained):
    trainer = trained(Noted(), rows(8), max_steps=1, per_device_eval_batch_size=2)
    data = rows(12, seed=1)
    first = [float(row["x"][0]) for row in data]
    loader = trainer.get_eval_dataloader(data)
    trainer.model.seen.clear()
    output = trainer.evaluation_loop(loader, description="Evaluation", max_eval_iters=2)
    assert output.num_samples == 4 and trainer.model.seen == [first[0:2], first[2:4]]
    batches = loader()  # what PaddleNLP's scripts keep between evaluations
    for start in (0, 4, 8):
        trainer.model.seen.clear()
        trainer.evaluation_loop(batches, description="Evaluation", max_eval_iters=2)
        assert trainer.model.seen == [first[start : start + 2], first[start + 2 : start + 4]]
    assert trainer.evaluation_loop(loader, description="Evaluation", max_eval_iters=-1).num_samples == 12


def test_the_loader_hears_what_evaluate_was_given(as_paddlenlp, trained):
    class Asked(Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            self.given = eval_dataset
            return super().get_eval_dataloader(eval_dataset)

    trainer = trained(KIT.classifier(), rows(8), Asked, eval_dataset=rows(4), max_steps=1)
    trainer.evaluate()
    assert trainer.given is None
    other = rows(6)
    trainer.evaluate(other)
    assert trainer.given is other


# -- optimizer


class OwnOptimizer(Trainer):
    """create_optimizer as PaddleNLP's prompt tuning overrides it: groups, and a schedule in place of a rate."""

    def create_optimizer(self, lr_scheduler=None):
        cls, options = Trainer.get_optimizer_cls_and_kwargs(self.args)
        first, *others = self.model.parameters()
        groups = [{"params": others}, {"params": [first], "learning_rate": 0.5}]
        self.optimizer = cls(learning_rate=lr_scheduler or self.lr_scheduler, parameters=groups, **options)
        return self.optimizer


def test_an_optimizer_is_built_with_its_schedule(as_paddlenlp, trained, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "warmup_steps": 1, "logging_steps": 1}
    trainer = trained(KIT.classifier(dropout=0.2), rows(), OwnOptimizer, **{**SHORT, **options})
    assert isinstance(trainer.lr_scheduler, paddle.optimizer.lr.LRScheduler)
    rates = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
    assert rates == pytest.approx([0.0, 0.1, 0.1 * 2 / 3, 0.1 / 3])
    again = trained(
        KIT.classifier(dropout=0.2), rows(), OwnOptimizer, resume=f"{tmp_path}/out/checkpoint-2", **{**SHORT, **options}
    )
    assert same_bytes(KIT.weights(trainer.model), KIT.weights(again.model))


def test_a_schedule_by_the_metric_comes_after_its_optimizer(as_paddlenlp, trained):
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_dataset": rows(4)}
    with pytest.raises(ArgumentError, match="create the optimizer first"):
        trained(KIT.classifier(), rows(), OwnOptimizer, max_steps=1, **plateau)


# -- logs


def test_logs_have_paddlenlps_keys_too(as_paddlenlp, trained, monkeypatch):
    trainer = trained(KIT.classifier(), rows(8), eval_dataset=rows(4), **SHORT)
    logs = next(row for row in trainer.state.log_history if "loss" in row)
    assert (logs["global_step"], logs["progress_or_epoch"], logs["epoch"]) == (2, 1.0, 1.0)
    assert logs["interval_steps_per_second"] == pytest.approx(2 / logs["interval_runtime"], rel=0.1)
    assert logs["interval_samples_per_second"] == pytest.approx(4 * logs["interval_steps_per_second"], rel=0.01)
    assert trainer.evaluate()["progress_or_epoch"] == 2.0
    emulate(monkeypatch, ())
    logs = trained(KIT.classifier(), rows(8), **SHORT).state.log_history
    assert not {"progress_or_epoch", "interval_runtime"} & {key for row in logs for key in row}


# -- files


class LoRAModel(paddle.nn.Layer):
    """As PaddleNLP's: a frozen model with trainable parts, which alone are saved."""

    __module__ = "paddlenlp.peft.lora.lora_model"

    class Config:
        def __init__(self, name):
            self.name = name

        def save_pretrained(self, directory):
            with open(f"{directory}/{self.name}", "w") as file:
                file.write("{}")

    def __init__(self, model):
        super().__init__()
        self.model = model
        model.config = self.Config("config.json")
        self.lora_config = self.Config("lora_config.json")
        *frozen, _, _ = model.parameters()
        for parameter in frozen:
            parameter.stop_gradient = True

    def get_trainable_state_dict(self):
        return {name: value for name, value in self.model.state_dict().items() if not value.stop_gradient}

    def forward(self, x, *args, **kwargs):
        return self.model(x, *args, **kwargs)


def test_an_adapter_is_saved_alone_and_goes_on_exactly(trained, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, **SHORT}
    trainer = trained(LoRAModel(KIT.classifier(dropout=0.2)), rows(), **options)
    trainer.save_model()
    for folder in (tmp_path / "out", tmp_path / "out" / "checkpoint-2"):
        names = {path.name for path in folder.iterdir()}
        assert {"lora_config.json", "config.json", "peft_model.safetensors.index.json"} <= names
        assert "model.safetensors" not in names
        stored = json.loads((folder / "peft_model.safetensors.index.json").read_text())["weight_map"]
        assert set(stored) == set(trainer.model.get_trainable_state_dict()) and set(stored.values()) <= names
    again = trained(LoRAModel(KIT.classifier(dropout=0.2)), rows(), resume=f"{tmp_path}/out/checkpoint-2", **options)
    assert same_bytes(KIT.weights(trainer.model), KIT.weights(again.model))


def test_adapters_in_whole_models_and_in_pickles_are_read(trained, tmp_path):
    trainer = trained(LoRAModel(KIT.classifier()), rows(), **SHORT)
    weights = backend_of(trainer).weights
    theirs, whole, nothing = tmp_path / "theirs", tmp_path / "whole", tmp_path / "nothing"
    whole.mkdir()
    paddle.save(trainer.model.get_trainable_state_dict(), f"{theirs}/lora_model_state.pdparams")
    write(whole / "model.safetensors", {name: weights.raw(v) for name, v in trainer.model.state_dict().items()})
    fresh = LoRAModel(KIT.classifier())
    weights.load_adapter(fresh, whole)
    assert same_bytes(KIT.weights(fresh), KIT.weights(trainer.model))
    fresh = LoRAModel(KIT.classifier())
    expected = {name: value.numpy().tobytes() for name, value in trainer.model.get_trainable_state_dict().items()}
    weights.load_adapter(fresh, theirs)
    found = {name: value.numpy().tobytes() for name, value in fresh.get_trainable_state_dict().items()}
    assert found == expected
    with pytest.raises(CheckpointError, match="has no adapter"):
        weights.load_adapter(fresh, nothing)
