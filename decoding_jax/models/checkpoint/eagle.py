"""Heads of EAGLE-3 in the layouts of their authors, of SpecForge and of ``speculators``.

The authors' files (github.com/SafeAILab/EAGLE) and SpecForge's have the settings of a Llama with
one layer in ``config.json``, and its tensors under ``midlayer``. Those of ``speculators`` have them
in ``transformer_layer_config`` and under ``layers.0``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax.models.checkpoint.directory import CONFIG, CheckpointError, Settings, Tensors
from decoding_jax.models.checkpoint.families import FAMILIES
from decoding_jax.models.checkpoint.params import LAYER, NORMS, Layout, Weight, named, read_model
from decoding_jax.models.checkpoint.position_settings import FULL
from decoding_jax.models.decoder import DecoderModel
from decoding_jax.models.eagle import EagleConfig, EagleHead
from decoding_jax.models.encoder_decoder import BoundEncoderDecoder, EncoderDecoder
from decoding_jax.models.llama import Llama
from decoding_jax.models.t5 import T5, BoundT5
from decoding_jax.sharding import meshes, shard
from decoding_jax.strategies.speculative import Eagle

Target = DecoderModel | EncoderDecoder | BoundEncoderDecoder
SPECULATORS = "speculators_model_type"
# Copies of the target's own weights, and older files' rotary frequencies.
IGNORED = r"t2d|verifier_(norm|lm_head)\.weight|.*rotary_emb\.inv_freq"


def is_head(settings: Settings) -> bool:
    """Whether a ``config.json`` is that of a head of EAGLE-3."""
    is_eagle = settings.values.get(SPECULATORS, "eagle3") == "eagle3"
    return is_eagle and settings.values.get("draft_vocab_size") is not None


def read(file: Settings, tensors: Tensors, target: Target, dtype: str) -> Eagle:
    """Reads the head of a directory; errors as for ``load_drafter``."""
    config = _config(file, target, dtype)
    names = head_table(config, "layers.0" if SPECULATORS in file.values else "midlayer")
    layout = Layout(meshes.mesh_of(target.params))
    head = read_model(EagleHead, config, names, tensors, layout)
    head = dataclasses.replace(head, embedding=_embedding(tensors, target, config))
    ids = token_ids(file, tensors, config.vocab_size, target.vocab_size)
    tensors.check_all_used(IGNORED)
    return Eagle(head, vocab_size=target.vocab_size, token_ids=ids)


def _config(file: Settings, target: Target, dtype: str) -> EagleConfig:
    """The shape of the head.

    Raises:
      CheckpointError: for a setting that is not supported, or a head of another target.
    """
    from_speculators = SPECULATORS in file.values
    layer = file.section("transformer_layer_config") if from_speculators else file
    width = layer.size("hidden_size")
    family = layer.get("model_type", str, "llama")
    if family not in ("llama", "qwen3"):
        raise layer.error("model_type", family, "llama or qwen3")
    if not from_speculators:
        layer.refuse(num_hidden_layers=1, norm_output=True)
    num_layers = layer.size("num_hidden_layers", 1)
    layer = Settings(layer.path, {**layer.values, "num_hidden_layers": num_layers})
    layer.refuse(pretraining_tp=1, layer_types=[FULL] * num_layers, use_sliding_window=False)
    check_vocabulary(layer, target)
    feature_dim = file.size("target_hidden_size", width)
    if feature_dim != target.config.emb_dim:
        name = "target_hidden_size" if feature_dim != width else "hidden_size"
        raise layer.error(name, feature_dim, f"the target's {target.config.emb_dim}")
    each, together = file.get("fc_norm", bool, False), file.get("norm_before_fc", bool, False)
    fields = FAMILIES[family].fields_of(layer)
    own = {
        "vocab_size": file.size("draft_vocab_size"),
        "logits_via_embedding": False,
        "out_bias": fields["out_bias"] and from_speculators,
        "mlp_bias": from_speculators and layer.get("mlp_bias", bool, False),
        "qk_norm": from_speculators and family == "qwen3",
        "feature_layers": _feature_layers(file, target.num_layers),
        "feature_dim": feature_dim,
        "residual_norm": file.get("norm_before_residual", bool, False),
        "fusion_norm": "each" if each else "all" if together else "none",
        "output_norm": from_speculators and file.get("norm_output", bool, False),
    }
    return EagleConfig(**fields | own, dtype=dtype)


def check_vocabulary(settings: Settings, target: Target) -> None:
    """Refuses a head whose ``vocab_size`` is not that of its target.

    Raises:
      CheckpointError: for such a head.
    """
    if settings.size("vocab_size") != target.vocab_size:
        expected = f"the target's {target.vocab_size}"
        raise settings.error("vocab_size", settings.values["vocab_size"], expected)


def arrays_of(target: Target, file: Settings, what: str) -> tuple[Any, Any]:
    """The embeddings and the output kernel of a target; None for a kernel that is tied to them.

    Args:
      target: the target, a ``Llama``.
      file: the settings of the head, for the error.
      what: what takes the arrays, for the error, such as "the head takes".

    Raises:
      CheckpointError: for another target.
    """
    if type(target) is not Llama:
        raise CheckpointError(
            f"{file.path}: expected a Llama as the target, whose embeddings and projection {what},"
            f" got a {type(target).__name__}"
        )
    tied = target.config.logits_via_embedding
    output = None if tied else target.params["logits_dense"]["kernel"]
    return target.params["token_embedder"]["embedding"], output


def check_layers(settings: Settings, name: str, found: list, first: int, count: int) -> None:
    """Refuses numbers of layers that a target of ``count`` layers does not have.

    Raises:
      CheckpointError: for such a number.
    """
    if not all(isinstance(i, int) and 0 <= i + first <= count for i in found):
        raise settings.error(name, found, f"layers of the target, which has {count}")


def _feature_layers(file: Settings, num_layers: int) -> tuple[int, ...]:
    """The layers of the target, by default those of the authors.

    SpecForge counts layers from 0, and means their outputs; ``speculators`` means their inputs.
    """
    name, first = "eagle_aux_hidden_state_layer_ids", 0
    place = file
    if SPECULATORS not in file.values:
        place, first = file.section("eagle_config"), 1
    default = [2 - first, num_layers // 2 - first, num_layers - 3 - first]
    found = place.get(name, list, default) or default
    check_layers(place, name, found, first, num_layers)
    return tuple(i + first for i in found)


def head_table(config: EagleConfig, first: str) -> dict[str, Weight]:
    """The tensor of every parameter; those of the first layer begin with ``first``."""
    own = {
        "fusion": "fc",
        "final_norm": "norm",
        "logits_dense": "lm_head",
        r"fusion_norm_(\d+)": "input_norm" if config.fusion_norm == "all" else r"fc_norm.\1",
        "state_norm": "hidden_norm",
        "embedding_norm": "input_layernorm",
        "layers_0": first,
    }
    return named(EagleHead, config, own | NORMS | LAYER)


def _embedding(tensors: Tensors, target: Any, config: EagleConfig) -> Any:
    """The table of the file if it has one, and otherwise that of the target."""
    name, shape = "embed_tokens.weight", (target.vocab_size, config.emb_dim)
    if name in tensors:
        table = EagleHead({}, config, jnp.asarray(tensors.read(name, shape), config.dtype))
        mesh = meshes.mesh_of(target.params)
        return table.embedding if mesh is None else shard(table, mesh).embedding
    has_table = isinstance(target, (Llama, T5, BoundT5))
    embedder = target.params.get("token_embedder") if has_table else None
    if embedder is None or embedder["embedding"].shape != shape:
        raise CheckpointError(
            f"{CONFIG} of a head of width {config.emb_dim}: lacks {name}, and the target has no "
            f"such embeddings [{shape[0]}, {shape[1]}]"
        )
    return embedder["embedding"]


def token_ids(file: Settings, tensors: Tensors, drafted: int, size: int) -> np.ndarray | None:
    """The target's id of each token of the head, which files give as a difference.

    Args:
      file: the settings of the head.
      tensors: those of the head.
      drafted: the number of tokens of the head's vocabulary.
      size: that of the target's.

    Raises:
      CheckpointError: for a head without ids, or with ids that are not of different tokens.
    """
    if "d2t" not in tensors:
        if drafted != size:
            raise file.error("draft_vocab_size", drafted, f"{size} without d2t")
        return None
    ids = tensors.integers("d2t").astype(np.int64) + np.arange(drafted)
    if ids.min() < 0 or ids.max() >= size or len(set(ids.tolist())) < len(ids):
        raise CheckpointError(
            f"{file.path}: d2t: expected different tokens of the target's {size}, got ids from"
            f" {ids.min()} to {ids.max()}"
        )
    return None if np.array_equal(ids, np.arange(size)) else ids.astype(np.int32)
