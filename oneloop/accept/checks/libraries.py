"""Other libraries on oneloop: adapters of peft, the trainers of TRL."""

import json
from importlib import import_module
from typing import Any

from ..outcome import require
from ..place import Place

VOCABULARY = 64


def language_model() -> Any:
    """A Llama of 50 thousand weights."""
    torch = import_module("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=64, pad_token_id=0, **sizes))


def documents(count: int = 64) -> list[dict[str, Any]]:
    """Tokens that count upwards: easy to learn."""
    return [{"input_ids": [(i + j) % (VOCABULARY - 4) + 4 for j in range(16)]} for i in range(count)]


def lora(place: Place) -> dict[str, Any]:
    place.require_framework("torch")
    place.require_packages("transformers", "peft")
    import peft
    from safetensors.numpy import load_file

    from ... import public
    from ..place import losses_of

    model = peft.get_peft_model(language_model(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    data = [row | {"labels": row["input_ids"]} for row in documents()]
    arguments = place.arguments("lora", learning_rate=3e-2, save_strategy="steps", save_steps=30)
    trainer = public.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    losses = losses_of(trainer)
    require(losses[-1] < 0.97 * losses[0], f"the loss does not fall: {losses[0]:.4f} to {losses[-1]:.4f}")
    changed = [name for name, p in model.named_parameters() if not bool((p.detach().cpu() == before[name].cpu()).all())]
    require(bool(changed), "no weight has changed")
    wrong = [name for name in changed if "lora_" not in name]
    require(not wrong, f"weights of the base model have changed: {', '.join(wrong[:3])}")
    saved = load_file(place.folder / "lora" / "checkpoint-30" / "adapter_model.safetensors")
    wrong = [name for name in saved if "lora_" not in name]
    require(not wrong, f"the checkpoint has weights of the base model: {', '.join(wrong[:3])}")
    return {"first loss": losses[0], "last loss": losses[-1], "tensors saved": len(saved)}


SFT = """
import json, sys
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from oneloop import Trainer
from oneloop.accept.checks.libraries import documents, language_model, tokenizer

folder, on_cpu = sys.argv[1], sys.argv[2] == "cpu"
args = SFTConfig(output_dir=folder, max_steps=20, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=1,
                 save_strategy="no", report_to="none", use_cpu=on_cpu, bf16=False, max_length=32, disable_tqdm=True)
trainer = SFTTrainer(language_model(), args, train_dataset=Dataset.from_list(documents()), processing_class=tokenizer())
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
with open(folder + ".json", "w") as f:
    json.dump({"losses": losses, "on oneloop": isinstance(trainer, Trainer)}, f)
"""


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "<bos>": 3} | {f"w{i}": i for i in range(4, VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", bos_token="<bos>"
    )


def trl_sft(place: Place) -> dict[str, Any]:
    place.require_framework("torch")
    place.require_packages("transformers", "trl", "datasets", "tokenizers")
    script = place.folder / "sft.py"
    script.write_text(SFT, encoding="utf-8")
    place.program("run", str(script), str(place.folder / "sft"), place.device)
    found = json.loads((place.folder / "sft.json").read_text(encoding="utf-8"))
    require(found["on oneloop"], "TRL's trainer is not oneloop's")
    losses = found["losses"]
    require(len(losses) == 20, f"{len(losses)} of 20 steps were logged")
    require(losses[-1] < 0.8 * losses[0], f"the loss does not fall: {losses[0]:.4f} to {losses[-1]:.4f}")
    return {"first loss": losses[0], "last loss": losses[-1]}
