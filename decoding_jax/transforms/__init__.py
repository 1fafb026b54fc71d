"""Logits transforms: each one equation, composed with ``chain`` in the order given.

A transform takes logits ``[B, W, T, V]`` (any float; NaN counts as -inf) and the ``Prefix`` that
led to each, and returns float32 logits of the same shape in which masked tokens are -inf. It is a
frozen dataclass and a pytree whose numbers are leaves: scalars, or ``[B]`` for a value of its own
in every row; changing one does not retrace. Each that looks at tokens says by ``include_prompt``
whether the prompt counts. Sets of tokens keep at least one; a row with no token left stays all
-inf.

The lower-case names are what one writes, the classes what one gets::

    transforms.chain(transforms.temperature(0.7), transforms.top_k(40), transforms.top_p(0.9))
"""

from decoding_jax.transforms.bans import BannedSequences, NoRepeatNgram
from decoding_jax.transforms.bias import AllowedTokens, LogitBias
from decoding_jax.transforms.composition import Chain, chain
from decoding_jax.transforms.languages import Automaton, Trie
from decoding_jax.transforms.lengths import ForcedFirstToken, ForcedLastToken, MinLength
from decoding_jax.transforms.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from decoding_jax.transforms.prefixes import PrefixAllowedTokens
from decoding_jax.transforms.scaling import Temperature
from decoding_jax.transforms.smallest_sets import TopK, TopP, Typical
from decoding_jax.transforms.thresholds import Epsilon, Eta, MinP

allowed_tokens = AllowedTokens
banned_sequences = BannedSequences
epsilon = Epsilon
eta = Eta
forced_first_token = ForcedFirstToken
forced_last_token = ForcedLastToken
frequency_penalty = FrequencyPenalty
logit_bias = LogitBias
min_length = MinLength
min_p = MinP
no_repeat_ngram = NoRepeatNgram
prefix_allowed_tokens = PrefixAllowedTokens
presence_penalty = PresencePenalty
repetition_penalty = RepetitionPenalty
temperature = Temperature
top_k = TopK
top_p = TopP
typical = Typical

__all__ = [
    "AllowedTokens",
    "Automaton",
    "BannedSequences",
    "Chain",
    "Epsilon",
    "Eta",
    "ForcedFirstToken",
    "ForcedLastToken",
    "FrequencyPenalty",
    "LogitBias",
    "MinLength",
    "MinP",
    "NoRepeatNgram",
    "PrefixAllowedTokens",
    "PresencePenalty",
    "RepetitionPenalty",
    "Temperature",
    "TopK",
    "TopP",
    "Trie",
    "Typical",
    "allowed_tokens",
    "banned_sequences",
    "chain",
    "epsilon",
    "eta",
    "forced_first_token",
    "forced_last_token",
    "frequency_penalty",
    "logit_bias",
    "min_length",
    "min_p",
    "no_repeat_ngram",
    "prefix_allowed_tokens",
    "presence_penalty",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical",
]
