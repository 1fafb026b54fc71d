"""BART, mBART, Blenderbot, Pegasus, Marian, M2M-100 and NLLB in the Hugging Face layout."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

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


class Family(NamedTuple):
    """What all networks of one ``model_type`` have in common.

    Attributes:
      architecture: the name of the class in ``transformers``.
      shape: the fields of the config that ``SHAPE`` names.
      absent: settings, where files have none.
      eos_id: the end token that is written.
      offset: the number of the first learned position.
      logits_bias: whether the files may hold a bias of the logits.
    """

    architecture: str
    shape: tuple[str, bool, bool]
    absent: Mapping[str, Any]
    eos_id: int = 2
    offset: int = 2
    logits_bias: bool = True


SHAPE = ("positions", "norm_first", "embedding_norm")
START, PAD = "decoder_start_token_id", "pad_token_id"
FAMILIES = {
    "bart": Family("BartForConditionalGeneration", ("learned", False, True), {START: 2, PAD: 1}),
    "blenderbot": Family(
        "BlenderbotForConditionalGeneration",
        ("learned", True, False),
        {START: 1, PAD: 0},
        offset=0,
    ),
    "mbart": Family("MBartForConditionalGeneration", ("learned", True, True), {PAD: 1}),
    "pegasus": Family(
        "PegasusForConditionalGeneration",
        ("sinusoidal", True, False),
        {START: 0, PAD: 0},
        eos_id=1,
    ),
    "marian": Family("MarianMTModel", ("sinusoidal", False, False), {START: 58_100}, eos_id=0),
    "m2m_100": Family(
        "M2M100ForConditionalGeneration",
        ("sinusoidal_inclusive", True, False),
        {START: 2, PAD: 1, "activation_function": "relu", "scale_embedding": True},
        logits_bias=False,
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
    "activation_function": Key("activation", "gelu"),
    "scale_embedding": Key("scale_embedding", False),
}
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
    family = FAMILIES[settings.get("model_type", str)]
    stated = {key: value for key, value in settings.values.items() if value is not None}
    settings = Settings(settings.path, {**family.absent, **stated})
    tensors.rename({}, "model.", r"lm_head\..*|final_logits_bias")
    start = settings.get(START, int, settings.get("bos_token_id", int, 0))
    pad = settings.get(PAD, int, start)
    offsets = {"learned": family.offset, "sinusoidal": 0, "sinusoidal_inclusive": pad + 1}
    shape: dict[str, Any] = dict(zip(SHAPE, family.shape, strict=True))
    config = BartConfig(
        **shape,
        **keys.fields_of(KEYS, settings) | _tables(settings, tensors),
        start_id=start,
        position_offset=offsets[family.shape[0]],
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
    found = [
        name
        for name, family in FAMILIES.items()
        if family.shape == tuple(getattr(config, key) for key in SHAPE)
        and family.logits_bias >= config.logits_bias
        and (name == "marian" or own is None or not (is_tied or own != config.vocab_size))
    ]
    offsets = {"learned": FAMILIES[found[0]].offset if found else 0, "sinusoidal": 0}
    offset = offsets.get(config.positions, config.position_offset)
    if not found or config.position_offset != offset or config.position_offset < 0:
        others = ("logits_bias", "position_offset", "source_vocab_size", "logits_via_embedding")
        listed = ", ".join(f"{name}={getattr(config, name)!r}" for name in SHAPE + others)
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
        START: config.start_id,
        PAD: pads.get(found[0], family.absent.get(PAD)),
        "eos_token_id": family.eos_id,
        "bos_token_id": 0,
    }
