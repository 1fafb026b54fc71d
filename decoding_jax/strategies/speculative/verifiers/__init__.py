"""Verifiers: how many drafted tokens stand, and what comes after them."""

from __future__ import annotations

from decoding_jax.strategies.speculative.verifiers.base import Verifier
from decoding_jax.strategies.speculative.verifiers.block import Block
from decoding_jax.strategies.speculative.verifiers.code import Code
from decoding_jax.strategies.speculative.verifiers.coded_token import CodedToken
from decoding_jax.strategies.speculative.verifiers.greedy import Greedy
from decoding_jax.strategies.speculative.verifiers.gumbel import Gumbel
from decoding_jax.strategies.speculative.verifiers.token import Token

VERIFIERS: dict[str, Verifier] = {
    "block": Block(),
    "code": Code(),
    "coded_token": CodedToken(),
    "greedy": Greedy(),
    "gumbel": Gumbel(),
    "token": Token(),
}


def named(verifier: str | Verifier) -> Verifier:
    """A verifier by its name, or as it is.

    Raises:
      ValueError: for an unknown name, or an object without ``Verifier``'s functions.
    """
    if hasattr(verifier, "verify") and not isinstance(verifier, (str, type)):
        return verifier
    if not isinstance(verifier, str) or verifier not in VERIFIERS:
        known = ", ".join(VERIFIERS)
        raise ValueError(f"verifier: got {verifier!r}; takes {known}, or an object")
    return VERIFIERS[verifier]


__all__ = [
    "VERIFIERS",
    "Block",
    "Code",
    "CodedToken",
    "Greedy",
    "Gumbel",
    "Token",
    "Verifier",
    "named",
]
