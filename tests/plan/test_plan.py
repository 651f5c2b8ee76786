"""Plans against what small runs really have: parameters, optimizer state, steps, checkpoints, on every framework."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, randomness
from oneloop.backends import loading
from oneloop.errors import ArgumentError, UnsupportedError
from oneloop.plan import building, layouts, messages, request, sizes
from oneloop.plan.results import CheckpointSizes, ModelSizes, RunLength
from tests.backends.support import rows, same_bytes, tagged


def tensors_of(folder):
    """Bytes of the tensors in the safetensors files of a checkpoint, by the first word of the file's name."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        spans = [each["data_offsets"] for name, each in header.items() if name != "__metadata__"]
        found[path.name.partition(".")[0]] = sum(end - start for start, end in spans)
    return found


@pytest.mark.parametrize("optim", ["adamw", "sgd"])
def test_sizes_and_lengths_are_those_of_a_run(backend, arguments, optim):
    given = {"optim": optim, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2}
    args = arguments(save_strategy="steps", save_steps=3, **given)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(29))
    plan = trainer.plan()
    weights = loading.load(backend.name).weights
    trainer.train()
    assert plan.length.steps == trainer.state.max_steps == 8 and plan.length.steps_per_epoch == 4
    assert plan.model.parameters == plan.model.trainable == trainer.get_num_trainable_parameters()
    stored, _ = weights.model_tensors(trainer.model)
    assert plan.model.parameter_bytes == sum(loading.load(backend.name).tensors.size(v) for v in stored.values())
    saved = tensors_of(Path(args.output_dir, "checkpoint-6"))
    assert saved["model"] == plan.checkpoint.weights
    counters = 32 * len(stored)  # a few numbers for each parameter
    assert 0 <= saved.get("optimizer", 0) - plan.checkpoint.optimizer <= counters
    checkpoints = len(list(Path(args.output_dir).glob("checkpoint-*")))
    assert plan.checkpoint.saves == plan.checkpoint.kept
    assert checkpoints - plan.checkpoint.saves in (0, 1)  # one at the end, if the last step is none of them


def test_a_plan_leaves_the_run_as_it_is(backend, arguments):
    def losses(plans):
        given = {"per_device_train_batch_size": 4, "logging_steps": 1, "max_steps": 3}
        trainer = Trainer(backend.classifier(dropout=0.2), arguments(**given), train_dataset=rows(16))
        if plans:
            trainer.plan(world=2)
        trainer.train()
        return [log["loss"] for log in trainer.state.log_history if "loss" in log]

    assert losses(True) == losses(False)


def test_a_script_is_planned_with_the_options_of_the_command(backend, arguments, monkeypatch):
    """As `oneloop plan` does it: train() makes the plan, and ends the script."""
    monkeypatch.setattr(request, "_current", request.Request({"world": 4, "largest": False}))
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(16))
    with pytest.raises(request.PlanMade) as ended:
        trainer.train()
    assert ended.value.plan.world == 4 and trainer.state.global_step == 0


SCRIPT = """
from oneloop import Trainer, TrainingArguments
from tests.backends.support import available, rows

args = TrainingArguments("out", max_steps=1, report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no")
print("trained", Trainer(available()[0].classifier(), args, train_dataset=rows(8)).train().global_step)
"""


AFTER_A_PLAN = """
import os
from oneloop.cli.main import main
from oneloop.plan import request

assert main(["plan", "--weights", "job.py"]) == 0 and not os.path.exists("out")
assert main(["plan", "broken.py"]) == 3 and not request.is_active()
assert main(["run", "job.py"]) == 0
"""


def test_a_run_after_a_plan_in_the_same_interpreter_trains(tmp_path):
    """In an interpreter of its own: `oneloop run` replaces the Trainer of other libraries for good."""
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    done = subprocess.run(
        [sys.executable, "-c", AFTER_A_PLAN],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Plan of job.py") and "trained 1" in done.stdout


def test_a_plan_draws_no_random_numbers(backend, arguments):
    class Drawing(list):
        def __getitem__(self, index):
            np.random.rand(), random.random()
            return super().__getitem__(index)

    trainer = Trainer(backend.classifier(dropout=0.2), arguments(), train_dataset=Drawing(rows(16)))
    framework = loading.load(backend.name)
    before = randomness.get_state(framework)
    trainer.plan(largest=False)
    assert same_bytes(before, randomness.get_state(framework))


def test_steps_and_tokens_on_more_processes(backend, arguments):
    """Tokens are those of the model's main input, with padding."""
    args = arguments(per_device_train_batch_size=2, num_train_epochs=3)
    trainer = Trainer(backend.tagger(), args, train_dataset=tagged([5] * 37))
    plans = {world: trainer.plan(world=world, largest=False).length for world in (1, 4, 64)}
    assert [plans[world].steps_per_epoch for world in (1, 4, 64)] == [19, 5, 1]
    assert [plans[world].samples_per_step for world in (1, 4, 64)] == [2, 8, 128]
    assert plans[4].tokens == plans[1].tokens == 3 * 37 * 5
    assert plans[4].tokens_per_step == 40


def is_refused(backend, arguments, sharding):
    try:
        arguments(sharding=sharding).check_backend(backend.name, "cpu")
    except UnsupportedError:
        return True
    return False


def test_sharding_that_a_framework_refuses(backend, arguments):
    plan = Trainer(backend.classifier(), arguments(), train_dataset=rows(16)).plan(world=4)
    refused = {each.name for each in plan.strategies if each.refused}
    assert refused == {f"stage {stage}" for stage in (1, 2, 3) if is_refused(backend, arguments, f"stage{stage}")}
    assert (len(refused) == 0) == (backend.name == "torch")
    ddp = plan.memory("DDP")
    assert ddp.messages.bytes >= plan.model.gradient_bytes
    if backend.name == "torch":
        assert ddp.peak > plan.model.parameter_bytes + plan.model.optimizer_bytes
        assert plan.notes[0].startswith("Gradient_checkpointing (recompute) needs") and len(plan.notes) == 2
    else:
        assert ddp.peak is None and "Activations are not known" in plan.notes[0]


def test_a_plan_for_a_cpu_reminds_of_its_allocator(backend, arguments, monkeypatch):
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(16))
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    reminded = any("MALLOC_MMAP_THRESHOLD_" in note for note in trainer.plan().notes)
    assert reminded == (backend.name == "torch")  # the others have no peaks
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
    assert not any("MALLOC" in note for note in trainer.plan().notes)


def test_what_fits(backend, arguments):
    """State alone can be too much, also where activations are not known."""
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(16))
    assert trainer.plan(device_memory=100).memory("one process").fits is False
    enough = trainer.plan(device_memory="1GB").memory("one process").fits
    assert enough is (True if backend.name == "torch" else None)
    assert trainer.plan().memory("one process").fits is None


def test_saves_and_what_is_kept_of_them(arguments):
    model = ModelSizes(parameters=10, trainable=4, parameter_bytes=40, gradient_bytes=16, optimizer_bytes=32)
    length = RunLength(20, 4, steps_per_epoch=4, steps=10, epochs=2.5, tokens_per_step=None, tokens=None)

    def found(is_adapter=False, **given):
        core = SimpleNamespace(
            trainer=SimpleNamespace(args=arguments(**given), model=None),
            backend=SimpleNamespace(models=SimpleNamespace(is_adapter=lambda model: is_adapter)),
        )
        return building._checkpoint(core, model, length)

    assert found(save_strategy="no").saves == found(save_strategy="no").on_disk == 0
    assert found(save_strategy="steps", save_steps=3, save_total_limit=2) == CheckpointSizes(40, 32, 3, 2, 2 * 72)
    assert found(save_strategy="epoch", save_total_limit=9) == CheckpointSizes(40, 32, 3, 3, 3 * 72)
    only_adapters = found(True, save_strategy="epoch", save_only_model=True)
    assert only_adapters == CheckpointSizes(16, 0, 3, 3, 3 * 16)


def test_the_copy_that_a_save_is_written_from(arguments):
    model = ModelSizes(parameters=10, trainable=4, parameter_bytes=40, gradient_bytes=16, optimizer_bytes=32)
    found = [
        layouts.save_copy(arguments(save_strategy="steps"), way, model) for way in layouts.layouts(4, 8, hybrid=False)
    ]
    assert found == [40 + 32, 40 + 32 // 4, (40 + 32) // 4, (40 + 32) // 4]
    assert layouts.save_copy(arguments(save_strategy="no"), layouts.ParallelLayout("DDP", ""), model) == 0


def test_the_first_bucket_of_each_type_is_small():
    gradients = [("float32", 12), ("bfloat16", 12), ("bfloat16", 12), ("float32", 3), ("bfloat16", 30)]
    assert messages.buckets(gradients, cap=25, first=10) == [12, 12, 42, 3]


def test_the_largest_of_the_first_batches_is_simulated(backend, arguments, monkeypatch):
    simulated = []

    class Spy(building.Memories):
        def __init__(self, trainer, inputs, *given):
            simulated.append(len(inputs["x"]))
            super().__init__(trainer, inputs, *given)

    monkeypatch.setattr(building, "Memories", Spy)
    args = arguments(per_device_train_batch_size=4, train_sampling_strategy="sequential")
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(7))
    first = building._first_batches  # of four samples, and of three
    monkeypatch.setattr(building, "_first_batches", lambda *given: first(*given)[::-1])
    trainer.plan(largest=False)
    assert simulated == [4]


def test_what_arguments_do(backend, arguments):
    args = arguments(eval_steps=5, per_gpu_train_batch_size=4, max_steps=3)
    plan = Trainer(backend.classifier(), args, train_dataset=rows(16)).plan(largest=False)
    found = {each.argument: (each.effect, each.text) for each in plan.arguments}
    assert found["max_steps"] == ("works", "")
    assert found["eval_steps"][0] == "no effect"
    assert found["per_gpu_train_batch_size"] == ("maps", "per_device_train_batch_size")


def test_a_plan_as_text_data_and_page(backend, arguments):
    args = arguments(run_name="<script>", max_steps=7)
    plan = Trainer(backend.classifier(), args, train_dataset=rows(16)).plan(world=2, device_memory="2GB")
    text, data, page = plan.to_text(), plan.to_dict(), plan.to_html("<b>title</b>")
    assert "DDP" in text and "2 GB" in text
    assert json.loads(json.dumps(data))["length"]["steps"] == 7 and data["version"] == 1
    assert "&lt;b&gt;title" in page and "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert [each["name"] for each in data["strategies"]] == [each.name for each in plan.strategies]


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80e9), ("24GiB", 24 * 2**30), ("1.5 gb", 1.5e9), ("512", 512), (7, 7), (None, None)]
)
def test_sizes_are_read(text, size):
    assert sizes.parse("device_memory", text) == size


@pytest.mark.parametrize("text", ["80GBs", "-3GB", "", "many", 0, True])
def test_sizes_that_are_wrong(text):
    with pytest.raises(ArgumentError, match="device_memory"):
        sizes.parse("device_memory", text)


def test_sizes_are_shown():
    assert [sizes.show(each) for each in (None, 0, 999, 1500, 123456, 7.24e9)] == [
        "-", "0 B", "999 B", "1.5 kB", "123 kB", "7.24 GB",
    ]  # fmt: skip
