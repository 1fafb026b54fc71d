"""How much of the variance of independent samples no lattice of N removes.

A sample of a lattice of N is alone once its prefix has a probability of 1/N or less, and draws the
rest of its tokens independently of all other samples (see ``decoding_jax.codes.arithmetic``). Let A
be that prefix, or the whole text if it ends before, and f the score of the text. Given the prefixes
of all N samples their other tokens are independent, so the variance of the mean of N scores is

    E[Var(f | A)] / N + Var(the mean of E[f | A] over the N prefixes),

and that of independent samples is Var(f) / N. So the ratio of the two standard deviations is at
least the square root of E[Var(f | A)] / Var(f): what is decided after a sample is alone. The second
term is what the lattice spreads. If s is a sample and s' another text with the same A, whose tokens
after A are drawn anew, then E[Var(f | A)] is half the mean square of f(s) - f(s').

This holds for a call for N samples. Those of a part of a larger lattice follow their codes longer
(``arithmetic_estimates.variance_lattice``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax
from decoding_jax.base import Prompt
from decoding_jax.pytrees import pytree
from decoding_jax.text.continuations import continuation
from decoding_jax.text.token_scores import token_scores
from experiments.papers.decoding import Decoder, keys_of
from experiments.papers.metrics import Scores


@pytree
@dataclasses.dataclass(frozen=True)
class Transformed:
    """A model whose logits are transformed, for transforms that read no prefix."""

    model: Any
    transform: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model, name)

    def prefill(self, *args: Any, **settings: Any) -> Any:
        return self._transformed(self.model.prefill(*args, **settings))

    def extend(self, *args: Any, **settings: Any) -> Any:
        return self._transformed(self.model.extend(*args, **settings))

    def _transformed(self, made: Any) -> Any:
        output, cache = made
        return output._replace(logits=self.transform(output.logits, None)), cache


@jax.jit
def _log_probs(model: Transformed, prompt: Prompt, tokens: Any) -> Any:
    return token_scores(model, prompt, tokens).log_prob


def alone_after(log_probs: Sequence[float], count: int) -> int:
    """The number of tokens after which a sample of a lattice of N is alone, at most all of them.

    Example:
      >>> alone_after(np.log([0.5, 0.5, 0.5]), 4), alone_after(np.log([0.5]), 4)
      (2, 1)
    """
    below = np.flatnonzero(np.cumsum(log_probs) <= -np.log(count) + 1e-9)
    return int(below[0]) + 1 if len(below) else len(log_probs)


def measure_bound(
    decoder: Decoder,
    scores: Scores,
    transform: Any,
    counts: Sequence[int],
    samples: int,
    name: str,
    inputs: range,
    seed: int,
) -> list[dict[str, list[float]]]:
    """Estimates E[Var(f | A)] of every metric: for each input, one number for each N.

    Args:
      decoder: the model and the inputs.
      scores: the metrics.
      transform: applied before tokens are drawn, such as a temperature. It must read no prefix.
      counts: the numbers N.
      samples: how many pairs of texts the estimate of an input is from.
      name: what the keys belong to.
      inputs: the numbers of the inputs.
      seed: of the keys.
    """
    keys = keys_of(seed, name, inputs)
    first = decoder(
        functools.partial(_sample, transform=transform, num_samples=samples), inputs, keys
    )
    model, prompt = decoder.bind(inputs)
    scored = _log_probs(Transformed(model, transform), prompt, first.output.tokens)
    log_probs = jax.device_get(scored)
    found: list[dict[str, list[float]]] = [{} for _ in inputs]
    for count in counts:
        prefixes = [
            [
                c.tokens[: alone_after(log_probs[b, n, : len(c.tokens)], count)]
                for n, c in enumerate(row)
            ]
            for b, row in enumerate(first.completions)
        ]
        again = _continued(
            decoder, list(inputs), prefixes, transform, keys_of(seed, f"{name}, {count}", inputs)
        )
        for b, (input_, row) in enumerate(zip(inputs, first.completions, strict=True)):
            before = scores(input_, [c.text for c in row])
            after = scores(
                input_,
                # A text that was whole before its sample was alone is not drawn anew.
                [
                    c.text if len(prefix) == len(c.tokens) else text
                    for c, prefix, text in zip(row, prefixes[b], again[b], strict=True)
                ],
            )
            for metric, values in before.items():
                half = float(np.mean(np.square(np.subtract(values, after[metric]))) / 2)
                found[b].setdefault(metric, []).append(round(half, 4))
    return found


def _sample(model: Any, prompt: Any, keys: Any, **settings: Any) -> Any:
    return decoding_jax.sample(model, prompt, keys, **settings)


def _continued(
    decoder: Decoder,
    inputs: list[int],
    prefixes: list[list[list[int]]],
    transform: Any,
    keys: Any,
) -> list[list[str]]:
    """The text of every prefix with tokens that are drawn after it."""
    samples = len(prefixes[0])
    rows = [i for i in inputs for _ in range(samples)]
    forced = [prefix for row in prefixes for prefix in row]
    places = decoder.batch_size * samples
    rows += rows[:1] * (places - len(rows))
    forced += forced[:1] * (places - len(forced))
    model, prompt = decoder.bind(rows, places=places)
    length = decoder.limits["max_new_tokens"]
    given, start = np.asarray(prompt.tokens), np.asarray(prompt.length)
    tokens = np.pad(given, ((0, 0), (0, length)))
    for b, prefix in enumerate(forced):
        tokens[b, start[b] : start[b] + len(prefix)] = prefix
    lengths = start + np.asarray([len(prefix) for prefix in forced], np.int32)
    lane_keys = jax.vmap(lambda key: jax.random.split(key, samples))(keys).reshape(-1)
    lane_keys = lane_keys[np.minimum(np.arange(places), len(lane_keys) - 1)]
    output = jax.device_get(
        _sample(
            model,
            Prompt(jnp.asarray(tokens), jnp.asarray(lengths)),
            lane_keys,
            transform=transform,
            **decoder.limits,
        )
    )
    found = []
    for b in range(len(inputs) * samples):
        new = output.tokens[b, 0, : output.length[b, 0]].tolist()
        whole = [*forced[b], *new][:length]
        found.append(continuation(decoder.tokenizer, decoder.context(rows[b]), whole))
    return [found[i : i + samples] for i in range(0, len(found), samples)]
