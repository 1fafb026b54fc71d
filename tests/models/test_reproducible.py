"""Rows that are equal to the bit: in batches of any size, order, padding and number of devices."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from machine import need_devices
from networks import drawn

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.batches import RowDecoder, parse
from decoding_jax.models import (
    GPT2,
    T5,
    EagleConfig,
    EagleHead,
    GPT2Config,
    Llama,
    LlamaConfig,
    T5Config,
    guided,
    reproducible,
    with_shared_prefix,
)
from decoding_jax.models.stack import with_scanned_layers
from decoding_jax.ops.random import row_keys
from decoding_jax.strategies.speculative import Eagle
from decoding_jax.testing import TableLM

pytestmark = pytest.mark.optimized

SHAPE = {"vocab_size": 301, "emb_dim": 48, "num_heads": 4, "mlp_dim": 80, "num_layers": 1}
DRAWN = np.random.default_rng(0)
COUNT = 9
SHARED = DRAWN.integers(1, 301, 3)
IDS = [[*SHARED, *DRAWN.integers(1, 301, n)] for n in (1, 4, 26, 2, 9, 30, 7, 17, 3)]
KEYS = row_keys(jax.random.key(1), COUNT)
SETTINGS = {
    "stop": Stop(eos_ids=(0, 7), max_new_tokens=6),
    "transform": transforms.chain(transforms.temperature(0.8), transforms.top_p(0.9)),
}


def network(name, dtype="float32", **settings):
    settings = {**SHAPE, "dtype": dtype, **settings}
    if name == "gpt2":
        model = drawn(GPT2, GPT2Config(**settings, max_positions=99))
    elif name == "llama":
        config = LlamaConfig(**settings, num_kv_heads=2, head_dim=12, max_positions=99)
        model = drawn(Llama, config)
    else:
        count = settings.pop("num_layers")
        layers = {"num_encoder_layers": count, "num_decoder_layers": count, "head_dim": 12}
        config = T5Config(**settings, **layers, mlp_activations=("gelu", "linear"))
        model = drawn(T5, config)
    params = jax.tree.map(lambda x: x.astype(dtype), model.params)
    return dataclasses.replace(model, params=params)


def decode(model, strategy, rows, width=0, new=6, **settings):
    """The tokens and log-probabilities of some of the texts, decoded together."""
    width = max(width, *(len(IDS[i]) for i in rows))
    tokens = np.array([[*IDS[i], *[0] * (width - len(IDS[i]))] for i in rows], np.int32)
    prompt = Prompt(tokens, np.array([len(IDS[i]) for i in rows], np.int32))
    if hasattr(model, "bind"):
        model = model.bind(*prompt)
        prompt = model.start_prompt()
    run = getattr(decoding_jax, strategy)
    keys = () if run.strategy.draws is False else (KEYS[np.array(rows)],)
    output = run(model, prompt, *keys, **SETTINGS, max_new_tokens=new, **settings)
    output = jax.device_get(output)
    return {i: (output.tokens[n], output.log_prob[n]) for n, i in enumerate(rows)}


def check(want, got):
    """The same tokens and log-probabilities, to the bit."""
    for row, (tokens, log_prob) in got.items():
        size = min(tokens.shape[-1], want[row][0].shape[-1])
        np.testing.assert_array_equal(want[row][0][:, :size], tokens[:, :size])
        assert not tokens[:, size:].any()
        np.testing.assert_array_equal(want[row][1].view(np.int32), log_prob.view(np.int32))


@pytest.mark.exhaustive
def test_a_sample_has_the_same_bits_alone_padded_and_in_a_larger_batch():
    model = reproducible(network("llama"), 4)
    settings = {"num_samples": 2}
    want = decode(model, "sample", range(COUNT), **settings)
    assert len({tuple(tokens.ravel()) for tokens, _ in want.values()}) > COUNT // 2
    check(want, decode(model, "sample", [5], 40, new=40, **settings))


CASES = [
    (name, strategy, dtype)
    for name in ("gpt2", "llama", "t5")
    for strategy in ("greedy", "sample", "arithmetic_sample", "beam_search", "contrastive_search")
    for dtype in ("float32", "bfloat16")
]
SHOWN = [("t5", "arithmetic_sample", "bfloat16")]


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "strategy", "dtype"),
    [
        pytest.param(*case, marks=pytest.mark.exhaustive if case in SHOWN else pytest.mark.release)
        for case in CASES
    ],
)
def test_rows_have_the_same_bits_in_every_batch(name, strategy, dtype):
    model = reproducible(network(name, dtype))
    settings = {
        "arithmetic_sample": {"num_samples": 3},
        "beam_search": {"beam_size": 3},
        "contrastive_search": {"top_k": 3, "penalty_alpha": 0.4},
    }.get(strategy, {})
    want = decode(model, strategy, range(COUNT), **settings)
    for rows, width in (([2], 50), ([*range(8, -1, -1), *range(6)], 0)):
        check(want, decode(model, strategy, rows, width, **settings))


@pytest.mark.release
def test_a_loop_over_groups_is_no_part_of_a_model_by_itself():
    """Without the setting, nothing changes; it is of the network, wherever that is."""
    model = network("llama")
    assert model.config.reproducible_rows is None
    assert reproducible(with_shared_prefix(model, SHARED), 3).config.reproducible_rows == 3
    assert reproducible(network("t5")).bind(*prompts()).config.reproducible_rows == 8
    run = functools.partial(type(model).prefill, lanes=1, slots=1)
    _, cache = jax.eval_shape(run, reproducible(model), *prompts())
    # Over one block alone, the compiler would round bfloat16 elsewhere.
    assert {x.shape[-2] for x in jax.tree.leaves((cache.prompt, cache.slots))} == {64}
    with pytest.raises(ValueError, match="rows: expected an int of 1 or more, got 0"):
        reproducible(model, 0)
    assert reproducible(guided(model, 2.0), 5).model.config.reproducible_rows == 5
    with pytest.raises(ValueError, match="expected a network of decoding_jax"):
        reproducible(TableLM.random(jax.random.key(0), 5))
    shape = {"vocab_size": 9, "emb_dim": 4, "num_heads": 2, "num_kv_heads": 1, "head_dim": 2}
    shape |= {"mlp_dim": 8, "num_layers": 1, "max_positions": 32}
    config = EagleConfig(**shape, feature_layers=(1,), feature_dim=4)
    with pytest.raises(ValueError, match="expected a network of decoding_jax"):
        reproducible(EagleHead({}, config))


def test_a_drafter_whose_drafts_depend_on_the_batch_is_refused():
    """Where it meets its target, so that ``generate``, the job and the shell say it alike."""
    shape = {**SHAPE, "num_kv_heads": 2, "head_dim": 12, "max_positions": 99}
    model = Llama({}, LlamaConfig(**shape))
    head = EagleHead({}, EagleConfig(**shape, feature_layers=(1,), feature_dim=48))
    settings = {"num_draft_tokens": 2, "max_new_tokens": 3}
    for drafter, name in ((Eagle(head, vocab_size=301), "Eagle"), (model, "ModelDrafter")):
        with pytest.raises(ValueError, match=f"drafter: expected a reproducible .*, {name}"):
            decoding_jax.speculative_sample(
                reproducible(model), drafter, Prompt(*prompts()), KEYS[:2], **settings
            )


def prompts():
    return np.ones((2, 3), np.int32), np.full(2, 3, np.int32)


@pytest.mark.release
def test_rows_after_a_shared_prefix_of_scanned_layers_have_the_same_bits():
    model = reproducible(with_scanned_layers(network("llama", "bfloat16")), 4)
    model = with_shared_prefix(model, SHARED)
    want = decode(model, "greedy", range(COUNT))
    check(want, decode(model, "greedy", [5, 1, 6], 60))


@pytest.mark.release
def test_rows_of_a_refilled_batch_on_two_devices_have_the_same_bits():
    need_devices(2)
    model, order = reproducible(network("llama"), 4), list(range(COUNT))[::-1]
    want = decode(model, "sample", range(COUNT))
    call = parse(model, "sample", {**SETTINGS, "max_new_tokens": 6}, key=jax.random.key(1))
    decoder = RowDecoder(call, batch_size=4, devices=jax.devices()[:2])
    decoder.inputs.expect(COUNT)
    decoder.prepare(50)
    assert decoder.group_size is not None
    found = {}
    decoded = decoder.decode([IDS[i] for i in order], order, {50: list(range(COUNT))})
    for members, output in decoded:
        found |= {order[m]: (output.tokens[n], output.log_prob[n]) for n, m in enumerate(members)}
    assert len(found) == COUNT
    check(want, found)
