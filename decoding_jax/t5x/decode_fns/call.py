"""A call of a decode function: what T5X passes as a model and a prompt, and the result it takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop
from decoding_jax.pytrees import pytree
from decoding_jax.t5x.decode_fns.arguments import T5XArguments
from decoding_jax.t5x.network.adapter import T5XAdapter
from decoding_jax.t5x.network.native_callbacks import NativeWithCallbacks


@pytree
@dataclasses.dataclass(frozen=True)
class NativeDecoder:
    """A language model of this library and its prompts, given instead of ``tokens_to_logits``.

    Attributes:
      model: any ``LanguageModel``.
      prompt: start tokens and prompts, also held by ``inputs``.
    """

    model: LanguageModel
    prompt: Prompt

    def __call__(self, state: Any) -> Any:
        """Refuses to be called, as one of T5X's own decode functions would call it.

        Raises:
          ValueError: always.
        """
        raise ValueError("decode_fn: got one of T5X's; takes one of decoding_jax.t5x.decode_fns")


@dataclasses.dataclass(frozen=True)
class Call:
    """T5X's arguments as this library's.

    Attributes:
      model: the model that decodes.
      prompt: the prompt that it decodes from.
      inputs: int32 ``[B, L]``, T5X's.
      prompt_end: int32 ``[B]``, the position of the last token of each prompt.
      eos_id: int32 ``[E]``.
      key: a typed key.
    """

    model: LanguageModel
    prompt: Prompt
    inputs: Array
    prompt_end: Array
    eos_id: Array
    key: Array

    @property
    def length(self) -> int:
        """L, the maximum length of a result, prompt included."""
        return self.inputs.shape[1]

    def limits(self, max_decode_steps: Any = None, max_length: int | None = None) -> Array:
        """int32 ``[B]``: the maximum number of new tokens of each row, forced ones included.

        Args:
          max_decode_steps: the maximum number of tokens after the last of ``inputs``, or None.
          max_length: the maximum length of a result, prompt included; L where None.
        """
        end = jnp.full_like(self.prompt_end, self.length if max_length is None else max_length)
        if max_decode_steps is not None:
            given = (self.inputs != 0).sum(-1, dtype=jnp.int32)
            end = jnp.minimum(end, given + jnp.asarray(max_decode_steps, jnp.int32))
        return end - self.prompt_end

    def stop(self, limits: Array) -> Stop:
        """The stop conditions, given the maximum number of new tokens of each row."""
        return Stop(eos_ids=self.eos_id, max_new_tokens=limits)

    def best_last(self, output: DecodeOutput, max_length: int | None = None) -> tuple[Array, Array]:
        """The result of a search whose output is sorted best first; see ``result``."""
        count = output.score.shape[-1]
        order = jnp.arange(count, dtype=jnp.int32)[::-1]
        order = jnp.broadcast_to(order[None], output.score.shape)
        return self.result(output.tokens, output.length, output.score, order, max_length)

    def rising(self, output: DecodeOutput, score: Array | None = None) -> tuple[Array, Array]:
        """The result in the order of rising scores, by default the output's."""
        score = output.score if score is None else score
        order = jnp.argsort(score, axis=-1)
        return self.result(output.tokens, output.length, score, order)

    def result(
        self,
        tokens: Array,
        length: Array,
        score: Array,
        order: Array,
        max_length: int | None = None,
    ) -> tuple[Array, Array]:
        """What T5X takes: prompt and new tokens, then zeros.

        Args:
          tokens: int32 ``[B, N, T]``, new tokens.
          length: int32 ``[B, N]``, the number of new tokens.
          score: float32 ``[B, N]``.
          order: int32 ``[B, N]``, which sequence comes first, second, ...
          max_length: L where None.

        Returns:
          int32 ``[B, N, max_length]`` and float32 ``[B, N]``.
        """
        size = self.length if max_length is None else max_length
        given = jnp.pad(self.inputs[:, 1:], ((0, 0), (0, max(size + 1 - self.length, 0))))
        given = given[:, None, :size]
        position = jnp.arange(size, dtype=jnp.int32)[None, None]
        number = position - self.prompt_end[:, None, None]
        number = jnp.broadcast_to(number, (*length.shape, size))
        text = jnp.take_along_axis(tokens, jnp.clip(number, 0, tokens.shape[-1] - 1), axis=-1)
        text = jnp.where((number >= 0) & (number < length[..., None]), text, 0)
        decodes = jnp.where(given != 0, given, text)
        return (
            jnp.take_along_axis(decodes, order[..., None], axis=1),
            jnp.take_along_axis(score, order, axis=1),
        )


def open_call(arguments: T5XArguments, callbacks: Any = None) -> Call:
    """The call that T5X's arguments make.

    Args:
      arguments: T5X's.
      callbacks: T5X's callbacks (``Callbacks``), or None.

    Raises:
      ValueError: for inputs that are not a matrix, or ``num_decodes`` below 1.
    """
    inputs = jnp.asarray(arguments.inputs).astype(jnp.int32)
    if inputs.ndim != 2:
        raise ValueError(f"inputs: got shape {list(inputs.shape)}; takes [B, L]")
    if arguments.num_decodes < 1:
        raise ValueError(f"num_decodes: got {arguments.num_decodes}; takes 1 or more")
    eos_id = jnp.asarray(arguments.eos_id, jnp.int32).reshape(-1)
    decoder = arguments.tokens_to_logits
    if isinstance(decoder, NativeDecoder):
        model: LanguageModel = decoder.model
        prompt = decoder.prompt
        if callbacks is not None:
            model = NativeWithCallbacks(model, inputs, eos_id, callbacks)
    else:
        initial_index = arguments.initial_index
        if initial_index is not None:
            initial_index = jnp.asarray(initial_index, jnp.int32)
        model = T5XAdapter(
            cache=arguments.cache,
            inputs=inputs,
            initial_index=initial_index,
            eos_id=eos_id,
            tokens_to_logits=decoder,
            num_decodes=arguments.num_decodes,
            cache_offset=arguments.cache_offset,
            callbacks=callbacks,
        )
        prompt = model.start_prompt()
    prompt_end = jnp.asarray(prompt.length, jnp.int32) - 1
    return Call(model, prompt, inputs, prompt_end, eos_id, typed_key(arguments.decode_rng))


def typed_key(rng: Any) -> Array:
    """A typed key from T5X's raw one; ``jax.random.key(0)`` from None.

    Example:
      >>> typed_key(jax.random.PRNGKey(3)) == jax.random.key(3)
      Array(True, dtype=bool)
    """
    if rng is None:
        return jax.random.key(0)
    if jnp.issubdtype(jnp.asarray(rng).dtype, jax.dtypes.prng_key):
        return rng
    return jax.random.wrap_key_data(jnp.asarray(rng))
