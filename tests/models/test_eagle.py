"""Heads and blocks that read states: beside published programs, and what fits a target.

``make_eagle_fixtures.py`` wrote the heads and the answers.
"""

import dataclasses
import functools
import json
import pathlib
import re
import shutil

import examples
import jax
import numpy as np
import pytest
import safetensors.numpy
import tiers
from jax import numpy as jnp
from machine import need_devices
from networks import drawn, fixture

import decoding_jax
from decoding_jax import Prompt, sharding, transforms
from decoding_jax.models import (
    CheckpointError,
    EagleConfig,
    EagleHead,
    Llama,
    LlamaConfig,
    load_drafter,
    load_model,
    with_shared_prefix,
)
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative import Eagle, Path
from decoding_jax.t5x.rescaled import Rescaled

HEADS = pathlib.Path(__file__).parent / "heads"
ASSISTANTS = "gemma4_assistant", "gemma4_ordered"
CONFIG = LlamaConfig(
    vocab_size=40,
    emb_dim=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    mlp_dim=12,
    num_layers=6,
    max_positions=64,
)


@functools.cache
def target(name="authors"):
    """A target with the embeddings that a head was given, which are its projection for DFlash.

    The target of the blocks is in their directory, and that of the assistants is a fixture.
    """
    if name == "multi_token":
        return load_model(HEADS / name)
    if name in ASSISTANTS:
        return load_model(HEADS.parent / "fixtures" / "gemma4")
    expected = safetensors.numpy.load_file(HEADS / name / "expected.safetensors")
    config = dataclasses.replace(CONFIG, logits_via_embedding=name == "dflash")
    model = drawn(Llama, config)
    params = {
        **model.params,
        "token_embedder": {"embedding": jax.device_put(expected["embedding"])},
    }
    return dataclasses.replace(model, params=params)


@functools.cache
def drafter(name):
    return load_drafter(HEADS / name, target_of(name))


def target_of(name):
    own = "dflash", "speculators_dflash", "multi_token", *ASSISTANTS
    return target(name if name in own else "authors")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", tiers.values("authors", "speculators_qwen3", exhaustive=["speculators"])
)
def test_a_head_gives_the_logits_of_the_program_that_publishes_it(name):
    """After every entry of a prompt, and one entry later from the head's own states."""
    expected = safetensors.numpy.load_file(HEADS / name / "expected.safetensors")
    tokens = expected["tokens"].astype(np.int32)
    count = expected["logits"].shape[1]
    rows = min(expected["next_logits"].shape[1], 5)
    first = count - rows if rows == 1 else 0  # The first of the entries that one more follows.
    length = np.arange(first, first + rows, dtype=np.int32) + 1

    @jax.jit
    def run(head, tokens, features):
        features = jnp.split(jnp.repeat(features[:, None], rows, 0), 3, -1)
        states, ids = head.fuse(tuple(features)), jnp.repeat(tokens, rows, 0)
        empty = head.prefill(ids[:, :1], states[:, :, :1], length * 0, lanes=1, slots=count)
        whole, _ = head.extend(
            empty, ids[:, None, :count], states[:, :, :count], length[:, None] * 0
        )
        cache = head.prefill(ids, states, length, lanes=1, slots=2)
        last = jnp.take_along_axis(whole, length[:, None, None, None] - 1, 2)
        new = jnp.take_along_axis(ids, length[:, None], 1)[:, None]
        later, _ = head.extend(cache, new, last, length[:, None] * 0)
        return head.project(whole)[0, 0], head.project(later)[:, 0, 0]

    logits, later = run(drafter(name).head, tokens, expected["features"])
    np.testing.assert_allclose(logits, expected["logits"][0], atol=2e-6)
    np.testing.assert_allclose(later, expected["next_logits"][0, :rows], atol=2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["dflash", "speculators_dflash"])
def test_a_block_has_the_logits_of_the_published_layers(name):
    """Five tokens before a block, as a prompt, and as slots that are written by two drafts."""
    expected = safetensors.numpy.load_file(HEADS / name / "expected.safetensors")
    last = expected["tokens"].astype(np.int32)[:, 5:]

    @functools.partial(jax.jit, static_argnames="prompt")
    def run(head, last, features, prompt):
        states = head.fuse(tuple(jnp.split(features[:, None, :5], 3, -1)))
        length = jnp.full(1, prompt)
        cache = head.prefill(states[:, :, :prompt], length, lanes=1, slots=7)
        at = jnp.zeros((1, 1), jnp.int32)
        stale = jnp.concatenate([states[:, :, prompt : prompt + 1], states[:, :, :2] + 9], 2)
        _, cache = head.draft(cache, last, stale, at, at + 1)
        new = states[:, :, min(prompt + 1, 4) :]
        return head.draft(cache, last, new, at + 1, at + 6 - prompt)[0]

    head = drafter(name).head
    for prompt in (5, 2):
        logits = run(head, last, expected["features"], prompt=prompt)[0]
        np.testing.assert_allclose(logits, expected["logits"], atol=3e-6)


def drafted_logits(model, blocks):
    """The logits of three drafted tokens after the prefixes of ``make_eagle_fixtures``."""
    expected = safetensors.numpy.load_file(HEADS / "multi_token" / "expected.safetensors")
    tokens, size = expected["tokens"].astype(np.int32), np.arange(3, 6, dtype=np.int32)
    prompt = Prompt(np.where(np.arange(5) < size[:, None], tokens[:, :5], 0), size)
    new = np.concatenate([tokens[:, 3:].T, expected["drafted"].astype(np.int32)], 1)[:, None]

    @jax.jit
    def run(model, blocks, prompt, new):
        model = model.with_features(blocks.feature_layers)
        features = model.prefill(*prompt, lanes=1, slots=8)[0].features
        given = {"max_new_tokens": 8, "max_draft_tokens": 3, "features": features}
        state = blocks.init(prompt, lanes=1, **given)
        one = jnp.ones((3, 1), jnp.int32)
        first, state = blocks.begin(state, Path(prompt, new, one))
        second, state = blocks.next(state, new[:, :, 1], one)
        third, _ = blocks.next(state, new[:, :, 2], one + 1)
        return jnp.concatenate([first, second, third], 1)

    return run(model, blocks, prompt, new), expected["logits"]


@pytest.mark.release
def test_blocks_give_the_logits_of_transformers():
    """Three blocks, after prefixes of other lengths, of which the shortest has no entry in one."""
    got, want = drafted_logits(target("multi_token"), drafter("multi_token"))
    np.testing.assert_allclose(got, want, atol=3e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", tiers.values("gemma4_ordered", exhaustive=["gemma4_assistant"]))
def test_assistants_give_the_logits_of_transformers(name):
    """After prompts of 1 to 11 tokens, where the window is 3; the prefix is shared or is not."""
    expected = safetensors.numpy.load_file(HEADS / name / "expected.safetensors")
    tokens, count = expected["tokens"].astype(np.int32), len(expected["logits"])
    size = np.arange(1, count + 1, dtype=np.int32)
    prompt = Prompt(np.where(np.arange(count) < size[:, None], tokens[:, :count], 0), size)
    new = np.concatenate([tokens[:, 1:].T, expected["drafted"].astype(np.int32)], 1)[:, None]

    @jax.jit
    def run(model, assistant, prompt, new):
        model = model.with_features(assistant.feature_layers)
        output, cache = model.prefill(*prompt, lanes=1, slots=8)
        given = {"max_new_tokens": 8, "max_draft_tokens": 3, "features": output.features}
        state = assistant.init(prompt, lanes=1, **given)
        one = jnp.ones(new.shape[:2], jnp.int32)
        assistant = assistant.with_keys(model.shared_keys(cache, one))
        first, state = assistant.begin(state, Path(prompt, new, one))
        second, state = assistant.next(state, new[:, :, 1], one)
        third, _ = assistant.next(state, new[:, :, 2], one + 1)
        return jnp.concatenate([first, second, third], 1)

    got, want = run(target(name), drafter(name), prompt, new), expected["logits"]
    # In transformers, tokens of other groups have the least logit of all rows, less 1.
    left_out = np.isneginf(got)
    assert left_out.sum() == (25 * 3 * count if name == "gemma4_ordered" else 0)
    assert (
        want[left_out] < np.where(left_out, np.inf, want).min((1, 2), keepdims=True).max()
    ).all()
    np.testing.assert_allclose(got[~left_out], want[~left_out], atol=1e-4)
    prefixed = with_shared_prefix(target(name), tokens[0, :5])
    prompt, new = jax.tree.map(lambda x: x[4:], (prompt, new))
    again = run(prefixed, drafter(name), prompt, new)
    np.testing.assert_allclose(again, got[4:], atol=1e-4)


@pytest.mark.exhaustive
def test_assistants_read_the_slots_of_accepted_tokens_alone():
    """Two tokens of each text are its prompt, and its slots end with rejected tokens."""
    name = "gemma4_assistant"
    expected = safetensors.numpy.load_file(HEADS / name / "expected.safetensors")
    tokens, size = expected["tokens"].astype(np.int32), np.arange(3, 12, dtype=np.int32)
    rows = np.repeat(tokens, len(size), 0)
    prompt = Prompt(rows[:, :2], np.full(len(size), 2, np.int32))
    fed = np.where(np.arange(2, 12) < size[:, None], rows[:, 2:], 39 - rows[:, 2:])[:, None]

    @jax.jit
    def run(model, assistant, prompt, fed, new, length):
        model = model.with_features(assistant.feature_layers)
        output, cache = model.prefill(*prompt, lanes=1, slots=12)
        given = {"max_new_tokens": 12, "max_draft_tokens": 9, "features": output.features}
        state = assistant.init(prompt, lanes=1, **given)
        output, cache = model.extend(cache, fed, 0)
        state = assistant.observe(state, output.features, length * 0)
        assistant = assistant.with_keys(model.shared_keys(cache, length))
        return assistant.begin(state, Path(prompt, new, length))[0]

    given = prompt, fed, rows[:, None, 2:], (size - 1)[:, None]
    got = run(target(name), drafter(name), *given)[:, 0]
    np.testing.assert_allclose(got, expected["logits"][size - 1, 0], atol=1e-4)


@pytest.mark.release
def test_assistants_read_a_prefix_a_prompt_and_slots_as_one_text():
    """Two lanes of rows of other lengths, and two levels of a tree whose drafts change places."""
    draw = np.random.default_rng(5)
    prefix, tokens = draw.integers(40, size=5), draw.integers(40, size=(2, 2, 9))
    size, length = np.array([1, 4], np.int32), np.array([[2, 4], [3, 5]], np.int32)
    drafted = draw.integers(40, size=(2, 2, 2, 2)).astype(np.int32)  # level, row, lane, draft
    parents = [None, np.broadcast_to(np.array([1, 0], np.int32), (2, 2, 2))]

    @functools.partial(jax.jit, static_argnames="with_slots")
    def run(model, assistant, prompt, new, length, drafted, parents, with_slots):
        lanes, slots = new.shape[1:]
        model = model.with_features(assistant.feature_layers)
        output, cache = model.prefill(*prompt, lanes=lanes, slots=slots)
        given = {"lanes": lanes, "features": output.features, "num_drafts": 2}
        state = assistant.open(prompt, max_draft_tokens=slots - 1, **given)
        if with_slots:
            output, cache = model.extend(cache, new, 0)
            state = assistant.observe(state, output.features, length * 0)
        assistant = assistant.with_keys(model.shared_keys(cache, length))
        first, state = assistant.begin(state, Path(prompt, new, length))
        levels = [jnp.repeat(first[:, :, None], 2, 2)]
        for ids, parent in zip(drafted, parents, strict=True):
            logits, state = assistant.next_level(state, ids, length, None, parent)
            levels.append(logits)
        return jnp.stack(levels)

    name, new = "gemma4_assistant", np.zeros((2, 2, 5), np.int32)
    whole, last = np.zeros((4, 14), np.int32), np.zeros((4, 1, 2), np.int32)
    prompts = np.concatenate([np.tile(prefix, (2, 1)), np.zeros((2, 4), int)], 1).astype(np.int32)
    for row, lane in np.ndindex(2, 2):
        text = tokens[row, lane, : size[row] + length[row, lane]]
        text[: size[row]] = tokens[row, 0, : size[row]]  # which the lanes share
        prompts[row, 5 : 5 + size[row]] = text[: size[row]]
        new[row, lane] = 7  # Tokens after the last one are not of the text.
        new[row, lane, : length[row, lane]] = text[size[row] :]
        whole[2 * row + lane, : 4 + len(text)] = [*prefix, *text[:-1]]
        last[2 * row + lane, 0, 0] = text[-1]
    model, assistant = target(name), drafter(name)
    prompt = Prompt(prompts, size + 5)
    got = run(
        with_shared_prefix(model, prefix), assistant, prompt, new, length, drafted, parents, True
    )
    prompt = Prompt(whole, (size[:, None] + length + 4).reshape(-1))
    flat = lambda x: x.reshape(4, 1, *x.shape[2:])  # noqa: E731
    one = np.ones((4, 1), np.int32)
    parents = [None, flat(parents[1])]
    want = run(model, assistant, prompt, last, one, [flat(x) for x in drafted], parents, False)
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=2e-5)


@pytest.mark.release
def test_blocks_in_the_layout_of_mimo(tmp_path):
    """The state before the embedding, and biases of Qwen2."""
    folder = changed(tmp_path, "multi_token", model_type="mimo")
    names = {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj"}
    names |= {"shared_head.norm": "final_layernorm"}
    tensors = {}
    for key, x in safetensors.numpy.load_file(folder / "model.safetensors").items():
        name = key.replace("layers.2", "mtp_layers.0").replace("layers.3", "mtp_layers.1")
        name = name.replace("layers.4", "mtp_layers.2")
        for theirs, mimo in names.items():
            name = name.replace(f".{theirs}.", f".{mimo}.")
        tensors[name] = np.roll(x, 8, 1) if "eh_proj" in key else x
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            tensors[name.replace("weight", "bias")] = np.zeros(len(x), np.float32)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    model = load_model(folder)
    got, want = drafted_logits(model, load_drafter(folder, model))
    np.testing.assert_allclose(got, want, atol=3e-6)


def test_published_settings_become_those_of_the_drafter():
    authors, other = drafter("authors"), drafter("speculators")
    assert drafter("dflash").feature_layers == (1, 3, 5)
    assert drafter("dflash").head.block_size == 4
    other_block = drafter("speculators_dflash")
    assert other_block.feature_layers == (1, 3, 5)
    assert other_block.head.block_size == 4
    np.testing.assert_array_equal(other_block.token_ids, drafter("speculators").token_ids)
    assert authors.feature_layers == (2, 3, 3)
    assert other.feature_layers == (1, 2, 4)
    assert authors.vocab_size == 40
    assert authors.token_ids.shape == (12,)
    assert authors.head.embedding is target("authors").params["token_embedder"]["embedding"]
    assert other.head.embedding.shape == (40, 8)


def changed(tmp_path, name="authors", drop=(), **settings):
    """A copy of a head with other settings, and without some tensors."""
    folder = tmp_path / "head"
    shutil.copytree(HEADS / name, folder, dirs_exist_ok=True)
    values = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(values))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if k not in drop}
    safetensors.numpy.save_file(kept, folder / "model.safetensors")
    return folder


def test_specforge_counts_layers_by_their_outputs(tmp_path):
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}
    folder = changed(tmp_path, architectures=["LlamaForCausalLMEagle3"], eagle_config=layers)
    assert load_drafter(folder, target()).feature_layers == (1, 3, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 41}, "vocab_size: expected the target's 40, got 41"),
        ({"target_hidden_size": 16}, "target_hidden_size: expected the target's 8, got 16"),
        ({"hidden_size": 16}, "hidden_size: expected the target's 8, got 16"),
        ({"model_type": "mixtral"}, "model_type: expected llama or qwen3, got 'mixtral'"),
        ({"norm_output": False}, "norm_output: expected True only, got False"),
        ({"speculators_model_type": "medusa"}, "predict_layers), got 'medusa'"),
        ({"draft_vocab_size": None}, "expected a head of EAGLE-3 (with draft_vocab_size) or of DF"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}},
            "eagle_aux_hidden_state_layer_ids: expected layers of the target, which has 6, got",
        ),
        ({"drop": ["d2t"]}, "draft_vocab_size: expected 40 without d2t, got 12"),
        ({"drop": ["fc.weight"]}, "lacks fc.weight"),
        ({"name": "dflash", "vocab_size": 41}, "vocab_size: expected the target's 40, got 41"),
        ({"name": "dflash", "hidden_size": 16}, "hidden_size: expected the target's 8, got 16"),
        ({"name": "dflash", "num_target_layers": 9}, "num_target_layers: expected the target's 6"),
        ({"name": "multi_token"}, "num_hidden_layers: expected the target's 6, got 2"),
        ({"name": "multi_token", "vocab_size": 41}, "vocab_size: expected the target's 40, got 41"),
        (
            {"name": "multi_token", "hidden_size": 16, "num_hidden_layers": 6},
            "hidden_size: expected the target's 8, got 16",
        ),
        ({"name": "multi_token", "model_type": "deepseek_v3"}, "model_type: expected one of llama"),
        ({"name": "multi_token", "num_hidden_layers": 6}, "lacks model.layers.6."),
        (
            {"draft_vocab_size": None, "model_type": "qwen3_next"},
            "blocks of Qwen3-Next (mtp.*) are",
        ),
        ({"name": "gemma4_assistant"}, "expected a Gemma4 as the target, whose keys and values"),
        ({"name": "dflash", "layer_types": ["sliding_attention"] * 2}, "layer_types: expected ["),
    ],
)
def test_what_does_not_fit_is_an_error_of_one_line(tmp_path, changes, message):
    with pytest.raises(CheckpointError) as error:
        load_drafter(changed(tmp_path, **changes), target())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({"backbone_hidden_size": 8}, {}, "backbone_hidden_size: expected the target's 16, got 8"),
        ({}, {"vocab_size": 41}, "vocab_size: expected the target's 40, got 41"),
        ({}, {"head_dim": 6}, "head_dim: expected the target's 4, got 6"),
        ({}, {"per_layer_config": {}}, "global_head_dim: expected the target's 8, got 4"),
        ({}, {"num_key_value_heads": 4}, "num_key_value_heads: expected the target's 2, got 4"),
        ({}, {"use_double_wide_mlp": True}, "use_double_wide_mlp: expected False only, got True"),
        ({"num_centroids": 7}, {}, "num_centroids: expected a divisor of vocab_size = 40, got 7"),
    ],
)
def test_an_assistant_of_another_target_is_an_error_of_one_line(tmp_path, changes, text, message):
    values = json.loads((HEADS / "gemma4_ordered" / "config.json").read_text())
    changes = changes | {"text_config": values["text_config"] | text}
    folder = changed(tmp_path, "gemma4_ordered", **changes)
    with pytest.raises(CheckpointError, match=f"{message}$") as error:
        load_drafter(folder, target("gemma4_ordered"))
    assert "\n" not in str(error.value)


def test_an_ordering_that_lacks_tokens_names_its_file(tmp_path):
    folder = changed(tmp_path, "gemma4_ordered")
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    name = "masked_embedding.token_ordering"
    safetensors.numpy.save_file(tensors | {name: tensors[name] * 0}, path)
    message = f"{folder / 'config.json'}: {name}: expected each token from 0 to 39 once, got others"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        load_drafter(folder, target("gemma4_ordered"))


def test_an_assistant_with_fewer_heads_than_its_target_has_on_a_mesh(tmp_path):
    values = json.loads((HEADS / "gemma4_ordered" / "config.json").read_text())
    text = values["text_config"] | {"num_attention_heads": 2}
    folder = changed(tmp_path, "gemma4_ordered", text_config=text)
    message = (
        "num_attention_heads: expected a multiple of the target's 4 key-value heads, which the axis"
        " model of its mesh needs, got 2"
    )
    with pytest.raises(CheckpointError, match=f"{message}$"):
        load_drafter(folder, target("gemma4_ordered").for_model_axis(4))


def test_settings_of_a_drafter_are_checked_before_it_is_read():
    with pytest.raises(ValueError, match="dtype: expected float32 or bfloat16, got 'int3'"):
        load_drafter(HEADS / "authors", dtype="int3")
    with pytest.raises(TypeError, match="greddy"):
        load_drafter(HEADS / "authors", greddy=True)
    assert load_drafter(HEADS / "authors", greedy=True).read(target()).greedy


PROMPT = Prompt(np.array([[5, 6, 7, 9], [1, 0, 0, 0], [3, 8, 0, 0]]), np.array([4, 1, 2]))


@pytest.mark.release
@pytest.mark.parametrize(
    "name", tiers.values("authors", "dflash", "gemma4_ordered", exhaustive=["multi_token"])
)
def test_greedy_texts_are_those_of_the_target_alone(name):
    alone = decoding_jax.greedy(target(name), PROMPT, max_new_tokens=9)
    settings = {"max_new_tokens": 9, "num_draft_tokens": 3, "verifier": "greedy"}
    drafted = decoding_jax.speculative_sample(target(name), drafter(name), PROMPT, **settings)
    np.testing.assert_array_equal(drafted.tokens, alone.tokens)
    # A call of DFlash drafts a block.
    calls = drafted.info.draft_calls / drafted.info.target_calls
    assert calls == 1 if name == "dflash" else calls > 1


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.values("authors", "speculators", "dflash", "gemma4_ordered", release=["multi_token"]),
)
def test_heads_lie_on_the_mesh_of_their_target(name):
    need_devices(4)
    model = target_of(name)
    settings = {"max_new_tokens": 9, "num_draft_tokens": 3, "verifier": "greedy"}
    alone = decoding_jax.greedy(model, PROMPT, max_new_tokens=9)
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    model = sharding.shard(model, mesh)
    head = load_drafter(HEADS / name, model)
    parts = head.blocks if name == "multi_token" else [head.head]
    assert all(meshes.mesh_of(part.params) == mesh for part in parts)
    drafted = decoding_jax.speculative_sample(model, head, PROMPT, **settings)
    np.testing.assert_array_equal(drafted.tokens, alone.tokens)


def test_a_block_is_no_longer_than_the_head_was_trained_for():
    models, settings = (target("dflash"), drafter("dflash")), {"verifier": "greedy"}
    with pytest.raises(ValueError, match="num_draft_tokens: expected at most 3, the drafted token"):
        decoding_jax.speculative_sample(
            *models, PROMPT, num_draft_tokens=4, max_new_tokens=9, **settings
        )


@pytest.mark.parametrize("name", tiers.values("authors", exhaustive=["multi_token"]))
@pytest.mark.release
def test_other_weights_compile_nothing_again(name):
    run = decoding_jax.speculative_sample
    settings = {"max_new_tokens": 9, "num_draft_tokens": 3, "verifier": "greedy"}
    run(target_of(name), drafter(name), PROMPT, **settings)
    before = run.cache_size()
    run(target_of(name), jax.tree.map(lambda x: x + 1, drafter(name)), PROMPT, **settings)
    assert run.cache_size() == before


@pytest.mark.release
@pytest.mark.parametrize("name", ["authors", "dflash", "multi_token"])
def test_a_block_drafts_alike_however_the_blocks_before_it_were_cut(name):
    """Its cache has no gaps, and nothing of rejected tokens."""

    @functools.partial(jax.jit, static_argnames=("size", "blocks"))
    def logits(model, eagle, tokens, size, blocks):
        model = model.with_features(eagle.feature_layers)
        length = jnp.full(1, 4, jnp.int32)
        prompt = Prompt(tokens[:, 0, :4], length)
        output, cache = model.prefill(*prompt, lanes=1, slots=8)
        given = {"max_new_tokens": 8, "max_draft_tokens": size, "features": output.features}
        state = eagle.init(prompt, lanes=1, **given)
        new, at = tokens[:, :, 4:], 1
        result, state = eagle.begin(state, Path(prompt, new, jnp.full((1, 1), at)))
        for accepted in blocks:
            start = jnp.full((1, 1), at - 1)
            # Tokens after the accepted ones are others, as rejected ones are.
            fed = new[:, :, at - 1 : at + size]
            fed = jnp.where(jnp.arange(size + 1)[None, None] > accepted, 39 - fed, fed)
            output, cache = model.extend(cache, fed, start)
            _, state = eagle.next(state, fed[:, :, 1], start + 1)
            state = eagle.observe(state, output.features, start)
            at += accepted + 1
            result, state = eagle.begin(state, Path(prompt, new, jnp.full((1, 1), at)))
        return result

    tokens = jnp.asarray(np.random.default_rng(3).integers(40, size=(1, 1, 13)), jnp.int32)
    run = functools.partial(logits, target(name), drafter(name), tokens)
    want = run(size=3, blocks=(3, 0))
    for blocks in ((1, 2), (0, 0, 2), (2, 1)):
        np.testing.assert_allclose(run(size=3, blocks=blocks), want, atol=2e-6)


@pytest.mark.parametrize(
    "family",
    tiers.values(exhaustive=["qwen3_moe"], release=["t5", "gpt2", "shared prefix", "rescaled"]),
)
def test_a_target_of_any_family_gives_its_states(family):
    """An encoder-decoder, another family, a mixture of experts, and models around a model."""
    example = examples.NETWORKS["t5" if family == "t5" else "gpt2"]
    if family == "qwen3_moe":
        model = fixture(family)
    else:
        model = example.kind.init(example.config, jax.random.key(0))
    if family == "t5":
        model = model.bind(PROMPT.tokens, PROMPT.length)
    size, count, width = model.vocab_size, model.num_layers, model.config.emb_dim
    prompt = PROMPT
    if family == "shared prefix":
        model = with_shared_prefix(model, [7, 3])
        prefixed = np.concatenate([np.tile([7, 3], (3, 1)), PROMPT.tokens], 1)
        prompt = Prompt(prefixed.astype(np.int32), PROMPT.length + 2)
    if family == "rescaled":
        model = Rescaled(model, transforms.temperature(0.5))
    config = EagleConfig(
        vocab_size=size,
        emb_dim=8,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        mlp_dim=12,
        num_layers=1,
        max_positions=64,
        feature_layers=(0, 1, count),
        feature_dim=width,
    )
    embedding = jax.random.normal(jax.random.key(2), (size, 8))
    head = EagleHead.init(config, jax.random.key(1), embedding)
    settings = {"max_new_tokens": 6, "num_draft_tokens": 2, "verifier": "greedy"}
    alone = decoding_jax.greedy(model, prompt, max_new_tokens=6)
    drafted = decoding_jax.speculative_sample(model, Eagle(head, size), prompt, **settings)
    np.testing.assert_array_equal(drafted.tokens, alone.tokens)
