"""Speculative decoding: drafters propose tokens, and verifiers decide how many are accepted."""

from decoding_jax.strategies.speculative.draft_length import (
    DraftLength,
    Fixed,
    Heuristic,
    Measured,
    emitted_tokens,
    speed_up,
)
from decoding_jax.strategies.speculative.drafters import (
    Bigram,
    Corpus,
    Drafter,
    Guesser,
    ModelDrafter,
    NextToken,
    Path,
    PromptLookup,
    SuffixDrafter,
    SupportsBind,
)
from decoding_jax.strategies.speculative.speculative_sample import (
    SpeculativeSample,
    speculative_sample,
)
from decoding_jax.strategies.speculative.stages import Info
from decoding_jax.strategies.speculative.verifiers import (
    VERIFIERS,
    BlockVerifier,
    CodedTokenVerifier,
    CodeVerifier,
    GreedyVerifier,
    GumbelVerifier,
    TokenVerifier,
    TreeVerifier,
    Verification,
    Verifier,
)

__all__ = [
    "VERIFIERS",
    "Bigram",
    "BlockVerifier",
    "CodeVerifier",
    "CodedTokenVerifier",
    "Corpus",
    "DraftLength",
    "Drafter",
    "Fixed",
    "GreedyVerifier",
    "Guesser",
    "GumbelVerifier",
    "Heuristic",
    "Info",
    "Measured",
    "ModelDrafter",
    "NextToken",
    "Path",
    "PromptLookup",
    "SpeculativeSample",
    "SuffixDrafter",
    "SupportsBind",
    "TokenVerifier",
    "TreeVerifier",
    "Verification",
    "Verifier",
    "emitted_tokens",
    "speculative_sample",
    "speed_up",
]
