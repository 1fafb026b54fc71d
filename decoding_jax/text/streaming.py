"""Texts that are decoded a few steps at a time: as a stream, or until the time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax import fields, suggestions
from decoding_jax.base import DecodeOutput, LanguageModel
from decoding_jax.batches.widths import round_up
from decoding_jax.loop import forms
from decoding_jax.loop.inputs import check_settings
from decoding_jax.loop.strategy import RowCall
from decoding_jax.loop.streaming import Progress, in_steps
from decoding_jax.ops.jit import compilation_announced
from decoding_jax.sharding.meshes import mesh_of, to_host
from decoding_jax.text.call import TextCall, with_arguments
from decoding_jax.text.chat import Conversation
from decoding_jax.text.completions import Completion
from decoding_jax.text.limits import warn_of_cut
from decoding_jax.text.loading import Model
from decoding_jax.text.token_scores import GrowingScores
from decoding_jax.text.token_texts import REPLACEMENT
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn_of_nan_logits, warn_of_no_text

_CHUNK_SECONDS = 0.05  # that a chunk of steps should take


@suggestions.in_one_line
@with_arguments
def stream(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
    *,
    chunk: int = 1,
    **arguments: Any,
) -> Iterator[list[list[Completion]]]:
    """Yields the completions of all texts so far, after every ``chunk`` new tokens.

    The last item is equal to the result of ``generate``. In earlier items, an incomplete character
    at the end of a text is left out. A later item may lack tokens of an earlier one, if a search
    drops them, or spaces, if the tokenizer does; ``stream_text`` yields only text that is final.

    Args:
      model, tokenizer, texts: as for ``generate``. The texts are decoded as one batch.
      chunk: the number of new tokens between two items.
      strategy: as for ``generate``, but no function of your own, which runs to its end.
      with_scores: as for ``generate``. Tokens are scored before every item, but only those that
        have changed since the last one.
      **arguments: the other arguments and settings, as for ``generate``.

    Raises:
      ValueError: as ``generate``, and if ``texts`` is empty.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr")
      >>> *_, last = stream(model, tokenizer, ["Where is the station?"])
      >>> last[0][0].text
      'Où est la gare ?'
    """
    call = StreamedCall(
        TextCall("stream", {"chunk": chunk}, model, tokenizer, texts, **arguments), chunk
    )
    for growth in call.run():
        rows = call.completions(growth)
        if not growth.last:
            rows = [[c._replace(text=c.text.rstrip(REPLACEMENT)) for c in row] for row in rows]
        yield rows


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


class GrowingTexts:
    """The texts of a call while they are decoded; a subclass says where.

    Args:
      call: the call.
      rows: its rows, for the scores of its tokens; None without any.
    """

    def __init__(self, call: TextCall, rows: RowCall | None):
        self.call, self._members = call, range(len(call.ids))
        self._scores: GrowingScores | None = None
        if rows is not None and call.num_alternatives is not None:
            self._scores = GrowingScores(rows.model, rows.prompt, call.num_alternatives)
        self._warned = False

    def run(self) -> Iterator[Growth]:
        """Yields what has been decoded, now and then until all texts are done."""
        raise NotImplementedError

    def close(self) -> None:
        """Says that nothing more is read."""

    def first_prompt(self) -> np.ndarray:
        """The prompt of the first row, int64 ``[1, P]``; of an encoder-decoder, its start token."""
        prompt = jax.device_get(self.call.rows(self._members[:1], 1).prompt)
        return prompt.tokens[:, : prompt.length[0]].astype(np.int64)

    def completions(self, growth: Growth) -> list[list[Completion]]:
        """The completions so far, as ``generate`` returns them; warns once of what they lack."""
        output, scores = growth.output, None
        if self._scores is not None:
            with compilation_announced():
                scores = self._scores(output.tokens, output.length)
        made = self.call.completions(output, self._members, scores)
        self._warned = self._warned or warn_of_nan_logits(made)
        if growth.last:
            warn_of_cut(made, self.call.limits)
            if self.call.has_language:
                warn_of_no_text(made)
        return made


class StreamedCall(GrowingTexts):
    """The texts of a call, decoded as one batch, which nothing joins.

    Args:
      call: the call.
      chunk: the number of steps between two reports, or None for as many as fit into 50 ms.
    """

    def __init__(self, call: TextCall, chunk: int | None):
        self._rows = call.rows(range(len(call.ids)), round_up(len(call.ids)))
        super().__init__(call, self._rows)
        self._clock = Clock(call.max_time, chunk, model=call.call.model)

    def run(self) -> Iterator[Growth]:
        """Decodes, and yields what has been decoded after every ``chunk`` new tokens."""
        progress = self._clock.progress(self._rows)
        last = False
        while not last:
            with compilation_announced():
                so_far, last = next(progress)
            output, settled = to_host((so_far.output, so_far.settled))
            yield Growth(output, settled, last)


class Clock:
    """Decides when a call has to end, and how many steps to run until the next check of the time.

    Args:
      max_time: seconds from now on, or None for no limit.
      chunk: the number of steps between two checks, or None for as many as fit into 50 ms (on a
        mesh of several processes, for one).
      model: the model that is called.

    Raises:
      ValueError: for anything but None or a number above 0, and for a number with a model on a mesh
        of several processes, whose clocks differ.
    """

    def __init__(self, max_time: float | None, chunk: int | None = None, *, model: Any):
        is_number = isinstance(max_time, (int, float)) and not isinstance(max_time, bool)
        if max_time is not None and not (is_number and max_time > 0):
            raise fields.error("max_time", "seconds above 0", max_time)
        mesh = mesh_of(model)
        several = mesh is not None and len({d.process_index for d in mesh.devices.flat}) > 1
        if several and max_time is not None:
            raise ValueError(
                "max_time: expected None with a model on a mesh of several processes, whose clocks "
                f"differ, got {max_time}"
            )
        self._last = time.monotonic()
        self._end = math.inf if max_time is None else self._last + max_time
        self._chunk, self._steps = 1 if several and chunk is None else chunk, 1

    def progress(self, rows: RowCall) -> Iterator[tuple[Progress, bool]]:
        """Runs a call to its end, or until the time is up.

        Yields:
          What has been decoded after every few steps, and whether it is the last.

        Raises:
          ValueError: for settings that do not fit the model.
        """
        check_settings(rows.strategy, rows.model)
        for so_far in in_steps(rows, self.next_steps):
            last = bool(so_far.last) or self.is_over(so_far.output)
            yield so_far, last
            if last:
                return

    def is_over(self, output: DecodeOutput) -> bool:
        """Whether the time is up, and the output has a token.

        Some strategies choose their first token in a step, not in the prefill.
        """
        return time.monotonic() >= self._end and bool(output.length.any())

    def next_steps(self) -> int:
        """The number of steps to run next, from the time since the last call."""
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        if self._chunk is not None:
            return self._chunk
        if elapsed < _CHUNK_SECONDS / 2:
            self._steps *= 2
        elif elapsed > _CHUNK_SECONDS:
            self._steps = max(1, self._steps // 2)
        return self._steps


def run_until(clock: Clock, rows: RowCall) -> DecodeOutput:
    """Runs a call to its end, or until the time is up.

    Raises:
      ValueError: for a function of a caller's own, which cannot be interrupted.
    """
    forms.check_in_steps("max_time", rows.strategy)
    for so_far, last in clock.progress(rows):
        if last:
            output = so_far.output
    return output
