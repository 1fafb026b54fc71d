"""What Tunix, Gemma, MaxText, sglang-jax, tpu-inference and a NumPy program promise."""

from __future__ import annotations

from experiments.audit.distributions import conventions
from experiments.audit.row import AT_LEAST, OPEN, SOFTMAX, rows

_TUNIX = "tunix/generate/sampler.py"
TUNIX = [
    *rows(
        "tunix",
        "sample_top_p",
        ("plain", "temperature"),
        f"`temperature`: for sampling; {SOFTMAX}",
        f"{_TUNIX}#L783",
        OPEN,
    ),
    *rows(
        "tunix",
        "sample_top_p",
        ("top_k", "top_k ties", "top_p", "top_p boundary"),
        "`top_p`, `top_k`: the sampling thresholds",
        f"{_TUNIX}#L784-L785",
        OPEN,
    ),
    *rows(
        "tunix",
        "sample_top_p",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "all three; the order is not promised",
        f"{_TUNIX}#L783-L785",
        OPEN,
    ),
    *rows(
        "tunix",
        "sample_top_p",
        ("pair",),
        "`sample_top_p`: a token for each row, which is taken to be independent",
        f"{_TUNIX}#L119",
        OPEN,
    ),
]

_GEMMA = "gemma/gm/text/_sampling.py"
GEMMA = [
    *rows(
        "gemma",
        "RandomSampling",
        ("plain", "temperature", "pair"),
        "`RandomSampling`: simple random sampling",
        f"{_GEMMA}#L55",
        OPEN,
    ),
    *rows(
        "gemma",
        "TopkSampling",
        ("top_k", "top_k ties", "temperature, top_k"),
        "`TopkSampling`: top-k sampling",
        f"{_GEMMA}#L66",
        OPEN,
    ),
    *rows(
        "gemma",
        "TopPSampling",
        ("top_p", "top_p boundary", "temperature, top_p", "cold, top_p", "pair"),
        "`TopPSampling`: nucleus sampling",
        f"{_GEMMA}#L87",
        OPEN,
    ),
]

_MAXTEXT = "src/maxtext/inference/inference_utils.py"
MAXTEXT = [
    *rows(
        "maxtext",
        "weighted",
        ("plain", "temperature", "pair"),
        f"`weighted`: {SOFTMAX}, scaled by `temperature`",
        f"{_MAXTEXT}#L127-L132",
        OPEN,
    ),
    *rows(
        "maxtext",
        "topk",
        ("top_k", "top_k ties", "temperature, top_k"),
        "`topk`: the best k logits",
        f"{_MAXTEXT}#L166",
        OPEN,
    ),
    *rows(
        "maxtext",
        "nucleus",
        ("top_p", "top_p boundary", "temperature, top_p", "cold, top_p"),
        "`nucleus`: the top logits of mass p or more; the order is not promised",
        f"{_MAXTEXT}#L149",
        AT_LEAST,
    ),
    *rows(
        "maxtext",
        "composite",
        ("top_k, top_p", "temperature, top_k, top_p", "top_p boundary"),
        "`composite`: top-k, then the smallest set of the kept whose mass exceeds p, then the"
        " temperature",
        f"{_MAXTEXT}#L182-L190",
        conventions(
            order=("temperature last",),
            ties=("lowest ids", "highest ids", "all"),
            top_p=("more than",),
        ),
    ),
]

_SGLANG = "docs/architecture/06-layers-and-attention.md?plain=1"
SGLANG_JAX = [
    *[
        row
        for path in ("mask", "sort")
        for row in (
            *rows(
                "sglang_jax",
                path,
                ("plain", "temperature", "pair"),
                f"section 6.12.1: temperature, then {SOFTMAX}",
                f"{_SGLANG}#L540",
                OPEN,
            ),
            *rows(
                "sglang_jax",
                path,
                ("top_k", "top_k ties", "top_p", "top_p boundary", "top_k, top_p"),
                "section 6.12.2: the K most probable; the smallest set whose mass reaches p",
                f"{_SGLANG}#L546",
                AT_LEAST,
            ),
            *rows(
                "sglang_jax",
                path,
                ("temperature, top_p", "cold, top_p"),
                "section 6.12.1: temperature, softmax, then truncation",
                f"{_SGLANG}#L540",
                conventions(),
            ),
            *rows(
                "sglang_jax",
                path,
                ("min_p",),
                "section 6.12.2: `min_p` times the greatest probability is the threshold",
                f"{_SGLANG}#L546",
                OPEN,
            ),
        )
    ],
    *rows(
        "sglang_jax",
        "seeds",
        ("plain",),
        "`multinomial_with_seed`: sampled from the row's distribution by the row's seed",
        "python/sgl_jax/srt/layers/sampler.py#L270-L272",
        OPEN,
    ),
    *rows(
        "sglang_jax",
        "positions",
        ("plain",),
        "the same, for one seed at the positions of a text",
        "python/sgl_jax/srt/layers/sampler.py#L266-L272",
        OPEN,
    ),
]

_TPU = "tpu_inference/layers"
_ORDER = conventions(ties=("lowest ids", "highest ids", "all"))
TPU_INFERENCE = [
    *rows(
        "tpu_inference",
        "sample",
        ("plain", "temperature", "rows", "pair"),
        f"`_apply_sampling_transforms`: {SOFTMAX}, scaled by the row's temperature",
        f"{_TPU}/jax/sample/sampling.py#L130",
        OPEN,
    ),
    *rows(
        "tpu_inference",
        "sample",
        ("top_k", "top_k ties"),
        "`topk_mask`: k, or more where there are ties",
        f"{_TPU}/common/binary_search.py#L179-L180",
        AT_LEAST,
    ),
    *rows(
        "tpu_inference",
        "sample",
        ("top_p", "top_p boundary"),
        "`topp_mask`: the smallest set of mass p or more",
        f"{_TPU}/common/binary_search.py#L231-L233",
        AT_LEAST,
    ),
    *rows(
        "tpu_inference",
        "sample",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "`_apply_sampling_transforms`: temperature, top-k, top-p",
        f"{_TPU}/jax/sample/sampling.py#L130",
        _ORDER,
    ),
    *rows(
        "tpu_inference",
        "rejection_sample",
        ("draft", "draft, temperature, top_p"),
        "`RejectionSampler`: the algorithm of Leviathan et al. 2022, which keeps the distribution"
        " of `sample`",
        f"{_TPU}/jax/sample/rejection_sampler.py#L42-L43",
        _ORDER,
    ),
    *rows(
        "tpu_inference",
        "rejection_sample, draft_probs=None",
        ("sure draft", "sure draft, temperature", "draft, temperature, top_p"),
        "the same, as the runner calls it",
        f"{_TPU}/jax/sample/rejection_sampler.py#L42-L43",
        _ORDER,
    ),
]
SPECULATIVE_SAMPLING = [
    *rows(
        "speculative_sampling",
        "speculative_sampling",
        ("draft", "draft sequence"),
        "Chen et al. 2023: the distribution of the target model",
        "README.md?plain=1#L2",
        OPEN,
    ),
]
