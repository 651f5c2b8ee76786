"""`accelerate launch --config_file x.yaml script.py`, with files as `accelerate config` writes them."""

import subprocess
import sys
from pathlib import Path

import pytest

from oneloop.arguments.packages import installed
from tests.arguments.test_accelerate_launch import DEEPSPEED, FSDP2
from tests.distributed.launch import environment, free_port, results
from tests.distributed.test_sharding import difference

SCRIPT = Path(__file__).with_name("accelerate_script.py")
pytestmark = pytest.mark.skipif(not installed("accelerate"), reason="needs accelerate")


@pytest.fixture
def folder(tmp_path):
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=8)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    return tmp_path


def launched(folder, text, *argv, **variables):
    file = folder / "config.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    command += ["--main_process_port", str(free_port()), str(SCRIPT), str(folder), *argv]
    child = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(**variables), text=True, timeout=300
    )
    assert child.returncode == 0, child.stdout
    return results(folder, 2)


def alone(folder, **variables):
    command = [sys.executable, str(SCRIPT), str(folder)]
    child = subprocess.run(command, capture_output=True, env=environment(**variables), text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    return results(folder, 1)[0]


@pytest.mark.slow
def test_a_file_of_fsdp2(folder):
    expected = alone(folder)
    for rank, found in enumerate(launched(folder, FSDP2.replace("mixed_precision: bf16", "mixed_precision: 'no'"))):
        assert found["strategy"] == "FSDPStrategy"
        assert found["sharding"] == "stage2"
        assert found["checkpointing"]
        assert found["empty"] == (rank > 0)  # cpu_ram_efficient_loading
        assert difference(found["losses"], expected["losses"]) <= 1e-5
    assert (folder / "out" / "checkpoint-4" / "manifest.json").is_file()


AXES = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: 'no'
num_machines: 1
num_processes: 2
parallelism_config:
  parallelism_config_{axis}_size: 2
use_cpu: false
"""


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "sizes"), [("tp", [2, 1]), ("cp", [1, 2])])
def test_a_file_of_axes(tmp_path, axis, sizes):
    """Without FSDP: both processes have the same batch."""
    import torch
    import transformers

    torch.manual_seed(0)
    given = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**given, intermediate_size=32, pad_token_id=0)
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path / "model")
    variables = {"BATCHES": "1", "ATTENTION": "sdpa"}
    expected = alone(tmp_path, **variables)
    for found in launched(tmp_path, AXES.format(axis=axis), **variables):
        assert found["sizes"] == sizes and expected["sizes"] == [1, 1]
        assert difference(found["losses"], expected["losses"]) <= 1e-5


@pytest.mark.slow
@pytest.mark.skipif(not installed("deepspeed"), reason="needs deepspeed: bash scripts/deepspeed")
@pytest.mark.parametrize("is_sharded_model", [False, True])
def test_a_file_of_deepspeed(folder, is_sharded_model):
    """zero3_init_flag: from_pretrained divides the model while it loads it."""
    expected = alone(folder)
    text = DEEPSPEED.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1")
    text = text.replace("gradient_clipping: 0.7", "gradient_clipping: 1.0").replace("fp16", "'no'")
    text = text.replace("zero3_init_flag: false", f"zero3_init_flag: {str(is_sharded_model).lower()}")
    text = text.replace("  deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock,JetMoEBlock\n", "")
    for found in launched(folder, text, "deepspeed"):
        assert found["strategy"] == "DeepSpeedStrategy"
        assert found["divided"] == is_sharded_model
        assert difference(found["losses"], expected["losses"]) <= 1e-5
    assert (folder / "out" / "checkpoint-4" / "manifest.json").is_file()
