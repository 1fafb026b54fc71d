"""Decode functions that sample: T5X's ``temperature_sample`` and its arithmetic sibling."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from decoding_jax import codes, registry, transforms
from decoding_jax.base import Array, Transform
from decoding_jax.loop import Steps, run
from decoding_jax.t5x.decode_fns import call as requests
from decoding_jax.t5x.decode_fns.sampling_settings import (
    KeepForced,
    is_greedy,
    sampling_rule,
    static_number,
)
from decoding_jax.t5x.network.callbacks import Callbacks
from decoding_jax.t5x.network.rescaled import Rescaled


def temperature_sample(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    decode_rng: Array | None = None,
    num_decodes: int = 1,
    temperature: float | Array = 1.0,
    topk: int | Array = 1,
    topp: float | Array = 0.0,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    max_decode_steps_hard_limit: int | None = None,
    rescale_log_probs: bool = True,
    state_callback_fn: Callable[[Any], Any] | None = None,
    logit_callback_fn: Callable[[Any, Any], Any] | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Draws ``num_decodes`` samples of every row; greedy as it stands, since ``topk`` is 1.

    T5X's function of this name with three differences: ``topk`` and ``topp`` go together, in this
    order; rows draw independently at temperatures of their own too; and exactly ``topk`` tokens
    are kept under ties. A row's samples depend on its place in the batch and on nothing beside it.

    Args:
      inputs: int32 ``[B, L]``, shifted right: a start token, the prompt, zeros. A non-zero token
        is forced, and adds no score.
      cache: T5X's, of B rows.
      tokens_to_logits: T5X's.
      eos_id: the token that ends a text; several as ``[E]``. In a prompt it ends nothing.
      decode_rng: a key, raw or typed; None is ``jax.random.key(0)``.
      num_decodes: N.
      temperature: a number or ``[B]``; up to 1e-4 the most probable token is taken.
      topk: 0 keeps all tokens.
      topp: 0 keeps all tokens.
      cache_offset: 1 where layers are scanned.
      initial_index: int32 ``[B]``, where the last token of each prompt stands, after a prefill.
      max_decode_steps: the most tokens after the last of ``inputs``.
      max_decode_steps_hard_limit: the most that ``max_decode_steps`` may be, where it is above 0.
      rescale_log_probs: whether scores are those of the distribution that is drawn from, after
        temperature and truncation, or of the model.
      state_callback_fn: changes the state of the loop before each token; see ``callbacks``.
      logit_callback_fn: ``(logits, state) -> logits``, before the temperature.
      transform: of the logits, before the temperature: any of ``decoding_jax.transforms``. Where
        the prompt is not prefilled, it counts as text.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, in the order of rising scores.

    Raises:
      ValueError: for more ``max_decode_steps`` than L.

    Example:
      >>> import jax
      >>> def tokens_to_logits(state):
      ...     return jax.nn.one_hot(state.cur_token[:, 0] + 1, 5), state.cache
      >>> inputs = jnp.array([[0, 2, 0, 0]])
      >>> temperature_sample(inputs, {}, tokens_to_logits, eos_id=4)[0]
      Array([[[2, 3, 4, 0]]], dtype=int32)
    """
    return _sample(
        functools.partial(registry.steps, "sample"),
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, temperature, topk, topp,
        cache_offset, initial_index, max_decode_steps, max_decode_steps_hard_limit,
        rescale_log_probs, state_callback_fn, logit_callback_fn, transform,
    )  # fmt: skip


def arithmetic_sample(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    decode_rng: Array | None = None,
    num_decodes: int = 1,
    temperature: float | Array = 1.0,
    topk: int | Array = 0,
    topp: float | Array = 0.0,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    max_decode_steps_hard_limit: int | None = None,
    rescale_log_probs: bool = True,
    state_callback_fn: Callable[[Any], Any] | None = None,
    logit_callback_fn: Callable[[Any, Any], Any] | None = None,
    transform: Transform | None = None,
    points: str | codes.Points = "lattice",
) -> tuple[Array, Array]:
    """Draws samples that are each exact and together evenly spread; see ``strategies.arithmetic``.

    Vilnis et al. 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models".
    Forced tokens consume no code.

    Takes what ``temperature_sample`` takes, with every token kept unless ``topk`` or ``topp`` say
    otherwise, and one thing more.

    Args:
      points: the point set, as in ``strategies.arithmetic_sample``.
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, temperature, topk, topp,
        cache_offset, initial_index, max_decode_steps, max_decode_steps_hard_limit,
        rescale_log_probs, state_callback_fn, logit_callback_fn, transform: see there.

    Returns:
      As ``temperature_sample``.

    Raises:
      ValueError: for an unknown point set, or more ``max_decode_steps`` than L.

    Example:
      >>> inputs = jnp.zeros((1, 1), jnp.int32)
      >>> even = lambda state: (jnp.zeros((4, 4)), state.cache)
      >>> arithmetic_sample(inputs, {}, even, eos_id=1, num_decodes=4)[0].sum()
      Array(6, dtype=int32)
    """

    def steps(*, num_samples: int, **settings: Any) -> Steps:
        return registry.steps(
            "arithmetic_sample", num_samples=num_samples, points=points, **settings
        )

    return _sample(
        steps,
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, temperature, topk, topp,
        cache_offset, initial_index, max_decode_steps, max_decode_steps_hard_limit,
        rescale_log_probs, state_callback_fn, logit_callback_fn, transform,
    )  # fmt: skip


def _sample(
    build: Callable[..., Steps],
    inputs: Any,
    cache: Any,
    tokens_to_logits: Any,
    eos_id: Any,
    decode_rng: Any,
    num_decodes: int,
    temperature: Any,
    topk: Any,
    topp: Any,
    cache_offset: int,
    initial_index: Any,
    max_decode_steps: Any,
    hard_limit: int | None,
    rescale_log_probs: bool,
    state_callback_fn: Any,
    logit_callback_fn: Any,
    transform: Transform | None,
) -> tuple[Array, Array]:
    callbacks = None
    if state_callback_fn is not None or logit_callback_fn is not None:
        rng = jnp.zeros(2, jnp.uint32) if decode_rng is None else decode_rng
        callbacks = Callbacks(state_callback_fn, logit_callback_fn, rng)
    request = requests.read(
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
        initial_index, callbacks,
    )  # fmt: skip
    stop = request.stop(request.limits(decode_steps(max_decode_steps, hard_limit, request.length)))
    model = request.model
    if num_decodes == 1 and callbacks is None and is_greedy(temperature, topk):
        # No lot is drawn, and after the temperature every token is certain.
        first = None if transform is None else KeepForced(transform)
        steps = registry.steps("greedy", max_new_tokens=request.length, transform=first, stop=stop)
        certain = rescale_log_probs
    else:
        rule, certain = sampling_rule(transform, temperature, topk, topp), False
        if rescale_log_probs and rule.transforms:
            model, rule = Rescaled(model, rule), transforms.chain()
        steps = build(
            num_samples=num_decodes,
            max_new_tokens=request.length,
            transform=rule if rule.transforms else None,
            stop=stop,
        )
    if callbacks is not None:
        steps = callbacks.around(steps)
    output = run(steps, model, request.prompt, request.key)
    score = jnp.zeros_like(output.log_prob) if certain else output.log_prob
    return request.answer(output.tokens, output.length, score, jnp.argsort(score, axis=-1))


def decode_steps(steps: Any, hard_limit: int | None, length: int) -> Any:
    """The most tokens after the last of ``inputs``, or None."""
    if steps is None:
        return None
    if hard_limit is not None and hard_limit > 0:
        steps = min(steps, hard_limit) if isinstance(steps, int) else jnp.minimum(steps, hard_limit)
    number = static_number(steps)
    if number is not None and number > length:
        raise ValueError(
            f"max_decode_steps: got {steps}; takes at most {length}, the length of inputs"
        )
    return steps
