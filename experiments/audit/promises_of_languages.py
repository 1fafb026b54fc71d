"""What decoding_jax, outlines, xgrammar and genlm-control promise of texts of a language."""

from __future__ import annotations

import dataclasses

from experiments.audit.distributions import Convention, conventions
from experiments.audit.row import LANGUAGE, Row, rows

_MASKED, _CONDITIONAL = Convention(language="masked"), Convention(language="conditional")
# Documentation that promises texts of the language says nothing of their distribution.
_EITHER = conventions(language=("masked", "conditional"))
_FEWER = 10_000


def _has_schema(row: Row) -> bool:
    return row.case == "language, schema"


DECODING_JAX = [
    dataclasses.replace(row, samples=_FEWER)
    for row in (
        *rows(
            "decoding_jax",
            "sample, masked",
            LANGUAGE,
            "samplers follow the masked distribution of a constraint exactly",
            "docs/constraints.md",
            (_MASKED,),
        ),
        *rows(
            "decoding_jax",
            "conditional_sample",
            LANGUAGE,
            "accepted samples follow the model given that the text is in the language",
            "decoding_jax/strategies/conditional/conditional_sample.py",
            (_CONDITIONAL,),
        ),
        *rows(
            "decoding_jax",
            "arithmetic_sample, language",
            LANGUAGE,
            "each sample follows the model given that the text is in the language",
            "decoding_jax/strategies/token_by_token.py",
            (_CONDITIONAL,),
        ),
    )
]
DECODING_JAX.sort(key=_has_schema)  # The place of a row is its seed.
OUTLINES = [
    dataclasses.replace(row, samples=_FEWER)
    for row in rows(
        "outlines",
        "Generator",
        LANGUAGE,
        "texts have the structure of the output type; their distribution is not promised",
        "README.md?plain=1#L59-L63",
        _EITHER,
    )
]
XGRAMMAR = rows(
    "xgrammar",
    "contrib.hf.LogitsProcessor",
    LANGUAGE,
    "100% structural correctness; the distribution of texts is not promised",
    "README.md?plain=1#L38",
    _EITHER,
)
# The temperature is no setting of genlm-control.
_NO_SETTINGS = ("language", "language, short first", "language, schema")
_WEIGHTED = [
    *rows(
        "genlm_control",
        "direct_token_sampler",
        _NO_SETTINGS,
        "`DirectTokenSampler`: properly weighted with respect to the target, the product of both",
        "genlm/control/sampler/token.py#L128-L133",
        (_CONDITIONAL,),
    ),
    *rows(
        "genlm_control",
        "AWRS",
        _NO_SETTINGS,
        "`AWRS`: properly weighted samples from the product of the model and a condition",
        "genlm/control/sampler/token.py#L213",
        (_CONDITIONAL,),
    ),
]
# A step of a schema takes long.
_PARTICLES = {"direct_token_sampler": 1_000, "AWRS": 2_000}
GENLM_CONTROL = [
    dataclasses.replace(row, samples=_PARTICLES[row.path] if _has_schema(row) else 12_000)
    for row in sorted(_WEIGHTED, key=_has_schema)
]
