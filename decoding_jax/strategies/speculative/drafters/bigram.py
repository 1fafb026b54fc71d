"""Bigram tables, which predict the next token from the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array, Prompt
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.drafters.base import Path


@pytree
@dataclasses.dataclass(frozen=True)
class Bigram:
    """Drafts each token by a table of distributions given the last token.

    The table has V x V entries, which suits small vocabularies.

    Attributes:
      logits: float32 ``[V, V]``, the logits of the next token for each last token.
    """

    logits: Any = fields.field(shared_axes=None)

    widens = True

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[-1]

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """See ``Drafter.init``."""
        return ()

    def begin(self, state: Any, path: Path) -> tuple[Array, Any]:
        """See ``Drafter.begin``."""
        return self.next(state, last_token(path), path.length)

    def next(self, state: Any, token: Array, slot: Array) -> tuple[Array, Any]:
        """See ``Drafter.next``."""
        return jnp.asarray(self.logits, jnp.float32).at[token].get(mode="clip"), state


@pytree
@dataclasses.dataclass(frozen=True)
class NextToken:
    """Proposes the token that follows the last one in a table of V integers, and so on.

    Attributes:
      table: int32 ``[V]``, the token to propose after each token, or -1 for none.

    Example:
      >>> NextToken.from_texts([[5, 6, 5, 6, 5, 7]], vocab_size=8).table.tolist()
      [-1, -1, -1, -1, -1, 6, 5, -1]
    """

    table: Any = fields.field(shared_axes=None)

    widens = True

    @classmethod
    def from_texts(cls, texts: Iterable[Sequence[int]], vocab_size: int) -> NextToken:
        """Makes the table of the token that most often follows each; ties go to the lowest id.

        Args:
          texts: sequences of token ids.
          vocab_size: V.
        """
        table = np.full(vocab_size, -1, np.int32)
        pairs = [np.stack([np.asarray(t)[:-1], np.asarray(t)[1:]], 1) for t in texts if len(t) > 1]
        if pairs:
            distinct, counts = np.unique(np.concatenate(pairs), axis=0, return_counts=True)
            # Later assignments overwrite earlier ones, so pairs are sorted by frequency, and among
            # equal frequencies by descending id.
            order = np.lexsort((-distinct[:, 1], counts))
            table[distinct[order, 0]] = distinct[order, 1]
        return cls(table)

    @property
    def vocab_size(self) -> int:
        return self.table.shape[-1]

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """See ``Guesser.init``."""
        return ()

    def guess(self, state: Any, path: Path, count: int) -> Array:
        """See ``Guesser.guess``."""
        token, tokens = last_token(path), []
        table = jnp.asarray(self.table, jnp.int32)
        for _ in range(count):
            token = jnp.where(token < 0, -1, table.at[token].get(mode="clip"))
            tokens.append(token)
        return jnp.stack(tokens, axis=-1)


def last_token(path: Path) -> Array:
    """The last token of every lane, int32 ``[B, W]``."""
    index = jnp.maximum(path.length - 1, 0)[..., None]
    return jnp.take_along_axis(path.tokens, index, axis=-1)[..., 0]
