"""What every network does, of the families that share the layers of Llama."""

from __future__ import annotations

import dataclasses
from typing import Any

import exam
import examples
import jax
import numpy as np
import pytest
import safetensors.numpy
import tiers
from families import BART, FIXTURES

from decoding_jax import Prompt, greedy, sharding, speculative_sample
from decoding_jax.batches import RowDecoder, parse
from decoding_jax.models import reproducible
from decoding_jax.models.checkpoint import load_model
from decoding_jax.models.decoder import with_prefill_chunk
from decoding_jax.models.stack import with_scanned_layers, with_separate_layers
from decoding_jax.testing import check_model

FAMILIES = ["gemma2", "gemma3", "gpt_neox", "mistral", "qwen3"]
DECODERS = [
    family
    for family, (config, _) in examples.FAMILIES.items()
    if "T5" not in config and not family.startswith((*BART, "gemma4", "switch"))
]
ENCODER_DECODERS = ["mbart", "marian", "marian_separate", "t5gemma", "t5gemma2"]


def tiers_of(families: list[str], *exhaustive: str) -> list[Any]:
    """The families, of which the gate runs some and releases the others."""
    rest = [family for family in families if family not in exhaustive]
    return tiers.values(exhaustive=exhaustive, release=rest)


@pytest.mark.parametrize("family", tiers_of(DECODERS, "gemma3"))
def test_verbs_do_what_they_say(family: str) -> None:
    ran = check_model(load_model(FIXTURES / family), tolerance=1e-4)
    assert {"check_tree", "check_keep", "check_select", "check_out_of_range"} <= set(ran)


@pytest.mark.parametrize("family", tiers_of(DECODERS, "gemma3", "mixtral"))
def test_scanned_layers_and_chunks_compute_the_same(family: str) -> None:
    stored = safetensors.numpy.load_file(FIXTURES / family / "expected.safetensors")
    model = load_model(FIXTURES / family, scan_layers=True)
    exam.compare(exam.answers(with_prefill_chunk(model, 2), stored, step=3), stored, 1e-4)


@pytest.mark.parametrize("family", tiers_of([*DECODERS, "gemma4"], "gemma3", "gpt_oss"))
def test_a_mesh_decodes_the_same_tokens(family: str) -> None:
    tokens = np.array([[1, 2, 3, 4], [3, 0, 0, 0], [4, 5, 0, 0], [9, 8, 7, 0]], np.int32)
    prompt = Prompt(tokens, np.array([4, 1, 2, 3], np.int32))
    model = load_model(FIXTURES / family)
    shape = (8, 1) if any(n % 2 for n in model.sharded_sizes.values()) else (4, 2)
    placed = load_model(FIXTURES / family, mesh=jax.make_mesh(shape, ("data", "model")))
    found = greedy(placed, prompt, max_new_tokens=6)
    np.testing.assert_array_equal(found.tokens, greedy(model, prompt, max_new_tokens=6).tokens)


def test_a_mesh_has_to_divide_the_experts() -> None:
    with pytest.raises(ValueError, match="expected a divisor of num_experts = 5, got model=2"):
        load_model(FIXTURES / "qwen2_moe", mesh=jax.make_mesh((4, 2), ("data", "model")))


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        pytest.param("mixtral", "gpt_oss", marks=pytest.mark.exhaustive),
        *(
            pytest.param(*pair, marks=pytest.mark.release)
            for pair in (("qwen2_moe", "llama2"), ("llama2", "qwen2_moe"))
        ),
    ],
)
def test_a_mixture_drafts_and_is_drafted_for(target: str, draft: str) -> None:
    prompt = Prompt(np.array([[1, 2, 3, 4], [3, 0, 0, 0]], np.int32), np.array([4, 1], np.int32))
    models = [load_model(FIXTURES / family) for family in (target, draft)]
    found = speculative_sample(
        *models, prompt, verifier="greedy", num_draft_tokens=2, max_new_tokens=6
    )
    expected = greedy(models[0], prompt, max_new_tokens=6)
    np.testing.assert_array_equal(found.tokens, expected.tokens)


@pytest.mark.optimized
@pytest.mark.parametrize("family", tiers_of(DECODERS, "qwen3_moe"))
def test_rows_have_the_same_bits_alone_and_in_a_refilled_batch(family: str) -> None:
    model = reproducible(load_model(FIXTURES / family), 4)
    draw = np.random.default_rng(0)
    ids = [draw.integers(1, 40, n).tolist() for n in (1, 7, 4, 8, 2, 5)]
    rows = list(range(len(ids)))
    call = parse(model, "greedy", {"max_new_tokens": 6})
    decoder = RowDecoder(call, batch_size=2)
    decoder.inputs.expect(len(ids))
    decoder.prepare(8)
    for members, output in decoder.decode(ids, rows, {8: rows}):
        for n, row in enumerate(members):
            tokens = np.array([[*ids[row], *[0] * (8 - len(ids[row]))]], np.int32)
            alone = greedy(model, Prompt(tokens, np.array([len(ids[row])])), max_new_tokens=6)
            np.testing.assert_array_equal(output.tokens[n], alone.tokens[0])
            np.testing.assert_array_equal(output.log_prob[n], alone.log_prob[0])
            rows = [x for x in rows if x != row]
    assert not rows


@pytest.mark.release
@pytest.mark.parametrize("family", ["gemma3", "gpt_neox", "switch"])
def test_bfloat16_is_near_float32(family: str) -> None:
    stored = safetensors.numpy.load_file(FIXTURES / family / "expected.safetensors")
    got = exam.answers(load_model(FIXTURES / family, dtype="bfloat16"), stored, step=3)
    for part in exam.PARTS:
        assert np.abs(got[part] - stored[part]).mean() < 0.05 * stored[part].std()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if family == "gemma3" else [pytest.mark.exhaustive])
        for family in FAMILIES + ENCODER_DECODERS
    ],
)
def test_layers_are_stacked_sharded_and_dropped(family: str) -> None:
    """The parameters, in which nothing is computed."""
    model = load_model(FIXTURES / family)
    scanned = load_model(FIXTURES / family, scan_layers=True)
    same(with_scanned_layers(model), scanned)
    same(with_separate_layers(scanned), model)
    for kind in (model, scanned):
        own = jax.eval_shape(lambda kind=kind: type(kind).init(kind.config, jax.random.key(0)))
        assert jax.tree.map(np.shape, own) == jax.tree.map(np.shape, kind)
    first = model.early_exit(1)
    if family in ENCODER_DECODERS:
        same(first, model)  # Its decoder has one layer.
    else:
        assert first.config == dataclasses.replace(model.config, num_layers=1)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    placed = load_model(FIXTURES / family, mesh=mesh)
    same(placed, sharding.shard(model, mesh))
    divided = {leaf.sharding.spec for leaf in jax.tree.leaves(placed)}
    assert len(divided) > 2  # by rows, by columns, and whole


def same(found: Any, expected: Any) -> None:
    assert found.config == expected.config
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.sharding == y.sharding
