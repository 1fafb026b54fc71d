"""The measurements of the experiment on best-k search: texts, their scores and their times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax

from decoding_jax.estimators import choice, diversity
from decoding_jax.text import Completion, unique
from experiments.papers.best_k_results import RULES
from experiments.papers.decoding import Batch, Decode, Decoder, keys_of
from experiments.papers.metrics import Scores, metric


class Measure:
    """Decodes batches, and times them once their program is compiled.

    Args:
      decoder: the model and the inputs.
      scores: of the texts.
      first: the name of the metric that reranked texts are scored by.
      reranked: the strategies whose texts are reranked, and kept.
      seed: of the keys.
    """

    def __init__(
        self,
        decoder: Decoder,
        scores: Scores,
        first: str,
        reranked: Sequence[str],
        seed: int,
    ):
        self._decoder, self._scores, self._seed = decoder, scores, seed
        self._first, self._utility, self._reranked = first, metric(first), set(reranked)
        self._compiled: set[str] = set()

    def __call__(self, name: str, decode: Decode, rows: range) -> list[dict[str, Any]]:
        """The figures of each row.

        A batch that is not full is decoded with padding, and its seconds are not counted.
        """
        seconds, batch = self._timed(name, decode, rows)
        full = len(rows) == self._decoder.batch_size
        found = []
        for row, completions in zip(rows, batch.completions, strict=True):
            ended, kept = completed(completions), name in self._reranked
            value: dict[str, Any] = self.figures(row, ended, kept)
            if kept:
                value["texts"] = [c.text for c in ended]
            found.append(
                {
                    **value,
                    "seconds": seconds / len(rows) if full else None,
                    "calls": calls(batch),
                }
            )
        return found

    def _timed(self, name: str, decode: Decode, rows: range) -> tuple[float, Batch]:
        keys = keys_of(self._seed, name, rows)
        seconds = 0.0

        def timed(model: Any, prompt: Any, keys: Any, **limits: Any) -> Any:
            nonlocal seconds
            start = time.perf_counter()
            output = jax.block_until_ready(decode(model, prompt, keys, **limits))
            seconds = time.perf_counter() - start
            return output

        if name not in self._compiled:
            self._decoder(decode, rows, keys)
            self._compiled.add(name)
        batch = self._decoder(timed, rows, keys)
        return seconds, batch

    def figures(
        self, input_: int, ended: list[Completion], rerank: bool = False
    ) -> dict[str, float]:
        """The columns of the paper's table for one input; without a text, of an empty text."""
        texts = [c.text for c in ended] or [""]
        found: dict[str, float] = {"S": len(ended), "unique": len(unique(ended))}
        found |= {f"distinct-{n}": round(diversity.distinct_n(texts, n), 5) for n in (1, 2, 3)}
        for name, values in self._scores(input_, texts).items():
            found[name] = round(sum(values) / len(values), 4)
            found[f"{name} oracle"] = max(values)
        if rerank:
            chosen = reranked(ended, self._utility)
            values = self._scores(input_, list(chosen.values()))[self._first]
            found |= dict(zip(chosen, values, strict=True))
        return found


def reranked(ended: Sequence[Completion], utility: Any, candidates: int = 16) -> dict[str, str]:
    """The text that each rule chooses; an empty one if there is none.

    The rules are the log-probability of the text under the model, its mean over the tokens, and
    minimum Bayes risk among the different texts that are most probable.

    Args:
      ended: the completions of one input.
      utility: a metric of two texts, for minimum Bayes risk.
      candidates: how many of the most probable texts minimum Bayes risk compares.
    """
    ranked = unique(sorted(ended, key=lambda c: -c.log_prob))
    if not ranked:
        return dict.fromkeys(RULES, "")
    texts = [c.text for c in ranked[:candidates]]
    by_mean = max(ranked, key=lambda c: c.log_prob / max(len(c.tokens), 1))
    chosen = texts[0], by_mean.text, texts[choice.minimum_bayes_risk(texts, utility)]
    return dict(zip(RULES, chosen, strict=True))


def calls(batch: Batch) -> int | None:
    """The calls of the model in a search that counts them."""
    found = getattr(batch.output.info, "model_calls", None)
    return None if found is None else int(found)


def completed(row: Sequence[Completion]) -> list[Completion]:
    """The finished completions; of a best-k search, those among the first ``completed``."""
    count = getattr(row[0].info, "completed", len(row)) if row else 0
    return [c for c in row[: int(count)] if c.finished]
