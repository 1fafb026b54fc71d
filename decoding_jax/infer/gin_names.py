"""The library under its names in gin: for files, for ``--gin.NAME=VALUE``, and for ``job.json``."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import gin.config as gin

# What a job's results do not depend on, or what job.json says in a place of its own.
_ELSEWHERE = re.compile(
    r"(^|[./])(run\.(?!strategy$)\w+|(TextLines|JsonLines)\.path|load\.directory|Printer\.\w+)$"
)


@functools.cache
def register() -> None:
    """Makes the public names known, so that ``--gin.sample.num_samples=4`` needs no import.

    gin files import what they use (``from __gin__ import dynamic_registration``) and find these.
    """
    import decoding_jax
    from decoding_jax import infer, transforms

    modules = {
        "decoding_jax": (decoding_jax, [n for n in decoding_jax.__all__ if n != "generate"]),
        "decoding_jax.transforms": (transforms, ["Chain", *transforms.__all__]),
        "decoding_jax.infer": (infer, infer.__all__),
    }
    known = set()
    for module_name, (module, names) in modules.items():
        for name in names:
            value = getattr(module, name)
            # A transform has two names; gin knows it by the lower-case one.
            alias = module is transforms and name != "Chain" and name[0].isupper()
            if alias or value in known or not (inspect.isfunction(value) or inspect.isclass(value)):
                continue
            known.add(value)
            gin.external_configurable(value, name=name, module=module_name)


def innermost(strategy: Callable[..., Any]) -> Callable[..., Any]:
    """The function below every ``functools.partial``."""
    while isinstance(strategy, functools.partial):
        strategy = strategy.func
    return strategy


def bound_settings(strategy: Callable[..., Any]) -> dict[str, Any]:
    """The settings that ``functools.partial`` and gin bind to a strategy.

    Example:
      >>> bound_settings(functools.partial(print, sep=","))
      {'sep': ','}
    """
    given: dict[str, Any] = {}
    partial = strategy
    while isinstance(partial, functools.partial):
        given = {**partial.keywords, **given}
        partial = partial.func
    try:
        return {**gin.get_bindings(innermost(strategy)), **given}
    except ValueError:  # gin does not know it
        return given


def settings() -> list[str]:
    """The gin bindings that a job's results depend on, sorted, macros replaced by their values."""
    values: dict[str, str] = {}
    key = ""
    for line in gin.config_str().splitlines():
        if match := re.match(r"(\S+) = (.*)$", line):
            key = match[1]
            values[key] = match[2].removesuffix("\\").strip()
        elif line.startswith(" ") and key:
            values[key] = f"{values[key]} {line.strip()}".strip()
    macros = {k: v for k, v in values.items() if "." not in k}
    for _ in macros:  # macros may name macros
        values = {k: _replace(v, macros) for k, v in values.items()}
    return sorted(
        f"{k} = {v}" for k, v in values.items() if k not in macros and not _ELSEWHERE.search(k)
    )


def _replace(value: str, macros: dict[str, str]) -> str:
    return re.sub(r"%([\w/]+)", lambda m: macros.get(m[1], m[0]), value)
