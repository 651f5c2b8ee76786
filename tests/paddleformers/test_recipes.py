"""`oneloop train` with models of PaddleFormers."""

import json
import subprocess
import sys

import pytest

WORDS = [f"w{i}" for i in range(16)]
COMMON = (
    "--framework paddle --device cpu --report_to none --disable_tqdm true --eval_split 0.2 --learning_rate 1e-2".split()
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a tiny LLaMA, its tokenizer, and prompts whose answer is their first word."""
    from paddleformers.transformers import LlamaConfig, LlamaForCausalLM
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("recipes")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "<eos>", *WORDS])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", model_max_length=32
    )
    tokenizer.save_pretrained(folder / "llama")
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, fuse_rms_norm=False,
        pad_token_id=0, eos_token_id=2, bos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(str(folder / "llama"))
    rows = [{"prompt": f"{WORDS[i % 5]} {WORDS[8 + i % 7]}", "completion": WORDS[i % 5]} for i in range(60)]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(folder, *words, fails=False):
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=500)
    assert bool(done.returncode) == fails, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stderr if fails else done.stdout


def test_answers_are_learned_and_the_script_gives_the_same_weights(made):
    words = [
        "train",
        "--task",
        "sft",
        "--model",
        "llama",
        "--data",
        "answers.jsonl",
        "--num_train_epochs",
        "24",
        *COMMON,
    ]
    said = run(made, "-m", "oneloop", *words, "--output_dir", "recipe")
    assert "paddleformers on paddle" in said
    text = run(made, "-m", "oneloop", *words, "--output_dir", "script", "--script")
    (made / "script.py").write_text(text)
    run(made, "script.py")
    weights = list((made / "recipe").glob("*.safetensors"))
    assert weights and all((made / "script" / path.name).read_bytes() == path.read_bytes() for path in weights)
    found = run(made, "-m", "oneloop", "predict", "recipe", "--data", "answers.jsonl", "--device", "cpu").splitlines()
    rows = [json.loads(line) for line in found if line.startswith("{")]
    assert len(rows) == 60
    assert sum(row["prediction"] == row["completion"] for row in rows) / len(rows) > 0.6


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--packing", "true"], "packing is not supported"), (["--lora"], "adapters need PEFT")],
)
def test_what_is_not_supported(more, message, made):
    words = ["train", "--task", "sft", "--model", "llama", "--data", "answers.jsonl", *COMMON, *more]
    assert message in run(made, "-m", "oneloop", *words, fails=True)
