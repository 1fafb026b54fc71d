"""Strategies: frozen dataclasses of settings, with the parts of a decoding loop as methods.

A strategy is written once, as a subclass of ``Strategy``. ``run`` runs it to its end, ``stream`` a
few steps at a time, and ``refill`` with rows that come and go. ``as_function`` makes it a function
of a model, a prompt and its settings.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
from jax import lax

from decoding_jax import fields, suggestions
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.loop import inputs
from decoding_jax.ops.jit import jit
from decoding_jax.sharding.meshes import in_mesh, over_rows

cached_by_class: Any = functools.cache
"""``functools.cache``, for functions of a class of frozen dataclasses."""


_NO_STOP = Stop()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way of decoding: its settings are fields, and the parts of its loop are methods.

    A subclass is a frozen dataclass and a pytree (``decoding_jax.pytree``). Its settings are
    declared by ``decoding_jax.fields``, and checked when it is made. It has ``init``, ``step``,
    ``row_done`` and ``finalize``, and may have ``settled``. In ``init`` the model is prefilled, and
    each ``step`` calls it once. An object is called with a model, a prompt and, if it draws, a key.

    If every array of the state begins with the axis of rows, except for counters, which are scalars
    while all rows advance together, then the rows of the strategy can be exchanged one by one
    (``loop.refill``). Its ``step`` and ``finalize`` then also take a state whose counters have one
    value for each row, no row depends on another, and a row that is done no longer changes.

    Attributes:
      max_new_tokens: L, the maximum number of new tokens. ``generate`` and ``stream`` set it where
        it is None; other callers need a number.
      transform: applied to the logits before tokens are chosen; None changes nothing.
      stop: when a sequence ends.
      draws: whether the strategy takes a key.
      needs_key: whether it needs the key that it takes; otherwise some settings draw nothing.

    Raises:
      ValueError: for a setting that is not valid, in one line that names it.
    """

    max_new_tokens: int | None = fields.field(
        inputs.check_max_new_tokens, expected="an int of 1 or more", static=True, default=None
    )
    transform: Transform | None = fields.field(inputs.check_transform, default=None)
    stop: Stop = fields.field(inputs.check_stop, default=None)

    draws: ClassVar[bool] = False
    needs_key: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fields.check(self)
        if self.stop is None:
            object.__setattr__(self, "stop", _NO_STOP)

    @property
    def uses_key(self) -> bool:
        """Whether these settings draw, so that the strategy needs its key."""
        return self.draws

    @property
    def refills(self) -> bool:
        """Whether rows can be exchanged one by one (``loop.refill``)."""
        return True

    @property
    def widens(self) -> bool:
        """Whether a row's state at two widths of prompts, or of encoder inputs, differs by padding.

        The arrays of the state at one width are then those at another, padded with zeros or cut at
        the end of each axis. ``loop.refill`` relies on this to move rows to a batch of another
        width, if the model has ``widens`` too.
        """
        return True

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> Any:
        """Prefills the model, and returns the first state."""
        raise NotImplementedError

    def step(self, model: LanguageModel, prompt: Prompt, state: Any) -> Any:
        """Calls the model once, and returns the next state."""
        raise NotImplementedError

    def row_done(self, state: Any) -> Array:
        """Whether each row has nothing left to do, bool ``[B]``."""
        raise NotImplementedError

    def finalize(self, prompt: Prompt, state: Any) -> DecodeOutput:
        """The result; for an unfinished state, the sequences decoded so far."""
        raise NotImplementedError

    def settled(self, state: Any) -> Array | None:
        """The number of leading tokens of each sequence that no later step changes.

        It is int32 ``[B, N]``, for the sequences of ``finalize``; or None, for a strategy whose
        tokens may change until their row is done. Streams give out the text of settled tokens only.
        """
        return None

    def check(self, model: LanguageModel) -> None:
        """Checks what the settings need of the model, before anything is traced.

        Raises:
          ValueError: in one line, for settings that do not fit the model.
        """

    def done(self, state: Any) -> Array:
        """Whether all rows have nothing left to do."""
        return self.row_done(state).all()

    def __call__(
        self, model: LanguageModel, prompt: Prompt, key: Array | None = None
    ) -> DecodeOutput:
        """Runs the strategy to its end, compiled.

        Changing a static setting compiles another program; all other settings are arrays in it.
        """
        return program_of(type(self))(self, *inputs.checked(self, model, prompt, key))


def run(
    strategy: Any, model: LanguageModel, prompt: Prompt, key: Array | None = None
) -> DecodeOutput:
    """Runs a strategy to its end: ``init``, then ``step`` in a ``while_loop`` until ``done``.

    Args:
      strategy: a ``Strategy``.
      model: the model.
      prompt: B prompts.
      key: a typed key, typed keys ``[B]``, or None for a strategy that draws nothing.

    Raises:
      ValueError: for a prompt of wrong shapes, and as ``strategy.init``.
    """
    prompt = inputs.as_int32(inputs.check_prompt(prompt))
    state = lax.while_loop(
        lambda s: ~strategy.done(s),
        lambda s: strategy.step(model, prompt, s),
        strategy.init(model, jax.tree.map(over_rows, prompt), key),
    )
    return strategy.finalize(prompt, state)


@cached_by_class
def program_of(strategy: Any) -> Any:
    """``run``, compiled under the name of a strategy, which is an argument of the program."""
    return jit(run, (), name=fields.label(strategy))


class RowCall(NamedTuple):
    """A strategy and its arguments for some rows.

    Attributes:
      strategy: the strategy, or in its place a function of a caller's own.
      model: the model, bound to the inputs of the rows if it takes any.
      prompt: the prompts of the rows.
      key: as for ``run``; of rows that are refilled, typed keys, one for each row.
    """

    strategy: Any
    model: LanguageModel
    prompt: Prompt
    key: Array | None

    def run(self) -> DecodeOutput:
        """Runs the strategy to its end, compiled. The inputs are those of a checked call.

        Raises:
          ValueError: for settings that do not fit the model.
        """
        if not isinstance(self.strategy, Strategy):
            return self.strategy(self.model, self.prompt, self.key)
        inputs.check_settings(self.strategy, self.model)
        return program_of(type(self.strategy))(*self)


_EXPECTED = {
    "key": "a typed key such as jax.random.key(0)",
    "max_new_tokens": "an int of 1 or more",
    "model": "a language model",
    "prompt": inputs.PROMPT,
}


def positional(strategy: type[Strategy]) -> tuple[str, ...]:
    """The arguments of a strategy's function that may be given by position."""
    drafter = ("drafter",) if "drafter" in strategy.__dataclass_fields__ else ()
    return ("model", *drafter, "prompt", *(("key",) if strategy.draws else ()))


def settings_of(strategy: type[Strategy]) -> list[dataclasses.Field]:
    """The fields that a strategy is made of: its own, then those that all strategies have."""
    settings = [f for f in dataclasses.fields(strategy) if f.init]
    return sorted(settings, key=lambda f: f.name in Strategy.__dataclass_fields__)


def values_of(strategy: Strategy) -> dict[str, Any]:
    """The settings that a strategy was made of, by name."""
    return {f.name: getattr(strategy, f.name) for f in settings_of(type(strategy))}


def expected_of(strategy: type[Strategy]) -> dict[str, str | None]:
    """The arguments of a strategy's function, and what it expects for those that are required."""
    arguments: dict[str, str | None] = dict.fromkeys(positional(strategy))
    for setting in settings_of(strategy):
        is_required = setting.default is setting.default_factory is dataclasses.MISSING
        arguments[setting.name] = setting.metadata.get("expected") if is_required else None
    optional = () if strategy.needs_key else ("key",)
    required = {k: v for k, v in _EXPECTED.items() if k in arguments and k not in optional}
    return {**arguments, **required}


def as_function(strategy: type[Strategy], *, compiled: bool = False) -> Callable[..., DecodeOutput]:
    """A function of ``(model, prompt, key, *, **settings)`` that makes a strategy and runs it.

    It takes a key only if the strategy draws, and ``drafter`` is its second parameter if the
    strategy has such a setting.

    Args:
      strategy: the class.
      compiled: whether the program is compiled. The function then has ``lower``, as ``jax.jit``
        gives it, and ``cache_size``, the number of compiled programs.

    Example:
      >>> from decoding_jax import strategies
      >>> list(inspect.signature(strategies.greedy).parameters)
      ['model', 'prompt', 'max_new_tokens', 'transform', 'stop']
    """
    signature, program = _signature(strategy), program_of(strategy)

    def bound(args: tuple, kwargs: dict[str, Any]) -> RowCall:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            raise _misfit(strategy, args, kwargs) from None
        model, prompt, key = (given.pop(n, None) for n in ("model", "prompt", "key"))
        model = inputs.check_model(model)
        made = strategy(**given)
        return RowCall(made, *inputs.checked(made, model, prompt, key))

    def function(*args: Any, **kwargs: Any) -> DecodeOutput:
        call = bound(args, kwargs)
        return program(*call) if compiled else in_mesh(lambda given: run(*given), call)

    function.__name__ = function.__qualname__ = fields.label(strategy)
    function.__module__, function.__doc__ = strategy.__module__, strategy.__doc__
    vars(function).update(__signature__=signature, strategy=strategy)
    if compiled:

        def lower(*args: Any, **kwargs: Any) -> Any:
            return program.lower(*bound(args, kwargs))

        vars(function).update(lower=lower, cache_size=program.cache_size)
    return function


def _misfit(strategy: type[Strategy], args: tuple, kwargs: dict[str, Any]) -> ValueError:
    """What is wrong with arguments that do not fit the signature of a strategy's function."""
    name, names = fields.label(strategy), positional(strategy)
    if len(args) > len(names):
        return ValueError(
            f"{name}: expected {', '.join(names)}, and its settings by name, got {len(args)} "
            f"arguments without a name, the last of them {fields.describe(args[len(names)])}"
        )
    given = dict(zip(names, args, strict=False))
    for repeated in given.keys() & kwargs.keys():
        return ValueError(
            f"{repeated}: expected one, got {fields.describe(kwargs[repeated])} and another"
        )
    mistake = suggestions.mistake(name, expected_of(strategy), given | kwargs)
    assert mistake is not None
    return mistake


def _signature(strategy: type[Strategy]) -> inspect.Signature:
    parameters = []
    expected = expected_of(strategy)
    settings = {setting.name: setting for setting in settings_of(strategy)}
    for name in dict.fromkeys([*positional(strategy), *settings]):
        setting = settings.get(name)
        default = None if setting is None else setting.default
        if setting is not None and setting.default_factory is not dataclasses.MISSING:
            default = setting.default_factory()
        kind: Any = inspect.Parameter.KEYWORD_ONLY
        if name in positional(strategy):
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(
            inspect.Parameter(
                name,
                kind,
                default=inspect.Parameter.empty if expected[name] is not None else default,
                annotation=inspect.Parameter.empty if setting is None else setting.type,
            )
        )
    return inspect.Signature(parameters, return_annotation=DecodeOutput)
