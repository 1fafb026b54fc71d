"""The text networks of Gemma 4 in the Hugging Face layout.

Of a Gemma 4 that reads images and sound too (``model_type`` ``gemma4``), the text network is read.
"""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint import family
from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.families.gemma import GEMMA2, NORMS
from decoding_jax.models.checkpoint.family import Key
from decoding_jax.models.checkpoint.params import (
    LAYER,
    ONE_DEVICE,
    Layout,
    View,
    Weight,
    named,
    read_model,
)
from decoding_jax.models.checkpoint.position_settings import FULL, SLIDING, layer_types, read_window
from decoding_jax.models.gemma4 import Gemma4, Gemma4Config
from decoding_jax.models.positions import RopeScaling

# The networks for images and sound, beside a text network, and what leads from them to it.
OTHERS = r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*"
TOKEN_SIZES = "vocab_size_per_layer_input"
KEYS = {
    **family.without(
        GEMMA2.keys, "query_pre_attn_scalar", "attn_logit_softcapping", "tie_word_embeddings"
    ),
    "vocab_size": Key("vocab_size"),
    "num_attention_heads": Key("num_heads"),
    "num_key_value_heads": Key("num_kv_heads"),
    "max_position_embeddings": Key("max_positions", 131_072),
    "final_logit_softcapping": Key("logit_soft_cap", None),
    "attention_k_eq_v": Key("key_is_value", False),
    "use_double_wide_mlp": Key("wide_mlp", False),
}

EXPERTS = {
    "num_experts": Key("num_experts"),
    "top_k_experts": Key("experts_per_token"),
    "moe_intermediate_size": Key("expert_dim"),
}

NAMES = {
    "token_embedder": "model.embed_tokens",
    "final_norm": "model.norm",
    "logits_dense": "lm_head",
    "per_layer_token_embedder": "model.embed_tokens_per_layer",
    "per_layer_projection": "model.per_layer_model_projection",
    "per_layer_projection_norm": "model.per_layer_projection_norm",
    "per_layer_gate": "per_layer_input_gate",
    "per_layer_out": "per_layer_projection",
    "per_layer_norm": "post_per_layer_input_norm",
    "post_dense_norm": "post_feedforward_layernorm_1",
    "(pre|post)_experts_norm": r"\1_feedforward_layernorm_2",
    "router": "router.proj",
    "router_scale": "router.scale",
    "expert_scale": "router.per_expert_scale",
    **LAYER,
    **NORMS,
    r"layers_(\d+)": r"model.layers.\1",
}


def table(config: Gemma4Config) -> dict[str, Weight]:
    """The tensor of every parameter."""
    out = named(Gemma4, config, NAMES)
    experts, width, size = config.num_experts, config.emb_dim, config.expert_dim
    if experts is None or size is None:
        return out
    for i in range(config.num_layers):
        both, down = (f"model.layers.{i}.experts.{part}_proj" for part in ("gate_up", "down"))
        shape = (experts, 2 * size, width)
        views = {
            "gate": Weight(both, view=View(shape, lambda x: x[:, :size].swapaxes(1, 2))),
            "up": Weight(both, view=View(shape, lambda x: x[:, size:].swapaxes(1, 2))),
            "down": Weight(down, view=View((experts, width, size), lambda x: x.swapaxes(1, 2))),
        }
        for part, weight in views.items():
            out[f"layers_{i}/experts/{part}_experts/kernel"] = weight
    return out


def ignored(config: Gemma4Config) -> str:
    """The names of tensors that files have and no layer uses, as a pattern.

    Layers that share the keys of others have projections of their own there, packed ones too.
    """
    sharing = "|".join(str(i) for i in range(config.num_own, config.num_layers))
    return rf"model\.layers\.({sharing})\.self_attn\.[kv]_(proj|norm)\..*"


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> Gemma4:
    """Reads the model of a directory."""
    tied = settings.get("tie_word_embeddings", bool, True)
    if settings.values["model_type"] == "gemma4":
        settings = settings.section("text_config")
    inner = {r"(model\.)?language_model\.": "model."}
    tensors.rename(inner, "model.", rf"lm_head\..*|{OTHERS}")
    tied = tied and tensors.tie("model.embed_tokens.weight", "lm_head.weight")
    config = Gemma4Config(**shape_of(settings, dtype), logits_via_embedding=tied)
    model = read_model(Gemma4, config, table(config), tensors, layout)
    tensors.check_all_used(f"{OTHERS}|{ignored(config)}")
    return model


def shape_of(settings: Settings, dtype: str) -> dict[str, Any]:
    """The values of a ``Gemma4Config``; absent settings have those of ``transformers``.

    Raises:
      CheckpointError: for a setting that is not supported.
    """
    if settings.values.get("use_bidirectional_attention") not in (None, "vision"):
        expected = "null, or 'vision'"
        found = settings.values["use_bidirectional_attention"]
        raise settings.error("use_bidirectional_attention", found, expected)
    num_layers = settings.size("num_hidden_layers")
    window, pattern = read_window(
        settings,
        settings.size("sliding_window", 512),
        [i % 6 != 5 and i != num_layers - 1 for i in range(num_layers)],
    )
    kv_heads = settings.size("num_key_value_heads")
    theta, fraction, scaling, local_theta = _ropes(settings)
    kinds = [bool(pattern[i % len(pattern)]) for i in range(num_layers)]
    if kinds[-1]:  # transformers would run this layer without the window
        raise settings.error("layer_types", settings.values["layer_types"], f"{FULL} at the end")
    size = settings.get("hidden_size_per_layer_input", int, 256)
    experts = EXPERTS if settings.get("enable_moe_block", bool, False) else {}
    return {
        **_global_heads(settings, kinds, kv_heads),
        **family.fields_of(experts, settings),
        **family.fields_of(KEYS, settings),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rotary_fraction": fraction,
        "local_rope_theta": local_theta,
        "window": window,
        "window_pattern": pattern,
        "num_kv_layers": num_layers - settings.get("num_kv_shared_layers", int, 0),
        "per_layer_dim": size,
        "per_layer_vocab_size": settings.size(TOKEN_SIZES, 262_144) if size else None,
        "dtype": dtype,
    }


def _global_heads(settings: Settings, kinds: list[bool], kv_heads: int) -> dict[str, int]:
    """The size and the number of heads in global layers, by either spelling.

    ``transformers`` writes ``per_layer_config``, with an object for each of these layers. It fills
    up their indices with zeros to one length.

    Raises:
      CheckpointError: for layers of one kind whose heads differ, or keys that are no indices.
    """
    key = "per_layer_config"
    given = settings.get(key, dict, None)
    if given is None:
        other = settings.get("attention_k_eq_v", bool, False)
        count = settings.size("num_global_key_value_heads", kv_heads) if other else kv_heads
        heads = settings.size("global_head_dim", 512)
        return {"global_head_dim": heads, "num_global_kv_heads": count}
    for name in given:
        if not name.isdecimal():
            raise settings.error(key, name, "indices of layers")
    found = {int(name): values for name, values in given.items()}
    own = found.get(kinds.index(False), {})
    alike = all(found.get(i, {}) == ({} if local else own) for i, local in enumerate(kinds))
    if not alike or not own.keys() <= {"head_dim", "num_key_value_heads"}:
        expected = f"one size and number of heads in all layers of {FULL}"
        raise settings.error(key, given, expected)
    section = Settings(settings.path, own)
    return {
        "global_head_dim": section.size("head_dim", settings.size("head_dim", 256)),
        "num_global_kv_heads": section.size("num_key_value_heads", kv_heads),
    }


def _ropes(settings: Settings) -> tuple[float, float, RopeScaling | None, float]:
    """The base, the rotated fraction and the scaling of global layers; the base of local ones.

    Raises:
      CheckpointError: for other kinds of rotary positions.
    """
    ropes = settings.section("rope_parameters")
    absent: dict[str, Any] = {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        SLIDING: {"rope_theta": 10_000.0},
    }
    full, sliding = (
        Settings(settings.path, (ropes.values or absent).get(kind) or {})
        for kind in (FULL, SLIDING)
    )
    sliding.refuse(rope_type="default")
    kinds = {"default": "", "proportional": "proportional"}
    partial = full.one_of("rope_type", kinds, "default")
    factor = full.get("factor", float, 1.0) if partial else 1.0
    fraction = full.get("partial_rotary_factor", float, 1.0) if partial else 1.0
    scaling = None if factor == 1.0 else RopeScaling("linear", factor)
    theta = full.get("rope_theta", float)
    return theta, fraction, scaling, sliding.get("rope_theta", float, 10_000.0)


def settings_of(config: Gemma4Config) -> dict[str, Any]:
    """The contents of ``config.json`` for a network.

    Raises:
      ValueError: for settings that Gemma 4 does not have.
    """
    if config.qkv_bias != config.out_bias or config.mlp_bias:
        raise ValueError(
            "qkv_bias, out_bias, mlp_bias: expected qkv_bias = out_bias and no mlp_bias, got"
            f" {config.qkv_bias}, {config.out_bias}, {config.mlp_bias}"
        )
    if config.is_local(config.num_layers - 1):
        raise ValueError(
            "window_pattern: expected a last layer without the window, got"
            f" {config.window_pattern} for {config.num_layers} layers"
        )
    scaling = config.rope_scaling
    rope = {
        "rope_type": "proportional",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.rotary_fraction,
        **({} if scaling is None else {"factor": scaling.factor}),
    }
    kinds = layer_types(config.window_pattern, config.num_layers)
    heads = {"head_dim": config.global_head_dim, "num_key_value_heads": config.global_kv_heads}
    return {
        **family.settings_of(KEYS, config),
        **family.settings_of(EXPERTS if config.num_experts else {}, config),
        "enable_moe_block": config.num_experts is not None,
        "tie_word_embeddings": config.logits_via_embedding,
        "bos_token_id": None,
        "eos_token_id": None,
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "hidden_activation": ACTIVATIONS_BACK[config.activation].replace("_new", "_pytorch_tanh"),
        "sliding_window": config.window,
        "layer_types": kinds,
        "per_layer_config": {str(i): heads for i, kind in enumerate(kinds) if kind == FULL},
        "rope_parameters": {
            FULL: rope,
            SLIDING: {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
        "num_kv_shared_layers": config.num_layers - config.num_own,
        "hidden_size_per_layer_input": config.per_layer_dim,
        TOKEN_SIZES: config.per_layer_vocab_size or config.vocab_size,
    }
