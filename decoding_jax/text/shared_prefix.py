"""A text that is put before every input, and whose keys and values are computed and stored once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from decoding_jax import fields
from decoding_jax.fields import describe
from decoding_jax.models import Confident, Guided, with_shared_prefix
from decoding_jax.models.shared_prefix import SharedPrefixModel, check_decoder
from decoding_jax.storage import StoragePath, storage_path
from decoding_jax.text.loading import Model
from decoding_jax.text.tokenizers import Tokenizer, WrappedTokenizer

_LOGGER = logging.getLogger(__name__)

GRANULE = 64
"""``with_common_prefix`` shares a multiple of this number of tokens."""

# Beginnings of inputs to try, since the last tokens of a text can depend on the text after it.
_BEGINNINGS = ("a", "A", "1", " a", " A", "\n", ".", '"', "é", "你")


class WithText(WrappedTokenizer):
    """A tokenizer that puts a text before every input, from ``share_prefix``.

    The text and an input are tokenized as one string, which has to begin with the shared tokens.

    Args:
      tokenizer: the tokenizer.
      text: the text.
      shared: the tokens that every input begins with.
    """

    def __init__(self, tokenizer: Tokenizer, text: str, shared: Sequence[int]):
        super().__init__(tokenizer)
        self._text, self._shared = text, list(shared)

    def encode(self, text: str) -> list[int]:
        """The token ids of the text and an input.

        Raises:
          ValueError: if they do not begin with the shared tokens, or end with them.
        """
        ids = self._tokenizer.encode(self._text + text)
        size = len(self._shared)
        if ids[:size] != self._shared:
            raise ValueError(
                "text: expected a prefix that ends where no token crosses, such as a line break, "
                f"got an input, {describe(text)}, that changes the {size} shared tokens"
            )
        if not text or len(ids) == size:
            raise fields.error("text", "a text with a token after the prefix", text)
        return ids


def share_prefix(
    model: tuple[Model, Tokenizer], text: str | None = None, file: str | StoragePath | None = None
) -> tuple[SharedPrefixModel, WithText]:
    """Puts a text before every input, such as instructions or examples, and runs it once.

    The text's keys and values are stored once for all rows, so each row costs only the tokens after
    them. The text and an input are tokenized as one string. Hence completions are those of
    ``generate(model, tokenizer, [text + x for x in texts])``, up to the rounding of float32.

    The shared tokens are those of the text that do not depend on the input: a tokenizer may join
    the last characters of the text, such as a space, with the first of an input. They are found by
    trying some beginnings of inputs. An input that changes a shared token is an error (in the batch
    job, an error of its record).

    Args:
      model: a decoder-only model and its tokenizer, as ``load`` returns them. With a
        ``prefill_chunk``, the text is run in chunks of that many tokens.
      text: the text.
      file: in place of the text, a file that holds it in UTF-8, or its URL.

    Returns:
      A model and a tokenizer, for ``generate``, ``stream`` and the batch job.

    Raises:
      ValueError: for no text, for an encoder-decoder, or if no token of the text is shared.
      OSError: if the file cannot be read.

    Example:
      >>> import jax
      >>> from decoding_jax.models import GPT2, GPT2Config
      >>> from decoding_jax.text import ByteTokenizer
      >>> config = GPT2Config(259, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=1)
      >>> model = GPT2.init(config, jax.random.key(0)), ByteTokenizer()
      >>> shared, tokenizer = share_prefix(model, "In capitals. one: ONE two: TWO ")
      >>> shared.tokens.shape, tokenizer.decode(tokenizer.encode("three:"))
      ((31,), 'In capitals. one: ONE two: TWO three:')
    """
    if not isinstance(model, tuple) or len(model) != 2:
        expected = "a model and its tokenizer, as decoding_jax.load returns them"
        raise fields.error("model", expected, model)
    if (text is None) == (file is None):
        raise ValueError("text: expected a text or a file, got neither or both")
    if file is not None:
        text = storage_path("file", file).read_text(encoding="utf-8")
    if not isinstance(text, str) or not text:
        raise fields.error("text", "a text that is not empty", text)
    net, tokenizer = model
    if isinstance(net, SharedPrefixModel):
        raise ValueError(
            "model: expected one without a shared prefix, and a whole text, got one with a prefix"
        )
    tokens, shared = tokenizer.encode(text), _shared_tokens(tokenizer, text)
    if not shared:
        raise ValueError(
            f"text: expected a longer one, got {describe(text)}, none of whose tokens stays the "
            "same whatever follows"
        )
    _LOGGER.info("shared prefix: %d tokens, of %d of the text alone", len(shared), len(tokens))
    return with_shared_prefix(net, shared), WithText(tokenizer, text, shared)


def with_common_prefix(model: Any, ids: Sequence[list[int]], wanted: bool = True) -> Any:
    """The model with the common first tokens of several texts, run and stored once.

    The number of shared tokens is a multiple of ``GRANULE``, and leaves each text a token. The
    model is returned unchanged if it has a shared prefix, or if the texts have fewer tokens in
    common.

    Args:
      model: a decoder-only model from ``load``, which may be guided, or end its texts where it is
        not confident.
      ids: the tokens of the texts, none of them empty.
      wanted: the ``share_prefix`` of a call; with False, the model is returned unchanged.

    Raises:
      ValueError: for a model of another kind, such as an encoder-decoder, or if ``wanted`` is not
        True or False.
    """
    if not isinstance(wanted, bool):
        raise ValueError(
            f"share_prefix: expected True or False, got {describe(wanted)}; the function "
            "decoding_jax.share_prefix takes a text"
        )
    if not wanted:
        return model
    if isinstance(model, (Guided, Confident)):
        return dataclasses.replace(model, model=with_common_prefix(model.model, ids, wanted))
    check_decoder(model.model if isinstance(model, SharedPrefixModel) else model)
    if not ids:
        return model
    first, last = min(ids), max(ids)  # a prefix of these two is a prefix of all texts
    limit = min(len(row) for row in ids) - 1
    different = (i for i, (x, y) in enumerate(zip(first, last, strict=False)) if x != y)
    size = min(next(different, limit), limit) // GRANULE * GRANULE
    if len(ids) < 2 or size == 0 or isinstance(model, SharedPrefixModel):
        return model
    return with_shared_prefix(model, first[:size])


def _shared_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The first tokens of a text, up to one that depends on the text that follows."""
    shared = tokenizer.encode(text)
    for beginning in _BEGINNINGS:
        try:
            ids = tokenizer.encode(text + beginning)
        except Exception:  # A user's tokenizer may refuse a character, which no input has then.
            continue
        different = (i for i, (x, y) in enumerate(zip(shared, ids, strict=False)) if x != y)
        shared = shared[: next(different, min(len(shared), len(ids)))]
    return shared
