"""What decoding_jax, transformers, T5X, the arithmetic sampler and KerasHub promise."""

from __future__ import annotations

from experiments.audit.distributions import Convention, conventions
from experiments.audit.row import AT_LEAST, INDEPENDENT, OPEN, SOFTMAX, Row, rows

_OURS = (Convention(),)
DECODING_JAX = [
    *rows(
        "decoding_jax",
        "sample",
        ("plain", "temperature", "sequence"),
        "`sample`: within 1e-6 of the softmax",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "sample",
        ("top_k", "top_k ties", "top_p", "top_p boundary", "min_p"),
        "`TopK`: exactly k, lowest ids first; `TopP`: the smallest set of mass at least p",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "sample",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "`chain`: in the order given",
        _OURS,
    ),
    *rows("decoding_jax", "sample", ("pair", "rows"), f"`sample`: {INDEPENDENT}", _OURS),
    *rows(
        "decoding_jax",
        "beam_sample",
        ("beams",),
        "`beam_sample`: as in `transformers`; the first K that are drawn may end",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "arithmetic_sample",
        ("plain", "temperature, top_p", "sequence"),
        "each sample follows the distribution of `sample`",
        _OURS,
    ),
    *rows(
        "decoding_jax",
        "speculative_sample",
        ("draft", "sure draft, temperature", "draft sequence", "draft, temperature, top_p"),
        "the transformed target's distribution, whatever the drafter",
        _OURS,
    ),
]
TRANSFORMERS = [
    *rows(
        "transformers",
        "generate",
        ("plain", "temperature", "sequence"),
        "`do_sample`: multinomial sampling from the softmax",
        OPEN,
    ),
    *rows(
        "transformers",
        "generate",
        ("top_k", "top_k ties", "top_p", "top_p boundary", "min_p"),
        "`top_k`, `top_p` (mass p or more) and `min_p` of `GenerationConfig`",
        AT_LEAST,
    ),
    *rows(
        "transformers",
        "generate",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "the same; the order is not promised",
        AT_LEAST,
    ),
    *rows(
        "transformers",
        "num_return_sequences",
        ("pair",),
        f"`num_return_sequences`: {INDEPENDENT}",
        OPEN,
    ),
    *rows(
        "transformers",
        "num_beams",
        ("beams",),
        "`num_beams`, `do_sample`: beam-search multinomial sampling; how is not promised",
        OPEN,
    ),
    *[
        Row(
            "transformers",
            "assistant_model",
            case,
            "assisted decoding: the distribution of sampling without the assistant",
            AT_LEAST,
            samples=1_500,
        )
        for case in ("draft", "draft sequence", "draft, temperature, top_p")
    ],
]
_T5X_TOP = (
    "`topk`, `topp`: the smallest number of logits whose probabilities add up to at least topp"
)
T5X = [
    *rows(
        "t5x",
        "one temperature",
        ("plain", "temperature", "sequence"),
        f"`temperature_sample`: {SOFTMAX}",
        OPEN,
    ),
    *rows(
        "t5x",
        "one temperature",
        ("top_k", "top_k ties", "top_p", "top_p boundary", "temperature, top_p", "cold, top_p"),
        _T5X_TOP,
        AT_LEAST,
    ),
    *rows("t5x", "one temperature", ("pair",), f"`num_decodes`: {INDEPENDENT}", OPEN),
    *rows(
        "t5x",
        "one temperature",
        ("rows, equal",),
        "`temperature`, a number: rows are independent",
        OPEN,
    ),
    *rows(
        "t5x",
        "temperature of each row",
        ("plain", "rows", "rows, equal", "pair"),
        "`temperature`, an array: a temperature for each row; rows and decodes are independent",
        OPEN,
    ),
]
ARITHMETIC = [
    row
    for path in ("one decode", "one of four decodes")
    for row in rows(
        "arithmetic_sampling",
        path,
        ("plain", "sequence", "top_k ties", "temperature, top_p"),
        "`arithmetic_sample`: an unbiased sample for each code; `topk`, `topp` as in T5X",
        AT_LEAST,
    )
]
KERAS = [
    *rows(
        "keras_hub",
        "RandomSampler",
        ("plain", "temperature", "sequence", "pair"),
        f"`RandomSampler`: each token with its probability; {INDEPENDENT}",
        OPEN,
    ),
    *rows(
        "keras_hub",
        "TopKSampler",
        ("top_k", "top_k ties", "temperature, top_k"),
        "`TopKSampler`: one of the top k, by its probability",
        OPEN,
    ),
    *rows(
        "keras_hub",
        "TopPSampler",
        ("top_p", "top_p boundary", "temperature, top_p", "top_k, top_p"),
        "`TopPSampler`: the smallest subset that sums to greater than p, after a cutoff k",
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
        "`SpeculativeSampler` with a `base_sampler`: rejection sampling, Algorithm 1 of Leviathan"
        " et al. 2022, which keeps the target's distribution",
        OPEN,
    ),
    *rows(
        "keras_hub",
        "SpeculativeSampler",
        ("sure draft, temperature", "sure draft, top_k"),
        "`base_sampler`: its temperature, top-k and top-p are used",
        OPEN,
    ),
]
