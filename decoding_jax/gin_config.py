"""All that the library does with gin: it reads files and bindings, and finds which are used.

``read_gin`` reads what a command line names, and refuses bindings of the command line that nothing
reads. ``reach`` finds those that a program reads by following references, without running it.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gin.config as gin

from decoding_jax import gin_path

RUN = "decoding_jax.infer.run"
MACRO = "gin.macro"
# Gin stores its bindings in this form: the parameters that are bound for each (scope, selector).
Config = Mapping[tuple[str, str], Mapping[str, Any]]
# Bindings that do not affect the results of a job, or that job.json records in other entries.
_NOT_LISTED = re.compile(
    r"(^|[./])(run\.(?!strategy$)\w+|(TextLines|JsonLines|CsvRows|ParquetRows)\.path|load\.directory"
    r"|share_prefix\.\w+"
    r"|Printer\.\w+)$"
)
# The job itself passes these to a strategy, so a binding of them, or of stop, has no effect.
_PASSED = ("model", "drafter", "prompt", "key")


# The parameters of the job whose values refer to configurables.
_CONFIGURED = ("model", "source", "strategy")


class UsageError(ValueError):
    """Reports invalid flags or gin settings; the message is one line."""


def rewrite(argv: Sequence[str]) -> list[str]:
    """Replaces ``--gin.NAME=VALUE`` by ``--gin_bindings=NAME = VALUE``."""
    rewritten = []
    for argument in argv:
        if match := re.match(r"--?gin\.([^=]*)(=?)(.*)$", argument, re.DOTALL):
            name, equals, value = match.groups()
            if not equals or not name:
                raise UsageError(f"expected --gin.NAME=VALUE, got {argument}")
            argument = f"--gin_bindings={name} = {value}"
        rewritten.append(argument)
    return rewritten


def read_gin(
    files: Sequence[str],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    program: str = RUN,
) -> None:
    """Reads files and then bindings into gin's configuration, and checks that they are complete.

    Args:
      files: gin files, found by ``gin_path.find``; later ones override earlier ones.
      bindings: lines in gin's language. Something has to read each of them.
      search_paths: folders that are searched for gin files.
      program: the full name of the configurable that the configuration is for.

    Raises:
      UsageError: for no file and no binding, a file that is not found or not gin, a macro without a
        value, and a binding that nothing reads.
    """
    if not files and not bindings:
        raise UsageError("--gin_file: expected one such as --gin_file=runs/demo.gin, got none")
    try:
        with _includes_by_name(search_paths):
            for name in files:
                gin.parse_config_file(name)
        from_flags = []
        for binding in bindings:
            gin.parse_config(binding)
            from_flags += bindings_in(binding)
        excuse_unread(program)
        gin.finalize()
        refuse_unread(from_flags, program)
    except Exception as e:  # For an unknown name gin raises exceptions of many types.
        raise UsageError(_explain(e)) from e


@contextlib.contextmanager
def _includes_by_name(search_paths: Sequence[str]) -> Iterator[None]:
    """Makes gin find files, and the files that they include, by ``gin_path.find``.

    Without this, gin also looks for ``models/x.gin`` in a Python package ``models``, and fails if
    the working directory has a folder of that name.
    """
    parse = gin.parse_config_file

    def parse_by_name(name: str, *args: Any, **kwargs: Any) -> Any:
        return parse(str(gin_path.find(name, search_paths).resolve()), *args, **kwargs)

    gin.parse_config_file = parse_by_name
    try:
        yield
    finally:
        gin.parse_config_file = parse


def _explain(error: Exception) -> str:
    """Summarises an error of gin, which has several lines, in one."""
    text = " ".join(str(error).split())
    missing = r"for '(\w+)/gin\.macro' in config|(\w+)/(?:gin\.)?macro\.value set to"
    if match := re.search(missing, text):
        name = match[1] or match[2]
        return f"gin: {name}: expected a value from a gin file or --gin.{name}=..., got none"
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        if match := re.search(r"= *(true|false|none)$", line, re.IGNORECASE):
            return f"gin: expected {match[1].capitalize()}, with a capital, got {line!r}"
        return f"gin: cannot read {line!r}; text is put in quotes, --gin.NAME='\"text\"'"
    return f"gin: {text}"


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

    The roots are the scope and the selector of each configurable that the program calls.

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
    """Removes ``%gin.REQUIRED`` from bindings that nothing reads, as they need no value."""
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
    if any(_is_plain(config, Binding("", program, name)) for name in _CONFIGURED):
        return  # The job itself says what it takes there.
    read = _read(config, program)
    strategies = _behind(config, Binding("", program, "strategy"))
    passed = {(name, parameter) for name in strategies for parameter in (*_PASSED, "stop")}
    for binding in given:
        if binding not in read.bindings or (binding.selector, binding.parameter) in passed:
            sets = _set_by(config, binding, program)
            raise ValueError(
                f"nothing reads {_name(binding)}{sets}; {_hint(binding, read, passed)}"
            )


def _is_plain(config: Config, binding: Binding) -> bool:
    """Whether the value of a binding, behind its macros, is bound and refers to no configurable."""
    scope, selector, parameter = binding
    parameters = config.get((scope, selector), {})
    if parameter not in parameters or parameters[parameter] is None:
        return False
    found = list(references(parameters[parameter]))
    return not found or any(
        target == MACRO and _is_plain(config, Binding(inner, MACRO, "value"))
        for inner, target in (reference.config_key for reference in found)
    )


def _set_by(config: Config, macro: Binding, program: str) -> str:
    """What a macro sets, and what the program has in the place of it, for an error."""
    sets = [
        (selector, parameter)
        for (scope, selector), parameters in config.items()
        for parameter, value in parameters.items()
        if any(reference.config_key == (macro.scope, MACRO) for reference in references(value))
    ]
    if macro.selector != MACRO or not sets:
        return ""
    kinds = {selector.rpartition(".")[0] for selector, _ in sets}
    others = [
        f"@{'.'.join(found.split('.')[-2:])}"
        for name in _CONFIGURED
        for found in sorted(_behind(config, Binding("", program, name)))
        if found.rpartition(".")[0] in kinds
    ]
    names = ", ".join(_name(Binding("", *pair)) for pair in sets)
    return f", which sets {names}" + (f" and not {', '.join(others)}" if others else "")


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
    for reference in references(config.get((scope, selector), {}).get(parameter)):
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
