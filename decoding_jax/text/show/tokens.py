"""What a page shows of each token: its text, its probabilities, and what could have followed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from decoding_jax.text.completions import Completion
from decoding_jax.text.continuations import GrowingText, continuation
from decoding_jax.text.tokenizers import Tokenizer

_FAINTEST = 2.0**-7
"""The probability at and below which a token has the full colour."""

LEGEND = (1.0, 0.5, 0.1, 0.01)
"""The probabilities whose colours the page explains."""


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One of the most probable tokens.

    Attributes:
      text: what it would add to the text, as a page shows it.
      probability: under the model.
      chosen: whether it is the token that was chosen.
    """

    text: str
    probability: float
    chosen: bool


@dataclasses.dataclass(frozen=True)
class Token:
    """One token of a completion.

    Attributes:
      id: the token.
      text: what it adds to the text. Empty for an end token, and for a token that begins a
        character which a later one completes.
      probability: under the model, before any transform; None without ``with_scores``.
      drawn: under the distribution that it was drawn from; None without ``with_sample_log_prob``.
      entropy: of the model's distribution, in nats; None without ``with_scores``.
      kept: the probability of the tokens that the transform allows; None without one.
      alternatives: the most probable tokens there.
    """

    id: int
    text: str
    probability: float | None = None
    drawn: float | None = None
    entropy: float | None = None
    kept: float | None = None
    alternatives: Sequence[Alternative] = ()

    @property
    def shown(self) -> str:
        """The text, or the number of a token without one."""
        return self.text.replace("\n", "\u21b5\n") or f"#{self.id}"

    @property
    def surprise(self) -> float | None:
        """From 0 for a token that was certain to 1 for an improbable one; None if not known."""
        known = self.probability if self.probability is not None else self.drawn
        return None if known is None or math.isnan(known) else surprise(known)

    @property
    def label(self) -> str:
        """What a screen reader says."""
        parts = [f"token {self.shown.strip() or 'of spaces'}"]
        if self.probability is not None:
            parts.append(f"probability {percent(self.probability)}")
        if self.drawn is not None:
            parts.append(f"drawn with {percent(self.drawn)}")
        if self.entropy is not None:
            parts.append(f"entropy {self.entropy:.2f} nats")
        if self.kept is not None:
            parts.append(f"allowed tokens {percent(self.kept)}")
        return ", ".join(parts)


def surprise(probability: float) -> float:
    """The strength of the colour of a token, from 0 to 1.

    Example:
      >>> [round(surprise(p), 2) for p in (1.0, 0.5, 0.01, 0.0)]
      [0.0, 0.14, 0.95, 1.0]
    """
    return abs(math.log(max(min(probability, 1.0), _FAINTEST)) / math.log(_FAINTEST))


def percent(probability: float) -> str:
    """A probability as a percentage of two digits or three.

    Example:
      >>> percent(0.98765), percent(1.0), percent(0.00012), percent(1e-9)
      ('98.8%', '100%', '0.012%', '<0.0001%')
    """
    if probability != probability:
        return "NaN"
    if 0 < probability < 1e-6:
        return "<0.0001%"
    shown = 100 * probability
    digits = 3 if shown >= 10 else 2
    return f"{float(f'{shown:.{digits}g}'):.{4 if shown < 1 else 1}f}".rstrip("0").rstrip(".") + "%"


def tokens_of(completion: Completion, tokenizer: Tokenizer | None) -> list[Token]:
    """The tokens of a completion.

    Args:
      completion: the completion.
      tokenizer: decodes the tokens. Without it, they are shown by their numbers.
    """
    scores, drawn = completion.scores, completion.sample_log_prob
    made = []
    for i, (token, text) in enumerate(
        zip(completion.tokens, texts_of(completion, tokenizer), strict=True)
    ):
        found = Token(token, text)
        if scores is not None:
            found = dataclasses.replace(
                found,
                probability=math.exp(float(scores.log_prob[i])),
                entropy=float(scores.entropy[i]),
                kept=None if scores.kept is None else float(scores.kept[i]),
                alternatives=_alternatives(completion, i, tokenizer),
            )
        if drawn is not None:
            found = dataclasses.replace(found, drawn=math.exp(float(drawn[i])))
        made.append(found)
    return made


def texts_of(completion: Completion, tokenizer: Tokenizer | None) -> list[str]:
    """The texts that the tokens of a completion add, which make its text when they are joined.

    A token that begins a character adds nothing, and the one that completes it all of it.

    Args:
      completion: the completion.
      tokenizer: decodes the tokens; without it, all texts are empty.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> tokenizer = ByteTokenizer()
      >>> ids = [*tokenizer.pieces("caf\\u00e9"), 1]
      >>> texts_of(Completion("caf\\u00e9", ids, -1.0, -1.0, True), tokenizer)
      ['c', 'a', 'f', '', 'é', '']
    """
    tokens = completion.tokens
    if tokenizer is None or not tokens:
        return [""] * len(tokens)
    growing = GrowingText(tokenizer, ())
    made = [growing.grow(tokens[: i + 1]) for i in range(len(tokens))]
    made[-1] += growing.close(tokenizer.decode(tokens))
    joined = growing.given
    if completion.text.endswith(joined):  # Beside its prompt, a text may begin with a space.
        made[0] = completion.text[: len(completion.text) - len(joined)] + made[0]
    return made


def _alternatives(completion: Completion, i: int, tokenizer: Tokenizer | None) -> list[Alternative]:
    """The most probable tokens in the place of token ``i``."""
    scores: Any = completion.scores
    chosen, made = completion.tokens[i], []
    ids, log_probs = scores.top_tokens[i].tolist(), scores.top_log_probs[i].tolist()
    for token, log_prob in zip(ids, log_probs, strict=True):
        text = "" if tokenizer is None else text_after(tokenizer, completion.tokens[:i], token)
        made.append(Alternative(text or f"#{token}", math.exp(log_prob), token == chosen))
    return made


def text_after(tokenizer: Tokenizer, before: Sequence[int], token: int) -> str:
    """The text that a token adds after others, of which the last one is read.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> tokenizer = ByteTokenizer()
      >>> text_after(tokenizer, tokenizer.pieces("ab"), tokenizer.pieces("c")[0])
      'c'
    """
    return continuation(tokenizer, list(before[-1:]), [token])
