"""What is checked of a strategy's output: exact where it can be, statistical where it must be.

Every check takes NumPy arrays and fails with an AssertionError of one line. Statistical checks
return p-values instead, since only the caller knows how many tests share one level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding_jax.base import DecodeOutput
from decoding_jax.testing.certificate.distributions import (
    chi_square,
    count_outcomes,
    independent,
    outcome_index,
)
from decoding_jax.testing.certificate.enumeration import Law


def check_form(output: DecodeOutput, rows: int, samples: int, max_new_tokens: int) -> None:
    """Shapes, dtypes, lengths in range, and zeros after each end."""
    wanted = {
        "tokens": (np.int32, (rows, samples, max_new_tokens)),
        "length": (np.int32, (rows, samples)),
        "log_prob": (np.float32, (rows, samples)),
        "score": (np.float32, (rows, samples)),
        "finished": (np.bool_, (rows, samples)),
    }
    for name, (dtype, shape) in wanted.items():
        value = np.asarray(getattr(output, name))
        assert value.dtype == dtype and value.shape == shape, (  # noqa: PT018
            f"{name}: got {value.dtype}{list(value.shape)}, want {np.dtype(dtype)}{list(shape)}"
        )
    tokens, length = np.asarray(output.tokens), np.asarray(output.length)
    outside = (length < 0) | (length > max_new_tokens)
    assert not outside.any(), f"length: {first(outside)} is {length[outside][0]}"
    after = (np.arange(max_new_tokens) >= length[..., None]) & (tokens != 0)
    assert not after.any(), f"tokens: {first(after)} is not 0 after the end"
    assert not np.isnan(output.score).any(), f"score: {first(np.isnan(output.score))} is NaN"


def check_outcomes(
    output: DecodeOutput, laws: Sequence[Law], tolerance: float = 1e-5
) -> np.ndarray:
    """Every sequence is possible, ends as it should, and has the model's log-probability.

    Args:
      output: of B rows; row b has law ``b % len(laws)``.
      laws: exact.
      tolerance: of ``log_prob``, relative to 1 + its size.

    Returns:
      Which outcome of its row's law each sequence is: int64 ``[B, N]``.
    """
    tokens, length = np.asarray(output.tokens), np.asarray(output.length)
    finished, log_prob = np.asarray(output.finished), np.asarray(output.log_prob, np.float64)
    index = np.zeros(length.shape, np.int64)
    for r, law in enumerate(laws):
        rows = slice(r, None, len(laws))
        flat = tokens[rows].reshape(-1, tokens.shape[-1])
        found = outcome_index(law, flat, length[rows].ravel())
        possible = law.prob[found] > 0
        for k in np.flatnonzero((found < 0) | ~possible)[:1]:
            text = flat[k, : length[rows].ravel()[k]].tolist()
            raise AssertionError(f"tokens: {text} is no possible output of prompt {r}")
        index[rows] = found.reshape(length[rows].shape)
        wrong = finished[rows] != law.finished[index[rows]]
        assert not wrong.any(), f"finished: wrong for {tokens[rows][wrong][0].tolist()}, prompt {r}"
        want = law.log_prob[index[rows]]
        got = log_prob[rows]
        with np.errstate(invalid="ignore"):
            gap = np.where(got == want, 0.0, np.abs(got - want) / (1 + np.abs(want)))
        bad = ~(gap <= tolerance)
        assert not bad.any(), (
            f"log_prob: got {got[bad][0]}, want {want[bad][0]} for "
            f"{tokens[rows][bad][0].tolist()}, prompt {r}"
        )
    return index


def law_p_values(index: np.ndarray, laws: Sequence[Law]) -> list[float]:
    """A chi-square test for each prompt and lane, over the rows that repeat the prompt.

    Args:
      index: from ``check_outcomes``, ``[B, N]``; rows are independent.
      laws: as there.
    """
    return [
        chi_square(count_outcomes(law, index[r :: len(laws), lane]), law.prob).p_value
        for r, law in enumerate(laws)
        for lane in range(index.shape[1])
    ]


def independence_p_values(
    index: np.ndarray, laws: Sequence[Law], lanes: bool = False
) -> list[float]:
    """Tests, for each prompt, that two rows are drawn independently, and two lanes of a row too.

    Outcomes are merged, likeliest first, into at most six groups.

    Args:
      index: from ``check_outcomes``, ``[B, N]``.
      laws: as there.
      lanes: whether lanes are to be independent.
    """
    p_values = []
    for r, law in enumerate(laws):
        order = np.argsort(-law.prob, kind="stable")
        group = np.empty(len(order), np.int64)
        group[order] = np.minimum((np.cumsum(law.prob[order]) * 6).astype(np.int64), 5)
        merged = np.bincount(group, law.prob, minlength=6)
        drawn = group[index[r :: len(laws)]]
        if lanes and drawn.shape[1] > 1:
            p_values.append(independent(drawn[:, 0], drawn[:, 1], merged / merged.sum()).p_value)
        half = len(drawn) // 2
        pairs = drawn[:half, 0], drawn[half : 2 * half, 0]
        p_values.append(independent(*pairs, merged / merged.sum()).p_value)
    return p_values


def check_prefix_counts(index: np.ndarray, laws: Sequence[Law], spread: float) -> None:
    """How many of a row's N samples begin with a prefix of probability p: about N p, every time.

    Args:
      index: from ``check_outcomes``, ``[B, N]``.
      laws: as there.
      spread: the count is less than this far from N p: 1 for a lattice, 2 for strata.
    """
    samples = index.shape[1]
    for r, law in enumerate(laws):
        drawn = index[r :: len(laws)]
        for size in range(1, law.tokens.shape[1] + 1):
            long_enough = law.length >= size
            prefixes = np.unique(law.tokens[long_enough, :size], axis=0)
            for prefix in prefixes:
                member = long_enough & (law.tokens[:, :size] == prefix).all(-1)
                expected = samples * law.prob[member].sum()
                gap = np.abs(member[drawn].sum(-1) - expected).max()
                assert gap < spread + 1e-3, (
                    f"samples: {expected:.3f} of {samples} are due to begin with "
                    f"{prefix.tolist()} (prompt {r}), and a row is {gap:.3f} off"
                )


def check_exact(index: np.ndarray, laws: Sequence[Law], paths: Sequence[Law]) -> None:
    """Every row gave the one sequence that is right.

    Args:
      index: from ``check_outcomes`` with ``laws``.
      laws: as there.
      paths: the right outcome of each prompt, from ``greedy_path``.
    """
    for r, (law, path) in enumerate(zip(laws, paths, strict=True)):
        want = path.tokens[0, : path.length[0]].tolist()
        (right,) = outcome_index(law, path.tokens, path.length)
        wrong = index[r :: len(laws)] != right
        if wrong.any():
            k = index[r :: len(laws)][wrong][0]
            got = law.tokens[k, : law.length[k]].tolist()
            raise AssertionError(f"tokens: got {got}, want {want} for prompt {r}")


def check_likeliest(index: np.ndarray, laws: Sequence[Law], tolerance: float = 1e-5) -> None:
    """Every row gave a sequence than which none that is possible is likelier under the model.

    Args:
      index: from ``check_outcomes`` with ``laws``.
      laws: as there.
      tolerance: of the difference between two log-probabilities that count as equal.
    """
    for r, law in enumerate(laws):
        best = int(np.argmax(np.where(law.prob > 0, law.log_prob, -np.inf)))
        got = law.log_prob[index[r :: len(laws)]]
        wrong = got < law.log_prob[best] - tolerance
        if wrong.any():
            text = law.tokens[best, : law.length[best]].tolist()
            raise AssertionError(
                f"tokens: got a log-probability of {got[wrong][0]:.5f}, and {text} has "
                f"{law.log_prob[best]:.5f} for prompt {r}"
            )


def check_same(got: DecodeOutput, want: DecodeOutput, what: str, rounding: float = 0.0) -> None:
    """Two outputs have the same tokens, lengths and ends, to the bit, and log-probabilities.

    Args:
      got: one output.
      want: the other.
      what: differs between the two.
      rounding: how far log-probabilities and scores may differ, relative to 1 + their size: 0
        for two calls of one compiled function. Another one may sum in another order.
    """
    for name in ("tokens", "length", "finished", "log_prob", "score"):
        x, y = np.asarray(getattr(got, name)), np.asarray(getattr(want, name))
        assert x.shape == y.shape, f"{what}: {name} has shape {x.shape}, not {y.shape}"
        if rounding and x.dtype == np.float32:
            with np.errstate(invalid="ignore"):
                wrong = (x != y) & ~(np.abs(x - y) <= rounding * (1 + np.abs(y)))
        else:
            wrong = x != y
        assert not wrong.any(), (
            f"{what}: {name} {first(wrong)} is {x[wrong][0]}, not {y[wrong][0]}; "
            f"{wrong.sum()} of {wrong.size} differ"
        )


def first(wrong: np.ndarray) -> str:
    """The index of the first True."""
    return str([int(i) for i in np.argwhere(wrong)[0]])
