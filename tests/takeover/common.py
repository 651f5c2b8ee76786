"""What both sides of a move have in common: the model, its data and the arguments."""

import os

import torch

BATCH, STEPS, SAVED = 12, 40, 20
SHARED = {
    "max_steps": STEPS,
    "learning_rate": 1e-2,
    "warmup_steps": 3,
    "weight_decay": 0.05,
    "logging_steps": 1,
    "save_steps": SAVED,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 11,
}


def rows(count=8 * BATCH):
    """Texts of different lengths in rows of one length: processes have different numbers of labels."""
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(1, 40, (count, 10), generator=draw)
    kept = torch.randint(3, 10, (count,), generator=draw)
    labels = [torch.where(torch.arange(10) < n, row, -100) for row, n in zip(ids, kept)]
    return [{"input_ids": row, "labels": of_row} for row, of_row in zip(ids, labels)]


def model(kind="whole"):
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 12, "intermediate_size": 20, "max_position_embeddings": 16}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=kind == "tied", attention_dropout=0.0)
    made = transformers.LlamaForCausalLM(config)
    if kind == "lora":
        import peft

        torch.manual_seed(3)
        made = peft.get_peft_model(
            made, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"], r=4)
        )
    return made


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def prepare_deepspeed():
    """DeepSpeed would compile a transport through shared memory for minutes, which gloo does as well; and it asks for
    instructions that make fp16 fast on a CPU."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
