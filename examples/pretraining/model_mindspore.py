"""The GPT of model_torch.py in MindSpore."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import Normal, initializer


class GPT(nn.Cell):
    """A decoder with rotary positions.

    `attention_mask`, of shape (batch, 1, query, key), is True where a token may attend to another. Without it a token
    attends to itself and to all before it.
    """

    shifts_labels = True  # labels are compared with the position before

    def __init__(self, vocabulary: int, width: int = 128, layers: int = 4, heads: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, embedding_table=Normal(0.02))
        self.blocks = nn.CellList([Block(width, heads) for _ in range(layers)])
        self.norm = RMSNorm(width)
        self.head = linear(width, vocabulary)
        half = np.arange(0, width // heads, 2, dtype=np.float32) / (width // heads)
        self.frequencies = ms.Tensor(10_000.0**-half)

    def construct(self, input_ids, position_ids=None, attention_mask=None, labels=None):
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = ops.arange(length).expand_dims(0)
        if attention_mask is None:
            attention_mask = ops.ones((length, length), ms.float32).tril().astype(ms.bool_)
        turned = position_ids.astype(ms.float32).expand_dims(1).expand_dims(3) * self.frequencies
        rotation = ops.cos(turned), ops.sin(turned)
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden, rotation, attention_mask)
        logits = self.head(self.norm(hidden))
        if labels is None:
            return {"logits": logits}
        wanted = labels[:, 1:].reshape(-1).astype(ms.int32)
        return {"loss": ops.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), wanted), "logits": logits}


class Block(nn.Cell):
    """Attention, then a gated linear unit; each adds to what comes in."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.attention_norm, self.mlp_norm = RMSNorm(width), RMSNorm(width)
        self.attention_in = linear(width, 3 * width)
        self.attention_out = linear(width, width, std=0.0)
        self.gate, self.up = linear(width, 3 * width), linear(width, 3 * width)
        self.down = linear(3 * width, width, std=0.0)

    def construct(self, hidden, rotation, mask):
        hidden = hidden + self.attend(self.attention_norm(hidden), rotation, mask)
        normed = self.mlp_norm(hidden)
        return hidden + self.down(ops.silu(self.gate(normed)) * self.up(normed))

    def attend(self, hidden, rotation, mask):
        batch, length, width = hidden.shape
        parts = self.attention_in(hidden).reshape(batch, length, 3, self.heads, width // self.heads)
        parts = parts.transpose(2, 0, 3, 1, 4)
        query, key, value = rotate(parts[0], rotation), rotate(parts[1], rotation), parts[2]
        scores = ops.matmul(query, key.swapaxes(2, 3)) * self.scale
        scores = ops.select(ops.broadcast_to(mask, scores.shape), scores, ops.full_like(scores, -1e9))
        seen = ops.matmul(ops.softmax(scores, axis=-1), value)
        return self.attention_out(seen.transpose(0, 2, 1, 3).reshape(batch, length, width))


class RMSNorm(nn.Cell):
    def __init__(self, width: int):
        super().__init__()
        self.weight = ms.Parameter(initializer("ones", (width,)), name="weight")

    def construct(self, hidden):
        return hidden * ops.rsqrt(hidden.square().mean(-1, keep_dims=True) + 1e-6) * self.weight


def linear(inputs: int, outputs: int, std: float = 0.02):
    return nn.Dense(inputs, outputs, weight_init=Normal(std) if std else "zeros", has_bias=False)


def rotate(vectors, rotation):
    cosine, sine = rotation
    half = vectors.shape[-1] // 2
    first, second = vectors[..., :half], vectors[..., half:]
    return ops.cat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def token_losses(logits, labels):
    """The loss of every token, in nats; 0 where there is no label. Kept for the metrics instead of the logits."""
    wanted = labels[:, 1:].astype(ms.int32)
    return ops.cross_entropy(logits[:, :-1].astype(ms.float32).swapaxes(1, 2), wanted, reduction="none")


def next_token_logits(model, ids):
    """What the model says about the token after these, as a NumPy array."""
    model.set_train(False)
    return model(ms.Tensor([ids], ms.int32))["logits"][0, -1].astype(ms.float32).asnumpy()
