"""The unit interval of arithmetic sampling: the intervals of texts, and the codes of samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from decoding_jax.ops import uint64
from decoding_jax.strategies.token_by_token import CodesTrace
from decoding_jax.text.show.tokens import Token


@dataclasses.dataclass(frozen=True)
class Interval:
    """The codes of all texts that begin with some tokens.

    Attributes:
      begin, width: of the interval, within the unit interval.
      token: the last of these tokens.
      text: the text of all of them.
      members: the samples, by number, whose codes are in the interval.
    """

    begin: float
    width: float
    token: Token
    text: str
    members: Sequence[int]


@dataclasses.dataclass(frozen=True)
class CodesView:
    """The intervals and the codes of the samples of a text.

    Attributes:
      points: the code of each sample, from 0 to 1.
      levels: the intervals of the texts of 1, 2, ... tokens, in the order of their codes. Only
        those are known that a sample has, and only as long as its code chooses its tokens.
    """

    points: Sequence[float]
    levels: Sequence[Sequence[Interval]]


def codes_view(
    traces: Sequence[CodesTrace], sequences: Sequence[Sequence[Token]]
) -> CodesView | None:
    """The view of the samples of a text; None where no token was chosen by a code.

    Args:
      traces: of each sample, arrays ``[2]``, ``[L, 2]`` and ``[L]``.
      sequences: the tokens of each sample.
    """
    points = [uint64.to_ints(trace.point).item() for trace in traces]
    levels: list[dict[tuple[int, ...], list[int]]] = []
    for i, (trace, tokens) in enumerate(zip(traces, sequences, strict=True)):
        for depth in range(len(tokens)):
            if not trace.carried[depth]:
                break
            if depth == len(levels):
                levels.append({})
            path = tuple(token.id for token in tokens[: depth + 1])
            levels[depth].setdefault(path, []).append(i)
    if not levels:
        return None
    made = []
    for depth, found in enumerate(levels):
        intervals = []
        for members in found.values():
            i = members[0]
            begin = points[i] - uint64.to_ints(traces[i].offset[depth]).item()
            size = uint64.to_ints(traces[i].last[depth]).item() + 1
            token, text = sequences[i][depth], "".join(t.text for t in sequences[i][: depth + 1])
            intervals.append(Interval(begin / 2**64, size / 2**64, token, text, members))
        made.append(sorted(intervals, key=lambda interval: interval.begin))
    return CodesView([point / 2**64 for point in points], made)
