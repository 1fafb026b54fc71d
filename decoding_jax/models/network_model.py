"""What the language models of all networks share."""

from __future__ import annotations

from typing import Any, ClassVar

from decoding_jax.base import Array, ModelOutput
from decoding_jax.models import cache as caches
from decoding_jax.models.cache import Cache


class NetworkModel:
    """The methods of a ``LanguageModel`` that only call its network or move its cache.

    A subclass has ``network``, the class of the network, ``params`` and ``config``, and defines
    ``prefill``.
    """

    network: ClassVar[Any]
    params: Any
    config: Any
    ragged = True
    tree = True
    widens = True

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def apply(self, method: Any, *args: Any) -> Any:
        """Calls a method of the network."""
        return self.network(self.config).apply({"params": self.params}, *args, method=method)

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, Cache]:
        """See ``LanguageModel.extend``."""
        hidden, cache = self.apply(self.network.extend, cache, tokens, start, visible, position)
        return ModelOutput(self.project(hidden), hidden), cache

    def project(self, hidden: Array) -> Array:
        """See ``SupportsProject.project``."""
        return self.apply(self.network.project, hidden)

    def keep(self, cache: Cache, source: Array, start: Array | int) -> Cache:
        """See ``SupportsKeep.keep``."""
        return caches.keep(cache, source, start)

    def select(self, cache: Cache, lanes: Array) -> Cache:
        """See ``SupportsSelect.select``."""
        return caches.select(cache, lanes)
