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

# They have the layers of another family, with other settings: of BART, T5 1.1, Llama, or Gemma 3,
# which has a window, norms of query and key, and Gemma 2's layers. UMT5's biases, one table for
# each layer, are read in tests/t5x/test_native.py.
RELATIVES = (
    *("byt5", "gemma2", "llama_yarn", "marian", "mbart", "mistral", "mt5", "pegasus", "qwen3"),
    "umt5",
)
FIRST = ("bart", "gpt2", "llama3", "t5_1_1")
# One network in which keys are rotated otherwise, and one with windows and layers of no positions.
SECOND = ("cohere", "smollm3")


@pytest.mark.parametrize(
    "family",
    tiers.of_table(
        FAMILIES,
        exhaustive=[*SECOND, *(x for x in FAMILIES if x not in (*FIRST, *DATA, *RELATIVES))],
        release=[*RELATIVES, *(x for x in DATA if x not in SECOND)],
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


@pytest.mark.parametrize(
    "family", tiers.of_table([*DATA, *RELATIVES], exhaustive=[*LIKE_OTHERS, *RELATIVES])
)
def test_a_family_of_data_or_of_other_settings_prefills_the_logits(family: str) -> None:
    stored = safetensors.numpy.load_file(FIXTURES / family / "expected.safetensors")
    model = exam.bound(load_model(FIXTURES / family), stored)
    output, _ = exam.prefill(model, stored["prompt"], stored["length"])
    np.testing.assert_allclose(output.logits, stored["prefill"], atol=2e-5, rtol=0)
