"""T5, mT5, ByT5 and UMT5 in the Hugging Face layout."""

from __future__ import annotations

import math
from typing import Any

from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, read_model
from decoding_jax.models.t5 import T5, T5Config

# Older files contain a table that no layer uses.
IGNORED = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"

# The names of the one embedding table. A file has some of them.
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def table(config: T5Config) -> dict[str, Weight]:
    """The tensor of every parameter."""
    out = {"token_embedder/embedding": Weight("shared.weight")}
    if not config.logits_via_embedding:
        out["decoder/logits_dense/kernel"] = Weight("lm_head.weight", True)
    gates = ("wi",) if len(config.mlp_activations) == 1 else ("wi_0", "wi_1")
    stacks = {
        "encoder": (config.num_encoder_layers, {"SelfAttention": ("attention", "attention")}),
        "decoder": (
            config.num_decoder_layers,
            {
                "SelfAttention": ("self_attention", "self_attention"),
                "EncDecAttention": ("cross_attention", "encoder_decoder_attention"),
            },
        ),
    }
    for stack, (num_layers, attentions) in stacks.items():
        with_biases = {f"{stack}/layers_{i}": i for i in range(num_layers)}
        for place, i in (with_biases if config.biases_per_layer else {stack: 0}).items():
            tensor = f"{stack}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
            out[f"{place}/relpos_bias/rel_embedding"] = Weight(tensor, True)
        out[f"{stack}/{stack}_norm/scale"] = Weight(f"{stack}.final_layer_norm.weight")
        for i in range(num_layers):
            layer, tensor = f"{stack}/layers_{i}", f"{stack}.block.{i}.layer"
            for j, (theirs, (norm, ours)) in enumerate(attentions.items()):
                out[f"{layer}/pre_{norm}_layer_norm/scale"] = Weight(
                    f"{tensor}.{j}.layer_norm.weight"
                )
                for name in ("query", "key", "value", "out"):
                    letter = "o" if name == "out" else name[0]
                    weight = Weight(f"{tensor}.{j}.{theirs}.{letter}.weight", True)
                    out[f"{layer}/{ours}/{name}/kernel"] = weight
            last = len(attentions)
            out[f"{layer}/pre_mlp_layer_norm/scale"] = Weight(f"{tensor}.{last}.layer_norm.weight")
            for name in (*gates, "wo"):
                weight = Weight(f"{tensor}.{last}.DenseReluDense.{name}.weight", True)
                out[f"{layer}/mlp/{name}/kernel"] = weight
    return out


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> T5:
    """Reads the model of a directory."""
    values = settings.values
    family = settings.get("model_type", str)
    activation = settings.get("feed_forward_proj", str, "relu" if family == "t5" else "gated-gelu")
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
    num_layers = settings.size("num_layers")
    config = T5Config(
        vocab_size=settings.size("vocab_size"),
        emb_dim=settings.size("d_model"),
        num_heads=settings.size("num_heads"),
        head_dim=settings.size("d_kv"),
        mlp_dim=settings.size("d_ff"),
        num_encoder_layers=num_layers,
        num_decoder_layers=settings.size("num_decoder_layers", num_layers),
        mlp_activations=(name, "linear") if activation.startswith("gated-") else (name,),
        logits_via_embedding=scaled and not untied,
        dropout_rate=settings.get("dropout_rate", float, 0.1),
        num_buckets=settings.size("relative_attention_num_buckets", 32),
        max_distance=settings.size("relative_attention_max_distance", 128),
        layer_norm_epsilon=settings.get("layer_norm_epsilon", float, 1e-6),
        start_id=settings.get("decoder_start_token_id", int, settings.get("pad_token_id", int, 0)),
        dtype=dtype,
        biases_per_layer=family == "umt5",
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
      ValueError: for activations that this layout does not support.
    """
    first, *rest = config.mlp_activations
    name = ACTIVATIONS_BACK[first]
    if rest not in ([], ["linear"]):
        raise ValueError(
            "mlp_activations: expected one name, or a name and 'linear', in this layout, got"
            f" {config.mlp_activations}"
        )
    activation = f"gated-{'gelu' if name == 'gelu_new' else name}" if rest else name
    family = "umt5" if config.biases_per_layer else "t5"
    return {
        "architectures": [f"{family.upper()}ForConditionalGeneration"],
        "model_type": family,
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "d_kv": config.head_dim,
        "d_ff": config.mlp_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": activation,
        "dense_act_fn": name,
        "is_gated_act": bool(rest),
        "dropout_rate": config.dropout_rate,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "relative_attention_num_buckets": config.num_buckets,
        "relative_attention_max_distance": config.max_distance,
        "tie_word_embeddings": config.logits_via_embedding,
        "scale_decoder_outputs": config.logits_via_embedding,
        "decoder_start_token_id": config.start_id,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
