"""The blocks of speculative decoding, from its trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from decoding_jax.strategies.speculative.stages import BlockTrace
from decoding_jax.text.show.tokens import Token, text_after
from decoding_jax.text.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Block:
    """The tokens of one call of the model.

    Attributes:
      proposed: the number of drafted tokens.
      accepted: those that were accepted.
      own: the token that the model chose itself after them; None where the text had ended.
      rejected: the drafted tokens after the accepted ones, unless the draft was a tree. The first
        of them was rejected, and the others not looked at.
    """

    proposed: int
    accepted: Sequence[Token]
    own: Token | None
    rejected: Sequence[str]

    @property
    def label(self) -> str:
        """What a screen reader says."""
        ending = "the text ends" if self.own is None else "then one token of the model"
        return f"{self.proposed} drafted, {len(self.accepted)} accepted, {ending}"


@dataclasses.dataclass(frozen=True)
class BlocksView:
    """The blocks of a completion.

    Attributes:
      first: the token that the model chose before the first block; None for an empty text.
      blocks: the blocks.
      saved: how many calls of the model fewer it took than one for each token.
    """

    first: Token | None
    blocks: Sequence[Block]
    saved: int


def blocks_view(trace: BlockTrace, tokens: Sequence[Token], tokenizer: Tokenizer) -> BlocksView:
    """The blocks of a completion.

    Args:
      trace: of the completion, arrays ``[L]`` and ``[L, K]``.
      tokens: of the completion.
      tokenizer: decodes the rejected tokens.
    """
    blocks: list[Block] = []
    end = 1
    ids = [token.id for token in tokens]
    while end < len(tokens):
        i = len(blocks)
        accepted, appended = int(trace.accepted[i]), int(trace.appended[i])
        rejected = []
        if trace.drafted is not None:
            drafted = [token for token in trace.drafted[i].tolist() if token >= 0]
            before = [*ids[:end], *drafted]
            rejected = [
                text_after(tokenizer, before[: end + j], drafted[j]) or f"#{drafted[j]}"
                for j in range(accepted, len(drafted))
            ]
        own = tokens[end + accepted] if appended > accepted else None
        blocks.append(Block(int(trace.proposed[i]), tokens[end : end + accepted], own, rejected))
        end += appended
    saved = max(len(tokens) - 1 - len(blocks), 0)
    return BlocksView(tokens[0] if tokens else None, blocks, saved)
