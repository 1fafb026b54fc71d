"""Finds which gin bindings a program reads, by following references, without running it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import gin.config as gin

MACRO = "gin.macro"
# Gin stores its bindings in this form: the parameters that are bound for each (scope, selector).
Config = Mapping[tuple[str, str], Mapping[str, Any]]


class Binding(NamedTuple):
    """A parameter in gin. A macro ``X`` is parameter ``value`` of ``gin.macro`` in scope ``X``."""

    scope: str
    selector: str
    parameter: str


class Reach(NamedTuple):
    """The bindings and configurables that a program uses.

    Attributes:
      bindings: the bindings that are read. A binding that another one overrides is not among them.
      selectors: the configurables that are called, or passed as arguments that may be called.
    """

    bindings: frozenset[Binding]
    selectors: frozenset[str]


def reach(config: Config, roots: Iterable[tuple[str, str]]) -> Reach:
    """Follows the references between bindings, beginning with the roots.

    Args:
      config: gin's bindings, in the form in which finalize hooks receive them.
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
                inner_scope, target = reference.config_key
                todo.append((inner_scope or scope, target))
                if not inner_scope and not reference.evaluate:  # It may be called in no scope.
                    todo.append(("", target))
        # The selectors of the methods of a class begin with the selector of the class.
        todo.extend((scope, other) for _, other in config if other.startswith(f"{selector}."))
    return Reach(frozenset(bindings), frozenset(selector for _, selector in seen))


def called_from_python(config: Config) -> list[tuple[str, str]]:
    """Returns the configurables whose bindings are read when Python code calls them by name.

    The decorator ``gin.configurable`` replaces a function in its module by gin's version of it, so
    every call of the function reads its bindings. The bindings of all other configurables are read
    only if another binding refers to them.
    """
    return [key for key in config if key[1] != MACRO and _is_module_attribute(key[1])]


def references(value: Any) -> Iterator[Any]:
    """Yields the references to configurables, macros and constants in a value."""
    if isinstance(value, gin.ConfigurableReference):
        yield value
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from references(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from references(item)


def _apply(config: Config, scope: str, selector: str) -> list[tuple[Binding, Any]]:
    """The bindings of a configurable in a scope; inner scopes override outer ones."""
    parts = scope.split("/") if scope else []
    found: dict[str, tuple[Binding, Any]] = {}
    for count in range(len(parts) + 1):
        outer = "/".join(parts[:count])
        for parameter, value in config.get((outer, selector), {}).items():
            found[parameter] = Binding(outer, selector, parameter), value
    return list(found.values())


def _is_module_attribute(selector: str) -> bool:
    """Whether the name of a configurable in its module refers to gin's version of it."""
    try:
        configurable = gin.get_configurable(selector)
    except ValueError:
        return False
    attribute: Any = sys.modules.get(inspect.unwrap(configurable).__module__)
    for part in configurable.__qualname__.split("."):
        attribute = getattr(attribute, part, None)
    return attribute is configurable
