"""Strings in, strings out: all at once, or token by token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from decoding_jax import loop
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Stop
from decoding_jax.ops.random import row_keys
from decoding_jax.registry import STRATEGIES
from decoding_jax.text.batch import (
    Completion,
    completions,
    context_of,
    encode_batch,
    with_end_tokens,
)
from decoding_jax.text.drafting import bind_drafter, check_drafter
from decoding_jax.text.loading import Model
from decoding_jax.text.tokenizers import Tokenizer

Strategy = Callable[..., DecodeOutput]


def generate(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    strategy: str | Strategy = "greedy",
    key: Array | None = None,
    drafter: Any = None,
    batch_size: int = 16,
    max_new_tokens: int = 64,
    stop: Stop | None = None,
    **settings: Any,
) -> list[list[Completion]]:
    """Decodes from every text.

    Args:
      model: from ``load``; a T5 translates, summarises, ... its inputs, others continue them.
      tokenizer: from ``load``.
      texts: the inputs, none of them empty.
      strategy: a strategy's name, such as ``"beam_search"``, or a function with the arguments of
        one.
      key: a typed key, for strategies that draw. Each text has a key of its own, folded with its
        index, so neither the batch size nor the texts beside it change what it gives.
      drafter: for a strategy that takes one: a model of the same tokenizer, from ``load``, or a
        drafter such as ``PromptLookup``. It is bound to the texts as the model is.
      batch_size: texts decoded together.
      max_new_tokens: the most new tokens of a text.
      stop: when a text ends; by default at the tokenizer's end tokens, which are also used where
        its ``eos_ids`` is None. ``Stop(eos_ids=())`` has none.
      **settings: of the strategy, such as ``num_samples``, ``beam_size`` and ``transform``.

    Returns:
      For every text its completions, in the strategy's order, each with what the strategy says of
      it in ``info``.

    Raises:
      ValueError: for an unknown strategy, a missing key, an empty text or one that does not fit.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr")
      >>> [[best]] = generate(model, tokenizer, ["Where is the station?"])
      >>> best.text
      'Où est la gare ?'
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}; takes 1 or more")
    run = _strategy(strategy)
    drafter = check_drafter(run, drafter)
    keys = _keys(_draws(run), key, len(texts))
    ids = _encode(tokenizer, texts)
    # Longest first: what runs out of memory does so at once; and rows of a batch are alike.
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    results: list[list[Completion]] = [[] for _ in ids]
    stop = with_end_tokens(stop, tokenizer)
    starts = range(0, len(order), batch_size)
    for first in tqdm(starts, "decoding", unit="batch", delay=3, disable=len(starts) < 2):
        members = order[first : first + batch_size]
        # A last, smaller batch is filled up with copies: one shape, one compilation.
        rows = (members + members[:1] * batch_size)[: min(batch_size, len(order))]
        bound, prompt, width = _bind(model, [ids[i] for i in rows], max_new_tokens)
        args = (prompt,) if keys is None else (prompt, keys[jnp.asarray(rows)])
        if drafter is not None:
            args = (bind_drafter(drafter, model, [ids[i] for i in rows], width), *args)
        output = run(bound, *args, max_new_tokens=max_new_tokens, stop=stop, **settings)
        context = context_of(model, [ids[i] for i in members])
        texts_out = completions(tokenizer, jax.device_get(output), len(members), context)
        for i, row in zip(members, texts_out, strict=True):
            results[i] = row
    return results


def stream(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    strategy: str | Callable[..., loop.Steps] = "greedy",
    key: Array | None = None,
    drafter: Any = None,
    chunk: int = 1,
    max_new_tokens: int = 64,
    stop: Stop | None = None,
    **settings: Any,
) -> Iterator[list[list[Completion]]]:
    """What ``generate`` gives, as it grows: after every ``chunk`` tokens, all completions so far.

    The last item is what ``generate`` returns. In the items before it, a text that ends inside a
    character is shown without that character, so with the strategies here each is a prefix of the
    next wherever the tokenizer decodes prefixes to prefixes.

    Args:
      model, tokenizer, texts, key, drafter, max_new_tokens, stop, **settings: as for
        ``generate``; the texts are decoded as one batch.
      strategy: a name as for ``generate``, or a function that makes ``loop.Steps``.
      chunk: tokens between two items.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr")
      >>> *_, last = stream(model, tokenizer, ["Where is the station?"])
      >>> last[0][0].text
      'Où est la gare ?'
    """
    build = loop.steps_of(_strategy(strategy))
    draws = key is not None if callable(strategy) else STRATEGIES[strategy].draws
    keys = _keys(draws, key, len(texts))
    ids = _encode(tokenizer, texts)
    bound, prompt, width = _bind(model, ids, max_new_tokens)
    drafter = check_drafter(build, drafter)
    if drafter is not None:
        settings["drafter"] = bind_drafter(drafter, model, ids, width)
    stop = with_end_tokens(stop, tokenizer)
    context = context_of(model, ids)
    for output, last in loop.stream_until_done(
        build,
        bound,
        prompt,
        keys,
        chunk=chunk,
        max_new_tokens=max_new_tokens,
        stop=stop,
        **settings,
    ):
        rows = completions(tokenizer, jax.device_get(output), len(ids), context)
        if not last:
            rows = [[c._replace(text=c.text.rstrip("\ufffd")) for c in row] for row in rows]
        yield rows


def _strategy(strategy: str | Callable[..., Any]) -> Callable[..., Any]:
    if callable(strategy):
        return strategy
    if strategy not in STRATEGIES:
        names = ", ".join(sorted(STRATEGIES))
        raise ValueError(f"strategy: got {strategy!r}; takes one of {names}")
    return STRATEGIES[strategy].function


def _draws(run: Callable[..., Any]) -> bool:
    return "key" in inspect.signature(run).parameters


def _keys(required: bool, key: Array | None, count: int) -> Array | None:
    if not required:
        return None
    if key is None:
        raise ValueError("key: got None; this strategy takes a typed key such as jax.random.key(0)")
    return row_keys(key, count)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    if isinstance(texts, str):
        raise ValueError("texts: got one string; takes a list of strings")
    ids = [tokenizer.encode(text) for text in texts]
    for i, (text, row) in enumerate(zip(texts, ids, strict=True)):
        if not text.strip() or not row:
            raise ValueError(f"texts: got an empty text at index {i}; takes texts with a token")
    return ids


def _bind(model: Any, ids: list[list[int]], max_new_tokens: int) -> tuple[LanguageModel, Any, int]:
    """Pads to a multiple of 16, so that few shapes are compiled, or to all there is room for."""
    longest = max(len(row) for row in ids)
    width = -(-longest // 16) * 16
    most = getattr(model, "max_positions", None)
    if most is not None:
        width = max(longest, min(width, most - max_new_tokens + 1))
    return *encode_batch(model, ids, width), width
