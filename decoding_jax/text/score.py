"""The log-probabilities of given continuations."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from decoding_jax import fields, suggestions
from decoding_jax.base import Array, LanguageModel, Prompt
from decoding_jax.batches import encode_batch
from decoding_jax.batches.widths import cheapest, padded_width, round_up, shared_size
from decoding_jax.fields import describe
from decoding_jax.loop.inputs import check_model
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.ops.jit import compilation_announced, jit
from decoding_jax.sharding.meshes import to_host
from decoding_jax.text import inputs
from decoding_jax.text.loading import Model
from decoding_jax.text.token_scores import (
    CHUNK,
    reads_whole_texts,
    scores_by_chunks,
    scores_of_texts,
)
from decoding_jax.text.tokenizers import Tokenizer

_LANES = 8  # continuations of one prompt that are read together
_WIDTHS = 3  # that texts are padded to


class ContinuationScore(NamedTuple):
    """The score of one continuation of L tokens.

    Attributes:
      tokens: the token ids that are scored.
      log_probs: float32 ``[L]``, the log-probability of each under the model, in nats, given the
        prompt and the tokens before it.
      greedy: bool ``[L]``, whether each is the most probable token there, and of equally probable
        ones the one of the lowest id.
    """

    tokens: list[int]
    log_probs: np.ndarray
    greedy: np.ndarray

    @property
    def log_prob(self) -> float:
        """The log-probability of all tokens, in nats."""
        return float(self.log_probs.sum(dtype=np.float64))

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding of the prompt gives these tokens."""
        return bool(self.greedy.all())


@suggestions.in_one_line
def score(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    continuations: Sequence[str | Sequence[int]],
    *,
    batch_size: int = 16,
    progress: bool = True,
) -> list[ContinuationScore]:
    """Scores a continuation of each prompt, or an output of each input of an encoder-decoder.

    A prompt that occurs several times is read once for up to eight continuations, unless these are
    longer than it is. Every other continuation is read together with its prompt, by one call of the
    model. Texts of similar length are read together, padded to one of at most three widths, so that
    few programs are compiled.

    Args:
      model: a model from ``load``, or any language model.
      tokenizer: its tokenizer.
      prompts: N strings, or lists of token ids.
      continuations: N strings, or lists of token ids. Of two strings, the tokens of the whole text
        are scored that follow those with which the tokens of the prompt begin as well: a space at
        the end of a prompt is a part of the continuation where the tokenizer joins it to the next
        word. An output of an encoder-decoder, and a string after a prompt of ids, has tokens of its
        own. No end token is added; ids can have one.
      batch_size: the number of continuations that are read together.
      progress: whether a progress bar is printed, if standard error is a terminal.

    Returns:
      The N scores.

    Raises:
      ValueError: in one line, for a prompt or a continuation without tokens, for ids outside the
        vocabulary, and for texts with more tokens than the model has positions.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr-draft")
      >>> outputs = ["Bonjour !", "Bonsoir !"]
      >>> day, evening = score(model, tokenizer, ["Good morning!"] * 2, outputs)
      >>> day.log_prob > evening.log_prob
      True
    """
    fields.as_switch("progress", progress)
    if not _has_inputs(model):
        check_model(model)
    inputs.check_tokenizer(tokenizer, model)
    batch_size = fields.as_count("batch_size", batch_size)
    pairs = _encoded(model, tokenizer, prompts, continuations)
    _check(model, pairs)
    count = len(set(pairs))
    disable = None if progress and count > batch_size else True
    with tqdm(None, "scoring", count, unit="text", delay=3, disable=disable) as bar:
        found = None
        if _has_inputs(model) or reads_whole_texts(model):
            found = _found(model, _planned(model, pairs, batch_size, as_one=True), bar)
        if found is None:
            found = _found(model, _planned(model, pairs, batch_size, as_one=False), bar) or {}
    return [found[pair] for pair in pairs]


_Tokens = tuple[int, ...]
_Pair = tuple[_Tokens, _Tokens]
"""The tokens of a prompt and of its continuation."""

_Row = tuple[_Tokens, list[_Tokens]]
"""The tokens of a prompt and of continuations of it."""

_Scores = tuple[np.ndarray, np.ndarray, list[int]]
"""Log-probabilities and greedy flags ``[B, N, T]``, and the place of each row's first token."""


def _encoded(model: Any, tokenizer: Any, prompts: Any, continuations: Any) -> list[_Pair]:
    """The tokens of prompts and continuations, none of them empty."""
    for name, texts in (("prompts", prompts), ("continuations", continuations)):
        if isinstance(texts, str) or not hasattr(texts, "__len__"):
            raise fields.error(name, "a list of strings, or of lists of token ids", texts)
    if len(prompts) != len(continuations):
        expected = f"{len(prompts)}, one for each of the prompts"
        raise ValueError(f"continuations: expected {expected}, got {len(continuations)}")
    encode = functools.cache(lambda text: tokenizer.encode(text))
    pieces = functools.cache(lambda text: tokenizer.pieces(text))
    pairs: list[_Pair] = []
    for i, (prompt, text) in enumerate(zip(prompts, continuations, strict=True)):
        if isinstance(prompt, str) and isinstance(text, str) and not _has_inputs(model):
            whole = encode(prompt + text)
            size = inputs.common(encode(prompt), whole)
            first, rest = whole[:size], whole[size:]
        else:
            first = _ids("prompts", prompt, i, encode)
            rest = _ids("continuations", text, i, pieces)
        for name, given, ids in (("prompts", prompt, first), ("continuations", text, rest)):
            if not ids:
                what = f"{name[:-1]} with a token"
                raise ValueError(f"{name}: expected a {what}, got {describe(given)} at index {i}")
        pairs.append((tuple(first), tuple(rest)))
    return pairs


def _ids(name: str, given: Any, index: int, encode: Any) -> list[int]:
    """The tokens of a string, or the token ids that were given."""
    if isinstance(given, str):
        return encode(given)
    ids = np.asarray(given)
    if ids.size and (ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer)):
        got = f"{describe(given)} at index {index}"
        raise ValueError(f"{name}: expected strings, or lists of token ids, got {got}")
    return ids.tolist()


def _has_inputs(model: Any) -> bool:
    """Whether prompts are the inputs of an encoder."""
    return isinstance(model, EncoderDecoder)


def _check(model: Any, pairs: Sequence[_Pair]) -> None:
    """Checks that all ids are of the vocabulary, and that all texts fit into the model."""
    if _has_inputs(model):  # Its prompts may have a vocabulary of their own.
        inputs.check_tokens(model, [prompt for prompt, _ in pairs])
        inputs.check_ids([tokens for _, tokens in pairs], inputs.vocabulary_size(model))
    else:
        inputs.check_tokens(model, [(*prompt, *tokens) for prompt, tokens in pairs])
    size = inputs.input_positions(model)
    if size is None:
        return
    for i, (prompt, tokens) in enumerate(pairs):
        parts = len(prompt), len(tokens)
        needed = max(parts) if _has_inputs(model) else sum(parts) - 1  # The last is not read.
        if needed > size:
            raise ValueError(
                f"continuations: expected texts for the model's {size} positions, got {parts[1]} "
                f"tokens after a prompt of {parts[0]} at index {i}"
            )


class _Rows(NamedTuple):
    """Prompts and continuations of theirs that are read together.

    Attributes:
      rows: prompts, each with as many continuations as there are lanes, or fewer.
      batch_size: the number of rows of the batch; copies of the first row fill it up.
      lanes: the number of continuations of a row.
      width: the number of tokens that prompts are padded to, or texts that are read as one.
      length: the number of tokens that continuations are padded to; 0 where they are a part of
        these texts.
      as_one: whether a continuation is read with its prompt, by one call of the model.
    """

    rows: list[_Row]
    batch_size: int
    lanes: int
    width: int
    length: int
    as_one: bool

    def scores(self, model: Any) -> dict[_Pair, ContinuationScore] | None:
        """The scores of all continuations; None if the model returns no hidden states."""
        rows = self.rows + self.rows[:1] * (self.batch_size - len(self.rows))
        found = (self._as_one if self.as_one else self._by_chunks)(model, rows)
        if found is None:
            return None
        log_probs, greedy, starts = found
        made = {}
        for b, (prompt, continuations) in enumerate(self.rows):
            for n, tokens in enumerate(continuations):
                part = b, n, slice(starts[b], starts[b] + len(tokens))
                # Copies, since a part would keep the arrays of the whole batch.
                parts = log_probs[part].copy(), greedy[part].copy()
                made[prompt, tokens] = ContinuationScore(list(tokens), *parts)
        return made

    def _as_one(self, model: Any, rows: list[_Row]) -> _Scores | None:
        """By one call of the model."""
        begins, width = [prompt for prompt, _ in rows], self.width
        if _has_inputs(model):
            model, prompt = encode_batch(model, begins, width)
            begins = [tuple(row) for row in np.asarray(prompt.tokens).tolist()]
            width = self.length
        texts: Any = np.zeros((self.batch_size, width + 1), np.int32)
        starts = [len(begin) - 1 for begin in begins]
        ends = [start + len(row[1][0]) for start, row in zip(starts, rows, strict=True)]
        for text, begin, end, row in zip(texts, begins, ends, rows, strict=True):
            text[: end + 1] = (*begin, *row[1][0])
        between = np.int32(min(starts)), np.int32(max(ends))
        found = _AS_ONE(model, texts, np.asarray(ends, np.int32), *between)
        return None if found is None else (*to_host(found), starts)

    def _by_chunks(self, model: Any, rows: list[_Row]) -> _Scores:
        """By a call for the prompts, and calls for a few tokens of all continuations."""
        tokens: Any = np.zeros((self.batch_size, self.lanes, self.length), np.int32)
        for row, (_, continuations) in zip(tokens, rows, strict=True):
            for lane, new in zip(row, continuations, strict=False):
                lane[: len(new)] = new
        end = np.int32(max(len(new) for _, continuations in rows for new in continuations))
        model, prompt = encode_batch(model, [prompt for prompt, _ in rows], self.width)
        return (*to_host(_BY_CHUNKS(model, prompt, tokens, end)), [0] * self.batch_size)


def _found(model: Any, batches: Iterator[_Rows], bar: Any) -> dict[_Pair, ContinuationScore] | None:
    """The scores of all batches; None if the model returns no hidden states to read them as one."""
    found: dict[_Pair, ContinuationScore] = {}
    for rows in batches:
        with compilation_announced():
            scores = rows.scores(model)
        if scores is None:
            return None
        found |= scores
        bar.update(len(scores))
    return found


def _planned(
    model: Any, pairs: Sequence[_Pair], batch_size: int, *, as_one: bool
) -> Iterator[_Rows]:
    """Divides the pairs into batches of a few shapes.

    Args:
      model, batch_size: as for ``score``.
      pairs: the pairs; equal ones are one.
      as_one: whether the model can read a continuation together with its prompt.
    """
    of_prompt: dict[_Tokens, dict[_Tokens, None]] = {}
    for prompt, tokens in pairs:
        of_prompt.setdefault(prompt, {})[tokens] = None
    length = round_up(max((len(tokens) for _, tokens in pairs), default=1), CHUNK)
    room = inputs.shared_positions(model)
    if _has_inputs(model):
        length = min(length, inputs.input_positions(model) or length)
    alone: list[_Row] = []
    together: list[_Row] = []
    tight: list[_Row] = []
    for prompt, found in of_prompt.items():
        continuations = sorted(found, key=len)
        fits = room is None or len(prompt) + length <= room
        saves = len(continuations) > 1 and len(continuations[-1]) <= len(prompt)
        if as_one and not (saves and fits):
            alone += [(prompt, [tokens]) for tokens in continuations]
        else:
            groups = range(0, len(continuations), _LANES)
            parts = [(prompt, continuations[i : i + _LANES]) for i in groups]
            (together if fits else tight).extend(parts)
    of_alone = length if _has_inputs(model) else 0
    yield from _batches(model, alone, batch_size, lanes=1, length=of_alone, as_one=True)
    lanes = round_up(max((len(found) for _, found in together), default=1))
    size = max(batch_size // lanes, 1)
    yield from _batches(model, together, size, lanes=lanes, length=length, as_one=False)
    for row in tight:  # They leave no positions for padding.
        prompt, continuations = row
        size = len(continuations[-1])
        yield _Rows([row], 1, len(continuations), len(prompt), size, as_one=False)


def _batches(
    model: Any, rows: list[_Row], batch_size: int, *, lanes: int, length: int, as_one: bool
) -> Iterator[_Rows]:
    """Batches of rows of similar length, those of the longest first; see ``_Rows``."""
    if not rows:
        return
    lengths = [len(prompt) + (0 if length else len(found[0]) - 1) for prompt, found in rows]
    shared = shared_size(model)
    widest = padded_width(max(lengths), length, inputs.shared_positions(model), shared)
    count = min(batch_size, round_up(len(rows)))
    order = sorted(range(len(rows)), key=lambda i: -lengths[i])
    parts = [order[i : i + count] for i in range(0, len(rows), count)]
    longest = [lengths[part[0]] for part in parts]
    widths = cheapest(longest, widest, most=_WIDTHS, extra=lanes * length, shared=shared)
    for part, size in zip(parts, longest, strict=True):
        width = min(width for width in widths if width >= size)
        yield _Rows([rows[i] for i in part], count, lanes, width, length, as_one)


def _as_one(
    model: Any, texts: Array, length: Array, begin: Array, end: Array
) -> tuple[Array, Array] | None:
    found = scores_of_texts(model, texts, length, begin, end, num_alternatives=1)
    if found is None:
        return None
    return found.log_prob, found.top_tokens[..., 0] == texts[:, None, 1:]


def _by_chunks(
    model: LanguageModel, prompt: Prompt, tokens: Array, end: Array
) -> tuple[Array, Array]:
    found = scores_by_chunks(model, prompt, jnp.asarray(tokens), end, num_alternatives=1)
    return found.log_prob, found.top_tokens[..., 0] == tokens


_AS_ONE: Any = jit(_as_one, ())
_BY_CHUNKS: Any = jit(_by_chunks, ())
