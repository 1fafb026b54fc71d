"""The parts of speculation by themselves: guesses, draft lengths, first logits, the theory."""

import collections
import dataclasses
import itertools

import jax
import numpy as np
import pytest
from test_speculative import LENGTH, MODEL, PROMPT, prompt_of, run

from decoding_jax.strategies.speculative import (
    Corpus,
    Heuristic,
    Measured,
    ModelDrafter,
    Path,
    PromptLookup,
    SuffixDrafter,
    emitted_tokens,
    speed_up,
)
from decoding_jax.testing import same_bits


def test_prompt_lookup_uses_the_longest_and_then_the_latest_match():
    """All texts share a program, except one that has fewer tokens than the lookup compares."""
    run = jax.jit(lambda lookup, path, count: lookup.guess((), path, count), static_argnums=2)

    def guess(lookup, tokens, new, count=4, width=13):
        prompt = prompt_of([tokens + [9] * (width - len(tokens))], [len(tokens)])
        path = Path(prompt, np.int32([[new + [8] * (4 - len(new))]]), np.int32([[len(new)]]))
        return run(lookup, path, count)[0, 0].tolist()

    lookup = PromptLookup(size=3)
    assert guess(lookup, [1, 2, 3, 7, 2, 3, 6, 3, 5, 1, 2], [3]) == [7, 2, 3, 6]
    assert guess(lookup, [1, 2, 3, 7, 4, 2, 3, 6, 3, 5, 2], [3], 2) == [6, 3]
    assert guess(lookup, [5, 5], [5]) == [5, 5, 5, 5]
    assert guess(lookup, [1, 2], [1, 2]) == [1, 2, 1, 2]
    assert guess(lookup, [1, 2], [3]) == [-1] * 4
    assert guess(lookup, [1], [3], width=1) == [-1] * 4
    # Padding after the prompt and after the new tokens matches nothing.
    assert guess(lookup, [1], [9]) == [-1] * 4
    source = prompt_of([[6, 1, 2, 4, 7]], [4])
    with_source = PromptLookup(size=2, source=source)
    assert guess(with_source, [2, 5, 1], [2]) == [4, -1, -1, -1]
    assert guess(with_source, [1, 2, 5, 1], [2]) == [5, 1, 2, 5]
    assert guess(with_source, [7], [5]) == [-1] * 4


def followed(texts, suffix, size, count):
    """All that follows the longest suffix that occurs in the texts, and the suffix's length."""
    for length in range(min(size, len(suffix)), 0, -1):
        last = suffix[-length:]
        found = [
            text[i + length : i + length + count]
            for text in texts
            for i in range(len(text) - length + 1)
            if text[i : i + length] == last
        ]
        if found:
            return [part + [-1] * (count - len(part)) for part in found], length
    return [], 0


def test_a_suffix_is_found_in_the_text_or_in_the_corpus():
    """Beside a search by definition: 400 texts with corpora of one padded size, and one program."""
    rng = np.random.default_rng(0)
    size, count, width = 6, 3, 9
    guess = jax.jit(lambda drafter, path: drafter.guess((), path, count))
    calls = []
    for corpus_number in range(4):
        lengths = rng.integers(0, 14, 12)
        texts = [rng.integers(0, 2 + corpus_number, n).tolist() for n in [*lengths, 5]]
        drafter = SuffixDrafter(size=size, corpus=Corpus.of(texts, padded_size=256))
        rows = rng.integers(0, 2 + corpus_number, (100, width)).astype(np.int32)
        length = rng.integers(1, 6, 100).astype(np.int32)
        new = rng.integers(0, 4, 100).astype(np.int32)
        path = Path(prompt_of(rows[:, :5], length), rows[:, None, 5:], new[:, None])
        got = np.asarray(guess(drafter, path))[:, 0]
        own = np.asarray(guess(dataclasses.replace(drafter, corpus=None), path))[:, 0]
        for row, n, m, draft, lookup in zip(rows, length, new, got, own, strict=True):
            text = [*row[:n].tolist(), *row[5 : 5 + m].tolist()]
            parts, matched = followed(texts, text, size, count)
            _, in_text = followed([text[:-1]], text, size, 1)
            calls.append(matched > in_text)
            if matched <= in_text:
                assert draft.tolist() == lookup.tolist()
                continue
            for i in range(1, count + 1):
                [(most, times)] = collections.Counter(tuple(p[:i]) for p in parts).most_common(1)
                if 2 * times > len(parts) and most[0] >= 0:
                    assert draft[:i].tolist() == list(most)
            assert draft.tolist() in [*parts, lookup.tolist()]
    assert guess._cache_size() == 2
    assert 0.2 < np.mean(calls) < 0.98


def test_what_follows_a_suffix_is_what_half_of_its_occurrences_go_on_with():
    texts = [[1, 2, 3, 4], [1, 2, 3, 4], [9, 2, 3, 7], [2, 3, 4, 5]]
    drafter = SuffixDrafter(corpus=Corpus.of(texts))
    run = jax.jit(lambda path: drafter.guess((), path, 2))

    def guess(tokens):
        prompt = prompt_of([tokens + [0] * (3 - len(tokens))], [len(tokens)])
        return run(Path(prompt, np.int32([[[0]]]), np.int32([[0]])))[0, 0].tolist()

    assert guess([8, 2, 3])[0] == 4
    assert guess([9, 2, 3]) == [7, -1]
    assert guess([6, 5]) == [-1, -1]  # nothing follows 5
    assert guess([6, 6, 5]) == [-1, -1]
    assert guess([8, 8]) == [8, 8]
    with pytest.raises(ValueError, match="texts: expected one token or more, got"):
        Corpus.of([[]])
    for token in (-2, 2**31):
        message = f"texts: expected token ids of 0 and above, of 32 bits, got {token}"
        with pytest.raises(ValueError, match=message):
            Corpus.of([[1, token]])
    for texts in ([1, 2], [[1.5]], ["abc"]):
        with pytest.raises(ValueError, match="texts: expected a list of token ids for each text"):
            Corpus.of(texts)
    with pytest.raises(ValueError, match="padded_size: expected 3 or more"):
        Corpus.of([[1], [1]], padded_size=2)


@pytest.mark.exhaustive
def test_draft_lengths_follow_acceptance():
    heuristic = Heuristic(max_draft_tokens=8, first=5)
    update = jax.jit(heuristic.update)
    state = heuristic.init(1, 3)
    state = update(state, state, np.int32([[5, 4, 0]]))
    assert heuristic.count(state).tolist() == [[7, 4, 4]]
    state = update(np.int32([[7, 1, 8]]), np.int32([[7, 1, 8]]), np.int32([[7, 0, 7]]))
    assert heuristic.count(state).tolist() == [[8, 1, 7]]
    measured = Measured(max_draft_tokens=8, cost_ratio=0.1, guess=0.5)
    state, count, update = measured.init(1, 2), jax.jit(measured.count), jax.jit(measured.update)
    for _ in range(200):
        drafted = np.asarray(count(state))
        state = update(state, drafted, np.int32([[1, 0]]) * drafted)
    gain = lambda a, k: (1 - a ** (k + 1)) / (1 - a) / (k * 0.1 + 1)  # noqa: E731
    assert measured.count(measured.init(1, 1)) == max(range(1, 9), key=lambda k: gain(0.5, k))
    assert count(state).tolist() == [[8, 1]]
    got = run(num_draft_tokens=Heuristic(max_draft_tokens=6, first=2), drafter=MODEL)
    assert got.info.target_calls == 2  # 1 + (2 + 1) + (4 + 1) tokens


def test_a_heuristic_without_a_largest_k_is_never_held_back():
    """All ways in which blocks of texts of 24 tokens can be accepted and rejected."""
    for first in (0, 1, 3, 9, 30):
        heuristic = Heuristic(None, first)
        bound = heuristic.bounded(24).max_draft_tokens
        longest, seen, waiting = 1, set(), [(1, first)]
        while waiting:
            length, count = waiting.pop()
            if length >= 24 or (length, count) in seen:
                continue
            seen.add((length, count))
            drafted = min(count, 24 - length - 1)
            longest = max(longest, drafted)
            for accepted in range(drafted + 1):
                grown = count + 2 if accepted == drafted else max(1, count - 1)
                waiting.append((length + accepted + 1, grown))
        assert longest <= bound <= longest + 1


def test_theory_equals_the_formulas_of_the_paper():
    """Leviathan et al. 2022, equation 1 and theorem 3.8."""
    for a, k, c in itertools.product((0.0, 0.3, 0.9), (1, 4), (0.0, 0.2)):
        tokens = sum(a**i for i in range(k + 1))
        np.testing.assert_allclose(emitted_tokens(a, k), tokens, rtol=1e-5)
        gain = (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1))
        np.testing.assert_allclose(speed_up(emitted_tokens(a, k), k, c), gain, rtol=1e-5)
    assert emitted_tokens(1.0, 4) == 5


def test_a_draft_begins_with_the_same_logits_by_one_call_and_by_two():
    """Each platform uses one of the two ways. The first lane's sequence has one token."""
    fed = np.int32([[[1, 2, 3], [4, 0, 1]], [[2, 2, 0], [3, 1, 4]]])
    last, start = np.int32([[[0, 4], [0, 1]], [[2, 3], [1, 1]]]), np.int32([[-1, 1], [0, 2]])
    next_token = np.int32([[2, 0], [1, 3]]), start + 2

    def logits(name):
        drafter = ModelDrafter(MODEL)
        cache = drafter.init(PROMPT, lanes=2, max_new_tokens=LENGTH)
        _, cache = MODEL.extend(cache, fed, 0)
        first, cache = getattr(drafter, name)(cache, last, start)
        return first, drafter.next(cache, *next_token)[0]

    got = [jax.jit(logits, static_argnums=0)(name) for name in ("feed_at_once", "feed_in_turn")]
    assert np.isfinite(got[0]).all()
    assert same_bits(*got)
