"""Verifiers: rules that decide how many drafted tokens are accepted, and which token follows."""

from __future__ import annotations

from typing import Any

from decoding_jax import fields
from decoding_jax.strategies.speculative.verifiers.base import (
    TreeVerifier,
    Verification,
    Verifier,
)
from decoding_jax.strategies.speculative.verifiers.block import BlockVerifier
from decoding_jax.strategies.speculative.verifiers.coupled import (
    CodeVerifier,
    GreedyVerifier,
    GumbelVerifier,
)
from decoding_jax.strategies.speculative.verifiers.token import CodedTokenVerifier, TokenVerifier

VERIFIERS: dict[str, Verifier] = {
    "block": BlockVerifier(),
    "code": CodeVerifier(),
    "coded_token": CodedTokenVerifier(),
    "greedy": GreedyVerifier(),
    "gumbel": GumbelVerifier(),
    "token": TokenVerifier(),
}


def check_verifier(name: str, verifier: Any) -> Verifier:
    """Returns the verifier of that name; an object is returned unchanged.

    Raises:
      ValueError: for an unknown name, or an object without ``Verifier``'s functions.
    """
    if hasattr(verifier, "verify") and not isinstance(verifier, (str, type)):
        return verifier
    if not isinstance(verifier, str) or verifier not in VERIFIERS:
        raise fields.error(name, f"one of {', '.join(VERIFIERS)}, or an object", verifier)
    return VERIFIERS[verifier]


def needs_key(verifier: str | Verifier) -> bool:
    """Whether a verifier draws with a key.

    Example:
      >>> needs_key("token"), needs_key("greedy")
      (True, False)
    """
    return getattr(check_verifier("verifier", verifier), "needs_key", True)


__all__ = [
    "VERIFIERS",
    "BlockVerifier",
    "CodeVerifier",
    "CodedTokenVerifier",
    "GreedyVerifier",
    "GumbelVerifier",
    "TokenVerifier",
    "TreeVerifier",
    "Verification",
    "Verifier",
    "check_verifier",
    "needs_key",
]
