"""Constrained texts: schemas, regular expressions and lists become transforms.

``outlines_core`` compiles patterns and schemas to automata over bytes; here they become automata
over the tokens of a tokenizer, on the device. ``docs/constraints.md`` says which distribution the
texts then have.
"""

from decoding_jax.constraints.made import by_row, choice, json_schema, regex

__all__ = ["by_row", "choice", "json_schema", "regex"]
