"""What the guides download, made in place: texts, a tokenizer, small models, metrics and a logging service's callback.

Names and parameters are those of the libraries that the guides import them from, so that a script changes in nothing
but its import lines. The texts can be told apart by single words, and the models hold these words apart from the
start, as a pretrained one would: the small learning rates of the guides are enough for them. Packages that not every
script needs are imported where they are used.
"""

import random
from types import SimpleNamespace

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification

# -- texts ------------------------------------------------------------------------------------------------------------

ENGLISH = {
    "frame": "the {} was {} , and the {} {} .",
    "things": "film story cast ending music dialogue camera scene".split(),
    1: "wonderful charming brilliant moving lovely superb".split(),
    0: "boring dreadful clumsy tedious awful dull".split(),
}
CHINESE = {
    "frame": "这次的{}很{}，{}也{}。",
    "things": "酒店 房间 服务 早餐 位置 前台".split(),
    1: list("好棒佳美赞靓"),
    0: list("差糟烂脏吵破"),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _texts(language, count, seed):
    """Half positive, half negative, in a fixed order that mixes them."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        label = i % 2
        (first, second), (one, other) = draw.sample(language["things"], 2), draw.sample(language[label], 2)
        rows.append({"text": language["frame"].format(first, one, second, other), "label": label})
    return rows


def _split(count, seed):
    import datasets

    rows = _texts(ENGLISH, count, seed)
    return datasets.Dataset.from_dict({key: [row[key] for row in rows] for key in ("text", "label")})


class MapDataset(torch.utils.data.Dataset):
    """A list of dicts, as PaddleNLP's data sets are: `map` goes sample by sample, `label_list` names the labels."""

    def __init__(self, data, label_list):
        self.data, self.label_list = data, label_list

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

    def map(self, function):
        return MapDataset([function(row) for row in self.data], self.label_list)


def load_dataset(path, name=None, splits=None):
    if path == "chnsenticorp":
        (split,) = splits
        return MapDataset(_texts(CHINESE, 64, {"train": 0, "dev": 1}[split]), ["0", "1"])
    import datasets

    if path == "imdb":
        return datasets.DatasetDict(train=_split(1200, 0), test=_split(240, 1))
    if path == "echo":  # documents that say one word again and again, and what they say
        draw = random.Random(4)
        said = [(draw.choice(ENGLISH["things"]), draw.randint(1, 9)) for _ in range(96)]
        rows = {"document": [" ".join([word] * times) for word, times in said], "summary": [word for word, _ in said]}
        return datasets.Dataset.from_dict(rows).train_test_split(32, shuffle=False)
    assert (path, name) == ("glue", "mrpc"), f"there is no stand-in for the data set {path}"
    return datasets.DatasetDict(train=_split(1400, 2), validation=_split(64, 3))


# -- tokenizer --------------------------------------------------------------------------------------------------------

LONGEST = 16


def _words():
    split = pre_tokenizers.BertPreTokenizer()
    clean = normalizers.BertNormalizer()
    found = {}
    for language in (ENGLISH, CHINESE):
        for text in (language["frame"].replace("{}", " "), *language["things"], *language[1], *language[0]):
            found.update(dict.fromkeys(word for word, _ in split.pre_tokenize_str(clean.normalize_str(text))))
    return [*SPECIAL, *found]


class ShortTokenizer(transformers.PreTrainedTokenizerFast):
    """Takes both libraries' names for the length. Texts are short: a longer length is cut to what the models hold."""

    def __call__(self, *texts, max_length=None, max_seq_len=None, pad_to_max_seq_len=False, **options):
        wanted = max_length or max_seq_len
        if wanted is not None:
            options |= {"max_length": min(wanted, self.model_max_length), "truncation": True}
        if pad_to_max_seq_len:
            options["padding"] = "max_length"
        return super().__call__(*texts, **options)


WORDS = _words()


class AutoTokenizer:
    @staticmethod
    def from_pretrained(name):
        core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer()
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))],
        )
        return ShortTokenizer(
            tokenizer_object=core,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            model_max_length=LONGEST,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        )


# -- models -----------------------------------------------------------------------------------------------------------

HIDDEN = 64


class LogitsOnly(BertForSequenceClassification):
    """Returns logits and knows no labels, as PaddleNLP's models do: the loss is the criterion's."""

    def forward(self, input_ids, token_type_ids=None, attention_mask=None):
        return super().forward(input_ids, token_type_ids=token_type_ids, attention_mask=attention_mask).logits


def _pretrained(cls, config):
    """The same weights at every call. The classifier is zero, so the model starts with no opinion at all."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = cls(config)
        opinion = 3 * config.initializer_range * torch.randn(config.hidden_size)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        for language in (ENGLISH, CHINESE):
            table[[WORDS.index(word) for word in language[1]]] += opinion
            table[[WORDS.index(word) for word in language[0]]] -= opinion
        model.classifier.weight.zero_()
    return model


class AutoModelForSequenceClassification:
    @staticmethod
    def from_pretrained(name, num_labels=2, num_classes=None, ms_dtype=None):
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=HIDDEN,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=2 * HIDDEN,
            max_position_embeddings=LONGEST,
            initializer_range=HIDDEN**-0.5,
            num_labels=num_classes or num_labels,
        )
        model = _pretrained(LogitsOnly if name.startswith("ernie") else BertForSequenceClassification, config)
        return model if ms_dtype is None else model.to(ms_dtype)


class AutoModelForSeq2SeqLM:
    @staticmethod
    def from_pretrained(name):
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(
            vocab_size=len(WORDS),
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=1,
            num_heads=2,
            dropout_rate=0.0,
            decoder_start_token_id=WORDS.index("[PAD]"),
            pad_token_id=WORDS.index("[PAD]"),
            eos_token_id=WORDS.index("[SEP]"),
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return T5ForConditionalGeneration(config)


# -- metrics ----------------------------------------------------------------------------------------------------------


def _load_metric(path, config_name=None):
    """A metric of the evaluate package whose figures come from scikit-learn."""
    import datasets
    import evaluate as package
    from sklearn.metrics import accuracy_score, f1_score

    assert (path, config_name) in (("accuracy", None), ("glue", "mrpc")), f"there is no stand-in for the metric {path}"

    class Scores(package.Metric):
        def _info(self):
            number = datasets.Value("int64")
            features = datasets.Features({"predictions": number, "references": number})
            return package.MetricInfo(description="", citation="", inputs_description="", features=features)

        def _compute(self, predictions, references):
            scores = {"accuracy": accuracy_score(references, predictions)}
            return scores | ({"f1": f1_score(references, predictions)} if path == "glue" else {})

    return Scores(config_name=config_name, keep_in_memory=True)


evaluate = SimpleNamespace(load=_load_metric)


# -- a logging service ------------------------------------------------------------------------------------------------


class SwanLabCallback(transformers.TrainerCallback):
    """The events, parameters and attributes of the service's own integration; what it would send stays in `sent`."""

    def __init__(self, project=None, experiment_name=None, **options):
        self.options = {"project": project, "experiment_name": experiment_name, **options}
        self.config, self.sent, self.is_set_up = {}, [], False

    def setup(self, args, state, model=None):
        if self.is_set_up or not state.is_world_process_zero:
            return
        self.is_set_up = True
        self.config = {"FRAMEWORK": "transformers", **model.config.to_dict(), **args.to_dict()}
        self.config["model_num_parameters"] = model.num_parameters()

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.setup(args, state, model)

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        self.setup(args, state, model)
        for key, value in (logs or {}).items():
            prefix = "eval" if key.startswith("eval_") else "train"
            self.sent.append((f"{prefix}/{key.removeprefix('eval_')}", value, state.global_step))

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.sent.append(("evaluated", dict(metrics), state.global_step))

    def on_save(self, args, state, control, **kwargs):
        self.config["transformers_last_checkpoint"] = f"{args.output_dir}/checkpoint-{state.global_step}"
