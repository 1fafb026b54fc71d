"""The arguments that T5X gives to decode functions, as a model and a prompt, and T5X's results.

A decode function takes dataclasses of this module and further settings. ``decode_fn`` turns it into
a function whose arguments are the fields of the dataclasses and these settings, since T5X passes
keywords and gin binds names. ``open_call`` converts the arguments to those of a strategy.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import Strategy, run
from decoding_jax.pytrees import pytree
from decoding_jax.t5x import adapter
from decoding_jax.t5x.callbacks import Callbacks, NativeWithCallbacks

Decodes = tuple[Array, Array]
"""int32 ``[B, num_decodes, L]`` and scores float32 ``[B, num_decodes]``."""

REQUIRED = ("inputs", "cache", "tokens_to_logits", "eos_id")
"""The arguments without a default, which every decode function takes by position too."""

SAMPLING_ORDER = (
    *REQUIRED,
    *("decode_rng", "num_decodes", "temperature", "topk", "topp", "cache_offset", "initial_index"),
    *("max_decode_steps", "max_decode_steps_hard_limit", "rescale_log_probs"),
)
"""The order in which T5X's ``temperature_sample`` takes these arguments."""

BEAM_ORDER = (
    *REQUIRED,
    *("num_decodes", "alpha", "max_decode_len", "max_decode_step", "min_log_prob", "decode_rng"),
    *("cache_offset", "initial_index"),
)
"""The order in which T5X's ``beam_search`` takes these arguments."""


@dataclasses.dataclass(frozen=True)
class T5XArguments:
    """The arguments of every decode function.

    Attributes:
      inputs: int32 ``[B, L]``, shifted right: a start token, the prompt, then zeros. A non-zero
        token is forced and adds no score.
      cache: T5X's cache, with B rows.
      tokens_to_logits: T5X's function, or a ``NativeDecoder``.
      eos_id: the end token, or several as ``[E]``. An end token in the prompt does not end it.
      decode_rng: a key, raw or typed; None is ``jax.random.key(0)``.
      num_decodes: N, the number of sequences returned for each row.
      cache_offset: 1 where layers are scanned.
      initial_index: int32 ``[B]``, the position of each prompt's last token after a prefill.
      transform: applied to the logits (log-probabilities in beam searches): any of
        ``decoding_jax.transforms``. Without a prefill, prompt tokens count as new tokens.
    """

    inputs: Array
    cache: Any
    tokens_to_logits: Callable[..., tuple[Array, Any]]
    eos_id: int | Array
    decode_rng: Array | None = None
    num_decodes: int = 1
    cache_offset: int = 0
    initial_index: Array | None = None
    transform: Transform | None = None


@dataclasses.dataclass(frozen=True)
class TemperatureArguments:
    """How logits become the distribution that tokens are drawn from.

    Attributes:
      temperature: a number or ``[B]``; the most probable token is chosen at 1e-4 and below.
      topk: 0 keeps all tokens.
      topp: 0 keeps all tokens.
    """

    temperature: float | Array = 1.0
    topk: int | Array = 0
    topp: float | Array = 0.0


@dataclasses.dataclass(frozen=True)
class SamplingArguments(TemperatureArguments):
    """The further arguments of T5X's ``temperature_sample``.

    Attributes:
      max_decode_steps: the maximum number of tokens after the last prompt token; None sets no limit
        but L.
      max_decode_steps_hard_limit: an upper bound on ``max_decode_steps``, if above 0.
      rescale_log_probs: whether scores are log-probabilities under the distribution that tokens are
        drawn from, after temperature and truncation. Otherwise they are under the model.
    """

    max_decode_steps: int | Array | None = None
    max_decode_steps_hard_limit: int | None = None
    rescale_log_probs: bool = True

    def step_limit(self, length: int) -> int | Array | None:
        """The maximum number of tokens after the last prompt token, or None; above L an error."""
        steps, hard_limit = self.max_decode_steps, self.max_decode_steps_hard_limit
        if steps is None:
            return None
        if hard_limit is not None and hard_limit > 0:
            plain = isinstance(steps, int)
            steps = min(steps, hard_limit) if plain else jnp.minimum(steps, hard_limit)
        number = static_number(steps)
        if number is not None and number > length:
            raise ValueError(
                f"max_decode_steps: expected at most {length}, the length of inputs, got {steps}"
            )
        return steps


def decode_fn(
    order: Sequence[str] = REQUIRED, **defaults: Any
) -> Callable[[Callable[..., Decodes]], Callable[..., Decodes]]:
    """Turns a function that takes the dataclasses above into a decode function for T5X.

    Each parameter annotated with one of the dataclasses is replaced by its fields.

    Args:
      order: the arguments that may be given by position, in this order; the others are given by
        keyword only.
      **defaults: defaults of fields that differ from those of the dataclass.

    Example:
      >>> @decode_fn(num_decodes=4)
      ... def first(call: T5XArguments, *, scale: float = 1.0) -> Decodes: ...
      >>> inspect.signature(first).parameters["num_decodes"].default
      4
      >>> list(inspect.signature(first).parameters)[-2:]
      ['transform', 'scale']
    """

    def decorate(function: Callable[..., Decodes]) -> Callable[..., Decodes]:
        hints = typing.get_type_hints(function)
        parameters = inspect.signature(function).parameters
        groups = {name: hints[name] for name in parameters if dataclasses.is_dataclass(hints[name])}
        settings = [parameter for name, parameter in parameters.items() if name not in groups]
        return with_fields(function, groups, settings, order, defaults)

    return decorate


def with_fields(
    function: Callable[..., Decodes],
    groups: Mapping[str, type],
    settings: Iterable[inspect.Parameter],
    order: Sequence[str] = REQUIRED,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., Decodes]:
    """A function with the fields of dataclasses as arguments, of one that takes the dataclasses.

    Args:
      function: called by keywords.
      groups: its parameters that take one of the dataclasses above.
      settings: its other parameters.
      order, defaults: as for ``decode_fn``.
    """
    names = {name: [field.name for field in dataclasses.fields(groups[name])] for name in groups}
    parameters = {
        field.name: _parameter(field, defaults)
        for kind in groups.values()
        for field in dataclasses.fields(kind)
    }
    parameters |= {setting.name: setting.replace(kind=setting.KEYWORD_ONLY) for setting in settings}
    first = [
        parameters.pop(name).replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in order
    ]
    signature = inspect.Signature([*first, *parameters.values()], return_annotation="Decodes")

    def decode(*args: Any, **kwargs: Any) -> Decodes:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        grouped = {
            name: kind(**{field: given.pop(field) for field in names[name]})
            for name, kind in groups.items()
        }
        return function(**grouped, **given)

    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(decode, attribute, getattr(function, attribute))
    vars(decode).update(__signature__=signature)
    return decode


def _parameter(field: dataclasses.Field[Any], defaults: Mapping[str, Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty
    if field.default is not dataclasses.MISSING:
        default = defaults.get(field.name, field.default)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type
    )


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
        """Raises ValueError, since only T5X's own decode functions call ``tokens_to_logits``."""
        raise ValueError("decode_fn: expected one of decoding_jax.t5x.decode_fns, got one of T5X's")


@dataclasses.dataclass(frozen=True)
class T5XCall:
    """What is decoded, and how: T5X's arguments, converted to those of this library's strategies.

    Attributes:
      model: the model.
      prompt: the prompt to decode from.
      inputs: int32 ``[B, L]``, the inputs of T5X.
      prompt_end: int32 ``[B]``, the position of the last token of each prompt.
      eos_id: int32 ``[E]``, the end tokens.
      key: a typed key.
      num_decodes: N, the number of sequences returned for each row.
      transform: the user's.
    """

    model: LanguageModel
    prompt: Prompt
    inputs: Array
    prompt_end: Array
    eos_id: Array
    key: Array
    num_decodes: int
    transform: Transform | None

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

    @property
    def kept_transform(self) -> Transform | None:
        """The user's transform, applied where no token is forced."""
        return None if self.transform is None else KeepForced(self.transform)

    def stop(self, limits: Array) -> Stop:
        """The stop conditions, given the maximum number of new tokens of each row."""
        return Stop(eos_ids=self.eos_id, max_new_tokens=limits)

    def strategy(
        self, made: type[Strategy], max_decode_steps: int | Array | None = None, **settings: Any
    ) -> Strategy:
        """A strategy with the limits and the end tokens of this call.

        Args:
          made: its class.
          max_decode_steps: as for ``limits``.
          **settings: its other settings.
        """
        stop = self.stop(self.limits(max_decode_steps))
        return made(max_new_tokens=self.length, stop=stop, **settings)

    def run(self, strategy: Any) -> DecodeOutput:
        """Runs a strategy to its end."""
        return run(strategy, self.model, self.prompt, self.key)

    def best_last(self, output: DecodeOutput, max_length: int | None = None) -> tuple[Array, Array]:
        """The result of a search, whose output is sorted best first, in reverse order."""
        count = output.score.shape[-1]
        order = jnp.arange(count, dtype=jnp.int32)[::-1]
        order = jnp.broadcast_to(order[None], output.score.shape)
        return self.result(output.tokens, output.length, output.score, order, max_length)

    def ascending(self, output: DecodeOutput, score: Array | None = None) -> tuple[Array, Array]:
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


def open_call(
    arguments: T5XArguments,
    callbacks: Callbacks | None = None,
    *,
    fewest: int = 1,
    show_prompt: bool = True,
) -> T5XCall:
    """Converts T5X's arguments.

    Args:
      arguments: those of T5X.
      callbacks: those of T5X, or None.
      fewest: the smallest ``num_decodes``.
      show_prompt: as for ``T5XAdapter``.

    Raises:
      ValueError: for inputs that are not a matrix, or ``num_decodes`` below ``fewest``.
    """
    inputs = jnp.asarray(arguments.inputs).astype(jnp.int32)
    if inputs.ndim != 2:
        raise ValueError(f"inputs: expected shape [B, L], got {list(inputs.shape)}")
    if arguments.num_decodes < fewest:
        raise ValueError(f"num_decodes: expected {fewest} or more, got {arguments.num_decodes}")
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
        model = adapter.T5XAdapter(
            cache=arguments.cache,
            inputs=inputs,
            initial_index=initial_index,
            eos_id=eos_id,
            tokens_to_logits=decoder,
            num_decodes=arguments.num_decodes,
            cache_offset=arguments.cache_offset,
            callbacks=callbacks,
            show_prompt=show_prompt,
        )
        prompt = model.start_prompt()
    prompt_end = jnp.asarray(prompt.length, jnp.int32) - 1
    key = typed_key(arguments.decode_rng)
    count = arguments.num_decodes
    return T5XCall(model, prompt, inputs, prompt_end, eos_id, key, count, arguments.transform)


def open_native_call(made: type[Strategy], arguments: T5XArguments) -> T5XCall:
    """``open_call`` for a strategy that needs a native model.

    Raises:
      ValueError: on T5X's own networks, and as ``open_call``.
    """
    call = open_call(arguments)
    if not (call.model.ragged and call.model.tree):
        raise ValueError(
            f"decode_fn: expected a model for {fields.label(made)}, NativeEncoderDecoderModel or "
            "NativeDecoderOnlyModel of decoding_jax.t5x.models, got a network that is fed one "
            "token per row and call, and returns no hidden states"
        )
    return call


@dataclasses.dataclass(frozen=True)
class KeepForced:
    """Applies a transform where more than one token is allowed, so that forced tokens are kept."""

    transform: Transform

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        allowed = (logits > -jnp.inf).sum(-1, keepdims=True, dtype=jnp.int32)
        return jnp.where(allowed == 1, logits, self.transform(logits, prefix))


def static_number(value: Any) -> float | None:
    """A plain number, or None for a traced value or an array."""
    if isinstance(value, (int, float, np.number)) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):
        return float(value)
    return None


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
