"""Tiny models of any class of transformers, from its default configuration with smaller numbers."""

from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

TOKENS = 8
LARGEST = 40_000_000  # parameters, of a model that is still called tiny

MAPPINGS = (
    "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MULTIMODAL_LM", "MASKED_LM",
    "TOKEN_CLASSIFICATION",
)  # fmt: skip

_NAMES = {
    16: (
        "hidden_size d_model n_embd embed_dim dim word_embed_proj_dim encoder_embed_dim decoder_embed_dim emb_dim "
        "embedding_size projection_dim text_hidden_size out_hidden_size vision_hidden_size decoder_hidden_size "
        "encoder_hidden_size proj_dim lm_hidden_size hidden_dim text_embed_dim attention_hidden_size output_dim "
        "input_dim lru_width backbone_hidden_size d_embed dim_model encoder_dim output_hidden_size model_dim "
        "moe_latent_size image_size img_size index_topk sliding_window"
    ),
    32: (
        "intermediate_size ffn_dim d_ff encoder_ffn_dim decoder_ffn_dim n_inner moe_intermediate_size "
        "shared_expert_intermediate_size shared_intermediate_size ffn_hidden_size expert_ffn_hidden_size mlp_dim "
        "encoder_intermediate_size decoder_intermediate_size intermediate_size_mlp dim_ff encoder_ffn_size "
        "moe_shared_expert_intermediate_size vision_intermediate_size dense_intermediate_size d_inner"
    ),
    2: (
        "num_hidden_layers n_layer num_layers encoder_layers decoder_layers n_layers num_encoder_layers "
        "num_decoder_layers depth vision_layers num_blocks encoder_num_hidden_layers decoder_num_hidden_layers "
        "num_global_layers num_hidden_groups num_experts_per_tok moe_topk moe_top_k top_k_experts moe_k "
        "num_experts_per_token"
    ),
    8: (
        "head_dim kv_channels qk_head_dim v_head_dim qk_nope_head_dim attention_head_dim global_head_dim d_head "
        "linear_key_head_dim linear_value_head_dim index_head_dim mamba_d_head mamba_head_dim swa_head_dim d_kv "
        "kv_lora_rank q_lora_rank o_lora_rank lora_rank patch_size hidden_size_per_layer_input time_step_rank"
    ),
    4: (
        "qk_rope_head_dim rotary_dim num_experts n_routed_experts num_local_experts moe_num_experts n_experts "
        "num_moe_experts state_size mamba_d_state num_query_tokens"
    ),
    1: "n_group topk_group n_shared_experts num_shared_experts first_k_dense_replace",
    120: (
        "vocab_size text_vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size encoder_vocab_size "
        "vocab_size_per_layer_input"
    ),
}  # fmt: skip
_HEADS = (
    "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_key_value_heads "
    "num_kv_heads encoder_num_attention_heads decoder_num_attention_heads encoder_num_key_value_heads "
    "decoder_num_key_value_heads num_local_heads attention_heads mamba_n_heads linear_num_key_heads "
    "linear_num_value_heads linear_num_heads swa_num_attention_heads swa_num_key_value_heads "
    "num_global_key_value_heads index_n_heads"
)
_BY_LAYER = ("layer_types", "attention_layers", "mlp_layer_types", "layers_block_type", "block_types")
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

SMALL = {name: size for size, names in _NAMES.items() for name in names.split()}
# Classes differ in what has to fit together, so that several ways are tried.
PLANS = (
    SMALL | dict.fromkeys(_HEADS.split(), 2),
    SMALL | dict.fromkeys(_HEADS.split(), 4),
    {name: size for name, size in SMALL.items() if "head_dim" not in name} | dict.fromkeys(_HEADS.split(), 2),
    {name: size for name, size in SMALL.items() if "layer" in name or "vocab" in name or name == "depth"},
)


def classes() -> dict[str, str]:
    """The names of classes, with that of the first mapping they are in."""
    found: dict[str, str] = {}
    for mapping in MAPPINGS:
        for names in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES", {}).values():
            for name in names if isinstance(names, (tuple, list)) else (names,):
                found.setdefault(name, mapping)
    return found


def _smaller(values: dict[str, Any], plan: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            value = _smaller(value, plan)
        elif name == "mrope_section":
            value = [2, 1, 1]
        elif name == "per_layer_config":
            value = None
        elif name in plan and type(value) is int and value > 0:
            value = min(value, plan[name])
        elif name in plan and value is None and name in ("head_dim", "num_experts_per_tok"):
            value = plan[name]
        elif name in _BY_LAYER and isinstance(value, list):
            value = value[:1] + value[-1:]
        elif str(name).endswith(("_token_id", "_token_index")) and type(value) is int:
            value = _TOKENS.get(name, min(value, 100 + len(made) % 15))
        made[name] = value
    return made


def config_of(cls: Any, plan: dict[str, int]) -> Any:
    values = _smaller(cls.config_class().to_dict(), plan)
    for name in ("transformers_version", "architectures", "_name_or_path"):
        values.pop(name, None)
    made = cls.config_class.from_dict(values)
    for each in (made, *(inner for inner in vars(made).values() if hasattr(inner, "model_type"))):
        for name, value in _TOKENS.items():
            if getattr(each, name, None) is None:
                setattr(each, name, value)
        if plan.get("head_dim") == 8 and "rope_theta" in (getattr(each, "rope_parameters", None) or {}):
            each.rope_parameters["mrope_section"] = [2, 1, 1]  # the default is that of heads of 128
    return made


def build(name: str, plan: dict[str, int] = PLANS[0]) -> Any:
    """The model, or an error of whatever kind."""
    cls = getattr(transformers, name)
    config = config_of(cls, plan)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in cls(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{name} has {size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = cls(config).eval()
    if hasattr(model, "set_default_language"):
        model.set_default_language("en_XX")
    for weight in model.parameters():
        if not weight.any():
            weight.data.normal_(0, 0.05)
    return model


def inputs_of(model: Any) -> list[dict[str, Any]]:
    """What the model may accept without labels; the first that it does is taken."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (2, TOKENS), generator=draw)
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    config = model.config
    configs = (config, *(getattr(config, name, config) for name in ("encoder_config", "audio_config")))
    names = ("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels")
    mel = next((getattr(each, name) for each in configs for name in names if getattr(each, name, None)), 80)
    frames = 2 * getattr(config, "max_source_positions", 32)
    image = torch.randn(2, 3, 16, 16, generator=draw)
    sound = torch.randn(2, mel, frames, generator=draw)
    return [
        text,
        {"input_ids": ids},
        {"pixel_values": image, **text},
        {"pixel_values": image},
        {"input_features": sound},
        {"input_features": sound.transpose(1, 2)},
        {"input_features": sound.transpose(1, 2), "attention_mask": torch.ones(2, frames, dtype=torch.long)},
        {"input_features": torch.randn(2, mel, 3000, generator=draw)},
        {"input_values": torch.randn(2, 1600, generator=draw)},
        {"flattened_patches": torch.randn(2, 6, 770, generator=draw).abs()},
        {"pixel_values": torch.randn(2, 3, 64, 64, generator=draw)},
    ]


def _loss(model: Any, given: dict[str, Any], position: int, value: int) -> float:
    labels = torch.full((2, TOKENS), -100)
    labels[:, position] = value
    with torch.no_grad():
        return float(model(**given, labels=labels).loss)


def values_of(model: Any) -> tuple[int, int]:
    """Two labels: of two classes, or tokens that are not special."""
    return (0, 1) if type(model).__name__.endswith("ForTokenClassification") else (7, 33)


def read_labels(model: Any, given: dict[str, Any]) -> list[int]:
    """The positions of labels that the loss depends on: those whose value changes it."""
    found = []
    for position in range(TOKENS):
        first, second = (_loss(model, given, position, value) for value in values_of(model))
        if first == first and abs(first - second) > 1e-7:
            found.append(position)
    return found


def built(name: str) -> tuple[Any, dict[str, Any], list[int]]:
    """A model, inputs that it accepts, and the positions of labels that its loss reads; the error of the first attempt
    if none succeeds."""
    first: Exception | None = None
    for plan in PLANS:
        try:
            model = build(name, plan)
        except Exception as error:
            first = first or error
            continue
        cached = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
        for given in inputs_of(model):
            for extra in (cached, {}):
                try:
                    if read := read_labels(model, {**given, **extra}):
                        return model, {**given, **extra}, read
                except Exception as error:
                    first = first or error
    raise first or ValueError(f"the loss of {name} depends on no label")
