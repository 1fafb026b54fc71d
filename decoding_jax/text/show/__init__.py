"""A page that shows completions: their tokens by probability, and samples as a tree of prefixes."""

from decoding_jax.text.show.page import Page, show

__all__ = ["Page", "show"]
