"""The synthetic logits and settings that every project is given, as plain data."""

from __future__ import annotations

import math
from typing import Any

_LOGITS = [1.2, 0.3, -0.5, 2.0, 0.0, -1.5]
_TIES = [2.0, 1.0, 1.0, 1.0, 0.0, -1.0]
_HALVES = [math.log(p) for p in (0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125)]
# Row i has the logits of the token that follows token i; the prompt is token 0.
_TABLE = [
    [0.9, 0.1, -0.6, 0.4],
    [-1.0, 0.5, 0.5, 0.2],
    [1.5, -0.3, 0.0, 0.7],
    [0.0, 1.0, -2.0, 0.3],
]
_DRAFT = [[0.1, 0.7, -0.2, 0.3], [0.0, 0.0, 1.0, -0.5], [0.5, 0.2, 0.1, 0.7], [1.0, 0.0, -1.0, 0.3]]
_THREE = [math.log(p) for p in (0.5, 0.3, 0.2)]
_NEAR = [math.log(p) for p in (0.6, 0.3, 0.1)]
_SURE = [0.0, -60.0, -60.0]
# Texts of the tokens a, b and c; token 3 ends a text.
_TEXTS = ["ab", "a", "bc", "bab", "cc"]
_LETTERS = [
    [0.2, -1.0, 1.0, -2.0],
    [1.5, 0.0, -0.5, -1.0],
    [1.0, 0.5, -1.5, 1.0],
    [0.0, 0.0, 0.0, 0.0],
]
# Texts of the tokens of _SIGNS, by a JSON Schema; token 5 ends a text.
_SIGNS = "12,[]"
_SCHEMA = {"type": "array", "items": {"enum": [1, 12]}, "minItems": 1, "maxItems": 2}
_ARRAYS = ["[1]", "[12]", "[1,1]", "[1,12]", "[12,1]", "[12,12]"]
_AFTER_SIGNS = [
    [-1.0, 0.5, 1.5, 1.0, 0.0, -1.0],
    [0.0, -1.0, 1.5, -1.0, 0.2, 0.0],
    [3.0, 0.0, 0.0, 0.5, 0.0, 0.0],
    [3.0, 0.0, 0.5, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.5, 0.0, 3.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
]

# ``token``: one token. ``pair``: two tokens from the same logits that are to be independent,
# counted with the smaller id first, because some samplers sort. ``rows``: a token each of two rows
# of one call, whose settings differ. ``beams``: both beams of a beam search that samples, again
# with the smaller id first. ``sequence``: two tokens after one another. With a ``draft``, the
# sampler is speculative. ``language``: a text of a language, of the tokens of ``alphabet`` and an
# end token; the last outcome is any other text.
CASES: dict[str, dict[str, Any]] = {
    "plain": {"kind": "token", "logits": _LOGITS},
    "temperature": {"kind": "token", "logits": _LOGITS, "settings": {"temperature": 0.6}},
    "top_k": {"kind": "token", "logits": _LOGITS, "settings": {"top_k": 3}},
    "top_k ties": {"kind": "token", "logits": _TIES, "settings": {"top_k": 2}},
    "top_p": {"kind": "token", "logits": _LOGITS, "settings": {"top_p": 0.8}},
    "top_p boundary": {"kind": "token", "logits": _HALVES, "settings": {"top_p": 0.75}},
    "min_p": {"kind": "token", "logits": _LOGITS, "settings": {"min_p": 0.3}},
    "temperature, top_k": {
        "kind": "token",
        "logits": _LOGITS,
        "settings": {"temperature": 2.0, "top_k": 3},
    },
    "temperature, top_p": {
        "kind": "token",
        "logits": _LOGITS,
        "settings": {"temperature": 2.0, "top_p": 0.75},
    },
    "cold, top_p": {
        "kind": "token",
        "logits": _LOGITS,
        "settings": {"temperature": 0.5, "top_p": 0.85},
    },
    "top_k, top_p": {"kind": "token", "logits": _LOGITS, "settings": {"top_k": 3, "top_p": 0.8}},
    "temperature, top_k, top_p": {
        "kind": "token",
        "logits": _LOGITS,
        "settings": {"temperature": 2.0, "top_k": 4, "top_p": 0.75},
    },
    "pair": {"kind": "pair", "logits": _LOGITS},
    "rows": {"kind": "rows", "logits": _LOGITS, "settings": {"temperature": [0.7, 1.5]}},
    "rows, equal": {"kind": "rows", "logits": _LOGITS, "settings": {"temperature": [1.0, 1.0]}},
    "beams": {"kind": "beams", "logits": _LOGITS, "settings": {"width": 2}},
    "sequence": {"kind": "sequence", "table": _TABLE},
    "language": {"kind": "language", "table": _LETTERS, "texts": _TEXTS},
    # A pattern ``a|ab``, which has the shorter one of two alternatives first.
    "language, short first": {"kind": "language", "table": _LETTERS, "texts": sorted(_TEXTS)},
    "language, temperature": {
        "kind": "language",
        "table": _LETTERS,
        "texts": _TEXTS,
        "settings": {"temperature": 0.6},
    },
    "language, schema": {
        "kind": "language",
        "table": _AFTER_SIGNS,
        "texts": _ARRAYS,
        "alphabet": _SIGNS,
        "schema": _SCHEMA,
    },
    "draft": {"kind": "token", "logits": _THREE, "draft": _NEAR},
    "sure draft": {"kind": "token", "logits": _THREE, "draft": _SURE},
    "sure draft, temperature": {
        "kind": "token",
        "logits": _THREE,
        "draft": _SURE,
        "settings": {"temperature": 0.5},
    },
    "sure draft, top_k": {
        "kind": "token",
        "logits": _THREE,
        "draft": _SURE,
        "settings": {"top_k": 2},
    },
    "draft sequence": {"kind": "sequence", "table": _TABLE, "draft_table": _DRAFT},
    "draft, temperature, top_p": {
        "kind": "token",
        "logits": _LOGITS,
        "draft": [0.0] * 6,
        "settings": {"temperature": 2.0, "top_p": 0.75},
    },
}
