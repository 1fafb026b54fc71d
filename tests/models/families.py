"""The tiny networks of the model tests: their classes in transformers, and their shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"
VOCAB = 40

_T5 = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
_BART = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
}

_GEMMA2 = {
    **_LLAMA,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "query_pre_attn_scalar": 5,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
    "sliding_window": 3,
}
_GEMMA3 = {
    **_LLAMA,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "query_pre_attn_scalar": 5,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    },
}

BART = ("bart", "mbart", "pegasus", "marian", "m2m_100")

# Name: config class, settings. Those of UNTIED have an output table of their own.
UNTIED = ("t5_1_1", "mt5", "byt5", "umt5", "umt5_scaled", "madlad", "ul2")
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5Config", {**_T5, "tie_word_embeddings": True, "feed_forward_proj": "relu"}),
    "t5_1_1": (
        "T5Config",
        {**_T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
    ),
    "mt5": (
        "MT5Config",
        {**_T5, "num_layers": 1, "num_heads": 2, "feed_forward_proj": "gated-gelu"},
    ),
    "byt5": (
        "T5Config",
        {
            **_T5,
            "tie_word_embeddings": False,
            "feed_forward_proj": "gated-gelu",
            "num_layers": 3,
            "num_decoder_layers": 1,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 7,
        },
    ),
    "umt5": ("UMT5Config", {**_T5, "num_decoder_layers": 1, "tie_word_embeddings": False}),
    "bart": ("BartConfig", _BART),
    "mbart": ("MBartConfig", {**_BART, "scale_embedding": True, "decoder_start_token_id": 7}),
    "pegasus": ("PegasusConfig", {**_BART, "activation_function": "relu", "scale_embedding": True}),
    "marian": (
        "MarianConfig",
        {
            **_BART,
            "activation_function": "swish",
            "scale_embedding": True,
            "decoder_start_token_id": VOCAB - 1,
            "pad_token_id": VOCAB - 1,
        },
    ),
    "m2m_100": ("M2M100Config", _BART),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCAB,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 4,
            "n_inner": 24,
            "n_positions": 32,
        },
    ),
    "gemma2": ("Gemma2Config", _GEMMA2),
    "gemma3": ("Gemma3TextConfig", _GEMMA3),
    "t5gemma": (
        "T5GemmaConfig",
        {
            "vocab_size": VOCAB,
            "encoder": {**_GEMMA2, "hidden_size": 12, "num_attention_heads": 2},
            "decoder": {**_GEMMA2, "num_hidden_layers": 1},
        },
    ),
    "t5gemma2": (
        "T5Gemma2Config",
        {
            "image_token_index": VOCAB - 2,
            "encoder": {
                "text_config": {**_GEMMA3, "intermediate_size": 20},
                "vision_config": {
                    "hidden_size": 2,
                    "intermediate_size": 2,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 1,
                    "image_size": 2,
                    "patch_size": 2,
                },
                "mm_tokens_per_image": 1,
                "eoi_token_index": VOCAB - 1,
            },
            "decoder": {**_GEMMA3, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
        },
    ),
    "gpt_neox": (
        "GPTNeoXConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "llama2": ("LlamaConfig", {**_LLAMA, "num_hidden_layers": 1}),
    "llama3": (
        "LlamaConfig",
        {**_LLAMA, "num_key_value_heads": 2, "head_dim": 6, "rope_parameters": _LLAMA3_ROPE},
    ),
    "llama_yarn": (
        "LlamaConfig",
        {
            **_LLAMA,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
            "rope_parameters": _YARN_ROPE,
        },
    ),
    "smollm": (
        "LlamaConfig",
        {**_LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2Config", {**_LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 2}),
    "mistral": (
        "MistralConfig",
        {**_LLAMA, "num_hidden_layers": 2, "num_key_value_heads": 2, "sliding_window": 3},
    ),
    "qwen3": (
        "Qwen3Config",
        {**_LLAMA, "num_key_value_heads": 2, "head_dim": 6, "num_hidden_layers": 1},
    ),
}


def torch_model(family: str, seed: int) -> Any:
    """A random network of transformers whose logits are far from uniform; bfloat16 values."""
    import torch
    import transformers
    from variants import VARIANTS

    name, settings = (FAMILIES | VARIANTS)[family]
    encoder_decoder = "T5" in name or family.startswith(BART)
    kind = name.replace(
        "Config", "ForConditionalGeneration" if encoder_decoder else "ForCausalLM"
    ).replace("GPT2ForCausalLM", "GPT2LMHeadModel")
    kind = kind.replace("Gemma3Text", "Gemma3")
    kind = kind.replace("MarianForConditionalGeneration", "MarianMTModel")
    model = getattr(transformers, kind)(getattr(transformers, name)(**settings)).eval()
    if family in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCAB, 16))
    draw = np.random.default_rng(seed)
    learned = [x for x in model.named_parameters() if x[1].requires_grad]  # no sinusoids
    bias = [x for x in model.named_buffers() if x[0] == "final_logits_bias"]
    for name, parameter in (*learned, *bias):
        spread = {"bias": 0.2, "norm": 0.2, "table": 1.0}.get(_kind(name), 0.3)
        value = draw.normal(0.0, spread, tuple(parameter.shape))
        # Gemma's norms store the distance of their scale from 1.
        value += 1.0 if _kind(name) == "norm" and "gemma" not in family else 0.0
        parameter.data = torch.tensor(value).bfloat16().float()
    model.tie_weights()
    return unscaled(model) if family == "umt5" else model


def unscaled(model: Any) -> Any:
    """The model with the logits of released UMT5, which transformers 5 scales for a tied output."""
    model.config.tie_word_embeddings = False
    return model


def _kind(name: str) -> str:
    if name.endswith((".bias", "logits_bias")):
        return "bias"
    if name.endswith(("shared.weight", "relative_attention_bias.weight")):
        return "table"
    return "norm" if "norm" in name or ".ln_" in name else "matrix"
