"""A model whose logits are NaN: what every strategy, interface and estimator makes of it.

In these tables, token 6 is never generated, and token 5 may be. ``AT_START`` is NaN after token 6,
so it spoils the texts that end in 6 from their first token. ``LATER`` has one NaN among its logits
after token 5, so it spoils the sequences that go on after a 5.
"""

import dataclasses
import functools
import warnings

import examples
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from text_fakes import TABLE, VOCABULARY, Digits

import decoding_jax
from decoding_jax import Prompt, Stop, infer, transforms
from decoding_jax.estimators import choice, pairwise, pruning, quality, repeated
from decoding_jax.estimators.without_replacement import estimate
from decoding_jax.infer.sources import Item
from decoding_jax.ops.logits import are_nan, largest, log_prob_of, log_softmax
from decoding_jax.registry import STRATEGIES
from decoding_jax.shell import command
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.t5x import decode_fns
from decoding_jax.t5x.decode_fns.calls import NativeDecoder
from decoding_jax.t5x.decode_fns.speculative import SpeculativeDecoder
from decoding_jax.testing import same_bits
from decoding_jax.testing.certificate.enumeration import exact_log_softmax, path_logits
from decoding_jax.text import NanLogitsWarning, stream, stream_text

LENGTH, KEY = 5, jax.random.key(2)
PROMPT = Prompt(np.array([[1, 2], [3, 6], [2, 4]], np.int32), np.array([2, 2, 2], np.int32))
TEXTS = ["12", "36", "24"]


def changed(model, place, value):
    """The model whose table has ``value`` at ``place``; JAX would compile a program for each."""
    table = np.array(model.table)
    table[place] = value
    return dataclasses.replace(model, table=jax.device_put(table))


ALL = slice(None)
SOUND = changed(TABLE, (..., 6), -np.inf)
AT_START = changed(SOUND, (ALL, ALL, 6), np.nan)
LATER = changed(SOUND, (ALL, ALL, 5, 1), np.nan)
DRAFT = dataclasses.replace(SOUND, table=jax.device_put(0.5 * np.asarray(SOUND.table)))
NAN_DRAFT = changed(DRAFT, (ALL, ALL, 5, 1), np.nan)
BANNED_DRAFT = changed(DRAFT, (ALL, ALL, 5, 1), -np.inf)

SETTINGS = {
    **examples.STRATEGIES,
    "arithmetic_sample": {"num_samples": 8},
    "smc_sample": {"num_samples": 8},
    "conditional_sample": {"num_samples": 8},
    "beam_sample": {"beam_size": 4},
    "beam_search": {"beam_size": 4},
    "best_first_search": {"budget": 12, "num_return": 4, "gamma": 0.0},
    "best_k_search": {"k": 3, "budget": 12, "num_return": "all", "gamma": 0.1},
    "constrained_beam_search": {"beam_size": 4, "constraints": Constraints(phrases=((3,),))},
    "contrastive_search": {"penalty_alpha": 0.5, "top_k": 3},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2},
    "greedy": {},
    "sample": {"num_samples": 8},
    "speculative_sample": {"num_samples": 8, "num_draft_tokens": 2},
    "stochastic_beam_search": {"beam_size": 4},
}
SAMPLERS = (
    *("greedy", "arithmetic_sample", "sample", "smc_sample", "conditional_sample"),
    "speculative_sample",
)


@functools.cache
def decode(name, model_name, drafter_name="DRAFT"):
    model, drafter = globals()[model_name], globals()[drafter_name]
    strategy = STRATEGIES[name]
    args = [model, *[drafter] * strategy.drafts, PROMPT, *[KEY] * strategy.draws]
    settings = {"max_new_tokens": LENGTH, "stop": Stop(eos_ids=0), **SETTINGS[name]}
    return jax.device_get(strategy.function(*args, **settings))


# The tests of one strategy share its compiled program, so all of them are in one tier.
EXHAUSTIVE = (
    *("beam_search", "best_k_search", "conditional_sample", "smc_sample"),
    "speculative_sample",
)


def every(names):
    """The tiers of strategies: one for every run, and one of each other kind for the gate."""
    later = [name for name in names if name in EXHAUSTIVE]
    rest = [name for name in names if name not in ("sample", *EXHAUSTIVE)]
    return pytest.mark.parametrize("name", tiers.values("sample", exhaustive=later, release=rest))


@every(SETTINGS)
def test_a_row_that_is_nan_from_the_start_has_no_number_and_reaches_no_other(name):
    got, want = decode(name, "AT_START"), decode(name, "SOUND")
    others = np.array([0, 2])
    for part, of_sound in zip(got[:5], want[:5], strict=True):
        assert same_bits(part[others], of_sound[others])
    exists = got.log_prob[1] != -np.inf
    assert exists[0]
    assert np.isnan(got.log_prob[1][exists]).all()
    assert np.isnan(got.score[1][exists]).all()
    assert not np.isnan(want.log_prob).any()
    assert not got.length[1].any()
    assert not got.finished[1].any()
    np.testing.assert_array_equal(got.nan_logits, np.isnan(got.score))
    assert not got.nan_logits[others].any()


@pytest.mark.parametrize("name", tiers.strategies(SETTINGS))
@pytest.mark.release
def test_a_sequence_ends_where_its_logits_are_nan_and_ranks_last(name):
    """Every other sequence has its number, and no sequence goes on after a token 5."""
    got = decode(name, "LATER")
    num_nan = 0
    for row, start in enumerate(PROMPT.tokens):
        for n in range(got.length.shape[1]):
            tokens = got.tokens[row, n, : got.length[row, n]].tolist()
            assert 5 not in tokens[:-1]
            is_spoiled = tokens[-1:] == [5] and len(tokens) < LENGTH
            if got.log_prob[row, n] == -np.inf:
                assert not tokens
                continue
            if not got.nan_logits[row, n]:
                want = exact_log_prob(start, tokens)
                np.testing.assert_allclose(got.log_prob[row, n], want, atol=1e-5)
            if name in SAMPLERS or got.nan_logits[row, n]:
                assert got.nan_logits[row, n] == is_spoiled
                assert not (is_spoiled and got.finished[row, n])
            num_nan += is_spoiled
        order = np.select([got.log_prob[row] == -np.inf, got.nan_logits[row]], [2, 1], 0)
        if name not in (*SAMPLERS, "metropolis_sample", "power_sample"):  # These are in no order.
            assert (np.diff(order) >= 0).all()
    assert num_nan or name not in SAMPLERS[1:]
    assert got.nan_logits.shape[1] == 1 or not got.nan_logits.all()


def exact_log_prob(start, tokens):
    path, total = start.tolist(), 0.0
    for token in tokens:
        total += float(exact_log_softmax(np.asarray(path_logits(SOUND, path)))[token])
        path.append(token)
    return total


@every(SAMPLERS[1:])
def test_other_lanes_of_a_row_are_untouched(name):
    got, want = decode(name, "LATER"), decode(name, "SOUND")
    spoiled = got.nan_logits
    assert spoiled.any()
    for part, of_sound in zip(got[:5], want[:5], strict=True):
        assert same_bits(part[~spoiled], of_sound[~spoiled])
    before = np.arange(LENGTH) < got.length[..., None]
    np.testing.assert_array_equal(got.tokens, np.where(before, want.tokens, 0))


@pytest.mark.exhaustive
def test_nan_in_a_draft_is_a_ban():
    got = decode("speculative_sample", "SOUND", "NAN_DRAFT")
    assert same_bits(got, decode("speculative_sample", "SOUND", "BANNED_DRAFT"))
    assert not got.nan_logits.any()


@pytest.mark.exhaustive
def test_a_ban_of_every_token_and_infinity_are_numbers():
    ban_all = transforms.allowed_tokens(np.zeros(VOCABULARY, bool))
    for transform in (ban_all, lambda logits, prefix: jnp.full_like(logits, jnp.nan)):
        got = decoding_jax.greedy(SOUND, PROMPT, max_new_tokens=2, transform=transform)
        assert got.log_prob.tolist() == [[0.0]] * 3
    infinite = changed(SOUND, (..., 3), np.inf)
    got = decoding_jax.greedy(infinite, PROMPT, max_new_tokens=2)
    assert got.tokens.tolist() == [[[3, 3]]] * 3
    assert got.log_prob.tolist() == [[0.0]] * 3


@pytest.mark.exhaustive
def test_hidden_states_that_are_nan():
    """A candidate with such a state is chosen by no step; a prompt with one ends at once."""
    hidden = TABLE.features
    of_candidate = dataclasses.replace(SOUND, features=hidden.at[:, 5].set(jnp.nan))
    of_prompt = dataclasses.replace(SOUND, features=hidden.at[:, 3].set(jnp.nan))
    search = functools.partial(
        decoding_jax.contrastive_search, prompt=PROMPT, max_new_tokens=LENGTH
    )
    got = search(of_candidate, penalty_alpha=0.5, top_k=3)
    assert not got.nan_logits.any()
    assert not (got.tokens == 5).any()
    got = search(of_prompt, penalty_alpha=0.5, top_k=3)
    assert got.nan_logits.tolist() == [[False], [True], [False]]
    assert got.length[1, 0] == 0


@functools.cache
def text_settings(name):
    settings = {"max_new_tokens": LENGTH, "strategy": name, **SETTINGS[name]}
    if STRATEGIES[name].draws:
        settings["key"] = KEY
    return settings | ({"drafter": DRAFT} if STRATEGIES[name].drafts else {})


WARNING = r"model: its logits are NaN for text 1, of 3; these end there with a log_prob of NaN"
STREAMED = ("greedy", "sample", "beam_search")
# What a door makes of NaN depends on the output alone, and each strategy's output is tested above.
MORE = ("best_k_search", "smc_sample", "speculative_sample")
OTHERS = (
    *("arithmetic_sample", "beam_sample", "best_first_search", "constrained_beam_search"),
    *("contrastive_search", "diverse_beam_search", "stochastic_beam_search"),
    *("conditional_sample", "metropolis_sample", "power_sample"),
)


@pytest.mark.release
@pytest.mark.parametrize(
    "name", tiers.of_table(SETTINGS, exhaustive=["sample", *MORE], release=OTHERS)
)
def test_generate_and_stream_warn_once(name):
    settings = text_settings(name)
    with pytest.warns(NanLogitsWarning, match=WARNING) as caught:
        made = decoding_jax.generate(AT_START, Digits(), TEXTS, **settings)
    assert len(caught) == 1
    assert [[c.nan_logits for c in row] for row in (made[0], made[2])] == [
        [False] * len(row) for row in (made[0], made[2])
    ]
    assert made[1]
    assert all(c.nan_logits and not c.text and not c.finished for c in made[1])
    with pytest.warns(NanLogitsWarning, match=WARNING) as caught:
        *_, last = stream(AT_START, Digits(), TEXTS, chunk=8, **settings)
    assert len(caught) == 1
    assert [[c.tokens for c in row] for row in last] == [[c.tokens for c in row] for row in made]
    assert all(c.nan_logits for c in last[1])


def test_stream_text_warns_once():
    texts = stream_text(AT_START, Digits(), ["36", "16"], max_new_tokens=LENGTH)
    with pytest.warns(NanLogitsWarning, match="texts 0 and 1, of 2") as caught:
        pieces = list(texts)
    assert len(caught) == 1
    assert pieces == ["", ""]


@pytest.mark.release
@pytest.mark.parametrize(
    "name", tiers.of_table(SETTINGS, exhaustive=["greedy", "beam_search", *MORE], release=OTHERS)
)
def test_a_job_counts_a_fault_of_its_own_kind(name):
    found = []
    settings = text_settings(name) | {"stop": None}
    settings = {
        k: v for k, v in settings.items() if k not in ("strategy", "key", "drafter", "stop")
    }
    summary = infer.run(
        (AT_START, Digits()),
        [Item(text) for text in TEXTS],
        functools.partial(STRATEGIES[name].function, **settings),
        report=found.append,
        batch_size=2,
        max_input_length=16,
        drafter=DRAFT if STRATEGIES[name].drafts else None,
    )
    assert summary.faults == {"NaN logits": 1}
    count = len(found[1]["outputs"])
    assert found[1]["error"] == f"NaN logits: {count} of {count} outputs"
    assert {output["log_prob"] for output in found[1]["outputs"]} == {None}
    assert not any("error" in record for record in (found[0], found[2]))
    infer.Printer()(found[1])


def test_the_shell_reports_it(capsys, monkeypatch):
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: (AT_START, Digits()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in (
            ["--strategy", "beam_search", "--beam_size", "4"],
            ["--strategy", "greedy"],
        ):
            assert command.main([*TEXTS, *options, "--max_new_tokens", str(LENGTH)]) == 1
            printed = capsys.readouterr()
            assert printed.err == f"decoding_jax: {WARNING}\n"
            assert "nan" in printed.out


T5X = {
    "arithmetic_sample": {"num_decodes": 4},
    "beam_sample": {},
    "beam_search": {"alpha": 0.0},
    "best_first_search": {"num_decodes": 2, "budget": 12},
    "best_k_search": {"budget": 12},
    "conditional_sample": {"num_decodes": 2, "language": transforms.min_length(1, 0)},
    "constrained_beam_search": {"phrases": ((3,),)},
    "contrastive_search": {},
    "diverse_beam_search": {},
    "smc_sample": {"num_decodes": 2, "language": transforms.min_length(1, 0)},
    "speculative_sample": {"num_decodes": 4, "num_draft_tokens": 2, "temperature": 0.9},
    "stochastic_beam_search": {},
    "temperature_sample": {"num_decodes": 4, "topk": 0, "temperature": 0.9},
}


T5X_SHOWN, T5X_MORE = ("beam_search", "temperature_sample"), ("best_k_search", "speculative_sample")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    tiers.values(
        *T5X_SHOWN,
        exhaustive=T5X_MORE,
        release=[name for name in T5X if name not in T5X_SHOWN + T5X_MORE],
    ),
)
def test_t5x_sorts_nan_before_every_number(name):
    """Its scores ascend, so the best comes last."""
    assert set(T5X) == set(decode_fns.__all__)
    inputs = np.pad(np.asarray(PROMPT.tokens), ((0, 0), (1, LENGTH)))
    prompt = Prompt(jnp.asarray(inputs[:, :3]), jnp.full(3, 3, jnp.int32))
    decoder = NativeDecoder if name != "speculative_sample" else SpeculativeDecoder

    @jax.jit
    def call(model):
        models = (model, prompt, *([DRAFT] if decoder is SpeculativeDecoder else []))
        fn = getattr(decode_fns, name)
        return fn(jnp.asarray(inputs), {}, decoder(*models), eos_id=0, decode_rng=KEY, **T5X[name])

    for model in (AT_START, LATER):
        _, scores = jax.device_get(call(model))
        order = np.select([scores == -np.inf, np.isnan(scores)], [0, 1], 2)
        assert (np.diff(order) >= 0).all()
        assert (order[0] == 2).any() or model is LATER
    assert np.isnan(jax.device_get(call(AT_START))[1][1]).any()


@pytest.mark.release
def test_rescaled_scores_of_t5x_are_nan_too():
    given = {"eos_id": 0, "num_decodes": 1, "rescale_log_probs": True}
    inputs = np.pad(np.asarray(PROMPT.tokens), ((0, 0), (1, LENGTH)))
    prompt = Prompt(jnp.asarray(inputs[:, :3]), jnp.full(3, 3, jnp.int32))
    for settings in ({"topk": 1}, {"topk": 3, "temperature": 0.7}):
        call = functools.partial(decode_fns.temperature_sample, decode_rng=KEY, **given, **settings)
        decode_rows = jax.jit(lambda m, call=call: call(inputs, {}, NativeDecoder(m, prompt)))
        scores = decode_rows(AT_START)[1]
        assert np.isnan(scores).tolist() == [[False], [True], [False]]


NAN = float("nan")


def test_a_nan_wins_no_choice():
    """``bad`` has no number against any text."""

    def utility(text, references):
        return NAN if "bad" in (text, *references) else float(text == references[0])

    def utilities(texts, references):
        return np.array([[utility(t, [r]) for r in references] for t in texts], np.float32)

    texts = ["bad", "a", "bad", "b", "b"]
    assert choice.minimum_bayes_risk(texts, utility) == 3
    assert int(pairwise.best(utilities(texts, texts))) == 3
    assert pruning.minimum_bayes_risk(KEY, texts, utilities).best == 3
    assert quality.oracle(lambda text, _: {"a": 1.0, "b": 2.0}.get(text, NAN), texts, ["x"]) == 2
    assert choice.minimum_bayes_risk(["bad"], utility) == 0


@pytest.mark.release
def test_a_mean_of_nan_is_nan():
    assert np.isnan(
        quality.mean(lambda text, _: NAN if text == "bad" else 1.0, ["bad", "a"], ["x"])
    )
    assert np.isnan(repeated.mean_and_error(jnp.array([[1.0, NAN], [1.0, 2.0]]))).all()
    drawn = decode("stochastic_beam_search", "AT_START")
    info, ones = drawn.info, np.ones_like(drawn.score)
    for normalize in (False, True):
        got = estimate(ones, info.sampling_log_prob, info.threshold, normalize=normalize)
        assert np.isnan(got).tolist() == [False, True, False]


@pytest.mark.release
def test_scores_of_tokens_are_nan():
    with pytest.warns(NanLogitsWarning):
        made = decoding_jax.generate(
            LATER, Digits(), TEXTS, strategy="sample", num_samples=8, key=KEY, with_scores=2,
            max_new_tokens=LENGTH)  # fmt: skip
    for completion in (c for row in made for c in row if c.nan_logits):
        assert np.isfinite(completion.scores.log_prob).all()


@pytest.mark.exhaustive
def test_nan_anywhere_in_a_wide_vocabulary_is_seen():
    """XLA's own maximum loses some NaN on a CPU."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(12, 4099)).astype(np.float32)
    logits[:, ::7] = -np.inf
    places = rng.integers(0, 4099, 12)
    logits[np.arange(12), places] = np.nan
    logits = jnp.asarray(np.concatenate([logits, np.nan_to_num(logits, nan=0.0)]))
    token = jnp.zeros(24, jnp.int32)
    want = [True] * 12 + [False] * 12
    assert jnp.isnan(jax.jit(log_prob_of)(logits, token)).tolist() == want
    assert are_nan(jax.jit(log_softmax)(logits)).tolist() == want
    assert jnp.isnan(jax.jit(largest)(logits))[:, 0].tolist() == want
