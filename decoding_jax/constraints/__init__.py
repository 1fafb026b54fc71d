"""Constrained texts: schemas, regular expressions, grammars and lists become transforms.

``outlines_core`` compiles patterns and schemas to automata over bytes, and ``lark`` reads grammars;
here they become automata over the tokens of a tokenizer, on the device. ``docs/constraints.md``
says which distribution the texts then have.
"""

from decoding_jax.constraints.made import by_row, choice, grammar, json_schema, regex

__all__ = ["by_row", "choice", "grammar", "json_schema", "regex"]
