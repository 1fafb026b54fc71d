"""What Tunix, Gemma, MaxText, sglang-jax, tpu-inference and a NumPy program promise."""

from __future__ import annotations

from experiments.audit.distributions import conventions
from experiments.audit.row import AT_LEAST, OPEN, SOFTMAX, rows

TUNIX = [
    *rows("tunix", "sample_top_p", ("plain", "temperature"), f"`temperature`: {SOFTMAX}", OPEN),
    *rows(
        "tunix",
        "sample_top_p",
        ("top_k", "top_k ties", "top_p", "top_p boundary"),
        "`top_p`, `top_k`: the sampling thresholds",
        OPEN,
    ),
    *rows(
        "tunix",
        "sample_top_p",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "the same; the order is not promised",
        OPEN,
    ),
    *rows("tunix", "sample_top_p", ("pair",), "rows are independent", OPEN),
]
GEMMA = [
    *rows(
        "gemma",
        "RandomSampling",
        ("plain", "temperature", "pair"),
        "`RandomSampling`: simple random sampling",
        OPEN,
    ),
    *rows(
        "gemma",
        "TopkSampling",
        ("top_k", "top_k ties", "temperature, top_k"),
        "`TopkSampling`: top-k sampling",
        OPEN,
    ),
    *rows(
        "gemma",
        "TopPSampling",
        ("top_p", "top_p boundary", "temperature, top_p", "cold, top_p", "pair"),
        "`TopPSampling`: nucleus sampling",
        OPEN,
    ),
]
MAXTEXT = [
    *rows(
        "maxtext",
        "weighted",
        ("plain", "temperature", "pair"),
        f"`weighted`: {SOFTMAX}, scaled by `temperature`",
        OPEN,
    ),
    *rows("maxtext", "topk", ("top_k", "top_k ties", "temperature, top_k"), "`topk`", OPEN),
    *rows(
        "maxtext",
        "nucleus",
        ("top_p", "top_p boundary", "temperature, top_p", "cold, top_p"),
        "`nucleus`: the top logits of mass p or more; the order is not promised",
        AT_LEAST,
    ),
    *rows(
        "maxtext",
        "composite",
        ("top_k, top_p", "temperature, top_k, top_p"),
        "`composite`: top-k, then top-p among the kept, then the temperature",
        conventions(order=("temperature last",), ties=("lowest ids", "highest ids", "all")),
    ),
]
SGLANG_JAX = [
    *[
        row
        for path in ("mask", "sort")
        for row in (
            *rows("sglang_jax", path, ("plain", "temperature", "pair"), SOFTMAX, OPEN),
            *rows(
                "sglang_jax",
                path,
                ("top_k", "top_k ties", "top_p", "top_p boundary", "top_k, top_p"),
                "top-k: the K most probable; top-p: the smallest set whose mass reaches p",
                OPEN,
            ),
            *rows(
                "sglang_jax",
                path,
                ("temperature, top_p", "cold, top_p"),
                "section 6.12.1: temperature, softmax, then truncation",
                conventions(top_p=("at least", "more than")),
            ),
            *rows(
                "sglang_jax",
                path,
                ("min_p",),
                "section 6.12.2: `min_p` times the greatest probability is the threshold",
                OPEN,
            ),
        )
    ],
    *rows(
        "sglang_jax",
        "seeds",
        ("plain",),
        "`multinomial_with_seed`: sampled from the row's distribution by the row's seed",
        OPEN,
    ),
    *rows(
        "sglang_jax",
        "positions",
        ("plain",),
        "the same, for one seed at the positions of a text",
        OPEN,
    ),
]
TPU_INFERENCE = [
    *rows("tpu_inference", "sample", ("plain", "temperature", "rows", "pair"), SOFTMAX, OPEN),
    *rows(
        "tpu_inference",
        "sample",
        ("top_k", "top_k ties", "top_p", "top_p boundary"),
        "`topk_mask`: k, or more where there are ties; `topp_mask`: the smallest set of mass p or"
        " more",
        AT_LEAST,
    ),
    *rows(
        "tpu_inference",
        "sample",
        ("temperature, top_p", "cold, top_p", "top_k, top_p"),
        "`_apply_sampling_transforms`: temperature, top-k, top-p",
        conventions(ties=("lowest ids", "highest ids", "all")),
    ),
    *rows(
        "tpu_inference",
        "rejection_sample",
        ("draft", "draft, temperature, top_p"),
        "`RejectionSampler`: the algorithm of Leviathan et al. 2022, which keeps the distribution"
        " of `sample`",
        conventions(ties=("lowest ids", "highest ids", "all")),
    ),
    *rows(
        "tpu_inference",
        "rejection_sample, draft_probs=None",
        ("sure draft", "sure draft, temperature", "draft, temperature, top_p"),
        "the same, as the runner calls it",
        conventions(ties=("lowest ids", "highest ids", "all")),
    ),
]
SPECULATIVE_SAMPLING = [
    *rows(
        "speculative_sampling",
        "speculative_sampling",
        ("draft", "draft sequence"),
        "Chen et al. 2023: the distribution of the target model",
        OPEN,
    ),
]
