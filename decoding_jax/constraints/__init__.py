"""Constrained texts: schemas, regular expressions, grammars and lists become transforms.

A front end reads schemas (``references``, ``schemas``, ``forms``, ``json_texts``), patterns or
grammars, and makes automata over bytes (``expressions``, ``automata``, ``encodings``). These become
automata over the tokens of a tokenizer, or machines with a stack (``definitions``, ``pushdown``,
``token_pushdown``), on the device. ``docs/constraints.md`` says which distribution the texts then
have.
"""

from decoding_jax.constraints import response_formats as _response_formats  # noqa: F401
from decoding_jax.constraints.forced import ForcedTokens, forced
from decoding_jax.constraints.made import by_row, choice, grammar, json_schema, regex

__all__ = [
    "ForcedTokens",
    "by_row",
    "choice",
    "forced",
    "grammar",
    "json_schema",
    "regex",
]
