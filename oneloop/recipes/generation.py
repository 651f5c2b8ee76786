"""Texts that a model writes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import loading
from .tasks import Form


def write_texts(
    trainer: Any, form: Form, rows: Sequence[Mapping[str, Any]], max_new_tokens: int, batch_size: int = 8
) -> Iterator[str]:
    """The most probable text of the model for each row, token by token."""
    assert form.prompt is not None
    tokenizer, model = trainer.processing_class, trainer.model
    backend = loading.of_model(model)
    prompts = [form.prompt(row, tokenizer) for row in rows]
    is_decoder_only = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    training = backend.models.eval_mode(model)
    try:
        for start in range(0, len(prompts), batch_size):
            batch = _padded(prompts[start : start + batch_size], tokenizer.pad_token_id, is_decoder_only)
            inputs = trainer._prepare_inputs({name: backend.tensors.from_numpy(each) for name, each in batch.items()})
            with backend.engine.no_gradients():
                output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
            ids = backend.tensors.to_numpy(output[0] if isinstance(output, tuple) else output)
            width = batch["input_ids"].shape[1]
            # transformers returns the prompt too; Paddle's libraries return what follows it.
            if is_decoder_only and np.array_equal(ids[:, :width], batch["input_ids"]):
                ids = ids[:, width:]
            for row in ids:
                yield tokenizer.decode([int(each) for each in row], skip_special_tokens=True).strip()
    finally:
        backend.models.restore_mode(training)


def _padded(prompts: Sequence[Sequence[int]], pad: int, left: bool) -> dict[str, np.ndarray]:
    """Prompts of a batch. Those of decoders are padded at the left, so that all continue at the same place."""
    width = max(map(len, prompts))
    ids = np.full((len(prompts), width), pad, np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(prompts):
        place = slice(width - len(tokens), width) if left else slice(0, len(tokens))
        ids[row, place], mask[row, place] = tokens, 1
    return {"input_ids": ids, "attention_mask": mask}
