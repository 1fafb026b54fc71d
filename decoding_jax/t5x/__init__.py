"""The T5X plug-in: decode functions that take the place of T5X's own.

``decode_fns`` has them, one a strategy; ``T5XAdapter`` is what they see T5X's network through. None
of it imports T5X.
"""

from decoding_jax.t5x.network.adapter import T5XAdapter

__all__ = ["T5XAdapter"]
