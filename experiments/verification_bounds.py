"""How many drafted tokens each verifier of several drafts accepts, beside the optimum.

    python -m experiments.verification_bounds

Everything is computed exactly, by a sum over all sets of drafts of small models whose distributions
depend on the whole path. C drafts of K tokens are drawn independently from the draft. The optimum
is that of a linear program over all rules by which a verifier may accept a path among the drafts
and add one token, such that the output continued by the target has the target's distribution
(Thomas and Pal 2026, arXiv:2602.16961, state it for one draft and for several). The rules are

- ``token``: Miao et al. 2023, "SpecInfer", Algorithm 2, which is ``verifier="token"``;
- ``traversal``: from the leaves to the root, as Weng et al. 2025, "Traversal Verification for
  Speculative Tree Decoding" (arXiv:2505.12398), on the tree of the drafts' distinct paths, in a
  form for independent draws;
- ``ordered``: block verification of one path, to which Thomas and Pal reduce several. At each node,
  the tokens are ordered by p / q, and the last draft in the lexicographic order is selected;
- ``block``: block verification of one path, selected as ``verifiers/select_path.py`` explains,
  which is ``verifier="block"``.

``distance`` is the mean total variation distance of the first token's distributions.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, sparse, special

from experiments import quick

Path = tuple[int, ...]
Drafts = tuple[Path, ...]
Outcome = tuple[Path, np.ndarray]
"""An accepted path, and the probability of each token after it (and of this path)."""

SIZES = ((3, 1, 2), (4, 1, 3), (2, 3, 2), (3, 2, 2), (3, 2, 3), (2, 4, 2), (2, 3, 3))
DISTANCES = (0.3, 1.0, 2.0)
QUICK = {"models": 1, "sizes": 1}


class Pair(NamedTuple):
    """A target and a draft.

    Attributes:
      p, q: from each path of up to K tokens to the distribution of the next, float64 ``[V]``.
      vocab_size: V.
      size: K.
    """

    p: dict[Path, np.ndarray]
    q: dict[Path, np.ndarray]
    vocab_size: int
    size: int

    def paths(self, length: int) -> Iterator[Path]:
        """All paths of that length."""
        return itertools.product(range(self.vocab_size), repeat=length)


def random_pair(rng: np.random.Generator, vocab_size: int, size: int, distance: float) -> Pair:
    """Normal logits, to which the draft adds others times a distance."""
    pair = Pair({}, {}, vocab_size, size)
    for length in range(size + 1):
        for path in pair.paths(length):
            logits = rng.normal(size=vocab_size)
            pair.p[path] = special.softmax(logits)
            pair.q[path] = special.softmax(logits + distance * rng.normal(size=vocab_size))
    return pair


def probability(distributions: dict[Path, np.ndarray], path: Path, given: int = 0) -> float:
    """The probability of a path, given its first tokens."""
    return math.prod(distributions[path[:i]][path[i]] for i in range(given, len(path)))


def reject(ratio: float, p: np.ndarray, q: np.ndarray) -> tuple[float, np.ndarray]:
    """The joint ratio and the target's distribution at a node after its child was rejected."""
    rest = np.maximum(ratio * p - q, 0)
    mass = rest.sum()
    if mass < 1e-15:
        return float(ratio >= 1), p
    return mass / (mass + 1 - ratio), rest / mass


def token(pair: Pair, drafts: Drafts) -> list[Outcome]:
    """The outcomes of recursive rejection."""
    outcomes: list[Outcome] = []

    def descend(path: Path, weight: float, agreeing: Sequence[Path]) -> None:
        p, level = pair.p[path], len(path)
        if level < pair.size:
            for draft in agreeing:
                x = draft[level]
                accept = min(1, p[x] / pair.q[path][x])
                same = [other for other in agreeing if other[level] == x]
                descend((*path, x), weight * accept, same)
                weight *= 1 - accept
                _, p = reject(1.0, p, pair.q[path])
        outcomes.append((path, weight * p))

    descend((), 1.0, drafts)
    return outcomes


def traversal(pair: Pair, drafts: Drafts) -> list[Outcome]:
    """The outcomes of traversal verification, from the leaves to the root."""
    outcomes: list[Outcome] = []

    def visit(path: Path, ratio: float, weight: float, agreeing: Sequence[Path]) -> float:
        """Returns the weight with which nothing at or below the path is accepted."""
        p, level, seen = pair.p[path], len(path), set()
        if level < pair.size:
            q = pair.q[path]
            for draft in agreeing:
                if (x := draft[level]) not in seen:
                    same = [other for other in agreeing if other[level] == x]
                    weight = visit((*path, x), min(1, ratio * p[x] / q[x]), weight, same)
                    seen.add(x)
                ratio, p = reject(ratio, p, q)
        outcomes.append((path, weight * ratio * p))
        return weight * (1 - ratio)

    visit((), 1.0, 1.0, drafts)
    return outcomes


def verify_block(pair: Pair, path: Path, selected: Sequence[np.ndarray]) -> Iterator[Outcome]:
    """The outcomes of block verification of a path whose tokens have these distributions."""
    ratios = [1.0]
    for i, (x, s) in enumerate(zip(path, selected, strict=True)):
        ratios.append(min(1, ratios[-1] * pair.p[path[:i]][x] / s[x]))
    weight = 1.0
    for i in range(len(path), -1, -1):
        ratio, p = ratios[i], pair.p[path[:i]]
        if i < len(path):
            ratio, p = reject(ratio, p, selected[i])
        yield path[:i], weight * ratio * p
        weight *= 1 - ratio


def ordered(pair: Pair, drafts: Drafts) -> list[Outcome]:
    """The outcomes where the draft that is last in an order by p / q is selected."""

    def ranks(path: Path) -> np.ndarray:
        order = np.argsort(pair.p[path] / pair.q[path], kind="stable")
        return np.argsort(order, kind="stable")

    path = max(drafts, key=lambda d: [ranks(d[:i])[x] for i, x in enumerate(d)])
    # The probability that a draft is below the prefix of the path, and that it has the prefix.
    below, inside, selected = 0.0, 1.0, []
    for i, x in enumerate(path):
        q, rank = pair.q[path[:i]], ranks(path[:i])
        start = below + inside * np.array([q[rank < r].sum() for r in rank])
        mass = (start + inside * q) ** len(drafts) - start ** len(drafts)
        selected.append(mass / mass.sum())
        below, inside = start[x], inside * q[x]
    return list(verify_block(pair, path, selected))


def bounds(target: np.ndarray, q: np.ndarray, count: int) -> tuple[float, float]:
    """a and b of ``verifiers/select_path.py``, by a root finder."""
    ends = lambda g: (g ** (count - 1), sum(g**i for i in range(count)))  # noqa: E731
    excess = lambda g: np.clip(target, ends(g)[0] * q, ends(g)[1] * q).sum() - 1  # noqa: E731
    if count == 1 or excess(0.0) >= 0:
        return ends(0.0)
    return ends(optimize.brentq(excess, 0.0, 1.0, xtol=1e-14) if excess(1.0) > 0 else 1.0)


def block(pair: Pair, drafts: Drafts) -> list[Outcome]:
    """The outcomes of block verification of the path that prefers tokens at random."""
    outcomes: list[Outcome] = []

    def select(
        path: Path,
        ratio: float,
        weight: float,
        agreeing: Sequence[Path],
        before: Sequence[np.ndarray],
    ) -> None:
        if len(path) == pair.size:
            outcomes.extend((v, weight * p) for v, p in verify_block(pair, path, before))
            return
        target, q = ratio * pair.p[path], pair.q[path]
        a, b = bounds(target, q, len(agreeing))
        s = np.clip(target, a * q, b * q)
        tokens = [draft[len(path)] for draft in agreeing]
        prefer = (s / q - a) / (b - a) if b > a else np.ones_like(q)
        chance: dict[int, float] = collections.defaultdict(float)
        none = 1.0
        for x in tokens:
            chance[x] += none * prefer[x]
            none *= 1 - prefer[x]
        chance[tokens[0]] += none
        for x, probability_of in chance.items():
            same = [draft for draft in agreeing if draft[len(path)] == x]
            joint = min(1.0, target[x] / s[x])
            select((*path, x), joint, weight * probability_of, same, [*before, s])

    select((), 1.0, 1.0, drafts, [])
    return outcomes


RULES: dict[str, Callable[[Pair, Drafts], list[Outcome]]] = {
    "token": token,
    "traversal": traversal,
    "ordered": ordered,
    "block": block,
}


def summed(
    rule: Callable[[Pair, Drafts], list[Outcome]], pair: Pair, num_drafts: int
) -> tuple[float, dict[Path, float]]:
    """Sums a rule over all drafts.

    Returns:
      The expected number of accepted tokens; and the distribution of the first K + 1 tokens, where
      the target continues what a block gives.
    """
    outputs: dict[Path, np.ndarray] = collections.defaultdict(lambda: np.zeros(pair.vocab_size))
    for drafts in itertools.product(pair.paths(pair.size), repeat=num_drafts):
        drawn = math.prod(probability(pair.q, draft) for draft in drafts)
        for path, weights in rule(pair, drafts):
            outputs[path] += drawn * weights
    joint = {
        tokens: sum(
            outputs[tokens[:i]][x] * probability(pair.p, tokens, i + 1)
            for i, x in enumerate(tokens)
        )
        for tokens in pair.paths(pair.size + 1)
    }
    return sum(len(path) * weights.sum() for path, weights in outputs.items()), joint


def optimum(pair: Pair, num_drafts: int) -> float:
    """The largest expected number of accepted tokens, by a linear program.

    A variable is the probability of a set of drafts and an output: a path among the drafts and one
    more token. Those of a set sum to the set's probability. What the target makes of the outputs
    has the target's distribution of K + 1 tokens.
    """
    leaves = {tokens: i for i, tokens in enumerate(pair.paths(pair.size + 1))}
    gain: list[int] = []
    right: list[float] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for drafts in itertools.combinations_with_replacement(pair.paths(pair.size), num_drafts):
        orders = math.factorial(num_drafts)
        for count in collections.Counter(drafts).values():
            orders //= math.factorial(count)
        for path in {draft[:i] for draft in drafts for i in range(pair.size + 1)}:
            for x in range(pair.vocab_size):
                output = (*path, x)
                entries = [(len(leaves) + len(right), 1.0)]
                for rest in pair.paths(pair.size - len(path)):
                    tokens = output + rest
                    entries.append((leaves[tokens], probability(pair.p, tokens, len(output))))
                rows += [row for row, _ in entries]
                values += [value for _, value in entries]
                columns += [len(gain)] * len(entries)
                gain.append(len(path))
        right.append(orders * math.prod(probability(pair.q, draft) for draft in drafts))
    left = sparse.csr_matrix((values, (rows, columns)), (len(leaves) + len(right), len(gain)))
    # Both sides sum to 1 over the sequences: where none has more than its probability, all have it.
    most = [probability(pair.p, tokens) for tokens in leaves]
    of_leaves, of_sets = left[: len(leaves)], left[len(leaves) :]
    result = optimize.linprog(
        -np.array(gain), of_leaves, most, of_sets, right, bounds=(0, None), method="highs"
    )
    if not result.success:
        raise RuntimeError(result.message)
    return -result.fun


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=4, help="pairs of each size and distance")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many sizes")
    args = quick.parse(parser, argv, QUICK)
    names = [*RULES, "optimum"]
    print("| V | K | C | distance |", " | ".join(names), "|")
    print("|", " | ".join(["---"] * (4 + len(names))), "|")
    for vocab_size, size, num_drafts in SIZES[: args.sizes]:
        for distance in DISTANCES:
            rng = np.random.default_rng(0)
            found = []
            for _ in range(args.models):
                pair = random_pair(rng, vocab_size, size, distance)
                means = [summed(rule, pair, num_drafts)[0] for rule in RULES.values()]
                apart = np.abs(pair.p[()] - pair.q[()]).sum() / 2
                found.append([apart, *means, optimum(pair, num_drafts)])
            cells = " | ".join(f"{mean:.3f}" for mean in np.mean(found, axis=0))
            print(f"| {vocab_size} | {size} | {num_drafts} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
