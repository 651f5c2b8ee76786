"""TRL's SFTTrainer with LoRA and dropout on oneloop, as a program: `lora_sft_job.py FOLDER [latest|CHECKPOINT]`.

On several processes the model is sharded (stage 3). At its end the main process writes FOLDER/result.json.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from oneloop.compat.redirect import redirect

redirect("transformers")

import peft  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

from oneloop import get_last_checkpoint  # noqa: E402
from oneloop.distributed.world import world  # noqa: E402
from tests.ecosystem import tiny  # noqa: E402


class Telling(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step}", flush=True)


def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vocabulary = len(tiny.tokenizer())
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, pad_token_id=0, eos_token_id=2, **sizes))


def main(folder, resume=None):
    texts = [" ".join(tiny.WORDS[(i * j) % 20] for j in range(3 + i % 7)) for i in range(24)]
    args = SFTConfig(
        output_dir=folder,
        max_steps=8,
        save_steps=2,
        logging_steps=1,
        per_device_train_batch_size=4 // world().size,
        learning_rate=0.05,
        report_to="none",
        use_cpu=True,
        bf16=False,
        fsdp="full_shard" if world().size > 1 else "",
    )
    trainer = SFTTrainer(
        model=model(),
        args=args,
        train_dataset=Dataset.from_list([{"text": text} for text in texts]),
        processing_class=tiny.tokenizer(),
        peft_config=peft.LoraConfig(r=2, lora_dropout=0.2, target_modules=["q_proj", "v_proj"]),
        callbacks=[Telling()],
    )
    if resume == "latest":  # there is none if it was killed before its first save
        resume = get_last_checkpoint(folder) if Path(folder).is_dir() else None
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(f"{folder}/model")
    if not trainer.is_world_process_zero():
        return
    checkpoint = Path(folder) / "checkpoint-8"
    files = sorted(path for path in checkpoint.glob("*.safetensors"))
    found = {
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "losses": [log["loss"] for log in trainer.state.log_history if "loss" in log],
        "model": sorted(path.name for path in (Path(folder) / "model").glob("adapter*")),
    }
    (Path(folder) / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
