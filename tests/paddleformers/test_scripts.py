"""Scripts for PaddleFormers' Trainer, as they are and under `oneloop run`: the same losses and weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent / "scripts"
ARGUMENTS = {
    "do_train": True,
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.01,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "device": "cpu",
    "logging_steps": 1,
    "save_steps": 100,
    "report_to": "none",
    "disable_tqdm": True,
    "amp_master_grad": False,  # PaddleFormers asks for it without mixed precision
    "dataloader_shuffle": False,  # the libraries shuffle differently
}


def run(folder, script, on_oneloop, output="out", **options):
    """The losses and the trained weights of a script in an empty process."""
    words = [word for key, value in (ARGUMENTS | options).items() for word in (f"--{key}", str(value))]
    runner = ["-m", "oneloop", "run"] if on_oneloop else []
    command = [
        sys.executable,
        *runner,
        str(SCRIPTS / script),
        "--output_dir",
        output,
        "--losses",
        "losses.json",
        *words,
    ]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads((folder / "losses.json").read_text())
    return found["losses"], {name: np.array(value) for name, value in found["weights"].items()}, done.stderr


def compare(theirs, ours, steps=range(1, 7)):
    for step in map(str, steps):
        assert ours[0][step] == pytest.approx(theirs[0][step], abs=3e-6)
    assert ours[1].keys() == theirs[1].keys()
    for name, value in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], value, rtol=0, atol=3e-6, err_msg=name)


@pytest.mark.parametrize(
    "script, options",
    [
        ("pretrain.py", {}),
        ("sft.py", {}),
        ("sft.py", {"lora": True}),
    ],
    ids=["pretraining", "sft", "lora"],
)
def test_a_script_runs_unmodified_with_the_same_losses_and_weights(script, options, tmp_path):
    (tmp_path / "theirs").mkdir()
    theirs = run(tmp_path / "theirs", script, False, **options)
    ours = run(tmp_path, script, True, **options)
    compare(theirs, ours)
    assert (tmp_path / "out" / "run.jsonl").is_file()  # it was oneloop's Trainer
    if options.get("lora"):
        assert (tmp_path / "out" / "lora_config.json").is_file()


def test_accumulated_and_recomputed(tmp_path):
    """PaddleFormers itself cannot accumulate on a CPU, so it is the update of its undivided batch."""
    (tmp_path / "theirs").mkdir()
    theirs = run(tmp_path / "theirs", "pretrain.py", False)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "recompute_granularity": "full"}
    compare(theirs, run(tmp_path, "pretrain.py", True, **options))


@pytest.mark.parametrize("layout", ["flex_checkpoint", "unified_checkpoint", "sharding_io"])
def test_an_unfinished_run_of_paddleformers_is_finished(layout, tmp_path):
    """Of one of its own models, whose weights it transposes in safetensors files."""
    (tmp_path / "whole").mkdir()
    whole = run(tmp_path / "whole", "pretrain.py", False)
    run(tmp_path, "pretrain.py", False, save_steps=3, save_checkpoint_format=layout)
    for path in (tmp_path / "out").iterdir():  # as if it had been stopped after step 3
        if path.name != "checkpoint-3" and path.is_file():
            path.unlink()
    last = tmp_path / "out" / "checkpoint-6"
    if last.is_dir():
        last.rename(tmp_path / "last")
    ours = run(tmp_path, "pretrain.py", True)
    assert "written by the Trainer of paddleformers" in ours[2]
    assert sorted(ours[0], key=int) == ["4", "5", "6"]
    compare(whole, ours, steps=range(4, 7))


def test_the_saved_model_can_be_loaded_by_paddleformers(tmp_path):
    _, weights, log = run(tmp_path, "pretrain.py", True)
    assert "model.save_pretrained" in log
    from paddleformers.transformers import LlamaForCausalLM

    options = {"load_checkpoint_format": "", "convert_from_hf": False}
    model = LlamaForCausalLM.from_pretrained(str(tmp_path / "out"), **options)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value.numpy(), weights[name], rtol=0, atol=1e-6)
    # Without the options its square matrices are transposed, and nothing says so: what the warning is about.
    wrong = LlamaForCausalLM.from_pretrained(str(tmp_path / "out")).state_dict()
    (square,) = [name for name in weights if name.endswith("layers.0.self_attn.q_proj.weight")]
    np.testing.assert_allclose(wrong[square].numpy().T, weights[square], rtol=0, atol=1e-6)
    assert "wrongly without an error" in log
    model.save_pretrained(str(tmp_path / "theirs"))
    again = LlamaForCausalLM.from_pretrained(str(tmp_path / "theirs"))
    for name, value in again.state_dict().items():
        assert value.numpy().tobytes() == model.state_dict()[name].numpy().tobytes()


def test_what_is_refused_is_refused_with_its_reason(tmp_path):
    command = [sys.executable, "-m", "oneloop", "run", str(SCRIPTS / "pretrain.py"), "--output_dir", "out"]
    done = subprocess.run(
        [*command, "--pipeline_model_parallel_size", "2"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "pipeline_model_parallel_size cannot be set to anything but 1 or -1: this kind of model" in done.stderr


def test_every_default_of_its_arguments_is_answered():
    """The defaults are accepted, mapped, or refused with a reason; none is unknown."""
    import dataclasses

    from paddleformers.trainer import TrainingArguments as Theirs

    from oneloop import TrainingArguments
    from oneloop.errors import UnknownArgumentError, UnsupportedError

    refused = {}
    for field in dataclasses.fields(Theirs):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name == "output_dir":
            continue
        value = getattr(default, "value", default)
        try:
            TrainingArguments("out", **{field.name: value})
        except UnsupportedError as error:
            refused[field.name] = str(error)
        except UnknownArgumentError:
            raise
    # Half precision with gradients in float32, its own op lists, a GPU, and its layout of weights.
    assert set(refused) <= {"amp_master_grad", "amp_custom_black_list", "amp_custom_white_list", "device", "save_to_hf"}
