"""Speculation as a decode function: texts, distributions and scores of the other functions."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from flax import traverse_util
from heads import write_head
from networks import drawn, fixture

import decoding_jax
from decoding_jax import testing, transforms
from decoding_jax.base import Prompt, Stop
from decoding_jax.models import (
    T5,
    CheckpointError,
    T5Config,
    T5Decoder,
    T5DecoderConfig,
    save_t5x,
)
from decoding_jax.strategies.speculative import (
    Bigram,
    Heuristic,
    PromptLookup,
    speculative_sample,
)
from decoding_jax.t5x import decode_fns, drafts
from decoding_jax.t5x.decode_fns.calls import NativeDecoder, TemperatureArguments
from decoding_jax.t5x.decode_fns.sampling import sampling_transform
from decoding_jax.t5x.decode_fns.speculative import SpeculativeDecoder
from decoding_jax.testing import TableLM

EOS = 1
PROMPTS = np.zeros((3, 6), np.int32)
PROMPTS[0, 1:3], PROMPTS[2, 1] = (3, 2), 3
LENGTH = (PROMPTS != 0).sum(1) + 1
TARGET, DRAFT = (TableLM.random(jax.random.key(k), 5, sharpness=2.0) for k in (1, 2))


def run(fn, drafter=None, target=TARGET, **settings):
    """The result that T5X would get. Settings are static unless they are arrays."""
    arrays = {k: v for k, v in settings.items() if isinstance(v, jax.Array)}
    static = {k: v for k, v in settings.items() if k not in arrays}

    @jax.jit
    def call(models, arrays):
        prompt = Prompt(jnp.asarray(PROMPTS), jnp.asarray(LENGTH, jnp.int32))
        decoder = NativeDecoder(models[0], prompt)
        if drafter is not None:
            decoder = SpeculativeDecoder(*models[:1], prompt, models[1])
        return fn(jnp.asarray(PROMPTS), {}, decoder, eos_id=EOS, **static, **arrays)

    decodes, scores = call((target, drafter), arrays)
    return np.asarray(decodes), np.asarray(scores)


@functools.cache
def greedy_texts(rescaled, target=None):
    target = TARGET if target is None else fixture(target)
    return run(decode_fns.temperature_sample, target=target, topk=1, rescale_log_probs=rescaled)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("drafter", "settings"),
    [
        (DRAFT, {"rescale_log_probs": True}),
        pytest.param(
            DRAFT,
            {"num_draft_tokens": 2, "num_drafts": 2, "rescale_log_probs": False},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            DRAFT,
            {"num_draft_tokens": 2, "num_drafts": 2, "tree": "dynamic", "rescale_log_probs": True},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            PromptLookup(size=2),
            {"num_draft_tokens": Heuristic(5), "rescale_log_probs": False},
            marks=pytest.mark.exhaustive,
        ),
        (DRAFT, {"verifier": "greedy", "temperature": 1.3, "rescale_log_probs": False}),
        pytest.param(
            "mixtral",
            {"target": "qwen3_moe", "rescale_log_probs": True},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_greedy_texts_are_those_of_greedy_decoding(drafter, settings):
    """Also of a mixture of experts, for which another one drafts."""
    rescaled, settings = settings["rescale_log_probs"], {"temperature": 0.0} | settings
    want = greedy_texts(rescaled, settings.get("target"))
    if isinstance(drafter, str):
        drafter, settings["target"] = fixture(drafter), fixture(settings["target"])
    got = run(decode_fns.speculative_sample, drafter, **settings)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


@pytest.mark.release
@pytest.mark.parametrize("rescaled", tiers.values(exhaustive=[True], release=[False]))
def test_the_code_verifier_returns_what_arithmetic_sampling_returns(rescaled):
    settings = {
        "num_decodes": 4,
        "temperature": jnp.array([0.5, 1.0, 2.0]),
        "topk": 4,
        "max_decode_steps": 4,
        "decode_rng": jax.random.PRNGKey(7),
        "rescale_log_probs": rescaled,
    }
    want = run(decode_fns.arithmetic_sample, **settings)
    got = run(decode_fns.speculative_sample, DRAFT, verifier="code", **settings)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


SAMPLING = {"temperature": jnp.array([0.6, 1.0, 2.0]), "topk": 3, "topp": 0.0}
PENALTY = transforms.frequency_penalty(1.0)


@functools.cache
def rescaled_distribution(row):
    """The distribution of three new tokens under ``PENALTY`` and ``SAMPLING``."""
    return testing.enumerate_distribution(
        TARGET,
        Prompt(jnp.asarray(PROMPTS), jnp.asarray(LENGTH, jnp.int32)),
        row,
        max_new_tokens=3,
        transform=sampling_transform(PENALTY, TemperatureArguments(**SAMPLING)),
        stop=Stop(eos_ids=(EOS,)),
    )


@pytest.mark.release
@pytest.mark.parametrize(
    ("drafter", "settings"),
    [
        pytest.param(
            DRAFT, {"verifier": "block", "num_draft_tokens": 2}, marks=pytest.mark.exhaustive
        ),
        pytest.param(DRAFT, {"num_draft_tokens": 2, "num_drafts": 2}, marks=pytest.mark.release),
        pytest.param(Bigram(DRAFT.table[0, 0]), {"num_draft_tokens": 2}, marks=pytest.mark.release),
    ],
)
def test_samples_have_the_rescaled_distribution_and_its_scores(drafter, settings):
    """Chi-square of 4,000 lanes of each of 3 rows, at level 1e-4 per case."""
    decodes, scores = run(
        decode_fns.speculative_sample,
        drafter,
        num_decodes=4000,
        max_decode_steps=3,
        transform=PENALTY,
        decode_rng=jax.random.PRNGKey(5),
        **SAMPLING,
        **settings,
    )
    assert (np.diff(scores) >= 0).all()
    for row in range(3):
        distribution = rescaled_distribution(row)
        new = decodes[row, :, LENGTH[row] - 1 :][:, :3]
        known = {tuple(text): k for k, text in enumerate(distribution.tokens.tolist())}
        index = np.array([known[tuple(text)] for text in new.tolist()])
        np.testing.assert_allclose(
            scores[row], np.log(distribution.prob[index]), rtol=1e-4, atol=1e-4
        )
        counts = np.bincount(index, minlength=len(distribution.prob))
        assert testing.chi_square(counts, distribution.prob).p_value > 1e-4 / 3


SHAPE = {"vocab_size": 24, "emb_dim": 12, "num_heads": 2, "head_dim": 4, "mlp_dim": 16}
GATED = {"mlp_activations": ("silu", "linear")}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 2}
ENCODER_DECODER = T5Config(**SHAPE, **GATED, **LAYERS)
DECODER = T5DecoderConfig(**SHAPE, **GATED, num_layers=2, bidirectional_prompt=True)


@functools.cache
def bound():
    """An encoder-decoder, and the same bound to three inputs."""
    model = drawn(T5, ENCODER_DECODER)
    source = np.random.default_rng(1).integers(2, 24, (3, 7), np.int32)
    return model, model.bind(source, np.array([7, 3, 1], np.int32))


@jax.jit
def target_calls(model, drafter, prompt):
    """The number of target calls for nine tokens in two lanes, with three drafted per call."""
    settings = {"num_draft_tokens": 3, "max_new_tokens": 9, "num_samples": 2}
    return speculative_sample(
        model, drafter, prompt, jax.random.key(3), **settings
    ).info.target_calls


@pytest.mark.release
def test_a_draft_that_is_the_target_is_read_and_bound_and_never_rejected(tmp_path):
    """The arrays of a checkpoint determine its shape, and ``config`` its activations."""
    model, target = bound()
    save_t5x(model, tmp_path)
    draft = drafts.DraftCheckpoint(str(tmp_path), ENCODER_DECODER)
    for drafter in (draft, model, drafts.EarlyExit(2)):
        drafter = drafts.bind(drafts.ready(drafter, ENCODER_DECODER), target)
        assert target_calls(target, drafter, target.start_prompt()) == math.ceil(8 / 4)
    wrong = drafts.DraftCheckpoint(str(tmp_path), dataclasses.replace(ENCODER_DECODER, emb_dim=16))
    with pytest.raises(ValueError, match=r"config: expected emb_dim=12, as the arrays of"):
        wrong.load(ENCODER_DECODER)
    assert drafts.DraftCheckpoint(str(tmp_path)).load(ENCODER_DECODER).config == ENCODER_DECODER
    plain = drafts.DraftCheckpoint(str(tmp_path)).load(T5Config(**SHAPE, **LAYERS))
    assert plain.config.mlp_activations == ("gelu", "linear")


@pytest.mark.release
def test_a_draft_sees_the_prompt_as_its_decoder_does(tmp_path):
    model = T5Decoder.init(DECODER, jax.random.key(0))
    save_t5x(model, tmp_path)
    draft = drafts.DraftCheckpoint(str(tmp_path), DECODER)
    drafter = drafts.ready(draft, DECODER, bidirectional_prompt=True)
    prompt = Prompt(jnp.array([[0, 3, 4, 5], [0, 7, 0, 0]]), jnp.array([4, 2]))
    assert target_calls(model, drafts.bind(drafter, model), prompt) == math.ceil(8 / 4)


@pytest.mark.release
@pytest.mark.parametrize(
    "settings",
    tiers.values(
        {"temperature": 0.0},
        exhaustive=[{"verifier": "code", "temperature": 0.7, "num_decodes": 3}],
    ),
)
def test_a_head_is_read_for_the_parameters_of_a_batch(settings, tmp_path):
    """Texts are those without a draft, and the head takes the embeddings that the call is given."""
    write_head(tmp_path, SHAPE["vocab_size"], SHAPE["emb_dim"])
    drafter = drafts.ready(decoding_jax.load_drafter(tmp_path), ENCODER_DECODER)
    settings = settings | {"decode_rng": jax.random.PRNGKey(7), "rescale_log_probs": False}

    @functools.partial(jax.jit, static_argnums=1)
    def call(model, speculates):
        source = jax.random.randint(jax.random.key(1), (3, 7), 2, 24)
        target = model.bind(source, jnp.array([7, 3, 1]))
        prompt = Prompt(jnp.asarray(PROMPTS), jnp.asarray(LENGTH, jnp.int32))
        fn = decode_fns.speculative_sample
        decoder = SpeculativeDecoder(target, prompt, drafts.bind(drafter, target))
        if not speculates:
            codes = "verifier" in settings
            fn = decode_fns.arithmetic_sample if codes else decode_fns.temperature_sample
            decoder = NativeDecoder(target, prompt)
        given = {k: v for k, v in settings.items() if speculates or k != "verifier"}
        return fn(jnp.asarray(PROMPTS), {}, decoder, eos_id=EOS, **given)

    model = bound()[0]
    got, want = (jax.device_get(call(model, speculates)) for speculates in (True, False))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4)
    with pytest.raises(CheckpointError, match="absent: no such directory"):
        drafts.ready(decoding_jax.load_drafter(tmp_path / "absent"), ENCODER_DECODER)
    narrow = T5.init(dataclasses.replace(ENCODER_DECODER, emb_dim=8), jax.random.key(0))
    with pytest.raises(CheckpointError, match="hidden_size: expected the target's 8, got 12"):
        drafts.bind(drafter, narrow.bind(jnp.ones((1, 2), jnp.int32), jnp.array([2])))


def test_prompt_lookup_copies_from_the_inputs_of_an_encoder_decoder():
    _, target = bound()
    drafter = drafts.bind(drafts.ready(PromptLookup(), ENCODER_DECODER), target)
    np.testing.assert_array_equal(drafter.source.tokens, target.source)
    assert drafts.bind(PromptLookup(), TARGET) == PromptLookup()


class Bindable:
    """A drafter of your own that uses encoder inputs."""

    def bind(self, tokens, length):
        return tokens, length


def test_any_drafter_that_supports_bind_is_bound_to_the_inputs_of_an_encoder_decoder():
    _, target = bound()
    drafter = Bindable()
    np.testing.assert_array_equal(drafts.bind(drafter, target)[0], target.source)
    assert drafts.bind(drafter, TARGET) is drafter


def test_an_invalid_drafter_raises_an_error_of_one_line(tmp_path):
    model, _ = bound()
    wide = dataclasses.replace(ENCODER_DECODER, vocab_size=32)
    for drafter, config, line in [
        (model, wide, "drafter: expected the target's vocabulary, 32, got 24"),
        (TARGET, wide, "drafter: expected the target's vocabulary, 32, got 5"),
        (model, DECODER, "drafter: expected a decoder alone, got an encoder and a decoder"),
        (drafts.EarlyExit(3), DECODER, "num_layers: expected 1 to the target's 2, got 3"),
        (drafts.EarlyExit(0), wide, "num_layers: expected 1 to the target's 2, got 0"),
        (None, wide, "drafter: expected a language model or a drafter, got a NoneType"),
        (
            drafts.DraftCheckpoint("ftp://a/b"),
            wide,
            "directory: expected a local path",
        ),
        (drafts.DraftCheckpoint(str(tmp_path)), wide, "has neither checkpoint, state nor"),
    ]:
        with pytest.raises(ValueError, match=line):
            drafts.ready(drafter, config)
    with pytest.raises(ValueError, match="expected that of SpeculativeEncoderDecoderModel"):
        run(decode_fns.speculative_sample)


@pytest.mark.parametrize("fault", ["lacks", "got shape"])
def test_a_checkpoint_that_lacks_a_parameter_is_refused(fault, tmp_path):
    name = "decoder/layers_1/mlp/wo/kernel"
    flat = traverse_util.flatten_dict(bound()[0].params, sep="/")
    if fault == "lacks":
        del flat[name]
    else:
        flat[name] = flat[name][:-1]
    save_t5x(T5(traverse_util.unflatten_dict(flat, sep="/"), ENCODER_DECODER), tmp_path)
    with pytest.raises(CheckpointError, match=rf"checkpoint_0: .*{name}|lacks {name}"):
        drafts.DraftCheckpoint(str(tmp_path)).load(ENCODER_DECODER)
