"""What the ledger compiles by default: the settings that its page reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.tpu_ledger.rows import Setting

LONG: Mapping[str, Any] = {"prompt_length": 1024, "max_new_tokens": 1024}


def grid() -> Iterator[Setting]:
    """All settings, the most telling first."""
    main = ("greedy", "beam_search", "arithmetic_sample", "sample")
    # The largest models on whole slices, and on the smallest that hold them.
    yield Setting("greedy", "Llama 70B", "v5e:16x16", (16, 16), 64, **LONG)
    yield Setting("greedy", "T5 1.1 XXL", "v5e:2x4", (1, 8), 8)
    yield Setting("greedy", "Llama 70B", "v6e:16x16", (16, 16), 64, **LONG)
    yield Setting("greedy", "Llama 70B", "v5e:4x4", (1, 16), 64, **LONG)
    yield Setting("greedy", "Llama 70B", "v6e:2x4", (1, 8), 64, **LONG)
    yield Setting("greedy", "T5 1.1 XXL", "v5e:2x4", (1, 2), 8)
    # Bytes of a step on one chip, and where the weights are on eight.
    for strategy in main:
        yield Setting(strategy, "Llama 1B", "v5e:2x4", (1, 1), 8)
    yield Setting("greedy", "Llama 1B", "v5e:2x4", (1, 8), 8)
    for batch in (64, 1):
        for strategy in main:
            yield Setting(strategy, "Llama 1B", "v5e:2x4", (1, 1), batch)
    yield Setting("beam_search", "Llama 1B, 4 separate layers", "v5e:2x4", (1, 1), 64)
    for strategy in main[1:]:
        yield Setting(strategy, "Llama 1B", "v5e:2x4", (1, 8), 8)
    # Rows over ``data``, weights over ``model``.
    for strategy in ("greedy", "beam_search", "speculative_sample"):
        yield Setting(strategy, "Llama 1B", "v5e:2x4", (2, 4), 64)
    yield Setting("beam_search", "T5 1.1 base", "v5e:2x4", (2, 4), 64)
    yield Setting("greedy", "Llama 8B", "v5e:2x4", (1, 4), 8)
    # Weights of 8 and 4 bits.
    for weights in ("int8", "int4"):
        yield Setting("greedy", "Llama 8B", "v5e:2x4", (1, 1), 8, weights=weights)
    yield Setting("greedy", "Llama 70B", "v5e:2x4", (1, 8), 8, weights="int8")
    yield Setting("greedy", "Llama 70B", "v5e:2x4", (1, 4), 8, weights="int4")
    # Other generations, and the strategies that are left.
    yield Setting("greedy", "Llama 70B", "v5p:4x4x8", (16, 8), 64, **LONG)
    yield Setting("greedy", "Llama 70B", "v4:2x2x4", (2, 16), 64, **LONG)
    yield Setting("beam_search", "Llama 8B", "v5e:2x4", (1, 8), 8)
    yield Setting("sample, top-k and top-p", "Llama 1B", "v5e:2x4", (1, 8), 8)
    for strategy in ("beam_sample", "diverse_beam_search", "stochastic_beam_search"):
        yield Setting(strategy, "Llama 1B", "v5e:2x4", (1, 8), 8)
    # A mixture of experts.
    yield Setting("greedy", "Qwen3 30B, 4 separate layers", "v5e:2x4", (1, 8), 8)
