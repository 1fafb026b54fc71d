import functools
import importlib
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pages import ROOT

from decoding_jax import transforms
from decoding_jax.batches.widths import round_up
from decoding_jax.ops.jit import VARIABLE, _Programs, jit

pytestmark = pytest.mark.optimized


def counted():
    traces = []

    def scale(x, f, *, times):
        traces.append(times)
        return f(x) * times

    return jit(scale, ("times",)), traces


def test_a_function_argument_is_static_and_an_array_is_not():
    scale, traces = counted()
    assert scale(jnp.ones(2), jnp.negative, times=2).tolist() == [-2, -2]
    assert scale(3 * jnp.ones(2), jnp.negative, times=2).tolist() == [-6, -6]
    assert len(traces) == 1
    scale(jnp.ones(2), jnp.abs, times=2)
    scale(jnp.ones(2), jnp.negative, times=3)
    assert len(traces) == scale.cache_size() == 3


def test_the_programs_that_were_used_last_are_kept_and_others_are_freed(monkeypatch):
    monkeypatch.setenv(VARIABLE, "2")
    scale, traces = counted()

    def count_traces(*sizes):
        before = len(traces)
        for size in sizes:
            scale(np.ones(size, np.float32), jnp.negative, times=2)
        return len(traces) - before

    assert count_traces(1, 2, 1) == scale.cache_size() == 2
    live = len(jax.devices()[0].client.live_executables())
    assert count_traces(3, 1, 3) == 1  # Of 1 and 2, 2 was used earlier, and makes room.
    assert count_traces(2) == 1
    assert scale.cache_size() == 2
    assert len(jax.devices()[0].client.live_executables()) <= live


def test_the_page_says_how_many_programs_calls_of_many_shapes_compile(monkeypatch):
    """By the sizes that ``generate`` rounds up to, and the number of programs that are kept."""
    monkeypatch.delenv(VARIABLE)
    made = []
    programs = _Programs(lambda *shape: made.append(shape), keep_all=False)
    for texts, longest, new in np.random.default_rng(0).integers(1, (17, 201, 101), (300, 3)):
        programs.find((round_up(texts), round_up(longest, 16), round_up(new, 16)))
    page = " ".join((ROOT / "docs" / "compilation.md").read_text().split())
    sizes = f"have {len(set(made))} shapes, and compile {len(made)} programs where 64 are kept"
    assert sizes in page


def test_what_is_given_away_tells_programs_apart(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    double = jit(lambda *, rows: 2 * rows, (), donated=("rows",))
    for size in (1, 2, 2):
        assert double(rows=jnp.ones(size)).shape == (size,)
        assert double.cache_size() == 1


@pytest.mark.parametrize("named", ["", "0", "many"])
def test_a_wrong_number_of_programs_is_one_error(monkeypatch, named):
    monkeypatch.setenv(VARIABLE, named)
    with pytest.raises(
        ValueError, match=f"^{VARIABLE}: expected an int of 1 or more, got '{named}'$"
    ):
        counted()[0](jnp.ones(2), jnp.negative, times=2)


def test_a_pytree_of_numbers_and_functions_splits():
    apply = jit(lambda t, x: t(x, None), ())
    chain = transforms.chain(transforms.temperature(2.0), lambda logits, prefix: logits + 1)
    logits = jnp.ones((1, 1, 1, 4))
    assert apply(chain, logits)[0, 0, 0].tolist() == pytest.approx([1.5] * 4)


def test_a_program_has_the_name_of_its_function_or_another():
    def halve(x):
        return x / 2

    for name in ("halve", "half"):
        given = {} if name == "halve" else {"name": name}
        lowered = jit(halve, (), **given).lower(jax.ShapeDtypeStruct((2,), jnp.float32))
        assert f"module @jit_{name} " in lowered.as_text()


def test_a_function_and_its_numbers_are_one_program():
    """``docs/compilation.md`` states this of transforms that are plain functions."""

    def scaled(factor, logits, prefix):
        return factor * logits

    apply = jit(lambda t, x: t(x, None), ())
    for factor in (0.5, 0.7):
        chain = transforms.chain(jax.tree_util.Partial(scaled, factor), transforms.top_k(2))
        assert apply(chain, jnp.ones((1, 1, 1, 4)))[0, 0, 0, 0] == jnp.float32(factor)
    assert apply.cache_size() == 1


def test_lower_and_an_outer_jit():
    double = jit(lambda x, f: f(x) * 2, ())
    assert "negate" in double.lower(jax.ShapeDtypeStruct((2,), jnp.float32), jnp.negative).as_text()
    outer = jax.jit(lambda x: double(x, jnp.negative))
    assert outer(jnp.ones(2)).tolist() == [-2, -2]


def test_a_compilation_that_takes_long_is_announced(monkeypatch, caplog):
    module = importlib.import_module("decoding_jax.ops.jit")
    announced = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record):
            announced.set()

    handler = Handler()
    monkeypatch.setattr(module, "_SLOW", 0.0)
    logging.getLogger(module.__name__).addHandler(handler)

    @functools.partial(jit, static_argnames=())
    def waits(x):
        announced.wait(30)  # traces until the announcement
        return x

    with module.compilation_announced():
        waits(jnp.ones(2))
    logging.getLogger(module.__name__).removeHandler(handler)
    assert announced.is_set()
    assert caplog.messages == ["compiling waits, once for these shapes"]


def test_nothing_is_announced_outside_or_for_a_compiled_program(monkeypatch, caplog):
    module = importlib.import_module("decoding_jax.ops.jit")
    started = []
    monkeypatch.setattr(module.threading, "Timer", lambda *args: started.append(args))
    double = jit(lambda x: x * 2, ())
    double(jnp.ones(2))
    with module.compilation_announced():
        double(jnp.ones(2))
    assert started == []
