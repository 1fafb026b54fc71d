"""Best-k search with a Python heap and float32 sums, one row at a time, no cache: the reference."""

import dataclasses
import functools
import heapq

import jax.numpy as jnp
import numpy as np

from decoding_jax.ops import exact
from decoding_jax.ops.logits import normaliser
from decoding_jax.testing.certificate.enumeration import CHECKSUMS, row_stop


class Table:
    """The log-probabilities of a TableLM, and what may follow, to the library's own bits."""

    def __init__(self, model, temperature=1.0):
        peak, total = normaliser(model.table)
        total = exact.log(jnp.maximum(total, 1.0))
        self.raw, self.log_prob = np.asarray(model.table), np.asarray((model.table - peak) - total)
        self.scaled = self.raw / np.float32(temperature)
        self.size = model.vocab_size

    def context(self, path):
        checksum = sum((t % 10 + 1) * (i % 10 + 1) for i, t in enumerate(path)) % CHECKSUMS
        return checksum, path[-2] if len(path) > 1 else self.size, path[-1]

    @functools.cache  # noqa: B019
    def masses(self, banned):
        """Logits, exponentials and their sums, of all contexts, with some ids banned."""
        logits = self.scaled.copy()
        logits[..., list(banned)] = -np.inf
        peak = logits.max(-1, keepdims=True)
        weight = exact.exp(jnp.asarray(logits - np.where(peak == -np.inf, 0, peak)))
        return logits, np.asarray(weight), np.asarray(exact.sum_last(weight))

    def allowed(self, path, banned, gamma):
        """Ids with a probability of at least gamma, and the likeliest of all, or (), None."""
        context = self.context(path)
        logits, weight, total = (x[context] for x in self.masses(frozenset(banned)))
        if logits.max() == -np.inf:
            return (), None
        ids = np.flatnonzero((logits > -np.inf) & (weight >= np.float32(gamma) * total))
        best = int(logits.argmax())
        return sorted({best, *ids.tolist()}), best


@dataclasses.dataclass
class Node:
    path: tuple
    log_prob: np.float32
    score: np.float32 = 0
    born: int = 0
    number: int = 0
    kind: str = "open"


@functools.cache
def powers(alpha):
    """What a log-probability is multiplied by, at lengths from 0."""
    return np.asarray(exact.inverse_power(jnp.maximum(jnp.arange(100), 1), jnp.float32(alpha)))


@dataclasses.dataclass
class Search:
    """One row. ``expanded`` is the paths in the order in which they were expanded."""

    table: Table
    prompt: list
    dead: int  # after which nothing is allowed: a token outside the vocabulary for none
    stop: object  # RowStop
    k: int
    budget: int
    num_return: int
    branching: int
    frontier_size: int
    fallback: bool
    gamma: float
    score: str
    alpha: float
    cost: np.ndarray

    def final(self, log_prob, length):
        if self.score != "mean":
            return log_prob
        if self.alpha == 1:
            return log_prob / np.float32(max(length, 1))
        return log_prob * powers(float(self.alpha))[length]

    def worth(self, node):
        return self.final(node.log_prob, len(node.path))

    def grow(self, node):
        """Its children, and the likeliest of them."""
        self.expanded.append(node.path)
        early = len(node.path) < self.stop.min_new_tokens
        path = [*self.prompt, *node.path]
        ids, best = self.table.allowed(path, self.stop.eos_ids if early else (), self.gamma)
        if node.path and node.path[-1] == self.dead:
            ids, best = (), None
        children = []
        logs = self.table.log_prob[self.table.context(path)]
        logits = self.table.raw[self.table.context(path)]
        if len(ids) > self.branching:
            ids = sorted(sorted(ids, key=lambda v: (-logits[v], v))[: self.branching])
        for v in ids:
            log_prob = np.float32(node.log_prob + logs[v])
            new = Node((*node.path, v), log_prob, born=self.now, number=self.made)
            new.score = logs[v] if self.score == "last" else self.final(log_prob, len(new.path))
            self.made += 1
            if self.stop.finishes(new.path):
                new.kind = "finished"
            elif len(new.path) >= self.stop.limit:
                new.kind = "cut"
            children.append((new, v == best))
        return children

    def key(self, node):
        return (-np.float32(node.score - self.cost[self.now - node.born]), node.number)

    def complete(self, nodes):
        self.completed += len(nodes)
        ranked = sorted(self.results + nodes, key=lambda n: -self.worth(n))
        self.results = ranked[: self.num_return]

    def prune(self):
        kept = []
        for is_open in (True, False):
            kind = [n for n in self.frontier if (n.kind == "open") == is_open]
            kept += sorted(kind, key=self.key)[: self.frontier_size]
        self.pruned += len(self.frontier) - len(kept)
        self.frontier = kept

    def settled(self):
        if len(self.results) < self.num_return:
            return False
        worst = self.worth(self.results[-1])
        limits = [self.stop.limit if n.kind == "open" else len(n.path) for n in self.frontier]
        reach = (self.final(n.log_prob, m) for n, m in zip(self.frontier, limits, strict=True))
        return all(r <= worst for r in reach)

    def pop(self):
        """The nodes to expand next; what has ended before them is complete."""
        self.prune()
        places = min(self.k, self.budget - len(self.expanded))
        heap = [(*self.key(n), n) for n in self.frontier]
        heapq.heapify(heap)
        chosen, ended = [], []
        while heap and len(chosen) < max(places, 1):
            node = heapq.heappop(heap)[-1]
            if node.kind == "open":
                chosen.append(node)
            else:
                ended.append(node)
        self.frontier = [n for n in self.frontier if n not in ended]
        self.complete(self.dead_ends + sorted(ended, key=lambda n: n.number))
        self.dead_ends = []
        chosen = [] if self.settled() else chosen[: max(places, 0)]
        self.frontier = [n for n in self.frontier if n not in chosen]
        return chosen

    def run(self):
        self.frontier, self.results, self.expanded, self.dead_ends = [], [], [], []
        self.now = self.made = self.completed = self.pruned = 0
        self.within_budget, self.greedy = 0, False
        root = Node((), np.float32(0))
        if self.stop.limit < 1:
            root.kind = "cut"
            self.complete([root])
            return self
        chosen = [root]
        self.now = -1
        while chosen:
            self.now += 1
            for node in chosen:
                children = self.grow(node)
                self.frontier += [child for child, _ in children]
                if not children:
                    node.kind = "cut"
                    self.dead_ends.append(node)
            chosen = self.pop()
        self.within_budget = len(self.expanded)
        self.greedy = (
            self.fallback
            and self.completed == 0
            and len(self.expanded) >= self.budget
            and bool(self.frontier)
            and all(n.kind == "open" for n in self.frontier)
        )
        if self.greedy:
            self.finish()
        return self

    def finish(self):
        count = min(self.k, self.frontier_size, max(self.budget - 1, 1), self.num_return)
        alive = sorted(self.frontier, key=self.key)[:count]
        self.frontier = [n for n in self.frontier if n not in alive]
        while alive:
            self.now += 1
            ended, grown = [], []
            for node in alive:
                best = [child for child, likeliest in self.grow(node) if likeliest]
                grown += best
                if not best:
                    node.kind = "cut"
                    ended.append(node)
            ended += [n for n in grown if n.kind != "open"]
            self.complete(ended)
            alive = sorted((n for n in grown if n.kind == "open"), key=self.key)

    def output(self):
        """At most N sequences: complete ones, ended ones, open ones; each group by its worth."""
        out = list(self.results)
        for is_open in (False, True):
            rest = [n for n in self.frontier if (n.kind == "open") == is_open]
            rest = sorted(rest, key=lambda n: n.number)
            out += sorted(rest, key=lambda n: -self.worth(n))[: self.num_return]
        return out[: self.num_return]


def search(model, prompt, row, *, temperature, dead, stop, max_new_tokens, **settings):
    """The search of one row; ``cost`` is the decay's table."""
    length = int(prompt.length[row])
    return Search(
        table=temperature if isinstance(temperature, Table) else Table(model, temperature),
        prompt=[int(t) for t in np.asarray(prompt.tokens)[row, :length]],
        dead=dead,
        stop=row_stop(stop, row, max_new_tokens),
        **settings,
    ).run()
