"""Arithmetic sampling beside independent sampling and beam search (Vilnis et al. 2023).

    python -m experiments.papers.arithmetic --gin_file=configs/papers/arithmetic.gin

A run decodes N samples of every input. The experiment measures how much the mean score of N
samples varies from run to run, the best score of N samples beside that of N beams, the diversity
of n-grams, other point sets beside the lattice, and how long a prefix two samples share. It
continues where it was killed, and writes ``arithmetic.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import decoding_jax
from decoding_jax import transforms
from experiments.papers import arithmetic_report, arithmetic_results, command, samplers
from experiments.papers.arithmetic_bound import measure_bound
from experiments.papers.arithmetic_estimates import diversity_of, label
from experiments.papers.arithmetic_variants import measure_surprise
from experiments.papers.decoding import Decode, Decoder, batches, keys_of
from experiments.papers.lattice import deterministic
from experiments.papers.metrics import Scores
from experiments.papers.options import Options
from experiments.papers.records import Records
from experiments.papers.results import versions, write


class Cell(NamedTuple):
    """One way of decoding.

    Attributes:
      decode: the strategy.
      runs: how often each input is decoded.
      pairs: of how many distances the shared prefixes are measured.
      are_independent: whether any of the samples are a run of so many.
    """

    decode: Decode
    runs: int
    pairs: int = 0
    are_independent: bool = False


def run(
    options: Options,
    metrics: Sequence[str] = ("bleu", "rougeL"),
    settings: Sequence[Sequence[float | None]] = ((0.5, None), (1.0, None)),
    max_samples: int = 128,
    runs: int = 8,
    point_sets: Sequence[str] = ("stratified", "antithetic", "radical_inverse", "deterministic"),
    point_counts: Sequence[int] = (8, 32),
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    beams: Sequence[int] = (2, 4, 8, 16, 32),
    diversity_count: int = 8,
    bound_counts: Sequence[int] = (2, 8, 32, 128),
    bound_samples: int = 16,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      options: those of every experiment.
      metrics: names of ``metrics.METRICS``, and ``log_prob``, the model's own of a text.
      settings: pairs of a temperature and a top-k, or None for the whole vocabulary.
      max_samples: the largest N, a power of 2. Every power of 2 up to it is measured.
      runs: how often each input is decoded with each point set, 2 or more.
      point_sets: names of the library's point sets, and ``deterministic``, the lattice without a
        random shift.
      point_counts: the N at which other point sets are measured, at the last of ``settings``.
      variants: by name, further settings of ``arithmetic_sample``, or as ``sampler`` another one:
        a name of ``samplers.SAMPLERS``, or ``by embedding``, the lattice in that order of tokens.
        Each is measured beside the lattice, at all ``settings`` and N, and so is the lattice with a
        control variate.
      beams: the numbers of beams; those of stochastic beam search are drawn at the last of
        ``settings``.
      diversity_count: the N at which diversity is measured, one of ``beams``.
      bound_counts: the N for which the lower bound of the lattice's deviation is estimated;
        none skips it.
      bound_samples: how many samples of an input that bound is from.
      batch_size: the number of rows of a batch, each with N lanes.

    Returns:
      What ``arithmetic.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    counts = [2**i for i in range(1, max_samples.bit_length())]
    if max_samples < 2 or max_samples != counts[-1]:
        raise ValueError(f"max_samples: expected a power of 2, 2 or more, got {max_samples}")
    if runs < 2:
        raise ValueError(f"runs: expected 2 or more, got {runs}")
    if diversity_count not in beams or diversity_count not in counts:
        raise ValueError(
            f"diversity_count: expected one of beams, {list(beams)}, that is a power of 2 up to "
            f"max_samples, {max_samples}, got {diversity_count}"
        )
    for count in bound_counts:
        if count not in counts:
            raise ValueError(f"bound_counts: expected powers of 2 up to {max_samples}, got {count}")
    variants = {name: dict(given) for name, given in (variants or {}).items()}
    decoder = options.decoder(batch_size)
    scores = Scores([name for name in metrics if name != "log_prob"], options.task.references)
    described = options.described(
        metrics=list(metrics),
        settings=[list(pair) for pair in settings],
        max_samples=max_samples,
        runs=runs,
        point_sets=list(point_sets),
        point_counts=list(point_counts),
        **({"variants": variants} if variants else {}),
        beams=list(beams),
        diversity_count=diversity_count,
        bound_counts=list(bound_counts),
        bound_samples=bound_samples,
        batch_size=batch_size,
    )
    given = {name: _variant(of, decoder.model) for name, of in variants.items()}
    found = cells(settings, max_samples, runs, point_sets, point_counts, given, beams)
    work: dict[str, Callable[[], Any]] = {}
    for name, cell in found.items():
        for rows in batches(len(options.task.inputs) * cell.runs, batch_size):
            work[f"{name}, rows {rows.start} to {rows.stop}"] = functools.partial(
                measure, decoder, scores, name, cell, rows, diversity_count, options.seed
            )
    for pair in settings if variants else ():
        name = f"lattice, {label(pair)}"
        for rows in batches(len(options.task.inputs) * runs, batch_size):
            work[f"surprise, {label(pair)}, rows {rows.start} to {rows.stop}"] = functools.partial(
                measure_surprise, decoder, found[name], _transform(pair), name, rows, options.seed
            )
    for pair in settings if bound_counts else ():
        name = f"bound, {label(pair)}"
        for rows in batches(len(options.task.inputs), batch_size):
            work[f"{name}, rows {rows.start} to {rows.stop}"] = functools.partial(
                measure_bound,
                decoder,
                scores,
                _transform(pair),
                bound_counts,
                bound_samples,
                name,
                rows,
                options.seed,
            )
    folder = options.folder
    made = Records(folder, described).complete(work)
    measured: dict[str, list[Any]] = {}
    for name, value in made.items():
        measured.setdefault(name.rpartition(", rows ")[0], []).extend(value)
    data = {
        "experiment": "arithmetic sampling",
        **described,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "results": arithmetic_results.analyse(measured, found, described),
    }
    write(folder, "arithmetic", data, arithmetic_report.markdown, arithmetic_report.plot)
    return data


def cells(
    settings: Sequence[Sequence[float | None]],
    max_samples: int,
    runs: int,
    point_sets: Sequence[str],
    point_counts: Sequence[int],
    variants: Mapping[str, Callable[..., Any]],
    beams: Sequence[int],
) -> dict[str, Cell]:
    """All ways of decoding by name."""
    found = {}
    for pair in settings:
        of = label(pair)
        iid = _sampled("iid", pair, max_samples)
        found[f"iid, {of}"] = Cell(iid, 1, pairs=1, are_independent=True)
        found[f"lattice, {of}"] = Cell(_sampled("lattice", pair, max_samples), runs)
        for name, sampler in variants.items():
            given = {"num_samples": max_samples, "transform": _transform(pair)}
            found[f"{name}, {of}"] = Cell(functools.partial(sampler, **given), runs)
    last = settings[-1]
    for points in point_sets:
        for count in point_counts:
            found[f"{points}, {count}"] = Cell(_sampled(points, last, count), runs)
    found["deterministic"] = Cell(
        _sampled("deterministic", last, max_samples), 1, pairs=max_samples - 1
    )
    for count in beams:
        found[f"beam search, {count}"] = Cell(_beams(decoding_jax.beam_search, count, None), 1)
        found[f"stochastic beam search, {count}"] = Cell(
            _beams(decoding_jax.stochastic_beam_search, count, last), 1
        )
    return found


def _transform(pair: Sequence[float | None]) -> Any:
    temperature, top_k = pair
    parts: list[Any] = [transforms.temperature(temperature)]
    if top_k is not None:
        parts.append(transforms.top_k(int(top_k)))
    return transforms.chain(*parts)


def _variant(given: Mapping[str, Any], model: Any) -> Callable[..., Any]:
    """The sampler of one of ``variants``."""
    name = given.get("sampler")
    if name is None:
        return functools.partial(decoding_jax.arithmetic_sample, **given)
    if name == "by embedding":
        table = np.asarray(model.params["token_embedder"]["embedding"], np.float64)
        return functools.partial(samplers.ordered, ids=jnp.asarray(samplers.by_embedding(table)))
    if name not in samplers.SAMPLERS:
        known = ", ".join(samplers.SAMPLERS)
        raise ValueError(f"variants: expected a sampler of by embedding, {known}, got {name}")
    return samplers.SAMPLERS[name]


def _sampled(points: str, pair: Sequence[float | None], count: int) -> Decode:
    chosen = deterministic if points == "deterministic" else points

    def decode(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
        return decoding_jax.arithmetic_sample(
            model,
            prompt,
            keys,
            num_samples=count,
            points=chosen,
            transform=_transform(pair),
            **limits,
        )

    return decode


def _beams(search: Callable[..., Any], count: int, pair: Sequence[float | None] | None) -> Decode:
    def decode(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
        if pair is None:
            return search(model, prompt, beam_size=count, num_return=count, **limits)
        return search(model, prompt, keys, beam_size=count, transform=_transform(pair), **limits)

    return decode


def measure(
    decoder: Decoder,
    scores: Scores,
    name: str,
    cell: Cell,
    rows: range,
    diversity_count: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Decodes some rows of a cell: scores, diversity and shared prefixes of each."""
    inputs = [row // cell.runs for row in rows]
    batch = decoder(cell.decode, inputs, keys_of(seed, name, rows))
    found = []
    log_probs = np.asarray(batch.output.log_prob, np.float64).round(4).tolist()
    for b, (input_, row) in enumerate(zip(inputs, batch.completions, strict=True)):
        texts = [completion.text for completion in row]
        step = max(1, len(texts) // diversity_count)  # Every step-th of a lattice are a lattice.
        sets = [texts[i::step][:diversity_count] for i in range(step)]
        diversity = [diversity_of(each) for each in (sets if cell.are_independent else sets[:1])]
        value: dict[str, Any] = {
            "scores": {**scores(input_, texts), "log_prob": log_probs[b]},
            "diversity": round(sum(diversity) / len(diversity), 4),
        }
        if cell.pairs:
            tokens = [completion.tokens for completion in row]
            value["prefixes"] = shared_prefixes(tokens, cell.pairs)
        found.append(value)
    return found


def shared_prefixes(tokens: Sequence[Sequence[int]], pairs: int) -> list[float]:
    """The mean number of leading tokens that samples i and i + d share, for d = 1 to ``pairs``.

    Example:
      >>> shared_prefixes([[1, 2], [1, 3], [4]], 2)
      [0.5, 0.0]
    """
    padded = np.full((len(tokens), max(map(len, tokens))), -1)
    for i, row in enumerate(tokens):
        padded[i, : len(row)] = row
    found = []
    for distance in range(1, pairs + 1):
        first, second = padded[:-distance], padded[distance:]
        same = (first == second) & (first >= 0)
        found.append(round(float(np.cumprod(same, 1).sum(1).mean()), 4))
    return found


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.arithmetic"))
