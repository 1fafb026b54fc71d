"""Blocks of multi-token prediction in the layouts of DeepSeek-V3 and of MiMo.

They are in the directory of their target, or in one of their own with the target's settings.
"""

from __future__ import annotations

import dataclasses
import re

from decoding_jax.models.checkpoint.directory import Settings, Tensors
from decoding_jax.models.checkpoint.eagle import Target, arrays_of, check_vocabulary
from decoding_jax.models.checkpoint.families import FAMILIES
from decoding_jax.models.checkpoint.family import BLOCKS, prediction_blocks
from decoding_jax.models.checkpoint.params import LAYER, NORMS, Layout, Weight, named, read_model
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.models.multi_token import MultiTokenBlock, MultiTokenConfig
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative import MultiTokenPrediction

TARGETS = ("llama", "mimo", "mistral", "qwen2", "qwen3")
# Copies of the target's own weights, and older files' rotary frequencies.
COPIES = r"\.(embed_tokens\.weight|shared_head\.head\.weight|self_attn\.rotary_emb\.inv_freq)"
DEEPSEEK = {
    "layers_0/embedding_norm": "enorm",
    "layers_0/state_norm": "hnorm",
    "layers_0/fusion": "eh_proj",
    "final_norm": "shared_head.norm",
}
MIMO = {
    "layers_0/embedding_norm": "token_layernorm",
    "layers_0/state_norm": "hidden_layernorm",
    "layers_0/fusion": "input_proj",
    "final_norm": "final_layernorm",
}


def is_head(settings: Settings) -> bool:
    """Whether a ``config.json`` names blocks of multi-token prediction."""
    return bool(settings.values.get(BLOCKS))


def is_whole_model(tensors: Tensors) -> bool:
    """Whether the files also have the layers of the target."""
    return "model.layers.0.self_attn.q_proj.weight" in tensors


def read(file: Settings, tensors: Tensors, target: Target, dtype: str) -> MultiTokenPrediction:
    """Reads the blocks of a directory; errors as for ``load_drafter``."""
    embedding, output = arrays_of(target, file, "the blocks take")
    family = file.get("model_type", str)
    if family not in TARGETS:
        raise file.error("model_type", family, "one of " + ", ".join(TARGETS))
    shape = FAMILIES[family].config_of(file, dtype)
    _check(file, shape, target)
    names = prediction_blocks(file)
    is_mimo = f"{names[0][1]}.input_proj.weight" in tensors
    given = {f.name: getattr(shape, f.name) for f in dataclasses.fields(LlamaConfig)}
    given |= {"num_layers": 1, "feature_layers": (shape.num_layers,), "feature_dim": shape.emb_dim}
    config = MultiTokenConfig(**given, state_first=is_mimo)
    layout, blocks = Layout(meshes.mesh_of(target.params)), []
    for pair in names:
        table = block_table(config, pair[is_mimo])
        block = read_model(MultiTokenBlock, config, table, tensors, layout)
        blocks.append(dataclasses.replace(block, embedding=embedding, output=output))
    own = "|".join(re.escape(pair[is_mimo]) for pair in names)
    tensors.check_all_used(rf"(?!({own})\.).*|({own}){COPIES}")
    return MultiTokenPrediction(blocks)


def _check(file: Settings, shape: LlamaConfig, target: Target) -> None:
    """Refuses blocks of another target, and those with windows.

    Raises:
      CheckpointError: for such blocks.
    """
    check_vocabulary(file, target)
    if shape.emb_dim != target.config.emb_dim:
        raise file.error("hidden_size", shape.emb_dim, f"the target's {target.config.emb_dim}")
    if shape.num_layers != target.num_layers:
        raise file.error("num_hidden_layers", shape.num_layers, f"the target's {target.num_layers}")
    if shape.window is not None:
        raise file.error("sliding_window", shape.window, "no window in blocks")


def block_table(config: MultiTokenConfig, name: str) -> dict[str, Weight]:
    """The tensor of every parameter of a block, whose names begin with ``name``."""
    own = MIMO if config.state_first else DEEPSEEK
    parts = {ours: f"{name}.{theirs}" for ours, theirs in own.items()}
    return named(MultiTokenBlock, config, parts | {"layers_0/layer": name} | NORMS | LAYER)
