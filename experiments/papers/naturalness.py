"""MAUVE (Pillutla et al. 2021) between completions and references, with a model that is at hand.

The paper's features are the hidden states of GPT-2. These are those of the model that decodes,
which was not trained to tell texts apart, so the values cannot be compared with published ones.
The package mauve-text computes MAUVE from them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Prompt
from decoding_jax.loop import model_calls
from decoding_jax.text import encode_batch
from experiments.papers.results import Estimate

SHUFFLED = "references with shuffled words"
"""The name of the row that shows what the features see of the order of words."""


def check(model: tuple[Any, Any]) -> None:
    """Tries what ``measure`` needs.

    Raises:
      ValueError: in one line, if mauve-text is not installed or the model returns no hidden states.
    """
    try:
        import mauve  # noqa: F401
    except ImportError as e:
        raise ValueError(
            "mauve: expected the package mauve-text, or False, got True without the package"
        ) from e
    features(model, ["a"], batch_size=1)


def features(
    model: tuple[Any, Any], texts: Sequence[str], max_tokens: int = 512, batch_size: int = 64
) -> np.ndarray:
    """The mean hidden state with which a model reads each text: float32 ``[n, D]``.

    A decoder reads the text as its prompt. An encoder-decoder reads it in its decoder, with an
    empty text as the input of the encoder.

    Args:
      model: the model and its tokenizer.
      texts: n texts.
      max_tokens: longer texts are cut to it.
      batch_size: how many texts are read together.

    Raises:
      ValueError: for a model that returns no hidden states.
    """
    network, tokenizer = model
    different = list(dict.fromkeys(texts))
    ends = list(tokenizer.eos_ids)[:1]
    ids = [(tokenizer.encode(text) or ends)[:max_tokens] for text in different]
    empty = tokenizer.encode("") or ends
    reader, start = encode_batch(network, [empty] * batch_size, len(empty))
    # An encoder-decoder starts from its start token, and a decoder from the text's own tokens.
    before = [] if reader is network else np.asarray(start.tokens)[0].tolist()
    width = len(before) + max(map(len, ids))
    found: list[np.ndarray] = []
    for first in range(0, len(ids), batch_size):
        rows = [before + row for row in ids[first : first + batch_size]]
        tokens = np.zeros((batch_size, width), np.int32)
        length = np.full(batch_size, len(before) + 1, np.int32)
        for b, row in enumerate(rows):
            tokens[b, : len(row)], length[b] = row, len(row)
        states = _means(reader, Prompt(jnp.asarray(tokens), jnp.asarray(length)), len(before))
        found.extend(np.asarray(states)[: len(rows)])
    at = {text: i for i, text in enumerate(different)}
    return np.stack(found)[[at[text] for text in texts]]


@functools.partial(jax.jit, static_argnums=2)
def _means(model: Any, prompt: Prompt, skipped: int) -> Any:
    _, hidden, _ = model_calls.prefill_with_hidden(model, prompt, lanes=1, slots=1)
    at = jnp.arange(prompt.tokens.shape[1])[None, :]
    real = (at >= skipped) & (at < prompt.length[:, None])
    weights = real.astype(jnp.float32) / jnp.sum(real, 1, keepdims=True).astype(jnp.float32)
    return jnp.einsum("bpd,bp->bd", hidden[:, 0].astype(jnp.float32), weights)


def measure(
    model: tuple[Any, Any],
    references: Sequence[Sequence[str]],
    sets: Mapping[str, Sequence[Sequence[str]]],
    size: int,
    max_tokens: int = 512,
    seed: int = 0,
    resamples: int = 100,
    max_inputs: int = 500,
) -> dict[str, Any]:
    """MAUVE between each strategy's completions of all inputs and all references.

    Strategies complete different numbers of texts, and MAUVE depends on their number. So of an
    input with more than ``size`` texts, ``size`` are drawn.

    Args:
      model: the model and its tokenizer, whose hidden states are the features.
      references: those of each input.
      sets: by strategy, the texts of each input, which may be none.
      size: the largest number of texts of an input.
      max_tokens: as in ``features``.
      seed: of the draws, the shuffled words, the clusters and the bootstrap.
      resamples: the number of resamples of the bootstrap over inputs, which computes the clusters
        anew each time.
      max_inputs: of more inputs, so many are taken, at even distances.

    Returns:
      ``references``, the number of texts that all are compared with; ``buckets``, the number of
      clusters; ``values`` and ``texts``, the MAUVE with its interval (None without a text) and the
      number of texts, by strategy. ``SHUFFLED`` has ``size`` references of each input, with their
      words in random order.
    """
    step = -(-len(references) // max_inputs)
    references = references[::step]
    rng = np.random.default_rng(seed)
    drawn = {
        SHUFFLED: [
            [_shuffled(text, rng) for text in itertools.islice(itertools.cycle(texts), size)]
            for texts in references
        ]
    }
    for name, rows in sets.items():
        drawn[name] = [
            [texts[i] for i in sorted(rng.permutation(len(texts))[:size])] for texts in rows[::step]
        ]
    every = [references, *drawn.values()]
    flat = [text for rows in every for texts in rows for text in texts]
    states = iter(features(model, flat, max_tokens))
    real, *others = [[[next(states) for _ in texts] for texts in rows] for rows in every]
    buckets = max(2, round(sum(map(len, references)) / 10))
    picks = rng.integers(0, len(references), (resamples, len(references)))

    def at(mine: Sequence[Sequence[Any]], inputs: Sequence[int]) -> float:
        p, q = ([state for i in inputs for state in rows[i]] for rows in (real, mine))
        return _mauve(np.asarray(p), np.asarray(q), buckets, seed) if q else np.nan

    values: dict[str, Estimate | None] = {}
    for name, mine in zip(drawn, others, strict=True):
        resampled = np.asarray([at(mine, pick) for pick in picks])
        resampled = resampled[np.isfinite(resampled)]
        values[name] = None
        if len(resampled):
            low, high = np.quantile(resampled, [0.025, 0.975])
            whole = at(mine, range(len(references)))
            values[name] = Estimate(whole, float(low), float(high))
    return {
        "references": sum(map(len, references)),
        "buckets": buckets,
        "values": values,
        "texts": {name: sum(map(len, rows)) for name, rows in drawn.items()},
    }


def _shuffled(text: str, rng: np.random.Generator) -> str:
    words = text.split()
    return " ".join(words[i] for i in rng.permutation(len(words)))


def _mauve(p: np.ndarray, q: np.ndarray, buckets: int, seed: int) -> float:
    import mauve

    found = mauve.compute_mauve(
        p_features=p,
        q_features=q,
        num_buckets=buckets,
        kmeans_num_redo=1,
        kmeans_max_iter=100,
        seed=seed,
    )
    return float(found.mauve)
