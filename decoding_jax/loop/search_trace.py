"""The nodes of a search, as searches record them with ``with_trace``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoding_jax.base import Array

ABSENT, OPEN, CUT, FINISHED, NAN, EXPANDED = np.arange(6, dtype=np.int32)
"""Kinds of nodes: an unused place; a node to expand; a node that ended at the length limit or
because no token may follow it; a node that a stop condition finished; a node after which the
model's logits are NaN, as is then its log-probability; and a node that the search expanded."""


class SearchTrace(NamedTuple):
    """The nodes of a search: those that it expanded, in this order, and those that it did not.

    Only nodes that were kept for a while are here. Those that a beam drops at once are not, nor are
    in best-first search children of too little probability and those that a full frontier drops.

    Attributes:
      tokens: int32 ``[B, M, L]``, the new tokens from the prompt to each node.
      length: int32 ``[B, M]``, the number of these tokens.
      log_prob: float32 ``[B, M]``, of these tokens under the model.
      kind: int32 ``[B, M]``: 5 for a node that was expanded, 3 for one that a stop condition
        finished, 2 for one that ended at the limit or where no token may follow, 1 for an open one,
        4 for one at logits of NaN, and 0 for an unused place.
    """

    tokens: Array
    length: Array
    log_prob: Array
    kind: Array
