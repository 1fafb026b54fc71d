"""The command line that the papers' experiments share."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import gin.config as gin

from decoding_jax.gin_config import UsageError, read_gin, rewrite
from decoding_jax.infer.command import register_names


def main(module: str, argv: Sequence[str] | None = None) -> int:
    """Runs the function ``run`` of a module with the settings of gin files.

    Args:
      module: the full name of the module.
      argv: the arguments; those of the process by default.

    Returns:
      0, or 1 if the experiment was refused, or 2 if the arguments or gin settings are invalid; the
      reason is one line on standard error.
    """
    program = importlib.import_module(module)
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=program.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="--gin.NAME=VALUE sets a macro or a parameter, such as --gin.COUNT=8.",
    )
    parser.add_argument("--gin_file", action="append", default=[], help="read in order")
    parser.add_argument("--gin_bindings", action="append", default=[], help="read after the files")
    parser.add_argument("--gin_search_paths", default="", help="folders, separated by commas")
    try:
        args = parser.parse_args(rewrite(sys.argv[1:] if argv is None else argv))
        register_names()
        paths = [path for path in args.gin_search_paths.split(",") if path]
        with gin.unlock_config():
            run: Any = registered(program.run, module)
            gin.clear_config()
            read_gin(args.gin_file, args.gin_bindings, paths, f"{module}.run")
            run()
    except UsageError as e:
        return _refused(module, e, 2)
    except ValueError as e:
        return _refused(module, e, 1)
    return 0


def registered(run: Any, module: str) -> Any:
    """Gin's version of the function ``run`` of a module; gin's configuration must be unlocked."""
    try:
        return gin.get_configurable(run)
    except ValueError:
        return gin.external_configurable(run, name="run", module=module)


def _refused(module: str, error: Exception, status: int) -> int:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    print(f"{module}: {lines[0] if lines else repr(error)}", file=sys.stderr)
    return status
