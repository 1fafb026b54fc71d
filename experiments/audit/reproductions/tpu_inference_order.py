"""tpu-inference 0.32.0: the rejection sampler truncates before the temperature, sample after it."""

import jax
import jax.numpy as jnp
from tpu_inference.layers.jax.sample.rejection_sampler import _compute_probs
from tpu_inference.layers.jax.sample.sampling import _apply_sampling_transforms
from tpu_inference.layers.jax.sample.sampling_metadata import TPUSupportedSamplingMetadata

logits = jnp.array([[1.2, 0.3, -0.5, 2.0, 0.0, -1.5]])
metadata = TPUSupportedSamplingMetadata(
    temperature=jnp.array([2.0]),
    top_k=jnp.array([0]),
    top_p=jnp.array([0.75]),
    do_sampling=True,
)
print("sample", jax.nn.softmax(_apply_sampling_transforms(logits, metadata)))
print("target of rejection", _compute_probs(logits, jnp.ones(1, jnp.int32), metadata))
# Four tokens against two: a request with top_p and a temperature is answered from another
# distribution as soon as speculative decoding is on.
