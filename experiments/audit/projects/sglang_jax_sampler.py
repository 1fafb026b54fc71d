"""sglang-jax: the functions of ``sgl_jax.srt.layers.sampler`` as its ``Sampler`` calls them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from harness import Case, draw, main, package, settings, source, stubs

package("sgl_jax", str(source() / "python" / "sgl_jax"))
stubs(
    [
        "sgl_jax.srt.constrained.bitmask_ops",
        "sgl_jax.srt.layers.logits_processor",
        "sgl_jax.srt.sampling.sampling_batch_info",
        "sgl_jax.srt.utils.jax_utils",
        "sgl_jax.srt.utils.profiling_utils",
    ],
    named_scope=lambda function: function,
    is_tpu_runtime=lambda: True,
)
from sgl_jax.srt.layers import sampler  # noqa: E402

ALL = 1 << 30


def arguments(
    case: Case,
    logits: np.ndarray,
    key: jax.Array | None,
    seeds: jax.Array | None,
    positions: jax.Array,
) -> tuple:
    """The arguments that ``Sampler._regular_sampling`` passes on."""
    given = settings(case, temperature=1.0, top_k=ALL, top_p=1.0, min_p=0.0)
    rows = len(logits)
    temperature = jnp.broadcast_to(jnp.asarray(given["temperature"], jnp.float32), rows)[:, None]

    def each(name: str, dtype: type) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(given[name], dtype), rows)

    return (
        jnp.asarray(logits),
        jax.nn.softmax(jnp.asarray(logits) / temperature, axis=-1),
        each("top_k", jnp.int32),
        each("top_p", jnp.float32),
        each("min_p", jnp.float32),
        positions,
        temperature,
        seeds,
        "min_p" in case.get("settings", {}),
        key,
    )


def path(use_sort: bool) -> Callable[[Case, int], np.ndarray]:
    def sample(case: Case, samples: int) -> np.ndarray:
        def call(key: jax.Array, logits: np.ndarray) -> jax.Array:
            positions = jnp.zeros(len(logits), jnp.int32)
            given = arguments(case, logits, key, None, positions)
            return sampler.top_k_top_p_min_p_sampling_from_probs_jax(given, use_sort)

        return draw(case, samples, call)

    return sample


def seeded(case: Case, samples: int) -> np.ndarray:
    """Rows with random seeds of 31 bits, all at position 7."""
    seeds = np.random.default_rng(case["seed"]).integers(2**31, size=samples, dtype=np.int64)
    return with_seeds(case, seeds, np.full(samples, 7))


def positions(case: Case, samples: int) -> np.ndarray:
    """One row with the default seed, 42, at positions one after another."""
    return with_seeds(case, np.full(samples, 42), np.arange(samples))


def with_seeds(case: Case, seeds: np.ndarray, at: np.ndarray) -> np.ndarray:
    logits = np.tile(np.asarray(case["logits"], np.float32), (len(seeds), 1))
    seed, position = jnp.asarray(seeds, jnp.int32), jnp.asarray(at, jnp.int32)
    given = arguments(case, logits, None, seed, position)
    return np.asarray(sampler.top_k_top_p_min_p_sampling_from_probs_jax(given, False))


main({"mask": path(False), "sort": path(True), "seeds": seeded, "positions": positions})
