"""tpu-inference: ``sample`` and the functions behind ``RejectionSampler``."""

import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
from harness import Case, draw, main, package, settings, stubs

package("tpu_inference", sysconfig.get_path("purelib") + "/tpu_inference")
stubs(
    [
        "vllm",
        "vllm.config",
        "vllm.config.model",
        "vllm.v1",
        "vllm.v1.outputs",
        "tpu_inference.logger",
        "tpu_inference.utils",
        "tpu_inference.runner",
        "tpu_inference.runner.input_batch",
        "tpu_inference.models.common.compiler_options",
    ],
    get_sampling_compiler_options=dict,
    init_logger=lambda name: None,
)
from tpu_inference.layers.jax.sample import rejection_sampler, sampling  # noqa: E402
from tpu_inference.layers.jax.sample.sampling_metadata import (  # noqa: E402
    TPUSupportedSamplingMetadata,
)


def metadata(case: Case, rows: int) -> TPUSupportedSamplingMetadata:
    given = settings(case, temperature=1.0, top_k=0, top_p=1.0)

    def each(name: str, dtype: type) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(given[name], dtype), rows)

    return TPUSupportedSamplingMetadata(
        temperature=each("temperature", jnp.float32),
        top_k=each("top_k", jnp.int32),
        top_p=each("top_p", jnp.float32),
        do_sampling=True,
    )


def sample(case: Case, samples: int) -> np.ndarray:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    return draw(
        case,
        samples,
        lambda key, logits: sampling.sample(
            key, mesh, jnp.asarray(logits), metadata(case, len(logits))
        )[0],
    )


def verify(case: Case, samples: int, sure: bool) -> np.ndarray:
    """The first token that ``rejection_sample`` returns for one drafted token.

    The draft's token is drawn from its distribution; or it is the most probable one, and no draft
    probabilities are given, as the runner does.
    """
    draft = jnp.asarray(case["draft"], jnp.float32)
    target = jnp.asarray(case["logits"], jnp.float32)[None]
    count = jnp.ones(1, jnp.int32)

    def call(key: jax.Array, _: np.ndarray) -> jax.Array:
        first, second, third = jax.random.split(key, 3)
        drawn = jnp.argmax(draft) if sure else jax.random.categorical(first, draft)
        return rejection_sampler.rejection_sample(
            drawn[None],
            count,
            None if sure else jax.nn.softmax(draft)[None],
            rejection_sampler._compute_probs(target, count, metadata(case, 1)),
            jax.random.categorical(second, target),
            True,
            third,
        )[:1]

    return draw(case, samples, call)


main(
    {
        "sample": sample,
        "rejection_sample": lambda case, samples: verify(case, samples, False),
        "rejection_sample, draft_probs=None": lambda case, samples: verify(case, samples, True),
    }
)
