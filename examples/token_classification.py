"""Token classification: names, places and dates in generated sentences, with a model of transformers.

pip install 'oneloop[torch,transformers]'
python examples/token_classification.py      # a tiny BERT from scratch, no download
"""

import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

from oneloop import ArgumentParser, DataCollatorForTokenClassification, Trainer, TrainingArguments

TAGS = ["O", "NAME", "PLACE", "DATE"]
WORDS = {
    "NAME": "anna ben carla david emma paris".split(),  # paris is a name or a place, by its context
    "PLACE": "london paris tokyo berlin nairobi lima".split(),
    "DATE": "monday tuesday friday today yesterday".split(),
}
PATTERNS = [
    "NAME flew to PLACE on DATE",
    "on DATE NAME and NAME left PLACE",
    "my friend NAME lives in PLACE",
    "DATE is a holiday in PLACE , said NAME",
]


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "outputs/tags"
    num_train_epochs: float = 4
    per_device_train_batch_size: int = 16
    learning_rate: float = 2e-3
    logging_steps: float = 10
    eval_strategy: str = "epoch"


def sentences(count, seed):
    choose = random.Random(seed).choice
    for _ in range(count):
        pattern = choose(PATTERNS).split()
        words = [choose(WORDS[word]) if word in WORDS else word for word in pattern]
        yield words, [word if word in WORDS else "O" for word in pattern]


def make_tokenizer():
    words = sorted({word for sentence, _ in sentences(2000, seed=0) for word in sentence})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def encode(tokenizer, words, tags):
    encoded = tokenizer(words, is_split_into_words=True)
    labels = [-100 if at is None else TAGS.index(tags[at]) for at in encoded.word_ids()]  # -100 does not count
    return {**encoded, "labels": labels}


def accuracy(output):
    counted = output.label_ids != -100
    return {"accuracy": float(np.mean(output.predictions.argmax(-1)[counted] == output.label_ids[counted]))}


def main():
    (args,) = ArgumentParser(Arguments).parse_args_into_dataclasses()
    tokenizer = make_tokenizer()
    train, test = ([encode(tokenizer, *each) for each in sentences(*given)] for given in ((600, 1), (100, 2)))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForTokenClassification(BertConfig(vocab_size=len(tokenizer), num_labels=len(TAGS), **sizes))
    collator = DataCollatorForTokenClassification(tokenizer)
    trainer = Trainer(model, args, collator, train, test, tokenizer, compute_metrics=accuracy)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    print(f"accuracy on the tokens of {len(test)} test sentences: {trainer.evaluate()['eval_accuracy']:.1%}")


if __name__ == "__main__":
    main()
