"""Random problems against brute force: all transforms in random chains, and strategies.

Compiling takes nearly all the time, so each program has all settings per row, mostly neutral ones,
and is called with many random values. In all 4,800 logit vectors are transformed, and strategies
decode 96 rows each.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from examples import TRANSFORMS, Numbers, made

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.base import Prefix
from decoding_jax.testing import TableLM
from decoding_jax.testing.certificate import comparisons, enumeration

ROWS, VOCAB, LENGTH, WIDTH, INF = 8, 4, 4, 3, np.inf


def settings_of(draw, vocab):
    """Settings of every transform, each with a row axis."""
    numbers = Numbers(draw, vocab, LENGTH)
    return {name: e.random(numbers) for name, e in TRANSFORMS.items() if e.random}


def chain_of(order, settings):
    return transforms.chain(*(made(name, settings[name]) for name in order))


def table_of(draw, shape):
    """Logits of several kinds: smooth, tied, sharp, with zeros, flat."""
    kind = draw.integers(5)
    logits = draw.normal(size=shape) * (1.0, 1.0, 6.0, 1.5, 0.0)[kind]
    logits = np.round(logits) if kind == 1 else logits
    banned = (draw.random(shape) < 0.4) & (np.arange(shape[-1]) != draw.integers(shape[-1]))
    return np.where(banned & (kind == 3), -INF, logits).astype(np.float32)


def of_row(settings, row):
    return jax.tree.map(lambda x: x[row] if np.ndim(x) else x, settings)


@jax.jit
def transformed(transform, logits, prefix):
    return transform(logits, prefix)


def expected_logits(order, settings, logits, prompt, length, tokens, count):
    """The logits of one row after the chain, by the equations of its transforms in float64."""
    past = [int(t) for t in prompt[:length]]
    new = [int(t) for t in tokens[:count]]
    logits = logits.astype(np.float64)
    for name in order:
        text = past + new if TRANSFORMS[name].prompt else new
        arguments = dict(settings[name])
        if name == "banned_sequences":
            rows = arguments["sequences"].tolist()
            arguments["sequences"] = [s for s in ([t for t in r if t >= 0] for r in rows) if s]
        logits = TRANSFORMS[name].equation(logits, text, **arguments)
    return logits


@pytest.mark.release
@pytest.mark.parametrize("seed", tiers.values(exhaustive=range(3), release=range(3, 6)))
def test_random_chains_of_all_transforms_are_their_equations(seed):
    """100 batches of 8 rows a seed, after prefixes of all lengths; a threshold is never met."""
    draw = np.random.default_rng(seed)
    vocab = 11
    order = draw.permutation(list(settings_of(draw, vocab)))
    ngram = int(draw.integers(2, 4))
    for _ in range(100):
        settings = settings_of(draw, vocab)
        settings["no_repeat_ngram"]["n"] = ngram  # part of the program
        logits = table_of(draw, (ROWS, vocab))
        prompt = draw.integers(0, 4, (ROWS, WIDTH), dtype=np.int32)
        length = draw.integers(1, WIDTH + 1, ROWS, dtype=np.int32)
        tokens = draw.integers(0, 4, (ROWS, LENGTH), dtype=np.int32)
        count = draw.integers(0, LENGTH + 1, ROWS, dtype=np.int32)
        prefix = Prefix(prompt, length, tokens[:, None, None], count[:, None, None])
        prefix = jax.tree.map(jnp.asarray, prefix)
        chain = chain_of(order, settings)
        got = np.asarray(transformed(chain, jnp.asarray(logits)[:, None, None], prefix))[:, 0, 0]
        for row in range(ROWS):
            mine = of_row(settings, row)
            want = expected_logits(
                order, mine, logits[row], prompt[row], length[row], tokens[row], count[row]
            )
            np.testing.assert_array_equal(got[row] == -INF, want == -INF, str((order, mine)))
            np.testing.assert_allclose(got[row], want, rtol=1e-4, atol=1e-4)


TABLE = TableLM.random(jax.random.key(7), VOCAB)
STRATEGIES = {
    "greedy": {},
    "sample": {"num_samples": 4},
    "arithmetic_sample": {"num_samples": 4},
    "stochastic_beam_search": {"beam_size": 3},
    "best_first_search": {"budget": 100, "gamma": 0.0},
}
KEYLESS = ("greedy", "best")
ORDER = tuple(settings_of(np.random.default_rng(0), VOCAB))
REPEATS, LEVEL = 64, 1e-7


def problem_of(seed):
    """A model whose logits are log-probabilities, which all strategies transform alike."""
    draw = np.random.default_rng(seed)
    table = table_of(draw, np.shape(TABLE.table))
    banned = draw.random(table.shape) < 0.1 * draw.integers(2)
    banned[..., 0] = False
    table = enumeration.exact_log_softmax(np.where(banned, -INF, table)).astype(np.float32)
    prompt = Prompt(
        draw.integers(0, VOCAB, (ROWS, WIDTH), dtype=np.int32),
        draw.integers(1, WIDTH + 1, ROWS, dtype=np.int32),
    )
    sequences = draw.integers(0, VOCAB, (ROWS, 2, 2), dtype=np.int32)
    sequences[np.arange(2) < draw.integers(0, 3, (ROWS, 2))[..., None]] = -1
    stop = Stop(
        eos_ids=draw.integers(-1, VOCAB, (ROWS, 2), dtype=np.int32),
        sequences=sequences,
        min_new_tokens=Numbers(draw, VOCAB, LENGTH).one_of(0, range(1, LENGTH)),
        max_new_tokens=Numbers(draw, VOCAB, LENGTH).one_of(LENGTH, range(LENGTH + 1)),
    )
    settings = settings_of(draw, VOCAB)
    settings["no_repeat_ngram"]["n"] = 3
    return TableLM(jnp.asarray(table), TABLE.features), prompt, stop, chain_of(ORDER, settings)


def nan_for_banned(logits, prefix):
    """A transform whose NaN is a ban, too."""
    return jnp.where(logits == -INF, jnp.nan, logits)


@functools.cache
def distributions_of(seed):
    model, prompt, stop, transform = problem_of(seed)
    return [
        enumeration.enumerate_distribution(
            model, prompt, row, max_new_tokens=LENGTH, transform=transform, stop=stop
        )
        for row in range(ROWS)
    ]


def repeated(value):
    """A setting for REPEATS times as many rows."""
    return jnp.tile(value, (REPEATS, *[1] * (np.ndim(value) - 1))) if np.ndim(value) else value


def without_absent(output, absent):
    """Replaces absent sequences, where a search found too few, by the first of their row."""
    fields = {}
    for field in ("tokens", "length", "log_prob", "score", "finished"):
        value = np.asarray(getattr(output, field))
        mask = absent.reshape(absent.shape + (1,) * (value.ndim - 2))
        fields[field] = np.where(mask, value[:, :1], value)
    return output._replace(**fields)


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        pytest.param("greedy", range(4), marks=pytest.mark.exhaustive),
        *(pytest.param(name, range(12), marks=pytest.mark.release) for name in STRATEGIES),
    ],
    ids=lambda value: f"{len(value)} problems" if isinstance(value, range) else value,
)
def test_random_problems_agree_with_brute_force(name, seeds):
    """Problems of 8 rows; samplers repeat each row 64 times, searches do not need to.

    At most 384 chi-square tests in 12 problems, one for each prompt and lane, each at level 1e-7.
    Every output is possible, ends where it should, and has the model's log-probability. Greedy
    decoding and best-first search give the best output.
    """
    sampler = "sample" in name
    function = getattr(decoding_jax, name)
    for seed in seeds:
        model, prompt, stop, transform = problem_of(seed)
        distributions = distributions_of(seed)
        if sampler:
            prompt, stop, transform = jax.tree.map(repeated, (prompt, stop, transform))
        arguments = [prompt]
        arguments += [] if name.startswith(KEYLESS) else [jax.random.key(seed)]
        settings = {**STRATEGIES[name], "max_new_tokens": LENGTH}
        settings["transform"] = transforms.chain(nan_for_banned, transform)
        output = function(model, *arguments, **settings, stop=stop)
        absent = np.asarray(output.score) == -INF
        output = without_absent(output, absent)
        comparisons.check_form(output, len(prompt.length), absent.shape[1], LENGTH)
        index = comparisons.check_outcomes(output, distributions, tolerance=1e-4)
        if sampler:
            assert min(comparisons.distribution_p_values(index, distributions)) > LEVEL
        if name == "best_first_search":
            comparisons.check_likeliest(index, distributions, tolerance=1e-4)
        if name == "greedy":
            paths = [
                enumeration.greedy_path(
                    model, prompt, row, max_new_tokens=LENGTH, transform=transform, stop=stop
                )
                for row in range(ROWS)
            ]
            comparisons.check_exact(index, distributions, paths)
        if name == "stochastic_beam_search":
            real = [set(row[~gone]) for row, gone in zip(index, absent, strict=True)]
            assert [len(r) for r in real] == (~absent).sum(-1).tolist()
