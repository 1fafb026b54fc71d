"""Whether two programs decode the same texts."""

import numpy as np


def check_equal(found, expected):
    """The same tokens, and log-probabilities within the rounding of another program."""
    for row, expected_row in zip(found, expected, strict=True):
        assert [c.tokens for c in row] == [c.tokens for c in expected_row]
        assert [c.finished for c in row] == [c.finished for c in expected_row]
        for part in ("log_prob", "score"):
            values = [[getattr(c, part) for c in r] for r in (row, expected_row)]
            np.testing.assert_allclose(*values, rtol=2e-6, atol=2e-6)
