"""The dense text networks of Gemma 4 in the Hugging Face layout.

Of a Gemma 4 that reads images and sound too (``model_type`` ``gemma4``), the text network is read.
"""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint import llama
from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.families.gemma import NORMS
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, read_model
from decoding_jax.models.checkpoint.position_settings import FULL, SLIDING, layer_types, read_window
from decoding_jax.models.gemma4 import Gemma4, Gemma4Config
from decoding_jax.models.positions import RopeScaling

# The networks for images and sound, beside a text network, and what leads from them to it.
OTHERS = r"(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*"
TOKEN_SIZES = "vocab_size_per_layer_input"


def table(config: Gemma4Config) -> dict[str, Weight]:
    """The tensor of every parameter."""
    out = {
        "token_embedder/embedding": Weight("model.embed_tokens.weight"),
        "final_norm/scale": Weight("model.norm.weight"),
    }
    if not config.logits_via_embedding:
        out["logits_dense/kernel"] = Weight("lm_head.weight", True)
    if config.per_layer_dim:
        out |= {
            "per_layer_token_embedder/embedding": Weight("model.embed_tokens_per_layer.weight"),
            "per_layer_projection/kernel": Weight("model.per_layer_model_projection.weight", True),
            "per_layer_projection_norm/scale": Weight("model.per_layer_projection_norm.weight"),
        }
    for i in range(config.num_layers):
        out |= layer_table(config, i)
    return out


def layer_table(config: Gemma4Config, index: int) -> dict[str, Weight]:
    """The tensors of the layer of this index."""
    layer, tensor = f"layers_{index}", f"model.layers.{index}"
    out = llama.layer_table(config, layer, tensor, NORMS)
    unused = [] if index < config.num_own else ["key", "value", "key_norm"]
    if config.key_is_value and not config.is_local(index):
        unused.append("value")
    parts = tuple(f"{layer}/attention/{name}/" for name in unused)
    out = {path: weight for path, weight in out.items() if not path.startswith(parts)}
    out[f"{layer}/layer_scalar"] = Weight(f"{tensor}.layer_scalar")
    if config.per_layer_dim:
        out |= {
            f"{layer}/per_layer_gate/kernel": Weight(f"{tensor}.per_layer_input_gate.weight", True),
            f"{layer}/per_layer_out/kernel": Weight(f"{tensor}.per_layer_projection.weight", True),
            f"{layer}/per_layer_norm/scale": Weight(f"{tensor}.post_per_layer_input_norm.weight"),
        }
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
    inner = {r"(model\.)?language_model\.": llama.BASE}
    tensors.rename(inner, llama.BASE, f"{llama.HEADS}|{OTHERS}")
    tied = tied and tensors.tie(llama.EMBEDDING, "lm_head.weight")
    config = Gemma4Config(**shape_of(settings, dtype), logits_via_embedding=tied)
    model = read_model(Gemma4, config, table(config), tensors, layout)
    tensors.check_all_used(f"{OTHERS}|{ignored(config)}")
    return model


def shape_of(settings: Settings, dtype: str) -> dict[str, Any]:
    """The values of a ``Gemma4Config``; absent settings have those of ``transformers``.

    Raises:
      CheckpointError: for a setting that is not supported.
    """
    settings.refuse(enable_moe_block=False)
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
    bias = settings.get("attention_bias", bool, False)
    theta, fraction, scaling, local_theta = _ropes(settings)
    kinds = [bool(pattern[i % len(pattern)]) for i in range(num_layers)]
    if kinds[-1]:  # transformers would run this layer without the window
        raise settings.error("layer_types", settings.values["layer_types"], f"{FULL} at the end")
    size = settings.get("hidden_size_per_layer_input", int, 256)
    return {
        **_global_heads(settings, kinds, kv_heads),
        "vocab_size": settings.size("vocab_size"),
        "emb_dim": settings.size("hidden_size"),
        "num_heads": settings.size("num_attention_heads"),
        "num_kv_heads": kv_heads,
        "head_dim": settings.size("head_dim", 256),
        "mlp_dim": settings.size("intermediate_size"),
        "num_layers": num_layers,
        "max_positions": settings.size("max_position_embeddings", 131_072),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rotary_fraction": fraction,
        "local_rope_theta": local_theta,
        "activation": settings.one_of("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
        "norm_epsilon": settings.get("rms_norm_eps", float, 1e-6),
        "qkv_bias": bias,
        "out_bias": bias,
        "window": window,
        "window_pattern": pattern,
        "key_is_value": settings.get("attention_k_eq_v", bool, False),
        "num_kv_layers": num_layers - settings.get("num_kv_shared_layers", int, 0),
        "wide_mlp": settings.get("use_double_wide_mlp", bool, False),
        "per_layer_dim": size,
        "per_layer_vocab_size": settings.size(TOKEN_SIZES, 262_144) if size else None,
        "logit_soft_cap": settings.get("final_logit_softcapping", float, None),
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
    shape = llama.settings_of_shape(config)
    return {
        **{name: x for name, x in shape.items() if name not in ("rope_theta", "rope_scaling")},
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "hidden_activation": ACTIVATIONS_BACK[config.activation].replace("_new", "_pytorch_tanh"),
        "attention_bias": config.qkv_bias,
        "sliding_window": config.window,
        "layer_types": kinds,
        "per_layer_config": {str(i): heads for i, kind in enumerate(kinds) if kind == FULL},
        "rope_parameters": {
            FULL: rope,
            SLIDING: {"rope_type": "default", "rope_theta": config.local_rope_theta},
        },
        "attention_k_eq_v": config.key_is_value,
        "num_kv_shared_layers": config.num_layers - config.num_own,
        "use_double_wide_mlp": config.wide_mlp,
        "hidden_size_per_layer_input": config.per_layer_dim,
        TOKEN_SIZES: config.per_layer_vocab_size or config.vocab_size,
        "final_logit_softcapping": config.logit_soft_cap,
    }
