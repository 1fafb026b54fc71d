"""The published arithmetic sampler: ``arithmetic_sample`` of google-research, on T5X."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
from harness import Case, main, package, settings, source, table

package("t5x", str(source() / "t5x"))
_file = source() / "arithmetic_sampling" / "t5x" / "decoding.py"
_spec = importlib.util.spec_from_file_location("arithmetic_decoding", _file)
assert _spec is not None
assert _spec.loader is not None
decoding = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(decoding)

NO_EOS = 99


def decode(case: Case, samples: int, decodes: int) -> np.ndarray:
    """Calls the function ``samples`` times, and returns tokens ``[samples, decodes, length]``."""
    given = settings(case, temperature=1.0, top_k=0, top_p=0.0)
    length = 2 if case["kind"] == "sequence" else 1
    logits = jnp.asarray(table(case))

    def call(key: jax.Array) -> jax.Array:
        return decoding.arithmetic_sample(
            jnp.zeros((1, length), jnp.int32),
            {},
            lambda state: (logits[state.cur_token[:, 0]], state.cache),
            NO_EOS,
            key,
            num_decodes=decodes,
            temperature=given["temperature"],
            topk=given["top_k"],
            topp=given["top_p"],
        )[0][0]

    keys = jax.random.split(jax.random.PRNGKey(case["seed"]), samples)
    return np.asarray(jax.jit(jax.vmap(call))(keys))


def alone(case: Case, samples: int) -> np.ndarray:
    return decode(case, samples, 1)[:, 0]


def one_of_four(case: Case, samples: int) -> np.ndarray:
    """One of four decodes, chosen at random, because they are returned in order of probability."""
    chosen = np.random.default_rng(case["seed"]).integers(4, size=samples)
    return decode(case, samples, 4)[np.arange(samples), chosen]


main({"one decode": alone, "one of four decodes": one_of_four})
