"""MaxText: ``maxtext.inference.inference_utils.sampling``."""

from collections.abc import Callable

import numpy as np
from harness import Case, draw, main, package, settings, source, vocab_size

package("maxtext", str(source() / "src" / "maxtext"))
from maxtext.inference import inference_utils  # noqa: E402


def algorithm(name: str) -> Callable[[Case, int], np.ndarray]:
    def sample(case: Case, samples: int) -> np.ndarray:
        given = settings(case, temperature=1.0, top_k=vocab_size(case), top_p=0.0)
        return draw(
            case,
            samples,
            lambda key, logits: inference_utils.sampling(
                logits, key, name, given["top_k"], given["top_p"], given["temperature"]
            ),
        )

    return sample


main({name: algorithm(name) for name in ("weighted", "nucleus", "topk", "composite")})
