"""Tiny models and tokenizers, made in place: nothing is downloaded."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

WORDS = (
    "the a cat dog sat ran on under mat tree red blue big small and then saw it was who where what how is yes no "
    "one two three four five six seven eight nine ten user assistant system hello good bad answer question"
).split()

# With {% generation %}, so that the tokens of the assistant can be told apart.
CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|> "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }} <eos>{% endgeneration %}"
    "{% else %}{{ message['content'] }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


@cache
def _backend() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<pad>", "<unk>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.add_special_tokens(special)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def tokenizer() -> Any:
    """A tokenizer of words with a chat template."""
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=_backend(), pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", model_max_length=64
    )
    made.chat_template = CHAT
    made.padding_side = "right"
    return made


def _options() -> dict[str, Any]:
    return {
        "vocab_size": len(_backend().get_vocab()), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
        "eos_token_id": 2, "bos_token_id": None,
    }  # fmt: skip


def causal(seed: int = 0) -> Any:
    """A causal language model of two layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return _from_files(LlamaForCausalLM(LlamaConfig(**_options())))


def classifier(seed: int = 0, labels: int = 1) -> Any:
    """The same with a head for scores."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(seed)
    return _from_files(LlamaForSequenceClassification(LlamaConfig(**_options(), num_labels=labels)))


def drawn_words(draw: Any, count: int) -> str:
    """A text of words that a random.Random draws."""
    return " ".join(draw.choice(WORDS) for _ in range(count))


def save(model: Any, folder: Path | str) -> str:
    """Write the model and the tokenizer; their directory."""
    from safetensors.torch import save_file

    # Not save_pretrained: on several processes it writes in the main one alone.
    save_file(dict(model.state_dict()), Path(folder) / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def _from_files(model: Any) -> Any:
    """The model with the path that it was loaded from, where libraries load a copy of it, such as a reference."""
    folder = tempfile.mkdtemp(prefix="tiny-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return type(model).from_pretrained(save(model, folder))


def sentence(i: int, length: int = 5) -> str:
    """Words that depend on i alone."""
    return " ".join(WORDS[(i * 7 + k * (i % 3 + 1)) % len(WORDS)] for k in range(length))


def lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
