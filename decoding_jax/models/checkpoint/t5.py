"""T5, mT5, ByT5, UMT5, Switch Transformers and LongT5 in the Hugging Face layout."""

from __future__ import annotations

import math
from typing import Any

from decoding_jax.models.checkpoint import family as keys
from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.family import Key
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, named, read_model
from decoding_jax.models.t5 import T5, T5Config

# Older files contain a table that no layer uses.
IGNORED = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"

# The names of the one embedding table. A file has some of them.
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

KEYS = {
    "vocab_size": Key("vocab_size"),
    "d_model": Key("emb_dim"),
    "num_heads": Key("num_heads"),
    "d_kv": Key("head_dim"),
    "d_ff": Key("mlp_dim"),
    "num_layers": Key("num_encoder_layers"),
    "num_decoder_layers": Key("num_decoder_layers", lambda settings: settings.size("num_layers")),
    "dropout_rate": Key("dropout_rate", 0.1),
    "layer_norm_epsilon": Key("layer_norm_epsilon", 1e-6),
    "relative_attention_num_buckets": Key("num_buckets", 32),
    "relative_attention_max_distance": Key("max_distance", 128),
}

SWITCH = {
    "num_experts": Key("num_experts", 8),
    "router_bias": Key("router_bias", False),
}
STACKS = {"encoder": "num_layers", "decoder": "num_decoder_layers"}

# A capacity of experts beyond which transformers drops tokens of a row, and which no row reaches.
CAPACITY = 2**31

NAMES = {
    "token_embedder": "shared",
    "decoder/logits_dense": "lm_head",
    "(en|de)coder_norm": "final_layer_norm",
    "(en|de)coder/relpos_bias": r"\1coder/layers_0/relpos_bias",
    r"encoder/layers_(\d+)/(pre_mlp_layer_norm|mlp)": r"encoder.block.\1.layer.1/\2",
    r"decoder/layers_(\d+)/(pre_mlp_layer_norm|mlp)": r"decoder.block.\1.layer.2/\2",
    r"layers_(\d+)/(pre_cross_attention_layer_norm|encoder_decoder_attention)": (
        r"block.\1.layer.1/\2"
    ),
    r"layers_(\d+)": r"block.\1.layer.0",
    r"pre_\w+_layer_norm": "layer_norm",
    "(self_)?attention": "SelfAttention",
    "encoder_decoder_attention": "EncDecAttention",
    "relpos_bias": "SelfAttention.relative_attention_bias",
    "mlp/router": "mlp.router.classifier",
    "mlp/(w[io])_experts": r"mlp.experts.expert_{}.\1",
    "mlp": "DenseReluDense",
    "([qkvo])(uery|ey|alue|ut)": r"\1",
}


# Of the encoder of a LongT5: the settings, and the name of its attention.
LOCAL = {"local_radius": Key("local_radius", 127)}
LONG = {
    "local": (LOCAL, "LocalSelfAttention"),
    "transient-global": (
        LOCAL | {"global_block_size": Key("global_block_size", 16)},
        "TransientGlobalSelfAttention",
    ),
}
KIND = "encoder_attention_type"

ARCHITECTURES = {
    "t5": "T5",
    "umt5": "UMT5",
    "switch_transformers": "SwitchTransformers",
    "longt5": "LongT5",
}
"""The names of the families in ``transformers``, by their ``model_type``."""


def kind_of(config: T5Config) -> str:
    """The ``encoder_attention_type`` of a LongT5."""
    return "local" if config.global_block_size is None else "transient-global"


def table(config: T5Config) -> dict[str, Weight]:
    """The tensor of every parameter."""
    names = NAMES if config.num_experts is None else NAMES | {"mlp": "mlp"}
    if config.local_radius is not None:
        own = LONG[kind_of(config)][1]
        first = f"encoder/layers_0/{own}"
        names = {
            "encoder/relpos_bias": f"{first}.relative_attention_bias",
            "encoder/global_relpos_bias": f"{first}.global_relative_attention_bias",
            "summary_norm": f"{own}.global_input_layer_norm",
            "attention": own,
            **names,
        }
    return named(T5, config, names)


def lengths_of(settings: Settings) -> dict[str, Any]:
    """The fields of the encoder of a LongT5."""
    kind = settings.one_of(KIND, {x: x for x in LONG}, "local")
    return keys.fields_of(LONG[kind][0], settings)


def experts_of(settings: Settings) -> dict[str, Any]:
    """The fields of the experts of a Switch, computed without drops, whatever ``expert_capacity``.

    Raises:
      CheckpointError: for gates, or for another dtype of routers than float32.
    """
    settings.refuse(router_dtype="float32", is_gated_act=False)
    found = keys.fields_of(SWITCH, settings)
    for stack, layers in STACKS.items():
        size = settings.size(layers, settings.get("num_layers", int))
        sparse = settings.get(f"num_sparse_{stack}_layers", int, 3)
        step = size // sparse if sparse > 0 else size
        found[f"{stack}_sparse_step"] = settings.get(f"{stack}_sparse_step", int, step)
    return found


def settings_of_experts(config: T5Config) -> dict[str, Any]:
    """The settings that ``experts_of`` reads."""
    found = keys.settings_of(SWITCH, config) | {"expert_capacity": CAPACITY}
    for stack in STACKS:
        step = getattr(config, f"{stack}_sparse_step")
        layers = getattr(config, f"num_{stack}_layers")
        found[f"{stack}_sparse_step"] = step
        found[f"num_sparse_{stack}_layers"] = layers // step if step else 0
    return found


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> T5:
    """Reads the model of a directory."""
    values = settings.values
    family = settings.get("model_type", str)
    switch = family == "switch_transformers"
    default = "gated-gelu" if family in ("mt5", "umt5") else "relu"
    activation = default if switch else settings.get("feed_forward_proj", str, default)
    # "gated-gelu" means the approximation by tanh, and "gelu" means the exact function.
    name = "gelu_new" if activation == "gated-gelu" else activation.removeprefix("gated-")
    key = "dense_act_fn" if settings.get("dense_act_fn", str, "") else "feed_forward_proj"
    name = settings.get("dense_act_fn", str, name)
    if name not in ACTIVATIONS:
        raise settings.error(
            key, settings.get(key, str), f"one of {', '.join(sorted(ACTIVATIONS))}"
        )
    name = ACTIVATIONS[name]

    # T5 1.0 scales the logits and T5 1.1 does not. The config's settings about tying distinguish
    # the two. Whether the output is in fact tied follows from the tensors.
    scaled = family != "mt5" and bool(
        values.get("scale_decoder_outputs", values.get("tie_word_embeddings") is not False)
    )
    embedding, *aliases = TABLES
    for alias in aliases:
        if not tensors.tie(embedding, alias):
            raise settings.error(alias, "another tensor", f"the same table as {embedding}")
    # A file whose output is another table has a table of embeddings as well.
    is_tied = values.get("tie_word_embeddings") is not False or embedding in tensors
    untied = not (is_tied and tensors.tie(embedding, "lm_head.weight"))
    config = T5Config(
        **keys.fields_of(KEYS, settings),
        mlp_activations=(name, "linear") if activation.startswith("gated-") else (name,),
        logits_via_embedding=scaled and not untied,
        start_id=settings.get("decoder_start_token_id", int, settings.get("pad_token_id", int, 0)),
        dtype=dtype,
        biases_per_layer=family == "umt5",
        **(experts_of(settings) if switch else {}),
        **(lengths_of(settings) if family == "longt5" else {}),
    )
    weights = table(config)
    if not config.logits_via_embedding and not untied:
        weights["decoder/logits_dense/kernel"] = Weight(embedding, True)
    model = read_model(T5, config, weights, tensors, layout)
    if scaled and untied:
        output = model.params["decoder"]["logits_dense"]
        output["kernel"] = output["kernel"] / math.sqrt(config.emb_dim)
    tensors.check_all_used(IGNORED)
    return model


def settings_of(config: T5Config) -> dict[str, Any]:
    """The contents of ``config.json`` for a network.

    Raises:
      ValueError: for activations that this layout does not support, or for a network that is two
        of the families.
    """
    first, *rest = config.mlp_activations
    name = ACTIVATIONS_BACK[first]
    if rest not in ([], ["linear"]):
        raise ValueError(
            "mlp_activations: expected one name, or a name and 'linear', in this layout, got"
            f" {config.mlp_activations}"
        )
    activation = f"gated-{'gelu' if name == 'gelu_new' else name}" if rest else name
    own = {
        "umt5": config.biases_per_layer,
        "switch_transformers": config.num_experts is not None,
        "longt5": config.local_radius is not None,
    }
    found = [name for name, is_own in own.items() if is_own] or ["t5"]
    if len(found) > 1:
        raise ValueError(f"config: expected that of one family, got {' and '.join(found)}")
    family, more = found[0], {}
    if family == "switch_transformers":
        more = settings_of_experts(config)
    elif family == "longt5":
        more = keys.settings_of(LONG[kind_of(config)][0], config) | {KIND: kind_of(config)}
    return {
        "architectures": [f"{ARCHITECTURES[family]}ForConditionalGeneration"],
        "model_type": family,
        "is_encoder_decoder": True,
        **keys.settings_of(KEYS, config),
        **more,
        "feed_forward_proj": activation,
        "dense_act_fn": name,
        "is_gated_act": bool(rest),
        "tie_word_embeddings": config.logits_via_embedding,
        "scale_decoder_outputs": config.logits_via_embedding,
        "decoder_start_token_id": config.start_id,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
