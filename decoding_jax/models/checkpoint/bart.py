"""BART, mBART, Blenderbot, Pegasus, Marian, M2M-100 and NLLB in the Hugging Face layout."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax.models.bart import Bart, BartConfig, sinusoids
from decoding_jax.models.checkpoint import family as keys
from decoding_jax.models.checkpoint.directory import Settings, Tensors
from decoding_jax.models.checkpoint.family import Key
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, named, read_model

IGNORED = r"(model\.)?(encoder|decoder)\.version"
SHARED = "model.shared.weight"
SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"


@dataclasses.dataclass(frozen=True)
class Family:
    """The properties of all networks of one ``model_type``, with the defaults of their files.

    Attributes:
      architecture: the name of the class in ``transformers``.
      positions: as in ``BartConfig``.
      norm_first: as in ``BartConfig``.
      embedding_norm: as in ``BartConfig``.
      logits_bias: whether the files may hold a bias of the logits.
      activation: the activation, where the file names none.
      scale_embedding: whether embeddings are scaled, where the file does not say.
      eos_id: the end token that is written.
      start_id: the start token, where the file names none.
      pad_id: the padding token, where the file names none; None for the start token.
      offset: the number of the first learned position.
    """

    architecture: str
    positions: str
    norm_first: bool
    embedding_norm: bool
    logits_bias: bool = True
    activation: str = "gelu"
    scale_embedding: bool = False
    eos_id: int = 2
    start_id: int | None = 2
    pad_id: int | None = 1
    offset: int = 2


FAMILIES = {
    "bart": Family("BartForConditionalGeneration", "learned", False, True),
    "blenderbot": Family(
        "BlenderbotForConditionalGeneration",
        "learned",
        True,
        False,
        start_id=1,
        pad_id=0,
        offset=0,
    ),
    "mbart": Family("MBartForConditionalGeneration", "learned", True, True, start_id=None),
    "pegasus": Family(
        "PegasusForConditionalGeneration",
        "sinusoidal",
        True,
        False,
        eos_id=1,
        start_id=0,
        pad_id=0,
    ),
    "marian": Family(
        "MarianMTModel", "sinusoidal", False, False, eos_id=0, start_id=58_100, pad_id=None
    ),
    "m2m_100": Family(
        "M2M100ForConditionalGeneration",
        "sinusoidal_inclusive",
        True,
        False,
        logits_bias=False,
        activation="relu",
        scale_embedding=True,
    ),
}

KEYS = {
    "vocab_size": Key("vocab_size"),
    "d_model": Key("emb_dim"),
    "encoder_attention_heads": Key("num_encoder_heads"),
    "decoder_attention_heads": Key("num_decoder_heads"),
    "encoder_ffn_dim": Key("encoder_mlp_dim"),
    "decoder_ffn_dim": Key("decoder_mlp_dim"),
    "encoder_layers": Key("num_encoder_layers"),
    "decoder_layers": Key("num_decoder_layers"),
    "max_position_embeddings": Key("max_positions", 1024),
    "activation_function": Key("activation", lambda settings: family_of(settings).activation),
    "scale_embedding": Key("scale_embedding", lambda settings: family_of(settings).scale_embedding),
}


def family_of(settings: Settings) -> Family:
    """The family that settings name."""
    return FAMILIES[settings.get("model_type", str)]


NAMES = {
    "token_embedder": "model.shared",
    "logits_bias": "final_logits_bias",
    "(en|de)coder": r"model.\1coder",
    r"layers_(\d+)": r"layers.\1",
    "position_embedder": "embed_positions",
    "embedding_norm": "layernorm_embedding",
    "final_norm": "layer_norm",
    "(self_)?attention": "self_attn",
    "(self_)?attention_norm": "self_attn_layer_norm",
    "encoder_decoder_attention": "encoder_attn",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
    "mlp/wi": "fc1",
    "mlp/wo": "fc2",
    "([qkv])(uery|ey|alue)": r"\1_proj",
    "out": "out_proj",
}
SEPARATE = {
    "source_token_embedder": "model.encoder.embed_tokens",
    "token_embedder": "model.decoder.embed_tokens",
    "logits_dense": "lm_head",
}
"""The names of tables that are not one."""


def table(config: BartConfig) -> dict[str, Weight]:
    """The tensor of every parameter."""
    own = {} if config.source_vocab_size is None else SEPARATE
    return named(Bart, config, own | {x: y for x, y in NAMES.items() if x not in own})


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> Bart:
    """Reads the model of a directory."""
    family = family_of(settings)
    tensors.rename({}, "model.", r"lm_head\..*|final_logits_bias")
    bos = settings.get("bos_token_id", int, 0)
    start = family.start_id if family.start_id is not None else bos
    start = settings.get("decoder_start_token_id", int, start)
    pad = settings.get("pad_token_id", int, start if family.pad_id is None else family.pad_id)
    offsets = {"learned": family.offset, "sinusoidal": 0, "sinusoidal_inclusive": pad + 1}
    config = BartConfig(
        **keys.fields_of(KEYS, settings) | _tables(settings, tensors),
        start_id=start,
        positions=family.positions,
        position_offset=offsets[family.positions],
        norm_first=family.norm_first,
        embedding_norm=family.embedding_norm,
        logits_bias=family.logits_bias and "final_logits_bias" in tensors,
        dtype=dtype,
    )
    weights = table(config)
    for path, weight in weights.items():
        # Until version 5 of transformers, files without tied tables have one of both stacks.
        is_table = weight.name in (SOURCE, TARGET) and not config.logits_via_embedding
        if is_table and weight.name not in tensors and SHARED in tensors:
            weights[path] = weight._replace(name=SHARED)
    model = read_model(Bart, config, weights, tensors, layout)
    if config.positions != "learned":
        for stack, kind in itertools.product(("encoder", "decoder"), ("weight", "weights")):
            _check_sinusoids(f"model.{stack}.embed_positions.{kind}", config, settings, tensors)
    # transformers does not use the table to which others would be tied.
    unused = IGNORED if config.logits_via_embedding else f"{IGNORED}|{re.escape(SHARED)}"
    tensors.check_all_used(unused)
    return model


def _tables(settings: Settings, tensors: Tensors) -> dict[str, Any]:
    """The settings of the network that say which tables it has.

    With ``share_encoder_decoder_embeddings``, which a Marian alone may lack, a setting that ties
    the output to the decoder's table ties the encoder's table to it as well.
    """
    share = "share_encoder_decoder_embeddings"
    is_shared = True
    if settings.get("model_type", str) == "marian":
        is_shared = settings.get(share, bool, True)
    else:
        settings.refuse(**{share: True})
    is_tied = settings.get("tie_word_embeddings", bool, True)
    aliases = [SOURCE, TARGET, OUTPUT] if is_shared else [OUTPUT]
    first = SHARED if is_shared else TARGET
    for alias in aliases if is_tied else ():
        if not tensors.tie(first, alias):
            raise settings.error(alias, "another tensor", f"the same table as {first}")
    if is_tied and is_shared:
        return {}
    size = settings.size("vocab_size")
    target = settings.size("decoder_vocab_size", size)
    if is_shared and target != size:
        raise settings.error("decoder_vocab_size", target, f"vocab_size = {size}, with {share}")
    return {
        "vocab_size": target,
        "source_vocab_size": size,
        "logits_via_embedding": is_tied,
    }


def _check_sinusoids(name: str, config: BartConfig, settings: Settings, tensors: Tensors) -> None:
    """Checks that a stored table of positions, if there is one, is the one that is computed."""
    if name not in tensors:
        return
    size, inclusive = tensors.shape(name)[0], config.positions == "sinusoidal_inclusive"
    stored = tensors.read(name, (size, config.emb_dim)).astype(np.float32)
    computed = np.array(sinusoids(jnp.arange(size), config.emb_dim, inclusive=inclusive))
    if inclusive:
        computed[config.position_offset - 1] = 0.0  # the row of the padding token
    if not np.allclose(stored, computed, atol=1e-2):  # bfloat16 has 8 bits
        raise settings.error(name, "another table", "the sines and cosines of the positions")


def settings_of(config: BartConfig) -> dict[str, Any]:
    """The contents of ``config.json`` for a network.

    Raises:
      ValueError: for a network that is none of the families of this layout.
    """
    own = config.source_vocab_size
    is_tied = config.logits_via_embedding
    if own is None and not is_tied:
        raise ValueError(
            "source_vocab_size: expected a number with logits_via_embedding = False in this"
            " layout, got None"
        )
    names = ("positions", "norm_first", "embedding_norm")
    shape = {name: getattr(config, name) for name in names}
    found = [
        name
        for name, family in FAMILIES.items()
        if all(getattr(family, key) == value for key, value in shape.items())
        and family.logits_bias >= config.logits_bias
        and (name == "marian" or own is None or not (is_tied or own != config.vocab_size))
    ]
    offsets = {"learned": FAMILIES[found[0]].offset if found else 0, "sinusoidal": 0}
    offset = offsets.get(config.positions, config.position_offset)
    if not found or config.position_offset != offset or config.position_offset < 0:
        others = ("logits_bias", "position_offset", "source_vocab_size", "logits_via_embedding")
        shape |= {name: getattr(config, name) for name in others}
        listed = ", ".join(f"{name}={value!r}" for name, value in shape.items())
        raise ValueError(f"config: expected one of {', '.join(FAMILIES)}, got {listed}")
    family = FAMILIES[found[0]]
    tables: dict[str, Any] = {"tie_word_embeddings": is_tied}
    if own is not None:
        tables["vocab_size"] = own
        if found[0] == "marian":
            tables |= {"share_encoder_decoder_embeddings": False}
            tables |= {"decoder_vocab_size": config.vocab_size}
    pads = {"marian": config.start_id, "m2m_100": config.position_offset - 1}
    return {
        "architectures": [family.architecture],
        "model_type": found[0],
        "is_encoder_decoder": True,
        **keys.settings_of(KEYS, config),
        **tables,
        "decoder_start_token_id": config.start_id,
        "pad_token_id": pads.get(found[0], family.pad_id),
        "eos_token_id": family.eos_id,
        "bos_token_id": 0,
    }
