"""The generation of texts from texts, at once or as a stream."""

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
    encode_texts,
    with_end_tokens,
)
from decoding_jax.text.drafting import bind_drafter, check_drafter
from decoding_jax.text.generation_config import GenerationConfig
from decoding_jax.text.generation_config.call import chosen_arguments, uses_config
from decoding_jax.text.loading import Model
from decoding_jax.text.sizes import limited, padded_width, round_up, rounded_length
from decoding_jax.text.tokenizers import Tokenizer

Strategy = Callable[..., DecodeOutput]

DEFAULT_LENGTH = 64
"""``max_new_tokens``, unless it is given or a config has other rules."""


def generate(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    strategy: str | Strategy | None = None,
    key: Array | None = None,
    drafter: Any = None,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    stop: Stop | None = None,
    config: GenerationConfig | None = None,
    **settings: Any,
) -> list[list[Completion]]:
    """Generates completions of every text.

    Args:
      model: a model from ``load``. A T5 decodes an output for each text, such as a translation;
        other models continue the text.
      tokenizer: the tokenizer of the model, from ``load``.
      texts: the inputs, none of them empty.
      strategy: the name of a strategy, such as ``"beam_search"``, or a function with the same
        arguments; ``"greedy"`` by default.
      key: a typed key, for strategies that draw. Each text has its own key, folded from ``key`` and
        the index of the text, so its completions depend neither on the batch size nor on the other
        texts.
      drafter: a model from ``load`` with the same tokenizer, or a drafter such as ``PromptLookup``,
        for strategies that take one. It is bound to the texts as the model is.
      batch_size: the number of texts that are decoded together.
      max_new_tokens: the maximum number of new tokens of a text, 64 by default.
      stop: the stop conditions. The end tokens are those of the tokenizer if ``stop`` or its
        ``eos_ids`` is None. ``Stop(eos_ids=())`` has no end tokens.
      config: in place of a strategy, parameters by the names of ``transformers``, which choose it.
      **settings: the settings of the strategy, such as ``num_samples``, ``beam_size`` and
        ``transform``. A number in them may be an array with one value for each text, such as
        ``transforms.temperature([0, 0.7])`` (see ``decoding_jax.rows``). Without a strategy, the
        parameters of ``GenerationConfig`` are taken too, such as ``num_beams=4``, and override
        those of ``config``; all others then have the defaults of ``transformers``.

    Returns:
      For every text, its completions in the order of the strategy, each with the strategy's
      ``info``.

    Raises:
      ValueError: for an unknown strategy or setting, a missing key, an empty text, or a text that
        is too long for the model.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr")
      >>> [[best]] = generate(model, tokenizer, ["Where is the station?"])
      >>> best.text
      'Où est la gare ?'
    """
    if uses_config(strategy, config, settings):
        given = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
        chosen = chosen_arguments(model, tokenizer, texts, config, key, drafter, given)
        return generate(model, tokenizer, texts, batch_size=batch_size, **chosen)
    strategy = "greedy" if strategy is None else strategy
    max_new_tokens = DEFAULT_LENGTH if max_new_tokens is None else max_new_tokens
    checked_settings = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
    check_arguments(model, tokenizer, texts, strategy, key, checked_settings, batch_size=batch_size)
    run, registered = _strategy(strategy)
    arguments = row_arguments(run)
    drafter = check_drafter(run, drafter)
    keys = _keys(_draws(run), key, len(texts))
    ids = encode_texts(tokenizer, texts)
    check_tokens(model, ids)
    # The longest texts come first, so that a lack of memory shows at once. Sorting also puts texts
    # of similar length into the same batch.
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    results: list[list[Completion]] = [[] for _ in ids]
    all_settings = {"stop": with_end_tokens(stop, tokenizer), "drafter": drafter, **settings}
    size = min(batch_size, round_up(len(order)))
    starts = range(0, len(order), batch_size)
    for first in tqdm(starts, "decoding", unit="batch", delay=3, disable=len(starts) < 2):
        members = order[first : first + batch_size]
        # A smaller batch is filled up with copies of its first text, to compile fewer shapes.
        rows = members + members[:1] * (size - len(members))
        batch = _Batch(model, [ids[i] for i in rows], max_new_tokens)
        batch_settings = take_rows(all_settings, rows, len(ids), arguments)
        args = (batch.prompt,) if keys is None else (batch.prompt, keys[jnp.asarray(rows)])
        if (bound_drafter := batch.bind_drafter(batch_settings.pop("drafter"))) is not None:
            args = (bound_drafter, *args)
        batch_settings = batch.with_length(batch_settings, bound_drafter, registered=registered)
        with compilation_announced():
            output = run(batch.model, *args, **batch_settings)
        context = context_of(model, [ids[i] for i in members])
        decoded = completions(tokenizer, jax.device_get(output), len(members), context)
        for i, row in zip(members, decoded, strict=True):
            results[i] = row
    return results


def stream(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    strategy: str | Callable[..., loop.Steps] | None = None,
    key: Array | None = None,
    drafter: Any = None,
    chunk: int = 1,
    max_new_tokens: int | None = None,
    stop: Stop | None = None,
    config: GenerationConfig | None = None,
    **settings: Any,
) -> Iterator[list[list[Completion]]]:
    """Yields the completions of all texts so far, after every ``chunk`` new tokens.

    The last item is equal to the result of ``generate``. In earlier items, an incomplete character
    at the end of a text is left out. If the tokenizer decodes every prefix of a token list to a
    prefix of its text, each text of a token-by-token strategy is a prefix of the next one.

    Args:
      model, tokenizer, texts, key, drafter, max_new_tokens, stop, config, **settings: as for
        ``generate``. The texts are decoded as one batch.
      strategy: a name as for ``generate``, or a function that returns ``loop.Steps``.
      chunk: the number of new tokens between two items.

    Raises:
      ValueError: as ``generate``, and if ``texts`` is empty.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr")
      >>> *_, last = stream(model, tokenizer, ["Where is the station?"])
      >>> last[0][0].text
      'Où est la gare ?'
    """
    if uses_config(strategy, config, settings):
        given = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
        chosen = chosen_arguments(model, tokenizer, texts, config, key, drafter, given)
        yield from stream(model, tokenizer, texts, chunk=chunk, **chosen)
        return
    strategy = "greedy" if strategy is None else strategy
    max_new_tokens = DEFAULT_LENGTH if max_new_tokens is None else max_new_tokens
    checked_settings = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
    check_arguments(model, tokenizer, texts, strategy, key, checked_settings, chunk=chunk)
    run, registered = _strategy(strategy)
    build = loop.steps_of(run)
    draws = key is not None if callable(strategy) else STRATEGIES[strategy].draws
    keys = _keys(draws, key, len(texts))
    ids = encode_texts(tokenizer, texts)
    check_tokens(model, ids)
    drafter = check_drafter(build, drafter)
    rows = [*range(len(ids)), *[0] * (round_up(len(ids)) - len(ids))]
    batch = _Batch(model, [ids[i] for i in rows], max_new_tokens)
    all_settings = {"stop": with_end_tokens(stop, tokenizer), "drafter": drafter, **settings}
    batch_settings = take_rows(all_settings, rows, len(ids), row_arguments(run))
    if (bound_drafter := batch.bind_drafter(batch_settings.pop("drafter"))) is not None:
        batch_settings["drafter"] = bound_drafter
    context = context_of(model, ids)
    outputs = loop.stream_until_done(
        build,
        batch.model,
        batch.prompt,
        None if keys is None else keys[jnp.asarray(rows)],
        chunk=chunk,
        **batch.with_length(batch_settings, bound_drafter, registered=registered),
    )
    last = False
    while not last:
        with compilation_announced():
            output, last = next(outputs)
        rows_so_far = completions(tokenizer, jax.device_get(output), len(ids), context)
        if not last:
            rows_so_far = [
                [c._replace(text=c.text.rstrip("\ufffd")) for c in row] for row in rows_so_far
            ]
        yield rows_so_far


def _strategy(strategy: str | Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The function of a strategy, and whether it is one of ``STRATEGIES``."""
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


class _Batch:
    """Texts that are decoded together, padded to one of a few sizes.

    Attributes:
      model: the language model, bound to the texts if it is an encoder-decoder.
      prompt: the prompts, one row for each text.
    """

    def __init__(self, model: Any, ids: list[list[int]], max_new_tokens: int):
        self._unbound, self._ids, self._max_new_tokens = model, ids, max_new_tokens
        max_positions = getattr(model, "max_positions", None)
        longest = max(len(row) for row in ids)
        self._width = padded_width(longest, max_new_tokens, max_positions)
        self.model, self.prompt = encode_batch(model, ids, self._width)

    def bind_drafter(self, drafter: Any) -> Any:
        """The drafter, bound to these texts if it uses encoder inputs."""
        return bind_drafter(drafter, self._unbound, self._ids, self._width)

    def with_length(
        self, settings: dict[str, Any], drafter: Any, *, registered: bool
    ) -> dict[str, Any]:
        """The settings with ``max_new_tokens``.

        The strategies of ``STRATEGIES`` obey ``stop.max_new_tokens``, whose value is not part of
        the program, so their ``max_new_tokens`` is rounded up. Other functions get the exact value.
        """
        if not registered:
            return {**settings, "max_new_tokens": self._max_new_tokens}
        models = (self.model, drafter, getattr(drafter, "model", None))
        length = rounded_length(self._max_new_tokens, self.prompt.tokens.shape[1], models)
        stop = limited(settings["stop"], self._max_new_tokens)
        return {**settings, "stop": stop, "max_new_tokens": length}
