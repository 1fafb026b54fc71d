"""The forms in which a strategy is given, which ``as_strategy`` alone knows.

A strategy is given by its name, as an object, as a function such as ``decoding_jax.greedy``, or as
a function of a caller's own; functions may have settings bound by ``functools.partial`` or by gin.
``as_strategy`` makes one object of any of these, and no other code asks what was given.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax import fields, suggestions, transforms
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.loop.strategy import Strategy, expected_of, settings_of, values_of
from decoding_jax.pytrees import pytree

PASSED = ("model", "prompt", "key", "drafter")
"""The arguments of a strategy that are no settings."""


class Named(NamedTuple):
    """A strategy that has a name.

    Attributes:
      strategy: its class.
      defaults: the values of settings that it requires, where a caller gives none.
    """

    strategy: type[Strategy]
    defaults: Mapping[str, Any]


_NOTHING: Mapping[str, Any] = {}

NAMED: dict[str, Named] = {}
"""The strategies that ``as_strategy`` knows by name. ``registry.register`` adds them."""


@pytree
@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a caller's own, in the place of a ``Strategy``: it runs to its end.

    Attributes:
      settings: its settings, by name.
      function: takes the arguments of a strategy, and the settings.
      drafter: the drafter, or None.
    """

    settings: dict[str, Any]
    function: Callable[..., DecodeOutput] = fields.field(static=True)
    drafter: Any = None

    def __call__(
        self, model: LanguageModel, prompt: Prompt, key: Array | None = None
    ) -> DecodeOutput:
        drafters = () if self.drafter is None else (self.drafter,)
        keys = () if key is None else (key,)
        return self.function(model, *drafters, prompt, *keys, **self.settings)

    @property
    def draws(self) -> bool:
        """Whether the function takes a key."""
        return "key" in inspect.signature(self.function).parameters

    uses_key = draws


def as_strategy(
    given: Any,
    settings: Mapping[str, Any],
    *,
    drafter: Any = None,
    offered: Mapping[str, Any] = _NOTHING,
    also: Iterable[str] = (),
) -> Strategy | Function:
    """Makes a strategy with its settings of any form in which one is given.

    Args:
      given: the name of a strategy; an object; or a function, whose settings may be bound by
        ``functools.partial`` or by gin.
      settings: what is given beside it. These fill fields that have no value yet; None is none.
      drafter: the drafter, bound to its inputs, for a strategy that takes one.
      offered: settings that a function gets if it takes them and has none, such as a tokenizer; or
        None, for one that the caller adds to the result.
      also: names that a message may suggest, since the caller takes them.

    Raises:
      ValueError: in one line, for an unknown name or another type; for a setting that is missing,
        unknown or invalid; for two values of one; and for a drafter that is missing or not taken.

    Example:
      >>> from decoding_jax import Sample, sample
      >>> for form in ("sample", Sample(num_samples=2), functools.partial(sample, num_samples=2)):
      ...     made = as_strategy(form, {"max_new_tokens": 4})
      ...     print(type(made).__name__, made.num_samples, made.max_new_tokens)
      Sample 1 4
      Sample 2 4
      Sample 2 4
    """
    if isinstance(given, Strategy):
        return _filled(given, settings, drafter, also)
    if isinstance(given, str):
        kind, defaults = named(given)
        return _made(kind, {**defaults, **settings}, drafter, also)
    if not callable(given) or isinstance(given, type):
        expected = "a name such as 'beam_search', an object such as BeamSearch(), or a function"
        raise fields.error("strategy", expected, given)
    function, bound = _unbound(given)
    if "drafter" in bound and drafter is None:
        drafter = bound.pop("drafter")
    joined = _joined(getattr(function, "__name__", "the function"), bound, settings)
    missing = {n: x for n, x in offered.items() if x is not None and joined.get(n) is None}
    of_function = getattr(function, "strategy", None)
    if of_function is not None:
        taken = {n: x for n, x in missing.items() if n in of_function.__dataclass_fields__}
        return _made(of_function, joined | taken, drafter, also)
    suggestions.check_function(function, joined, given_elsewhere=(*PASSED, *offered), also=also)
    check_drafter("drafter" in inspect.signature(function).parameters, drafter)
    made = Function(joined, function, drafter)
    return replaced(made, **{n: x for n, x in missing.items() if takes(made, n)})


def check_in_steps(argument: str, strategy: Strategy | Function) -> None:
    """Checks that a strategy can be run a few steps at a time.

    Raises:
      ValueError: for a function of a caller's own.
    """
    if isinstance(strategy, Function):
        raise ValueError(
            f"{argument}: expected a strategy by name, an object, or a function that "
            f"loop.as_function makes, got one with {name_of(strategy)}, which runs to its end"
        )


def name_of(strategy: Strategy | Function) -> str:
    """The name of a strategy's function."""
    if isinstance(strategy, Function):
        function: Any = strategy.function  # Rows of a batch have settings bound to it.
        return getattr(getattr(function, "func", function), "__name__", "decode")
    return fields.label(strategy)


def value_of(strategy: Strategy | Function, setting: str) -> Any:
    """The value of a setting; None for a strategy that has none of this name."""
    if isinstance(strategy, Function):
        return strategy.settings.get(setting)
    return getattr(strategy, setting, None)


def takes(strategy: Strategy | Function, setting: str) -> bool:
    """Whether a strategy has a setting of this name.

    Example:
      >>> from decoding_jax import Greedy
      >>> takes(Greedy(), "transform"), takes(Greedy(), "language")
      (True, False)
    """
    if not isinstance(strategy, Function):
        return setting in values_of(strategy)
    parameters = inspect.signature(strategy.function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    return setting in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def replaced(strategy: Any, **settings: Any) -> Any:
    """A strategy with other values of some settings, which are checked."""
    if isinstance(strategy, Function):
        return dataclasses.replace(strategy, settings={**strategy.settings, **settings})
    return dataclasses.replace(strategy, **settings)


def with_values(strategy: Any, **settings: Any) -> Any:
    """A strategy with other values of some settings, which are not checked."""
    if isinstance(strategy, Function):
        return replaced(strategy, **settings)
    made = copy.copy(strategy)
    for name, value in settings.items():
        object.__setattr__(made, name, value)
    return made


def check_drafter(is_taken: bool, drafter: Any) -> None:
    """Checks that a drafter is given if, and only if, a strategy takes one.

    Raises:
      ValueError: if it is missing, or not taken.
    """
    if is_taken and drafter is None:
        raise fields.error("drafter", "a model or a drafter for this strategy", None)
    if not is_taken and drafter is not None:
        kind = type(drafter).__name__.removeprefix("Bound")  # An encoder-decoder is bound by now.
        raise ValueError(f"drafter: expected none for this strategy, got a {kind}")


def named(name: str) -> Named:
    """The strategy of a name.

    Raises:
      ValueError: for an unknown name, with similar ones if there are any.
    """
    if name in NAMED:
        return NAMED[name]
    names = sorted(NAMED)
    similar = [other for other in names if name.lower() in other] if len(name) > 2 else []
    similar = sorted(similar, key=len)[:2]
    similar = similar or difflib.get_close_matches(name.lower(), names, 2)
    verb = "is" if len(similar) == 1 else "are"
    hint = f"; {' and '.join(similar)} {verb} near" if similar else ""
    if name in transforms.__all__:
        hint = f"; {name} is a transform: sample takes transform=transforms.{name}(...)"
    raise ValueError(f"strategy: expected one of {', '.join(names)}, got {name!r}{hint}")


def _made(
    kind: type[Strategy],
    settings: dict[str, Any],
    drafter: Any,
    also: Iterable[str],
) -> Strategy:
    """A strategy of its settings and its drafter."""
    takes_drafter = "drafter" in kind.__dataclass_fields__
    given = settings | ({"drafter": drafter} if takes_drafter and drafter is not None else {})
    try:
        made = kind(**given)
    except TypeError:
        expected = {**expected_of(kind), "max_new_tokens": None, "drafter": None, "key": None}
        names = [*(f.name for f in settings_of(kind)), *(["key"] if kind.draws else [])]
        taken = {name: expected[name] for name in names}
        if (error := suggestions.mistake(fields.label(kind), taken, given, also=also)) is not None:
            raise error from None
        check_drafter(takes_drafter, drafter)
        raise
    check_drafter(takes_drafter, drafter)
    return made


def _unbound(function: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function inside all ``functools.partial`` objects, and the settings bound to it.

    Gin binds those of its own version of a function, which a gin file refers to. There is no such
    version where gin has not been imported.

    Example:
      >>> _unbound(functools.partial(functools.partial(print, sep=""), sep=","))
      (<built-in function print>, {'sep': ','})
    """
    settings: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        suggestions.check_function(function.func, function.keywords, given_elsewhere=None)
        settings = {**function.keywords, **settings}
        function = function.func
    if (gin := sys.modules.get("gin.config")) is not None:
        try:
            of_gin = gin.get_configurable(function) is function
        except ValueError:  # The function is not registered with gin.
            of_gin = False
        if of_gin:
            bound = gin.get_bindings(function)
            settings = {**{k: v for k, v in bound.items() if k not in PASSED}, **settings}
    return function, settings


def _joined(owner: str, own: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a function, and those beside it."""
    joined = dict(settings)
    for name, value in own.items():
        beside = settings.get(name)
        if value is not None and beside is not None and not is_same(value, beside):
            raise _twice(name, owner, value, beside)
        joined[name] = beside if value is None else value
    return joined


def _filled(
    strategy: Strategy,
    settings: Mapping[str, Any],
    drafter: Any,
    also: Iterable[str],
) -> Strategy:
    """An object whose empty fields are filled by the settings beside it."""
    own = values_of(strategy)
    check_drafter("drafter" in own, own.get("drafter") if drafter is None else drafter)
    given = {name: value for name, value in settings.items() if value is not None}
    given |= {} if drafter is None else {"drafter": drafter}
    declared, changes = strategy.__dataclass_fields__, {}
    for name, value in given.items():
        if name not in own:
            label = fields.label(strategy)
            raise ValueError(suggestions.unknown(label, list(own), name, value, list(also)))
        if own[name] is None or (name == "stop" and is_same(own[name], Stop())):
            changes[name] = value
        elif not is_same(own[name], fields.checked(declared[name], value)):
            raise _twice(name, f"the {type(strategy).__name__}", own[name], value)
    return dataclasses.replace(strategy, **changes) if changes else strategy


def constrained(
    strategy: Strategy | Function, name: str, constraint: Transform
) -> Strategy | Function:
    """A strategy whose texts are kept to a constraint, as its language or before its transform.

    Args:
      strategy: the strategy.
      name: the argument that asks for the constraint, for the error.
      constraint: the constraint.

    Raises:
      ValueError: for a strategy that takes neither.
    """
    own = strategy.settings if isinstance(strategy, Function) else values_of(strategy)
    setting = constrained_setting(lambda other: takes(strategy, other), own)
    if not takes(strategy, setting):
        of_caller = strategy.function if isinstance(strategy, Function) else strategy
        raise fields.error(name, "none for a strategy that takes no transform", of_caller)
    if own.get(setting) is not None:
        constraint = transforms.chain(constraint, own[setting])
    return replaced(strategy, **{setting: constraint})


def constrained_setting(takes: Callable[[str], bool], settings: Mapping[str, Any]) -> str:
    """The setting by which a strategy takes a constraint of a program.

    It is the ``language`` of a strategy that has one, and otherwise the ``transform``. Where the
    texts of the language have to be listed, ``max_texts`` asks for it.

    Args:
      takes: whether the strategy has a setting of this name.
      settings: its settings.

    Example:
      >>> names = {"language", "max_texts", "transform"}
      >>> constrained_setting(names.__contains__, {"max_texts": 64})
      'language'
      >>> constrained_setting(names.__contains__, {})
      'transform'
    """
    is_asked = not takes("max_texts") or settings.get("max_texts") is not None
    return "language" if takes("language") and is_asked else "transform"


def _twice(name: str, owner: str, own: Any, value: Any) -> ValueError:
    """The error for two values of one setting."""
    return ValueError(
        f"{name}: expected {fields.describe(own)}, which {owner} has, or none beside it, got "
        f"{fields.describe(value)}"
    )


def is_same(one: Any, other: Any) -> bool:
    """Whether two values of a setting are equal, in all of their arrays."""
    if one is other:
        return True
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    structures: list[Any] = [jax.tree.structure(one), jax.tree.structure(other)]
    return structures[0] == structures[1] and all(
        x is y or np.array_equal(x, y) for x, y in zip(leaves, others, strict=True)
    )
