"""Speculative decoding: drafters propose tokens, verifiers keep as many as the law allows."""

from decoding_jax.strategies.speculative.algorithm import speculative_sample
from decoding_jax.strategies.speculative.draft_length import (
    DraftLength,
    Fixed,
    Heuristic,
    Measured,
)
from decoding_jax.strategies.speculative.drafters import (
    Bigram,
    Drafter,
    Guesser,
    ModelDrafter,
    NextToken,
    Path,
    PromptLookup,
)
from decoding_jax.strategies.speculative.info import Info
from decoding_jax.strategies.speculative.theory import emitted_tokens, speed_up
from decoding_jax.strategies.speculative.verifiers import (
    VERIFIERS,
    Block,
    Code,
    CodedToken,
    Greedy,
    Gumbel,
    Token,
    Verifier,
)

__all__ = [
    "VERIFIERS",
    "Bigram",
    "Block",
    "Code",
    "CodedToken",
    "DraftLength",
    "Drafter",
    "Fixed",
    "Greedy",
    "Guesser",
    "Gumbel",
    "Heuristic",
    "Info",
    "Measured",
    "ModelDrafter",
    "NextToken",
    "Path",
    "PromptLookup",
    "Token",
    "Verifier",
    "emitted_tokens",
    "speculative_sample",
    "speed_up",
]
