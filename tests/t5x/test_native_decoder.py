"""Decode functions on a native model: searches, and callbacks as on T5X's own networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from networks import fixture

from decoding_jax import strategies, transforms
from decoding_jax.base import Prompt, Stop
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.t5x import decode_fns
from decoding_jax.t5x.decode_fns.calls import NativeDecoder
from decoding_jax.testing import TableLM

EOS, LENGTH, VOCAB = 1, 7, 6
INPUTS = np.zeros((3, LENGTH), np.int32)
INPUTS[0, 1:4], INPUTS[2, 1] = (5, 1, 3), 4
GIVEN = (INPUTS != 0).sum(1)
MODEL = TableLM.random(jax.random.key(0), VOCAB, sharpness=1.5)
MODELS = {"table": lambda: MODEL, "mixture": lambda: fixture("qwen3_moe")}
PROMPT = Prompt(jnp.asarray(INPUTS), jnp.asarray(GIVEN + 1))


def by_whole_texts(model):
    """``tokens_to_logits``: the model's logits after each sequence."""

    def tokens_to_logits(state):
        length = jnp.minimum(state.cur_index + 1, LENGTH)
        output, _ = model.prefill(state.sequences, length, lanes=1, slots=0)
        return output.logits[:, 0, 0], state.cache

    return tokens_to_logits


def decode(fn, native, model=MODEL, **settings):
    """A decode function on a model itself, or on one behind T5X's ``tokens_to_logits``."""
    run = jax.jit(
        lambda model, inputs: fn(
            inputs=inputs,
            cache={},
            tokens_to_logits=NativeDecoder(model, PROMPT) if native else by_whole_texts(model),
            initial_index=None if native else jnp.asarray(GIVEN),
            eos_id=EOS,
            **settings,
        )
    )
    return [np.asarray(part) for part in run(model, jnp.asarray(INPUTS))]


def new_texts(decodes, row):
    for text in decodes[row]:
        assert text[: GIVEN[row]].tolist() == INPUTS[row, 1 : GIVEN[row] + 1].tolist()
        yield text[GIVEN[row] :].tolist()


def without_two(logits, prefix):
    return logits.at[..., 2].set(-jnp.inf)


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.values(
        exhaustive=["best_k_search", "constrained_beam_search"], release=["best_first_search"]
    ),
)
def test_searches_are_the_strategies_with_the_best_last(name):
    given = {"transform": without_two, "max_decode_steps": 5}
    limits = np.minimum(LENGTH - GIVEN, 5)
    if name == "constrained_beam_search":
        settings = {"constraints": Constraints(((3, 4),)), "beam_size": 4}
        settings |= {"early_stopping": "never"}
        given |= {"phrases": ((3, 4),), "alpha": 0.0}
    else:
        settings = {"num_return": 4, "budget": 4 * LENGTH, "gamma": 0.02}
        settings |= {"k": 4} if name == "best_k_search" else {}
        given |= {"gamma": 0.02}
    decodes, scores = decode(getattr(decode_fns, name), True, num_decodes=4, **given)
    want = jax.jit(
        lambda prompt: getattr(strategies, name)(
            MODEL,
            prompt,
            max_new_tokens=LENGTH,
            transform=without_two,
            stop=Stop(eos_ids=EOS, max_new_tokens=limits),
            **settings,
        )
    )(PROMPT)
    np.testing.assert_allclose(scores, want.score[:, ::-1], rtol=1e-5)
    for row in range(3):
        tokens = np.asarray(want.tokens)[row, ::-1, : LENGTH - GIVEN[row]].tolist()
        assert list(new_texts(decodes, row)) == tokens


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_contrastive_search_is_the_strategy(name):
    model = MODELS[name]()
    given = {"transform": without_two, "max_decode_steps": 5}
    settings = {"penalty_alpha": 0.6, "top_k": 3}
    decodes, scores = decode(decode_fns.contrastive_search, True, model, **given, **settings)
    stop = Stop(eos_ids=EOS, max_new_tokens=np.minimum(LENGTH - GIVEN, 5))
    want = jax.jit(
        lambda model, prompt: strategies.contrastive_search(
            model, prompt, max_new_tokens=LENGTH, transform=without_two, stop=stop, **settings
        )
    )(model, PROMPT)
    np.testing.assert_allclose(scores, want.score, rtol=1e-5)
    for row in range(3):
        tokens = np.asarray(want.tokens)[row, :, : LENGTH - GIVEN[row]].tolist()
        assert list(new_texts(decodes, row)) == tokens
    with pytest.raises(ValueError, match="num_decodes: expected 1, since contrastive_search"):
        decode(decode_fns.contrastive_search, True, num_decodes=2)


@pytest.mark.release
@pytest.mark.parametrize(
    "name", tiers.values(exhaustive=["conditional_sample", "smc_sample", "arithmetic_sample"])
)
def test_samples_of_a_language_are_those_of_the_strategy(name):
    """Without token 2, of a trie of three texts; what is rejected comes first."""
    trie = transforms.Trie.from_sequences([(3, 4, EOS), (3, 3, 5, EOS), (4, EOS)])
    language = transforms.prefix_allowed_tokens(trie)
    beside = {"language": language, "finished_only": False}
    given = {"transform": without_two, "max_decode_steps": 5}
    if name == "smc_sample":
        beside["proposal"] = transforms.temperature(1.5)
    if name == "arithmetic_sample":
        beside = {"language": language, "max_texts": 3}
        given["rescale_log_probs"] = False
    given |= beside
    decodes, scores = decode(getattr(decode_fns, name), True, num_decodes=4, **given)
    want = jax.jit(
        lambda prompt: getattr(strategies, name)(
            MODEL,
            prompt,
            jax.random.key(0),
            num_samples=4,
            **beside,
            max_new_tokens=LENGTH,
            transform=without_two,
            stop=Stop(eos_ids=EOS, max_new_tokens=np.minimum(LENGTH - GIVEN, 5)),
        )
    )(PROMPT)
    order = np.argsort(want.log_prob, axis=1, kind="stable")
    np.testing.assert_allclose(scores, np.take_along_axis(want.log_prob, order, 1), rtol=1e-5)
    assert (np.diff(scores) >= 0).all() or np.isinf(scores).any()
    for row in range(3):
        tokens = np.asarray(want.tokens)[row, order[row], : LENGTH - GIVEN[row]].tolist()
        assert list(new_texts(decodes, row)) == tokens


def force_second_token(state):
    """Forces another second token in each row of T5X, and adds to every score."""
    rows, width = state.sequences.shape
    place = jnp.arange(width)[None]
    second = jnp.repeat(jnp.asarray(GIVEN), rows // 3)[:, None] + 2
    token = 2 + jnp.arange(rows)[:, None] % 3
    is_second = (place == second) & (state.cur_index[:, None] < second)
    return state.replace(
        sequences=jnp.where(is_second, token, state.sequences),
        log_prob=state.log_prob + jnp.where(state.ended[:, 0], 0.0, 0.25),
    )


def bias_by_all_fields(logits, state):
    rows, width = state.sequences.shape
    assert width == LENGTH + 2
    assert state.rng.shape == (2,)
    known = jnp.where(jnp.arange(width)[None] <= state.cur_index[:, None], state.sequences, 0)
    current = jnp.take_along_axis(state.sequences, state.cur_index[:, None], axis=1)
    bias = known.sum(-1) + state.cur_token[:, 0] + current[:, 0] + state.step + jnp.arange(rows)
    size = logits.shape[-1]
    is_biased = jnp.arange(size)[None] == (bias % size)[:, None]
    return logits + jnp.where(is_biased, 1.0 - state.log_prob[:, None] / 10, 0.0)


@pytest.mark.parametrize(
    ("name", "rescaled", "model"),
    [
        pytest.param("temperature_sample", 1, "table", marks=pytest.mark.exhaustive),
        *(
            pytest.param(*case, marks=pytest.mark.release)
            for case in (
                ("temperature_sample", 1, "mixture"),
                ("temperature_sample", 0, "table"),
                ("arithmetic_sample", 1, "table"),
                ("arithmetic_sample", 0, "table"),
            )
        ),
    ],
)
def test_callbacks_have_the_same_effect_as_on_a_t5x_network(name, rescaled, model):
    settings = {
        "num_decodes": 2,
        "temperature": 0.8,
        "topk": 4,
        "rescale_log_probs": rescaled,
        "state_callback_fn": force_second_token,
        "logit_callback_fn": bias_by_all_fields,
    }
    fn = getattr(decode_fns, name)
    (texts, scores), (want, want_scores) = (
        decode(fn, native, MODELS[model](), **settings) for native in (1, 0)
    )
    np.testing.assert_array_equal(texts, want)
    np.testing.assert_allclose(scores, want_scores, rtol=1e-5, atol=1e-5)
    assert len({tuple(text) for text in texts[1]}) == 2
    forced = {text[1] for text in new_texts(texts, 1)} - {0}
    assert forced <= {4, 2}


@pytest.mark.release
def test_first_logits_may_differ_between_lanes():
    """A callback allows each of 3 lanes another first token."""

    def one_each(logits, state):
        lane = jnp.arange(logits.shape[0])[:, None] % 3
        return jnp.where(jnp.arange(VOCAB)[None] == 2 + lane, logits, -jnp.inf)

    for native in (True, False):
        decodes, _ = decode(
            decode_fns.temperature_sample, native, num_decodes=3, topk=0, logit_callback_fn=one_each
        )
        for row in range(3):
            assert sorted(text[0] for text in new_texts(decodes, row)) == [2, 3, 4]


def test_strategies_name_the_classes_that_run_them():
    names = ("best_k_search", "best_first_search", "contrastive_search", "smc_sample")
    for fn in (getattr(decode_fns, name) for name in names):
        with pytest.raises(ValueError, match=f"for {fn.__name__}, NativeEncoderDecoderModel or"):
            decode(fn, False)
    listed = {"language": without_two, "max_texts": 2, "topk": 1}
    with pytest.raises(ValueError, match="for arithmetic_sample, NativeEncoderDecoderModel or"):
        decode(decode_fns.arithmetic_sample, False, **listed)
    with pytest.raises(ValueError, match="language: expected a transform, for max_texts, got None"):
        decode(decode_fns.arithmetic_sample, True, topk=1, max_texts=2)
    with pytest.raises(ValueError, match="language: expected none beside callbacks"):
        decode(decode_fns.arithmetic_sample, True, logit_callback_fn=bias_by_all_fields, **listed)
