"""LoRA fine-tuning with PEFT: only the adapter is trained and saved.

pip install 'oneloop[torch,transformers]' peft
python examples/lora.py                                     # a tiny Llama, no download
python examples/lora.py --model Qwen/Qwen2.5-0.5B --bf16    # or a pretrained one, with its tokenizer
"""

from dataclasses import dataclass

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from oneloop import ArgumentParser, Trainer, TrainingArguments

QUESTIONS = [f"What is {a} plus {b}? {a + b}." for a in range(12) for b in range(12)]


@dataclass
class Options:
    model: str = ""  # name or folder of a pretrained model; empty: a tiny one that reads bytes
    rank: int = 8


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "outputs/lora"
    num_train_epochs: float = 10
    per_device_train_batch_size: int = 16
    learning_rate: float = 1e-2
    logging_steps: float = 10
    save_strategy: str = "epoch"
    save_total_limit: int = 1


def load(name):
    """The model, and a function from text to ids."""
    if name:
        tokenizer = AutoTokenizer.from_pretrained(name)
        return AutoModelForCausalLM.from_pretrained(name), lambda text: tokenizer(text)["input_ids"]
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, initializer_range=0.2, **sizes)), lambda text: list(
        text.encode()
    )


def collate(samples):
    """Pad on the right; padding does not count in the loss."""
    width = max(map(len, samples))
    ids = torch.tensor([sample + [0] * (width - len(sample)) for sample in samples])
    mask = torch.tensor([[1] * len(sample) + [0] * (width - len(sample)) for sample in samples])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main():
    options, args = ArgumentParser((Options, Arguments)).parse_args_into_dataclasses()
    base, encode = load(options.model)
    config = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    model.print_trainable_parameters()
    trainer = Trainer(model, args, collate, train_dataset=[encode(text) for text in QUESTIONS])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()  # adapter_model.safetensors and adapter_config.json

    again, _ = load(options.model)
    merged = PeftModel.from_pretrained(again, args.output_dir).merge_and_unload().to(args.device)
    batch = {name: value.to(args.device) for name, value in collate([encode(QUESTIONS[0])]).items()}
    print(f"loss of the merged model on the first question: {merged.eval()(**batch).loss.item():.3f}")


if __name__ == "__main__":
    main()
