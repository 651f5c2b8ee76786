"""A small GPT in PyTorch. Its twins for other frameworks stand beside it: the same class, the same inputs."""

import torch
from torch import nn
from torch.nn import functional as F


class GPT(nn.Module):
    """A decoder with rotary positions.

    `attention_mask`, of shape (batch, 1, query, key), is True where a token may attend to another. Without it a token
    attends to itself and to all before it.
    """

    shifts_labels = True  # labels are compared with the position before

    def __init__(self, vocabulary: int, width: int = 128, layers: int = 4, heads: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head_width = width // heads
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        for block in self.blocks:
            nn.init.zeros_(block.attention_out.weight)
            nn.init.zeros_(block.down.weight)

    def forward(self, input_ids, position_ids=None, attention_mask=None, labels=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        rotation = angles(position_ids, self.head_width)
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden, rotation, attention_mask)
        logits = self.head(self.norm(hidden))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


class Block(nn.Module):
    """Attention, then a gated linear unit; each adds to what comes in."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, hidden, rotation, mask):
        hidden = hidden + self.attend(self.attention_norm(hidden), rotation, mask)
        normed = self.mlp_norm(hidden)
        return hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def attend(self, hidden, rotation, mask):
        batch, length, width = hidden.shape
        split = self.attention_in(hidden).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = rotate(split[0], rotation), rotate(split[1], rotation), split[2]
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.attention_out(seen.transpose(1, 2).reshape(batch, length, width))


def angles(position_ids, width: int):
    """Cosine and sine of every position and frequency, of shape (batch, 1, length, width / 2)."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, device=position_ids.device) / width)
    turned = position_ids[:, None, :, None] * frequencies
    return turned.cos(), turned.sin()


def rotate(vectors, rotation):
    cosine, sine = rotation
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def token_losses(logits, labels):
    """The loss of every token, in nats; 0 where there is no label. Kept for the metrics instead of the logits."""
    return F.cross_entropy(logits[:, :-1].float().transpose(1, 2), labels[:, 1:], reduction="none")


@torch.no_grad()
def next_token_logits(model, ids):
    """What the model says about the token after these, as a NumPy array."""
    model.eval()
    return model(torch.tensor([ids], device=model.head.weight.device))["logits"][0, -1].float().cpu().numpy()
