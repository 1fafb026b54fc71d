"""Completions: the texts of decoded tokens, with what strategies say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax.base import DecodeOutput
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.pytrees import of_fields
from decoding_jax.strategies.token_by_token import ConditionalCodesInfo
from decoding_jax.text.continuations import continuation
from decoding_jax.text.token_scores import TokenScores
from decoding_jax.text.tokenizers import Tokenizer

_SHOWN = 16  # tokens of a ``repr``


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
        NumPy's arrays. Each is a value of this completion or of its text, as the strategy defines
        it. Counts of the loop, such as ``model_calls``, are those until the text has ended where
        texts take each other's places (see ``generate``), and otherwise those of the whole batch.
      scores: with ``with_scores``, the scores of each token, NumPy arrays ``[L]`` and ``[L, n]``.
      sample_log_prob: with ``with_sample_log_prob``, a setting of samplers, the log-probability of
        each token under the distribution that it was drawn from, a NumPy array ``[L]``.
      parsed: with ``response_format`` or ``tools``, the value of a text that an end token ended;
        otherwise None.
    """

    text: str
    tokens: list[int]
    log_prob: float
    score: float
    finished: bool
    info: Any = None
    scores: TokenScores | None = None
    sample_log_prob: np.ndarray | None = None
    parsed: Any = None

    @property
    def nan_logits(self) -> bool:
        """Whether the text ended where the model's logits were NaN (see ``DecodeOutput``)."""
        return self.log_prob != self.log_prob

    def __repr__(self) -> str:
        """The fields that are not None; long ``tokens`` and arrays are shortened."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        shown = of_fields(self, given)
        if len(self.tokens) <= _SHOWN:
            return shown
        first = ", ".join(map(str, self.tokens[:_SHOWN]))
        return shown.replace(repr(self.tokens), f"[{first}, ... {len(self.tokens)} in all]", 1)

    def _repr_html_(self) -> str:
        """The completion as notebooks show it; ``show`` has a tokenizer, and shows more."""
        from decoding_jax.text.show.page import of_completion  # It imports this module.

        return of_completion(self)

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal, those of arrays too. NaN is equal to nothing.

        Example:
          >>> one = Completion("hi", [4, 5], -2.0, -2.0, True, info=np.array([3, 1]))
          >>> one == one._replace(info=np.array([3, 1])), one == one._replace(info=np.array([3, 2]))
          (True, False)
        """
        if not isinstance(other, Completion):
            return NotImplemented
        mine: Any = jax.tree.flatten(self, lambda x: isinstance(x, list))
        theirs: Any = jax.tree.flatten(other, lambda x: isinstance(x, list))
        return mine[1] == theirs[1] and all(map(np.array_equal, mine[0], theirs[0]))

    def __ne__(self, other: object) -> bool:
        return not self == other


NOT_REACHED = "no text of the language was reached"
NOT_LISTED = "the language has more texts, or beginnings of one length, than max_texts"


class NoCompletion(list[Completion]):
    """The completions of a text that has none: an empty list, and why it is empty.

    Attributes:
      reason: one line.
    """

    def __init__(self, reason: str):
        super().__init__()
        self.reason = reason


def parse_texts(
    made: list[Completion], tokenizer: Tokenizer, read: Callable[[str, Sequence[int]], Any]
) -> None:
    """Gives completions their ``parsed``, where an end token of the tokenizer ended the text."""
    for i, one in enumerate(made):
        if one.tokens and one.tokens[-1] in tokenizer.eos_ids:
            made[i] = one._replace(parsed=read(one.text, one.tokens))


def context_of(model: Any, ids: Sequence[Sequence[int]]) -> Sequence[Sequence[int]] | None:
    """The ``context`` of ``completions``; None for an encoder-decoder, which continues no text."""
    return None if isinstance(model, EncoderDecoder) else ids


def completions(
    tokenizer: Tokenizer,
    output: DecodeOutput,
    count: int,
    context: Sequence[Sequence[int]] | None = None,
    scores: TokenScores | None = None,
    info_names: Sequence[str] | None = None,
) -> list[list[Completion]]:
    """The completions of the first ``count`` rows, in the order of the output.

    Those of a row without any are a ``NoCompletion``.

    Args:
      tokenizer: decodes the tokens.
      output: the output of a strategy. Empty sequences of a search that found fewer than its
        maximum number are left out.
      count: the number of rows that are not padding.
      context: the tokens of the prompts, for a decoder-only model. A tokenizer may drop the space
        between a prompt and its continuation unless it decodes both together.
      scores: the scores of all tokens of the output, or None.
      info_names: the values of ``info`` that the completions have, in a dict; None for all of them
        as they are.
    """
    tokens, length, log_prob, score, finished = (np.asarray(x) for x in output[:5])
    info = output.info
    if info_names is not None:
        info = {name: getattr(info, name) for name in info_names} or None
    info = jax.tree.map(np.asarray, info)
    exists = (length > 0) | (log_prob != -np.inf)  # a search may find fewer than its maximum
    rows = []
    for b in range(count):
        prompt = [] if context is None else list(context[b])
        found = [
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
        is_listed = not isinstance(output.info, ConditionalCodesInfo) or output.info.complete[b]
        rows.append(found or NoCompletion(NOT_REACHED if is_listed else NOT_LISTED))
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
