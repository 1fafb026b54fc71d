"""Algorithm 1 of Xu et al. 2022 with a Python heap, one row at a time and without a cache."""

import dataclasses
import functools
import heapq

import jax.numpy as jnp
import numpy as np

from decoding_jax.ops import exact
from decoding_jax.ops.logits import normaliser
from decoding_jax.testing.certificate.enumeration import CHECKSUMS, row_stop


class Table:
    """The log-probabilities of a TableLM and the tokens allowed after a path, to the bit."""

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
        """The ids with a probability of at least gamma, and the most likely id; or (), None."""
        context = self.context(path)
        logits, weight, total = (x[context] for x in self.masses(frozenset(banned)))
        if logits.max() == -np.inf:
            return (), None
        ids = np.flatnonzero((logits > -np.inf) & (weight >= np.float32(gamma) * total))
        best = int(logits.argmax())
        return sorted({best, *ids.tolist()}), best


@dataclasses.dataclass
class Node:
    """n in the paper; ``time`` is n.time, ``number`` counts nodes in the order of their making."""

    path: tuple
    log_prob: np.float32
    score: np.float32 = 0
    time: int = 0
    number: int = 0
    kind: str = "open"
    most_likely: bool = False


@functools.cache
def powers(alpha):
    """The factor of a log-probability at lengths from 0."""
    return np.asarray(exact.inverse_power(jnp.maximum(jnp.arange(100), 1), jnp.float32(alpha)))


@dataclasses.dataclass
class Search:
    """Algorithm 1 of Xu et al. for one row, in their symbols: H, P, C, b, t, g and gamma.

    Beyond the paper: ended nodes take none of the g places, the last group is cut to the budget,
    nodes that tie are popped in the order of their making, a row stops once its result is settled,
    and ``fallback`` finishes a row greedily.

    ``expanded`` is the paths in the order in which they were expanded.
    """

    table: Table
    prompt: list
    dead: int  # the token after which none is allowed; outside the vocabulary for no such token
    stop: object  # RowStop
    k: int
    budget: int
    num_return: object  # a number or "all"
    branching: object  # a number or None
    frontier_size: int
    fallback: bool
    gamma: float
    score: str
    alpha: float
    kappa: float
    beta: float

    def run(self):
        self.H = [Node((), np.float32(0), kind="cut" if self.stop.limit < 1 else "open")]
        self.P, self.completed, self.pruned, self.made = [], 0, 0, 1
        self.b, self.t, self.expanded, self.greedy = 0, 0, [], False
        while group := self.pop():
            dead_ends = []
            for n in group:
                self.b += 1
                children = self.children(n)
                self.H += children
                if not children:
                    dead_ends.append(dataclasses.replace(n, kind="cut"))
            self.complete(dead_ends)
            self.t += 1
            self.prune()
        self.within_budget = self.b
        ended = any(n.kind != "open" for n in self.H)
        if self.fallback and self.b >= self.budget and self.H and not (self.completed or ended):
            self.greedy = True
            self.finish()
        return self

    def decay(self, n):
        """-kappa (t - n.time)^beta."""
        return np.float32(-float(self.kappa) * float(self.t - n.time) ** float(self.beta))

    def order(self, n):
        """The highest priority first, then the oldest."""
        return -np.float32(n.score + self.decay(n)), n.number

    def pop(self):
        """g nodes to expand; the ended nodes popped on the way are complete."""
        g = min(self.k, self.budget - self.b)
        queue = [(*self.order(n), n) for n in self.H]
        heapq.heapify(queue)
        group, ended = [], []
        while queue and len(group) < max(g, 1):
            n = heapq.heappop(queue)[-1]
            (group if n.kind == "open" else ended).append(n)
        self.H = [n for n in self.H if n not in ended]
        self.complete(sorted(ended, key=lambda n: n.number))
        group = [] if self.settled() else group[: max(g, 0)]
        self.H = [n for n in self.H if n not in group]
        return group

    def children(self, n):
        """The nodes v below n with p(v) >= gamma, and the most likely one."""
        self.expanded.append(n.path)
        path = [*self.prompt, *n.path]
        early = len(n.path) < self.stop.min_new_tokens
        ids, best = self.table.allowed(path, self.stop.eos_ids if early else (), self.gamma)
        if n.path and n.path[-1] == self.dead:
            ids = ()
        logs, logits = (x[self.table.context(path)] for x in (self.table.log_prob, self.table.raw))
        if self.branching is not None:
            ids = sorted(sorted(ids, key=lambda v: (-logits[v], v))[: self.branching])
        found = []
        for v in ids:
            new, log_prob = (*n.path, v), np.float32(n.log_prob + logs[v])
            kind = "cut" if len(new) >= self.stop.limit else "open"
            kind = "finished" if self.stop.finishes(new) else kind
            score = logs[v] if self.score == "last" else self.final(log_prob, len(new))
            found.append(Node(new, log_prob, score, self.t, self.made, kind, v == best))
            self.made += 1
        return found

    def prune(self):
        kept = []
        for is_open in (True, False):
            kind = [n for n in self.H if (n.kind == "open") == is_open]
            kept += sorted(kind, key=self.order)[: self.frontier_size]
        self.pruned += len(self.H) - len(kept)
        self.H = kept

    def final(self, log_prob, length):
        if self.score != "mean":
            return log_prob
        if self.alpha == 1:
            return log_prob / np.float32(max(length, 1))
        return log_prob * powers(float(self.alpha))[length]

    def worth(self, n):
        return self.final(n.log_prob, len(n.path))

    def complete(self, nodes):
        self.completed += len(nodes)
        ranked = sorted(self.P + nodes, key=lambda n: -self.worth(n))
        self.P = ranked if self.num_return == "all" else ranked[: self.num_return]

    def settled(self):
        if self.num_return == "all" or len(self.P) < self.num_return:
            return False
        worst = self.worth(self.P[-1])
        lengths = [self.stop.limit if n.kind == "open" else len(n.path) for n in self.H]
        bounds = (self.final(n.log_prob, m) for n, m in zip(self.H, lengths, strict=True))
        return all(bound <= worst for bound in bounds)

    def finish(self):
        """Continues the best nodes of H by their most likely children alone."""
        count = min(self.k, self.frontier_size, max(self.budget - 1, 1))
        count = count if self.num_return == "all" else min(count, self.num_return)
        alive = sorted(self.H, key=self.order)[:count]
        self.H = [n for n in self.H if n not in alive]
        while alive:
            self.t += 1
            grown, ended = [], []
            for n in alive:
                best = [child for child in self.children(n) if child.most_likely]
                grown += best
                if not best:
                    ended.append(dataclasses.replace(n, kind="cut"))
            self.complete(ended + [n for n in grown if n.kind != "open"])
            alive = sorted((n for n in grown if n.kind == "open"), key=self.order)

    def output(self):
        """Completed nodes, ended ones, and open ones unless all are returned; each part ranked."""
        out = list(self.P)
        for is_open in (False, True) if self.num_return != "all" else (False,):
            rest = [n for n in self.H if (n.kind == "open") == is_open]
            rest = sorted(rest, key=lambda n: n.number)
            out += sorted(rest, key=lambda n: -self.worth(n))
        return out if self.num_return == "all" else out[: self.num_return]


def search(model, prompt, row, *, temperature, dead, stop, max_new_tokens, **settings):
    """The search of one row."""
    length = int(prompt.length[row])
    return Search(
        table=temperature if isinstance(temperature, Table) else Table(model, temperature),
        prompt=[int(t) for t in np.asarray(prompt.tokens)[row, :length]],
        dead=dead,
        stop=row_stop(stop, row, max_new_tokens),
        **settings,
    ).run()
