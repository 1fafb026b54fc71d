"""What ``--list`` prints: the strategies, their settings and the transforms."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from decoding_jax.registry import STRATEGIES
from decoding_jax.shell.options import TRANSFORMS, settings_of


def lines(strategy: str | None) -> Iterator[str]:
    """The lines that describe all strategies, or one of them with its whole documentation.

    Example:
      >>> next(lines(None))
      'arithmetic_sample --num_samples 4 --points lattice --max_new_tokens 64'
    """
    if strategy is not None:
        yield _options(strategy)
        yield ""
        yield inspect.getdoc(STRATEGIES[strategy].function) or ""
        return
    for name in STRATEGIES:
        summary = (inspect.getdoc(STRATEGIES[name].function) or "").splitlines()[0]
        yield _options(name)
        yield f"    {summary}"
    yield ""
    yield f"transforms, in the order given: {' '.join(f'--{name}' for name in TRANSFORMS)}"


def _options(strategy: str) -> str:
    settings = [f"--{name} {value}" for name, value in settings_of(strategy).items()]
    entry = STRATEGIES[strategy]
    drafter = ["--drafter DIR"] if entry.drafts else []
    takes_phrases = "constraints" in inspect.signature(entry.function).parameters
    phrases = ["--phrase TEXT"] if takes_phrases else []
    return " ".join([strategy, *drafter, *phrases, *settings])
