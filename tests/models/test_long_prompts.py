"""Attention and prefill give the same results in blocks and chunks as all at once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest

from decoding_jax.models import attention, positions
from decoding_jax.models.attention import Part
from decoding_jax.models.attention_choice import attend
from decoding_jax.models.gpt2 import GPT2, GPT2Config
from decoding_jax.models.llama import Llama, LlamaConfig
from decoding_jax.models.t5 import T5Config, T5Decoder, T5DecoderConfig, T5Network

B, W, H, G, P, D = 2, 3, 2, 2, 11, 4
INDEX = np.arange(P, dtype=np.int32)
LENGTH = np.array([P, 6], np.int32)
TABLE = np.random.default_rng(0).normal(size=(H, 2 * P + 1)).astype(np.float32)


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def biases(distance, key=None, table=TABLE):
    return jnp.moveaxis(jnp.asarray(table)[:, distance + P], 0, 2)[:, :, :, None]


def real():
    return (LENGTH[:, None] > INDEX)[:, None, None]


def expected(query, parts):
    """Attention in NumPy over parts of keys, values, masks and biases."""
    query = query.astype(np.float64)
    scores = []
    for key, _, mask, bias in parts:
        letters = "bhkd" if key.ndim == 4 else "bwhkd"
        score = 0.5 * np.einsum(f"bwhgtd,{letters}->bwhgtk", query, key) + np.asarray(bias)
        scores.append(np.where(mask[:, :, None, None], score, -np.inf))
    weights = np.exp(np.concatenate(scores, -1))
    weights /= weights.sum(-1, keepdims=True)
    out, first = 0, 0
    for key, value, _, _ in parts:
        letters = "bhkd" if key.ndim == 4 else "bwhkd"
        weight = weights[..., first : first + key.shape[-2]]
        out, first = (
            out + np.einsum(f"bwhgtk,{letters}->bwhgtd", weight, value),
            first + key.shape[-2],
        )
    return out


def make_blocks_small(monkeypatch):
    for name, size in {"SCORE_LIMIT": 16, "BLOCK_SCORES": 16, "LEAST_BLOCK": 4}.items():
        monkeypatch.setattr(attention, name, size)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of four queries and four keys in a prompt of eleven, so that the last ones overlap."""
    make_blocks_small(monkeypatch)
    monkeypatch.setattr(positions, "WHOLE", 16)


PROMPT = drawn(1, B, 1, H, G, P, D), drawn(2, B, H, P, D), drawn(3, B, H, P, D)


def attended(query, key, value, bias, causal, table=TABLE):
    rule = functools.partial(biases, table=table) if isinstance(bias, str) else bias
    least = 0 if causal else None
    part = Part(key, value, real(), rule, position=INDEX[None, None], least_distance=least)
    return attend(query, [part], 0.5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bias", ["none", "rule", "array"])
def test_blocks_of_a_prompt_are_the_whole(small_blocks, causal, bias):
    distance = (INDEX[:, None] - INDEX)[None, None]
    array = np.moveaxis(TABLE[:, distance + P], 0, 2)[:, :, :, None]
    given = {"none": None, "rule": "rule", "array": array}[bias]
    program = jax.jit(lambda *prompt: attended(*prompt, given, causal)).lower(*PROMPT)
    assert "while" in program.as_text()
    query, key, value = PROMPT
    mask = np.broadcast_to(real() & ((distance >= 0) | (not causal)), (B, 1, P, P))
    want = expected(query, [(key, value, mask, 0.0 if bias == "none" else array)])
    np.testing.assert_allclose(program.compile()(*PROMPT), want, atol=1e-5)


@pytest.mark.parametrize(
    ("window", "ahead"),
    [(3, 0), *(pytest.param(*x, marks=pytest.mark.exhaustive) for x in ((1, 0), (2, 3), (3, 1)))],
)
def test_blocks_of_a_window_are_the_whole(small_blocks, window, ahead):
    """Blocks of keys that are too far away for all queries of a block are left out."""

    def run(query, key, value):
        part = Part(key, value, real(), position=INDEX[None, None], least_distance=-ahead)
        return attend(query, [part._replace(window=window)], 0.5, soft_cap=2.0)

    query, key, value = PROMPT
    distance = (INDEX[:, None] - INDEX)[None, None]
    mask = real() & (distance >= -ahead) & (distance < window)
    score = np.einsum("bwhgtd,bhkd->bwhgtk", query, key) / 2
    weight = np.where(mask[:, :, None, None], np.exp(2 * np.tanh(score / 2)), 0)
    weight /= np.maximum(weight.sum(-1, keepdims=True), 1e-9)  # padding may see nothing
    want = np.einsum("bwhgtk,bhkd->bwhgtd", weight, value)
    np.testing.assert_allclose(jax.jit(run)(*PROMPT), want, atol=1e-5)


@pytest.mark.parametrize("num_queries", [3, 9])
def test_blocks_of_many_lanes_are_the_whole(small_blocks, num_queries):
    """Lanes at depths of their own read a long prompt, and slots up to the last one in use."""
    query, slots = drawn(1, B, W, H, G, num_queries, D), drawn(4, 2, B, W, H, 5, D)
    depth = np.array([[0, 1, 2], [2, 1, 0]], np.int32)[..., None]
    position = LENGTH[:, None, None] + depth + np.arange(num_queries, dtype=np.int32)
    distance = np.minimum(position[..., None] - INDEX, P)
    array = np.moveaxis(TABLE[:, distance + P], 0, 2)[:, :, :, None]
    seen = np.arange(5) <= depth[..., None] + np.zeros((1, 1, num_queries, 1), int)

    def run(query, position):
        prompt = Part(
            *PROMPT[1:], real(), lambda d, key: biases(jnp.minimum(d, P)), position=position
        )
        return attend(query, [prompt, Part(*slots, seen, used=jnp.int32(5))], 0.5)

    prompt = (*PROMPT[1:], np.broadcast_to(real(), (B, W, num_queries, P)), array)
    want = expected(query, [prompt, (*slots, seen, 0.0)])
    np.testing.assert_allclose(jax.jit(run)(query, position), want, atol=1e-5)


def test_gradients_of_blocks_are_those_of_the_whole(monkeypatch):
    def loss(query, key, value, table):
        return jnp.square(attended(query, key, value, "rule", True, table)).sum()

    # Two functions, because the limit is not an argument that a compiled function depends on.
    whole = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*PROMPT, TABLE)
    make_blocks_small(monkeypatch)
    blocks = jax.jit(jax.grad(lambda *args: loss(*args), (0, 1, 2, 3)))(*PROMPT, TABLE)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), blocks, whole)


MODELS = {
    "llama": networks.drawn(
        Llama,
        LlamaConfig(
            vocab_size=9, emb_dim=8, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=8,
            num_layers=2, max_positions=64,
        ),
    ),
    "gpt2": networks.drawn(
        GPT2,
        GPT2Config(vocab_size=9, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=1),
    ),
    "t5_decoder": networks.drawn(
        T5Decoder,
        T5DecoderConfig(
            vocab_size=9, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_layers=1
        ),
    ),
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(1, 9, (3, P)).astype(np.int32)
LENGTHS = np.array([P, 4, 1], np.int32)


def in_chunks(model, chunk):
    return dataclasses.replace(model, config=dataclasses.replace(model.config, prefill_chunk=chunk))


prefill = jax.jit(
    lambda model, tokens, length, with_hidden: model.prefill(
        tokens, length, lanes=1, slots=2, with_hidden=with_hidden
    ),
    static_argnums=3,
)


@jax.jit
def greedy_tokens(model, cache, logits):
    """The next three tokens."""
    tokens = [logits.argmax(-1).astype(jnp.int32)]
    for start in range(2):
        output, cache = model.extend(cache, tokens[-1], start)
        tokens.append(output.logits.argmax(-1).astype(jnp.int32))
    return jnp.concatenate(tokens, -1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", MODELS)
def test_chunks_of_a_prefill_are_the_whole(family):
    model = MODELS[family]
    whole, whole_cache = prefill(model, TOKENS, LENGTHS, True)
    chunks, cache = prefill(in_chunks(model, 4), TOKENS, LENGTHS, True)
    close = functools.partial(np.testing.assert_allclose, atol=1e-5)
    close(chunks.logits, whole.logits)
    seen = np.arange(P) < LENGTHS[:, None]
    close(chunks.hidden[:, 0][seen], whole.hidden[:, 0][seen])
    held = [jax.tree.leaves(c.prompt) for c in (cache, whole_cache)]
    for one, other in zip(*held, strict=True):
        close(np.moveaxis(one, 1, 2)[seen], np.moveaxis(other, 1, 2)[seen])
    np.testing.assert_array_equal(
        greedy_tokens(model, cache, chunks.logits),
        greedy_tokens(model, whole_cache, whole.logits),
    )
    # The hidden states are not held unless they are asked for.
    output, _ = prefill(in_chunks(model, 4), TOKENS, LENGTHS, False)
    close(output.logits, whole.logits)
    assert output.hidden is None


def test_chunks_of_padding_are_left_out():
    """Rows shorter than the prompts' array, in which no chunk ends at the last real token."""
    model, length = MODELS["llama"], np.array([3, 5, 1], np.int32)
    want, _ = prefill(model, TOKENS, length, True)
    got, _ = prefill(in_chunks(model, 4), TOKENS, length, True)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)
    assert not np.asarray(got.hidden)[:, :, 8:].any()


def test_prompts_shorter_than_a_chunk_run_whole():
    model = in_chunks(MODELS["llama"], P)
    program = prefill.lower(model, TOKENS, LENGTHS, False).as_text()
    assert "while" not in program


@pytest.mark.parametrize("chunk", [0, -4, 2.5])
def test_chunks_are_positive(chunk):
    with pytest.raises(
        ValueError, match=f"prefill_chunk: expected None or a positive integer, got {chunk}"
    ):
        in_chunks(MODELS["gpt2"], chunk)


def test_a_bidirectional_prompt_has_no_chunks():
    config = MODELS["t5_decoder"].config
    with pytest.raises(
        ValueError, match=r"prefill_chunk: expected None with bidirectional_prompt, .*, got 4"
    ):
        dataclasses.replace(config, bidirectional_prompt=True, prefill_chunk=4)


def sizes(program):
    """The numbers of elements of all arrays in a program."""
    for equation in program.eqns:
        yield from (v.aval.size for v in equation.outvars)
        for param in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(param, "eqns"):
                yield from sizes(param)


T5 = T5Config(
    vocab_size=9, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=8, num_encoder_layers=1,
    num_decoder_layers=1,
)  # fmt: skip


@pytest.mark.parametrize("family", [*MODELS, "t5_encoder", "t5_decoder_prompt"])
def test_no_array_of_a_long_prompt_is_quadratic(family):
    tokens, length = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((2, 2**15), (2,)))
    if family in MODELS:
        run = functools.partial(MODELS[family].prefill, lanes=1, slots=1)
    else:
        network = T5Network(T5)
        params = jax.eval_shape(network.init, jax.random.key(0), tokens, length, tokens, length)
        method = network.encode if family == "t5_encoder" else network.__call__
        run = functools.partial(network.apply, jax.tree.map(jnp.zeros_like, params), method=method)
        if family == "t5_decoder_prompt":
            run = lambda tokens, length, run=run: run(tokens, length, tokens, length)  # noqa: E731
    program = jax.make_jaxpr(run)(tokens, length)
    assert max(sizes(program)) <= attention.SCORE_LIMIT


@pytest.mark.parametrize("family", ["llama", "t5_decoder"])
def test_no_array_of_an_extension_is_quadratic(family):
    """32 lanes of 16 tokens over a prompt of 32,768, with and without biases."""
    model, tokens = MODELS[family], jax.ShapeDtypeStruct((1, 2**15), jnp.int32)
    run = functools.partial(model.prefill, lanes=32, slots=16)
    _, cache = jax.eval_shape(run, tokens, jax.ShapeDtypeStruct((1,), jnp.int32))
    new = jax.ShapeDtypeStruct((1, 32, 16), jnp.int32)
    program = jax.make_jaxpr(functools.partial(model.extend, start=0))(cache, new)
    assert max(sizes(program)) <= attention.SCORE_LIMIT
