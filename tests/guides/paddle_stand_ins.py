"""What PaddleNLP's guide downloads, made in place for Paddle: see stand_ins, whose texts and tokenizer these are."""

import paddle
from paddle import nn
from stand_ins import CHINESE, HIDDEN, LONGEST, WORDS, AutoTokenizer, _texts
from transformers import BertConfig

__all__ = ["AutoModelForSequenceClassification", "AutoTokenizer", "load_dataset"]


class MapDataset(paddle.io.Dataset):
    """A list of dicts, as PaddleNLP's data sets are: `map` goes sample by sample, `label_list` names the labels."""

    def __init__(self, data, label_list):
        super().__init__()
        self.data, self.label_list = data, label_list

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

    def map(self, function):
        return MapDataset([function(row) for row in self.data], self.label_list)


def load_dataset(path, splits):
    assert path == "chnsenticorp", f"there is no stand-in for the data set {path}"
    (split,) = splits
    return MapDataset(_texts(CHINESE, 64, {"train": 0, "dev": 1}[split]), ["0", "1"])


class Classifier(nn.Layer):
    """Words, positions and one layer of attention. Returns logits and knows no labels: the loss is the criterion's."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        width = config.hidden_size
        spread = paddle.ParamAttr(initializer=nn.initializer.Normal(std=config.initializer_range))
        self.words = nn.Embedding(config.vocab_size, width, weight_attr=spread)
        self.places = nn.Embedding(config.max_position_embeddings, width, weight_attr=spread)
        self.norm = nn.LayerNorm(width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1)
        self.classifier = nn.Linear(width, config.num_labels, weight_attr=nn.initializer.Constant(0.0))

    def forward(self, input_ids, token_type_ids=None, attention_mask=None):
        known = (input_ids != 0) if attention_mask is None else attention_mask.astype("bool")
        states = self.norm(self.words(input_ids) + self.places(paddle.arange(input_ids.shape[1])))
        mask = (known.astype("float32") - 1.0).unsqueeze([1, 2]) * 1e9
        states = self.layer(states, mask)
        weight = known.astype("float32").unsqueeze(-1)
        return self.classifier((states * weight).sum(1) / weight.sum(1))


class AutoModelForSequenceClassification:
    @staticmethod
    def from_pretrained(name, num_classes=2):
        """The same weights at every call; words of praise and of blame lie apart, as in a pretrained model."""
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=HIDDEN,
            max_position_embeddings=LONGEST,
            initializer_range=HIDDEN**-0.5,
            num_labels=num_classes,
        )
        before = paddle.get_rng_state()
        paddle.seed(0)
        model = Classifier(config)
        opinion = 3 * config.initializer_range * paddle.randn([HIDDEN])
        paddle.set_rng_state(before)
        table = model.words.weight.numpy()
        for sign, label in ((1, 1), (-1, 0)):
            table[[WORDS.index(word) for word in CHINESE[label]]] += sign * opinion.numpy()
        model.words.weight.set_value(table)
        return model
