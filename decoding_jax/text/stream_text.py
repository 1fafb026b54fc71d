"""``stream_text``: decoded text in pieces that are final, for people who read along."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import jax
import numpy as np

from decoding_jax import loop
from decoding_jax.base import Array, LanguageModel, Stop
from decoding_jax.fields import describe
from decoding_jax.text.batch import Completion, continuation
from decoding_jax.text.chat import Conversation
from decoding_jax.text.generation_config import GenerationConfig
from decoding_jax.text.growing import GrowingText
from decoding_jax.text.loading import Model
from decoding_jax.text.resolve import Arguments
from decoding_jax.text.stop_strings import StopTexts
from decoding_jax.text.streamers import Piece, Streamer, TextStreamer
from decoding_jax.text.streaming import Growth, StreamedCall
from decoding_jax.text.tokenizers import Tokenizer


def stream_text(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
    *,
    strategy: str | Callable[..., loop.Steps] | None = None,
    key: Array | None = None,
    drafter: Any = None,
    chunk: int | None = None,
    max_new_tokens: int | None = None,
    stop: Stop | None = None,
    stop_strings: StopTexts | None = None,
    max_time: float | None = None,
    config: GenerationConfig | None = None,
    with_scores: bool | int = False,
    share_prefix: bool = False,
    truncate: bool = False,
    **settings: Any,
) -> TextStream:
    """Decodes texts, and yields their completions in pieces that no later token changes.

    A piece never ends inside a character, and nothing is taken back. Joined, the pieces of a
    completion are the text that ``generate`` returns. A strategy that appends tokens yields the
    text of the next ``chunk`` tokens. A beam search yields, as the first completion of each text,
    the beginning that all its hypotheses share, and its other completions when the row is done. Any
    other search yields whole texts.

    A tokenizer of your own may have a method ``settled`` (see ``SettlingTokenizer``). Without it,
    the tokenizer is assumed to change nothing but replacement characters at the end of a text.

    Args:
      model, tokenizer, texts, key, drafter, max_new_tokens, stop, stop_strings, max_time, config,
        share_prefix, truncate, **settings: as for ``generate``. The texts are decoded as one batch.
      strategy: a name as for ``generate``, or a function that returns ``loop.Steps``.
      chunk: the number of new tokens that are decoded at a time. With None, they are as many as
        take less than 50 ms, measured as they are decoded, so that a small model is not slowed down
        by reporting each token: the pieces then depend on the time, but not the text.
      with_scores: as for ``generate``: whether the completions of ``output`` have ``scores``.

    Returns:
      A ``TextStream``: an iterator of pieces, in ``for`` and in ``async for``.

    Raises:
      ValueError: as ``stream``, at once; and at the end, if the tokenizer changed a text that was
        given out.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr")
      >>> pieces = stream_text(model, tokenizer, ["Where is the station?"], chunk=1)
      >>> list(pieces)
      ['O', 'ù', ' est', ' la', ' gare', ' ?', '']
      >>> pieces.output[0][0].finished
      True
      >>> output = stream_text(model, tokenizer, ["Where is the station?"]).print()
      Où est la gare ?
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
    return TextStream(StreamedCall(model, tokenizer, texts, arguments, chunk, settings))


class TextStream:
    """The pieces of decoded texts, from ``stream_text``. It can be read once.

    ``async for`` runs each step in a thread, so that the event loop goes on. The mesh in context
    when the stream was made is in context there too; other context managers of JAX are not.

    Attributes:
      output: what ``generate`` returns, once all pieces have been read; None before.
    """

    def __init__(self, call: StreamedCall):
        self.output: list[list[Completion]] | None = None
        self._call, self._growths = call, call.run()
        self._pieces = self._all_pieces()
        self._count = 0  # of completions; known once the first tokens are decoded
        self._mesh = jax.sharding.get_mesh()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> Piece:
        piece = await asyncio.to_thread(self._next_in_thread)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def _next_in_thread(self) -> Piece | None:
        with contextlib.nullcontext() if self._mesh.empty else jax.set_mesh(self._mesh):
            return next(self._pieces, None)

    def print(self, file: IO[str] | None = None) -> list[list[Completion]]:
        """Prints the pieces as they come, and returns ``output``.

        Several completions are printed one below the other, each after its row and sample.

        Args:
          file: where to print, ``sys.stdout`` by default.
        """
        first = next(self._pieces, None)
        streamer = TextStreamer(file, labels=self._count > 1)
        if first is not None:
            streamer.put(first)
        return self.to(streamer)

    def to(self, streamer: Streamer, *, tokens: bool = False) -> list[list[Completion]]:
        """Puts all pieces into a streamer, ends it, and returns ``output``.

        Args:
          streamer: any object with ``put`` and ``end``.
          tokens: whether the streamer takes token ids instead of pieces, as those of
            ``transformers`` do: first the prompt's, int64 ``[1, P]``, then the new ones, ``[n]``.

        Raises:
          ValueError: for a streamer without these methods, or for ``tokens`` with more than one
            completion.
        """
        missing = [name for name in ("put", "end") if not hasattr(streamer, name)]
        if missing or isinstance(streamer, type):
            raise ValueError(
                f"streamer: got {describe(streamer)}; takes an object with put(value) and end()"
            )
        for value in self._all_tokens() if tokens else self._pieces:
            streamer.put(value)
        streamer.end()
        assert self.output is not None
        return self.output

    def _all_pieces(self) -> Iterator[Piece]:
        texts: dict[tuple[int, int], GrowingText] = {}
        ended = set()
        for growth in self._growths:
            for place, tokens, is_whole in self._new(growth):
                context = self._context(place[0])
                text = texts.get(place)
                if text is None:
                    text = texts[place] = GrowingText(self._call.tokenizer, context)
                if place in ended:
                    continue
                if is_whole:
                    ended.add(place)
                    piece = text.close(continuation(self._call.tokenizer, context, tokens))
                else:
                    piece = text.grow(tokens)
                if piece or is_whole:
                    yield Piece(piece, *place, last=is_whole)

    def _all_tokens(self) -> Iterator[np.ndarray]:
        given, has_begun = 0, False
        for growth in self._growths:
            news = list(self._new(growth))
            if self._count > 1:
                raise ValueError(f"tokens: got {self._count} completions; takes one")
            if not has_begun:
                has_begun = True
                yield self._call.first_prompt()
            for _, tokens, _ in news:
                if len(tokens) > given:
                    yield np.asarray(tokens[given:], np.int64)
                given = len(tokens)

    def _new(self, growth: Growth) -> Iterator[tuple[tuple[int, int], list[int], bool]]:
        """The row and sample of each completion, its final tokens, and whether these are all."""
        output, settled, last = growth
        rows, samples = len(self._call.ids), output.length.shape[1]
        self._count = rows * samples
        if last:
            self.output = self._call.completions(output)
            self._call.warn_of_cut(self.output)
            for row, found in enumerate(self.output):
                for sample, completion in enumerate(found):
                    yield (row, sample), completion.tokens, True
            return
        for row, sample in np.ndindex(rows, samples):
            count = int(settled[row, sample])
            is_whole = bool(output.finished[row, sample] & (count == output.length[row, sample]))
            yield (row, sample), output.tokens[row, sample, :count].tolist(), is_whole

    def _context(self, row: int) -> list[int]:
        return [] if self._call.context is None else list(self._call.context[row])
