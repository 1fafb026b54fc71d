"""Models made of models: guidance, contrast, mixtures and products of distributions.

The parts are stepped together: each has its own cache, is fed the same new tokens, and gives the
distribution of the next one. The result is a language model again, so strategies, transforms,
speculation and the refilling of rows take it like any other.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, rows, transforms
from decoding_jax.base import Array, Cache, ModelOutput, Prompt
from decoding_jax.loop import model_calls
from decoding_jax.loop.inputs import check_model, check_prompt_ids
from decoding_jax.models.shared_prefix import SharedPrefixModel
from decoding_jax.ops import exact
from decoding_jax.ops.logits import log_softmax
from decoding_jax.pytrees import pytree
from decoding_jax.sharding.meshes import gathered

_AXES: Any = (1, 0)  # of the tokens and the length of a prompt that all rows share


class CombinedCache(NamedTuple):
    """The caches of all parts.

    Attributes:
      caches: one for each part.
      shift: for each part, int32 ``[B]``, by how many tokens its prompts are longer than those of
        the whole model; or None where they are the same.
    """

    caches: tuple[Cache, ...]
    shift: tuple[Array | None, ...]


class Combined:
    """A language model made of others, its parts.

    A subclass is a frozen dataclass, has ``parts``, and defines ``combine``. Hidden states are
    those of the first part. ``keep`` and ``select`` need parts that have them.
    """

    @property
    def parts(self) -> tuple[Any, ...]:
        """The language models, all of one vocabulary."""
        raise NotImplementedError

    def combine(self, log_probs: Sequence[Array]) -> Array:
        """Logits from each part's log-probabilities, float32 ``[B, W, T, V]``, or W = T = 1.

        Those of a part are NaN where any of its logits is.
        """
        raise NotImplementedError

    def prompts(self, prompt: Prompt) -> tuple[Prompt, ...]:
        """The prompts of each part, given those of the whole model."""
        return (prompt,) * len(self.parts)

    def __post_init__(self) -> None:
        sizes = [check_model(part).vocab_size for part in self.parts]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"{fields.label(self)}: expected models of one vocabulary, got {sizes} tokens"
            )
        fields.check(self, fields.label(self))

    @property
    def vocab_size(self) -> int:
        return self.parts[0].vocab_size

    @property
    def max_positions(self) -> int | None:
        limits = [part.max_positions for part in self.parts if part.max_positions is not None]
        return min(limits, default=None)

    @property
    def ragged(self) -> bool:
        return all(part.ragged for part in self.parts)

    @property
    def tree(self) -> bool:
        return all(part.tree for part in self.parts)

    @property
    def widens(self) -> bool:
        return all(getattr(part, "widens", False) for part in self.parts)

    @property
    def rewinds(self) -> bool:
        return all(getattr(part, "rewinds", True) for part in self.parts)

    @property
    def continues(self) -> bool:
        return all(getattr(part, "continues", True) for part in self.parts)

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, CombinedCache]:
        """See ``LanguageModel.prefill``."""
        whole = Prompt(jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32))
        prompts = self.prompts(whole)
        outputs: list[ModelOutput] = []
        caches: list[Cache] = []
        for part, prompt in zip(self.parts, prompts, strict=True):
            first = with_hidden and not outputs
            output, cache = part.prefill(*prompt, lanes=lanes, slots=slots, with_hidden=first)
            outputs.append(output)
            caches.append(cache)
        shift = tuple(None if own is whole else own.length - whole.length for own in prompts)
        logits = self.combine(_log_probs(outputs))
        return ModelOutput(logits, outputs[0].hidden), CombinedCache(tuple(caches), shift)

    def extend(
        self,
        cache: CombinedCache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, CombinedCache]:
        """See ``LanguageModel.extend``."""
        outputs, caches = [], []
        for part, held, shift in zip(self.parts, *cache, strict=True):
            tree: list[Any] = [visible, position]
            if position is not None and shift is not None:
                at = jnp.asarray(position, jnp.int32)
                tree[1] = at.reshape((1,) * (3 - at.ndim) + at.shape) + shift[:, None, None]
            tree = tree if visible is not None or position is not None else []
            output, held = model_calls.extend(part, held, tokens, start, *tree)
            outputs.append(output)
            caches.append(held)
        logits = self.combine(_log_probs(outputs))
        return ModelOutput(logits, outputs[0].hidden), cache._replace(caches=tuple(caches))

    def keep(self, cache: CombinedCache, source: Array, start: Array | int) -> CombinedCache:
        """See ``SupportsKeep.keep``."""
        pairs = zip(self.parts, cache.caches, strict=True)
        return cache._replace(caches=tuple(part.keep(held, source, start) for part, held in pairs))

    def select(self, cache: CombinedCache, lanes: Array) -> CombinedCache:
        """See ``SupportsSelect.select``."""
        pairs = zip(self.parts, cache.caches, strict=True)
        return cache._replace(caches=tuple(part.select(held, lanes) for part, held in pairs))


def _log_probs(outputs: Sequence[ModelOutput]) -> list[Array]:
    """Each part's log-probabilities, float32 ``[B, W, T, V]``."""
    return [log_softmax(gathered(jnp.asarray(output.logits))) for output in outputs]


def log_linear(*terms: tuple[Any, Array]) -> Array:
    """The sum of weights times log-probabilities, each a pair.

    A weight of 0 leaves a model out. A token without probability under a model of positive weight
    is banned; one without probability only under models of negative weight has a logit of +inf.

    Example:
      >>> log_linear((2.0, jnp.log(jnp.array([0.5, 0.5]))), (-1.0, jnp.log(jnp.array([0.5, 1]))))
      Array([-0.6931472, -1.3862944], dtype=float32)
    """
    total: Any = 0.0
    banned: Any = False
    for weight, log_probs in terms:
        total += jnp.where(weight == 0, 0.0, weight * log_probs)
        banned |= (weight > 0) & (log_probs == -jnp.inf)
    return jnp.where(banned, -jnp.inf, total)


@pytree
@dataclasses.dataclass(frozen=True)
class Guided(Combined):
    """A model under classifier-free guidance, from ``guided``.

    Attributes:
      model: the model.
      scale: a number, or float32 ``[B]``.
      negative: None for the last token of each prompt; or the unconditional prompts: tokens ``[N]``
        and a length ``[]``, or right-padded ``[B, N]`` and ``[B]``.
    """

    model: Any
    scale: Any = fields.number("a finite number", np.isfinite)
    negative: Prompt | None = fields.field(default=None, shared_axes=Prompt(*_AXES))
    continues = False  # The same tokens as part of the prompt and after it are not the same.

    @property
    def parts(self) -> tuple[Any, ...]:
        """The model, and the same model for prompts that do not begin with a shared prefix."""
        shared = isinstance(self.model, SharedPrefixModel)
        return self.model, self.model.model if shared else self.model

    @property
    def max_positions(self) -> int | None:
        """Those of the model, less the tokens by which an unconditional prompt may be longer."""
        limit = self.model.max_positions
        longer = 0 if self.negative is None else np.shape(self.negative.tokens)[-1] - 1
        return None if limit is None else limit - longer

    def prompts(self, prompt: Prompt) -> tuple[Prompt, ...]:
        """The prompts, and the unconditional ones.

        Raises:
          ValueError: for another number of unconditional prompts than of rows.
        """
        if self.negative is None:
            last = jnp.take_along_axis(prompt.tokens, prompt.length[:, None] - 1, axis=1)
            return prompt, Prompt(last, jnp.ones_like(prompt.length))
        tokens, length = (jnp.asarray(x, jnp.int32) for x in self.negative)
        count = prompt.length.shape[0]
        if tokens.ndim == 2 and tokens.shape[0] != count:
            raise ValueError(
                f"guided.negative: expected one prompt, or one for each of {count} rows, got"
                f" {tokens.shape[0]}"
            )
        shape = (count, tokens.shape[-1])
        return prompt, Prompt(jnp.broadcast_to(tokens, shape), jnp.broadcast_to(length, (count,)))

    def combine(self, log_probs: Sequence[Array]) -> Array:
        """``scale * (conditional - unconditional) + unconditional``."""
        conditional, unconditional = log_probs
        scale = rows.per_row(self, "scale", conditional)
        return log_linear((scale, conditional), (1.0 - scale, unconditional))


def guided(model: Any, scale: Any, negative: Any = None) -> Guided:
    """A model whose prompt counts for more: classifier-free guidance.

    The logits are ``scale * (conditional - unconditional) + unconditional``, where both are
    log-probabilities of the next token, after the prompt and after an unconditional prompt, each
    with the same new tokens. Sanchez, Fan, Spangher, Levi, Ammanamanchi & Biderman (2023), "Stay on
    topic with classifier-free guidance", arXiv:2306.17806. It is the ``guidance_scale`` of
    ``transformers``.

    Each step computes two rows in place of one, and there are two caches. A token without
    probability after the prompt stays without.

    Args:
      model: a decoder-only language model. If it has a shared prefix, prompts begin with it, and
        unconditional prompts are whole: they are run without it.
      scale: 1 is the model itself, above 1 is guidance: a finite number, or one for each row
        ``[B]``.
      negative: the unconditional prompt. None is the last token of each prompt. Or token ids for
        all rows, or lists of token ids, one for each row, or a ``Prompt``. With N tokens, there are
        N - 1 fewer positions.

    Returns:
      A language model; its ``scale`` and ``negative`` are leaves.

    Raises:
      ValueError: for no language model, a scale that is not finite, or
        prompts that are empty or have ids outside the vocabulary.

    Example:
      >>> import jax
      >>> from decoding_jax import greedy
      >>> from decoding_jax.testing import TableLM
      >>> model = guided(TableLM.random(jax.random.key(0), 5), 1.5, negative=[[3, 1], [2]])
      >>> prompt = Prompt(jnp.array([[1, 2], [3, 0]]), jnp.array([2, 1]))
      >>> greedy(model, prompt, max_new_tokens=4).tokens.shape
      (2, 1, 4)
    """
    return Guided(model, scale, _prompts_of(negative, check_model(model).vocab_size))


def _prompts_of(negative: Any, vocab_size: int) -> Prompt | None:
    """The unconditional prompts, checked, as ``Guided`` holds them."""
    name = "guided.negative"
    if negative is None:
        return None
    if not isinstance(negative, Prompt):
        given = np.asarray(negative).tolist() if hasattr(negative, "ndim") else negative
        shared = isinstance(given, (list, tuple)) and not any(np.ndim(x) for x in given)
        lists = [given] if shared else given
        if not isinstance(lists, (list, tuple)) or not lists or not all(np.size(x) for x in lists):
            raise fields.error(name, "token ids, or lists of them, none of them empty", negative)
        length: Any = np.array([len(x) for x in lists], np.int32)
        tokens: Any = np.zeros((len(lists), length.max()), np.int32)
        for row, ids in enumerate(lists):
            tokens[row, : len(ids)] = fields.as_ids(name, list(ids))
        negative = Prompt(tokens[0], length[0]) if shared else Prompt(tokens, length)
    one = np.ndim(negative.tokens) == 1
    checked = jax.tree.map(lambda x: x[None], negative) if one else negative
    check_prompt_ids(checked, vocab_size, name)
    return negative


@pytree
@dataclasses.dataclass(frozen=True)
class Contrasted(Combined):
    """An expert without what an amateur says too, from ``contrasted``.

    Attributes:
      expert: the expert.
      amateur: the amateur.
      beta: a number, or float32 ``[B]``.
      alpha: a number, or float32 ``[B]``.
    """

    expert: Any
    amateur: Any
    beta: Any = fields.number("a finite number of 0 or more", lambda x: (x >= 0) & np.isfinite(x))
    alpha: Any = fields.probability()

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.expert, self.amateur

    def combine(self, log_probs: Sequence[Array]) -> Array:
        """``expert - beta * amateur``, for the tokens that are plausible."""
        expert, amateur = log_probs
        beta = rows.per_row(self, "beta", expert)
        return _plausible(self.alpha, expert, log_linear((1.0, expert), (-beta, amateur)))


def _plausible(alpha: Any, expert: Array, logits: Array) -> Array:
    """The logits of tokens whose probability is at least alpha times the largest; others -inf."""
    head = transforms.min_p(alpha)(expert, None)  # type: ignore[arg-type]
    return jnp.where((head == -jnp.inf) & ~jnp.isnan(expert), -jnp.inf, logits)


def contrasted(expert: Any, amateur: Any, beta: Any = 1.0, alpha: Any = 0.1) -> Contrasted:
    """What an expert says more than an amateur does: contrastive decoding.

    The logits are ``log p_expert - beta log p_amateur`` for tokens with ``p_expert >= alpha max
    p_expert``, and -inf for others. Li, Holtzman, Fried, Liang, Eisner, Hashimoto, Zettlemoyer &
    Lewis (2022), "Contrastive decoding: open-ended text generation as optimization",
    arXiv:2210.15097; a temperature t of its amateur is ``beta = 1 / t``. The form of O'Brien &
    Lewis (2023), arXiv:2309.09117, is ``beta = b / (1 + b)``, and a temperature of ``1 / (1 + b)``.

    Args:
      expert: a language model.
      amateur: a smaller one of the same vocabulary, such as ``expert.early_exit(2)``.
      beta: 0 and above; 0 is the plausible part of the expert: a number, or one for each row
        ``[B]``.
      alpha: from 0 (every token is plausible) to 1 (the most probable and its equals): a number, or
        one for each row ``[B]``.

    Returns:
      A language model; ``beta`` and ``alpha`` are leaves.

    Raises:
      ValueError: for models of two vocabularies, or a number that is out of range.

    Example:
      >>> import jax
      >>> from decoding_jax.testing import TableLM
      >>> expert, amateur = (TableLM.random(jax.random.key(i), 5) for i in range(2))
      >>> contrasted(expert, amateur, beta=0.5).vocab_size
      5
    """
    return Contrasted(expert, amateur, beta, alpha)


@pytree
@dataclasses.dataclass(frozen=True)
class LayersContrasted(Combined):
    """A model without what its early layers say too, from ``layers_contrasted``.

    Attributes:
      models: the model, and those of its first layers.
      alpha: a number, or float32 ``[B]``.
    """

    models: tuple[Any, ...]
    alpha: Any = fields.probability()

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.models

    def combine(self, log_probs: Sequence[Array]) -> Array:
        """``final - early``, for the tokens that are plausible."""
        final, *others = log_probs
        early = others[0]
        furthest = _divergence(final, early)
        for other in others[1:]:
            distance = _divergence(final, other)
            early = jnp.where(distance > furthest, other, early)
            furthest = jnp.maximum(distance, furthest)
        return _plausible(self.alpha, final, log_linear((1.0, final), (-1.0, early)))


def _divergence(p: Array, q: Array) -> Array:
    """The Jensen-Shannon divergence, in nats, of log-probabilities ``[..., V]``: ``[..., 1]``."""
    middle = jnp.logaddexp(p, q) - math.log(2)
    terms = [jnp.where(x > -jnp.inf, exact.exp(x) * (x - middle), 0.0) for x in (p, q)]
    return exact.sum_last((terms[0] + terms[1]) / 2)[..., None]


def layers_contrasted(model: Any, layers: Sequence[int], alpha: Any = 0.1) -> LayersContrasted:
    """What a model says more than its early layers do: decoding by contrasting layers (DoLa).

    The logits are ``log p - log q`` for tokens with ``p_i >= alpha max p``, and -inf for others,
    where p is the model's distribution, and q that of the one of its early layers which diverges
    from it the most (Jensen-Shannon), at each token anew. Chuang, Xie, Luo, Kim, Glass & He (2023),
    "DoLa: decoding by contrasting layers improves factuality in large language models",
    arXiv:2309.03883.

    The early layers are models of their own with caches of their own, and are computed once more.

    Args:
      model: a model with ``early_exit``.
      layers: the numbers of layers after which the early models end, one or more.
      alpha: as for ``contrasted``.

    Returns:
      A language model; ``alpha`` is a leaf.

    Raises:
      ValueError: for a model without ``early_exit``, no layers, or one that the model has not.

    Example:
      >>> import jax
      >>> from decoding_jax.models import GPT2, GPT2Config
      >>> config = GPT2Config(
      ...     vocab_size=9, emb_dim=4, num_heads=2, mlp_dim=8, num_layers=3, max_positions=32)
      >>> model = layers_contrasted(GPT2.init(config, jax.random.key(0)), [1, 2])
      >>> len(model.parts)
      3
    """
    if not hasattr(model, "early_exit"):
        raise fields.error("layers_contrasted.model", "a model with early_exit", model)
    if not layers:
        raise fields.error("layers_contrasted.layers", "one number of layers or more", layers)
    return LayersContrasted((model, *(model.early_exit(count) for count in layers)), alpha)


class _Weighted(Combined):
    """Models with a weight for each."""

    models: tuple[Any, ...]
    weights: Any

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.models

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.shape(self.weights)[-1:] != (len(self.models),) or np.ndim(self.weights) > 2:
            name = f"{fields.label(self)}.weights"
            expected = f"one for each of the {len(self.models)} models [M], or of each row [B, M]"
            raise fields.error(name, expected, self.weights)

    def terms(self, log_probs: Sequence[Array]) -> list[tuple[Array, Array]]:
        """Each model's weight ``[B, 1, 1, 1]``, with B = 1 for all rows, and log-probabilities."""
        table = rows.table(self, "weights", log_probs[0].shape[0], 1, jnp.float32)
        return [(table[:, i, None, None, None], x) for i, x in enumerate(log_probs)]


def _positive(name: str, value: Any) -> Any:
    expected = "a finite number of 0 or more, not all of them 0, for each model"

    def valid(x: np.ndarray) -> Any:
        return (x >= 0) & np.isfinite(x) & (np.max(x, -1, keepdims=True, initial=0) > 0)

    return fields.as_number(name, value, expected, valid)


def _finite(name: str, value: Any) -> Any:
    return fields.as_number(name, value, "a finite number for each model", np.isfinite)


@pytree
@dataclasses.dataclass(frozen=True)
class Mixture(_Weighted):
    """A linear mixture of models, from ``mixture``.

    Attributes:
      models: the models.
      weights: float32 ``[M]`` or ``[B, M]``.
    """

    models: tuple[Any, ...]
    weights: Any = fields.field(_positive, shared_axes=1)

    def combine(self, log_probs: Sequence[Array]) -> Array:
        """The logarithm of the weighted sum of probabilities."""
        terms = self.terms(log_probs)
        return functools.reduce(
            jnp.logaddexp, [jnp.where(w > 0, jnp.log(w) + x, -jnp.inf) for w, x in terms]
        )


def mixture(models: Sequence[Any], weights: Any) -> Mixture:
    """A linear mixture: the probability of a token is the weighted mean of those of the models.

    The mixture is of the next token's distributions, not of whole texts.

    Args:
      models: language models of one vocabulary, bound to their inputs if they take any.
      weights: finite numbers of 0 or more, not all of them 0: ``[M]``, or ``[B, M]`` for each row.
        They are divided by their sum.

    Returns:
      A language model; ``weights`` is a leaf.

    Raises:
      ValueError: for no models, models of two vocabularies, or other weights.

    Example:
      >>> import jax
      >>> from decoding_jax.testing import TableLM
      >>> one, other = (TableLM.random(jax.random.key(i), 5) for i in range(2))
      >>> mixture([one, other], [0.9, 0.1]).vocab_size
      5
    """
    return Mixture(_models("mixture.models", models), weights)


@pytree
@dataclasses.dataclass(frozen=True)
class Product(_Weighted):
    """A product of powers of models' distributions, from ``product``.

    Attributes:
      models: the models.
      weights: float32 ``[M]`` or ``[B, M]``.
    """

    models: tuple[Any, ...]
    weights: Any = fields.field(_finite, shared_axes=1)

    def combine(self, log_probs: Sequence[Array]) -> Array:
        """The weighted sum of log-probabilities."""
        return log_linear(*self.terms(log_probs))


def product(models: Sequence[Any], weights: Any) -> Product:
    """A log-linear combination: logits are the weighted sum of the models' log-probabilities.

    With weights ``[s, 1 - s]`` and the same encoder-decoder bound to two inputs, it is guidance of
    the first input against the second.

    Args:
      models: language models of one vocabulary, bound to their inputs if they take any.
      weights: finite numbers: ``[M]``, or ``[B, M]`` for each row. Those that are negative divide.

    Returns:
      A language model; ``weights`` is a leaf.

    Raises:
      ValueError: for no models, models of two vocabularies, or other weights.

    Example:
      >>> import jax
      >>> from decoding_jax.testing import TableLM
      >>> one, other = (TableLM.random(jax.random.key(i), 5) for i in range(2))
      >>> product([one, other], [0.5, 0.5]).vocab_size
      5
    """
    return Product(_models("product.models", models), weights)


def _models(name: str, models: Any) -> tuple[Any, ...]:
    if not isinstance(models, (list, tuple)) or not models:
        raise fields.error(name, "one language model or more, in a list", models)
    return tuple(models)
