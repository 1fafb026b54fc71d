"""What T5X asks of a decode function, in this library's words, and the answer in T5X's."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop
from decoding_jax.pytrees import pytree
from decoding_jax.t5x.network.adapter import T5XAdapter
from decoding_jax.t5x.network.native_callbacks import ShownNative


@pytree
@dataclasses.dataclass(frozen=True)
class NativeDecoder:
    """In the place of ``tokens_to_logits``: a language model of this library and its prompts.

    Attributes:
      model: any ``LanguageModel``.
      prompt: start tokens and prompts, which ``inputs`` holds too.
    """

    model: LanguageModel
    prompt: Prompt

    def __call__(self, state: Any) -> Any:
        """What a decode function of T5X's own would do with it.

        Raises:
          ValueError: always.
        """
        raise ValueError("decode_fn: got one of T5X's; takes one of decoding_jax.t5x.decode_fns")


@dataclasses.dataclass(frozen=True)
class Request:
    """A call of a decode function.

    Attributes:
      model: what decodes.
      prompt: what it decodes from.
      inputs: int32 ``[B, L]``, T5X's.
      base: int32 ``[B]``, where the last token of each prompt stands.
      eos_id: int32 ``[E]``.
      key: typed.
    """

    model: LanguageModel
    prompt: Prompt
    inputs: Array
    base: Array
    eos_id: Array
    key: Array

    @property
    def length(self) -> int:
        """L, the most tokens of an answer, its prompt included."""
        return self.inputs.shape[1]

    def limits(self, max_decode_steps: Any = None, most: int | None = None) -> Array:
        """int32 ``[B]``: the new tokens a row may have, forced ones among them.

        Args:
          max_decode_steps: the most tokens after the last of ``inputs``, or None.
          most: the longest answer, its prompt included; L where None.
        """
        end = jnp.full_like(self.base, self.length if most is None else most)
        if max_decode_steps is not None:
            given = (self.inputs != 0).sum(-1, dtype=jnp.int32)
            end = jnp.minimum(end, given + jnp.asarray(max_decode_steps, jnp.int32))
        return end - self.base

    def stop(self, limits: Array) -> Stop:
        return Stop(eos_ids=self.eos_id, max_new_tokens=limits)

    def best_last(self, output: DecodeOutput, most: int | None = None) -> tuple[Array, Array]:
        """The answer of a strategy whose own order is best first; see ``answer``."""
        count = output.score.shape[-1]
        rank = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[::-1][None], output.score.shape)
        return self.answer(output.tokens, output.length, output.score, rank, most)

    def answer(
        self, tokens: Array, length: Array, score: Array, rank: Array, most: int | None = None
    ) -> tuple[Array, Array]:
        """What T5X takes: prompt and text, zeros behind them, the best last.

        Args:
          tokens: int32 ``[B, N, T]``, new tokens.
          length: int32 ``[B, N]``, how many.
          score: float32 ``[B, N]``.
          rank: int32 ``[B, N]``, the order of the answer.
          most: L where None.

        Returns:
          int32 ``[B, N, L]`` and float32 ``[B, N]``.
        """
        size = self.length if most is None else most
        given = jnp.pad(self.inputs[:, 1:], ((0, 0), (0, max(size + 1 - self.length, 0))))
        given = given[:, None, :size]
        number = jnp.arange(size, dtype=jnp.int32)[None, None] - self.base[:, None, None]
        number = jnp.broadcast_to(number, (*length.shape, size))
        text = jnp.take_along_axis(tokens, jnp.clip(number, 0, tokens.shape[-1] - 1), axis=-1)
        text = jnp.where((number >= 0) & (number < length[..., None]), text, 0)
        decodes = jnp.where(given != 0, given, text)
        return (
            jnp.take_along_axis(decodes, rank[..., None], axis=1),
            jnp.take_along_axis(score, rank, axis=1),
        )


def read(
    inputs: Any,
    cache: Any,
    tokens_to_logits: Any,
    eos_id: Any,
    decode_rng: Any,
    num_decodes: int,
    cache_offset: int,
    initial_index: Any,
    callbacks: Any = None,
) -> Request:
    """The request that T5X's arguments make.

    Raises:
      ValueError: for inputs that are no matrix, or ``num_decodes`` below 1.
    """
    inputs = jnp.asarray(inputs).astype(jnp.int32)
    if inputs.ndim != 2:
        raise ValueError(f"inputs: got shape {list(inputs.shape)}; takes [B, L]")
    if num_decodes < 1:
        raise ValueError(f"num_decodes: got {num_decodes}; takes 1 or more")
    eos_id = jnp.asarray(eos_id, jnp.int32).reshape(-1)
    if isinstance(tokens_to_logits, NativeDecoder):
        model: Any = tokens_to_logits.model
        prompt = tokens_to_logits.prompt
        if callbacks is not None:
            model = ShownNative(model, inputs, eos_id, callbacks)
    else:
        if initial_index is not None:
            initial_index = jnp.asarray(initial_index, jnp.int32)
        model = T5XAdapter(
            cache, inputs, initial_index, eos_id, tokens_to_logits, num_decodes, cache_offset,
            callbacks,
        )  # fmt: skip
        prompt = model.start_prompt()
    base = jnp.asarray(prompt.length, jnp.int32) - 1
    return Request(model, prompt, inputs, base, eos_id, typed_key(decode_rng))


def typed_key(rng: Any) -> Array:
    """A typed key from T5X's, which is raw; ``jax.random.key(0)`` where there is none.

    Example:
      >>> typed_key(jax.random.PRNGKey(3)) == jax.random.key(3)
      Array(True, dtype=bool)
    """
    if rng is None:
        return jax.random.key(0)
    if jnp.issubdtype(jnp.asarray(rng).dtype, jax.dtypes.prng_key):
        return rng
    return jax.random.wrap_key_data(jnp.asarray(rng))
