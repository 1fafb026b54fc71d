"""A native model that calls T5X's callbacks at every step."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from decoding_jax.base import Array, LanguageModel, ModelOutput
from decoding_jax.pytrees import pytree
from decoding_jax.t5x.network.adapter import DecodingState
from decoding_jax.t5x.network.callbacks import Callbacks
from decoding_jax.t5x.network.forced_tokens import AdapterCache, enter, leave_forced, open_cache


@pytree
@dataclasses.dataclass(frozen=True)
class NativeWithCallbacks:
    """A native model with T5X's callbacks, for strategies that extend all lanes token by token.

    The state that callbacks are given differs from T5X's in two ways. ``cache`` is the cache of
    ``model``, in its own layout (``models.cache.Cache`` for the networks of this library). The
    cache already contains the whole prompt in the first state, so the changes that
    ``state_callback_fn`` makes to ``cur_token`` and ``cache`` of the first state do not affect the
    first logits.

    Attributes:
      model: any ``LanguageModel``.
      inputs: int32 ``[B, L]``, the inputs of T5X, which contain the prompts.
      eos_id: int32 ``[E]``, the end tokens.
      callbacks: the callbacks of T5X.
    """

    model: LanguageModel
    inputs: Array
    eos_id: Array
    callbacks: Callbacks = dataclasses.field(metadata={"static": True})

    ragged = False
    tree = False

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_positions(self) -> int | None:
        return self.model.max_positions

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, AdapterCache]:
        """See ``LanguageModel.prefill``.

        The logits have an entry for every lane, since callbacks may treat lanes differently.
        """
        output, network = self.model.prefill(
            tokens, length, lanes=lanes, slots=slots, with_hidden=with_hidden
        )
        batch, vocab = tokens.shape[0], output.logits.shape[-1]
        last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
        last = jnp.broadcast_to(last, (batch, lanes))
        cache = open_cache(network, self.inputs, lanes, length - 1)
        cache, _ = self.callbacks.before_first(cache, last)
        cache, _, index, known = enter(cache, last, jnp.int32(-1))
        logits = jnp.broadcast_to(output.logits[:, :, 0], (batch, lanes, vocab))
        logits = self._apply_callbacks(logits, cache, last, index, known)
        return output._replace(logits=logits), cache

    def extend(
        self,
        cache: AdapterCache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, AdapterCache]:
        """See ``LanguageModel.extend``.

        Raises:
          ValueError: for more than one token per lane, lanes at different slots, or a tree.
        """
        if tokens.shape[-1] != 1 or jnp.ndim(start) or visible is not None:
            raise ValueError(
                f"state_callback_fn, logit_callback_fn: got an extend by {tokens.shape[-1]} tokens"
                f" from {list(jnp.shape(start))} slots; takes strategies that grow in step by one"
            )
        cache, token, index, known = enter(cache, tokens[..., 0], jnp.asarray(start, jnp.int32))
        output, network = self.model.extend(cache.network, token[..., None], start, None, position)
        logits = self._apply_callbacks(output.logits[:, :, 0], cache, token, index, known)
        return output._replace(logits=logits), cache._replace(network=network)

    def _apply_callbacks(
        self, logits: Array, cache: AdapterCache, token: Array, index: Array, known: Array
    ) -> Array:
        """Logits ``[B, W, V]`` after the callbacks and forced tokens, as ``[B, W, 1, V]``."""
        rows = token.size
        state = DecodingState(
            cur_index=index.reshape(rows),
            sequences=known.reshape(rows, -1)[:, : self.inputs.shape[1]],
            cur_token=token.reshape(rows, 1),
            cache=cache.network,
        )
        changed = self.callbacks.on_logits(logits.reshape(rows, -1), state, known, cache.loop)
        changed = jnp.asarray(changed, jnp.float32).reshape(logits.shape)
        return leave_forced(changed, cache.forced, self.inputs, index, self.eos_id)[:, :, None]
