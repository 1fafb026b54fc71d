"""A call of ``generate``, ``stream`` or ``stream_text``: its arguments, and batches of texts."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, loop, registry, suggestions, transforms
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop
from decoding_jax.batches import (
    RowDecoder,
    bind_drafter,
    check_drafter,
    encode_batch,
    read_drafter,
    widths,
)
from decoding_jax.loop.inputs import check_model
from decoding_jax.loop.strategy import check_max_new_tokens, check_settings, values_of
from decoding_jax.ops.random import row_keys
from decoding_jax.rows import row_arguments, take_rows
from decoding_jax.strategies.speculative.verifiers import needs_key
from decoding_jax.text import generation_config, inputs, limits
from decoding_jax.text.chat import Conversation
from decoding_jax.text.completions import Completion, completions, context_of
from decoding_jax.text.shared_prefix import with_common_prefix
from decoding_jax.text.stop_strings import (
    StopTexts,
    are_begun,
    check_constraint,
    stop_of,
    with_strings,
)
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn
from decoding_jax.transforms.languages import with_begun

F = TypeVar("F", bound=Callable[..., Any])

# The arguments of a strategy that a call passes itself.
_PASSED = ("model", "prompt", "key", "drafter", "stop", "max_new_tokens")
# The arguments of each kind of call, which a message may suggest besides those of a ``Call``.
_OWN = {"generate": ("texts", "batch_size", "progress"), "stream": ("texts", "chunk")}
# The transforms that leave the most probable token where it is.
_IDLE = (
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


class Call:
    """The arguments of a call, checked before any other work, and its encoded texts.

    Args:
      caller: ``"generate"`` or ``"stream"``.
      counts: its ``batch_size`` or ``chunk``, by name.
      model, tokenizer, texts, strategy, key, drafter, max_new_tokens, stop, stop_strings, max_time,
        config, with_scores, share_prefix, truncate, **settings: as for ``generate``.

    Attributes:
      run: the function of the strategy.
      model: the model, with the prefix that the texts share where that is wanted.
      tokenizer: the tokenizer.
      ids: the tokens of each text.
      context: the tokens that each text continues, or None where they continue none.
      keys: the key of each text, or None for a strategy that draws nothing.
      drafter: the drafter, or None. It is not bound to the texts.
      settings: the other settings of the strategy, with the stop conditions. Those of registered
        strategies limit each text.
      limits: the limit of each text.
      max_time: None, or seconds.
      num_alternatives: the number of alternatives to score, or None without scores.

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
        with_scores: bool | int = False,
        share_prefix: bool = False,
        truncate: bool = False,
        **settings: Any,
    ):
        truncate = fields.as_switch("truncate", truncate)
        drafter = read_drafter(drafter, model)
        beside = {"drafter": drafter, "max_new_tokens": max_new_tokens, "stop": stop}
        chooser = generation_config.chooser_of(strategy, config, tokenizer, settings)
        if chooser is None:
            if isinstance(strategy, loop.Strategy):
                given = {**beside, "stop_strings": stop_strings, **settings}
                strategy, settings = unpacked(strategy, given)
                drafter, max_new_tokens, stop = (settings.pop(name, None) for name in beside)
            strategy = "greedy" if strategy is None else strategy
            settings, default = with_defaults(strategy, settings), limits.DEFAULT_LENGTH
            stop = with_strings(stop, stop_strings)
            length = default if max_new_tokens is None else max_new_tokens
            checked = {**counts, "max_new_tokens": length}
            given = {"max_new_tokens": length, "stop": stop, **settings}
            check_arguments(caller, model, tokenizer, texts, strategy, key, given, checked)
            named = limits.named_length(max_new_tokens, stop)
            ids = inputs.fitted(model, tokenizer, texts, named, default, truncate=truncate)
            for name in ("transform", "language"):
                if name in settings:
                    settings[name] = _with_begun(settings[name], model, tokenizer, ids)
        else:
            inputs.check_tokenizer(tokenizer)
            inputs.check_texts(texts)
            transform = settings.pop("transform", None)
            chosen, default = chooser.parameters(
                key,
                stop,
                settings,
                max_new_tokens=max_new_tokens,
                stop_strings=stop_strings,
                max_time=max_time,
            )
            named = chosen.max_new_tokens
            ids = inputs.fitted(model, tokenizer, texts, named, default, truncate=truncate)
            choice = generation_config.choose(
                chosen,
                model,
                tokenizer.eos_ids,
                [len(row) for row in ids],
                key=key,
                drafter=drafter[0] if isinstance(drafter, tuple) else drafter,
                transform=_with_begun(transform, model, tokenizer, ids),
                default_length=default,
            )
            model, strategy, key, drafter, length, stop, max_time, settings = choice
            named = length if generation_config.LENGTHS & chosen.values.keys() else None
            given = {"max_new_tokens": length, "stop": stop, **settings}
            check_arguments(caller, model, tokenizer, texts, strategy, key, given, counts)
        self.num_alternatives = number_of_alternatives(with_scores, model)
        self.run = check_strategy(strategy)
        self._registered = any(self.run is e.function for e in registry.STRATEGIES.values())
        self.drafter, required = _drafter_and_key(caller, self.run, drafter, key, settings)
        self.keys = _keys_of(required, key, len(texts))
        inputs.check_tokens(model, ids)
        for name in ("transform", "language"):
            size = inputs.vocabulary_size(model)
            check_constraint(name, settings.get(name), tokenizer, size)
        if ids:
            take_rows({"stop": stop}, [0], len(ids))  # Refuses limits of another number of texts.
        exact = not self._registered
        self.limits = limits.limits_of(model, texts, ids, named, default, stop, exact=exact)
        if caller == "stream":
            limits.check_together(self.limits, texts, [len(row) for row in ids])
        self.model = with_common_prefix(model, ids, share_prefix)
        self.tokenizer, self.ids, self.max_time = tokenizer, ids, max_time
        self.context = context_of(self.model, ids)
        stop = stop_of(stop, tokenizer, self.model, ids)
        if self._registered and ids:
            stop = limits.limited(stop, self.limits.counts)
        self.settings = {"stop": stop, **settings}

    def rows(
        self, members: Sequence[int], size: int
    ) -> tuple[LanguageModel, Prompt, Array | None, Any, dict[str, Any]]:
        """The arguments of the strategy for some texts, padded to one of a few sizes.

        Registered strategies obey ``stop.max_new_tokens``, which limits each text and whose value
        is not part of the program. So their ``max_new_tokens`` is rounded up. Other functions get
        the exact value.

        Args:
          members: the texts, by number.
          size: the number of rows. They are filled up with copies of the first text, so that fewer
            shapes are compiled.

        Returns:
          The model and the drafter, each bound to the texts if it uses encoder inputs, the prompts,
          and the keys: ``(model, prompt, keys, drafter, settings)``.
        """
        rows = [*members, *[members[0]] * (size - len(members))]
        ids = [self.ids[i] for i in rows]
        width, length = self._shape(members)
        model = take_rows({"model": self.model}, rows, len(self.ids))["model"]
        model, prompt = encode_batch(model, ids, width)
        given = {**self.settings, "drafter": self.drafter}
        settings = take_rows(given, rows, len(self.ids), row_arguments(self.run))
        drafter = bind_drafter(settings.pop("drafter"), self.model, ids, width)
        length = self._rounded(length, model, prompt, drafter)
        keys = None if self.keys is None else self.keys[jnp.asarray(rows)]
        return model, prompt, keys, drafter, {**settings, "max_new_tokens": length}

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
        if not many or not self._registered or self.num_alternatives or self.max_time:
            return None
        lengths = [len(row) for row in self.ids]
        if len(list(limits.groups(order, lengths, self.limits, len(order)))) > 1:
            return None
        width, length = self._shape(order)
        longest = [self.ids[order[0]]]
        drafter = bind_drafter(self.drafter, self.model, longest, width)
        length = self._rounded(length, *encode_batch(self.model, longest, width), drafter)
        decoder = RowDecoder(
            self.model,
            functools.partial(self.run, **{**self.settings, "max_new_tokens": length}),
            stop=self.settings["stop"],
            key=self.keys,
            batch_size=batch_size,
            drafter=self.drafter,
            devices=jax.local_devices()[:1],
            few_programs=True,
        )
        decoder.expect(len(order))
        decoder.prepare(width)
        if decoder.group_size is None:
            return None
        shared = widths.shared_size(self.model)
        by_width = widths.by_width(lengths, widths.widths(width - shared, shared=shared))
        return decoder.decode(self.ids, range(len(order)), widths.fewer(by_width, 2 * batch_size))

    def _shape(self, members: Sequence[int]) -> tuple[int, int]:
        """The width that some texts are padded to, and their ``max_new_tokens``."""
        longest = max(len(self.ids[i]) for i in members)
        length = self.limits.of_batch(members, longest)
        positions, shared = inputs.shared_positions(self.model), widths.shared_size(self.model)
        return widths.padded_width(longest, length, positions, shared), length

    def _rounded(self, length: int, model: Any, prompt: Prompt, drafter: Any) -> int:
        """The ``max_new_tokens`` of the program."""
        if not self._registered:
            return length
        models = (model, drafter, getattr(drafter, "model", None))
        return widths.rounded_length(length, prompt.tokens.shape[1], models)

    def completions(
        self, output: DecodeOutput, members: Sequence[int], scores: Any = None
    ) -> list[list[Completion]]:
        """The completions of some texts, by number, from the output of their rows."""
        context = None if self.context is None else [self.context[i] for i in members]
        return completions(self.tokenizer, output, len(members), context, scores)


_PARAMETERS = inspect.signature(Call).parameters.values()
_NAMED = [p for p in _PARAMETERS if p.kind is p.KEYWORD_ONLY or p.kind is p.VAR_KEYWORD]


def with_arguments(function: F) -> F:
    """Shows the arguments of a ``Call`` in the signature of a function that passes them on."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    vars(function).update(__signature__=signature.replace(parameters=[*own, *_NAMED]))
    return function


def check_arguments(
    caller: str,
    model: Any,
    tokenizer: Any,
    texts: Any,
    strategy: Any,
    key: Any,
    settings: Mapping[str, Any],
    counts: Mapping[str, Any],
) -> None:
    """Checks the arguments of a call.

    Args:
      caller: ``"generate"`` or ``"stream"``.
      model, tokenizer, texts, strategy, key: as for ``generate``.
      settings: the settings of the strategy, with ``max_new_tokens`` and ``stop``.
      counts: ``batch_size`` or ``chunk``, and ``max_new_tokens`` if the caller gives it.

    Warns:
      UserWarning: if the strategy does not use the key, or the transform cannot change its texts.

    Raises:
      ValueError: for the first mistake, in one line that names the argument.
    """
    if not hasattr(model, "bind") or isinstance(model, type):
        check_model(model)
    inputs.check_tokenizer(tokenizer)
    inputs.check_texts(texts)
    if caller == "stream" and len(texts) == 0:
        raise ValueError("texts: expected one string or more, got none")
    for name, value in counts.items():
        check = check_max_new_tokens if name == "max_new_tokens" else fields.as_count
        check(name, value)
    run = check_strategy(strategy)
    also = [*_OWN[caller], *(p.name for p in _NAMED if p.kind is p.KEYWORD_ONLY)]
    suggestions.check_function(run, settings, given_elsewhere=_PASSED, also=also)
    if callable(strategy):
        return
    entry = registry.STRATEGIES[strategy]
    check_settings(entry.strategy, dict(settings))
    if key is not None and not draws(run, settings):
        chosen = " with the greedy verifier" if entry.draws else ""
        warn(f"key: {strategy}{chosen} draws nothing and does not use it")
    if (message := idle_transform(strategy, settings.get("transform"))) is not None:
        warn(message)


def unpacked(
    strategy: loop.Strategy, beside: Mapping[str, Any]
) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """The name or the function of a strategy object, and its settings.

    Args:
      strategy: the object.
      beside: the settings that a call has beside it, which are kept if the strategy has no such
        field, for the check of names.

    Raises:
      ValueError: for a setting beside the object.

    Example:
      >>> from decoding_jax.strategies import Sample
      >>> name, settings = unpacked(Sample(num_samples=2), {})
      >>> name, settings["num_samples"], settings["max_new_tokens"]
      ('sample', 2, None)
    """
    kind: Any = type(strategy)
    settings = values_of(strategy)
    given = {name: value for name, value in beside.items() if value is not None}
    for name, value in given.items():
        if name in settings or name in _PASSED or name == "stop_strings":
            expected = f"none beside a {kind.__name__}, whose fields are the settings of the call"
            raise fields.error(name, expected, value)
    return _function_of(kind), {**settings, **given}


@functools.cache
def _function_of(kind: Any) -> str | Callable[..., Any]:
    """The name of a class of strategies that is registered, or a compiled function of another."""
    for name, entry in registry.STRATEGIES.items():
        if entry.strategy is kind:
            return name
    return loop.as_function(kind, compiled=True)


def check_strategy(strategy: Any) -> Callable[..., Any]:
    """The function of a strategy.

    Args:
      strategy: the name of a strategy, or a function, which is returned unchanged.

    Raises:
      ValueError: for an unknown name, with similar ones if there are any, and for any other type.
    """
    if isinstance(strategy, str):
        if strategy in registry.STRATEGIES:
            return registry.STRATEGIES[strategy].function
        names = sorted(registry.STRATEGIES)
        similar = [name for name in names if strategy.lower() in name] if len(strategy) > 2 else []
        similar = sorted(similar, key=len)[:2]
        similar = similar or difflib.get_close_matches(strategy.lower(), names, 2)
        verb = "is" if len(similar) == 1 else "are"
        hint = f"; {' and '.join(similar)} {verb} near" if similar else ""
        if strategy in transforms.__all__:
            hint = f"; {strategy} is a transform: sample takes transform=transforms.{strategy}(...)"
        raise ValueError(f"strategy: expected one of {', '.join(names)}, got {strategy!r}{hint}")
    if not callable(strategy) or isinstance(strategy, type):
        expected = "a name such as 'beam_search', an object such as BeamSearch(), or a function"
        raise fields.error("strategy", expected, strategy)
    return strategy


def with_defaults(strategy: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a call, with ``registry.DEFAULTS`` for those that a named strategy requires.

    Example:
      >>> with_defaults("beam_search", {"num_return": 2})
      {'beam_size': 4, 'num_return': 2}
    """
    if not isinstance(strategy, str) or strategy not in registry.STRATEGIES:
        return dict(settings)
    found = {k: v for k, v in registry.defaults_of(strategy).items() if k not in _PASSED}
    return {**found, **settings}


def idle_transform(strategy: str, transform: Any) -> str | None:
    """What to say of a transform that cannot change the texts of a strategy, or None.

    Greedy decoding does not notice parts that all keep the most probable token.

    Example:
      >>> idle_transform("greedy", transforms.temperature(5))
      'temperature: no effect with greedy, which draws nothing; sample draws'
      >>> idle_transform("beam_search", transforms.temperature(5))
    """
    parts = getattr(transform, "transforms", [] if transform is None else [transform])
    if strategy != "greedy" or not parts or not all(isinstance(part, _IDLE) for part in parts):
        return None
    names = ", ".join(fields.label(part) for part in parts)
    return f"{names}: no effect with greedy, which draws nothing; sample draws"


def draws(run: Callable[..., Any], settings: Mapping[str, Any]) -> bool:
    """Whether a strategy draws with these settings, and needs a key for it.

    Example:
      >>> run = check_strategy("speculative_sample")
      >>> draws(run, {}), draws(run, {"verifier": "greedy"})
      (True, False)
    """
    parameters = inspect.signature(run).parameters
    if "verifier" in parameters:
        return needs_key(settings.get("verifier", parameters["verifier"].default))
    return "key" in parameters


def _with_begun(transform: Any, model: Any, tokenizer: Tokenizer, ids: list[list[int]]) -> Any:
    """The transform, whose languages know which texts continue others."""
    return with_begun(transform, lambda: np.array(are_begun(tokenizer, model, ids)))


def _drafter_and_key(
    caller: str, run: Callable[..., Any], drafter: Any, key: Any, settings: Mapping[str, Any]
) -> tuple[Any, bool]:
    """The drafter, checked, and whether the strategy gets a key.

    The function of a stream may build ``Steps``, whose ``init`` then takes the key that is given.
    """
    if caller == "stream" and not hasattr(run, "strategy"):
        return check_drafter(run, drafter), key is not None
    return check_drafter(run, drafter), draws(run, settings)


def _keys_of(required: bool, key: Array | None, count: int) -> Array | None:
    if not required:
        return None
    if key is None:
        raise ValueError(
            "key: expected a typed key such as jax.random.key(0) for this strategy, got None"
        )
    return row_keys(key, count)


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
