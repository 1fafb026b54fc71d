"""Conversion of T5X's arguments to a model and a prompt, and of a result to T5X's format."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop
from decoding_jax.pytrees import pytree
from decoding_jax.t5x.decode_fns.arguments import T5XArguments
from decoding_jax.t5x.network.adapter import T5XAdapter
from decoding_jax.t5x.network.callbacks import Callbacks
from decoding_jax.t5x.network.native_callbacks import NativeWithCallbacks

_BELOW_ALL = jnp.finfo(jnp.float32).min


@pytree
@dataclasses.dataclass(frozen=True)
class NativeDecoder:
    """A language model of this library and its prompts, given instead of ``tokens_to_logits``.

    Attributes:
      model: any ``LanguageModel``.
      prompt: the start tokens and prompts, which ``inputs`` also contain.
    """

    model: LanguageModel
    prompt: Prompt

    def __call__(self, state: Any) -> NoReturn:
        """Raises an error, since only T5X's own decode functions call their ``tokens_to_logits``.

        Raises:
          ValueError: always.
        """
        raise ValueError("decode_fn: got one of T5X's; takes one of decoding_jax.t5x.decode_fns")


@dataclasses.dataclass(frozen=True)
class Call:
    """T5X's arguments, converted to those of this library's strategies.

    Attributes:
      model: the model.
      prompt: the prompt to decode from.
      inputs: int32 ``[B, L]``, the inputs of T5X.
      prompt_end: int32 ``[B]``, the position of the last token of each prompt.
      eos_id: int32 ``[E]``, the end tokens.
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

    def limits(
        self, max_decode_steps: int | Array | None = None, max_length: int | None = None
    ) -> Array:
        """The maximum number of new tokens of each row, forced ones included: int32 ``[B]``.

        Args:
          max_decode_steps: the maximum number of tokens after the last prompt token, or None.
          max_length: the maximum length of a result, prompt included; None means L.
        """
        end = jnp.full_like(self.prompt_end, self.length if max_length is None else max_length)
        if max_decode_steps is not None:
            prompt_length = (self.inputs != 0).sum(-1, dtype=jnp.int32)
            end = jnp.minimum(end, prompt_length + jnp.asarray(max_decode_steps, jnp.int32))
        return end - self.prompt_end

    def stop(self, limits: Array) -> Stop:
        """The stop conditions, given the maximum number of new tokens of each row."""
        return Stop(eos_ids=self.eos_id, max_new_tokens=limits)

    def best_last(self, output: DecodeOutput, max_length: int | None = None) -> tuple[Array, Array]:
        """The result of a search, whose output is sorted best first, in reverse order."""
        count = output.score.shape[-1]
        order = jnp.arange(count, dtype=jnp.int32)[::-1]
        order = jnp.broadcast_to(order[None], output.score.shape)
        return self.result(output.tokens, output.length, output.score, order, max_length)

    def rising(self, output: DecodeOutput, score: Array | None = None) -> tuple[Array, Array]:
        """The result sorted by ascending ``score``, by default that of the output.

        A score of NaN comes before all numbers, and after unused places, which have -inf.
        """
        score = output.score if score is None else score
        order = jnp.argsort(jnp.where(jnp.isnan(score), _BELOW_ALL, score), axis=-1)
        return self.result(output.tokens, output.length, score, order)

    def result(
        self,
        tokens: Array,
        length: Array,
        score: Array,
        order: Array,
        max_length: int | None = None,
    ) -> tuple[Array, Array]:
        """The result in T5X's format: the prompt and the new tokens, followed by zeros.

        Args:
          tokens: int32 ``[B, N, T]``, the new tokens.
          length: int32 ``[B, N]``, the number of new tokens.
          score: float32 ``[B, N]``.
          order: int32 ``[B, N]``, the index of the sequence that comes first, second and so on.
          max_length: the maximum length of a result, prompt included; None means L.

        Returns:
          Decodes int32 ``[B, N, max_length]`` and scores float32 ``[B, N]``.
        """
        size = self.length if max_length is None else max_length
        prompt = jnp.pad(self.inputs[:, 1:], ((0, 0), (0, max(size + 1 - self.length, 0))))
        prompt = prompt[:, None, :size]
        position = jnp.arange(size, dtype=jnp.int32)[None, None]
        slot = position - self.prompt_end[:, None, None]
        slot = jnp.broadcast_to(slot, (*length.shape, size))
        text = jnp.take_along_axis(tokens, jnp.clip(slot, 0, tokens.shape[-1] - 1), axis=-1)
        text = jnp.where((slot >= 0) & (slot < length[..., None]), text, 0)
        decodes = jnp.where(prompt != 0, prompt, text)
        return (
            jnp.take_along_axis(decodes, order[..., None], axis=1),
            jnp.take_along_axis(score, order, axis=1),
        )


def open_call(arguments: T5XArguments, callbacks: Callbacks | None = None) -> Call:
    """Converts T5X's arguments.

    Args:
      arguments: the arguments of T5X.
      callbacks: T5X's callbacks, or None.

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


def typed_key(rng: Array | None) -> Array:
    """A typed key, made from T5X's raw key; ``jax.random.key(0)`` for None.

    Example:
      >>> typed_key(jax.random.PRNGKey(3)) == jax.random.key(3)
      Array(True, dtype=bool)
    """
    if rng is None:
        return jax.random.key(0)
    if jnp.issubdtype(jnp.asarray(rng).dtype, jax.dtypes.prng_key):
        return rng
    return jax.random.wrap_key_data(jnp.asarray(rng))
