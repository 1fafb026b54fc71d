"""The T5X plug-in: decode functions that replace T5X's own.

``decode_fns`` contains one function per strategy. They access T5X's network through ``T5XAdapter``.
Neither imports T5X.
"""

from decoding_jax.t5x.adapter import T5XAdapter

__all__ = ["T5XAdapter"]
