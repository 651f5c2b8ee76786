"""The small transformer of torch_model.py as a model of transformers, whose sequences can be divided over processes.

Its layers have the same names behind "encoder.".
"""

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.divergence import torch_model
from tests.divergence.torch_model import (  # noqa: F401
    CLASSES,
    LONGEST,
    WIDTH,
    WORDS,
    assign,
    linear,
    replace_forward,
    set_dropout,
    set_epsilon,
    set_momentum,
    stop,
    tanh_gelu,
    transposed,
)

PREFIX = "encoder."
HEADS = 2


class Config(PretrainedConfig):
    model_type = "small"
    hidden_size, vocab_size, num_attention_heads = WIDTH, WORDS, HEADS


class Attention(torch_model.Attention):
    is_causal, num_key_value_groups = False, 1

    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, x, mask):
        heads = [each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)]
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        return self.out(attend(self, *heads, mask, scaling=self.scale)[0].flatten(2))


class Block(torch_model.Block):
    def __init__(self, config):
        super().__init__()
        self.attention = Attention(config)

    def forward(self, x, mask):
        x = x * self.residual + self.drop(self.attention(self.norm1(x), mask))
        return x * self.residual + self.mlp(self.norm2(x))


class Pretrained(PreTrainedModel):
    config_class, base_model_prefix, _supports_sdpa = Config, "encoder", True

    def _init_weights(self, module):
        pass


class Encoder(Pretrained):
    def __init__(self, config):
        super().__init__(config)
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block(config) for _ in range(2)), nn.LayerNorm(WIDTH)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, mask)
        return (self.norm(x),)


class Model(Pretrained):
    loss_factor = 1.0
    with_stats = False

    def __init__(self):
        super().__init__(Config(attn_implementation="sdpa"))
        self.encoder, self.head = Encoder(self.config), nn.Linear(WIDTH, CLASSES)
        self.post_init()

    def forward(self, input_ids, labels):
        logits = self.head(self.encoder(input_ids)[0].mean(1))
        return {"loss": functional.cross_entropy(logits, labels) * self.loss_factor, "logits": logits}


def named_layers(model):
    return {name.removeprefix(PREFIX): layer for name, layer in model.named_modules()}
