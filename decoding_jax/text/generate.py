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
from decoding_jax.ops.jit import compilation_announced
from decoding_jax.ops.random import row_keys
from decoding_jax.registry import STRATEGIES
from decoding_jax.rows import row_arguments, take_rows
from decoding_jax.text.arguments import check_arguments, check_strategy, check_tokens
from decoding_jax.text.batch import (
    Completion,
    completions,
    context_of,
    encode_batch,
    with_end_tokens,
)
from decoding_jax.text.drafting import bind_drafter, check_drafter
from decoding_jax.text.loading import Model
from decoding_jax.text.sizes import buffer_length, limited, padded_width, round_up
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
      **settings: of the strategy, such as ``num_samples``, ``beam_size`` and ``transform``. Where
        a number in them is an array with one value for each text, such as
        ``transforms.temperature([0, 0.7])``, each text is decoded with its own (see
        ``decoding_jax.rows``).

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
    checked = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
    check_arguments(model, tokenizer, texts, strategy, key, checked, batch_size=batch_size)
    run, known = _strategy(strategy)
    arguments = row_arguments(run)
    drafter = check_drafter(run, drafter)
    keys = _keys(_draws(run), key, len(texts))
    ids = _encode(tokenizer, texts)
    check_tokens(model, ids)
    # Longest first: what runs out of memory does so at once; and rows of a batch are alike.
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    results: list[list[Completion]] = [[] for _ in ids]
    given = {"stop": with_end_tokens(stop, tokenizer), "drafter": drafter, **settings}
    size = min(batch_size, round_up(len(order)))
    starts = range(0, len(order), batch_size)
    for first in tqdm(starts, "decoding", unit="batch", delay=3, disable=len(starts) < 2):
        members = order[first : first + batch_size]
        # A smaller batch is filled up with copies of its first text: few shapes to compile.
        rows = members + members[:1] * (size - len(members))
        batch = _Batch(model, [ids[i] for i in rows], max_new_tokens)
        own = take_rows(given, rows, len(ids), arguments)
        args = (batch.prompt,) if keys is None else (batch.prompt, keys[jnp.asarray(rows)])
        if (drafts := batch.bind_drafter(own.pop("drafter"))) is not None:
            args = (drafts, *args)
        with compilation_announced():
            output = run(batch.model, *args, **batch.lengths(own, drafts, known=known))
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
    checked = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
    check_arguments(model, tokenizer, texts, strategy, key, checked, chunk=chunk)
    run, known = _strategy(strategy)
    build = loop.steps_of(run)
    draws = key is not None if callable(strategy) else STRATEGIES[strategy].draws
    keys = _keys(draws, key, len(texts))
    ids = _encode(tokenizer, texts)
    check_tokens(model, ids)
    drafter = check_drafter(build, drafter)
    rows = [*range(len(ids)), *[0] * (round_up(len(ids)) - len(ids))]
    batch = _Batch(model, [ids[i] for i in rows], max_new_tokens)
    given = {"stop": with_end_tokens(stop, tokenizer), "drafter": drafter, **settings}
    own = take_rows(given, rows, len(ids), row_arguments(run))
    if (drafts := batch.bind_drafter(own.pop("drafter"))) is not None:
        own["drafter"] = drafts
    context = context_of(model, ids)
    outputs = loop.stream_until_done(
        build,
        batch.model,
        batch.prompt,
        None if keys is None else keys[jnp.asarray(rows)],
        chunk=chunk,
        **batch.lengths(own, drafts, known=known),
    )
    last = False
    while not last:
        with compilation_announced():
            output, last = next(outputs)
        made = completions(tokenizer, jax.device_get(output), len(ids), context)
        if not last:
            made = [[c._replace(text=c.text.rstrip("\ufffd")) for c in row] for row in made]
        yield made


def _strategy(strategy: str | Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The strategy as a function, and whether it is one of the table."""
    run = check_strategy(strategy)
    return run, any(run is entry.function for entry in STRATEGIES.values())


def _draws(run: Callable[..., Any]) -> bool:
    return "key" in inspect.signature(run).parameters


def _keys(required: bool, key: Array | None, count: int) -> Array | None:
    if not required:
        return None
    if key is None:
        raise ValueError("key: got None; this strategy takes a typed key such as jax.random.key(0)")
    return row_keys(key, count)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    ids = [tokenizer.encode(text) for text in texts]
    for i, (text, row) in enumerate(zip(texts, ids, strict=True)):
        if not text.strip() or not row:
            raise ValueError(f"texts: got an empty text at index {i}; takes texts with a token")
    return ids


class _Batch:
    """Texts that are decoded together, padded to one of a few sizes.

    Attributes:
      model: the language model, bound to the texts where it is an encoder-decoder.
      prompt: of as many rows as there are texts.
    """

    def __init__(self, model: Any, ids: list[list[int]], max_new_tokens: int):
        most = getattr(model, "max_positions", None)
        self._given, self._ids, self._max_new_tokens = model, ids, max_new_tokens
        self._width = padded_width(max(len(row) for row in ids), max_new_tokens, most)
        self.model, self.prompt = encode_batch(model, ids, self._width)

    def bind_drafter(self, drafter: Any) -> Any:
        """The drafter for these texts."""
        return bind_drafter(drafter, self._given, self._ids, self._width)

    def lengths(self, settings: dict[str, Any], drafter: Any, *, known: bool) -> dict[str, Any]:
        """The settings with ``max_new_tokens``.

        A strategy of the table keeps to ``stop.max_new_tokens``, whose value is not compiled, so
        that its own may be rounded up. What another function makes of it is its own affair.
        """
        if not known:
            return {**settings, "max_new_tokens": self._max_new_tokens}
        models = (self.model, drafter, getattr(drafter, "model", None))
        length = buffer_length(self._max_new_tokens, self.prompt.tokens.shape[1], models)
        stop = limited(settings["stop"], self._max_new_tokens)
        return {**settings, "stop": stop, "max_new_tokens": length}
