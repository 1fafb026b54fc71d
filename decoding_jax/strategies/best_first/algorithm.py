"""Search over a token tree: hypotheses of all lengths wait in a frontier, the best go first.

Best-first and best-k search are settings of this loop. Each row keeps one tree in one lane's
slots, so a prefix that many hypotheses share is computed once, and rows stand at cursors of their
own. Everything is in one ``while_loop``: the frontier, the scores, the pruning, the model's calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Cache, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop import model_calls, stopping
from decoding_jax.loop.driver import Steps
from decoding_jax.loop.sequences import check_lengths
from decoding_jax.strategies.best_first import frontier, token_tree
from decoding_jax.strategies.best_first.expansion import Expansion
from decoding_jax.strategies.best_first.frontier import ABSENT, CUT, FINISHED, OPEN, Nodes
from decoding_jax.strategies.best_first.priority import Decay
from decoding_jax.strategies.best_first.token_tree import TokenTree


class SearchInfo(NamedTuple):
    """What a search did.

    Attributes:
      model_calls: int32, the prefill and every ``extend``.
      expanded: int32 ``[B]``, nodes expanded within the budget, the prompt included.
      completed: int32 ``[B]``, nodes popped after they had ended: S in the paper. The first of
        the row's sequences are those, as many as were asked for.
      pruned: int32 ``[B]``, nodes dropped because the frontier was full.
      fallback: bool ``[B, N]``, sequences finished greedily after the budget was spent.
      slots_used: int32 ``[B]``, slots of the cache that were written.
      slots_held: int32, slots of the cache that a row has.
    """

    model_calls: Array
    expanded: Array
    completed: Array
    pruned: Array
    fallback: Array
    slots_used: Array
    slots_held: Array


class State(NamedTuple):
    """The carry.

    Attributes:
      cache: the model's.
      tree: the nodes that it holds.
      waiting: the frontier, ``[B, 2 F]``: F open nodes, and F that have ended and wait their turn.
      chosen: ``[B, k]``, popped and about to be fed; those that are not absent come first.
      results: ``[B, N]``, completed, best first.
      step: int32 ``[B]``, of the row.
      greedy: bool ``[B]``, whether the budget is spent and the row is being finished greedily.
      model_calls, expanded, completed, pruned: as in ``SearchInfo``.
    """

    cache: Cache
    tree: TokenTree
    waiting: Nodes
    chosen: Nodes
    results: Nodes
    step: Array
    greedy: Array
    model_calls: Array
    expanded: Array
    completed: Array
    pruned: Array


def best_first(
    expand: Expansion,
    decay: Decay,
    *,
    width: int,
    budget: int,
    num_return: int,
    frontier_size: int,
    fallback: bool = False,
) -> Steps:
    """The steps of a search that expands the best ``width`` hypotheses of the frontier at a time.

    Args:
      expand: gives the children of hypotheses, and says when they end and what they are worth.
      decay: what waiting costs.
      width: k, the most hypotheses expanded in one call.
      budget: C, the most that a row expands, its prompt included.
      num_return: N.
      frontier_size: F, how many open hypotheses may wait, and how many that have ended.
      fallback: whether rows that complete nothing within the budget are finished greedily.

    Raises:
      ValueError: when traced, for a model that is not ragged or has no trees, or a length that it
        cannot hold.
    """
    rank, stop, max_new_tokens = expand.score, expand.stop, expand.max_new_tokens
    cost = decay.table(budget + 1)
    held = min(frontier_size, budget * expand.branching)
    width = min(width, held, max(budget - 1, 1))
    finishers = min(width, num_return) if fallback else 0
    slots = max(budget - 1, 1) + finishers * (max_new_tokens - 1)

    def init(model: LanguageModel, prompt: Prompt, key: Any) -> State:
        batch, size = prompt.tokens.shape
        check_lengths(model, size, max_new_tokens)
        if not (model.ragged and model.tree):
            raise ValueError(
                f"model: got ragged={model.ragged} and tree={model.tree}; a best-first search "
                "takes one with both: its rows stand at different slots, each in a token tree"
            )
        logits, cache = model_calls.prefill(model, prompt, lanes=1, slots=slots)
        none = jnp.zeros(batch, jnp.int32)
        state = State(
            cache=cache,
            tree=token_tree.empty(batch, slots, max_new_tokens),
            waiting=frontier.absent(batch, 2 * held),
            chosen=frontier.absent(batch, width),
            results=frontier.absent(batch, num_return),
            step=none - 1,
            greedy=none > 0,
            model_calls=jnp.int32(0),
            expanded=none,
            completed=none,
            pruned=none,
        )
        limit = stopping.limits(stop, batch, max_new_tokens)[:, None]
        root = frontier.absent(batch, 1)._replace(kind=jnp.where(limit < 1, CUT, OPEN))
        path = jnp.zeros((batch, 1, max_new_tokens), jnp.int32)
        return advance(logits, prompt, state, root, root.parent, path)

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        fed = state.chosen
        path = token_tree.paths(state.tree, fed.parent, fed.token, fed.length)
        start = state.tree.used[:, None]
        count = (fed.kind == OPEN).sum(1, dtype=jnp.int32)
        tree, slot, visible = token_tree.add(state.tree, fed.parent, path, count)
        token = fed.token[:, None]
        output, cache = model_calls.extend(model, state.cache, token, start, visible[:, None])
        state = state._replace(cache=cache, tree=tree)
        return advance(output.logits, prompt, state, fed, slot, path)

    def advance(
        logits: Array, prompt: Prompt, state: State, fed: Nodes, slot: Array, path: Array
    ) -> State:
        """Puts the children of ``fed [B, n]`` into the frontier and pops what comes next."""
        count = (fed.kind == OPEN).sum(1, dtype=jnp.int32)
        now = state.step + (count > 0)
        children, likeliest, stuck = expand(logits, prompt, fed, slot, path, now)
        children = frontier.only(children, likeliest | ~state.greedy[:, None])
        stuck |= fed.kind == CUT
        grown = frontier.join(state.waiting, children)
        size = grown.kind.shape[1]
        priority = grown.score - cost[jnp.clip(now[:, None] - grown.born, 0, budget)]
        pool = frontier.prune(grown, priority, held)
        pruned = frontier.count(grown) - frontier.count(pool)
        expanded = state.expanded + jnp.where(state.greedy, 0, count)

        # A greedy row goes on with its own children alone; the rest of its frontier is reported.
        is_old = jnp.arange(size)[None] < state.waiting.kind.shape[1]
        in_turn = ~(state.greedy[:, None] & is_old)
        is_open = (pool.kind == OPEN) & in_turn
        places = jnp.where(state.greedy, width, jnp.minimum(budget - expanded, width))
        index = frontier.best(priority, is_open, width)
        reach = jnp.where(state.greedy, size, jnp.maximum(places, 1))
        ended = (pool.kind > OPEN) & in_turn & frontier.before(priority, is_open, index, reach)
        dead_ends = frontier.only(fed._replace(kind=jnp.full_like(fed.kind, CUT)), stuck)
        done = frontier.join(dead_ends, frontier.only(pool, ended))
        completed = state.completed + frontier.count(done)
        results = ranked(frontier.join(state.results, done), num_return)
        pool = frontier.only(pool, ~ended)

        greedy = state.greedy
        if fallback:
            nothing = (completed == 0) & (pool.kind <= OPEN).all(1)
            begins = ~greedy & (expanded >= budget) & nothing
            places, greedy = jnp.where(begins, finishers, places), greedy | begins
        places = jnp.where(settled(pool, results), 0, places)
        taken = jnp.minimum(places, is_open.sum(1, dtype=jnp.int32))
        taken = jnp.arange(width)[None] < taken[:, None]
        popped = frontier.members(jnp.where(taken, index, size), size)
        return State(
            cache=state.cache,
            tree=state.tree,
            waiting=frontier.compact(frontier.only(pool, ~popped), 2 * held),
            chosen=frontier.only(frontier.take(pool, index), taken),
            results=results,
            step=now,
            greedy=greedy,
            model_calls=state.model_calls + 1,
            expanded=expanded,
            completed=completed,
            pruned=state.pruned + pruned,
        )

    def ranked(nodes: Nodes, size: int) -> Nodes:
        """The best ``size``, in order, by what they are worth when done."""
        size = min(size, nodes.kind.shape[1])
        worth = rank.final(nodes.log_prob, nodes.length)
        return frontier.take(nodes, frontier.best(worth, nodes.kind != ABSENT, size))

    def settled(pool: Nodes, results: Nodes) -> Array:
        """bool ``[B]``: whether nothing that is left can change the results."""
        limit = stopping.limits(stop, pool.kind.shape[0], max_new_tokens)[:, None]
        length = jnp.where(pool.kind == OPEN, limit, pool.length)
        worth = rank.final(pool.log_prob, length)  # at most: log-probabilities only fall
        worst = rank.final(results.log_prob, results.length)[:, -1:]
        better = (pool.kind != ABSENT) & (worth > worst)
        return (results.kind[:, -1] != ABSENT) & ~better.any(1)

    def done(state: State) -> Array:
        return (state.chosen.kind == ABSENT).all()

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        rest = frontier.join(state.waiting, state.chosen)
        ended, growing = (frontier.only(rest, m) for m in (rest.kind > OPEN, rest.kind == OPEN))
        ordered = frontier.join(
            state.results, ranked(ended, num_return), ranked(growing, num_return)
        )
        out = frontier.compact(ordered, num_return)
        real = out.kind != ABSENT
        score = rank.final(out.log_prob, out.length)
        return DecodeOutput(
            tokens=jnp.where(
                real[..., None],
                token_tree.paths(state.tree, out.parent, out.token, out.length),
                0,
            ),
            length=jnp.where(real, out.length, 0),
            log_prob=jnp.where(real, out.log_prob, -jnp.inf),
            score=jnp.where(real, score, -jnp.inf),
            finished=out.kind == FINISHED,
            info=SearchInfo(
                model_calls=state.model_calls,
                expanded=state.expanded,
                completed=state.completed,
                pruned=state.pruned,
                fallback=state.greedy[:, None] & (state.results.kind != ABSENT),
                slots_used=state.tree.used,
                slots_held=jnp.int32(slots),
            ),
        )

    return Steps(init, step, done, finalize)
