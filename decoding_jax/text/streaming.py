"""Texts that are decoded as a stream: all completions so far, after every few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax import loop
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Stop
from decoding_jax.ops.jit import compilation_announced
from decoding_jax.ops.mesh import to_host
from decoding_jax.text.batch import Completion, completions, context_of
from decoding_jax.text.call_rows import rows_of
from decoding_jax.text.chat import Conversation
from decoding_jax.text.clock import Clock
from decoding_jax.text.generation_config import GenerationConfig
from decoding_jax.text.growing import REPLACEMENT
from decoding_jax.text.limits import check_together, warn_of_cut
from decoding_jax.text.loading import Model
from decoding_jax.text.nan_logits import warn_of_nan_logits
from decoding_jax.text.resolve import Arguments, resolve
from decoding_jax.text.sizes import round_up
from decoding_jax.text.stop_strings import StopTexts
from decoding_jax.text.token_scores import GrowingScores
from decoding_jax.text.tokenizers import Tokenizer


def stream(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
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
    truncate: bool = False,
    **settings: Any,
) -> Iterator[list[list[Completion]]]:
    """Yields the completions of all texts so far, after every ``chunk`` new tokens.

    The last item is equal to the result of ``generate``. In earlier items, an incomplete character
    at the end of a text is left out. A later item may lack tokens of an earlier one, if a search
    drops them, or spaces, if the tokenizer does; ``stream_text`` yields only text that is final.

    Args:
      model, tokenizer, texts, key, drafter, max_new_tokens, stop, stop_strings, max_time, config,
        share_prefix, truncate, **settings: as for ``generate``. The texts are decoded as one batch.
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
    arguments = Arguments(
        strategy,
        key,
        drafter,
        max_new_tokens,
        stop,
        stop_strings,
        max_time,
        config,
        with_scores,
        share_prefix,
        truncate,
    )
    call = StreamedCall(model, tokenizer, texts, arguments, chunk, settings)
    for growth in call.run():
        rows_so_far = call.completions(growth.output)
        if not growth.last:
            rows_so_far = [
                [c._replace(text=c.text.rstrip(REPLACEMENT)) for c in row] for row in rows_so_far
            ]
        yield rows_so_far
        if growth.last:
            call.warn_of_cut(rows_so_far)


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
      model, tokenizer, texts: as for ``stream``.
      arguments: its other arguments.
      chunk: the number of steps between two reports, or None for as many as fit into 50 ms.
      settings: its settings.

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
        texts: Sequence[str | Conversation],
        arguments: Arguments,
        chunk: int | None,
        settings: dict[str, Any],
    ):
        counts = {} if chunk is None else {"chunk": chunk}
        call = resolve("stream", model, tokenizer, texts, arguments, settings, **counts)
        self._build, self._limits = loop.strategy_of(call.run), call.limits
        self.tokenizer, self.ids = tokenizer, call.ids
        check_together(call.limits, texts, [len(row) for row in self.ids])
        count = len(self.ids)
        rows = rows_of(call, range(count), round_up(count))
        drafters = {} if rows.drafter is None else {"drafter": rows.drafter}
        self.context = context_of(call.model, self.ids)
        self._scores, self._warned = None, False
        if call.num_alternatives is not None:
            self._scores = GrowingScores(rows.model, rows.prompt, call.num_alternatives)
        self._args = (rows.model, rows.prompt, rows.keys)
        self._clock = Clock(call.max_time, chunk, model=model)
        self._settings: dict[str, Any] = {**rows.settings, **drafters, "chunk": self._clock.steps}

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
        made = completions(self.tokenizer, output, len(self.ids), self.context, scores)
        self._warned = self._warned or warn_of_nan_logits(made)
        return made

    def warn_of_cut(self, completed: Sequence[Sequence[Completion]]) -> None:
        """Warns of texts that a limit has cut that the caller did not name."""
        warn_of_cut(completed, self._limits)
