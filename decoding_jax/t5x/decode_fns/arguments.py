"""The arguments that T5X gives to decode functions, declared once for all of them.

A decode function takes dataclasses of this module and further settings. ``decode_fn`` turns it into
a function whose arguments are the fields of the dataclasses and these settings, since T5X passes
keywords and gin binds names.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from decoding_jax.base import Array, Transform
from decoding_jax.t5x.decode_fns.temperature import static_number

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
        """The maximum number of tokens after the last prompt token, or None.

        Args:
          length: L, the length of ``inputs``.

        Raises:
          ValueError: for ``max_decode_steps`` above L.
        """
        steps, hard_limit = self.max_decode_steps, self.max_decode_steps_hard_limit
        if steps is None:
            return None
        if hard_limit is not None and hard_limit > 0:
            plain = isinstance(steps, int)
            steps = min(steps, hard_limit) if plain else jnp.minimum(steps, hard_limit)
        number = static_number(steps)
        if number is not None and number > length:
            raise ValueError(
                f"max_decode_steps: got {steps}; takes at most {length}, the length of inputs"
            )
        return steps


@dataclasses.dataclass(frozen=True)
class SettingsOf:
    """Marks a parameter that is a dictionary of settings of a strategy, with its defaults.

    Attributes:
      strategy: one of ``strategies``.
      names: the names of the settings.
    """

    strategy: Callable[..., Any]
    names: tuple[str, ...]

    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the strategy with these names."""
        found = inspect.signature(self.strategy).parameters
        return {name: found[name] for name in self.names}


def decode_fn(
    order: Sequence[str] = REQUIRED, **defaults: Any
) -> Callable[[Callable[..., Decodes]], Callable[..., Decodes]]:
    """Turns a function that takes the dataclasses above into a decode function for T5X.

    Each parameter annotated with one of the dataclasses is replaced by its fields, and one that is
    ``Annotated`` with ``SettingsOf`` by these settings.

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
        hints = typing.get_type_hints(function, include_extras=True)
        parameters: dict[str, inspect.Parameter] = {}
        groups: dict[str, tuple[type, list[str]]] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            marks = getattr(hints[name], "__metadata__", ())
            if settings := [mark for mark in marks if isinstance(mark, SettingsOf)]:
                groups[name] = dict, list(settings[0].names)
                parameters |= settings[0].parameters()
                continue
            if not dataclasses.is_dataclass(hints[name]):
                parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                continue
            fields = dataclasses.fields(hints[name])
            groups[name] = hints[name], [field.name for field in fields]
            parameters |= {field.name: _parameter(field, defaults) for field in fields}
        positional = [
            parameters.pop(name).replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in order
        ]
        signature = inspect.Signature(
            [*positional, *parameters.values()], return_annotation="Decodes"
        )

        def decode(*args: Any, **kwargs: Any) -> Decodes:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = bound.arguments
            grouped = {
                name: kind(**{field: arguments.pop(field) for field in fields})
                for name, (kind, fields) in groups.items()
            }
            return function(**grouped, **arguments)

        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(decode, attribute, getattr(function, attribute))
        vars(decode).update(__signature__=signature)
        return decode

    return decorate


def _parameter(field: dataclasses.Field[Any], defaults: Mapping[str, Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty
    if field.default is not dataclasses.MISSING:
        default = defaults.get(field.name, field.default)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type
    )
