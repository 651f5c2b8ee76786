"""A tiny image-text model with its processor, made in place: nothing is downloaded, and torchvision is not needed."""

from typing import Any

from tests.ecosystem import tiny

IMAGE = "<image>"
SIDE, PATCH = 16, 8

CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|> "
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} "
    "{% endif %}{% endfor %}{% if message['role'] == 'assistant' %}<eos> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def _tokenizer() -> Any:
    made = tiny.tokenizer()
    made.add_special_tokens({"additional_special_tokens": [IMAGE]})
    return made


def processor() -> Any:
    """Llava's: four patches of an image are four tokens."""
    from transformers import CLIPImageProcessorPil, LlavaProcessor

    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessorPil(size=size, crop_size=size)
    return LlavaProcessor(
        images, _tokenizer(), patch_size=PATCH, vision_feature_select_strategy="default", chat_template=CHAT,
        num_additional_image_tokens=1,
    )  # fmt: skip


def llava(seed: int = 0) -> Any:
    """Llava of two layers, with a CLIP of one."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    words = _tokenizer()
    text = LlamaConfig(**{**tiny._options(), "vocab_size": len(words)})
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
        patch_size=PATCH, projection_dim=16,
    )  # fmt: skip
    image_token = words.convert_tokens_to_ids(IMAGE)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=image_token, pad_token_id=0)
    torch.manual_seed(seed)
    return LlavaForConditionalGeneration(config)


def image(i: int) -> Any:
    """A picture whose colours depend on i alone."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.RandomState(i).randint(0, 255, (SIDE, SIDE, 3)).astype(np.uint8))


def _message(role: str, words: str, shows: bool = False) -> dict[str, Any]:
    parts = [{"type": "text", "text": words}]
    return {"role": role, "content": [{"type": "image", "text": ""}, *parts] if shows else parts}


def messages(n: int) -> Any:
    from datasets import Dataset

    return Dataset.from_list(
        [
            {
                "images": [image(i)],
                "messages": [
                    _message("user", tiny.sentence(i, 3), shows=True),
                    _message("assistant", tiny.sentence(i + 3, 2 + i % 4)),
                ],
            }
            for i in range(n)
        ]
    )


def preferences(n: int) -> Any:
    from datasets import Dataset

    return Dataset.from_list(
        [
            {
                "images": [image(i)],
                "prompt": [_message("user", tiny.sentence(i, 3), shows=True)],
                "chosen": [_message("assistant", tiny.sentence(i + 2, 2 + i % 3))],
                "rejected": [_message("assistant", tiny.sentence(i + 9, 2 + i % 2))],
            }
            for i in range(n)
        ]
    )


# -- for a plain Trainer: a model, its samples, and a collator


def _labels(ids: Any, i: int) -> Any:
    """The tokens; those of the first ones that vary in number do not count. The first row has all."""
    import torch

    return torch.where(torch.arange(len(ids)) < i % 4, -100, ids)


def _stack(rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    joined = ("pixel_values", "image_grid_thw")  # the patches of all images, one after the other
    together = "image_grid_thw" in rows[0]
    return {
        name: (torch.cat if together and name in joined else torch.stack)([row[name] for row in rows])
        for name in rows[0]
    }


def llava_rows(n: int) -> tuple[Any, list[dict[str, Any]], Any]:
    import torch

    model, rows = llava(), []
    for i in range(n):
        draw = torch.Generator().manual_seed(i)
        ids = torch.randint(3, 40, (12,), generator=draw)
        ids[2:6] = model.config.image_token_index
        image = torch.randn(3, SIDE, SIDE, generator=draw)
        rows.append({"input_ids": ids, "labels": _labels(ids, i), "pixel_values": image})
    return model, rows, _stack


def qwen2_vl_rows(n: int) -> tuple[Any, list[dict[str, Any]], Any]:
    """The image has four patches, which are one token."""
    import torch

    from tests.backends.torch import tiny_transformers

    model, rows = tiny_transformers.build("Qwen2VLForConditionalGeneration"), []
    model.config.image_token_id, model.config.vision_start_token_id = 110, 111
    values = 3 * 2 * model.config.vision_config.patch_size**2
    for i in range(n):
        draw = torch.Generator().manual_seed(i)
        ids = torch.randint(3, 40, (12,), generator=draw)
        ids[2:4] = torch.tensor([111, 110])
        rows.append(
            {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "labels": _labels(ids, i),
                "mm_token_type_ids": (ids == 110).long(),
                "pixel_values": torch.randn(4, values, generator=draw),
                "image_grid_thw": torch.tensor([[1, 2, 2]]),
            }
        )
    return model, rows, _stack


def _text_rows(name: str, n: int) -> tuple[Any, list[dict[str, Any]], Any]:
    import torch

    from tests.backends.torch import tiny_transformers

    model, rows = tiny_transformers.build(name), []
    for i in range(n):
        ids = torch.randint(3, 40, (12,), generator=torch.Generator().manual_seed(i))
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": _labels(ids, i)})
    return model, rows, _stack


def gemma3_rows(n: int) -> tuple[Any, list[dict[str, Any]], Any]:
    return _text_rows("Gemma3ForConditionalGeneration", n)
