"""What is measured: the settings, the most telling first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

OURS, TRANSFORMERS = "decoding_jax", "transformers"
OWN, SMALL, NARROW = (f"speculative_sample, {draft} draft" for draft in ("own", "small", "int8"))


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a row of the results is measured for.

    Attributes:
      model: a name of ``models.CONFIGS``.
      strategy: the name of a strategy; speculation has one for each draft.
      rows: the number of prompts.
      lanes: the number of samples or of beams of a row.
      prompt_length: the length of each prompt.
      new_tokens: the number of new tokens, of which the first comes from the prefill.
      weights: ``bfloat16``, ``int8`` or ``int4``.
      library: ``decoding_jax`` or ``transformers``.
    """

    model: str
    strategy: str
    rows: int
    lanes: int = 1
    prompt_length: int = 128
    new_tokens: int = 256
    weights: str = "bfloat16"
    library: str = OURS

    @property
    def sequences(self) -> int:
        return self.rows * self.lanes

    def name(self) -> str:
        """One line that tells settings apart."""
        return (
            f"{self.library} | {self.model} {self.weights} | {self.strategy}"
            f" | {self.rows} x {self.lanes} | {self.prompt_length}+{self.new_tokens}"
        )


def grid() -> Iterator[Setting]:
    """All settings of a run: this library's, then the peer's."""
    for model in ("1B", "8B"):
        for rows in (8, 1, 64):
            yield Setting(model, "greedy", rows)
        yield Setting(model, "greedy", 8, prompt_length=4096)
        yield Setting(model, "beam_search", 8, 4)
        yield Setting(model, "greedy", 32)
        yield Setting(model, "sample", 64)
        yield Setting(model, "sample", 1, 64)
        yield Setting(model, "arithmetic_sample", 1, 64)
        for rows in (8, 1):
            yield Setting(model, SMALL, rows)
            yield Setting(model, OWN, rows)
            yield Setting(model, "contrastive_search", rows)
        yield Setting(model, "greedy", 1, prompt_length=4096)
        yield Setting(model, "greedy", 64, prompt_length=4096)
        for rows in (8, 1):
            yield Setting(model, NARROW, rows)
        for weights in ("int8", "int4"):
            for rows in (8, 1, 64):
                yield Setting(model, "greedy", rows, weights=weights)
    for model in ("1B", "8B"):
        for rows in (8, 1, 64):
            yield Setting(model, "greedy", rows, library=TRANSFORMERS)
        yield Setting(model, "greedy", 8, prompt_length=4096, library=TRANSFORMERS)
        yield Setting(model, "sample", 64, library=TRANSFORMERS)
        yield Setting(model, "beam_search", 8, 4, library=TRANSFORMERS)


def quick() -> Iterator[Setting]:
    """A few strategies on a network so small that they measure nothing."""
    for strategy, lanes in (("greedy", 1), ("sample", 2), ("beam_search", 2), (SMALL, 1)):
        yield Setting("tiny", strategy, 2, lanes, 8, 8)
