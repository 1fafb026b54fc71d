"""T5X: ``t5x.decoding.temperature_sample`` with a table for ``tokens_to_logits``."""

import jax
import jax.numpy as jnp
import numpy as np
from harness import Case, main, package, settings, source, table

package("t5x", str(source() / "t5x"))
from t5x import decoding  # noqa: E402

NO_EOS = 99


def decode(case: Case, samples: int, rows: int, decodes: int, temperature: object) -> np.ndarray:
    """Calls the function ``samples`` times: tokens ``[samples, rows, decodes, length]``."""
    given = settings(case, top_k=0, top_p=0.0)
    length = 2 if case["kind"] == "sequence" else 1
    logits = jnp.asarray(table(case))

    def tokens_to_logits(state: decoding.DecodingState) -> tuple[jax.Array, dict]:
        return logits[state.cur_token[:, 0]], state.cache

    def call(key: jax.Array) -> jax.Array:
        return decoding.temperature_sample(
            jnp.zeros((rows, length), jnp.int32),
            {},
            tokens_to_logits,
            NO_EOS,
            key,
            num_decodes=decodes,
            temperature=temperature,
            topk=given["top_k"],
            topp=given["top_p"],
        )[0]

    keys = jax.random.split(jax.random.PRNGKey(case["seed"]), samples)
    return np.asarray(jax.jit(jax.vmap(call))(keys))


def one_temperature(case: Case, samples: int) -> np.ndarray:
    """One number as the temperature of all rows, and two decodes of a row for a pair."""
    temperature = settings(case, temperature=1.0)["temperature"]
    if case["kind"] == "pair":
        return decode(case, samples, 1, 2, temperature)[:, 0, :, 0]
    if case["kind"] == "rows":
        return decode(case, samples, 2, 1, temperature[0])[:, :, 0, 0]
    return decode(case, samples, 1, 1, temperature)[:, 0, 0]


def array_of_temperatures(case: Case, samples: int) -> np.ndarray:
    """An array with a temperature for each row, and two decodes of a row for a pair."""
    temperature = np.asarray(settings(case, temperature=1.0)["temperature"], np.float32)
    if case["kind"] == "pair":
        return decode(case, samples, 1, 2, temperature[None])[:, 0, :, 0]
    if case["kind"] == "rows":
        return decode(case, samples, 2, 1, temperature)[:, :, 0, 0]
    return decode(case, samples, 1, 1, temperature[None])[:, 0, 0]


main({"one temperature": one_temperature, "temperature of each row": array_of_temperatures})
