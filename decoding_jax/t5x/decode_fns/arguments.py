"""The arguments that T5X gives to decode functions, declared once for all of them.

A decode function here takes dataclasses of this module and settings of its own. ``decode_fn`` makes
it a function with all of their fields as arguments, since T5X passes keywords and gin binds names.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from decoding_jax.base import Array, Transform
from decoding_jax.t5x.decode_fns.temperature import static_number

Decodes = tuple[Array, Array]
"""int32 ``[B, num_decodes, L]`` and scores float32 ``[B, num_decodes]``."""


@dataclasses.dataclass(frozen=True)
class T5XArguments:
    """What every decode function takes.

    Attributes:
      inputs: int32 ``[B, L]``, shifted right: a start token, the prompt, zeros. A non-zero token
        is forced, and adds no score.
      cache: T5X's cache, with B rows.
      tokens_to_logits: T5X's function, or a ``NativeDecoder``.
      eos_id: the end token; several as ``[E]``. An end token of the prompt ends nothing.
      decode_rng: a key, raw or typed; None is ``jax.random.key(0)``.
      num_decodes: N, the sequences returned for each row.
      cache_offset: 1 where layers are scanned.
      initial_index: int32 ``[B]``, the position of each prompt's last token after a prefill.
      transform: applied to the logits (log-probabilities in beam searches): any of
        ``decoding_jax.transforms``. Without a prefill, prompt tokens count as new tokens.
    """

    inputs: Any
    cache: Any
    tokens_to_logits: Callable[..., Any]
    eos_id: Any
    decode_rng: Any = None
    num_decodes: int = 1
    cache_offset: int = 0
    initial_index: Any = None
    transform: Transform | None = None


@dataclasses.dataclass(frozen=True)
class TemperatureArguments:
    """How logits become the distribution that is drawn from.

    Attributes:
      temperature: a number or ``[B]``; up to 1e-4 the most probable token is taken.
      topk: 0 keeps all tokens.
      topp: 0 keeps all tokens.
    """

    temperature: Any = 1.0
    topk: Any = 0
    topp: Any = 0.0


@dataclasses.dataclass(frozen=True)
class SamplingArguments(TemperatureArguments):
    """What T5X's ``temperature_sample`` takes besides.

    Attributes:
      max_decode_steps: the maximum number of tokens after the last of ``inputs``; None for no
        other limit than L.
      max_decode_steps_hard_limit: an upper bound on ``max_decode_steps``, where it is above 0.
      rescale_log_probs: whether scores are under the distribution that is drawn from, after
        temperature and truncation, or under the model.
    """

    max_decode_steps: Any = None
    max_decode_steps_hard_limit: int | None = None
    rescale_log_probs: bool = True

    def step_limit(self, length: int) -> Any:
        """The maximum number of tokens after the last of ``inputs``, or None.

        Args:
          length: L.

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


def decode_fn(**defaults: Any) -> Callable[[Callable[..., Decodes]], Callable[..., Decodes]]:
    """Makes a decode function for T5X of one that takes the dataclasses above.

    Each parameter annotated with one of the dataclasses is replaced by its fields.

    Args:
      **defaults: of fields, where they differ from the dataclass's.

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
        own = inspect.signature(function).parameters
        groups = {name: hints[name] for name in own if dataclasses.is_dataclass(hints[name])}
        fields = {name: dataclasses.fields(kind) for name, kind in groups.items()}
        parameters = []
        for name, parameter in own.items():
            if name not in groups:
                kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
                parameters.append(parameter.replace(kind=kind))
                continue
            for field in fields[name]:
                default = inspect.Parameter.empty
                if field.default is not dataclasses.MISSING:
                    default = defaults.get(field.name, field.default)
                parameters.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.POSITIONAL_OR_KEYWORD,
                        default=default,
                        annotation=field.type,
                    )
                )
        signature = inspect.Signature(parameters, return_annotation="Decodes")

        def decode(*args: Any, **kwargs: Any) -> Decodes:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            made = {
                name: kind(**{field.name: given.pop(field.name) for field in fields[name]})
                for name, kind in groups.items()
            }
            return function(**made, **given)

        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(decode, attribute, getattr(function, attribute))
        vars(decode).update(__signature__=signature)
        return decode

    return decorate
