"""Speculative sampling beside plain decoding (Leviathan et al. 2022, Chen et al. 2023).

    python -m experiments.papers.speculative --gin_file=configs/papers/speculative.gin

Every input is decoded alone, plainly by the target, plainly by the draft, and by speculation with
each K, in turn and several times. Decodings of a single token are timed among them; what they take
is not the loop's. The tables show quality and time beside those of plain decoding, the acceptance
rate of each domain, the percentiles of a token's latency, and over K the time of a token, the
tokens of a loop over K + 1 and the time of a loop, beside what theory predicts. The experiment
continues where it was killed, and writes ``speculative.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import decoding_jax
from decoding_jax import loop, transforms
from decoding_jax.text import completions
from experiments.benchmarks.speculative import call
from experiments.benchmarks.timing import interleaved, median_ratio
from experiments.papers import command, speculative_report, speculative_results
from experiments.papers.decoding import Decoder, keys_of
from experiments.papers.metrics import Scores
from experiments.papers.options import Options
from experiments.papers.records import Records
from experiments.papers.results import versions, write


def run(
    options: Options,
    draft: tuple[Any, Any],
    draft_name: str,
    metrics: Sequence[str] = ("bleu", "rougeL"),
    settings: Sequence[Sequence[float]] = ((0.0, 1.0), (1.0, 0.8), (0.8, 0.95)),
    sizes: Sequence[int] = (1, 2, 4, 7),
    table_size: int = 4,
    verifier: str = "token",
    repeats: int = 3,
) -> dict[str, Any]:
    """Runs the experiment.

    Args:
      options: those of every experiment; its model is the target.
      draft: a model of the same vocabulary and its tokenizer.
      draft_name: what the results call it.
      metrics: names of ``metrics.METRICS``.
      settings: pairs of a temperature and a top-p; temperature 0 is greedy decoding.
      sizes: the numbers K of drafted tokens.
      table_size: the K of the first tables, one of ``sizes``.
      verifier: of sampling; greedy decoding is verified by ``greedy``.
      repeats: how often each decoding of an input is timed; the median counts.

    Returns:
      What ``speculative.json`` contains.

    Raises:
      ValueError: for settings that are not as described.
    """
    if table_size not in sizes:
        raise ValueError(f"table_size: expected one of sizes, {list(sizes)}, got {table_size}")
    if repeats < 1:
        raise ValueError(f"repeats: expected 1 or more, got {repeats}")
    decoder = options.decoder()
    scores = Scores(metrics, options.task.references)
    described = options.described(
        draft=draft_name,
        metrics=list(metrics),
        settings=[list(pair) for pair in settings],
        sizes=list(sizes),
        table_size=table_size,
        verifier=verifier,
        repeats=repeats,
    )
    contest = Contest(decoder, draft[0], scores, sizes, verifier, repeats, options.seed)
    work: dict[str, Callable[[], Any]] = {
        "costs": functools.partial(block_costs, decoder, draft[0], sizes, repeats)
    }
    for pair in settings:
        for i in range(len(options.task.inputs)):
            name = f"{speculative_results.label(pair)}, input {i}"
            work[name] = functools.partial(contest, pair, i, table_size)
    folder = options.folder
    made = Records(folder, described).complete(work)
    measured: dict[str, list[Any]] = {}
    for name, value in made.items():
        if name != "costs":
            measured.setdefault(name.rpartition(", input ")[0], []).append(value)
    data = {
        "experiment": "speculative sampling",
        **described,
        "inputs_cut": decoder.cut,
        "versions": versions(),
        "results": speculative_results.analyse(
            measured, made["costs"], described, options.task.domains
        ),
    }
    write(folder, "speculative", data, speculative_report.markdown, speculative_report.plot)
    return data


def block_costs(
    decoder: Decoder, draft: Any, sizes: Sequence[int], repeats: int
) -> dict[str, float]:
    """v for each K, and as ``operations`` those of a call of the draft over one of the target.

    v is the time of a call of the target with K + 1 tokens over that with one.
    """
    model, prompt = decoder.bind([0])
    steps = 32

    @jax.jit
    def begin(model: Any) -> Any:
        return model.prefill(*prompt, lanes=1, slots=steps + max(sizes) + 1)[1]

    cache = begin(model)
    runs = {str(n): call(model, cache, 1, n, steps) for n in (1, *(size + 1 for size in sizes))}
    seconds = interleaved(runs, max(15, repeats))
    found = {str(size): median_ratio(seconds, str(size + 1), "1") for size in sizes}
    drafting, _ = decoder.bind([0], model=draft)
    return {**found, "operations": operations(drafting, prompt) / operations(model, prompt)}


def operations(model: Any, prompt: Any) -> float:
    """The floating-point operations of a call with one token, by the compiler's count."""
    token, start = np.ones((1, 1, 1), np.int32), np.zeros((1, 1), np.int32)
    _, cache = jax.eval_shape(lambda m: m.prefill(*prompt, lanes=1, slots=2), model)
    one = jax.jit(lambda m, cache: m.extend(cache, token, start)).lower(model, cache)
    costs: Any = one.compile().cost_analysis()
    return float(costs["flops"])


class Contest:
    """Decodes one input in all ways, in turn."""

    def __init__(
        self,
        decoder: Decoder,
        draft: Any,
        scores: Scores,
        sizes: Sequence[int],
        verifier: str,
        repeats: int,
        seed: int,
    ):
        self._decoder, self._draft, self._scores = decoder, draft, scores
        self._sizes, self._verifier = sizes, verifier
        self._repeats, self._seed = repeats, seed

    def __call__(self, pair: Sequence[float], input_: int, table_size: int) -> dict[str, Any]:
        """Tokens, seconds, scores and counts of each way; latencies of two of them.

        ``first`` has the seconds of decoding a single token: prefills, and what surrounds the loop.
        """
        temperature, top_p = pair
        greedy = temperature == 0
        target, prompt = self._decoder.bind([input_])
        draft, draft_prompt = self._decoder.bind([input_], model=self._draft)
        limits = self._decoder.limits
        common: dict[str, Any] = dict(limits)
        if not greedy:
            common["transform"] = transforms.chain(
                transforms.temperature(temperature), transforms.top_p(top_p)
            )
        key = keys_of(self._seed, f"{temperature} {top_p}", [input_])

        def plain(model: Any, prompt: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
            if greedy:
                return decoding_jax.greedy, (model, prompt), common
            return decoding_jax.sample, (model, prompt, key), common

        ways = {"target": plain(target, prompt), "draft": plain(draft, draft_prompt)}
        for size in self._sizes:
            settings = {
                **common,
                "num_draft_tokens": size,
                "verifier": "greedy" if greedy else self._verifier,
            }
            arguments = (target, draft, prompt, None if greedy else key)
            ways[str(size)] = decoding_jax.speculative_sample, arguments, settings
        firsts = {"target": "target", "draft": "draft", "speculation": str(table_size)}
        timed = dict(ways)
        for name, way in firsts.items():
            strategy, arguments, settings = ways[way]
            timed[f"first {name}"] = strategy, arguments, {**settings, "max_new_tokens": 1}
        outputs: dict[str, Any] = {}
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        for name, (strategy, arguments, settings) in timed.items():  # compiles what has to be
            outputs[name] = jax.device_get(strategy(*arguments, **settings))
        for _ in range(self._repeats):
            for name, (strategy, arguments, settings) in timed.items():
                start = time.perf_counter()
                jax.block_until_ready(strategy(*arguments, **settings))
                seconds[name].append(round(time.perf_counter() - start, 6))
        made: dict[str, Any] = {
            "first": {name: statistics.median(seconds[f"first {name}"]) for name in firsts}
        }
        for name in ways:
            output = outputs[name]
            context = [self._decoder.context(input_)]
            ((completion,),) = completions(self._decoder.tokenizer, output, 1, context)
            value: dict[str, Any] = {
                "seconds": statistics.median(seconds[name]),
                "tokens": int(output.length[0, 0]),
                "scores": {k: v[0] for k, v in self._scores(input_, [completion.text]).items()},
            }
            if name.isdecimal():
                counts = ("accepted", "rejected", "blocks", "emitted")
                value |= {c: int(np.sum(getattr(output.info, c))) for c in counts}
            made[name] = value
        for name in ("target", str(table_size)):
            made[name]["latencies"] = self._latencies(*ways[name])
        return made

    def _latencies(
        self, strategy: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]
    ) -> list[float]:
        """Milliseconds of every token but the first: those of its loop over the loop's tokens."""
        model, *drafter, prompt, key = arguments if len(arguments) > 2 else (*arguments, None)
        if drafter:
            settings = {**settings, "drafter": drafter[0]}
        found: list[float] = []
        tokens, start = 0, 0.0
        for output in loop.stream(strategy, model, prompt, key, **settings):
            length = int(output.length[0, 0])
            new, now = length - tokens, time.perf_counter()
            if tokens and new:  # Programs are compiled before the first token is there.
                found += [round(1e3 * (now - start) / new, 4)] * new
            tokens, start = length, time.perf_counter()
        return found


if __name__ == "__main__":
    sys.exit(command.main("experiments.papers.speculative"))
