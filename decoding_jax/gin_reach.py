"""Which of gin's bindings a program reads, followed from what it calls, before it is called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import gin.config as gin

MACRO = "gin.macro"
# As gin keeps its bindings: the parameters bound for each (scope, selector).
Config = Mapping[tuple[str, str], Mapping[str, Any]]


class Binding(NamedTuple):
    """A parameter in gin. A macro is the parameter ``value`` of ``gin.macro`` in its own scope."""

    scope: str
    selector: str
    parameter: str


class Reach(NamedTuple):
    """What a program reads.

    Attributes:
      bindings: the bindings that are read; a binding that another one overrides is not.
      selectors: the configurables that are called, or passed on to be called.
    """

    bindings: frozenset[Binding]
    selectors: frozenset[str]


def reach(config: Config, roots: Iterable[tuple[str, str]]) -> Reach:
    """Follows references from the roots.

    Args:
      config: gin's bindings, as a finalize hook is given them.
      roots: the scope and the selector of each configurable that the program calls.

    Example:
      >>> config = {("", "f"): {"x": 1}, ("a", "f"): {"x": 2}, ("", "g"): {"y": 3}}
      >>> sorted(reach(config, [("a", "f")]).bindings)
      [Binding(scope='a', selector='f', parameter='x')]
    """
    bindings: set[Binding] = set()
    seen: set[tuple[str, str]] = set()
    todo = list(roots)
    while todo:
        scope, selector = key = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        for binding, value in _apply(config, scope, selector):
            bindings.add(binding)
            for reference in references(value):
                inner, target = reference.config_key
                todo.append((inner or scope, target))
                if not inner and not reference.evaluate:  # it may be called where no scope is open
                    todo.append(("", target))
        # The methods of a class are configurables below its name.
        todo.extend((scope, other) for _, other in config if other.startswith(f"{selector}."))
    return Reach(frozenset(bindings), frozenset(selector for _, selector in seen))


def called_from_python(config: Config) -> list[tuple[str, str]]:
    """The configurables with bindings that Python code calls by their own names.

    The decorator ``gin.configurable`` puts gin's version of a function into its module, so that any
    call of it reads its bindings. All others are read only where a binding refers to them.
    """
    return [key for key in config if key[1] != MACRO and _is_own_name(key[1])]


def references(value: Any) -> Iterator[Any]:
    """The references to configurables, macros and constants in a value."""
    if isinstance(value, gin.ConfigurableReference):
        yield value
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from references(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from references(item)


def _apply(config: Config, scope: str, selector: str) -> list[tuple[Binding, Any]]:
    """The bindings of a configurable in a scope: those of inner scopes override outer ones."""
    parts = scope.split("/") if scope else []
    found: dict[str, tuple[Binding, Any]] = {}
    for count in range(len(parts) + 1):
        outer = "/".join(parts[:count])
        for parameter, value in config.get((outer, selector), {}).items():
            found[parameter] = Binding(outer, selector, parameter), value
    return list(found.values())


def _is_own_name(selector: str) -> bool:
    try:
        version = gin.get_configurable(selector)
    except ValueError:
        return False
    named: Any = sys.modules.get(inspect.unwrap(version).__module__)
    for part in version.__qualname__.split("."):
        named = getattr(named, part, None)
    return named is version
