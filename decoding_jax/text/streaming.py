"""Texts that are decoded as a stream: all completions so far, after every few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import loop
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Stop
from decoding_jax.ops.jit import compilation_announced
from decoding_jax.ops.mesh import to_host
from decoding_jax.rows import row_arguments, take_rows
from decoding_jax.text.arguments import (
    check_arguments,
    check_tokens,
    check_with_scores,
    draws,
    with_defaults,
)
from decoding_jax.text.batch import (
    Completion,
    completions,
    context_of,
    encode_texts,
)
from decoding_jax.text.calls import DEFAULT_LENGTH, Batch, find_strategy, keys_of, stop_of
from decoding_jax.text.clock import Clock
from decoding_jax.text.drafting import check_drafter
from decoding_jax.text.generation_config import GenerationConfig
from decoding_jax.text.generation_config.call import chooser_of, chosen_arguments
from decoding_jax.text.growing import REPLACEMENT
from decoding_jax.text.loading import Model
from decoding_jax.text.shared_prefix import with_common_prefix
from decoding_jax.text.sizes import round_up
from decoding_jax.text.stop_strings import StopTexts, with_strings
from decoding_jax.text.token_scores import GrowingScores
from decoding_jax.text.tokenizers import Tokenizer


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
    stop_strings: StopTexts | None = None,
    max_time: float | None = None,
    config: GenerationConfig | None = None,
    with_scores: bool | int = False,
    share_prefix: bool = False,
    **settings: Any,
) -> Iterator[list[list[Completion]]]:
    """Yields the completions of all texts so far, after every ``chunk`` new tokens.

    The last item is equal to the result of ``generate``. In earlier items, an incomplete character
    at the end of a text is left out. A later item may lack tokens of an earlier one, if a search
    drops them, or spaces, if the tokenizer does; ``stream_text`` yields only text that is final.

    Args:
      model, tokenizer, texts, key, drafter, max_new_tokens, stop, stop_strings, max_time, config,
        share_prefix, **settings: as for ``generate``. The texts are decoded as one batch.
      with_scores: as for ``generate``. Tokens are scored before every item, but only those that
        have changed since the last one.
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
    given = {"strategy": strategy, "key": key, "drafter": drafter, "chunk": chunk}
    given |= {"max_new_tokens": max_new_tokens, "stop": stop}
    given |= {"stop_strings": stop_strings, "max_time": max_time, "config": config}
    given |= {"with_scores": with_scores, "share_prefix": share_prefix}
    call = StreamedCall(model, tokenizer, texts, **given, **settings)
    for growth in call.run():
        rows_so_far = call.completions(growth.output)
        if not growth.last:
            rows_so_far = [
                [c._replace(text=c.text.rstrip(REPLACEMENT)) for c in row] for row in rows_so_far
            ]
        yield rows_so_far


class Growth(NamedTuple):
    """The output so far, as NumPy arrays.

    Attributes:
      output: of all rows, including the copies that fill up the batch.
      settled: int32 ``[B, N]``, the number of leading tokens of each sequence that are final.
      last: whether all texts are done, or the time is up.
    """

    output: DecodeOutput
    settled: np.ndarray
    last: bool


class StreamedCall:
    """A call of ``stream``, whose arguments are checked and whose texts are encoded.

    Args:
      model, tokenizer, texts, strategy, key, drafter, chunk, max_new_tokens, stop, stop_strings,
        max_time, config, with_scores, share_prefix, **settings: as for ``stream``.

    Attributes:
      tokenizer: the tokenizer.
      ids: the tokens of each text.
      context: the tokens that each text continues, or None where they continue none.

    Raises:
      ValueError: as ``stream``.
    """

    def __init__(
        self,
        model: Model | LanguageModel,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        *,
        strategy: Any = None,
        key: Array | None = None,
        drafter: Any = None,
        chunk: int = 1,
        max_new_tokens: int | None = None,
        stop: Stop | None = None,
        stop_strings: StopTexts | None = None,
        max_time: float | None = None,
        config: GenerationConfig | None = None,
        with_scores: bool | int = False,
        share_prefix: bool = False,
        **settings: Any,
    ):
        chooser = chooser_of(strategy, config, tokenizer, settings)
        if chooser is not None:
            given = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
            given |= {"stop_strings": stop_strings, "max_time": max_time}
            chosen = chosen_arguments(model, tokenizer, texts, chooser, key, drafter, given)
            strategy, key, drafter = (chosen.pop(name) for name in ("strategy", "key", "drafter"))
            max_new_tokens, stop = chosen.pop("max_new_tokens"), chosen.pop("stop")
            max_time = chosen.pop("max_time")
            settings, stop_strings = chosen, None
        stop = with_strings(stop, stop_strings)
        strategy = "greedy" if strategy is None else strategy
        settings = with_defaults(strategy, settings)
        max_new_tokens = DEFAULT_LENGTH if max_new_tokens is None else max_new_tokens
        checked_settings = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
        check_arguments(model, tokenizer, texts, strategy, key, checked_settings, chunk=chunk)
        num_alternatives = check_with_scores(with_scores, model)
        run, registered = find_strategy(strategy)
        self._build = loop.steps_of(run)
        required = key is not None if callable(strategy) else draws(run, settings)
        keys = keys_of(required, key, len(texts))
        self.tokenizer, self.ids = tokenizer, encode_texts(tokenizer, texts)
        check_tokens(model, self.ids)
        model = with_common_prefix(model, self.ids, share_prefix)
        drafter = check_drafter(self._build, drafter)
        rows = [*range(len(self.ids)), *[0] * (round_up(len(self.ids)) - len(self.ids))]
        batch = Batch(model, [self.ids[i] for i in rows], max_new_tokens)
        all_settings = {"stop": stop_of(stop, tokenizer, model, self.ids), "drafter": drafter}
        all_settings |= settings
        batch_settings = take_rows(all_settings, rows, len(self.ids), row_arguments(run))
        if (bound_drafter := batch.bind_drafter(batch_settings.pop("drafter"))) is not None:
            batch_settings["drafter"] = bound_drafter
        self.context = context_of(model, self.ids)
        self._scores = None
        if num_alternatives is not None:
            self._scores = GrowingScores(batch.model, batch.prompt, num_alternatives)
        self._args = (batch.model, batch.prompt, None if keys is None else keys[jnp.asarray(rows)])
        settings = batch.with_length(batch_settings, bound_drafter, registered=registered)
        self._clock = Clock(max_time, chunk, model=model)
        self._settings: dict[str, Any] = {"chunk": self._clock.steps, **settings}

    def run(self) -> Iterator[Growth]:
        """Decodes, and yields what has been decoded after every ``chunk`` new tokens."""
        progress = loop.stream_progress(self._build, *self._args, **self._settings)
        last = False
        while not last:
            with compilation_announced():
                so_far = next(progress)
            last = bool(so_far.last) or self._clock.is_over(so_far.output)
            output, settled = to_host((so_far.output, so_far.settled))
            yield Growth(output, settled, last)

    def first_prompt(self) -> np.ndarray:
        """The prompt of the first row, int64 ``[1, P]``; of an encoder-decoder, its start token."""
        prompt = jax.device_get(self._args[1])
        return prompt.tokens[:1, : prompt.length[0]].astype(np.int64)

    def completions(self, output: DecodeOutput) -> list[list[Completion]]:
        """The completions of an output, as ``generate`` returns them."""
        scores = None
        if self._scores is not None:
            with compilation_announced():
                scores = self._scores(output.tokens, output.length)
        return completions(self.tokenizer, output, len(self.ids), self.context, scores)
