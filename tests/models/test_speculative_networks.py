"""On networks in float32, speculation gives what the target does alone, near-ties aside.

Logits of one text agree to 1e-5 between programs (tests of the networks), so where two texts part
the margin is below 2e-5 of logits (greedy), and below 5e-6 of probability a token (by code): see
``decoding_jax.testing.near_ties``.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_networks import VOCAB, network

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.strategies.speculative import PromptLookup
from decoding_jax.testing.near_ties import code_differences, greedy_differences
from decoding_jax.text import default_stop, encode_batch

LENGTH, ERROR = 16, 1e-5
KEY = jax.random.key(3)
NAMES = ("translation-en-fr", "translation-en-fr-draft")
SENTENCES = [
    " ".join(words)
    for words in itertools.product(
        ("I", "You", "We", "Tom and Mary"),
        ("see", "like", "wanted", "know"),
        ("the cat.", "that old house.", "him.", "to do it now."),
    )
]


def rounded(model: Any) -> Any:
    """A draft that is often accepted: the weights of the model, rounded to eight bits."""
    return jax.tree.map(
        lambda x: x.astype(jnp.bfloat16).astype(x.dtype) if x.dtype == jnp.float32 else x, model
    )


def random_network(name: str, rows: int) -> tuple[Any, Prompt, Stop]:
    draw = np.random.default_rng(0)
    tokens = jnp.asarray(draw.integers(1, VOCAB, (rows, 7), dtype=np.int32))
    prompt = Prompt(tokens, jnp.asarray(draw.integers(1, 8, rows, dtype=np.int32)))
    model = network(name)
    if name == "t5":
        model = model.bind(*prompt)
        prompt = model.start_prompt()
    return model, prompt, Stop(eos_ids=(7,))


def check(
    target: Any,
    drafter: Any,
    prompt: Prompt,
    stop: Stop,
    lanes: int | None,
    max_share: float = 1e-3,
    transform: Any = None,
) -> float:
    """Compares speculation with the target alone, greedily, or by code if ``lanes`` is given.

    At most ``max_share`` of the sequences may differ, and each only at a near-tie.

    Returns:
      The acceptance rate.
    """
    settings: dict[str, Any] = {"max_new_tokens": LENGTH, "stop": stop}
    drafted = {"num_draft_tokens": 4, **settings}
    speculate = decoding_jax.speculative_sample
    if lanes is None:
        want = decoding_jax.greedy(target, prompt, **settings)
        got = speculate(target, drafter, prompt, None, verifier="greedy", **drafted)
        differences = greedy_differences(target, prompt, got, want)
        assert all(d.margin < 2 * ERROR for d in differences), differences
        assert got.info.target_calls <= want.info.model_calls - 1
    else:
        sampled = {"num_samples": lanes, "transform": transform}
        settings, drafted = settings | sampled, drafted | sampled
        want = decoding_jax.arithmetic_sample(target, prompt, KEY, **settings)
        got = speculate(target, drafter, prompt, KEY, verifier="code", **drafted)
        differences = code_differences(target, prompt, KEY, got, want, transform=transform)
        assert all(d.margin < ERROR / 2 * (d.position + 1) for d in differences), differences
    assert len(differences) <= max_share * want.length.size
    same = np.ones(want.length.shape, bool)
    for d in differences:
        same[d.row, d.lane] = False
    for field in ("tokens", "length", "finished"):
        assert (np.asarray(getattr(got, field))[same] == getattr(want, field)[same]).all()
    return float(got.info.acceptance_rate)


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "rows", "lookup", "lanes"),
    [("t5", 1024, False, None), ("gpt2", 1024, True, None), ("llama", 256, False, 4)],
)
def test_random_networks(name: str, rows: int, lookup: bool, lanes: int | None) -> None:
    """Random networks, with 1,024 sequences each."""
    target, prompt, stop = random_network(name, rows)
    drafter = PromptLookup() if lookup else rounded(target)
    assert check(target, drafter, prompt, stop, lanes) > 0.5


@pytest.mark.release
@pytest.mark.optimized  # Unoptimized, the programs by code run for longer than they compile.
@pytest.mark.parametrize(
    ("lanes", "transform", "max_share"),
    [
        pytest.param(None, None, 1e-3, marks=pytest.mark.exhaustive, id="greedy"),
        pytest.param(4, transforms.top_k(40), 1e-3, marks=pytest.mark.release, id="code-top-k"),
        pytest.param(4, None, 5e-2, marks=pytest.mark.release, id="code"),
    ],
)
def test_the_embedded_pair(lanes: int | None, transform: Any, max_share: float) -> None:
    """The embedded pair, with 64 greedy sequences and 256 sequences by code.

    By code over the whole vocabulary, a choice has 8,000 boundaries. Each differs by an eps of
    float32 between two programs, so a few texts differ, all at a near-tie. With the 40 most likely
    tokens alone, almost none differs.
    """
    (target, tokenizer), (draft, _) = (decoding_jax.load(name) for name in NAMES)
    ids = [tokenizer.encode(sentence) for sentence in SENTENCES]
    width = max(map(len, ids))
    (target, prompt), (draft, _) = (encode_batch(model, ids, width) for model in (target, draft))
    rate = check(target, draft, prompt, default_stop(tokenizer), lanes, max_share, transform)
    assert rate > 0.5
