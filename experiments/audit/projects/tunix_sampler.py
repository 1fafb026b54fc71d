"""Tunix: ``tunix.generate.sampler.sample_top_p``."""

import sysconfig

import jax.numpy as jnp
import numpy as np
from harness import Case, draw, main, package, settings, stubs

package("tunix", sysconfig.get_path("purelib") + "/tunix")
stubs(["tunix.generate.tokenizer_adapter", "tunix.processors", "tunix.processors.image_processor"])
from tunix.generate.sampler import sample_top_p  # noqa: E402


def sample(case: Case, samples: int) -> np.ndarray:
    given = settings(case, temperature=1.0, top_k=None, top_p=1.0)
    return draw(
        case,
        samples,
        lambda key, logits: sample_top_p(
            jnp.asarray(logits)[:, None], key, given["temperature"], given["top_p"], given["top_k"]
        )[0],
    )


main({"sample_top_p": sample})
