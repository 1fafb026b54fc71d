"""The tree of the beginnings that several completions share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from decoding_jax.text.show.tokens import Token


@dataclasses.dataclass(frozen=True)
class PrefixBranch:
    """Tokens that some completions have in common, after the same beginning.

    Attributes:
      tokens: the tokens, up to where the completions part or end.
      members: the completions, by number, whose tokens begin with those from the root to here.
      count: N, the number of all completions.
      ended: how many of the members end here.
      probability: of the tokens from the root to here, under the distribution that they were drawn
        from; None where that is not known.
      branches: what follows, most completions first.
    """

    tokens: Sequence[Token]
    members: Sequence[int]
    count: int
    ended: int
    probability: float | None
    branches: Sequence[PrefixBranch]

    @property
    def share(self) -> float:
        """The width of the bar, from 0 to 1: the part of all completions."""
        return len(self.members) / self.count

    @property
    def mark(self) -> float | None:
        """The place of the mark beside the bar: the part of the samples that is expected."""
        return self.probability

    @property
    def folded(self) -> bool:
        """Whether it is shown only when the reader asks: never."""
        return False

    @property
    def note(self) -> str:
        """What is said of the branch."""
        parts = [f"{len(self.members)} of {self.count}"]
        if self.probability is not None:
            parts.append(f"expected {self.count * self.probability:.2f}")
        if self.ended and self.branches:
            parts.append(f"{self.ended} of them end{'s' if self.ended == 1 else ''} here")
        return ", ".join(parts)


def prefix_tree(sequences: Sequence[Sequence[Token]]) -> list[PrefixBranch]:
    """The branches of the root, most completions first.

    Args:
      sequences: the tokens of each completion. Equal tokens after equal tokens are one.

    Example:
      >>> ab, ac = [[Token(1, "a"), Token(i, text)] for i, text in ((2, "b"), (3, "c"))]
      >>> [root] = prefix_tree([ab, ac, ab])
      >>> root.note, [(branch.tokens[0].text, branch.note) for branch in root.branches]
      ('3 of 3', [('b', '2 of 3'), ('c', '1 of 3')])
    """
    return _branches(sequences, range(len(sequences)), 0)


def _branches(
    sequences: Sequence[Sequence[Token]], members: Sequence[int], start: int
) -> list[PrefixBranch]:
    """The branches after the first ``start`` tokens, which all members have in common."""
    by_token: dict[int, list[int]] = {}
    for i in members:
        if start < len(sequences[i]):
            by_token.setdefault(sequences[i][start].id, []).append(i)
    found = [_branch(sequences, group, start) for group in by_token.values()]
    return sorted(found, key=lambda branch: -len(branch.members))


def _branch(
    sequences: Sequence[Sequence[Token]], members: Sequence[int], start: int
) -> PrefixBranch:
    first = sequences[members[0]]
    end = start + 1
    while end < len(first) and all(
        end < len(sequences[i]) and sequences[i][end].id == first[end].id for i in members
    ):
        end += 1
    drawn = [token.drawn for token in first[:end] if token.drawn is not None]
    return PrefixBranch(
        tokens=first[start:end],
        members=members,
        count=len(sequences),
        ended=sum(len(sequences[i]) == end for i in members),
        probability=math.prod(drawn) if len(drawn) == end else None,
        branches=_branches(sequences, members, end),
    )
