"""``jit`` over arguments that mix arrays with plain functions, and how many programs are kept."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import numpy as np

from decoding_jax import fields
from decoding_jax.sharding import meshes

F = TypeVar("F", bound=Callable[..., Any])

_LOGGER = logging.getLogger(__name__)
_SLOW = 3.0  # seconds
_WATCH = threading.local()  # ``timers`` of this thread's call, inside ``compilation_announced``

VARIABLE = "DECODING_JAX_PROGRAMS"
"""The environment variable that says how many programs of a function are kept."""
_MOST = 64  # programs of a function that are kept, where the variable does not say

_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)


def jit(
    fn: F,
    static_argnames: Sequence[str],
    donated: Sequence[str] = (),
    *,
    name: str | None = None,
    keep_all: bool = False,
) -> F:
    """``jax.jit`` for any pytrees: leaves that are not arrays are static.

    A model or a transform may be a plain function, or hold some among its leaves. Functions are
    compared by identity, so a function that is created for every call is traced for every call.
    Arguments on a mesh of devices are computed on there (``sharding.meshes.in_mesh``). The programs
    that were used last are kept, ``VARIABLE`` says how many; others are freed.

    Args:
      fn: the function to compile.
      static_argnames: keyword arguments that are static because they set shapes.
      donated: keyword arguments that are arrays, or pytrees of them, whose memory the results may
        take. The caller does not use these arrays again.
      name: the name of the compiled program, which profiles and caches of compiled programs show;
        by default that of ``fn``.
      keep_all: whether all programs are kept, since they are small and many.

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
    label = getattr(fn, "__name__", type(fn).__name__) if name is None else name

    def program_of(structure: Any, constants: tuple, static: tuple, _: Any) -> Any:
        # Each program is of another function, with which JAX frees what it keeps for it.
        def call(arrays: list, given_away: dict[str, Any]) -> Any:
            _announce(label)
            leaves = [a if c is None else c for a, c in zip(arrays, constants, strict=True)]
            args, kwargs = jax.tree.unflatten(structure, leaves)
            return fn(*args, **kwargs, **dict(static), **given_away)

        call.__name__ = call.__qualname__ = label
        return jax.jit(call, donate_argnums=1 if donated else ())

    programs = _Programs(program_of, keep_all)

    def found(args: tuple, kwargs: dict[str, Any]) -> tuple[Any, list, dict[str, Any]]:
        given_away = {k: v for k, v in kwargs.items() if k in donated}
        kwargs = {k: v for k, v in kwargs.items() if k not in donated}
        static = tuple((k, kwargs[k]) for k in sorted(names & kwargs.keys()))
        dynamic = {k: v for k, v in kwargs.items() if k not in names}
        leaves, structure = jax.tree.flatten((args, dynamic))
        arrays, constants = leaves, (None,) * len(leaves)
        others = {i for i, x in enumerate(leaves) if not isinstance(x, _ARRAYS)}
        if others:
            arrays = [None if i in others else x for i, x in enumerate(leaves)]
            constants = tuple([x if i in others else None for i, x in enumerate(leaves)])
        every = [*arrays, *jax.tree.leaves(given_away)] if given_away else arrays
        shapes = tuple([getattr(x, "shape", None) for x in every])
        return programs.find((structure, constants, static, shapes)), arrays, given_away

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        program, arrays, given_away = found(args, kwargs)
        return meshes.in_mesh(lambda given: program(*given), (arrays, given_away))

    def lower(*args: Any, **kwargs: Any) -> Any:
        program, *given = found(args, kwargs)
        return program.lower(*given)

    def eval_shape(*args: Any, **kwargs: Any) -> Any:
        program, *given = found(args, kwargs)
        return program.eval_shape(*given)

    vars(wrapper).update(lower=lower, eval_shape=eval_shape, cache_size=programs.count)
    return cast(F, wrapper)


class _Programs:
    """The programs of a function that were used last.

    One of them may be compiled several times: for other dtypes, meshes and settings of JAX.

    Args:
      make: gives the jitted function for a key, which is a tuple of its arguments.
      keep_all: whether none is freed.
    """

    def __init__(self, make: Callable[..., Any], keep_all: bool):
        self._make, self._keep_all, self._lock = make, keep_all, threading.Lock()
        self._uses = itertools.count()
        self._kept: dict[Any, list[Any]] = {}  # each program, and the number of its last use

    def find(self, key: tuple) -> Any:
        """The program of a key. The one whose last use is the longest ago makes room for it."""
        entry = self._kept.get(key)
        if entry is None:
            most = math.inf if self._keep_all else _most_programs()
            with self._lock:  # Another thread may have made it since.
                if key not in self._kept:
                    while len(self._kept) >= most:
                        del self._kept[min(self._kept, key=lambda other: self._kept[other][1])]
                    self._kept[key] = [self._make(*key), next(self._uses)]
                entry = self._kept[key]
        entry[1] = next(self._uses)
        return entry[0]

    def count(self) -> int:
        """The number of compiled programs."""
        with self._lock:
            return sum(program._cache_size() for program, _ in self._kept.values())


def _most_programs() -> int:
    """The number of programs of a function that are kept.

    Raises:
      ValueError: for a variable that is no number of 1 or more.
    """
    named = os.environ.get(VARIABLE)
    try:
        return _MOST if named is None else fields.as_count(VARIABLE, int(named))
    except ValueError:
        raise fields.error(VARIABLE, "an int of 1 or more", named) from None


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
