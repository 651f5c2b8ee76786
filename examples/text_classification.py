"""Text classification with a model of transformers.

pip install 'oneloop[torch,transformers]'
python examples/text_classification.py                              # a tiny BERT from scratch, no download
python examples/text_classification.py --model bert-base-uncased    # or a pretrained one
"""

import random
from dataclasses import dataclass

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, PreTrainedTokenizerFast

from oneloop import ArgumentParser, Trainer, TrainingArguments

SETS = (800, 1), (200, 2)  # number of sentences and seed: training, test
GOOD = "great wonderful excellent lovely brilliant superb".split()
BAD = "terrible awful boring poor dreadful dull".split()
THINGS = "film book meal hotel song game phone museum".split()
PATTERNS = ["the {thing} was {word}", "a {word} {thing} , really", "this {thing} seems {word}", "what a {word} {thing}"]


@dataclass
class Options:
    model: str = ""  # name or folder of a pretrained model; empty: a tiny one from scratch


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "outputs/text"
    num_train_epochs: float = 6
    per_device_train_batch_size: int = 16
    learning_rate: float = 1e-3
    logging_steps: float = 10
    eval_strategy: str = "epoch"


def reviews(count, seed):
    """Sentences with a word for or against, some of them negated."""
    choose = random.Random(seed).choice
    for number in range(count):
        is_good, is_negated = number % 2 == 0, number % 5 == 0
        text = choose(PATTERNS).format(thing=choose(THINGS), word=choose(GOOD if is_good else BAD))
        yield ("not true : " if is_negated else "") + text, int(is_good != is_negated)


def tiny_tokenizer():
    words = sorted({word for text, _ in reviews(1000, seed=0) for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def load(name):
    if name:
        return AutoTokenizer.from_pretrained(name), AutoModelForSequenceClassification.from_pretrained(
            name, num_labels=2
        )
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return tokenizer, AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=len(tokenizer), **sizes))


def accuracy(output):
    return {"accuracy": (output.predictions.argmax(-1) == output.label_ids).mean()}


def main():
    options, args = ArgumentParser((Options, Arguments)).parse_args_into_dataclasses()
    tokenizer, model = load(options.model)
    train, test = ([{**tokenizer(text), "labels": label} for text, label in reviews(*given)] for given in SETS)
    trainer = Trainer(model, args, None, train, test, tokenizer, compute_metrics=accuracy)  # pads with the tokenizer
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    print(f"accuracy on {len(test)} test sentences: {trainer.evaluate()['eval_accuracy']:.1%}")
    trainer.save_model()  # AutoModelForSequenceClassification.from_pretrained(args.output_dir) opens it


if __name__ == "__main__":
    main()
