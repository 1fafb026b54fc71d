"""``jit`` over arguments that mix arrays with plain functions, and where programs are kept."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import numpy as np

from decoding_jax.sharding import meshes

F = TypeVar("F", bound=Callable[..., Any])

_LOGGER = logging.getLogger(__name__)
_SLOW = 3.0  # seconds
_WATCH = threading.local()  # ``timers`` of this thread's call, inside ``compilation_announced``

_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)


def jit(
    fn: F,
    static_argnames: Sequence[str],
    donated: Sequence[str] = (),
) -> F:
    """``jax.jit`` for any pytrees: leaves that are not arrays are static.

    A model or a transform may be a plain function, or hold some among its leaves. Functions are
    compared by identity, so a function that is created for every call is traced for every call.
    The compiled program has the name of ``fn``. Arguments on a mesh of devices are computed on
    there (``sharding.meshes.in_mesh``).

    Args:
      fn: the function to compile.
      static_argnames: keyword arguments that are static because they set shapes.
      donated: keyword arguments that are arrays, or pytrees of them, whose memory the results may
        take. The caller does not use these arrays again.

    Returns:
      A function with the signature of ``fn``. It also has ``lower`` and ``eval_shape``, as
      ``jax.jit`` gives them, and ``cache_size()``, the number of compiled programs.

    Example:
      >>> import jax.numpy as jnp
      >>> double = jit(lambda x, f: f(x) * 2, ())
      >>> double(jnp.ones(2), jnp.negative)
      Array([-2., -2.], dtype=float32)
    """
    names = frozenset(static_argnames)

    def call(
        structure: Any, constants: tuple, static: tuple, arrays: list, given_away: dict[str, Any]
    ) -> Any:
        _announce(call.__name__)
        leaves = [a if c is None else c for a, c in zip(arrays, constants, strict=True)]
        args, kwargs = jax.tree.unflatten(structure, leaves)
        return fn(*args, **kwargs, **dict(static), **given_away)

    # Profiles and caches of compiled programs show this name.
    call.__name__ = call.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
    compiled = jax.jit(call, static_argnums=(0, 1, 2), donate_argnums=4 if donated else ())

    def split(args: tuple, kwargs: dict[str, Any]) -> tuple[Any, tuple, tuple, list, dict]:
        given_away = {k: v for k, v in kwargs.items() if k in donated}
        kwargs = {k: v for k, v in kwargs.items() if k not in donated}
        static = tuple((k, kwargs[k]) for k in sorted(names & kwargs.keys()))
        dynamic = {k: v for k, v in kwargs.items() if k not in names}
        leaves, structure = jax.tree.flatten((args, dynamic))
        arrays = [x if isinstance(x, _ARRAYS) else None for x in leaves]
        constants = tuple(None if isinstance(x, _ARRAYS) else x for x in leaves)
        return structure, constants, static, arrays, given_away

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        *fixed, arrays, given_away = split(args, kwargs)
        return meshes.in_mesh(lambda given: compiled(*fixed, *given), (arrays, given_away))

    wrapper.lower = lambda *args, **kwargs: compiled.lower(*split(args, kwargs))  # type: ignore[attr-defined]
    wrapper.eval_shape = lambda *args, **kwargs: compiled.eval_shape(*split(args, kwargs))  # type: ignore[attr-defined]
    wrapper.cache_size = compiled._cache_size  # type: ignore[attr-defined]
    return cast(F, wrapper)


@contextlib.contextmanager
def compilation_announced() -> Iterator[None]:
    """Logs a line if functions from ``jit`` that are called inside take long to compile.

    Example:
      >>> with compilation_announced():
      ...     jit(lambda x: x + 1, ())(1)
      Array(2, dtype=int32, weak_type=True)
    """
    before = getattr(_WATCH, "timers", None)
    timers: list[threading.Timer] = []
    _WATCH.timers = timers
    try:
        yield
    finally:
        _WATCH.timers = before
        for timer in timers:
            timer.cancel()


def _announce(name: str) -> None:
    """Starts the timer of the log line. It is called in tracing, which precedes compilation."""
    timers = getattr(_WATCH, "timers", None)
    if timers == []:  # one line for each call is enough
        message = "compiling %s, once for these shapes"
        timers.append(threading.Timer(_SLOW, _LOGGER.warning, (message, name)))
        timers[0].daemon = True
        timers[0].start()


def check_platform() -> None:
    """Starts JAX's devices, unless they run.

    Raises:
      ValueError: in one line, for a platform of ``JAX_PLATFORMS`` that JAX does not find.
    """
    try:
        jax.default_backend()
    except (AssertionError, RuntimeError) as error:  # JAX asserts for the names that it knows.
        named = jax.config.values["jax_platforms"]
        reason = str(error).partition("\n")[0] or "no plugin for it is installed"
        raise ValueError(
            f"JAX_PLATFORMS: expected a platform that JAX finds here, got {named!r} ({reason})"
        ) from error


def keep_programs() -> None:
    """Keeps compiled programs on disk for the next process, unless JAX is told where to.

    It is called before anything is compiled.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    if (folder := cache_folder("programs")) is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def cache_folder(name: str) -> Path | None:
    """The folder of what is kept between processes; None where there is no home directory."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return home / "decoding_jax" / name
