"""A call of ``generate``, ``stream`` or ``stream_text``: parsed, checked and bound to its texts."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from decoding_jax import batches, fields, loop, registry, transforms
from decoding_jax.base import Array, DecodeOutput, Stop
from decoding_jax.batches import widths
from decoding_jax.batches.row_inputs import RowInputMaker
from decoding_jax.loop import forms
from decoding_jax.loop.inputs import check_max_new_tokens, check_model
from decoding_jax.loop.strategy import RowCall
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.ops.random import check_keys
from decoding_jax.rows import take_rows
from decoding_jax.text import generation_config, inputs, limits, response_formats
from decoding_jax.text.chat import Conversation
from decoding_jax.text.completions import Completion, completions, context_of, parse_texts
from decoding_jax.text.shared_prefix import with_common_prefix
from decoding_jax.text.stop_strings import (
    StopTexts,
    are_begun,
    bound_languages,
    stop_of,
    with_strings,
)
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn

F = TypeVar("F", bound=Callable[..., Any])

_NOT_OF_BOTH = {"generate": ("texts", "batch_size", "progress"), "stream": ("texts", "chunk")}
"""The arguments of one of the calls alone, which a message may suggest too."""

_KEEP_THE_MOST_PROBABLE = (
    transforms.Temperature,
    transforms.TopK,
    transforms.TopP,
    transforms.MinP,
    transforms.Epsilon,
    transforms.Eta,
)
_ALTERNATIVES = 5  # of ``with_scores=True``
# A batch of so many rows or more is refilled if there are so many times as many texts.
_FEWEST_ROWS = 8
_REFILLED = 4


class TextCall:
    """A call of ``generate`` or ``stream``, checked before any other work, and its encoded texts.

    Args:
      caller: ``"generate"`` or ``"stream"``.
      counts: its ``batch_size`` or ``chunk``, by name.
      model, tokenizer, texts, strategy, key, drafter, max_new_tokens, stop, stop_strings, max_time,
        config, response_format, tools, tool_choice, with_scores, share_prefix, truncate,
        **settings: as for ``generate``.

    Attributes:
      call: the model, with the prefix that the texts share where that is wanted; the strategy, with
        the stop conditions, which of a registered strategy limit each text; the key; and the
        drafter.
      tokenizer: the tokenizer.
      ids: the tokens of each text.
      context: the tokens that each text continues, or None where they continue none.
      limits: the limit of each text.
      num_alternatives: the number of alternatives to score, or None without scores.
      format: the format of the answers, or None.

    Raises:
      ValueError: for the first mistake, in one line that names the argument.
    """

    def __init__(
        self,
        caller: str,
        counts: Mapping[str, Any],
        model: Any,
        tokenizer: Tokenizer,
        texts: Sequence[str | Conversation],
        /,
        *,
        strategy: str | loop.Strategy | Callable[..., Any] | None = None,
        key: Array | None = None,
        drafter: Any = None,
        max_new_tokens: int | None = None,
        stop: Stop | None = None,
        stop_strings: StopTexts | None = None,
        max_time: float | None = None,
        config: generation_config.GenerationConfig | None = None,
        response_format: Any = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        with_scores: bool | int = False,
        share_prefix: bool = False,
        truncate: bool = False,
        **settings: Any,
    ):
        # Parse: whatever is given becomes one ``Call``, or parameters that will choose one.
        truncate = fields.as_switch("truncate", truncate)
        check_inputs(caller, counts, model, tokenizer, texts)
        inputs.check_drafter(drafter, tokenizer)
        given = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
        chooser = generation_config.chooser_of(strategy, config, tokenizer, settings)
        if chooser is None:
            strategy = "greedy" if strategy is None else strategy
            call = parse(caller, model, strategy, given, key, drafter, stop_strings, max_time)
            warn_of_idle(call)
            asked = call.limits
        else:
            given |= {"stop_strings": stop_strings, "max_time": max_time}
            parameters = chooser.parameters(key, given)
            asked = parameters.limits
        size = inputs.vocabulary_size(model)
        self.format = response_formats.of(response_format, tokenizer, size, tools, tool_choice)
        ids = inputs.fitted(model, tokenizer, texts, asked, tools, truncate=truncate)
        if chooser is not None:
            call = parameters.call(
                model, tokenizer.eos_ids, [len(row) for row in ids], key=key, drafter=drafter
            )
            warn_of_idle(call)
        made = self.format
        if made is not None and made.constraint is not None:
            name = "response_format" if tools is None else "tools"
            kept = forms.constrained(call.strategy, name, made.constraint)
            call = dataclasses.replace(call, strategy=kept)
        # Check: the texts beside the model and the limits.
        self.num_alternatives = number_of_alternatives(with_scores, model)
        call = dataclasses.replace(call, key=_key_of(call, len(texts)))
        inputs.check_tokens(model, ids)
        stop = forms.value_of(call.strategy, "stop")
        if ids:
            take_rows({"stop": stop}, [0], len(ids))  # Refuses limits of another number of texts.
        registered = [entry.strategy for entry in registry.STRATEGIES.values()]
        self._registered = type(call.strategy) in registered
        self.limits = limits.limits_of(
            call.model, texts, ids, call.limits, stop, exact=not self._registered
        )
        if caller == "stream":
            limits.check_together(self.limits, texts, [len(row) for row in ids])
        # Bind: the model, the stop conditions and the languages to the texts.
        self.tokenizer, self.ids = tokenizer, ids
        self.call = self._bound(call, share_prefix)
        self.context = context_of(self.call.model, ids)
        self._rows = RowInputMaker(self.call, None)
        if ids:
            self._rows.expect(len(ids))
        self._key_words = self._rows.key_words(range(len(ids)))

    def _bound(self, call: batches.Call, share_prefix: bool) -> batches.Call:
        """The call, whose model, stop conditions and languages are those of the texts."""
        model = with_common_prefix(call.model, self.ids, share_prefix)
        stop = stop_of(forms.value_of(call.strategy, "stop"), self.tokenizer, model, self.ids)
        if self._registered and self.ids:
            stop = limits.limited(stop, self.limits.counts)
        strategy = bound_languages(
            forms.with_values(call.strategy, stop=stop),
            self.tokenizer,
            inputs.vocabulary_size(call.model),
            lambda: np.array(are_begun(self.tokenizer, call.model, self.ids)),
        )
        return dataclasses.replace(call, model=model, strategy=strategy)

    @property
    def max_time(self) -> float | None:
        """The seconds after which no further tokens are decoded, or None."""
        return self.call.limits.max_time

    @property
    def has_language(self) -> bool:
        """Whether texts are of a language, which a strategy may not reach."""
        return forms.value_of(self.call.strategy, "language") is not None

    def rows(self, members: Sequence[int], size: int) -> RowCall:
        """The call of the strategy for some texts, padded to one of a few sizes.

        Registered strategies obey ``stop.max_new_tokens``, which limits each text and whose value
        is not part of the program. So their ``max_new_tokens`` is rounded up. Other functions get
        the exact value.

        Args:
          members: the texts, by number.
          size: the number of rows. They are filled up with copies of the first text, so that fewer
            shapes are compiled.
        """
        width, length = self._shape(members)
        words = None if self._key_words is None else self._key_words[list(members)]
        ids = [self.ids[i] for i in members]
        made = self._rows.make(ids, members, words, width, size)
        length = self._rounded(length, made)
        strategy = forms.with_values(made.strategy, max_new_tokens=length)
        return made._replace(strategy=strategy).call

    def refilled(
        self, order: Sequence[int], batch_size: int
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]] | None:
        """The outputs of texts as they end, where other texts then take their places.

        This is for many times as many texts as rows, since more programs are compiled.

        Args:
          order: all texts, by number, the longest first.
          batch_size: the number of rows.

        Returns:
          Pairs as of ``RowDecoder.decode``; or None where batches one after another serve better,
          and where only these can: with scores, a limit of time, a strategy or a model without rows
          of their own, or limits that the longest text leaves no positions for.
        """
        many = len(order) >= _REFILLED * batch_size and batch_size >= _FEWEST_ROWS
        scored = self.num_alternatives is not None
        if not many or not self._registered or scored or self.max_time:
            return None
        lengths = [len(row) for row in self.ids]
        if len(list(limits.groups(order, lengths, self.limits, len(order)))) > 1:
            return None
        width, length = self._shape(order)
        longest = self._rows.make([self.ids[order[0]]], order[:1], None, width, 1)
        strategy = forms.with_values(
            self.call.strategy, max_new_tokens=self._rounded(length, longest)
        )
        decoder = batches.RowDecoder(
            dataclasses.replace(self.call, strategy=strategy),
            batch_size=batch_size,
            devices=jax.local_devices()[:1],
            few_programs=True,
        )
        decoder.inputs.expect(len(order))
        decoder.prepare(width)
        if decoder.group_size is None:
            return None
        shared = widths.shared_size(self.call.model)
        by_width = widths.by_width(lengths, widths.widths(width - shared, shared=shared))
        return decoder.decode(self.ids, range(len(order)), widths.fewer(by_width, 2 * batch_size))

    def _shape(self, members: Sequence[int]) -> tuple[int, int]:
        """The width that some texts are padded to, and their ``max_new_tokens``."""
        model = self.call.model
        longest = max(len(self.ids[i]) for i in members)
        length = self.limits.of_batch(members, longest)
        positions, shared = inputs.shared_positions(model), widths.shared_size(model)
        return widths.padded_width(longest, length, positions, shared), length

    def _rounded(self, length: int, rows: Any) -> int:
        """The ``max_new_tokens`` of the program of some rows."""
        if not self._registered:
            return length
        drafter = getattr(rows.strategy, "drafter", None)
        models = (rows.model, drafter, getattr(drafter, "model", None))
        return widths.rounded_length(length, rows.prompt.tokens.shape[1], models)

    def completions(
        self, output: DecodeOutput, members: Sequence[int], scores: Any = None
    ) -> list[list[Completion]]:
        """The completions of some texts, by number, from the output of their rows."""
        context = None if self.context is None else [self.context[i] for i in members]
        made = completions(self.tokenizer, output, len(members), context, scores)
        if self.format is not None:
            for row in made:
                parse_texts(row, self.tokenizer, self.format.parsed)
        return made


_PARAMETERS = inspect.signature(TextCall).parameters.values()
_NAMED = [p for p in _PARAMETERS if p.kind is p.KEYWORD_ONLY or p.kind is p.VAR_KEYWORD]


def with_arguments(function: F) -> F:
    """Shows the arguments of a ``TextCall`` in the signature of a function that passes them on."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    vars(function).update(__signature__=signature.replace(parameters=[*own, *_NAMED]))
    return function


def parse(
    caller: str,
    model: Any,
    strategy: Any,
    settings: Mapping[str, Any],
    key: Array | None,
    drafter: Any,
    stop_strings: StopTexts | None,
    max_time: float | None,
) -> batches.Call:
    """The call of a strategy in any of its forms, and of the settings beside it.

    Args:
      caller: ``"generate"`` or ``"stream"``, which runs a few steps at a time.
      model, strategy, key, drafter, stop_strings, max_time: as for ``generate``.
      settings: the settings, with ``max_new_tokens`` and ``stop``.

    Raises:
      ValueError: as ``batches.parse``.
    """
    also = [*_NOT_OF_BOTH[caller], *(p.name for p in _NAMED if p.kind is p.KEYWORD_ONLY)]
    if settings["max_new_tokens"] is not None:
        check_max_new_tokens("max_new_tokens", settings["max_new_tokens"])
    call = batches.parse(model, strategy, settings, key=key, drafter=drafter, also=also)
    if caller == "stream":
        forms.check_in_steps("strategy", call.strategy)
    stop = with_strings(forms.value_of(call.strategy, "stop"), stop_strings)
    named = forms.value_of(call.strategy, "max_new_tokens")
    if named is None and stop is not None and stop.max_new_tokens is not None:
        named = max(int(np.max(stop.max_new_tokens, initial=0)), 1)
    return dataclasses.replace(
        call,
        strategy=forms.with_values(call.strategy, stop=stop),
        limits=batches.Limits(named, limits.DEFAULT_LENGTH, max_time),
    )


def check_inputs(
    caller: str, counts: Mapping[str, Any], model: Any, tokenizer: Any, texts: Any
) -> None:
    """Checks the model, the tokenizer, the texts, and ``batch_size`` or ``chunk``.

    Raises:
      ValueError: for the first mistake, in one line that names the argument.
    """
    if not isinstance(model, EncoderDecoder):
        check_model(model)
    inputs.check_tokenizer(tokenizer, model)
    inputs.check_texts(texts)
    if caller == "stream" and len(texts) == 0:
        raise ValueError("texts: expected one string or more, got none")
    for name, value in counts.items():
        fields.as_count(name, value)


def warn_of_idle(call: batches.Call) -> None:
    """Warns of a key that the strategy does not use, and of a transform that changes no text."""
    strategy = call.strategy
    if call.key is not None and not strategy.uses_key:
        chosen = " with the greedy verifier" if strategy.draws else ""
        warn(f"key: {forms.name_of(strategy)}{chosen} draws nothing and does not use it")
    if (message := idle_transform(strategy)) is not None:
        warn(message)


def idle_transform(strategy: Any) -> str | None:
    """What to say of a transform that cannot change the texts of a strategy, or None.

    Greedy decoding does not notice parts that all keep the most probable token.

    Example:
      >>> from decoding_jax import BeamSearch, Greedy
      >>> idle_transform(Greedy(transform=transforms.temperature(5)))
      'temperature: no effect with greedy, which draws nothing; sample draws'
      >>> idle_transform(BeamSearch(beam_size=2, transform=transforms.temperature(5)))
    """
    transform = forms.value_of(strategy, "transform")
    parts = getattr(transform, "transforms", [] if transform is None else [transform])
    kept = all(isinstance(part, _KEEP_THE_MOST_PROBABLE) for part in parts)
    if forms.name_of(strategy) != "greedy" or not parts or not kept:
        return None
    names = ", ".join(fields.label(part) for part in parts)
    return f"{names}: no effect with greedy, which draws nothing; sample draws"


def _key_of(call: batches.Call, count: int) -> Array | None:
    """The key of all texts, or one for each; None for a strategy that draws nothing."""
    if not call.strategy.uses_key:
        return None
    if call.key is None:
        raise ValueError(
            "key: expected a typed key such as jax.random.key(0) for this strategy, got None"
        )
    check_keys(call.key, count)
    return call.key


def number_of_alternatives(with_scores: Any, model: Any) -> int | None:
    """The number of alternatives that ``with_scores`` asks for, or None without scores.

    Raises:
      ValueError: for anything but True, False, None, or a number from 0 to V.
    """
    if with_scores is None or with_scores is False:
        return None
    size = inputs.vocabulary_size(model)
    if with_scores is True:
        return min(_ALTERNATIVES, size)
    if not isinstance(with_scores, int) or not 0 <= with_scores <= size:
        expected = f"True, False, or the number of alternatives of each token, 0 to {size}"
        raise fields.error("with_scores", expected, with_scores)
    return with_scores
