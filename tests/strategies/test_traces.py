"""``with_trace``: what strategies record of how they came to their tokens."""

import jax
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.ops import uint64
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.testing.certificate.enumeration import exact_log_softmax, row_stop, stepper

V, LENGTH, N, KEY = 6, 5, 8, jax.random.key(3)
MODEL = TableLM.random(jax.random.key(0), V, sharpness=1.5)
DRAFT = TableLM.random(jax.random.key(1), V)
PROMPT = Prompt(np.array([[1, 2], [3, 0]], np.int32), np.array([2, 1], np.int32))
STOP = Stop(eos_ids=0)
EXPANDED, FINISHED = 5, 3


def sequences(output):
    """Row, sample and tokens of each sequence."""
    for row, n in np.ndindex(output.length.shape):
        yield row, n, output.tokens[row, n, : output.length[row, n]].tolist()


def log_probs(row, tokens, transform=None):
    """The log-probability of each token, by enumeration."""
    step = stepper(MODEL, PROMPT, row, LENGTH, transform, row_stop(STOP, row, LENGTH))
    found = [step([tuple(tokens[:i])])[1] for i in range(len(tokens))]
    return [exact_log_softmax(x)[0, token] for x, token in zip(found, tokens, strict=True)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings",
    [{}, {"order": "probability", "after": "lattice"}],
    ids=["one code", "several codes"],
)
def test_codes_have_intervals_as_wide_as_the_probability(settings):
    """Nested ones, each with the code; and a code chooses while N times the width is above 1."""
    settings = {"num_samples": N, "max_new_tokens": LENGTH, "stop": STOP, **settings}
    settings["transform"] = transforms.temperature(0.7)
    plain = jax.device_get(decoding_jax.arithmetic_sample(MODEL, PROMPT, KEY, **settings))
    assert plain.info.trace is None
    got = jax.device_get(
        decoding_jax.arithmetic_sample(MODEL, PROMPT, KEY, **settings, with_trace=True)
    )
    assert same_bits(got[:5], plain[:5])
    point, offset, last = (uint64.to_ints(x) for x in got.info.trace[:3])
    for row, n, tokens in sequences(got):
        gained = log_probs(row, tokens, settings["transform"])
        begin, end = 0, 2**64
        for i in range(len(tokens)):
            carried = N * (end - begin) > 2**64
            assert got.info.trace.carried[row, n, i] == carried
            low = point[row, n] - offset[row, n, i]
            high = low + last[row, n, i] + 1
            assert begin <= low <= point[row, n] < high <= end
            width = (end - begin) * (np.exp(gained[i]) if carried else 1.0)
            assert (high - low) / 2**64 == pytest.approx(width / 2**64, abs=1e-6)
            begin, end = low, high


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_drafts", [1, 2])
def test_blocks_add_up_to_the_text_and_the_counts(num_drafts):
    settings = {"num_samples": N, "max_new_tokens": LENGTH, "stop": STOP, "num_draft_tokens": 2}
    settings["num_drafts"] = num_drafts
    run = decoding_jax.speculative_sample
    plain = jax.device_get(run(MODEL, DRAFT, PROMPT, KEY, **settings))
    got = jax.device_get(run(MODEL, DRAFT, PROMPT, KEY, **settings, with_trace=True))
    assert same_bits(got[:5], plain[:5])
    info, trace = got.info, got.info.trace
    assert (trace.drafted is None) == (num_drafts == 2)
    for name, of_blocks in (("proposed", trace[1]), ("accepted", trace[2]), ("emitted", trace[3])):
        np.testing.assert_array_equal(of_blocks.sum(-1), getattr(info, name))
    for row, n, tokens in sequences(got):
        end = 1
        for i in range(info.blocks[row, n]):
            accepted, appended = trace.accepted[row, n, i], trace.appended[row, n, i]
            assert accepted <= appended <= accepted + 1
            if num_drafts == 1:
                drafted = trace.drafted[row, n, i].tolist()
                assert drafted[:accepted] == tokens[end : end + accepted]
                assert sum(token >= 0 for token in drafted) == trace.proposed[row, n, i]
                if appended > accepted < trace.proposed[row, n, i]:
                    assert drafted[accepted] >= 0
            end += appended
        assert end == max(len(tokens), 1)


SEARCHES = {
    "best_k_search": {"k": 2, "budget": 12, "gamma": 0.1},
    "beam_search": {"beam_size": 3},
    "stochastic_beam_search": {"beam_size": 3},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2, "diversity_penalty": 0.5},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SEARCHES)
def test_nodes_of_a_search_are_a_tree_with_its_results(name):
    run = getattr(decoding_jax, name)
    settings = {"max_new_tokens": LENGTH, "stop": STOP, **SEARCHES[name]}
    args = (MODEL, PROMPT, KEY) if name.startswith("stochastic") else (MODEL, PROMPT)
    plain = jax.device_get(run(*args, **settings))
    got = jax.device_get(run(*args, **settings, with_trace=True))
    assert same_bits(got[:5], plain[:5])
    for row in range(2):
        nodes = {}
        for tokens, length, log_prob, kind in zip(*(x[row] for x in got.info.trace), strict=True):
            if kind:
                nodes.setdefault(tuple(tokens[:length].tolist()), {})[int(kind)] = log_prob
        expanded = {path for path, kinds in nodes.items() if EXPANDED in kinds}
        if name == "best_k_search":
            assert len(expanded) == got.info.expanded[row] - 1  # The prompt is no node.
        for path, kinds in nodes.items():
            assert len(path) == 1 or path[:-1] in expanded
            for log_prob in kinds.values():
                assert log_prob == pytest.approx(sum(log_probs(row, path)), abs=1e-5)
        results = {tuple(tokens) for b, _, tokens in sequences(got) if b == row and tokens}
        assert results <= nodes.keys()
        assert all((FINISHED in nodes[path]) == (path[-1] == 0) for path in results)
