"""The inputs of a call: texts and conversations that are checked, encoded and cut to fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np

from decoding_jax import fields
from decoding_jax.batches import Limits
from decoding_jax.batches.widths import shared_size
from decoding_jax.fields import describe
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.models.shared_prefix import prefix_of
from decoding_jax.text.chat import Conversation, check_conversation
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn

_SPARE_ROWS = 1024  # of a network, for which a tokenizer may lack tokens
_IDS = "token ids are the Prompt(tokens, length) of a strategy, such as decoding_jax.greedy"


def check_tokenizer(tokenizer: Any, model: Any) -> None:
    """Checks that a tokenizer has what ``generate`` uses, and a vocabulary that fits the model's.

    A network often has more rows than there are tokens, for its size to be a multiple of some
    number, and may lack rows for added tokens, so neither is a sign of a tokenizer of another
    model. DeepSeek's 102,400 rows for 100,015 tokens are the most that was found, 2.4%. Where over
    a tenth of the rows have no token, the tokenizer is likely to be another model's, unless the
    ``config.json`` beside it has the network's size.

    Args:
      tokenizer: a tokenizer, whose vocabulary is not checked without ``base_vocab_size``.
      model: a model, of the protocol or to be bound.

    Warns:
      UserWarning: for far fewer tokens than the model has.

    Raises:
      ValueError: if an attribute of ``Tokenizer`` is missing, if ``eos_ids`` is no tuple or list of
        ids, or for more tokens, besides added ones, than the model has.
    """
    expected = "one with encode, decode and eos_ids, such as decoding_jax.load gives"
    if tokenizer is None or isinstance(tokenizer, (str, type)):
        raise fields.error("tokenizer", expected, tokenizer)
    missing = [name for name in ("encode", "decode", "eos_ids") if not hasattr(tokenizer, name)]
    if missing:
        of_transformers = hasattr(tokenizer, "name_or_path")
        hint = "; text.load_tokenizer(directory) reads the same files" if of_transformers else ""
        raise ValueError(
            f"tokenizer: expected {expected}, got a {type(tokenizer).__name__} without "
            f"{', '.join(missing)}{hint}"
        )
    ids = tokenizer.eos_ids
    if not isinstance(ids, (tuple, list)) or not all(isinstance(i, int) for i in ids):
        raise fields.error("tokenizer.eos_ids", "a tuple of token ids", ids)
    size, needed = vocabulary_size(model), getattr(tokenizer, "base_vocab_size", 0)
    if needed > size:
        raise ValueError(
            f"tokenizer: expected one of the model's vocabulary, of at most {size} tokens besides "
            f"added ones, got one of {needed}"
        )
    tokens = max(needed, getattr(tokenizer, "vocab_size", 0)) if needed else size
    of_this_size = getattr(tokenizer, "network_size", None) == size
    if size - tokens > max(_SPARE_ROWS, size // 10) and not of_this_size:
        warn(
            f"tokenizer: expected one of the model's vocabulary of {size}, got one of {tokens} "
            "tokens, which may be that of another model"
        )


def check_drafter(drafter: Any, tokenizer: Any) -> None:
    """Checks that a draft that comes with its tokenizer has the target's, besides added tokens.

    Raises:
      ValueError: in one line, if a token has another id.
    """
    own = drafter[1] if isinstance(drafter, tuple) and len(drafter) == 2 else None
    libraries: list[Any] = [getattr(x, "library", None) for x in (own, tokenizer)]
    if None in libraries:
        return
    mine, theirs = (x.get_vocab(with_added_tokens=False) for x in libraries)
    if mine != theirs:
        different = [t for t in mine.keys() | theirs.keys() if mine.get(t) != theirs.get(t)]
        token = min(different, key=lambda t: mine.get(t, theirs.get(t)))
        raise ValueError(
            f"drafter: expected a model with the target's tokenizer, whose id of {token!r} is "
            f"{theirs.get(token)}, got one with {mine.get(token)}"
        )


def check_texts(texts: Any) -> None:
    """Checks that the inputs are a sequence of valid strings, or of conversations.

    ``encode_texts`` refuses empty ones.

    Raises:
      ValueError: for any other value.
    """
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts: expected a list of strings, got one string, {describe(texts)}")
    if isinstance(texts, (Mapping, Set)):
        what = "a dict of columns" if isinstance(texts, Mapping) else "a set, which has no order"
        raise ValueError(f"texts: expected a list of strings, got {what}")
    if hasattr(texts, "columns") or hasattr(texts, "column_names"):
        got = f"a {type(texts).__name__}; a column of it is list(table[name])"
        raise ValueError(f"texts: expected a list of strings, got {got}")
    if not isinstance(texts, Sequence) and not hasattr(texts, "__len__"):
        raise fields.error("texts", "a list of strings", texts)
    for i, text in enumerate(texts):
        if isinstance(text, Mapping) and "role" in text:
            raise ValueError(
                "texts: expected strings, or lists of messages, which is [messages] for one "
                f"conversation, got one message at index {i}"
            )
        if isinstance(text, (list, tuple)) and any(isinstance(part, Mapping) for part in text):
            check_conversation(f"texts[{i}]", text)
        elif not isinstance(text, str):
            are_ids = isinstance(text, (list, tuple, int)) or hasattr(text, "dtype")
            hint = f"; {_IDS}" if are_ids else ""
            raise ValueError(f"texts: expected strings, got {describe(text)} at index {i}{hint}")
        for part in jax.tree.leaves(text):
            if isinstance(part, str) and (fault := unicode_fault(part)) is not None:
                raise ValueError(f"texts: expected Unicode text, got {fault} at index {i}")


def unicode_fault(text: str) -> str | None:
    """The reason why a string is no text, such as half of an emoji; None if it is one.

    Example:
      >>> print(unicode_fault("a" + chr(0xD83D)))
      '\\ud83d', a lone surrogate, as character 1
      >>> unicode_fault("a" + chr(0x1F600))
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{text[error.start]!r}, a lone surrogate, as character {error.start}"
    return None


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str | Conversation], model: Any, tools: Any = None
) -> list[list[int]]:
    """The tokens of every text, or of every conversation and the beginning of its next message.

    Conversations have the tools, if there are any.

    An empty text is a prompt for a decoder-only model if the tokenizer adds a token to it.

    Raises:
      ValueError: for a text without a token, and for an empty input of an encoder-decoder.
    """
    ids = [_encoded(tokenizer, text, i, tools) for i, text in enumerate(texts)]
    for i, (text, row) in enumerate(zip(texts, ids, strict=True)):
        empty = isinstance(text, str) and not text.strip()
        if not row or (isinstance(model, EncoderDecoder) and empty):
            raise ValueError(f"texts: expected texts with a token, got an empty text at index {i}")
    return ids


def _encoded(tokenizer: Any, text: str | Conversation, index: int, tools: Any) -> list[int]:
    if isinstance(text, str):
        return tokenizer.encode(text)
    if not hasattr(tokenizer, "apply_chat_template"):
        raise ValueError(
            f"texts: expected strings with a {type(tokenizer).__name__}, which has no template for "
            f"messages, got a conversation at index {index}"
        )
    given = {} if tools is None else {"tools": tools}
    return tokenizer.apply_chat_template(text, add_generation_prompt=True, **given)


def check_tokens(model: Any, ids: Sequence[Sequence[int]]) -> None:
    """Checks that the tokens of the inputs are of the model's vocabulary, after its shared prefix.

    Raises:
      ValueError: for an id outside the vocabulary, or an input that does not begin with the tokens
        that the model shares.
    """
    if (tokens := prefix_of(model)) is not None:
        shared = np.asarray(tokens).tolist()
        for i, row in enumerate(ids):
            if list(row[: len(shared)]) != shared:
                raise ValueError(
                    "texts: expected whole texts, or the tokenizer of share_prefix, got a text at "
                    f"index {i} that does not begin with the {len(shared)} tokens of the model's "
                    "shared prefix"
                )
    is_source = isinstance(model, EncoderDecoder)
    check_ids(ids, model.source_vocab_size if is_source else vocabulary_size(model))


def check_ids(ids: Iterable[Sequence[int]], size: int) -> None:
    """Checks that the tokens of some texts are of a vocabulary of this size.

    Raises:
      ValueError: for an id outside of it.
    """
    for i, row in enumerate(ids):
        if len(row) and not 0 <= min(row) <= max(row) < size:
            outside = next(token for token in row if not 0 <= token < size)
            raise ValueError(
                "tokenizer: expected a tokenizer of the model's vocabulary, ids from 0 to "
                f"{size - 1}, got id {outside} for text {i}"
            )


def vocabulary_size(model: Any) -> int:
    """V, of a model that may have to be bound to its inputs first."""
    return model.config.vocab_size if hasattr(model, "bind") else model.vocab_size


def shared_positions(model: Any) -> int | None:
    """The number of positions that a text shares with its new tokens, or None for no limit.

    An encoder-decoder has positions of its own for new tokens.
    """
    return None if isinstance(model, EncoderDecoder) else getattr(model, "max_positions", None)


def input_positions(model: Any) -> int | None:
    """The largest number of tokens of a text, or None for no limit."""
    if not isinstance(model, EncoderDecoder):
        return shared_positions(model)
    return model.config.position_limit


def fitted(
    model: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
    limits: Limits,
    tools: Any = None,
    *,
    truncate: bool,
) -> list[list[int]]:
    """The tokens of texts, each of which fits into the model.

    Args:
      model, tokenizer, texts, tools: as for ``generate``.
      limits: the limits of the call.
      truncate: whether to cut texts that are too long. These then leave positions for the limit
        that was named; or else for the default, but at most for half of the positions.

    Raises:
      ValueError: as ``encode_texts``, and for a text with more tokens than the model has positions,
        unless it is cut.
    """
    ids = encode_texts(tokenizer, texts, model, tools)
    size = input_positions(model)
    if size is None:
        return ids
    if truncate:
        continued, shared = not isinstance(model, EncoderDecoder), shared_size(model)
        named, room, longest = limits.named, size, size
        if continued:
            if named is not None and named > size:
                raise ValueError(
                    f"max_new_tokens: expected at most {size}, the model's positions, got {named}"
                )
            room -= min(limits.default, size // 2) if named is None else named
            longest -= 0 if named is None else named - 1
        return [
            cut(tokenizer, row, room, shared, keep_last=continued) if len(row) > longest else row
            for row in ids
        ]
    for i, row in enumerate(ids):
        if len(row) > size:
            raise ValueError(
                f"texts: expected at most {size} tokens, the positions of the model, got "
                f"{len(row)} at index {i}, {describe(texts[i])}; truncate=True cuts the text"
            )
    return ids


def cut(
    tokenizer: Tokenizer, ids: list[int], size: int, shared: int = 0, *, keep_last: bool
) -> list[int]:
    """Cuts the tokens of a text to a number, without those that the tokenizer adds to every text.

    Args:
      tokenizer: the tokenizer.
      ids: the tokens.
      size: the number to cut them to. At least one token of the text is kept.
      shared: the number of first tokens that are kept besides.
      keep_last: whether the last tokens of the text are kept, rather than the first.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> tokenizer = ByteTokenizer()
      >>> ids = tokenizer.encode("abcdef")
      >>> for keep_last in (False, True):
      ...     tokenizer.decode(cut(tokenizer, ids, 4, keep_last=keep_last))
      'abc'
      'def'
    """
    if len(ids) <= size:
        return ids
    try:
        added = tokenizer.encode("")
    except Exception:  # A tokenizer may refuse an empty text, by exceptions of many types.
        added = []
    begin = max(shared, common(ids, added))
    end = min(common(ids[::-1], added[::-1]), max(len(added) - begin, 0))
    text = ids[begin : len(ids) - end]
    count = max(size - begin - end, 1)
    return ids[:begin] + (text[-count:] if keep_last else text[:count]) + ids[len(ids) - end :]


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(first), len(second)))
