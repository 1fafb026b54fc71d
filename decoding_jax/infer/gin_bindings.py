"""Checks the gin bindings of a job: those of the command line must be read by something."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

import gin.config as gin

from decoding_jax.gin_reach import MACRO, Binding, Config, Reach, called_from_python, reach
from decoding_jax.gin_reach import references as references_in

RUN = "decoding_jax.infer.run"
# The job itself passes these arguments to a strategy, so a binding of them has no effect.
_PASSED = ("model", "drafter", "prompt", "key", "stop")


def bindings_in(text: str) -> list[Binding]:
    """Returns the bindings that a text in gin's language sets.

    Example:
      >>> bindings_in("SEED = 1")
      [Binding(scope='SEED', selector='gin.macro', parameter='value')]
    """
    found = []
    for statement in gin.config_parser.ConfigParser(text, gin.ParserDelegate(skip_unknown=True)):
        if isinstance(statement, gin.config_parser.BindingStatement):
            scope, selector, parameter = statement[:3]
            if parameter:
                full = gin.ParsedBindingKey.parse((scope, selector, parameter)).complete_selector
                found.append(Binding(scope, full, parameter))
            else:
                name = f"{scope}/{selector}" if scope else selector
                found.append(Binding(name, MACRO, "value"))
    return found


def excuse_unread(program: str = RUN) -> None:
    """Removes ``%gin.REQUIRED`` from bindings that nothing reads, as they need no value.

    Args:
      program: the full name of the configurable that the configuration is for.
    """
    config = _config()
    read = _read(config, program).bindings
    for (scope, selector), parameters in list(config.items()):
        for parameter, value in list(parameters.items()):
            if Binding(scope, selector, parameter) not in read and _is_required(value):
                gin.bind_parameter((scope, selector, parameter), None)


def refuse_unread(given: Iterable[Binding], program: str = RUN) -> None:
    """Raises an error if a binding has no effect on the job.

    Args:
      given: the bindings of the command line. The bindings of files are not checked, because files
        are combined, and a file may bind parameters that only another strategy or source reads.
      program: the full name of the configurable that the configuration is for.

    Raises:
      ValueError: if nothing reads a binding; the message is one line with the nearest names that
        the job reads.
    """
    config = _config()
    if ("", program) not in config:
        return  # The job itself reports the arguments that are missing.
    read = _read(config, program)
    strategies = _behind(config, Binding("", program, "strategy"))
    passed = {(name, parameter) for name in strategies for parameter in _PASSED}
    for binding in given:
        if binding not in read.bindings or (binding.selector, binding.parameter) in passed:
            raise ValueError(f"nothing reads {_name(binding)}; {_hint(binding, read, passed)}")


def _config() -> Config:
    # Gin passes its bindings only to finalize hooks, which run after its own checks.
    return gin._CONFIG


def _read(config: Config, program: str) -> Reach:
    return reach(config, [("", program), *called_from_python(config)])


def _is_required(value: Any) -> bool:
    constant = isinstance(value, gin.ConfigurableReference) and value.config_key[0]
    return value is gin.REQUIRED or constant == "gin.REQUIRED"


def _behind(config: Config, binding: Binding) -> set[str]:
    """The configurables that the value of a binding refers to, directly or through macros."""
    scope, selector, parameter = binding
    found = set()
    for reference in references_in(config.get((scope, selector), {}).get(parameter)):
        inner, target = reference.config_key
        if target == MACRO:
            found |= _behind(config, Binding(inner, MACRO, "value"))
        else:
            found.add(target)
    return found


def _name(binding: Binding) -> str:
    """The binding as a gin file writes it, with the last two parts of the configurable's name."""
    if binding.selector == MACRO:
        return binding.scope
    scope = f"{binding.scope}/" if binding.scope else ""
    return f"{scope}{'.'.join(binding.selector.split('.')[-2:])}.{binding.parameter}"


def _hint(binding: Binding, read: Reach, passed: set[tuple[str, str]]) -> str:
    """Names the bindings nearest to ``binding`` that the job reads, or else its macros."""
    macros = sorted({b.scope for b in read.bindings if b.selector == MACRO})
    names = [*macros]
    for selector in sorted(read.selectors):
        if not selector.startswith("gin."):
            parameters = inspect.signature(gin.get_configurable(selector)).parameters
            names += [
                _name(Binding("", selector, parameter))
                for parameter in parameters
                if (selector, parameter) not in passed
            ]
    last_parts = [_last_part(name) for name in names]
    target = _last_part(_name(binding))
    near = [target]
    if target not in last_parts:
        near = difflib.get_close_matches(target, last_parts, 3, 0.75)
    nearest = [name for name, part in zip(names, last_parts, strict=True) if part in near]
    if nearest:
        return f"nearest: {', '.join(nearest)}"
    return f"the job reads {', '.join(macros)}"


def _last_part(name: str) -> str:
    return name.split(".")[-1].casefold()
