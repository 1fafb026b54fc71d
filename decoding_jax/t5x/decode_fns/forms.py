"""Strategies as decode functions: one table, and the arguments of each function.

T5X gives all of them the same arguments, and takes the same result. What differs is in ``FORMS``. A
function ``of_form`` has no body; one with a body converts its own arguments first.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoding_jax import strategies
from decoding_jax.base import Array, DecodeOutput, Transform
from decoding_jax.loop import Strategy
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.strategies.particles.smc_sample import Potential
from decoding_jax.t5x.adapter import T5XAdapter
from decoding_jax.t5x.decode_fns.beams import AllDrawn, t5x_penalty
from decoding_jax.t5x.decode_fns.calls import (
    Call,
    Decodes,
    T5XArguments,
    TemperatureArguments,
    decode_fn,
    open_call,
    open_native_call,
)
from decoding_jax.t5x.decode_fns.sampling import sampling_transform


def by_log_prob(call: Call, output: DecodeOutput) -> Decodes:
    """The result sorted by ascending log-probability under the model."""
    return call.ascending(output, output.log_prob)


class Form(NamedTuple):
    """A strategy as a decode function.

    Attributes:
      strategy: its class.
      size: the name of its setting that ``num_decodes`` is; None for one that a function sets.
      result: the order of the result, of the call and the output. Searches whose output is sorted
        return it with the best last.
      native: whether it needs a native model: its hypotheses form a tree, its rows are at different
        depths, its lanes begin again, or it reads hidden states, none of which T5X's
        ``tokens_to_logits`` serves. T5X's own networks also count a prompt's forced tokens as new
        ones, which a language would read.
    """

    strategy: type[Strategy]
    size: str | None
    result: Callable[[Call, DecodeOutput], Decodes] = Call.ascending
    native: bool = False

    def open(self, arguments: T5XArguments) -> Call:
        """T5X's arguments, converted.

        Raises:
          ValueError: as ``open_call``, or ``open_native_call``.
        """
        return open_native_call(self.strategy, arguments) if self.native else open_call(arguments)

    def decode(
        self,
        call: Call,
        arguments: T5XArguments,
        sampling: TemperatureArguments | None = None,
        *,
        max_decode_steps: int | Array | None = None,
        **settings: Any,
    ) -> Decodes:
        """Runs the strategy, and returns T5X's result.

        Args:
          call: the ``arguments`` as ``open`` converts them.
          arguments: those of T5X.
          sampling: how the logits become a distribution, for a strategy that draws.
          max_decode_steps: the maximum number of tokens after the last prompt token.
          **settings: those of the strategy; ``alpha`` is the exponent of T5X's length penalty.
        """
        if "alpha" in settings:
            penalty = t5x_penalty(settings.pop("alpha"), call)
            settings |= {"length_penalty": penalty, "early_stopping": "never"}
        if self.size is not None:
            settings[self.size] = arguments.num_decodes
        if sampling is not None:
            transform = sampling_transform(call.transform, sampling)
        else:
            transform = call.transform if self.native else call.kept_transform
        strategy = call.strategy(self.strategy, max_decode_steps, transform=transform, **settings)
        return self.result(call, call.run(strategy))


FORMS = {
    "beam_sample": Form(strategies.BeamSample, "beam_size"),
    "best_first_search": Form(
        strategies.BestFirstSearch, "num_return", Call.best_last, native=True
    ),
    "best_k_search": Form(strategies.BestKSearch, "num_return", Call.best_last, native=True),
    "conditional_sample": Form(
        strategies.ConditionalSample, "num_samples", by_log_prob, native=True
    ),
    "constrained_beam_search": Form(strategies.ConstrainedBeamSearch, "beam_size", Call.best_last),
    "contrastive_search": Form(strategies.ContrastiveSearch, None, Call.best_last, native=True),
    "diverse_beam_search": Form(strategies.DiverseBeamSearch, "beam_size"),
    "smc_sample": Form(strategies.SMCSample, "num_samples", by_log_prob, native=True),
    "stochastic_beam_search": Form(AllDrawn, None),
}


def of_form(function: Callable[..., Any]) -> Callable[..., Decodes]:
    """The decode function of the form of this name, with the arguments of ``function``."""
    form = FORMS[function.__name__]

    @functools.wraps(function)
    def decode(arguments: T5XArguments, **settings: Any) -> Decodes:
        return form.decode(form.open(arguments), arguments, **settings)

    return decode


_SHARED = ("score", "decay", "gamma", "branching", "frontier_size", "fallback")
_PARAMETERS = inspect.signature(strategies.best_k_search).parameters
_FURTHER = {name: _PARAMETERS[name] for name in _SHARED}


@decode_fn(num_decodes=4)
@of_form
def diverse_beam_search(
    arguments: T5XArguments,
    *,
    num_groups: int = 2,
    diversity_penalty: float | Array = 0.5,
    alpha: float | Array = 0.6,
    max_decode_steps: int | Array | None = None,
) -> Any:
    """Beam search in groups, each penalised for the tokens that earlier groups choose.

    See ``strategies.diverse_beam_search`` (Vijayakumar et al. 2018), with T5X's length penalty.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform: see ``T5XArguments``.
      num_groups: a divisor of ``num_decodes``.
      diversity_penalty: subtracted from a token's score for each hypothesis of an earlier group
        that chooses this token.
      alpha: the exponent of the length penalty, as for ``beam_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, sorted by ascending score.

    Raises:
      ValueError: if ``num_groups`` does not divide ``num_decodes``.
    """


@decode_fn(num_decodes=4)
@of_form
def beam_sample(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    alpha: float | Array = 0.6,
    max_decode_steps: int | Array | None = None,
) -> Any:
    """Beam search that draws its candidates; see ``strategies.beam_sample``.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform: see ``T5XArguments``.
      temperature, topk, topp: see ``TemperatureArguments``.
      alpha: the exponent of the length penalty, as for ``beam_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, sorted by ascending score.
    """


@decode_fn(num_decodes=4)
def stochastic_beam_search(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Draws ``num_decodes`` different sequences, without replacement.

    See ``strategies.stochastic_beam_search`` (Kool et al. 2019).

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, cache_offset, initial_index, transform:
        see ``T5XArguments``.
      num_decodes: N, 2 or more: ``temperature_sample`` draws a single sequence.
      temperature, topk, topp: see ``TemperatureArguments``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and their log-probabilities under the distribution that is drawn
      from, float32 ``[B, N]``, in ascending order.

    Raises:
      ValueError: for ``num_decodes`` below 2.
    """
    count = arguments.num_decodes
    if count < 2:
        raise ValueError(f"num_decodes: expected 2 or more, got {count}")
    form = FORMS["stochastic_beam_search"]
    # The search keeps one sequence more than it returns, as the threshold of an estimator. This
    # function returns it too, since T5X has rows for ``num_decodes`` sequences only.
    settings = {"beam_size": count - 1, "max_decode_steps": max_decode_steps}
    return form.decode(form.open(arguments), arguments, sampling, **settings)


@decode_fn(num_decodes=8)
def constrained_beam_search(
    arguments: T5XArguments,
    *,
    phrases: Any = (),
    alternatives: Any = (),
    vocabulary: Any = None,
    alpha: float | Array = 0.6,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Beam search over the texts that contain given phrases.

    See ``strategies.constrained_beam_search`` (Post & Vilar 2018; Hu et al. 2019), with T5X's
    length penalty.

    A phrase given as a string is tokenised by itself and matched token by token, so a text that
    contains the same string in other tokens does not match. If that matters, give the other token
    sequences as alternatives. Phrases are matched in the new tokens only, not in the prompt.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, cache_offset, initial_index: see
        ``T5XArguments``.
      num_decodes: N, the number of hypotheses that a row keeps and returns. Preferably more than
        the number of tokens in all phrases.
      phrases: the phrases, all of which must appear: strings, token sequences, or int32 ``[Q, M]``
        or ``[B, Q, M]``, padded with -1 on the left.
      alternatives: sets of phrases; at least one phrase of each set must appear. Each set contains
        strings or token sequences; or int32 ``[A, Q, M]`` or ``[B, A, Q, M]``.
      vocabulary: a ``seqio.Vocabulary`` or another object with ``encode``; needed for strings.
      alpha: the exponent of the length penalty, as for ``beam_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.
      transform: applied to the log-probabilities of each hypothesis. Without a prefill, it is given
        token 0 in the place of each prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the best last. Hypotheses that
      contain all phrases come after all others; both parts are in ascending order.

    Raises:
      ValueError: for strings without a vocabulary, a string instead of a list of them, and phrases
        without tokens.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> falling = lambda state: (-jnp.arange(2.0 * 5).reshape(2, 5), state.cache)
      >>> must = {"phrases": ((3, 4),)}
      >>> search = lambda x: constrained_beam_search(x, {}, falling, 1, num_decodes=2, **must)
      >>> jax.jit(search)(jnp.zeros((1, 2), jnp.int32))[0][0, -1]
      Array([3, 4], dtype=int32)
    """
    form = FORMS["constrained_beam_search"]
    call = form.open(arguments)
    if isinstance(alternatives, (tuple, list)):
        alternatives = tuple(_tokens("alternatives", group, vocabulary) for group in alternatives)
    if isinstance(call.model, T5XAdapter):
        # A forced token must not match a phrase.
        hidden = dataclasses.replace(call.model, show_prompt=False)
        call = dataclasses.replace(call, model=hidden)
    made = Constraints(_tokens("phrases", phrases, vocabulary), alternatives)
    settings: dict[str, Any] = {"alpha": alpha, "max_decode_steps": max_decode_steps}
    return form.decode(call, arguments, constraints=made, **settings)


def _tokens(name: str, phrases: Any, vocabulary: Any) -> Any:
    """Phrases as token sequences; arrays are returned unchanged."""
    if isinstance(phrases, str):
        raise ValueError(
            f"{name}: expected a list of strings or of token sequences, got {phrases!r}"
        )
    if not isinstance(phrases, Sequence):
        return phrases
    if vocabulary is None and any(isinstance(phrase, str) for phrase in phrases):
        raise ValueError(
            "vocabulary: expected an object with encode for phrases that are strings, got None"
        )
    return tuple(
        tuple(int(token) for token in vocabulary.encode(phrase))
        if isinstance(phrase, str)
        else tuple(phrase)
        for phrase in phrases
    )


@decode_fn(further=_FURTHER, num_decodes=4)
def best_k_search(
    arguments: T5XArguments,
    *,
    budget: int | None = None,
    max_decode_steps: int | Array | None = None,
    k: int | None = None,
    **settings: Any,
) -> Decodes:
    """Expands the k best hypotheses of a frontier in each call; for native models only.

    See ``strategies.best_k_search`` (Xu et al. 2022).

    Args:
      inputs, cache, tokens_to_logits, eos_id, cache_offset, initial_index, transform: see
        ``T5XArguments``.
      num_decodes: N, the number of hypotheses that are returned.
      decode_rng: not used.
      budget: the maximum number of hypotheses that a row expands; None means N L, as many as a
        beam search of width N expands.
      score, decay, gamma, branching, frontier_size, fallback: see ``strategies.best_k_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.
      k: the number of hypotheses expanded in one call; None means N.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the best last. Completed hypotheses
      come after those that were not completed; both parts are in ascending order. Places that the
      search could not fill have length 0 and score -inf.

    Raises:
      ValueError: on T5X's own networks, and for counts below 1.
    """
    k = arguments.num_decodes if k is None else k
    settings |= {"k": k, "max_decode_steps": max_decode_steps}
    return _within("best_k_search", arguments, budget, **settings)


@decode_fn(further=_FURTHER)
def best_first_search(
    arguments: T5XArguments,
    *,
    budget: int | None = None,
    max_decode_steps: int | Array | None = None,
    **settings: Any,
) -> Decodes:
    """Expands the best hypothesis of a frontier in each call; for native models only.

    This is ``best_k_search`` with k = 1.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform, budget, score, decay, gamma, branching, frontier_size, fallback,
        max_decode_steps: as for ``best_k_search``.

    Returns:
      As ``best_k_search``.

    Raises:
      ValueError: as ``best_k_search``.
    """
    settings |= {"max_decode_steps": max_decode_steps}
    return _within("best_first_search", arguments, budget, **settings)


def _within(name: str, arguments: T5XArguments, budget: int | None, **settings: Any) -> Decodes:
    """The result of a search whose default budget is that of a beam search."""
    call = FORMS[name].open(arguments)
    settings["budget"] = arguments.num_decodes * call.length if budget is None else budget
    return FORMS[name].decode(call, arguments, **settings)


@decode_fn()
def contrastive_search(
    arguments: T5XArguments,
    *,
    penalty_alpha: float | Array = 0.6,
    top_k: int = 4,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Appends one of the k most probable tokens, preferring those unlike the tokens before.

    For native models only; see ``strategies.contrastive_search`` (Su et al. 2022).

    Args:
      inputs, cache, tokens_to_logits, eos_id, cache_offset, initial_index, transform: see
        ``T5XArguments``.
      num_decodes: 1, since the strategy draws nothing and finds one text.
      decode_rng: not used.
      penalty_alpha: alpha, a number or ``[B]``; 0 decodes greedily.
      top_k: k, the number of candidates.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, 1, L]`` and scores float32 ``[B, 1]``, the log-probabilities under the
      model.

    Raises:
      ValueError: on T5X's own networks, and for more than one decode.
    """
    form = FORMS["contrastive_search"]
    call = form.open(arguments)
    if arguments.num_decodes != 1:
        raise ValueError(
            "num_decodes: expected 1, since contrastive_search finds one text for a row, got "
            f"{arguments.num_decodes}"
        )
    settings: dict[str, Any] = {"penalty_alpha": penalty_alpha, "top_k": top_k}
    return form.decode(call, arguments, max_decode_steps=max_decode_steps, **settings)


@decode_fn()
@of_form
def conditional_sample(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    language: Transform | None = None,
    finished_only: bool | None = None,
    budget: int | None = None,
    max_prefixes: int = 1024,
    max_decode_steps: int | Array | None = None,
) -> Any:
    """Draws exact samples of the model given a language; see ``strategies.conditional_sample``.

    For native models only. What is not accepted within the budget has no new token and a score of
    -inf, and comes first.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform: see ``T5XArguments``. The transform is a part of the model's distribution.
      temperature, topk, topp: see ``TemperatureArguments``; they come after the transform.
      language: a transform that bans tokens, such as one of ``decoding_jax.constraints``.
      finished_only, budget, max_prefixes: as for ``strategies.conditional_sample``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the log-probabilities under the
      model, sorted by ascending score.

    Raises:
      ValueError: on T5X's own networks, and as ``strategies.conditional_sample``.
    """


@decode_fn()
@of_form
def smc_sample(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    language: Transform | None = None,
    potential: Potential | None = None,
    proposal: Transform | None = None,
    finished_only: bool | None = None,
    resampling: str = "systematic",
    ess_threshold: float | Array = 0.5,
    max_decode_steps: int | Array | None = None,
) -> Any:
    """Draws texts by particles, given a language and a potential; see ``strategies.smc_sample``.

    For native models only. ``num_decodes`` is the number of particles; where none reached the
    language, texts have no new token and a score of -inf.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform, temperature, topk, topp, max_decode_steps, language: as for
        ``conditional_sample``.
      potential, finished_only, resampling, ess_threshold: as for ``strategies.smc_sample``.
      proposal: a transform of the target's logits, by which tokens are drawn.

    Returns:
      As ``conditional_sample``.

    Raises:
      ValueError: on T5X's own networks, and as ``strategies.smc_sample``.
    """
