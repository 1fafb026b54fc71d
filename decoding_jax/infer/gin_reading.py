"""Reads the gin files and bindings of a command line, for the batch job and for other programs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import gin.config as gin

from decoding_jax.infer import gin_bindings, gin_files


class UsageError(ValueError):
    """Reports invalid flags or gin settings; the message is one line."""


def rewrite(argv: Sequence[str]) -> list[str]:
    """Replaces ``--gin.NAME=VALUE`` by ``--gin_bindings=NAME = VALUE``."""
    rewritten = []
    for argument in argv:
        if match := re.match(r"--?gin\.([^=]*)(=?)(.*)$", argument, re.DOTALL):
            name, equals, value = match.groups()
            if not equals or not name:
                raise UsageError(f"got {argument}; takes --gin.NAME=VALUE")
            argument = f"--gin_bindings={name} = {value}"
        rewritten.append(argument)
    return rewritten


def read_gin(
    files: Sequence[str],
    bindings: Sequence[str],
    search_paths: Sequence[str],
    program: str = gin_bindings.RUN,
) -> None:
    """Reads files and then bindings into gin's configuration, and checks that they are complete.

    Args:
      files: gin files, found by ``gin_files.find``; later ones override earlier ones.
      bindings: lines in gin's language. Something has to read each of them.
      search_paths: folders that are searched for gin files.
      program: the full name of the configurable that the configuration is for.

    Raises:
      UsageError: for no file and no binding, a file that is not found or not gin, a macro without a
        value, and a binding that nothing reads.
    """
    if not files and not bindings:
        raise UsageError("--gin_file: got none; takes one such as --gin_file=runs/demo.gin")
    try:
        with _includes_by_name(search_paths):
            for name in files:
                gin.parse_config_file(name)
        from_flags = []
        for binding in bindings:
            gin.parse_config(binding)
            from_flags += gin_bindings.bindings_in(binding)
        gin_bindings.excuse_unread(program)
        gin.finalize()
        gin_bindings.refuse_unread(from_flags, program)
    except Exception as e:  # For an unknown name gin raises exceptions of many types.
        raise UsageError(_explain(e)) from e


@contextlib.contextmanager
def _includes_by_name(search_paths: Sequence[str]) -> Iterator[None]:
    """Makes gin find files, and the files that they include, by ``gin_files.find``.

    Without this, gin also looks for ``models/x.gin`` in a Python package ``models``, and fails if
    the working directory has a folder of that name.
    """
    parse = gin.parse_config_file

    def parse_by_name(name: str, *args: Any, **kwargs: Any) -> Any:
        return parse(str(gin_files.find(name, search_paths).resolve()), *args, **kwargs)

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
        return f"gin: {name} has no value; takes one from a gin file or --gin.{name}=..."
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        if match := re.search(r"= *(true|false|none)$", line, re.IGNORECASE):
            return f"gin: cannot read {line!r}; takes {match[1].capitalize()}, with a capital"
        return f"gin: cannot read {line!r}; text is put in quotes, --gin.NAME='\"text\"'"
    return f"gin: {text}"
