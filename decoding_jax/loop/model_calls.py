"""Calls of models and transforms, whose results are checked when they are traced.

Every strategy calls the ``prefill`` and ``extend`` of targets and drafts through this module.
Unchecked, a wrong shape would often broadcast into a plausible result. Logits of any floating dtype
are accepted and converted to float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import (
    Array,
    Cache,
    LanguageModel,
    ModelOutput,
    Prefix,
    Prompt,
    Stop,
    SupportsFeatures,
    SupportsProject,
    SupportsSharedKeys,
    Transform,
)
from decoding_jax.loop import stopping
from decoding_jax.ops.logits import clean, log_total
from decoding_jax.sharding.meshes import gathered


def prefill(
    model: LanguageModel,
    prompt: Prompt,
    *,
    lanes: int,
    slots: int,
    name: str = "model",
    **options: Any,
) -> tuple[ModelOutput, Cache]:
    """Runs the prompts, and returns the output, its logits float32 ``[B, 1, 1, V]``, and the cache.

    A model may also return logits for every lane, ``[B, W, 1, V]``.

    Args:
      model: a target or a draft.
      prompt: B prompts.
      lanes: W.
      slots: S.
      name: the name of the argument that the model was passed as, for the error.
      **options: of the model's ``prefill``.

    Raises:
      ValueError: for logits of another shape or dtype.
    """
    returned = model.prefill(*prompt, lanes=lanes, slots=slots, **options)
    output, cache = _output_and_cache(returned, name, "prefill")
    for_every_lane = jnp.shape(output.logits)[1:2] == (lanes,)
    shape = (prompt.tokens.shape[0], lanes if for_every_lane else 1, 1, model.vocab_size)
    logits = as_logits(output.logits, shape, name, "prefill", "[B, 1, 1, V]")
    return output._replace(logits=logits), cache


def prefill_with_hidden(
    model: LanguageModel, prompt: Prompt, *, lanes: int, slots: int
) -> tuple[Array, Array, Cache]:
    """The logits and the cache of ``prefill``, and hidden states ``[B, 1, P, D]`` of the prompts.

    Raises:
      ValueError: for logits of another shape or dtype, and for hidden states that are missing or
        of another shape.
    """
    output, cache = prefill(model, prompt, lanes=lanes, slots=slots, with_hidden=True)
    hidden = output.hidden
    if hidden is None:
        raise ValueError(
            "model: expected hidden states from prefill, as adapters.from_logits(function, "
            "vocab_size, hidden=True) returns them, got none"
        )
    _check_of_prompt(hidden, prompt, "hidden")
    return output.logits, hidden, cache


def prefill_with_features(
    model: LanguageModel, prompt: Prompt, layers: tuple[int, ...], *, lanes: int, slots: int
) -> tuple[Array, tuple[Array, ...], Cache]:
    """The logits and the cache of ``prefill``, and the prompts' hidden states in some layers.

    Args:
      model: from ``with_features(model, layers)``.
      prompt, lanes, slots: as for ``prefill``.
      layers: as for ``SupportsFeatures.with_features``.

    Raises:
      ValueError: for logits or hidden states of another shape or dtype, or another number of them.
    """
    output, cache = prefill(model, prompt, lanes=lanes, slots=slots)
    if len(output.features) != len(layers):
        raise ValueError(
            f"model: expected features of {len(layers)} layers from prefill, got "
            f"{len(output.features)}"
        )
    for x in output.features:
        _check_of_prompt(x, prompt, "features")
    return output.logits, output.features, cache


def with_features(model: LanguageModel, layers: tuple[int, ...]) -> LanguageModel:
    """The model whose outputs have the hidden states of these layers; without layers, itself.

    Raises:
      ValueError: for a model that does not return them.
    """
    if not layers:
        return model
    if not isinstance(model, SupportsFeatures) or model.num_layers is None:
        raise ValueError(
            "model: expected one that returns the hidden states of its layers (with_features) for "
            f"this drafter, got a {type(model).__name__}"
        )
    return model.with_features(layers)


def shared_keys(model: LanguageModel, cache: Cache, length: Array, **prefix: Any) -> Any:
    """The keys and values of the target that a drafter reads; see ``SupportsSharedKeys``.

    Raises:
      ValueError: as ``check_shared_keys``.
    """
    check_shared_keys(model)
    target: Any = model
    return target.shared_keys(cache, length, **prefix)


def check_shared_keys(model: LanguageModel) -> None:
    """Refuses a model whose keys and values a drafter cannot read.

    Raises:
      ValueError: for such a model.
    """
    if not isinstance(model, SupportsSharedKeys):
        raise ValueError(
            "model: expected one whose keys and values this drafter may read (shared_keys), such as"
            f" a Gemma4, got a {type(model).__name__}"
        )


def _check_of_prompt(hidden: Array, prompt: Prompt, name: str) -> None:
    """Refuses hidden states that do not begin with the axes ``[B, 1, P]`` of the prompts."""
    beginning = (prompt.tokens.shape[0], 1, prompt.tokens.shape[1])
    if hidden.ndim != 4 or hidden.shape[:3] != beginning:
        raise ValueError(
            f"model: expected {name} [B, 1, P, D], which begins with {list(beginning)} here, got "
            f"{hidden.dtype}{list(hidden.shape)} from prefill"
        )


def extend(
    model: LanguageModel,
    cache: Cache,
    tokens: Array,
    start: Array | int,
    *tree: Array,
    name: str = "model",
) -> tuple[ModelOutput, Cache]:
    """Feeds tokens ``[B, W, T]``, and returns float32 logits ``[B, W, T, V]`` and the cache.

    Args:
      model: a target or a draft.
      cache: the model's.
      tokens: int32 ``[B, W, T]``.
      start: see ``LanguageModel.extend``.
      *tree: ``visible`` and ``position``, for a model that takes them.
      name: the name of the argument that the model was passed as, for the error.

    Raises:
      ValueError: for logits or hidden states of another shape or dtype, or a cache whose structure,
        shapes or dtypes differ from those of the cache passed in.
    """
    returned = model.extend(cache, tokens, start, *tree)
    output, new_cache = _output_and_cache(returned, name, "extend")
    shape = (*tokens.shape, model.vocab_size)
    logits = as_logits(output.logits, shape, name, "extend", "[B, W, T, V]")
    for hidden in (output.hidden, *output.features):
        if hidden is not None and (hidden.ndim != 4 or hidden.shape[:3] != tokens.shape):
            raise ValueError(
                f"{name}: expected hidden None or [B, W, T, D], which begins with "
                f"{list(tokens.shape)} here, got {hidden.dtype}{list(hidden.shape)} from extend"
            )
    check_same_cache(cache, new_cache, name, "extend")
    return output._replace(logits=logits), new_cache


def project(model: SupportsProject, hidden: Array, vocab_size: int, *, name: str) -> Array:
    """Projects hidden states ``[..., D]`` to float32 logits ``[..., V]``.

    Raises:
      ValueError: for logits of another shape or dtype.
    """
    shape = (*hidden.shape[:-1], vocab_size)
    return as_logits(model.project(hidden), shape, name, "project", "[..., V]")


def transformed(
    transform: Transform, logits: Array, prefix: Prefix, name: str = "transform"
) -> Array:
    """Applies a transform to logits ``[B, W, T, V]``, and returns float32 logits.

    Args:
      transform: the transform.
      logits: the logits.
      prefix: the paths to them.
      name: the name of the argument that it was passed as, for the error.

    Raises:
      ValueError: for a result of another shape or dtype.
    """
    changed = transform(logits, prefix)
    shape = logits.shape
    return as_logits(changed, shape, name, "a transform", "[B, W, T, V]")


def language_logits(
    logits: Array,
    prefix: Prefix,
    language: Transform | None,
    stop: Stop,
    *,
    only_finished: bool,
) -> Array:
    """Logits in which the tokens that leave a language are -inf: float32 ``[B, W, V]``.

    Args:
      logits: float32 ``[B, W, V]``.
      prefix: the paths to them, one for each lane.
      language: a transform, or None for every text.
      stop: the stop conditions.
      only_finished: whether texts that reach their limit unfinished are outside the language.
    """
    if language is not None:
        changed = transformed(language, logits[:, :, None], prefix, name="language")
        logits = clean(changed)[:, :, 0]
    if only_finished:
        limit = prefix.tokens.shape[-1]
        logits = stopping.ban_unfinished(stop, logits, prefix.length[:, :, 0], limit)
    return logits


def in_language(
    allowed: Array,
    prefix: Prefix,
    language: Transform | None,
    stop: Stop,
    *,
    only_finished: bool,
) -> tuple[Array, Array]:
    """The log-probabilities of p, and which tokens may follow in a language.

    Args:
      allowed: float32 ``[B, W, V]``, from ``allowed_logits``.
      prefix, language, stop, only_finished: as for ``language_logits``.

    Returns:
      float32 ``[B, W, V]`` and bool ``[B, W, V]``.
    """
    total = log_total(allowed)[..., None]
    log_probs = allowed - jnp.where(total == -jnp.inf, 0.0, total)
    kept = language_logits(allowed, prefix, language, stop, only_finished=only_finished)
    return log_probs, (kept > -jnp.inf) & (log_probs > -jnp.inf)


def allowed_logits(logits: Array, prefix: Prefix, stop: Stop, transform: Transform | None) -> Array:
    """The logits by which a strategy chooses, in which tokens that may not come next are -inf.

    End tokens are banned where a text is too short; then the transform is applied. NaN, from the
    model or from the transform, is -inf.

    Args:
      logits: the model's, float32 ``[B, W, T, V]``.
      prefix: the paths to them.
      stop: for its end tokens and ``min_new_tokens``.
      transform: None changes nothing.

    Raises:
      ValueError: for a transform whose result has another shape or dtype.
    """
    allowed = stopping.ban_end_tokens(stop, clean(logits), prefix.length)
    return allowed if transform is None else clean(transformed(transform, allowed, prefix))


def as_logits(logits: Any, shape: tuple[int, ...], name: str, function: str, letters: str) -> Array:
    """Checks the shape and dtype of logits, and converts them to float32.

    Args:
      logits: the value returned by a function.
      shape: the shape that it must have.
      name: the argument that the error is about.
      function: the name of the function, for the error.
      letters: the shape in the letters of ``base``, for the error.

    Raises:
      ValueError: for another shape, or a dtype that is not floating.
    """
    expected = f"{name}: expected logits float32 {letters}, which is {list(shape)} here"
    if not hasattr(logits, "shape") or not hasattr(logits, "dtype"):
        raise ValueError(f"{expected}, got a {type(logits).__name__} from {function}")
    if tuple(logits.shape) != shape or not jnp.issubdtype(logits.dtype, jnp.floating):
        raise ValueError(f"{expected}, got {logits.dtype}{list(logits.shape)} from {function}")
    # On a mesh, each device gets all of the vocabulary of its rows here, once for each call of a
    # model, so that no strategy, transform or code works on a piece of a vocabulary.
    return gathered(jnp.asarray(logits)).astype(jnp.float32)


def _output_and_cache(returned: Any, name: str, function: str) -> tuple[ModelOutput, Cache]:
    expected = f"{name}: expected (ModelOutput(logits), cache) from {function}"
    if not isinstance(returned, tuple) or isinstance(returned, ModelOutput) or len(returned) != 2:
        raise ValueError(f"{expected}, got a {type(returned).__name__}")
    if not hasattr(returned[0], "logits"):
        raise ValueError(f"{expected}, got a {type(returned[0]).__name__} and a cache")
    output, cache = returned
    if not isinstance(output, ModelOutput):  # a model's own type, which may have the logits alone
        parts = getattr(output, "hidden", None), tuple(getattr(output, "features", ()))
        output = ModelOutput(output.logits, *parts)
    return output, cache


def check_same_cache(before: Cache, after: Cache, name: str, function: str) -> None:
    """Checks that a function has returned a cache like the one it was given.

    Args:
      before: the cache that was given.
      after: the cache that was returned.
      name: the argument that the error is about.
      function: the name of the function.

    Raises:
      ValueError: for another structure, shape or dtype.
    """
    expected = (
        f"{name}: expected {function} to return a cache of the structure, shapes and dtypes that "
        "it was given, got"
    )
    structures = {jax.tree.structure(cache) for cache in (before, after)}
    if len(structures) > 1:
        raise ValueError(f"{expected} another structure")
    paths = jax.tree_util.tree_leaves_with_path(before)
    for (path, old), new in zip(paths, jax.tree.leaves(after), strict=True):
        if jnp.shape(old) != jnp.shape(new) or jnp.result_type(old) != jnp.result_type(new):
            leaf = jax.tree_util.keystr(path) or "array"
            raise ValueError(
                f"{expected} {leaf} {jnp.result_type(new)}{list(jnp.shape(new))}, which was "
                f"{jnp.result_type(old)}{list(jnp.shape(old))}"
            )
