"""Language models from functions of your own: nothing to subclass, nothing to register.

``from_logits`` takes a function from tokens to logits, and ``from_cache`` a cache that grows by the
tokens it is fed. Both return a ``LanguageModel``, which strategies, ``generate``, ``stream`` and
``testing.check_model`` take like any other.
"""

from decoding_jax.adapters.from_cache import CachedModel, from_cache
from decoding_jax.adapters.from_logits import UncachedModel, from_logits

__all__ = ["CachedModel", "UncachedModel", "from_cache", "from_logits"]
