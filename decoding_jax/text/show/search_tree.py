"""The tree of the nodes of a search, from its trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from decoding_jax.loop.search_trace import (
    ABSENT,
    CUT,
    EXPANDED,
    FINISHED,
    NAN,
    OPEN,
    SearchTrace,
)
from decoding_jax.text.show.tokens import Token, text_after
from decoding_jax.text.tokenizers import Tokenizer

_NAMES = {
    int(OPEN): "open",
    int(CUT): "not finished",
    int(FINISHED): "finished",
    int(NAN): "logits of NaN",
}

_Path = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SearchBranch:
    """Nodes of which each has only the next one below it.

    Attributes:
      tokens: of the nodes.
      log_prob: of the tokens from the root to the last one, under the model.
      order: the places of the expanded ones among these nodes in the order of expansion, from 1.
      state: what became of the last node, if nothing follows it.
      branches: what follows, the most probable ones first.
    """

    tokens: Sequence[Token]
    log_prob: float
    order: Sequence[int]
    state: str
    branches: Sequence[SearchBranch]

    @property
    def share(self) -> float:
        """The width of the bar: the probability."""
        return 0.0 if math.isnan(self.log_prob) else math.exp(min(self.log_prob, 0.0))

    @property
    def mark(self) -> None:
        """There is no mark."""

    @property
    def folded(self) -> bool:
        """Whether it is shown only when the reader asks: of open nodes there are many."""
        return self.state == _NAMES[int(OPEN)]

    @property
    def note(self) -> str:
        """What is said of the branch."""
        parts = [self.state] if self.state else []
        if self.order:
            parts.append(f"expanded {', '.join(map(str, self.order))}")
        return ", ".join([*parts, f"log-probability {self.log_prob:.2f}"])


def search_tree(trace: SearchTrace, tokenizer: Tokenizer) -> list[SearchBranch]:
    """The branches of the prompt.

    Args:
      trace: of one text, arrays ``[M, L]`` and ``[M]``.
      tokenizer: decodes the tokens.
    """
    nodes: dict[_Path, tuple[int, float, int]] = {}
    order = 0
    for tokens, length, log_prob, kind in zip(*(x.tolist() for x in trace), strict=True):
        if kind == ABSENT or not length:
            continue
        path = tuple(tokens[:length])
        order += int(kind == EXPANDED)
        place = order if kind == EXPANDED else nodes.get(path, (0, 0.0, 0))[2]
        nodes[path] = kind, log_prob, place
    children: dict[_Path, list[_Path]] = {}
    for path in nodes:
        children.setdefault(path[:-1], []).append(path)
    return _branches((), nodes, children, tokenizer)


def _branches(
    parent: _Path,
    nodes: Mapping[_Path, tuple[int, float, int]],
    children: Mapping[_Path, Sequence[_Path]],
    tokenizer: Tokenizer,
) -> list[SearchBranch]:
    made = []
    for path in children.get(parent, ()):
        run = [path]
        while len(children.get(run[-1], ())) == 1 and nodes[run[-1]][0] == EXPANDED:
            run.extend(children[run[-1]])
        kind, log_prob, _ = nodes[run[-1]]
        below = children.get(run[-1], ())
        made.append(
            SearchBranch(
                tokens=[Token(p[-1], text_after(tokenizer, p[:-1], p[-1])) for p in run],
                log_prob=log_prob,
                order=[nodes[p][2] for p in run if nodes[p][2]],
                state=_NAMES.get(kind, "" if below else "no continuation kept"),
                branches=_branches(run[-1], nodes, children, tokenizer),
            )
        )
    return sorted(made, key=lambda branch: -branch.share)
