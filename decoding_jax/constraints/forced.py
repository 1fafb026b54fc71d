"""Tokens that a constraint leaves no choice of, as drafts that speculation verifies in one call."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array, Prefix, Prompt
from decoding_jax.constraints.made import vocabulary_of
from decoding_jax.pytrees import pytree
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.transforms import PrefixAllowedTokens


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ForcedTokens:
    """Proposes the tokens of a text that has one way on; made by ``forced``.

    After a state whose tokens are all beginnings of one token, and have no end token among them,
    the text goes on as that token says; so it does where only one end token may follow. The longest
    token is proposed, as tokenizers mostly choose it, and the next one after it. The fast-forward
    tokens of llguidance are of this kind.

    Attributes:
      constraint: of the functions of this package; that of the call.
      length: int32 ``[V]``, the number of bytes of each token.
      beginnings: int32 ``[V]``, how many tokens each token begins with, itself included.
    """

    constraint: PrefixAllowedTokens
    length: Any = fields.field(shared_axes=None)
    beginnings: Any = fields.field(shared_axes=None)

    widens = True

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """See ``Guesser.init``."""
        return ()

    def guess(self, state: Any, path: Any, count: int) -> Array:
        """See ``Guesser.guess``."""
        language, size = self.constraint.language, self.length.shape[-1]
        lengths, beginnings = (jnp.asarray(x, jnp.int32) for x in (self.length, self.beginnings))
        prompt, tokens, length = path
        prefix = Prefix(prompt.tokens, prompt.length, tokens[:, :, None], length[..., None])
        states = self.constraint.states_after(prefix)
        is_forced, found = jnp.ones(prefix.length.shape, bool), []
        for _ in range(count):
            allowed = language.allowed(states, size)
            longest = jnp.where(allowed, lengths, -1).argmax(-1).astype(jnp.int32)
            number = allowed.sum(-1, dtype=jnp.int32)
            is_forced &= (number > 0) & (number == beginnings[longest])
            found.append(jnp.where(is_forced, longest, -1)[..., 0])
            states = language.advance(states, longest)
        return jnp.stack(found, axis=-1)


def forced(
    constraint: PrefixAllowedTokens, tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> ForcedTokens:
    """The drafter of the tokens that a constraint forces.

    Args:
      constraint: of a function of this package, for the tokenizer.
      tokenizer, vocab_size: as for ``regex``.

    Raises:
      ValueError: for another transform, or one that was made for another tokenizer.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> answer = constraints.choice(["yes", "no"], ByteTokenizer())
      >>> constraints.forced(answer, ByteTokenizer()).beginnings.max().item()
      1
    """
    vocabulary = vocabulary_of(tokenizer, vocab_size)
    if getattr(constraint, "digest", None) != vocabulary.digest:
        raise fields.error("constraint", "one that was made for the tokenizer", constraint)
    trie, place = vocabulary.sorted_begun
    number = np.append(np.bincount(place, minlength=len(trie.texts) + 1)[:-1], 0)
    count = number[trie.text]  # Where no text ends, that is the last entry.
    levels = np.searchsorted(trie.depth, np.arange(1, trie.depth[-1] + 2))
    for begin, end in itertools.pairwise(levels.tolist()):
        count[begin:end] += count[trie.parent[begin:end]]
    of_text = np.ones(len(trie.texts) + 1, np.int64)
    of_text[trie.text[trie.text >= 0]] = count[trie.text >= 0]
    length = np.array([len(text) for text in vocabulary.begun], np.int32)
    return ForcedTokens(constraint, length, of_text[place].astype(np.int32))
