"""Committed networks and logits of transformers, made by ``make_fixtures.py``."""

from __future__ import annotations

import exam
import numpy as np
import pytest
import safetensors.numpy
import tiers
from examples import DATA, FAMILIES
from families import FIXTURES

from decoding_jax.models.checkpoint import load_model

# Gemma 3 has a window, norms of query and key, and Gemma 2's layers; GPT-NeoX has its own. The
# relatives of BART have its layers, and ByT5 and mT5 are T5 1.1.
SHARED = (
    *(
        "byt5",
        "gemma2",
        "llama_yarn",
        "m2m_100",
        "marian",
        "mbart",
        "mistral",
        "mt5",
        "pegasus",
        "qwen3",
    ),
    *("t5gemma2", "umt5"),
)
FIRST = ("bart", "gpt2", "llama3", "t5_1_1")
# One network in which keys are rotated otherwise, and one with windows and layers of no positions.
SECOND = ("cohere", "smollm3")


@pytest.mark.parametrize(
    "family",
    tiers.of_table(
        FAMILIES,
        exhaustive=[*SECOND, *(x for x in FAMILIES if x not in (*FIRST, *DATA))],
        release=[x for x in DATA if x not in SECOND],
    ),
)
def test_logits_are_those_of_the_fixture(family: str) -> None:
    stored = safetensors.numpy.load_file(FIXTURES / family / "expected.safetensors")
    exam.compare(exam.answers(load_model(FIXTURES / family), stored, step=3), stored, 1e-4)


# What these do, others do too.
LIKE_OTHERS = (
    *("arcee", "cohere", "glm", "ministral", "olmo", "qwen3_moe", "seed_oss", "stablelm"),
    "starcoder2",
)


@pytest.mark.parametrize("family", tiers.of_table(DATA, exhaustive=LIKE_OTHERS))
def test_a_family_of_data_prefills_the_logits_of_the_fixture(family: str) -> None:
    stored = safetensors.numpy.load_file(FIXTURES / family / "expected.safetensors")
    model = load_model(FIXTURES / family)
    output, _ = exam.prefill(model, stored["prompt"], stored["length"])
    np.testing.assert_allclose(output.logits, stored["prefill"], atol=2e-5, rtol=0)
