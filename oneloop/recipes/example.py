"""The first example as the model sees it."""

from collections.abc import Mapping
from typing import Any

_SHOWN = 24  # tokens


def lines(sample: Mapping[str, Any], tokenizer: Any, labels: list[str] | None) -> list[str]:
    """A table of tokens, with the mask and the labels of each."""
    ids = list(sample["input_ids"])
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    mask = sample.get("attention_mask", [1] * len(ids))
    target = sample.get("labels")
    by_token = isinstance(target, list) and len(target) == len(ids) and all(isinstance(each, int) for each in target)
    width = max(len(token) for token in tokens[:_SHOWN])
    found = [f"  {'token':{width}}  {'id':>7}  mask" + ("  label" if by_token else "")]
    for place in range(min(len(ids), _SHOWN)):
        label = f"  {_named(target[place], labels, tokenizer)}" if by_token and target is not None else ""
        found.append(f"  {tokens[place]:{width}}  {ids[place]:>7}  {mask[place]:>4}{label}")
    if len(ids) > _SHOWN:
        found.append(f"  ... and {len(ids) - _SHOWN} more tokens")
    if target is not None and not by_token:
        found.append(f"  labels: {_whole(target, labels, tokenizer)}")
    return found


def _named(label: int, labels: list[str] | None, tokenizer: Any) -> str:
    if label == -100:
        return "-100 (ignored)"
    return f"{label} ({labels[label] if labels else tokenizer.convert_ids_to_tokens(label)})"


def _whole(target: Any, labels: list[str] | None, tokenizer: Any) -> str:
    if isinstance(target, int) and labels:
        return f"{target} ({labels[target]})"
    if isinstance(target, list) and labels:
        return f"{target} ({', '.join(name for name, value in zip(labels, target) if value) or 'none'})"
    if isinstance(target, list):
        return " ".join(map(str, tokenizer.convert_ids_to_tokens(target[:_SHOWN])))
    return str(target)
