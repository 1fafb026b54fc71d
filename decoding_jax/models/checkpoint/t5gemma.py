"""T5Gemma and T5Gemma 2 in the Hugging Face layout.

T5Gemma 2 reads images too. Its text network is read, and saved with the settings of a small network
for images, which the layout demands.
"""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint.directory import Settings, Tensors
from decoding_jax.models.checkpoint.families.gemma import GEMMA2, GEMMA3
from decoding_jax.models.checkpoint.params import (
    LAYER,
    ONE_DEVICE,
    Layout,
    Weight,
    named,
    read_model,
)
from decoding_jax.models.gemma import GemmaConfig
from decoding_jax.models.t5gemma import T5Gemma, T5GemmaConfig

NORMS = {
    "(pre|post)_attention_norm": r"\1_self_attn_layernorm",
    "(pre|post)_cross_attention_norm": r"\1_cross_attn_layernorm",
    "(pre|post)_mlp_norm": r"\1_feedforward_layernorm",
}
OUTPUT = "lm_head.out_proj.weight"
IMAGES = r"model\.encoder\.(vision_tower|multi_modal_projector)\..*"


def table(config: T5GemmaConfig, encoder: str = "model.encoder") -> dict[str, Weight]:
    """The tensor of every parameter.

    Args:
      config: the shape of the network.
      encoder: the prefix of the encoder's tensors.
    """
    target = encoder if config.logits_via_embedding else "model.decoder"
    own = {
        "decoder/logits_dense": "lm_head.out_proj",
        "source_token_embedder": f"{encoder}.embed_tokens",
        "^token_embedder": f"{target}.embed_tokens",
        "image_end": "eoi_embedding",
        "encoder": encoder,
        "decoder": "model.decoder",
        "token_embedder": "embed_tokens",
        "final_norm": "norm",
        "encoder_decoder_attention": "cross_attn",
    }
    return named(T5Gemma, config, own | NORMS | LAYER)


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> T5Gemma:
    """Reads the model of a directory."""
    merged = settings.get("model_type", str) == "t5gemma2"
    encoder, decoder = settings.section("encoder"), settings.section("decoder")
    text = encoder.section("text_config") if merged else encoder
    prefix = "model.encoder.text_model"
    prefix = prefix if f"{prefix}.norm.weight" in tensors else "model.encoder"
    embedder = f"{prefix if merged else 'model.decoder'}.embed_tokens"
    tied = settings.get("tie_word_embeddings", bool, True)
    for name in ("weight", "eoi_embedding") if merged and tied else ():
        theirs, ours = f"model.decoder.embed_tokens.{name}", f"{embedder}.{name}"
        if not tensors.same(theirs, ours):
            raise settings.error(theirs, "another tensor", f"the same as {ours}")
    ends = settings.get("eoi_token_index", int, encoder.get("eoi_token_index", int, 256_000))
    start = settings.get("bos_token_id", int, decoder.get("bos_token_id", int, 2))
    family = GEMMA3 if merged else GEMMA2
    fields = family.fields_of(decoder) | {
        "dtype": dtype,
        "logits_via_embedding": tied and tensors.same(OUTPUT, f"{embedder}.weight"),
    }
    config = T5GemmaConfig(
        **fields,
        encoder=GemmaConfig(**family.fields_of(text) | {"logits_via_embedding": True}),
        start_id=settings.get("decoder_start_token_id", int, start),
        merged=merged,
        image_end_id=ends,
    )
    weights = table(config, prefix)
    for path, weight in weights.items():
        source = f"source_{path}"
        if tied and source in weights and weight.name not in tensors:
            weights[path] = weights[source]
    model = read_model(T5Gemma, config, weights, tensors, layout)
    tensors.check_all_used(IMAGES)
    return model


def settings_of(config: T5GemmaConfig) -> dict[str, Any]:
    """The contents of ``config.json`` for a network.

    Raises:
      ValueError: for settings of the layers that the family does not have.
    """
    for name, shape in (("encoder.", config.encoder), ("", config)):
        if shape.qk_norm != config.merged:
            raise ValueError(
                f"{name}qk_norm, merged: expected both (T5Gemma 2) or neither (T5Gemma), got"
                f" {shape.qk_norm} and {config.merged}"
            )
    common = {"bos_token_id": config.start_id, "eos_token_id": 1, "pad_token_id": 0}
    kinds = ("t5gemma2_text", "t5gemma2_decoder") if config.merged else ("t5_gemma_module",) * 2
    layers = GEMMA3 if config.merged else GEMMA2
    for shape in (config.encoder, config):
        layers.check(shape)
    encoder, decoder = (
        {**layers.settings_of(shape), **common, "architectures": None, "model_type": kind}
        for shape, kind in zip((config.encoder, config), kinds, strict=True)
    )
    family = "T5Gemma2" if config.merged else "T5Gemma"
    if config.merged:
        encoder = {
            "model_type": "t5gemma2_encoder",
            "text_config": encoder,
            "vision_config": SMALL_VISION,
            "mm_tokens_per_image": 1,
            "eoi_token_index": config.image_end_id,
        }
    return {
        "architectures": [f"{family}ForConditionalGeneration"],
        "model_type": family.lower(),
        "is_encoder_decoder": True,
        "encoder": encoder,
        "decoder": decoder,
        **common,
        **({"eoi_token_index": config.image_end_id} if config.merged else {}),
        "decoder_start_token_id": config.start_id,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.logits_via_embedding,
    }


SMALL_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 14,
    "patch_size": 14,
}
"""The settings of a network for images that no text needs."""
