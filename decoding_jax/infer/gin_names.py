"""Registers the library's public names with gin, and reads the settings that gin binds."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import gin.config as gin

# Bindings that do not affect the results of a job, or that job.json records in other entries.
_NOT_LISTED = re.compile(
    r"(^|[./])(run\.(?!strategy$)\w+|(TextLines|JsonLines|CsvRows|ParquetRows)\.path|load\.directory"
    r"|share_prefix\.\w+"
    r"|Printer\.\w+)$"
)


@functools.cache
def register() -> None:
    """Registers the public names, so that ``--gin.sample.num_samples=4`` needs no import.

    Gin files that import the modules they use (``from __gin__ import dynamic_registration``) refer
    to the same configurables.
    """
    import decoding_jax
    from decoding_jax import infer, transforms

    modules = {
        "decoding_jax": (decoding_jax, [n for n in decoding_jax.__all__ if n != "generate"]),
        "decoding_jax.transforms": (transforms, ["Chain", *transforms.__all__]),
        "decoding_jax.infer": (infer, infer.__all__),
    }
    registered = set()
    for module_name, (module, names) in modules.items():
        for name in names:
            value = getattr(module, name)
            # A transform has two names, of which gin gets the one in lower case.
            is_alias = module is transforms and name != "Chain" and name[0].isupper()
            is_configurable = inspect.isfunction(value) or inspect.isclass(value)
            if is_alias or value in registered or not is_configurable:
                continue
            registered.add(value)
            gin.external_configurable(value, name=name, module=module_name)


def innermost(strategy: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function inside all ``functools.partial`` objects."""
    while isinstance(strategy, functools.partial):
        strategy = strategy.func
    return strategy


def bound_settings(strategy: Callable[..., Any]) -> dict[str, Any]:
    """Returns the settings that ``functools.partial`` and gin bind to a strategy.

    Example:
      >>> bound_settings(functools.partial(print, sep=","))
      {'sep': ','}
    """
    keywords: dict[str, Any] = {}
    partial = strategy
    while isinstance(partial, functools.partial):
        keywords = {**partial.keywords, **keywords}
        partial = partial.func
    try:
        return {**gin.get_bindings(innermost(strategy)), **keywords}
    except ValueError:  # The function is not registered with gin.
        return keywords


def settings() -> list[str]:
    """Returns the bindings that affect a job's results, sorted, with the values of macros."""
    values: dict[str, str] = {}
    key = ""
    for line in gin.config_str().splitlines():
        if match := re.match(r"(\S+) = (.*)$", line):
            key = match[1]
            values[key] = match[2].removesuffix("\\").strip()
        elif line.startswith(" ") and key:
            values[key] = f"{values[key]} {line.strip()}".strip()
    macros = {k: v for k, v in values.items() if "." not in k}
    for _ in macros:  # The value of a macro may be another macro.
        values = {k: _replace(v, macros) for k, v in values.items()}
    return sorted(
        f"{k} = {v}" for k, v in values.items() if k not in macros and not _NOT_LISTED.search(k)
    )


def meshes() -> list[dict[str, int]]:
    """Returns the meshes that models are loaded to, as the sizes of their axes."""
    found = (re.fullmatch(r"(.*[./])?load\.mesh = (\{.*\})", line) for line in settings())
    return [ast.literal_eval(match[2]) for match in found if match]


def _replace(value: str, macros: dict[str, str]) -> str:
    return re.sub(r"%([\w/]+)", lambda m: macros.get(m[1], m[0]), value)
