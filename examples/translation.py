"""Translation with generated text: numbers into English words, with an encoder-decoder of transformers.

pip install 'oneloop[torch,transformers]'
python examples/translation.py      # a tiny BART from scratch, no download; about a minute on a CPU
"""

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from oneloop import ArgumentParser, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

ONES = "zero one two three four five six seven eight nine".split()
SIZES = {"layers": 1, "attention_heads": 4, "ffn_dim": 128}
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


@dataclass
class Arguments(Seq2SeqTrainingArguments):
    output_dir: str = "outputs/translation"
    num_train_epochs: float = 30
    per_device_train_batch_size: int = 32
    per_device_eval_batch_size: int = 64
    learning_rate: float = 3e-3
    logging_steps: float = 50
    eval_strategy: str = "steps"
    eval_steps: float = 250
    predict_with_generate: bool = True
    generation_max_length: int = 8
    generation_num_beams: int = 2


def in_words(number):
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    return f"{ONES[hundreds]} hundred {TENS[tens]} {ONES[ones]}"


def make_tokenizer():
    words = ["<pad>", "<s>", "</s>", *"0123456789", "hundred", *ONES, *TENS[2:]]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def main():
    (args,) = ArgumentParser(Arguments).parse_args_into_dataclasses()
    tokenizer = make_tokenizer()
    numbers = [number for number in range(100, 1000) if number % 100 >= 20]
    rows = [tokenizer(" ".join(str(number)), text_target=in_words(number)) for number in numbers]
    train = [row for at, row in enumerate(rows) if at % 7]
    test = [row for at, row in enumerate(rows) if at % 7 == 0]
    sides = ("encoder", "decoder")
    sizes = {f"{side}_{name}": size for side in sides for name, size in SIZES.items()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = BartConfig(vocab_size=len(tokenizer), d_model=64, max_position_embeddings=16, **sizes, **tokens)
    model = BartForConditionalGeneration(config)

    def exact(output):
        labels = np.where(output.label_ids == -100, 0, output.label_ids)
        predicted = np.where(output.predictions == -100, 0, output.predictions)
        pairs = zip(*(tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (predicted, labels)))
        return {"exact": float(np.mean([guess == truth for guess, truth in pairs]))}

    collator = DataCollatorForSeq2Seq(tokenizer, model)
    trainer = Seq2SeqTrainer(model, args, collator, train, test, tokenizer, compute_metrics=exact)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    print(f"numbers that are translated exactly: {trainer.evaluate()['eval_exact']:.1%}")
    print(
        "472:", tokenizer.decode(trainer.predict([rows[numbers.index(472)]]).predictions[0], skip_special_tokens=True)
    )


if __name__ == "__main__":
    main()
