"""Assistants of Gemma 4 in the Hugging Face layout."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax.models.checkpoint import gemma4
from decoding_jax.models.checkpoint.directory import CheckpointError, Settings, Tensors
from decoding_jax.models.checkpoint.eagle import Target, check_vocabulary
from decoding_jax.models.checkpoint.params import Layout, Weight, named, read_model
from decoding_jax.models.gemma4 import Gemma4
from decoding_jax.models.gemma4_assistant import Gemma4Assistant, Gemma4AssistantConfig
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative import Assistant

ORDERING = "masked_embedding.token_ordering"


def is_head(settings: Settings) -> bool:
    """Whether a ``config.json`` is that of an assistant of Gemma 4."""
    return settings.values.get("model_type") == "gemma4_assistant"


def read(file: Settings, tensors: Tensors, target: Target, dtype: str) -> Assistant:
    """Reads the assistant of a directory; errors as for ``load_drafter``."""
    if not isinstance(target, Gemma4):
        raise CheckpointError(
            f"{file.path}: expected a Gemma4 as the target, whose keys and values the assistant"
            f" reads, got a {type(target).__name__}"
        )
    config = _config(file, target, dtype)
    tied = file.get("tie_word_embeddings", bool, True)
    tied = tied and tensors.same("lm_head.weight", "model.embed_tokens.weight")
    layout = Layout(meshes.mesh_of(target.params))
    head = read_model(Gemma4Assistant, config, _table(config, tied), tensors, layout)
    head = dataclasses.replace(head, ordering=_ordering(file, tensors, config))
    embedding = target.params["token_embedder"]["embedding"]
    tensors.check_all_used(rf"model\.embed_tokens\.weight|{gemma4.ignored(config)}")
    return Assistant(dataclasses.replace(head, embedding=embedding))


def _config(file: Settings, target: Gemma4, dtype: str) -> Gemma4AssistantConfig:
    """The shape of the assistant.

    Raises:
      CheckpointError: for a setting that is not supported, or an assistant of another target.
    """
    text, own = file.section("text_config"), target.config
    text.refuse(hidden_size_per_layer_input=0, use_double_wide_mlp=False, enable_moe_block=False)
    shape = gemma4.shape_of(text, dtype)
    check_vocabulary(text, target)
    if file.size("backbone_hidden_size", 1536) != own.emb_dim:
        expected, key = f"the target's {own.emb_dim}", "backbone_hidden_size"
        raise file.error(key, file.values.get(key), expected)
    for name in ("head_dim", "global_head_dim"):
        if shape[name] != getattr(own, name):
            raise text.error(name, shape[name], f"the target's {getattr(own, name)}")
    # On a mesh, the target's heads may be repeated.
    heads = {"num_kv_heads": own.num_kv_heads, "num_global_kv_heads": own.global_kv_heads}
    for name, theirs in (
        ("num_kv_heads", "num_key_value_heads"),
        ("num_global_kv_heads", "num_global_key_value_heads"),
    ):
        if heads[name] % shape[name]:
            raise text.error(theirs, shape[name], f"the target's {heads[name]}")
        if heads[name] != shape[name] and shape["num_heads"] % heads[name]:
            expected = (
                f"a multiple of the target's {heads[name]} key-value heads, which the axis model of"
                " its mesh needs"
            )
            raise text.error("num_attention_heads", shape["num_heads"], expected)
    ordered = file.get("use_ordered_embeddings", bool, False)
    groups = {
        "num_centroids": file.size("num_centroids", 2048),
        "active_centroids": file.size("centroid_intermediate_top_k", 32),
    }
    none = {"num_kv_layers": None, "per_layer_dim": 0, "per_layer_vocab_size": None}
    read = {"feature_layers": (target.num_layers,), "feature_dim": own.emb_dim}
    try:
        return Gemma4AssistantConfig(
            **{**shape, **heads, **none, **read, **(groups if ordered else {})}
        )
    except ValueError as e:
        raise CheckpointError(f"{file.path}: {e}") from e


def _table(config: Gemma4AssistantConfig, tied: bool) -> dict[str, Weight]:
    """The tensor of every parameter."""
    output = "model.embed_tokens" if tied else "lm_head"
    own = {"token_embedder": output, "centroids": "masked_embedding.centroids"}
    return named(Gemma4Assistant, config, gemma4.NAMES | own)


def _ordering(file: Settings, tensors: Tensors, config: Gemma4AssistantConfig) -> Any:
    """The tokens of each group, int32 ``[C, V / C]``, or None.

    Raises:
      CheckpointError: for an ordering that does not have each token once.
    """
    if not config.num_centroids:
        return None
    ids = tensors.integers(ORDERING)
    if sorted(ids.tolist()) != list(range(config.vocab_size)):
        raise CheckpointError(
            f"{file.path}: {ORDERING}: expected each token from 0 to {config.vocab_size - 1} once,"
            " got others"
        )
    return jnp.asarray(ids.reshape(config.num_centroids, -1), jnp.int32)
