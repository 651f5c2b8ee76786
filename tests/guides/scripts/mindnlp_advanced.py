"""MindNLP's newer guide, its advanced section: half precision, and recomputation in the backward pass."""

from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, load_dataset

from oneloop import Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
dataset = load_dataset("imdb")["train"].select(range(128))
train_dataset = dataset.map(lambda examples: tokenizer(examples["text"], padding="max_length"), batched=True)


def fit(training_args):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
    trainer = Trainer(model=model, args=training_args, train_dataset=train_dataset)
    return trainer, trainer.train()


plain = fit(TrainingArguments(output_dir="./output"))

training_args = TrainingArguments(
    output_dir="./output",
    fp16=True,
)
fp16 = fit(training_args)

training_args = TrainingArguments(
    output_dir="./output",
    bf16=True,
)
bf16 = fit(training_args)

training_args = TrainingArguments(
    output_dir="./output",
    gradient_checkpointing=True,
)
recomputed = fit(training_args)
