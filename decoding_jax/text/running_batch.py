"""``RunningBatch``: texts that arrive one by one, and are decoded in one batch."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax import fields, rows, suggestions
from decoding_jax.base import Array, LanguageModel
from decoding_jax.batches import widths
from decoding_jax.batches.call import Call
from decoding_jax.batches.open_rows import OpenRows
from decoding_jax.batches.row_inputs import RowInputMaker, RowInputs, SplitInputs
from decoding_jax.loop import forms
from decoding_jax.loop.inputs import check_settings, check_stop
from decoding_jax.loop.refill import obstacle, widens
from decoding_jax.sharding.meshes import mesh_of
from decoding_jax.text.call import TextCall, check_inputs
from decoding_jax.text.chat import Conversation
from decoding_jax.text.inputs import vocabulary_size
from decoding_jax.text.limits import DEFAULT_LENGTH
from decoding_jax.text.loading import Model
from decoding_jax.text.response_formats import ResponseFormat, joined
from decoding_jax.text.stop_strings import (
    are_begun,
    shared_strings,
    with_strings,
)
from decoding_jax.text.stream_text import TextStream
from decoding_jax.text.streaming import Clock, GrowingTexts, Growth
from decoding_jax.text.tokenizers import Tokenizer


class RunningBatch:
    """A batch that texts join and leave while it runs, such as those of requests to a server.

    Each text has the tokens that ``generate`` gives it alone with the same key and settings,
    whenever it comes and whatever runs beside it. (A network's logits may differ in their last bits
    between programs of other shapes, unless it is loaded with ``reproducible=True``.) It may have
    its own key, its own limit, and its own value of every setting that may differ by row
    (``decoding_jax.rows``). It may also choose its ``response_format`` or constraint among those of
    the batch: their automata are joined to one when the batch is made (``constraints.by_row``), in
    which a text has no more than a state of its own to begin in, so that no choice compiles. A step
    costs what it does with the largest of them, and the tables take the memory of all. Whatever
    else determines shapes or tables, such as the number of samples, the transforms of a chain, a
    language or the stop strings, is that of the first text.

    One thread decodes, and waits while there is nothing to do. A text is prefilled by itself and
    takes a free row (iteration-level scheduling: Yu et al. 2022, "Orca"). Where no row is free it
    waits, and where ``max_waiting`` texts wait, ``submit`` does. What has been decoded of a text
    and not been read is kept in one piece. The first text compiles the programs, and so does the
    first one of each width.

    Args:
      model, tokenizer: as for ``generate``, and the same for ``strategy``, ``drafter``, ``stop``,
        ``stop_strings``, ``max_time``, ``response_format``, ``with_scores``, ``truncate`` and the
        settings of the strategy.
      batch_size: the number of rows.
      max_input_length: the largest number of tokens of a text.
      max_new_tokens: the largest limit of a text, and the limit of one that names none.
      max_waiting: the largest number of texts that wait for a row.
      chunk: the number of steps between two pieces of a text; None for as many as fit into 50 ms.
      response_formats: what texts may have as their ``response_format``: those of ``generate``, or
        constraints of ``decoding_jax.constraints``. None for it is any text.

    Raises:
      ValueError: for a setting that is not valid, in one line that names it.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr-draft")
      >>> with RunningBatch(model, tokenizer, batch_size=2, max_input_length=16) as batch:
      ...     streams = [batch.submit(text) for text in ("I am here.", "Thank you.", "Yes.")]
      ...     texts = ["".join(stream) for stream in streams]
      >>> texts == [stream.output[0][0].text for stream in streams]
      True
    """

    def __init__(
        self,
        model: Model | LanguageModel,
        tokenizer: Tokenizer,
        *,
        batch_size: int = 8,
        max_input_length: int = 512,
        max_new_tokens: int = DEFAULT_LENGTH,
        max_waiting: int = 64,
        chunk: int | None = None,
        stop: Any = None,
        stop_strings: Any = None,
        response_formats: Sequence[Any] = (),
        **settings: Any,
    ):
        counts = {"batch_size": batch_size, "max_input_length": max_input_length}
        counts |= {"max_new_tokens": max_new_tokens, "max_waiting": max_waiting}
        counts |= {} if chunk is None else {"chunk": chunk}
        check_inputs("generate", counts, model, tokenizer, ())
        mesh = mesh_of(model)
        if mesh is not None and len({d.process_index for d in mesh.devices.flat}) > 1:
            raise ValueError(
                "model: expected one on devices of this process, to which texts come, got one on a "
                "mesh of several processes"
            )
        _check_names(settings)
        self._model, self._tokenizer = model, tokenizer
        stop = with_strings(stop, stop_strings)
        if stop is not None:
            stop = shared_strings(check_stop("stop", stop), tokenizer, model)
        self._settings = {**settings, "stop": stop}
        self._formats = _joined_formats(response_formats, tokenizer, vocabulary_size(model))
        self._size, self._length, self._max_waiting = batch_size, max_new_tokens, max_waiting
        self._widths = widths.widths(max_input_length, shared=widths.shared_size(model))
        self._clock = Clock(None, chunk, model=model)
        self._first: _First | None = None
        self._batch: OpenRows | None = None
        self._waiting: deque[_Submitted] = deque()
        self._places: dict[int, _Submitted] = {}
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._worker = threading.Thread(target=self._run, name="RunningBatch", daemon=True)
        self._worker.start()

    @suggestions.in_one_line
    def submit(
        self,
        text: str | Conversation,
        *,
        key: Array | None = None,
        max_new_tokens: int | None = None,
        **settings: Any,
    ) -> TextStream:
        """Gives a text to the batch, once there is room for it to wait.

        Its ``max_time`` counts from now on, and its ``with_scores`` is for its own completions.

        Args:
          text: a text or a conversation, as for ``generate``.
          key: a typed key, for strategies that draw, as of ``generate(model, tokenizer, [text])``.
          max_new_tokens: the limit of this text, at most that of the batch, which is the default.
          **settings: those in the place of settings of the batch; ``response_format`` is one of its
            ``response_formats``, if it has any.

        Returns:
          The pieces of its completions. Its ``close()`` takes the text back.

        Raises:
          ValueError: as ``generate``; for a text or a limit that is too long; and for a setting of
            another form than that of the first text, by its name.
          RuntimeError: for a batch that is closed, or whose decoding has failed.
        """
        _check_names(settings, also=("drafter",))
        limit = self._length if max_new_tokens is None else max_new_tokens
        given = {**self._settings, **settings, "max_new_tokens": limit}
        if self._formats:
            given["response_format"] = _format_of(given, self._formats)
        call = TextCall("stream", {}, self._model, self._tokenizer, [text], key=key, **given)
        if self._formats and forms.value_of(call.call.strategy, "language") is not None:
            # A text without a format would have a language too, which only whole texts are of.
            expected = "none for a strategy with a language, whose texts have one format"
            raise fields.error("response_formats", expected, [named for named, _ in self._formats])
        if (size := len(call.ids[0])) > self._widths[-1]:
            expected = f"at most {self._widths[-1]} tokens, the max_input_length"
            raise ValueError(f"text: expected {expected}, got {size}")
        if call.limits.totals[0] > self._length:
            expected = f"at most {self._length}, that of the batch"
            raise fields.error("max_new_tokens", expected, limit)
        submitted = _Submitted(call, self._wake, *self._inputs(call))
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._waiting) < self._max_waiting)
            if self._error is not None:
                expected = "batch: expected one that runs, got one that has ended"
                raise RuntimeError(f"{expected} ({self._error})") from self._error
            self._waiting.append(submitted)
            self._changed.notify_all()
        return TextStream(submitted)

    def close(self) -> None:
        """Ends the batch; a text that has not ended raises a ``RuntimeError`` where it is read."""
        self._end(RuntimeError("batch: closed before the text had ended"))
        self._worker.join()

    @property
    def has_ended(self) -> bool:
        """Whether the batch is closed, or its decoding has failed: it takes no further text."""
        return self._error is not None

    def __enter__(self) -> RunningBatch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _inputs(self, call: TextCall) -> tuple[SplitInputs, int]:
        """The arguments of the row of a text, and the width that they are padded to."""
        maker = RowInputMaker(_of_one_row(call, self._length), None)
        maker.expect(1)
        words, widest = maker.key_words([0]), self._widths[-1]

        def make(width: int, count: int = 1) -> RowInputs:
            return maker.make(call.ids, [0], words, width, count)

        with self._changed:
            if self._first is None:
                few, more = make(widest), make(widest, 2)
                check_settings(few.strategy, few.model)
                if (reason := obstacle(few.call, more.call)) is not None:
                    expected = "one whose rows can be exchanged one by one"
                    raise ValueError(f"strategy: expected {expected}, got another: {reason}")
                self._first = _First(maker.split(few), few.strategy, widens(few.call))
            first = self._first
        width = next(w for w in self._widths if w >= len(call.ids[0])) if first.widens else widest
        row = make(width)
        check_settings(row.strategy, row.model)
        if (name := _differing(first.strategy, row.strategy)) is not None:
            raise ValueError(
                f"{name}: expected what the first text of the batch has, in which numbers that may "
                "differ by row have other values, got another"
            )
        return maker.split(row), width

    def _run(self) -> None:
        """Decodes, in a thread of its own, until the batch is closed or decoding fails."""
        try:
            while self._step():
                pass
        except Exception as error:  # It is raised where texts are read.
            self._end(error)
        with self._changed:
            left = [*self._waiting, *self._places.values()]
            self._waiting.clear()
        for submitted in left:
            submitted.fail(self._error)

    def _step(self) -> bool:
        """Waits until there is something to do, and does some of it; False once the batch ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._waiting or self._places)
            if self._error is not None:
                return False
        for place in [place for place, x in self._places.items() if x.is_closed]:
            assert self._batch is not None
            self._batch.remove(place)
            del self._places[place]
        while (submitted := self._next()) is not None:
            try:
                self._begin(submitted)
            except Exception as error:
                submitted.fail(error)
                raise
        if self._batch is not None and self._places:
            for place, row in self._batch.advance(self._clock.next_steps()).items():
                ended = row.ended or self._places[place].clock.is_over(row.output)
                self._places[place].give(Growth(row.output, row.settled, ended))
                if ended:
                    self._batch.remove(place)
                    del self._places[place]
        return True

    def _next(self) -> _Submitted | None:
        """The next text that waits, if there is a free row for it."""
        with self._changed:
            self._waiting = deque(s for s in self._waiting if not s.is_closed)
            self._changed.notify_all()  # There may be room for another one.
            is_free = len(self._places) < self._size
            return self._waiting.popleft() if self._waiting and is_free else None

    def _begin(self, submitted: _Submitted) -> None:
        if self._batch is None:
            assert self._first is not None
            name = forms.name_of(self._first.strategy)
            self._batch = OpenRows(self._first.inputs, self._widths[-1], self._size, name)
        self._places[self._batch.insert(submitted.inputs, submitted.width)] = submitted

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _end(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


class _First(NamedTuple):
    """What the first text of a batch determines."""

    inputs: SplitInputs  # At the width of the batch.
    strategy: Any
    widens: bool  # Whether texts may be prefilled at smaller widths.


class _Submitted(GrowingTexts):
    """A text that a ``RunningBatch`` decodes.

    Args:
      call: the call of this text alone.
      wake: tells the batch that something has changed.
      inputs, width: as for ``OpenRows.insert``.

    Attributes:
      clock: decides when its time is up.
      is_closed: whether nobody reads it any more.
    """

    def __init__(self, call: TextCall, wake: Callable[[], None], inputs: SplitInputs, width: int):
        super().__init__(call, None if call.num_alternatives is None else call.rows([0], 1))
        self.inputs, self.width = inputs, width
        self.clock = Clock(call.max_time, model=call.call.model)
        self.is_closed = False
        self._wake = wake
        self._latest: Growth | None = None
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def run(self) -> Iterator[Growth]:
        """Yields what has been decoded, as it comes; without what came while nobody read."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._latest or self._error or self.is_closed)
                growth, self._latest = self._latest, None
            if self.is_closed:
                return
            if growth is None:
                assert self._error is not None
                raise self._error
            yield growth
            if growth.last:
                return

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._wake()

    def give(self, growth: Growth) -> None:
        """Takes what has been decoded so far, in the place of what has not been read."""
        with self._changed:
            self._latest = growth
            self._changed.notify_all()

    def fail(self, error: Exception | None) -> None:
        """Takes the error that ended the decoding."""
        with self._changed:
            self._error = error
            self._changed.notify_all()


def _check_names(settings: Mapping[str, Any], also: Sequence[str] = ()) -> None:
    """Refuses what only calls of whole texts take, and other names."""
    for name in ("share_prefix", *also):
        if settings.get(name):
            raise fields.error(name, "none for a text that joins a batch", settings[name])


def _joined_formats(
    asked: Any, tokenizer: Tokenizer, vocab_size: int
) -> list[tuple[Any, ResponseFormat]]:
    """The formats that a text may name, and None, with what they are made to; none for none."""
    if isinstance(asked, (str, Mapping)) or not isinstance(asked, Sequence):
        raise fields.error("response_formats", "a list of formats and constraints", asked)
    if not asked:
        return []
    named = [*asked, None]
    return list(zip(named, joined(named, tokenizer, vocab_size), strict=True))


def _format_of(
    given: Mapping[str, Any], formats: Sequence[tuple[Any, ResponseFormat]]
) -> ResponseFormat:
    """The format of a text, among those of its batch."""
    if given.get("tools") is not None:
        raise fields.error("tools", "None in a batch with response_formats", given["tools"])
    asked = given.get("response_format")
    for named, made in formats:
        if named is asked:
            return made
    if isinstance(asked, dict):
        written = json.dumps(asked, default=repr)  # The order of properties is that of the text.
        for named, made in formats:
            if isinstance(named, dict) and json.dumps(named, default=repr) == written:
                return made
    raise fields.error("response_format", "one of the batch's response_formats, or None", asked)


def _of_one_row(call: TextCall, length: int) -> Call:
    """The call of a text, each of whose settings has an axis of rows if it may have one."""
    strategy = forms.with_values(call.call.strategy, max_new_tokens=length)
    stop = strategy.stop
    if stop.strings is not None:
        begun = are_begun(call.tokenizer, call.call.model, call.ids)
        stop = dataclasses.replace(stop, strings=dataclasses.replace(stop.strings, begun=begun))
    values = {name: getattr(strategy, name) for name in _settings_of(strategy)} | {"stop": stop}
    spread = rows.of_one_row(values, rows.row_arguments(type(strategy)))
    return dataclasses.replace(call.call, strategy=forms.with_values(strategy, **spread))


def _settings_of(strategy: Any) -> list[str]:
    """The settings of a strategy that are not static, but for its drafter."""
    declared = dataclasses.fields(strategy)
    return [f.name for f in declared if not f.metadata.get("static") and f.name != "drafter"]


def _differing(one: Any, other: Any) -> str | None:
    """A setting in which two strategies differ by more than values of rows, or None."""
    if type(one) is not type(other):
        return "strategy"
    arguments = rows.row_arguments(type(one))
    for setting in dataclasses.fields(one):
        mine, its = getattr(one, setting.name), getattr(other, setting.name)
        if setting.metadata.get("static") and mine != its:
            return setting.name
    for name in _settings_of(one):
        mine, its = getattr(one, name), getattr(other, name)
        of_row = rows.take_rows({name: mine}, [0], 1, arguments)[name]
        structure: Any = jax.tree.structure(mine)
        if structure != jax.tree.structure(its):
            return name
        parts = zip(*map(jax.tree.leaves, (mine, its, of_row)), strict=True)
        if not all(_is_same(x, y, by_row=x is not taken) for x, y, taken in parts):
            return name
    return None


def _is_same(one: Any, other: Any, *, by_row: bool) -> bool:
    """Whether two arrays are equal or, if each row has its own, of one shape."""
    if one is other:
        return True
    return np.shape(one) == np.shape(other) and (by_row or np.array_equal(one, other))
