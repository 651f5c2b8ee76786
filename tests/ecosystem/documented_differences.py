"""What docs/migrate.md says of GPT-2's loss, of Seq2SeqTrainer and other differences, printed as JSON, for one side.

python -m tests.ecosystem.documented_differences transformers|oneloop FOLDER
"""

import json
import sys


def facts(folder):
    import torch
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        T5Config,
        T5ForConditionalGeneration,
        Trainer,
        TrainingArguments,
    )

    class Counted(Trainer):
        calls = 0

        def create_optimizer_and_scheduler(self, num_training_steps):
            self.calls += 1
            return super().create_optimizer_and_scheduler(num_training_steps)

    torch.manual_seed(0)
    quiet = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "logging_steps": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0,
                                       embd_pdrop=0, attn_pdrop=0))  # fmt: skip
    ids = torch.randint(0, 20, (4, 4))
    with torch.no_grad():
        mean = float(model.eval()(input_ids=ids, labels=ids).loss)
    args = TrainingArguments(folder, max_steps=1, learning_rate=0.0, per_device_train_batch_size=4, **quiet)
    trainer = Counted(model, args, train_dataset=[{"input_ids": row, "labels": row} for row in ids])
    trainer.train()

    small = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "dropout_rate": 0}
    model = T5ForConditionalGeneration(T5Config(**small, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))
    data = [{"input_ids": torch.randint(2, 20, (5,)), "labels": torch.randint(2, 20, (3,))} for _ in range(6)]
    args = Seq2SeqTrainingArguments(
        folder, per_device_eval_batch_size=4, predict_with_generate=True, generation_max_length=4, **quiet
    )
    found = Seq2SeqTrainer(model, args).predict(data)
    with torch.no_grad():
        batches = [torch.utils.data.default_collate(data[i : i + 4]) for i in (0, 4)]
        losses = [float(model(**batch).loss) for batch in batches]
    return {
        "calls": trainer.calls,
        "share of the mean": trainer.state.log_history[0]["loss"] / mean,
        "disable_tqdm": args.disable_tqdm,
        "widths": [found.predictions.shape[1], found.label_ids.shape[1]],
        "weight of the last batch": (found.metrics["test_loss"] - losses[0]) / (losses[1] - losses[0]),
    }


if __name__ == "__main__":
    if sys.argv[1] == "oneloop":
        from oneloop.compat.redirect import redirect

        redirect("transformers")
    print("found:", json.dumps(facts(sys.argv[2])))
