"""A table model whose texts are digits, and which is compiled quickly."""

import jax
import numpy as np

from decoding_jax.testing import TableLM

VOCABULARY = 7
_NORMAL = np.random.default_rng(0).normal
# Eleven checksums. NumPy, because there is nothing to compile.
TABLE = TableLM(
    jax.device_put(_NORMAL(size=(11, VOCABULARY + 1, VOCABULARY, VOCABULARY)).astype(np.float32)),
    jax.device_put(_NORMAL(size=(11, VOCABULARY, 4)).astype(np.float32)),
)


class Digits:
    """A tokenizer whose tokens are digits; 0 is the end token."""

    eos_ids = (0,)

    def encode(self, text):
        return [int(c) for c in text.replace(" ", "")]

    def decode(self, ids):
        return "".join(str(i) for i in ids if i)


class Halves(Digits):
    """Two tokens make a character; one alone is decoded as a replacement character."""

    def decode(self, ids):
        real = [i for i in ids if i]
        whole = "".join(chr(97 + 7 * a + b) for a, b in zip(real[::2], real[1::2], strict=False))
        return whole + "\ufffd" * (len(real) % 2)
