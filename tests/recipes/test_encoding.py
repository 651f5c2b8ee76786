"""What the model gets: tokens and labels of each task."""

import pytest

from oneloop.recipes import example, training
from oneloop.recipes.tasks import classification, language, regression, tokens
from tests.ecosystem import tiny, tiny_text


class Output:
    def __init__(self, predictions, label_ids):
        import numpy as np

        self.predictions, self.label_ids = np.array(predictions, dtype=float), np.array(label_ids)


def test_only_the_completion_is_learned():
    words = tiny.tokenizer()
    (sample,) = language.encode_answers([{"prompt": "the cat", "completion": "sat on"}], words, 64)
    assert words.convert_ids_to_tokens(sample["input_ids"]) == ["the", "cat", "sat", "on", "<eos>"]
    assert sample["labels"] == [-100, -100, *sample["input_ids"][2:]]


def test_a_completion_beyond_max_length_is_left_out():
    rows = [{"prompt": "the cat sat", "completion": "on"}, {"prompt": "the", "completion": "cat sat on"}]
    (sample,) = language.encode_answers(rows, tiny.tokenizer(), 3)
    assert len(sample["input_ids"]) == 3 and sample["labels"][0] == -100 and -100 not in sample["labels"][1:]


def test_only_the_assistant_is_learned_in_a_chat():
    words = tiny.tokenizer()
    chat = [("user", "hello"), ("assistant", "yes"), ("user", "who"), ("assistant", "no")]
    row = {"messages": [{"role": role, "content": text} for role, text in chat]}
    (sample,) = language.encode_chats([row], words, 64)
    learned = [token for token, label in zip(sample["input_ids"], sample["labels"]) if label != -100]
    assert words.convert_ids_to_tokens(learned) == ["yes", "<eos>", "no", "<eos>"]
    assert all(label in (-100, token) for token, label in zip(sample["input_ids"], sample["labels"]))
    assert language.encode_chats([row], words, 3) == []  # no answer within three tokens
    (cut,) = language.encode_chats([row], words, 5)
    assert cut == {"input_ids": sample["input_ids"][:5], "labels": sample["labels"][:5]}
    assert words.decode(language.prompt_of_chat(row, words)).split() == (
        "<|user|> hello <|assistant|> yes <eos> <|user|> who <|assistant|>".split()
    )


def test_the_example_of_a_long_row_is_short():
    words = tiny.tokenizer()
    ids = words("the cat")["input_ids"] * 20
    shown = example.lines({"input_ids": ids, "labels": [-100] * 20 + ids[20:]}, words, None)
    assert len(shown) == 1 + 24 + 1 and shown[-1].strip() == "... and 16 more tokens"
    assert shown[1].endswith("-100 (ignored)") and shown[24].endswith(f"{ids[23]} (cat)")


def test_what_comes_from_files_moves_no_cursor(capsys):
    training.show("labels  \x1b[2Jgood, hf_" + "a1B2c3D4" * 4)
    said = capsys.readouterr().out
    assert "\\x1b[2Jgood" in said and "\x1b" not in said and "a1B2c3D4" not in said


def test_a_template_that_rewrites_earlier_messages_is_refused():
    words = tiny.tokenizer()
    words.chat_template = (
        "{{ ['a', 'one', 'two'][messages|length] }} {% for m in messages %}{{ m['content'] }} {% endfor %}"
    )
    row = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]}
    with pytest.raises(ValueError, match="chat template changes earlier messages"):
        language.encode_chats([row], words, 64)


def test_text_is_cut_into_pieces_that_predict_something():
    words = tiny.tokenizer()
    rows = [{"text": "the cat sat on"}, {"text": "the cat <eos>"}]  # five tokens with the end, and three
    pieces = language.encode_text(rows, words, 2)
    assert [len(piece["input_ids"]) for piece in pieces] == [2, 2, 2]  # the single tokens at the ends are dropped
    whole = language.encode_text(rows, words, None)
    assert [words.convert_ids_to_tokens(piece["input_ids"])[-1] for piece in whole] == ["<eos>", "<eos>"]
    assert [len(piece["input_ids"]) for piece in whole] == [5, 3]


def test_labels_for_models_that_do_not_shift():
    (sample,) = language.shift_labels([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}])
    assert sample == {"input_ids": [5, 6, 7], "labels": [6, 7, -100]}


def test_a_word_of_several_tokens_has_one_tag():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = {word: i for i, word in enumerate(["[UNK]", "ca", "##ts", "and", "dog"])}
    raw = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]")
    row = {"words": ["cats", "and", "dog"], "tags": ["B-A", "O", "B-A"]}
    (sample,) = tokens.encode([row], words, ["B-A", "O"], 16)
    assert sample["input_ids"] == [1, 2, 3, 4] and sample["labels"] == [0, -100, 1, 0]


def test_pairs_are_two_segments():
    words = tiny_text.tokenizer()
    rows = [{"text": "red cat", "text_pair": "blue dog", "label": "b"}]
    (sample,) = classification.encode_label(rows, words, ["a", "b"], 16)
    assert words.decode(sample["input_ids"]) == "[CLS] red cat [SEP] blue dog [SEP]" and sample["labels"] == 1


# -- metrics, by hand


def test_metrics_of_labels():
    output = Output([[2, 1, 0], [0, 1, 0], [3, 0, 0], [0, 2, 0]], [0, 1, 1, 1])
    metrics = classification.label_metrics(output, ["a", "b", "c"])
    assert metrics["accuracy"] == 0.75
    assert metrics["f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)  # c does not occur
    several = Output([[1, -1], [-1, -1], [1, 1]], [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    assert classification.labels_metrics(several) == {"f1": pytest.approx(4 / 5), "exact_match": pytest.approx(2 / 3)}


def test_metrics_of_numbers():
    metrics = regression.compute_metrics(Output([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0]))
    assert metrics["rmse"] == pytest.approx((4 / 3) ** 0.5) and metrics["mae"] == pytest.approx(2 / 3)
    assert metrics["pearson"] == pytest.approx(0.9607689)
    assert regression.compute_metrics(Output([[1.0], [1.0]], [1.0, 2.0]))["pearson"] == 0.0


def test_metrics_of_entities():
    labels = ["O", "B-A", "I-A", "B-B"]

    def one_hot(tags):
        return [[float(tag == each) for each in range(4)] for tag in tags]

    expected = [[1, 2, 0, 3, -100], [1, 1, 0, -100, -100]]  # A A, B; A, A
    predicted = [[1, 2, 0, 1, 3], [1, 2, 0, 3, 3]]  # A A, A; A A
    metrics = tokens.compute_metrics(Output([one_hot(row) for row in predicted], expected), labels)
    assert metrics["accuracy"] == pytest.approx(5 / 7)
    assert metrics["f1"] == pytest.approx(2 * 1 / (3 + 4))
    assert "f1" not in tokens.compute_metrics(Output([one_hot([0])], [[0]]), ["NOUN", "VERB", "X", "Y"])
