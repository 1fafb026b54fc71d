"""The transforms that a ``GenerationConfig`` amounts to, in the order of ``transformers``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, transforms
from decoding_jax.base import Array, Prefix, Transform
from decoding_jax.ops.logits import clean, log_softmax
from decoding_jax.ops.top_k import top_k
from decoding_jax.pytrees import pytree
from decoding_jax.text.generation_config.config import GenerationConfig


@pytree
@dataclasses.dataclass(frozen=True)
class AtLeast:
    """A truncation that leaves the ``count`` best tokens in any case, as beams need them.

    Attributes:
      count: the number of tokens, 1 or more.
      transform: the truncation.

    Example:
      >>> logits = jnp.array([0.0, 9.0, 0.0])[None, None, None]
      >>> AtLeast(2, transforms.top_p(0.1))(logits, None)[0, 0, 0]
      Array([  0.,   9., -inf], dtype=float32)
    """

    count: int = dataclasses.field(metadata={"static": True})
    transform: Transform

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        _, best = top_k(logits, min(self.count, logits.shape[-1]))
        ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
        is_best = (best[..., None] == ids.reshape((1,) * best.ndim + (-1,))).any(-2)
        return jnp.where(is_best, logits, self.transform(logits, prefix))


def normalized(logits: Array, prefix: Prefix) -> Array:
    """Log-probabilities, the transform of ``renormalize_logits``."""
    return log_softmax(clean(logits))


def transform_of(
    config: GenerationConfig,
    *,
    eos_ids: Sequence[int],
    prompt_lengths: Sequence[int],
    min_new_tokens: Any,
    max_new_tokens: Any,
    user_transform: Transform | None,
) -> Transform | None:
    """The transforms of a config, chained.

    Args:
      config: the parameters.
      eos_ids: the end tokens.
      prompt_lengths: the number of tokens of each prompt.
      min_new_tokens, max_new_tokens: a number, or one for each text.
      user_transform: the caller's transform, or None. It comes after the transforms that penalise
        and ban, and before those that truncate for sampling, as a custom logits processor does in
        ``transformers``.

    Returns:
      None without any.

    Raises:
      ValueError: for a parameter that is out of range or cannot be followed.
    """
    found: list[Any] = []
    if config.sequence_bias is not None:
        found.append(transforms.logit_bias(_biases(config.sequence_bias)))
    if config.repetition_penalty != 1.0:
        found.append(transforms.repetition_penalty(config.repetition_penalty))
    if config.no_repeat_ngram_size > 0:
        found.append(transforms.no_repeat_ngram(config.no_repeat_ngram_size))
    if config.bad_words_ids is not None:
        ends = [[end] for end in eos_ids]
        banned = [tuple(words) for words in config.bad_words_ids if list(words) not in ends]
        found.append(transforms.banned_sequences(tuple(banned)))
    if eos_ids and np.any(np.asarray(min_new_tokens) > 0):
        found.append(transforms.min_length(min_new_tokens, tuple(eos_ids)))
    if config.forced_bos_token_id is not None:
        token = one_token(config.forced_bos_token_id)
        single = [token if n == 1 else -1 for n in prompt_lengths]
        found.append(transforms.forced_first_token(np.asarray(single, np.int32)))
    if config.forced_eos_token_id is not None:
        token = one_token(config.forced_eos_token_id)
        found.append(transforms.forced_last_token(token, max_new_tokens))
    if config.suppress_tokens is not None and len(config.suppress_tokens) > 0:
        found.append(transforms.banned_sequences(tuple((t,) for t in config.suppress_tokens)))
    if user_transform is not None:
        found.append(user_transform)
    if config.do_sample:
        found += _warpers(config, 1 if config.num_beams == 1 else max(len(eos_ids), 1) + 1)
    if config.renormalize_logits:
        found.append(normalized)
    if not found:
        return None
    return found[0] if len(found) == 1 else transforms.chain(*found)


def _warpers(config: GenerationConfig, least: int) -> list[Any]:
    """What sampling truncates; beams keep at least ``least`` tokens, one of them no end token."""
    kept = lambda transform: transform if least == 1 else AtLeast(least, transform)  # noqa: E731
    found: list[Any] = []
    if config.temperature != 1.0:
        found.append(transforms.temperature(config.temperature))
    if config.top_k > 0:
        found.append(transforms.top_k(max(config.top_k, least)))
    if config.top_p < 1.0:
        found.append(kept(transforms.top_p(config.top_p)))
    if config.min_p is not None:
        found.append(kept(transforms.min_p(config.min_p)))
    if config.typical_p < 1.0:
        if least > 1:
            raise ValueError(
                f"typical_p: expected 1.0 with num_beams={config.num_beams}, got {config.typical_p}"
            )
        found.append(transforms.typical(config.typical_p))
    if 0.0 < config.epsilon_cutoff < 1.0:
        found.append(kept(transforms.epsilon(config.epsilon_cutoff)))
    if 0.0 < config.eta_cutoff < 1.0:
        found.append(kept(transforms.eta(config.eta_cutoff)))
    return found


def _biases(given: Any) -> dict[int, float]:
    """The biases by token, from ``{(token,): bias}`` or ``[[[token], bias], ...]``."""
    pairs = given.items() if isinstance(given, Mapping) else given
    biases: dict[int, float] = {}
    for tokens, bias in pairs:
        if len(tokens) != 1:
            raise fields.error("sequence_bias", "sequences of one token", tuple(tokens))
        biases[int(tokens[0])] = float(bias)
    return biases


def one_token(ids: Any) -> int:
    """The id of one token, given as such or in a list."""
    return int(ids[0] if isinstance(ids, (list, tuple, np.ndarray)) else ids)
