"""Heads of DFlash in the layout of their authors, which SpecForge writes too."""

from __future__ import annotations

import dataclasses

from decoding_jax.models.checkpoint import llama
from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    CheckpointError,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.eagle import check_layers, check_vocabulary
from decoding_jax.models.checkpoint.params import Layout, Weight, read_model
from decoding_jax.models.checkpoint.position_settings import FULL, max_positions_of, rope_of
from decoding_jax.models.decoder import DecoderModel
from decoding_jax.models.dflash import DFlashConfig, DFlashHead
from decoding_jax.models.llama import Llama
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative import DFlash

IGNORED = r".*rotary_emb\.inv_freq"


def is_head(settings: Settings) -> bool:
    """Whether a ``config.json`` is that of a head of DFlash."""
    return isinstance(settings.values.get("dflash_config"), dict)


def read(file: Settings, tensors: Tensors, target: DecoderModel, dtype: str) -> DFlash:
    """Reads the head of a directory; errors as for ``load_drafter``."""
    config = _config(file, target, dtype)
    layout = Layout(meshes.mesh_of(target.params))
    head = read_model(DFlashHead, config, _table(config), tensors, layout)
    tensors.check_all_used(IGNORED)
    embedding = target.params["token_embedder"]["embedding"]
    output = None
    if not target.config.logits_via_embedding:
        output = target.params["logits_dense"]["kernel"]
    return DFlash(dataclasses.replace(head, embedding=embedding, output=output))


def _config(file: Settings, target: DecoderModel, dtype: str) -> DFlashConfig:
    """The shape of the head.

    Raises:
      CheckpointError: for a setting that is not supported, or a head of another target.
    """
    own = file.section("dflash_config")
    width, heads = file.size("hidden_size"), file.size("num_attention_heads")
    num_layers = file.size("num_hidden_layers")
    if type(target) is not Llama:
        raise CheckpointError(
            f"{file.path}: expected a Llama as the target, whose embeddings and projection the head"
            f" takes, got a {type(target).__name__}"
        )
    file.refuse(model_type="qwen3", layer_types=[FULL] * num_layers, use_sliding_window=False)
    own.refuse(projector_type="none")
    check_vocabulary(file, target)
    if width != target.config.emb_dim:
        raise file.error("hidden_size", width, f"the target's {target.config.emb_dim}")
    if file.size("num_target_layers", target.num_layers) != target.num_layers:
        expected = f"the target's {target.num_layers}"
        raise file.error("num_target_layers", file.values["num_target_layers"], expected)
    found = own.get("target_layer_ids", list)
    # The numbers are those of layers, counted from 0, whose outputs are meant.
    check_layers(own, "target_layer_ids", found, 1, target.num_layers)
    theta, scaling = rope_of(file)
    bias = file.get("attention_bias", bool, False)
    return DFlashConfig(
        vocab_size=target.vocab_size,
        emb_dim=width,
        num_heads=heads,
        num_kv_heads=file.size("num_key_value_heads", heads),
        head_dim=file.size("head_dim", 128),
        mlp_dim=file.size("intermediate_size"),
        num_layers=num_layers,
        max_positions=max_positions_of(file, scaling),
        rope_theta=theta,
        rope_scaling=scaling,
        activation=file.one_of("hidden_act", ACTIVATIONS, "silu"),
        norm_epsilon=file.get("rms_norm_eps", float, 1e-6),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        feature_layers=tuple(i + 1 for i in found),
        feature_dim=width,
        block_size=own.size("block_size", file.values.get("block_size") or 16),
        mask_token_id=own.get("mask_token_id", int),
        dtype=dtype,
    )


def _table(config: DFlashConfig) -> dict[str, Weight]:
    """The tensor of every parameter."""
    out = {
        "fusion/kernel": Weight("fc.weight", True),
        "state_norm/scale": Weight("hidden_norm.weight"),
        "final_norm/scale": Weight("norm.weight"),
    }
    for i in range(config.num_layers):
        out |= llama.layer_table(config, f"layers_{i}", f"layers.{i}", llama.NORMS)
    return out
