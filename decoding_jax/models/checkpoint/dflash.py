"""Heads of DFlash in the layouts of their authors, which SpecForge writes too, and ``speculators``.

The authors' files have the settings of a Qwen 3 in ``config.json``, and their own in
``dflash_config``. Those of ``speculators`` have them in ``transformer_layer_config`` and beside it.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from decoding_jax.models.checkpoint.directory import Settings, Tensors
from decoding_jax.models.checkpoint.eagle import (
    SPECULATORS,
    Target,
    arrays_of,
    check_layers,
    check_vocabulary,
    token_ids,
)
from decoding_jax.models.checkpoint.families import FAMILIES
from decoding_jax.models.checkpoint.params import LAYER, NORMS, Layout, Weight, named, read_model
from decoding_jax.models.checkpoint.position_settings import FULL
from decoding_jax.models.dflash import DFlashConfig, DFlashHead
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative import DFlash

# Copies of the target's own weights, and older files' rotary frequencies.
IGNORED = r"t2d|d2t|verifier_(norm|lm_head)\.weight|(embed_tokens|lm_head)\.weight"
IGNORED += r"|.*rotary_emb\.inv_freq"


def is_head(settings: Settings) -> bool:
    """Whether a ``config.json`` is that of a head of DFlash."""
    return from_speculators(settings) or isinstance(settings.values.get("dflash_config"), dict)


def from_speculators(settings: Settings) -> bool:
    """Whether ``speculators`` wrote a ``config.json`` of a head of DFlash."""
    return settings.values.get(SPECULATORS) == "dflash"


def read(file: Settings, tensors: Tensors, target: Target, dtype: str) -> DFlash:
    """Reads the head of a directory; errors as for ``load_drafter``."""
    embedding, output = arrays_of(target, file, "the head takes")
    config = _config(file, target, dtype)
    layout = Layout(meshes.mesh_of(target.params))
    head = read_model(DFlashHead, config, _table(config), tensors, layout)
    ids = None
    if config.vocab_size != target.vocab_size:
        ids = token_ids(file, tensors, config.vocab_size, target.vocab_size)
        kernel = tensors.read("lm_head.weight", (config.vocab_size, config.emb_dim)).T
        output = jnp.asarray(kernel, config.dtype)
    tensors.check_all_used(IGNORED)
    head = dataclasses.replace(head, embedding=embedding, output=output)
    return DFlash(head, vocab_size=target.vocab_size, token_ids=ids)


def _config(file: Settings, target: Target, dtype: str) -> DFlashConfig:
    """The shape of the head.

    Raises:
      CheckpointError: for a setting that is not supported, or a head of another target.
    """
    by_speculators = from_speculators(file)
    layer = file.section("transformer_layer_config") if by_speculators else file
    own = file if by_speculators else file.section("dflash_config")
    width = layer.size("hidden_size")
    num_layers = layer.size("num_hidden_layers")
    layer.refuse(model_type="qwen3", layer_types=[FULL] * num_layers, use_sliding_window=False)
    own.refuse(
        projector_type="dflash" if by_speculators else "none",
        sample_from_anchor=False,
        target_hidden_size=width,
    )
    check_vocabulary(layer, target)
    if width != target.config.emb_dim:
        raise layer.error("hidden_size", width, f"the target's {target.config.emb_dim}")
    if file.size("num_target_layers", target.num_layers) != target.num_layers:
        expected = f"the target's {target.num_layers}"
        raise file.error("num_target_layers", file.values["num_target_layers"], expected)
    # The authors count layers from 0, and mean their outputs; ``speculators`` means their inputs.
    name, first = "target_layer_ids", 1
    if by_speculators:
        name, first = "aux_hidden_state_layer_ids", 0
    found = own.get(name, list)
    check_layers(own, name, found, first, target.num_layers)
    fields = FAMILIES["qwen3"].fields_of(layer) | {
        "logits_via_embedding": False,
        "feature_layers": tuple(i + first for i in found),
        "feature_dim": width,
        "block_size": own.size("block_size", file.values.get("block_size") or 16),
        "mask_token_id": own.get("mask_token_id", int),
    }
    if by_speculators:
        fields["vocab_size"] = file.size("draft_vocab_size", target.vocab_size)
    return DFlashConfig(**fields, dtype=dtype)


def _table(config: DFlashConfig) -> dict[str, Weight]:
    """The tensor of every parameter."""
    own = {"fusion": "fc", "state_norm": "hidden_norm", "final_norm": "norm"}
    return named(DFlashHead, config, own | NORMS | LAYER)
