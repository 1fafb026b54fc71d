"""Strategies as decode functions: one table, and what each function takes besides.

T5X gives all of them the same arguments, and takes the same result. What differs is in ``FORMS``. A
function ``of_form`` has the settings that are its own as parameters. If these are not what the
strategy takes, its body converts them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoding_jax import strategies
from decoding_jax.base import Array, DecodeOutput, Transform
from decoding_jax.loop import Strategy
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.t5x.decode_fns.beams import AllDrawn, t5x_penalty
from decoding_jax.t5x.decode_fns.calls import (
    Decodes,
    T5XArguments,
    T5XCall,
    TemperatureArguments,
    open_call,
    open_native_call,
    with_fields,
)
from decoding_jax.t5x.decode_fns.sampling import sampling_transform


def by_log_prob(call: T5XCall, output: DecodeOutput) -> Decodes:
    """The result sorted by ascending log-probability under the model."""
    return call.ascending(output, output.log_prob)


class Form(NamedTuple):
    """A strategy as a decode function.

    Attributes:
      strategy: its class. If it draws, the function takes ``temperature``, ``topk`` and ``topp``.
      size: the name of its setting that ``num_decodes`` is; None for one that a function sets.
      num_decodes: the default.
      alpha: whether it has T5X's length penalty, with the exponent ``alpha``.
      settings: the names of its settings that the function has with their types and defaults.
      result: the order of the result, of the call and the output. Searches whose output is sorted
        return it with the best last.
      native: whether it needs a native model: its hypotheses form a tree, its rows are at different
        depths, its lanes begin again, or it reads hidden states, none of which T5X's
        ``tokens_to_logits`` serves. T5X's own networks also count a prompt's forced tokens as new
        ones, which a language would read.
      fewest: the smallest ``num_decodes``; of forms that are not native, as the next.
      show_prompt: whether it reads the forced tokens of a prompt that is fed token by token.
    """

    strategy: type[Strategy]
    size: str | None
    num_decodes: int = 1
    alpha: bool = False
    settings: tuple[str, ...] = ()
    result: Callable[[T5XCall, DecodeOutput], Decodes] = T5XCall.ascending
    native: bool = False
    fewest: int = 1
    show_prompt: bool = True

    def open(self, arguments: T5XArguments) -> T5XCall:
        """T5X's arguments, converted.

        Raises:
          ValueError: as ``open_call``, or ``open_native_call``.
        """
        if self.native:
            return open_native_call(self.strategy, arguments)
        return open_call(arguments, fewest=self.fewest, show_prompt=self.show_prompt)

    def decode(
        self,
        call: T5XCall,
        sampling: TemperatureArguments | None = None,
        *,
        max_decode_steps: int | Array | None = None,
        **settings: Any,
    ) -> Decodes:
        """Runs the strategy, and returns T5X's result.

        Args:
          call: T5X's arguments, as ``open`` converts them.
          sampling: how the logits become a distribution, for a strategy that draws.
          max_decode_steps: the maximum number of tokens after the last prompt token.
          **settings: those of the strategy; ``alpha`` is the exponent of T5X's length penalty.
        """
        if self.alpha:
            penalty = t5x_penalty(settings.pop("alpha"), call)
            settings |= {"length_penalty": penalty, "early_stopping": "never"}
        if self.size is not None:
            settings[self.size] = call.num_decodes
        if sampling is not None:
            transform = sampling_transform(call.transform, sampling)
        else:
            transform = call.transform if self.native else call.kept_transform
        strategy = call.strategy(self.strategy, max_decode_steps, transform=transform, **settings)
        return self.result(call, call.run(strategy))


_FRONTIER = ("score", "decay", "gamma", "branching", "frontier_size", "fallback")

FORMS = {
    "beam_sample": Form(strategies.BeamSample, "beam_size", 4, alpha=True),
    "best_first_search": Form(
        strategies.BestFirstSearch,
        "num_return",
        settings=_FRONTIER,
        result=T5XCall.best_last,
        native=True,
    ),
    "best_k_search": Form(
        strategies.BestKSearch,
        "num_return",
        4,
        settings=_FRONTIER,
        result=T5XCall.best_last,
        native=True,
    ),
    "conditional_sample": Form(
        strategies.ConditionalSample,
        "num_samples",
        settings=("language", "finished_only", "budget", "max_prefixes"),
        result=by_log_prob,
        native=True,
    ),
    "constrained_beam_search": Form(
        strategies.ConstrainedBeamSearch,
        "beam_size",
        8,
        alpha=True,
        result=T5XCall.best_last,
        # A forced token must not match a phrase.
        show_prompt=False,
    ),
    "contrastive_search": Form(
        strategies.ContrastiveSearch, None, result=T5XCall.best_last, native=True
    ),
    "diverse_beam_search": Form(strategies.DiverseBeamSearch, "beam_size", 4, alpha=True),
    "smc_sample": Form(
        strategies.SMCSample,
        "num_samples",
        settings=("language", "potential", "finished_only", "resampling"),
        result=by_log_prob,
        native=True,
    ),
    "stochastic_beam_search": Form(AllDrawn, None, 4, fewest=2),
}

_ALPHA = inspect.Parameter(
    "alpha", inspect.Parameter.KEYWORD_ONLY, default=0.6, annotation="float | Array"
)
_LIMIT = inspect.Parameter(
    "max_decode_steps",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation="int | Array | None",
)


def of_form(function: Callable[..., dict[str, Any] | None]) -> Callable[..., Decodes]:
    """The decode function of the form of this name.

    Args:
      function: takes the ``T5XCall`` and the settings that are the decode function's own. It
        returns the strategy's, or None if they are the same.
    """
    form = FORMS[function.__name__]
    own = list(inspect.signature(function).parameters.values())[1:]
    known = inspect.signature(form.strategy).parameters
    shared = [known[name] for name in form.settings]
    groups: dict[str, type] = {"arguments": T5XArguments}
    if form.strategy.draws:
        groups["sampling"] = TemperatureArguments

    @functools.wraps(function)
    def decode(
        arguments: T5XArguments, sampling: TemperatureArguments | None = None, **settings: Any
    ) -> Decodes:
        call = form.open(arguments)
        given = {parameter.name: settings.pop(parameter.name) for parameter in own}
        made = function(call, **given)
        return form.decode(call, sampling, **settings, **(given if made is None else made))

    parameters = [*shared, *own, *([_ALPHA] if form.alpha else []), _LIMIT]
    return with_fields(decode, groups, parameters, defaults={"num_decodes": form.num_decodes})


@of_form
def diverse_beam_search(
    call: T5XCall, num_groups: int = 2, diversity_penalty: float | Array = 0.5
) -> None:
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


@of_form
def beam_sample(call: T5XCall) -> None:
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


@of_form
def stochastic_beam_search(call: T5XCall) -> dict[str, Any]:
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
    # The search keeps one sequence more than it returns, as the threshold of an estimator. This
    # function returns it too, since T5X has rows for ``num_decodes`` sequences only.
    return {"beam_size": call.num_decodes - 1}


@of_form
def constrained_beam_search(
    call: T5XCall, phrases: Any = (), alternatives: Any = (), vocabulary: Any = None
) -> dict[str, Any]:
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
    if isinstance(alternatives, (tuple, list)):
        alternatives = tuple(_tokens("alternatives", group, vocabulary) for group in alternatives)
    return {"constraints": Constraints(_tokens("phrases", phrases, vocabulary), alternatives)}


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


@of_form
def best_k_search(call: T5XCall, budget: int | None = None, k: int | None = None) -> dict[str, Any]:
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
    return {"k": call.num_decodes if k is None else k, "budget": _budget(call, budget)}


def _budget(call: T5XCall, given: int | None) -> int:
    """The budget that is given, or that of a beam search as wide as there are decodes."""
    return call.num_decodes * call.length if given is None else given


@of_form
def best_first_search(call: T5XCall, budget: int | None = None) -> dict[str, Any]:
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
    return {"budget": _budget(call, budget)}


@of_form
def contrastive_search(call: T5XCall, penalty_alpha: float | Array = 0.6, top_k: int = 4) -> None:
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
    if call.num_decodes != 1:
        raise ValueError(
            "num_decodes: expected 1, since contrastive_search finds one text for a row, got "
            f"{call.num_decodes}"
        )


@of_form
def conditional_sample(call: T5XCall) -> None:
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


@of_form
def smc_sample(
    call: T5XCall, proposal: Transform | None = None, ess_threshold: float | Array = 0.5
) -> None:
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
