"""Gemma: the sampling methods of ``gemma.gm.text``."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from gemma.gm.text import _sampling
from harness import Case, draw, main, settings


def method(name: str) -> Callable[[Case, int], np.ndarray]:
    def sample(case: Case, samples: int) -> np.ndarray:
        names = {"temperature": "temperature", "top_k": "k", "top_p": "p"}
        defaults = {"top_p": 1.0} if name == "TopPSampling" else {}
        given = {names[key]: value for key, value in settings(case, **defaults).items()}
        sampling = getattr(_sampling, name)(**given)
        return draw(
            case, samples, lambda key, logits: sampling.get_next_tokens(jnp.asarray(logits), key)
        )

    return sample


main({name: method(name) for name in ("RandomSampling", "TopkSampling", "TopPSampling")})
