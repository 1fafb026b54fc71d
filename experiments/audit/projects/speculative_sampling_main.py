"""speculative-sampling, the NumPy program: ``speculative_sampling`` on tables."""

import os
import sys
from collections.abc import Callable

os.environ["TQDM_DISABLE"] = "1"

import numpy as np
from harness import Case, draft_table, main, source, stubs, table

stubs(["gpt2", "utils"])
sys.path.append(str(source()))
import main as speculative  # noqa: E402


def distributions(rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    x = np.exp(rows.astype(np.float64))
    each = x / x.sum(axis=1, keepdims=True)
    return lambda tokens: each[tokens]


def two_drafts(case: Case, samples: int) -> np.ndarray:
    np.random.seed(case["seed"])
    draft, target = distributions(draft_table(case)), distributions(table(case))
    steps = 2 if case["kind"] == "sequence" else 1
    return np.array(
        [
            speculative.speculative_sampling(np.array([0]), draft, target, N=steps, K=2)[
                1 : 1 + steps
            ]
            for _ in range(samples)
        ]
    )


main({"speculative_sampling": two_drafts})
