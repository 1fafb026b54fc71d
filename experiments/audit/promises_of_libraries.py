"""What decoding_jax, transformers, T5X, the arithmetic sampler and KerasHub promise."""

from __future__ import annotations

import dataclasses

from experiments.audit.distributions import Convention, conventions
from experiments.audit.row import AT_LEAST, INDEPENDENT, OPEN, SOFTMAX, rows

_OURS = (Convention(),)
DECODING_JAX = [
    *rows(
        "decoding_jax",
        "sample",
        ("plain", "temperature", "sequence"),
        "`sample`: within 1e-6 of the softmax",
        "decoding_jax/strategies/token_by_token.py",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "sample",
        ("top_k", "top_k ties", "top_p", "top_p boundary", "min_p"),
        "`TopK`: exactly k, lowest ids first; `TopP`: the smallest set of mass at least p",
        "decoding_jax/transforms/truncation.py",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "sample",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "`chain`: in the order given",
        "decoding_jax/transforms/composition.py",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "sample",
        ("pair", "rows"),
        f"`sample`: {INDEPENDENT}",
        "decoding_jax/strategies/token_by_token.py",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "beam_sample",
        ("beams",),
        "`beam_sample`: as in `transformers`; the first K that are drawn may end",
        "decoding_jax/strategies/beam/beam_search.py",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "arithmetic_sample",
        ("plain", "temperature, top_p", "sequence"),
        "each sample follows the distribution of `sample`",
        "decoding_jax/strategies/token_by_token.py",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "speculative_sample",
        ("draft", "sure draft, temperature", "draft sequence", "draft, temperature, top_p"),
        "the transformed target's distribution, whatever the drafter",
        "decoding_jax/strategies/speculative/speculative_sample.py",
        _OURS,
    ),
]

_CONFIG = "src/transformers/generation/configuration_utils.py"
_LEVIATHAN = (
    "Algorithm 1 of Leviathan et al. 2022, which keeps the distribution of sampling without the"
    " assistant"
)
_SPECULATIVE = "src/transformers/generation/utils.py#L4452"
TRANSFORMERS = [
    *rows(
        "transformers",
        "generate",
        ("plain", "temperature", "sequence"),
        "`do_sample`: multinomial sampling",
        f"{_CONFIG}#L103",
        OPEN,
    ),
    *rows(
        "transformers",
        "generate",
        ("top_k", "top_k ties", "top_p", "top_p boundary", "min_p"),
        "`top_k`, `top_p` (mass p or more) and `min_p` of `GenerationConfig`",
        f"{_CONFIG}#L186-L194",
        AT_LEAST,
    ),
    *rows(
        "transformers",
        "generate",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "the same and `temperature`; the order is not promised",
        f"{_CONFIG}#L184-L194",
        AT_LEAST,
    ),
    *rows(
        "transformers",
        "num_return_sequences",
        ("pair",),
        f"`num_return_sequences`: {INDEPENDENT}",
        f"{_CONFIG}#L277-L278",
        OPEN,
    ),
    *rows(
        "transformers",
        "num_beams",
        ("beams",),
        "`num_beams`, `do_sample`: beam-search multinomial sampling; how is not promised",
        f"{_CONFIG}#L105",
        OPEN,
    ),
    *[
        dataclasses.replace(row, samples=1_500)
        for row in rows(
            "transformers",
            "assistant_model",
            ("draft", "draft sequence", "draft, temperature, top_p"),
            f"assisted decoding: {_LEVIATHAN}",
            _SPECULATIVE,
            AT_LEAST,
        )
    ],
    *rows(
        "transformers",
        "SinglePositionMultiTokenCandidateGenerator",
        ("sure draft", "draft"),
        f"assisted decoding, assistants of Gemma 4: {_LEVIATHAN}",
        _SPECULATIVE,
        OPEN,
    ),
    *rows(
        "transformers",
        "MTPCandidateGenerator",
        ("sure draft", "draft"),
        f"assisted decoding, `use_mtp`: {_LEVIATHAN}",
        _SPECULATIVE,
        OPEN,
    ),
    *rows(
        "transformers",
        "DFlashTokenCandidateGenerator",
        ("sure draft", "draft", "draft, temperature, top_p"),
        f"assisted decoding, assistants of DFlash: {_LEVIATHAN}",
        _SPECULATIVE,
        AT_LEAST,
    ),
]

_T5X_FILE = "t5x/decoding.py"
_TEMPERATURES = (
    "`temperature`, an array: a temperature for each row; rows and decodes are independent"
)
T5X = [
    *rows(
        "t5x",
        "one temperature",
        ("plain", "temperature", "sequence"),
        f"`temperature_sample`: {SOFTMAX}",
        f"{_T5X_FILE}#L135",
        OPEN,
    ),
    *rows(
        "t5x",
        "one temperature",
        ("top_k", "top_k ties", "top_p", "top_p boundary", "temperature, top_p", "cold, top_p"),
        "`topk`, `topp`: the smallest number of logits whose probabilities add up to at least topp",
        f"{_T5X_FILE}#L308-L312",
        AT_LEAST,
    ),
    *rows(
        "t5x",
        "one temperature",
        ("pair",),
        f"`num_decodes`: sampling is performed so many times; {INDEPENDENT}",
        f"{_T5X_FILE}#L137",
        OPEN,
    ),
    *rows(
        "t5x",
        "one temperature",
        ("rows, equal",),
        "`temperature`, a number: rows are independent",
        f"{_T5X_FILE}#L304",
        OPEN,
    ),
    *rows(
        "t5x",
        "temperature of each row",
        ("plain", "rows", "rows, equal", "pair"),
        _TEMPERATURES,
        f"{_T5X_FILE}#L304-L307",
        OPEN,
    ),
]
ARITHMETIC = [
    row
    for path in ("one decode", "one of four decodes")
    for cases, promise, at in (
        (
            ("plain", "sequence"),
            "`_arithmetic_categorical`: an unbiased sample for each code",
            "arithmetic_sampling/t5x/decoding.py#L107-L108",
        ),
        (
            ("top_k ties", "temperature, top_p"),
            "`topk`, `topp`: as in T5X",
            "arithmetic_sampling/t5x/decoding.py#L218-L222",
        ),
    )
    for row in rows("arithmetic_sampling", path, cases, promise, at, AT_LEAST)
]

_KERAS = "keras_hub/src/samplers"
KERAS = [
    *rows(
        "keras_hub",
        "RandomSampler",
        ("plain", "temperature", "sequence", "pair"),
        f"`RandomSampler`: each token with its probability; {INDEPENDENT}",
        f"{_KERAS}/random_sampler.py#L12-L14",
        OPEN,
    ),
    *rows(
        "keras_hub",
        "TopKSampler",
        ("top_k", "top_k ties", "temperature, top_k"),
        "`TopKSampler`: one of the top k, by its probability",
        f"{_KERAS}/top_k_sampler.py#L12-L14",
        OPEN,
    ),
    *rows(
        "keras_hub",
        "TopPSampler",
        ("top_p", "top_p boundary", "temperature, top_p", "top_k, top_p"),
        "`TopPSampler`: the smallest subset that sums to greater than p, after a cutoff k",
        f"{_KERAS}/top_p_sampler.py#L12-L23",
        conventions(
            order=("temperature first", "temperature last"),
            top_p=("more than",),
            ties=("lowest ids", "highest ids", "all"),
            nucleus=("top_k", "all"),
        ),
    ),
    *rows(
        "keras_hub",
        "SpeculativeSampler",
        ("sure draft", "draft", "draft sequence"),
        "`SpeculativeSampler` with a `base_sampler`: rejection sampling after Leviathan et al."
        " 2022, which keeps the target's distribution",
        f"{_KERAS}/speculative_sampler.py#L17-L28",
        OPEN,
    ),
    *rows(
        "keras_hub",
        "SpeculativeSampler",
        ("sure draft, temperature", "sure draft, top_k"),
        "`base_sampler`: its temperature, top-k and top-p are used",
        f"{_KERAS}/speculative_sampler.py#L34-L37",
        OPEN,
    ),
]
