"""The tier of each combination of a test's settings; see CONTRIBUTING.md for the three tiers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Case = tuple[Any, ...]


def combinations(
    cases: Iterable[Sequence[Any]],
    default: Iterable[Sequence[Any]] = (),
    covers: Callable[[Case], Iterable[Any]] = enumerate,
) -> list[Any]:
    """Parameters of a test: ``cases``, each with the mark of the tier that runs it.

    ``default`` has no mark. ``exhaustive`` are so many cases that, with those of ``default``,
    everything that ``covers`` finds in any case is in one of them: without it, each value of each
    setting. All other cases are marked ``release``.
    """
    cases, default = [tuple(case) for case in cases], {tuple(case) for case in default}
    missing = {x for case in cases for x in covers(case)}
    missing -= {x for case in default for x in covers(case)}
    exhaustive = set()
    while missing:
        best = max(cases, key=lambda case: len(missing.intersection(covers(case))))
        exhaustive.add(best)
        missing -= set(covers(best))

    def marks(case: Case) -> Any:
        if case in default:
            return ()
        return pytest.mark.exhaustive if case in exhaustive else pytest.mark.release

    return [pytest.param(*case, marks=marks(case)) for case in cases]


def of_table(
    table: Iterable[Any], exhaustive: Iterable[Any] = (), release: Iterable[Any] = ()
) -> list[Any]:
    """The names of a table, where an entry that is named in no tier is for every run."""
    later = {*exhaustive, *release}
    always = (name for name in table if name not in later)
    return values(*always, exhaustive=exhaustive, release=release)


# One strategy of each kind: a token a step, beams, a queue, particles, and drafts.
KINDS = ("sample", "beam_search", "best_k_search", "smc_sample", "speculative_sample")


def strategies(names: Iterable[str]) -> list[Any]:
    """The strategies for a law that each of them keeps: one of each kind for every run.

    The form of a strategy, as in "beam_search, lanes", is of the kind of its strategy.
    """
    names = list(names)
    return of_table(names, exhaustive=[n for n in names if n.split(",")[0] not in KINDS])


def values(*default: Any, exhaustive: Iterable[Any] = (), release: Iterable[Any] = ()) -> list[Any]:
    """Values of one setting: those for every run, for ``.ci/run``, and for ``.ci/run release``."""
    return [
        *default,
        *(pytest.param(value, marks=pytest.mark.exhaustive) for value in exhaustive),
        *(pytest.param(value, marks=pytest.mark.release) for value in release),
    ]
