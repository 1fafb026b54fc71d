"""``stream_text``: decoded text in pieces that are final, for people who read along."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any, Protocol

import jax
import numpy as np

from decoding_jax import fields, suggestions
from decoding_jax.base import LanguageModel
from decoding_jax.text.call import TextCall, with_arguments
from decoding_jax.text.chat import Conversation
from decoding_jax.text.completions import Completion
from decoding_jax.text.continuations import GrowingText, continuation
from decoding_jax.text.loading import Model
from decoding_jax.text.streaming import GrowingTexts, Growth, StreamedCall
from decoding_jax.text.tokenizers import Tokenizer


@suggestions.in_one_line
@with_arguments
def stream_text(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
    *,
    chunk: int | None = None,
    **arguments: Any,
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
      model, tokenizer, texts: as for ``generate``. The texts are decoded as one batch.
      chunk: the number of new tokens that are decoded at a time. With None, they are as many as
        take less than 50 ms, measured as they are decoded, so that a small model is not slowed down
        by reporting each token: the pieces then depend on the time, but not the text.
      strategy: as for ``generate``, but no function of your own, which runs to its end.
      with_scores: as for ``generate``: whether the completions of ``output`` have ``scores``.
      **arguments: the other arguments and settings, as for ``generate``.

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
    counts = {} if chunk is None else {"chunk": chunk}
    return TextStream(
        StreamedCall(TextCall("stream", counts, model, tokenizer, texts, **arguments), chunk)
    )


class TextStream:
    """The pieces of decoded texts, from ``stream_text`` or a ``RunningBatch``. It is read once.

    ``async for`` runs each step in a thread, so that the event loop goes on. The mesh in context
    when the stream was made is in context there too; other context managers of JAX are not.

    Attributes:
      input_lengths: the number of tokens of each text.
      output: what ``generate`` returns, once all pieces have been read; None before.
    """

    def __init__(self, streamed: GrowingTexts):
        self.output: list[list[Completion]] | None = None
        self._call, self._streamed, self._growths = streamed.call, streamed, streamed.run()
        self.input_lengths = [len(ids) for ids in streamed.call.ids]
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

    def close(self) -> None:
        """Ends the decoding; there are no further pieces. A row of a ``RunningBatch`` is free."""
        self._streamed.close()
        self._pieces = iter(())

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
            raise fields.error("streamer", "an object with put(value) and end()", streamer)
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
                prompts = self._call.context
                context = [] if prompts is None else list(prompts[place[0]])
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
                raise ValueError(f"tokens: expected one completion, got {self._count}")
            if not has_begun:
                has_begun = True
                yield self._streamed.first_prompt()
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
            self.output = self._streamed.completions(growth)
            for row, found in enumerate(self.output):
                for sample, completion in enumerate(found):
                    yield (row, sample), completion.tokens, True
            return
        for row, sample in np.ndindex(rows, samples):
            count = int(settled[row, sample])
            is_whole = bool(output.finished[row, sample] & (count == output.length[row, sample]))
            yield (row, sample), output.tokens[row, sample, :count].tolist(), is_whole


class Piece(str):
    """A piece of text that is final: a string with the place of its completion.

    Attributes:
      row: the index of its input among the texts.
      sample: its place among the completions of that input.
      last: whether its completion ends with it. A last piece may be empty.

    Example:
      >>> piece = Piece(" gare", row=0, sample=2)
      >>> piece.strip(), piece.sample
      ('gare', 2)
    """

    row: int
    sample: int
    last: bool

    def __new__(cls, text: str, row: int = 0, sample: int = 0, last: bool = False) -> Piece:
        piece = super().__new__(cls, text)
        piece.row, piece.sample, piece.last = row, sample, last
        return piece


class Streamer(Protocol):
    """The two methods of a streamer, named as in ``transformers``."""

    def put(self, value: Any) -> None:
        """Takes the next value: a ``Piece``, or token ids (see ``TextStream.to``)."""
        ...

    def end(self) -> None:
        """Is called once, after the last value."""
        ...


class TextStreamer:
    """Prints pieces as they come, and a line break after each completion.

    Of several completions, one grows on the screen, and the pieces of the others wait until it is
    done.

    Args:
      file: where to print, ``sys.stdout`` by default.
      labels: whether each completion is printed after its row and sample, as ``[0.2]``.

    Example:
      >>> streamer = TextStreamer(labels=True)
      >>> for piece in Piece("Bon"), Piece("Salut", row=1, last=True), Piece("jour", last=True):
      ...     streamer.put(piece)
      [0.0] Bonjour
      [1.0] Salut
    """

    def __init__(self, file: IO[str] | None = None, *, labels: bool = False):
        self._file, self._labels = file, labels
        self._current: tuple[int, int] | None = None
        self._waiting: dict[tuple[int, int], list[Piece]] = {}

    def put(self, value: Piece) -> None:
        """Prints a piece, or keeps it until its completion's turn."""
        place = (value.row, value.sample)
        if self._current not in (None, place):
            self._waiting.setdefault(place, []).append(value)
            return
        self._print(value)
        while self._current is None and self._waiting:
            for piece in self._waiting.pop(min(self._waiting)):
                self._print(piece)

    def end(self) -> None:
        """Ends a line that is still open."""
        if self._current is not None:
            self._write("\n")
            self._current = None

    def _print(self, piece: Piece) -> None:
        begins = self._current is None
        self._current = None if piece.last else (piece.row, piece.sample)
        label = f"[{piece.row}.{piece.sample}] " if self._labels and begins else ""
        self._write(label + piece + ("\n" if piece.last else ""))

    def _write(self, text: str) -> None:
        file = sys.stdout if self._file is None else self._file
        file.write(text)
        file.flush()
