"""Conversion between token lists and the arrays of strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import DecodeOutput, LanguageModel, Prompt, Stop
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.text.chat import Conversation
from decoding_jax.text.loading import Model
from decoding_jax.text.token_scores import TokenScores
from decoding_jax.text.tokenizers import Tokenizer


class Completion(NamedTuple):
    """One decoded text.

    Attributes:
      text: the text of the new tokens, without special tokens.
      tokens: the new token ids, with the end token.
      log_prob: the log probability of the tokens under the model, in nats, before any transform;
        NaN where ``nan_logits``.
      score: the score by which the strategy ranks; NaN where ``nan_logits``.
      finished: whether a stop condition ended it, rather than the maximum length.
      info: the ``info`` of the strategy, such as a ``StochasticBeamInfo``, as Python's numbers and
        NumPy's arrays. Each is a value of this completion, of its text, or of the whole batch, as
        the strategy defines it.
      scores: with ``with_scores``, the scores of each token, NumPy arrays ``[L]`` and ``[L, n]``.
      sample_log_prob: with ``with_sample_log_prob``, a setting of samplers, the log-probability of
        each token under the distribution that it was drawn from, a NumPy array ``[L]``.
    """

    text: str
    tokens: list[int]
    log_prob: float
    score: float
    finished: bool
    info: Any = None
    scores: TokenScores | None = None
    sample_log_prob: np.ndarray | None = None

    @property
    def nan_logits(self) -> bool:
        """Whether the text ended where the model's logits were NaN (see ``DecodeOutput``)."""
        return self.log_prob != self.log_prob


def default_stop(tokenizer: Tokenizer) -> Stop:
    """Stop conditions that consist of the tokenizer's end tokens."""
    return with_end_tokens(None, tokenizer)


def with_end_tokens(stop: Stop | None, tokenizer: Tokenizer) -> Stop:
    """The stop conditions, with the tokenizer's end tokens if ``eos_ids`` is None.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> with_end_tokens(Stop(min_new_tokens=2), ByteTokenizer()).eos_ids
      array([1], dtype=int32)
      >>> with_end_tokens(Stop(eos_ids=()), ByteTokenizer()).eos_ids
      array([], dtype=int32)
    """
    stop = Stop() if stop is None else stop
    if stop.eos_ids is not None:
        return stop
    return dataclasses.replace(stop, eos_ids=tuple(tokenizer.eos_ids))


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str | Conversation], model: Model | LanguageModel
) -> list[list[int]]:
    """The tokens of every text, or of every conversation and the beginning of its next message.

    An empty text is a prompt for a decoder-only model if the tokenizer adds a token to it.

    Raises:
      ValueError: for a text without a token, and for an empty input of an encoder-decoder.
    """
    ids = [_encoded(tokenizer, text, i) for i, text in enumerate(texts)]
    for i, (text, row) in enumerate(zip(texts, ids, strict=True)):
        empty = isinstance(text, str) and not text.strip()
        if not row or (isinstance(model, EncoderDecoder) and empty):
            raise ValueError(f"texts: got an empty text at index {i}; takes texts with a token")
    return ids


def _encoded(tokenizer: Any, text: str | Conversation, index: int) -> list[int]:
    if isinstance(text, str):
        return tokenizer.encode(text)
    if not hasattr(tokenizer, "apply_chat_template"):
        raise ValueError(
            f"texts: got a conversation at index {index}; takes strings with a "
            f"{type(tokenizer).__name__}, which has no template for messages"
        )
    return tokenizer.apply_chat_template(text, add_generation_prompt=True)


def encode_batch(
    model: Model | LanguageModel, ids: Sequence[Sequence[int]], width: int
) -> tuple[LanguageModel, Prompt]:
    """Pads B token lists, and makes the language model and the prompts to decode from.

    Args:
      model: an encoder-decoder, which is bound to the lists as its inputs; or a language model,
        whose prompts they are.
      ids: B non-empty token lists of at most ``width`` tokens.
      width: the length that all lists are padded to.

    Returns:
      The language model, and a prompt of B rows.

    Raises:
      ValueError: if a list is empty or longer than ``width``.
    """
    if isinstance(model, EncoderDecoder):
        # The ids are checked where they are, before they are moved: reading them back would wait
        # for what the device is busy with.
        on_host = _padded(ids, width)
        source, length = (jnp.asarray(x) for x in on_host)
        bound = dataclasses.replace(model.bind(*on_host), source=source, source_length=length)
        return bound, bound.start_prompt()
    return model, pad_tokens(ids, width)


def pad_tokens(ids: Sequence[Sequence[int]], width: int) -> Prompt:
    """Token lists as arrays: tokens int32 ``[B, width]``, right-padded, and lengths int32 ``[B]``.

    Raises:
      ValueError: if a list is empty or longer than ``width``.

    Example:
      >>> pad_tokens([[5, 6], [7]], 3).tokens.tolist()
      [[5, 6, 0], [7, 0, 0]]
    """
    return Prompt(*(jnp.asarray(x) for x in _padded(ids, width)))


def _padded(ids: Sequence[Sequence[int]], width: int) -> tuple[Any, Any]:
    """``pad_tokens``, as NumPy arrays."""
    tokens = np.zeros((len(ids), width), np.int32)
    length = np.asarray([len(x) for x in ids], np.int32)
    for i, row in enumerate(ids):
        if not 1 <= len(row) <= width:
            raise ValueError(f"ids: got {len(row)} tokens in row {i}; takes 1 to {width}")
        tokens[i, : len(row)] = row
    return tokens, length


def context_of(
    model: Model | LanguageModel, ids: Sequence[Sequence[int]]
) -> Sequence[Sequence[int]] | None:
    """The ``context`` of ``completions``; None for an encoder-decoder, which continues no text."""
    return None if isinstance(model, EncoderDecoder) else ids


def completions(
    tokenizer: Tokenizer,
    output: DecodeOutput,
    count: int,
    context: Sequence[Sequence[int]] | None = None,
    scores: TokenScores | None = None,
) -> list[list[Completion]]:
    """The completions of the first ``count`` rows, in the order of the output.

    Args:
      tokenizer: decodes the tokens.
      output: the output of a strategy. Empty sequences of a search that found fewer than its
        maximum number are left out.
      count: the number of rows that are not padding.
      context: the tokens of the prompts, for a decoder-only model. A tokenizer may drop the space
        between a prompt and its continuation unless it decodes both together.
      scores: the scores of all tokens of the output, or None.
    """
    tokens, length, log_prob, score, finished = (np.asarray(x) for x in output[:5])
    info = jax.tree.map(np.asarray, output.info)
    exists = (length > 0) | (log_prob != -np.inf)  # a search may find fewer than its maximum
    rows = []
    for b in range(count):
        prompt = [] if context is None else list(context[b])
        rows.append(
            [
                Completion(
                    text=continuation(tokenizer, prompt, tokens[b, n, : length[b, n]].tolist()),
                    tokens=tokens[b, n, : length[b, n]].tolist(),
                    log_prob=float(log_prob[b, n]),
                    score=float(score[b, n]),
                    finished=bool(finished[b, n]),
                    info=_info_of(info, tokens.shape[:2], b, n),
                    scores=_scores_of(scores, b, n, length[b, n]),
                    sample_log_prob=_scores_of(output.sample_log_prob, b, n, length[b, n]),
                )
                for n in range(tokens.shape[1])
                if exists[b, n]
            ]
        )
    return rows


def _info_of(info: Any, shape: tuple[int, ...], row: int, n: int) -> Any:
    """The values of sequence n of a row in ``[B, N, ...]``, ``[B, ...]`` and ``[]`` arrays."""

    def value(leaf: np.ndarray) -> Any:
        if leaf.shape[:2] == shape:
            leaf = leaf[row, n]
        elif leaf.shape[:1] == shape[:1]:
            leaf = leaf[row]
        return leaf if leaf.shape else leaf.item()

    return jax.tree.map(value, info)


def _scores_of(scores: Any, row: int, n: int, length: int) -> Any:
    """The values of the tokens of one sequence; None for None."""
    return jax.tree.map(lambda values: np.asarray(values[row, n, :length]), scores)


def unique(row: Sequence[Completion]) -> list[Completion]:
    """The completions of one text without those whose text occurs before.

    Different tokens may have the same text, so texts are counted after decoding.

    Example:
      >>> same = Completion("hi", [4, 5], -2.0, -2.0, True)
      >>> [c.tokens for c in unique([same, same._replace(tokens=[9])])]
      [[4, 5]]
    """
    found: dict[str, Completion] = {}
    for completion in row:
        found.setdefault(completion.text, completion)
    return list(found.values())


def continuation(tokenizer: Tokenizer, context: list[int], new: list[int]) -> str:
    """The text that ``new`` adds to ``context``."""
    if not context:
        return tokenizer.decode(new)
    prefix = tokenizer.decode(context)
    whole = tokenizer.decode(context + new)
    # A context that ends inside a character has another text once the character is complete.
    return whole[len(prefix) :] if whole.startswith(prefix) else tokenizer.decode(new)
