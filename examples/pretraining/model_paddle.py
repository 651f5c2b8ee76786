"""The GPT of model_torch.py in PaddlePaddle."""

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F


class GPT(nn.Layer):
    """A decoder with rotary positions.

    `attention_mask`, of shape (batch, 1, query, key), is True where a token may attend to another. Without it a token
    attends to itself and to all before it.
    """

    shifts_labels = True  # labels are compared with the position before

    def __init__(self, vocabulary: int, width: int = 128, layers: int = 4, heads: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, weight_attr=nn.initializer.Normal(std=0.02))
        self.blocks = nn.LayerList([Block(width, heads) for _ in range(layers)])
        self.norm = RMSNorm(width)
        self.head = linear(width, vocabulary)
        self.head_width = width // heads

    def forward(self, input_ids, position_ids=None, attention_mask=None, labels=None):
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = paddle.arange(length).unsqueeze(0)
        if attention_mask is None:
            attention_mask = paddle.ones([length, length], dtype="bool").tril()
        rotation = angles(position_ids, self.head_width)
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden, rotation, attention_mask)
        logits = self.head(self.norm(hidden))
        if labels is None:
            return {"logits": logits}
        # Paddle's own mean would count the ignored labels too.
        loss = token_losses(logits, labels).sum() / (labels[:, 1:] != -100).astype("float32").sum()
        return {"loss": loss, "logits": logits}


class Block(nn.Layer):
    """Attention, then a gated linear unit; each adds to what comes in."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = RMSNorm(width), RMSNorm(width)
        self.attention_in = linear(width, 3 * width)
        self.attention_out = linear(width, width, std=0.0)
        self.gate, self.up = linear(width, 3 * width), linear(width, 3 * width)
        self.down = linear(3 * width, width, std=0.0)

    def forward(self, hidden, rotation, mask):
        hidden = hidden + self.attend(self.attention_norm(hidden), rotation, mask)
        normed = self.mlp_norm(hidden)
        return hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def attend(self, hidden, rotation, mask):
        batch, length, width = hidden.shape
        parts = self.attention_in(hidden).reshape([batch, length, 3, self.heads, width // self.heads])
        query, key, value = parts.transpose([2, 0, 3, 1, 4]).unbind(0)
        query, key = rotate(query, rotation), rotate(key, rotation)
        scores = paddle.matmul(query, key, transpose_y=True) * (width // self.heads) ** -0.5
        scores = paddle.where(mask, scores, paddle.full([], -1e9, scores.dtype))
        seen = paddle.matmul(F.softmax(scores, axis=-1), value)
        return self.attention_out(seen.transpose([0, 2, 1, 3]).reshape([batch, length, width]))


class RMSNorm(nn.Layer):
    def __init__(self, width: int):
        super().__init__()
        self.weight = self.create_parameter([width], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, hidden):
        return hidden * paddle.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def linear(inputs: int, outputs: int, std: float = 0.02):
    return nn.Linear(inputs, outputs, weight_attr=nn.initializer.Normal(std=std), bias_attr=False)


def angles(position_ids, width: int):
    """Cosine and sine of every position and frequency, of shape (batch, 1, length, width / 2)."""
    frequencies = paddle.to_tensor(10_000.0 ** (-np.arange(0, width, 2, dtype=np.float32) / width))
    turned = position_ids.astype("float32").unsqueeze([1, 3]) * frequencies
    return turned.cos(), turned.sin()


def rotate(vectors, rotation):
    cosine, sine = rotation
    first, second = vectors.chunk(2, axis=-1)
    return paddle.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def token_losses(logits, labels):
    """The loss of every token, in nats; 0 where there is no label. Kept for the metrics instead of the logits."""
    losses = F.cross_entropy(logits[:, :-1].astype("float32"), labels[:, 1:], ignore_index=-100, reduction="none")
    return losses.squeeze(-1)


@paddle.no_grad()
def next_token_logits(model, ids):
    """What the model says about the token after these, as a NumPy array."""
    model.eval()
    return model(paddle.to_tensor([ids]))["logits"][0, -1].astype("float32").numpy()
