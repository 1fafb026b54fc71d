"""Tokenizers, which convert strings to token ids and back.

They wrap the libraries ``tokenizers`` and ``sentencepiece``. The byte tokenizer of ByT5 is
implemented here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import sentencepiece
import tokenizers

from decoding_jax.storage import CloudPath, StoragePath, local_copy, storage_path
from decoding_jax.text.settled import decoding_of, settled_by_decoder, without_incomplete
from decoding_jax.text.token_texts import (
    TokenTexts,
    concatenated,
    texts_by_decoding,
    texts_of_decoder,
)

SENTENCEPIECE_FILES = (
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
)
BYTE_FAMILY_VOCAB = 384
# Families whose other files number the pieces in another way than their models.
_ONE_FILE = ("bart", "m2m_100", "marian", "mbart", "pegasus")
_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    *SENTENCEPIECE_FILES,
)


class TokenizerError(ValueError):
    """The tokenizer of a directory is missing or cannot be read."""


class Tokenizer(Protocol):
    """The methods that ``generate``, ``stream`` and ``constraints`` use.

    Attributes:
      eos_ids: the ids that end a text.
    """

    eos_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """The token ids of an input, with the special tokens that the model expects."""
        ...

    def pieces(self, text: str) -> list[int]:
        """The token ids without special tokens. Only ``constraints`` uses this method."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without special tokens."""
        ...


class SettlingTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows which part of a text further tokens do not change."""

    def settled(self, ids: Sequence[int]) -> str:
        """The beginning of ``decode(ids)`` with which every ``decode([*ids, *more])`` begins."""
        ...


class ConcatenatingTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows the text of each token, which stop strings need."""

    def token_texts(self, size: int) -> TokenTexts:
        """What each of the ids below ``size`` adds to a text. Others of the model add nothing."""
        ...


class SentencePieceTokenizer:
    """A SentencePiece model.

    Args:
      path: the ``.model`` file.
      prefix: the ids put before every input, such as Llama's start token.
      suffix: the ids put after every input, such as T5's end token.
      eos_ids: see ``Tokenizer``.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        eos_ids: Sequence[int] = (),
    ):
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as e:
            raise TokenizerError(f"{path}: not a SentencePiece model") from e
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.eos_ids = tuple(eos_ids)

    def encode(self, text: str) -> list[int]:
        return self._prefix + self.pieces(text) + self._suffix

    def pieces(self, text: str) -> list[int]:
        return self._pieces.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        size = self._pieces.vocab_size()
        # A model's embedding table may have more rows than the tokenizer has pieces.
        return self._pieces.decode([int(i) for i in ids if i < size])

    def settled(self, ids: Sequence[int]) -> str:
        return without_incomplete(self.decode(ids), 3)

    def token_texts(self, size: int) -> TokenTexts:
        pieces = self._pieces
        known = range(min(size, pieces.vocab_size()))
        rest = size - len(known)
        empty = [pieces.is_control(i) for i in known] + [True] * rest
        byte = [int(pieces.id_to_piece(i)[3:5], 16) if pieces.is_byte(i) else -1 for i in known]
        return texts_by_decoding(self.decode, empty, byte + [-1] * rest)


class HuggingFaceTokenizer:
    """A ``tokenizers.Tokenizer``, whose post-processor adds the special tokens.

    Args:
      tokenizer: the tokenizer.
      eos_ids: see ``Tokenizer``.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, eos_ids: Sequence[int] = ()):
        self._tokenizer, self._decoding = tokenizer, decoding_of(tokenizer)
        self.eos_ids = tuple(eos_ids)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def settled(self, ids: Sequence[int]) -> str:
        return settled_by_decoder(self._tokenizer, self._decoding, ids)

    def token_texts(self, size: int) -> TokenTexts:
        return texts_of_decoder(self._tokenizer, size)


class ByteTokenizer:
    """The tokenizer of ByT5 (Xue et al. 2022): UTF-8 bytes as ids 3 to 258.

    The ids 0, 1 and 2 are the padding, end and unknown tokens.

    Example:
      >>> ByteTokenizer().encode("hi")
      [107, 108, 1]
      >>> ByteTokenizer().decode([107, 108, 1])
      'hi'
    """

    eos_ids: tuple[int, ...] = (1,)

    def encode(self, text: str) -> list[int]:
        return [*self.pieces(text), 1]

    def pieces(self, text: str) -> list[int]:
        return [b + 3 for b in text.encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) - 3 for i in ids if 3 <= i < 259).decode("utf-8", errors="replace")

    def settled(self, ids: Sequence[int]) -> str:
        return without_incomplete(self.decode(ids), 1)

    def token_texts(self, size: int) -> TokenTexts:
        return concatenated([bytes([i - 3]) if 3 <= i < 259 else b"" for i in range(size)])


def load_tokenizer(
    directory: str | StoragePath, *, family: dict[str, Any] | None = None
) -> Tokenizer:
    """The tokenizer of a model directory.

    It is the first that the directory has of ``tokenizer.json``, a SentencePiece model,
    ``vocab.json`` with ``merges.txt``, and a ByT5 configuration. The end tokens are those of
    ``generation_config.json`` or ``config.json``.

    Args:
      directory: a directory with these files, or the path of a SentencePiece model.
      family: ``model_type`` and ``vocab_size``, used if there is no ``config.json``.

    Raises:
      TokenizerError: in one line, if there is no tokenizer or it cannot be read.
      ValueError: for a URL of an unknown scheme.
    """
    path = storage_path("tokenizer", directory)
    if not isinstance(path, CloudPath):
        return _load(path, family)
    is_file = path.is_file()
    if not is_file and not path.is_dir():
        raise TokenizerError(f"{path}: no such directory")
    names = [path.name] if is_file else _FILES
    with local_copy(path.parent if is_file else path, names) as folder:
        copied = folder / path.name if is_file else folder
        try:
            return _load(copied, family)
        except TokenizerError as e:
            raise TokenizerError(str(e).replace(str(copied), str(path))) from e


def _load(directory: Path, family: dict[str, Any] | None) -> Tokenizer:
    if directory.is_file():
        return _sentencepiece(directory, family or {}, ())
    if not directory.exists():
        raise TokenizerError(f"{directory}: no such directory")
    config = _json(directory / "config.json") or family or {}
    eos_ids = _eos_ids(directory, config)
    if (directory / "tokenizer.json").exists():
        return HuggingFaceTokenizer(_read_json(directory / "tokenizer.json"), eos_ids=eos_ids)
    if config.get("model_type") in _ONE_FILE:
        kind = config["model_type"]
        raise TokenizerError(f"{directory}: no tokenizer; takes tokenizer.json for a {kind}")
    for name in SENTENCEPIECE_FILES:
        if (directory / name).exists():
            return _sentencepiece(directory / name, config, eos_ids)
    if (directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        return HuggingFaceTokenizer(_byte_level_bpe(directory), eos_ids=eos_ids)
    if config.get("model_type") == "t5" and config.get("vocab_size") == BYTE_FAMILY_VOCAB:
        return ByteTokenizer()
    raise TokenizerError(
        f"{directory}: no tokenizer; takes tokenizer.json, {', '.join(SENTENCEPIECE_FILES)}, "
        "or vocab.json with merges.txt"
    )


def _sentencepiece(path: Path, config: dict[str, Any], eos_ids: Sequence[int]) -> Tokenizer:
    bare = SentencePieceTokenizer(path, eos_ids=eos_ids)
    pieces = bare._pieces
    end = [i for i in (pieces.eos_id(),) if i >= 0]
    start = [i for i in (pieces.bos_id(),) if i >= 0]
    encoder_decoder = config.get("model_type") in ("t5", "mt5")
    return SentencePieceTokenizer(
        path,
        prefix=() if encoder_decoder else start,
        suffix=end if encoder_decoder else (),
        eos_ids=eos_ids or end,
    )


def _byte_level_bpe(directory: Path) -> tokenizers.Tokenizer:
    """The tokenizer of GPT-2 from its two older files."""
    model = tokenizers.models.BPE.from_file(
        str(directory / "vocab.json"), str(directory / "merges.txt")
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def _read_json(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises Exception itself
        raise TokenizerError(f"{path}: not a tokenizer file: {e}") from e


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise TokenizerError(f"{path}: broken JSON: {e}") from e


def _eos_ids(directory: Path, config: dict[str, Any]) -> tuple[int, ...]:
    for settings in (_json(directory / "generation_config.json"), config):
        ids = settings.get("eos_token_id")
        if isinstance(ids, int):
            return (ids,)
        if isinstance(ids, list):
            return tuple(ids)
    return ()
