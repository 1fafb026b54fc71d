"""Decode functions that sample: T5X's ``temperature_sample``, and arithmetic sampling."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax import codes, fields, strategies, transforms
from decoding_jax.base import Array, DecodeOutput, Transform
from decoding_jax.loop import Strategy
from decoding_jax.t5x.callbacks import Callbacks, CalledBack, LogitCallback, StateCallback
from decoding_jax.t5x.decode_fns import calls
from decoding_jax.t5x.decode_fns.calls import Decodes, SamplingArguments, T5XArguments, decode_fn
from decoding_jax.t5x.rescaled import Rescaled

# T5X treats temperatures up to this value as 0.
_GREEDY_TEMPERATURE = 1e-4
_CALLBACKS = ("state_callback_fn", "logit_callback_fn")


@decode_fn((*calls.SAMPLING_ORDER, *_CALLBACKS), topk=1)
def temperature_sample(
    arguments: T5XArguments,
    sampling: SamplingArguments,
    *,
    state_callback_fn: StateCallback | None = None,
    logit_callback_fn: LogitCallback | None = None,
) -> Decodes:
    """Draws ``num_decodes`` samples of every row; greedy by default, since ``topk`` is 1.

    This is T5X's function of the same name with three differences: ``topk`` and ``topp`` may be
    combined, in this order; rows draw independently, also if each has its own temperature; and
    exactly ``topk`` tokens are kept under ties. A row's samples depend on its place in the batch
    and on no other row.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform: see ``T5XArguments``. The transform is applied before the temperature.
      temperature, topk, topp, max_decode_steps, max_decode_steps_hard_limit, rescale_log_probs: see
        ``SamplingArguments``.
      state_callback_fn: changes the state of the loop before each token; see ``callbacks``.
      logit_callback_fn: ``(logits, state) -> logits``, applied before the temperature.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, sorted by ascending score.

    Raises:
      ValueError: for ``max_decode_steps`` above L.

    Example:
      >>> import jax
      >>> def tokens_to_logits(state):
      ...     return jax.nn.one_hot(state.cur_token[:, 0] + 1, 5), state.cache
      >>> inputs = jnp.array([[0, 2, 0, 0]])
      >>> temperature_sample(inputs, {}, tokens_to_logits, eos_id=4)[0]
      Array([[[2, 3, 4, 0]]], dtype=int32)
    """
    callbacks = _callbacks(arguments, state_callback_fn, logit_callback_fn)
    return _sample(strategies.Sample, arguments, sampling, callbacks)


@decode_fn((*calls.SAMPLING_ORDER, *_CALLBACKS))
def arithmetic_sample(
    arguments: T5XArguments,
    sampling: SamplingArguments,
    *,
    state_callback_fn: StateCallback | None = None,
    logit_callback_fn: LogitCallback | None = None,
    points: str | codes.Points = "lattice",
    order: str = "id",
    after: str = "independent",
    language: Transform | None = None,
    max_texts: int | None = None,
) -> Decodes:
    """Draws exact samples that are jointly evenly spread; see ``strategies.arithmetic_sample``.

    Vilnis et al. 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models".
    Forced tokens consume no arithmetic code.

    With a ``language``, on native models only, the samples are those of the model given the
    language. Where it has no probability, or more texts than ``max_texts``, texts have no new token
    and a score of -inf.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform, temperature, topk, topp, max_decode_steps, max_decode_steps_hard_limit,
        rescale_log_probs, state_callback_fn, logit_callback_fn: as for ``temperature_sample``, but
        ``topk`` is 0 by default, which keeps all tokens.
      points, order, after, max_texts: as for ``strategies.arithmetic_sample``.
      language: a transform that bans tokens, such as one of ``decoding_jax.constraints``. It comes
        after ``transform``, ``temperature``, ``topk`` and ``topp``.

    Returns:
      As ``temperature_sample``. Scores do not depend on the language.

    Raises:
      ValueError: for an unknown point set, ``order`` or ``after``, or ``max_decode_steps`` above L;
        for a language on T5X's own networks or beside callbacks, and as
        ``strategies.arithmetic_sample``.

    Example:
      >>> inputs = jnp.zeros((1, 1), jnp.int32)
      >>> even = lambda state: (jnp.zeros((4, 4)), state.cache)
      >>> arithmetic_sample(inputs, {}, even, eos_id=1, num_decodes=4)[0].sum()
      Array(6, dtype=int32)
    """
    callbacks = _callbacks(arguments, state_callback_fn, logit_callback_fn)
    listed = language is not None or max_texts is not None
    if listed and callbacks is not None:
        raise fields.error(
            "language", "none beside callbacks, which texts are listed without", language
        )
    return _sample(
        strategies.ArithmeticSample,
        arguments,
        sampling,
        callbacks,
        listed=listed,
        points=points,
        order=order,
        after=after,
        language=language,
        max_texts=max_texts,
    )


def _callbacks(
    arguments: T5XArguments, state_fn: StateCallback | None, logit_fn: LogitCallback | None
) -> Callbacks | None:
    if state_fn is None and logit_fn is None:
        return None
    rng = arguments.decode_rng
    return Callbacks(state_fn, logit_fn, jnp.zeros(2, jnp.uint32) if rng is None else rng)


def _sample(
    made: type[Strategy],
    arguments: T5XArguments,
    sampling: SamplingArguments,
    callbacks: Callbacks | None,
    *,
    listed: bool = False,
    **settings: Any,
) -> Decodes:
    """Runs a sampling strategy, or greedy decoding if only one token is ever allowed.

    Args:
      made, arguments, sampling, callbacks: as above.
      listed: whether the strategy lists the texts of a language.
      **settings: its other settings.
    """
    if listed:
        call = calls.open_native_call(made, arguments)
    else:
        call = calls.open_call(arguments, callbacks)
    limit = sampling.step_limit(call.length)
    certain = False
    if (
        arguments.num_decodes == 1
        and callbacks is None
        and not listed
        and is_greedy(sampling.temperature, sampling.topk)
    ):
        # Nothing is drawn, and after the temperature every token has probability 1.
        certain = sampling.rescale_log_probs
        strategy = call.strategy(strategies.Greedy, limit, transform=call.kept_transform)
    else:
        transform = sampling_transform(call.transform, sampling)
        if sampling.rescale_log_probs and transform is not None:
            call = dataclasses.replace(call, model=Rescaled(call.model, transform))
            transform = None
        count = arguments.num_decodes
        settings |= {"num_samples": count, "transform": transform}
        strategy = call.strategy(made, limit, **settings)
    output = call.run(strategy if callbacks is None else CalledBack(strategy, callbacks))
    return call.ascending(output, certain_score(output) if certain else output.log_prob)


def certain_score(output: DecodeOutput) -> Array:
    """The scores of sequences whose every token is certain: 0, or NaN where the logits were NaN."""
    return jnp.where(output.nan_logits, jnp.nan, jnp.float32(0))


def is_greedy(temperature: Any, topk: Any) -> bool:
    """Whether the settings are plain numbers that allow only one token at every step."""
    number, count = calls.static_number(temperature), calls.static_number(topk)
    return (number is not None and number <= _GREEDY_TEMPERATURE) or count == 1


def sampling_transform(
    transform: Transform | None, sampling: calls.TemperatureArguments
) -> Transform | None:
    """The user's transform, then T5X's temperature, top-k and top-p; None if nothing changes."""
    temperature, topk, topp = sampling.temperature, sampling.topk, sampling.topp
    parts: list[Transform] = [] if transform is None else [calls.KeepForced(transform)]
    if is_greedy(temperature, topk):
        return transforms.chain(*parts, transforms.temperature(0.0))
    if calls.static_number(temperature) != 1:
        values = jnp.asarray(temperature, jnp.float32)
        values = jnp.where(values > _GREEDY_TEMPERATURE, values, 0.0)
        parts.append(transforms.temperature(values))
    count, mass = calls.static_number(topk), calls.static_number(topp)
    if count is None:
        parts.append(transforms.top_k(jnp.where(topk > 0, topk, jnp.iinfo(jnp.int32).max)))
    elif count > 0:
        parts.append(transforms.top_k(int(count)))
    if mass is None:
        parts.append(transforms.top_p(jnp.where(topp > 0, topp, 1.0)))
    elif mass > 0:
        parts.append(transforms.top_p(mass))
    return transforms.chain(*parts) if parts else None
