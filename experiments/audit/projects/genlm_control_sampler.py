"""genlm-control: weighted texts of its token samplers, on a potential that is a table.

A weighted text is kept with a probability that is proportional to its weight. What is kept follows
the target if texts and weights are properly weighted. Nothing is resampled, so that particles are
independent.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from genlm.control import AWRS, BoolFSA, JsonSchema, Potential, direct_token_sampler
from harness import Case, length, letters, main, settings, table, vocab_size

Sampler = Callable[[Potential, Potential, int], Any]
PARTICLES = 500  # of a call


class Table(Potential):
    """The model: a token depends on the one before; the prompt is the first letter."""

    def __init__(self, rows: np.ndarray, vocabulary: str) -> None:
        self.log_probs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        super().__init__([letter.encode() for letter in vocabulary])

    def row(self, context: list[bytes]) -> np.ndarray:
        return self.log_probs[self.lookup[context[-1]] if context else 0]

    async def prefix(self, context: list[bytes]) -> float:
        tokens = [self.lookup[token] for token in context]
        return float(sum(self.log_probs[a, b] for a, b in zip([0, *tokens], tokens, strict=False)))

    async def complete(self, context: list[bytes]) -> float:
        return await self.prefix(context) + float(self.row(context)[-1])

    async def logw_next(self, context: list[bytes]) -> Any:
        return self.make_lazy_weights(self.row(context))


def weighted(made: Sampler) -> Callable[[Case, int], list[str]]:
    def sampler(case: Case, samples: int) -> list[str]:
        temperature = settings(case, temperature=1.0)["temperature"]
        rows = table(case).astype(np.float64) / temperature
        model = Table(rows, letters(case, range(vocab_size(case) - 1)))
        if "schema" in case:
            condition = JsonSchema(case["schema"])
        else:
            condition = BoolFSA.from_regex("|".join(case["texts"]))
        condition = condition.coerce(model, f=b"".join)
        np.random.seed(case["seed"])
        chosen: list[str] = []
        weights: list[float] = []

        async def draw() -> None:
            for seed in range(-(-samples // PARTICLES)):
                sampler = made(model, condition, seed)
                found = await sampler.smc(
                    n_particles=PARTICLES, ess_threshold=0, max_tokens=2 * length(case)
                )
                for text, weight in zip(found.contexts, np.exp(found.log_weights), strict=True):
                    is_ended = not isinstance(text[-1], bytes)
                    chosen.append(b"".join(text[:-1]).decode() if is_ended else "unfinished")
                    weights.append(weight)

        asyncio.run(draw())
        chances = np.array(weights) / max(weights)
        kept = np.random.default_rng(case["seed"]).random(len(chosen)) < chances
        return [text for text, is_kept in zip(chosen, kept, strict=True) if is_kept]

    return sampler


main(
    {
        "direct_token_sampler": weighted(
            lambda model, condition, seed: direct_token_sampler(model * condition)
        ),
        "AWRS": weighted(lambda model, condition, seed: AWRS(model, condition, seed=seed)),
    }
)
