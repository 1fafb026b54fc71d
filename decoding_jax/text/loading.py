"""The loading of a model and its tokenizer, from a directory or by an embedded model's name."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from decoding_jax import suggestions
from decoding_jax.models import T5, Bart, Gemma, Llama, T5Decoder, T5Gemma, load_model
from decoding_jax.models.checkpoint import CheckpointError
from decoding_jax.models.checkpoint.gemma_library import find_gemma
from decoding_jax.models.checkpoint.lora import base_and_adapter
from decoding_jax.models.decoder import with_attention, with_prefill_chunk
from decoding_jax.models.fixed_shapes import reproducible as with_fixed_shapes
from decoding_jax.storage import CloudPath, StoragePath, is_hub_name, model_path
from decoding_jax.text import inputs
from decoding_jax.text.generation_config.config import DirectoryConfig
from decoding_jax.text.tokenizer_files import SENTENCEPIECE_FILES, end_ids, load_tokenizer
from decoding_jax.text.tokenizers import Tokenizer, TokenizerError
from decoding_jax.text.warn import warn

Model = T5 | T5Decoder | Bart | T5Gemma | Llama

_EMBEDDED = Path(__file__).parent.parent / "models" / "embedded"


def embedded() -> dict[str, Path]:
    """The names and directories of the models that are part of the package, with tokenizers."""
    return {
        p.name: p
        for p in sorted(_EMBEDDED.glob("*"))
        if any((p / name).exists() for name in ("tokenizer.json", *SENTENCEPIECE_FILES))
    }


def _embedded(name: str) -> Path:
    """The directory of an embedded model.

    Raises:
      CheckpointError: for another name, with those that are near, or how to get its directory.
    """
    found = embedded()
    if name in found:
        return found[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), found, 3)
    listed = ", ".join(near or found)
    hint = (
        f"expected a directory, or the name of an embedded model, {'such as ' if near else ''}"
        f"{listed}"
    )
    if is_hub_name(name) and not near:
        hint += f'; or "hf://{name}", which huggingface_hub.snapshot_download("{name}") downloads'
    raise CheckpointError(f"{name}: no such directory; {hint}")


@suggestions.in_one_line
def load(
    directory: str | StoragePath,
    *,
    dtype: str = "float32",
    tokenizer: str | StoragePath | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    scan_layers: bool = False,
    prefill_chunk: int | None = None,
    weights: str | None = None,
    attention: str = "auto",
    reproducible: bool | int = False,
    lora: str | StoragePath | None = None,
) -> tuple[Model, Tokenizer]:
    """Loads a model and its tokenizer.

    Args:
      directory: a directory in the Hugging Face layout (``config.json``, ``*.safetensors``,
        tokenizer files), a T5X checkpoint, a directory of several, of which the latest is read, or
        the name of an embedded model: ``translation-en-fr`` and ``translation-en-fr-draft``, or
        ``python-code``, ``python-code-draft-wide`` and ``python-code-draft-deep``. An existing
        directory has precedence over an embedded model of the same name. A directory may be the
        URL of a bucket, such as ``gs://bucket/model`` (see ``decoding_jax.storage``), or a model of
        the Hugging Face Hub, ``hf://organisation/model``, which ``huggingface_hub`` downloads.
      dtype: the dtype of weights, activations and cache, ``"float32"`` or ``"bfloat16"``, or
        ``"auto"`` for the one that most of the stored weights have (and float32 for float16).
      tokenizer: another directory with tokenizer files, or a SentencePiece model. A T5X checkpoint
        needs one, because T5X does not store the tokenizer. One that names no end tokens has those
        of ``directory``.
      mesh: a mesh of devices such as ``jax.make_mesh((2, 4), ("data", "model"))``, or the sizes of
        its axes, ``{"data": 2, "model": 4}``. Each device reads its own piece of the model, and
        decoding runs on all of them (see ``decoding_jax.sharding``). With None, the model is on one
        device.
      scan_layers: whether one layer is compiled and scanned. A deep network then compiles as fast
        as a shallow one, and decodes the same tokens. On a GPU a step then takes about twice as
        long, because the weights of each layer are copied from their stack.
      prefill_chunk: the number of prompt tokens that run at a time, which bounds what a long prompt
        holds besides its cache, or None for whole prompts. For decoder-only models.
      weights: None, or ``"int8"`` or ``"int4"`` for weights of 8 or 4 bits, with activations and
        cache in ``dtype`` (see ``models.load_model``).
      attention: what computes attention: ``"xla"``, ``"pallas"`` (kernels for NVIDIA GPUs and
        TPUs), or ``"auto"`` for the faster one that can run. It changes results by rounding alone.
        Where a forced kernel cannot run, a ``ValueError`` comes when the model first decodes.
      reproducible: whether a text's tokens and log-probabilities are the same bits in batches of
        any size, order and padding, at a price in time; or the number of lanes that run together
        (see ``models.reproducible``).
      lora: the directory of an adapter of PEFT, which is merged into the weights (see
        ``models.load_model``). ``directory`` may also be that of an adapter that names its
        model's directory, whose tokenizer is then read.

    Returns:
      The model and its tokenizer. An encoder-decoder has to be bound to its inputs before it
      decodes, which ``generate`` does. A ``generation_config.json`` in the directory is the
      tokenizer's ``generation_config``; calls of ``generate`` and ``stream`` with neither strategy
      nor config follow it.

    Warns:
      UserWarning: for ``scan_layers`` on a GPU, and for a ``tokenizer`` that seems to be another
        model's: a token has another id in it than in the tokenizer of ``directory``, it has other
        end tokens, or over a tenth of the network's rows have no token.

    Raises:
      ValueError: in one line, for a directory, file or setting that is missing, broken or not
        supported, for a tokenizer with more tokens than the model, for a URL of an unknown scheme,
        and for a mesh that does not divide the network.

    Example:
      >>> model, tokenizer = load("translation-en-fr-draft")
      >>> tokenizer.decode(tokenizer.encode("Good morning!"))
      'Good morning!'
    """
    if not isinstance(directory, (str, Path, CloudPath)):
        got, names = type(directory).__name__, ", ".join(embedded())
        raise ValueError(f"directory: expected a path, or one of {names}, got a {got}")
    path = model_path("directory", directory)
    if tokenizer is not None:
        tokenizer = model_path("tokenizer", tokenizer, weights=False)
    if not isinstance(path, CloudPath) and not path.exists():
        path = _embedded(str(directory))
    if scan_layers and jax.default_backend() == "gpu":
        warnings.warn(
            "scan_layers: a step of scanned layers takes about twice as long on a GPU as one of"
            " separate layers; False is faster there",
            stacklevel=2,
        )
    if lora is not None:
        lora = model_path("lora", lora)
    path, lora = base_and_adapter(path, lora)
    model = load_model(
        path, dtype=dtype, mesh=mesh, scan_layers=scan_layers, weights=weights, lora=lora
    )
    if prefill_chunk is not None:
        model = with_prefill_chunk(model, prefill_chunk)
    model = with_attention(model, attention)
    if reproducible is not False:
        model = with_fixed_shapes(model, None if reproducible is True else reproducible)
    family = None
    if isinstance(model, T5):
        family = {"model_type": "t5", "vocab_size": model.config.vocab_size}
    elif isinstance(model, Gemma) and find_gemma(path) is not None:
        # As its library samples texts.
        family = {"add_bos_token": True, "end_tokens": ["<end_of_turn>"]}
    made = load_tokenizer(path if tokenizer is None else tokenizer, family=family)
    inputs.check_tokenizer(made, model)
    if tokenizer is not None:
        _compare_with_own(made, path)
    # Not a part of the protocol: a tokenizer of one's own need not have it.
    object.__setattr__(made, "generation_config", DirectoryConfig.read(path))
    return model, made


def _compare_with_own(made: Any, directory: StoragePath) -> None:
    """Compares a tokenizer from elsewhere with what the model's directory has of its own.

    Warns:
      UserWarning: for a token that has another id there, or for other end tokens.
    """
    ends = end_ids(directory)
    made.eos_ids = made.eos_ids or ends
    try:
        own: Any = load_tokenizer(directory)
    except TokenizerError:  # The directory has none, or none that can be read.
        mine, theirs = {}, {}
    else:
        mine, theirs = (x.library.get_vocab(with_added_tokens=False) for x in (made, own))
    different = [token for token in mine.keys() & theirs.keys() if mine[token] != theirs[token]]
    if different:
        token = min(different, key=lambda t: theirs[t])
        warn(
            f"tokenizer: expected that of {directory}, whose id of {token!r} is {theirs[token]}, "
            f"got one with {mine[token]}, which may be that of another model"
        )
    elif ends and not set(ends).intersection(made.eos_ids):
        warn(
            f"tokenizer: expected one whose texts end with {list(ends)}, as those of {directory}, "
            f"got one with {list(made.eos_ids)}, which may be that of another model"
        )
