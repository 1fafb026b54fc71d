"""Logits transforms: each computes one equation; ``chain`` composes them in the order given.

A transform takes logits ``[B, W, T, V]`` (any float dtype; NaN counts as -inf) and the ``Prefix``
before each of them. It returns float32 logits of the same shape, in which masked tokens are -inf. A
transform is a frozen dataclass and a pytree whose numbers are leaves: scalars, or arrays ``[B]``
with one value for each row. Changing a number does not retrace. Transforms that read the text have
an ``include_prompt`` setting, which selects whether the prompt counts. Truncations keep at least
one token; a row in which every token is banned stays all -inf.

Programs write the lower-case names, which are aliases of the classes::

    transforms.chain(transforms.temperature(0.7), transforms.top_k(40), transforms.top_p(0.9))
"""

from decoding_jax.transforms.bias import AllowedTokens, LogitBias
from decoding_jax.transforms.composition import Chain, chain
from decoding_jax.transforms.languages import (
    Automaton,
    CompressedAutomaton,
    PrefixAllowedTokens,
    Trie,
)
from decoding_jax.transforms.lengths import ForcedFirstToken, ForcedLastToken, MinLength
from decoding_jax.transforms.repetition import (
    BannedSequences,
    FrequencyPenalty,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
)
from decoding_jax.transforms.spans import ThinkingBudget
from decoding_jax.transforms.stack_automata import StackAutomaton
from decoding_jax.transforms.truncation import (
    Epsilon,
    Eta,
    MinP,
    Temperature,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
)
from decoding_jax.transforms.watermarks import GumbelWatermark, TournamentWatermark

allowed_tokens = AllowedTokens
banned_sequences = BannedSequences
epsilon = Epsilon
eta = Eta
forced_first_token = ForcedFirstToken
forced_last_token = ForcedLastToken
frequency_penalty = FrequencyPenalty
gumbel_watermark = GumbelWatermark
logit_bias = LogitBias
min_length = MinLength
min_p = MinP
no_repeat_ngram = NoRepeatNgram
prefix_allowed_tokens = PrefixAllowedTokens
presence_penalty = PresencePenalty
repetition_penalty = RepetitionPenalty
temperature = Temperature
thinking_budget = ThinkingBudget
top_h = TopH
top_k = TopK
top_n_sigma = TopNSigma
top_p = TopP
tournament_watermark = TournamentWatermark
typical = Typical

__all__ = [
    "AllowedTokens",
    "Automaton",
    "BannedSequences",
    "Chain",
    "CompressedAutomaton",
    "Epsilon",
    "Eta",
    "ForcedFirstToken",
    "ForcedLastToken",
    "FrequencyPenalty",
    "GumbelWatermark",
    "LogitBias",
    "MinLength",
    "MinP",
    "NoRepeatNgram",
    "PrefixAllowedTokens",
    "PresencePenalty",
    "RepetitionPenalty",
    "StackAutomaton",
    "Temperature",
    "ThinkingBudget",
    "TopH",
    "TopK",
    "TopNSigma",
    "TopP",
    "TournamentWatermark",
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
    "gumbel_watermark",
    "logit_bias",
    "min_length",
    "min_p",
    "no_repeat_ngram",
    "prefix_allowed_tokens",
    "presence_penalty",
    "repetition_penalty",
    "temperature",
    "thinking_budget",
    "top_h",
    "top_k",
    "top_n_sigma",
    "top_p",
    "tournament_watermark",
    "typical",
]
