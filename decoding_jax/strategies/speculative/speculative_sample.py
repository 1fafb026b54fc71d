"""Speculative decoding: a drafter proposes K tokens, and the target verifies them in one call.

``speculative_sample`` implements Algorithm 1 of Leviathan et al. 2022 and Algorithm 2 of Chen et
al. 2023, with verifiers that generalise their rule of acceptance. The correspondence of names:

================  ================  ===========
this module       Leviathan et al.  Chen et al.
================  ================  ===========
target, p         M_p, p(x)         q(x)
draft, q          M_q, q(x)         p(x)
``draft_length``  gamma             K
``accepted``      n                 (no symbol)
final token       t                 (no symbol)
================  ================  ===========

The lines of Algorithm 2 of Chen et al., in the order of ``step``:

============================================  =====================================
sample a draft x_1 .. x_K                     ``chain.propose``
K + 1 sets of logits in parallel              ``chain.score``
``r < min(1, q(x) / p(x))``: accept x         ``verifiers.token.count_accepted``
sample from ``(q - p)_+``, or the last ``q``  ``verifiers.token.draw_final``
``n < T``: repeat                             ``appending.append``, ``row_done``
============================================  =====================================

The target's cache holds all new tokens but the last, so the target is fed the last token and the K
drafted ones in one call. If n of them are accepted, the sequence grows by n + 1 tokens. The next
block starts at an earlier slot and overwrites the rejected tokens in the cache; nothing is copied.
Every lane advances independently.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, rows
from decoding_jax.base import (
    Array,
    Cache,
    CarriedStates,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
)
from decoding_jax.loop import (
    Sequences,
    Strategy,
    as_function,
    check_lengths,
    empty_sequences,
    model_calls,
    stopping,
)
from decoding_jax.loop.inputs import check_drafter, is_unbound
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import dynamic_trees, tree_drafts
from decoding_jax.strategies.speculative.appending import append, record
from decoding_jax.strategies.speculative.chain import CHAIN
from decoding_jax.strategies.speculative.distributions import allow, of_model
from decoding_jax.strategies.speculative.draft_length import (
    DraftLength,
    as_draft_length,
    check_draft_tokens,
)
from decoding_jax.strategies.speculative.drafters import (
    Drafter,
    FeatureDrafter,
    Guesser,
    KeyDrafter,
    as_drafter,
)
from decoding_jax.strategies.speculative.dynamic_trees import DYNAMIC
from decoding_jax.strategies.speculative.stages import (
    BlockInputs,
    Info,
    Stages,
    count_block,
    no_blocks,
    no_info,
    seen_features,
    trace_block,
)
from decoding_jax.strategies.speculative.tree_drafts import TREE
from decoding_jax.strategies.speculative.verifiers import Verifier, check_verifier, needs_key
from decoding_jax.transforms import carried


class State(NamedTuple):
    """The carry of the loop.

    Attributes:
      cache: the target's cache.
      sequences: the sequences decoded so far.
      keys: the verifier's keys.
      verifier_state: the verifier's state.
      drafter_state: the drafter's state.
      length_state: the state of the ``DraftLength``, which chooses K.
      info: counts so far.
      sample_log_prob: as in ``DecodeOutput``.
      carried: the states of the transform after the sequences.
    """

    cache: Cache
    sequences: Sequences
    keys: Any
    verifier_state: Any
    drafter_state: Any
    length_state: Any
    info: Info
    sample_log_prob: Array | None
    carried: CarriedStates | None


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculativeSample(Strategy):
    """Samples from the target in fewer calls of it, by verifying tokens that a drafter proposes.

    Leviathan, Kalman and Matias 2022, "Fast Inference from Transformers via Speculative Decoding";
    Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling". Every
    sample follows the transformed target's distribution, whatever the drafter; the number of calls
    depends on how often the two agree.

    The model is the target, ``ragged``. The key is a typed key, folded with each row's index; or
    typed keys ``[B]``, one for each row. With the greedy verifier, which draws nothing, it may be
    left out.

    The output is in the order of the lanes; ``info`` is an ``Info``, and ``score`` is ``log_prob``.
    A lane without an allowed continuation ends there, and is not ``finished``. A banned drafted
    token is never accepted.

    Attributes:
      drafter: a language model of the same vocabulary, bound to the same rows, or a drafter: one
        of ``strategies.speculative``, such as ``PromptLookup`` or ``Eagle``, or one of your own.
      num_samples: N.
      num_draft_tokens: K, 1 or more; or a ``Heuristic`` or ``Measured``, which chooses K for each
        lane and block.
      num_drafts: C, the number of drafts of K tokens, drawn independently, that the target verifies
        in one call as a tree. More than one needs the verifier ``token`` or ``block``, a language
        model or a head as the drafter, and models with ``tree`` and ``keep``.
      tree: ``independent`` drafts; or ``dynamic``, the most probable tokens of the draft in a tree
        of K levels, where C nodes of each level are expanded by C tokens each (EAGLE-2, Li et al.
        2024). It takes every verifier.
      tree_size: N, the largest number of drafted tokens in a tree, which the target verifies in one
        call. None is C K. Of independent drafts, as many levels are drafted as this allows.
      drafts_by_row: at most C, a number or one for each row ``[B]``; None is C. Other numbers do
        not compile again.
      draft_tokens_by_row: the largest number of drafted tokens of a draft, or of levels of a tree,
        likewise, from 0; above K it changes nothing, and None is K.
      verifier: a name or an object. ``token`` and ``block`` accept drafted tokens at random;
        ``block`` accepts more of them. ``greedy`` decodes the sequences of ``greedy``. The samples
        of ``gumbel`` do not depend on the drafter. ``code`` decodes those of ``arithmetic_sample``.
        ``coded_token`` is ``token`` with drafts that are spread over the samples as on a lattice.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits of target and draft, each with its path.
      stop: the stop conditions.
      with_sample_log_prob: whether the output has ``sample_log_prob``, under the target's
        transformed distribution (also with the greedy verifier, which draws nothing).
      with_trace: whether ``info`` has a ``trace`` of the blocks, a ``BlockTrace``.

    Raises:
      ValueError: for models whose vocabularies differ or that are not ragged, for K below 1, an
        unknown verifier, a raw key, a prompt of wrong shapes, or a length that exceeds either
        model's positions.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = speculative_sample(
      ...     model, model, prompt, jax.random.key(1), num_draft_tokens=3, max_new_tokens=9)
      >>> output.tokens.shape, int(output.info.target_calls), float(output.info.acceptance_rate)
      ((1, 1, 9), 2, 1.0)
    """

    drafter: Any = fields.field(
        lambda name, value: _checked_drafter(value),
        expected="a language model or a drafter",
    )
    num_samples: int = fields.count(default=1)
    num_draft_tokens: int | DraftLength = fields.field(
        check_draft_tokens, expected="an int of 1 or more, Heuristic or Measured", static=True
    )
    num_drafts: int = fields.count(default=1)
    tree: str = fields.choice("independent", "dynamic", default="independent")
    tree_size: int | None = fields.count(default=None)
    drafts_by_row: Any = fields.number(
        "an int of 1 or more", lambda x: x >= 1, np.int32, default=None
    )
    draft_tokens_by_row: Any = fields.number(*fields.COUNTS, default=None)
    verifier: Verifier = fields.field(check_verifier, default="token")
    with_sample_log_prob: bool = fields.switch(default=False)
    with_trace: bool = fields.switch(default=False)

    draws: ClassVar[bool] = True
    needs_key: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.drafts_by_row
        known = isinstance(given, (np.ndarray, jax.Array)) and fields.is_readable(given)
        if known and (np.asarray(given) > self.num_drafts).any():
            expected = f"at most num_drafts, which is {self.num_drafts}"
            raise fields.error("drafts_by_row", expected, np.asarray(given).tolist())

    @property
    def uses_key(self) -> bool:
        return needs_key(self.verifier)

    @property
    def widens(self) -> bool:
        return getattr(self.drafter, "widens", False)

    @property
    def stages(self) -> Stages:
        """The stages of a block."""
        if self.tree == "dynamic":
            return DYNAMIC
        return CHAIN if self.num_drafts == 1 else TREE

    def num_drafted(self, max_draft_tokens: int) -> int:
        """N, the number of drafted tokens that a call of the target takes.

        Raises:
          ValueError: for a ``tree_size`` without a tree, or too small for independent drafts.
        """
        chosen, drafts = self.tree_size, self.num_drafts
        if self.stages is CHAIN and chosen is not None:
            raise fields.error("tree_size", "None for a single draft", chosen)
        if self.stages is TREE and chosen is not None and chosen < drafts:
            raise fields.error("tree_size", f"{drafts} or more for {drafts} drafts", chosen)
        most = drafts * max_draft_tokens
        size = most if chosen is None else chosen
        if self.stages is DYNAMIC:
            most = drafts + (max_draft_tokens - 1) * drafts**2
        return min(size, most)

    def check(self, model: LanguageModel) -> None:
        """See ``Strategy.check``. A drafter may be bound to its inputs after it is a setting."""
        check_drafter(self.drafter)

    def with_features(self, model: LanguageModel) -> tuple[LanguageModel, tuple[int, ...]]:
        """The model that returns the hidden states that the drafter reads, and their layers."""
        layers = getattr(self.drafter, "feature_layers", ())
        return model_calls.with_features(model, layers), layers

    def draft_length(self, sequences: Sequences) -> DraftLength:
        """The object that chooses K for these sequences, which have places for L tokens."""
        return as_draft_length(self.num_draft_tokens, sequences.tokens.shape[-1])

    def limits(self, sequences: Sequences) -> Array:
        """The maximum number of new tokens of each row, int32 ``[B]``."""
        batch, _, max_new_tokens = sequences.tokens.shape
        return stopping.limits(self.stop, batch, max_new_tokens)

    def advanced(
        self, prompt: Prompt, sequences: Sequences, states: CarriedStates | None, rest: int
    ) -> CarriedStates | None:
        """The states after the sequences, of which up to ``rest`` tokens are new."""
        path = Prefix(*prompt, sequences.tokens[:, :, None], sequences.length[..., None])
        return carried.advance(self.transform, path, states, rest=rest).carried

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """Prefills both models, and draws the first token from the target."""
        batch, size = prompt.tokens.shape
        shape = (batch, self.num_samples)
        check_models(model, self.drafter)
        model, layers = self.with_features(model)
        max_new_tokens = check_lengths(model, size, self.max_new_tokens)
        limit = stopping.limits(self.stop, batch, max_new_tokens)
        sequences = empty_sequences(limit, self.num_samples, max_new_tokens)
        draft_length = self.draft_length(sequences)
        tree_slots = self.num_drafted(draft_length.max_draft_tokens)
        if self.stages is CHAIN:
            tree_slots = 0
        elif self.stages is TREE:
            tree_drafts.check(model, self.drafter, self.verifier)
        else:
            dynamic_trees.check(model, self.drafter, self.num_drafts)
        keys, verifier_state = self.verifier.init(key, *shape)
        slots = max(max_new_tokens - 1, 1) + tree_slots
        logits, features, cache = model_calls.prefill_with_features(
            model, prompt, layers, lanes=self.num_samples, slots=slots
        )
        logits = jnp.broadcast_to(logits, (*shape, *logits.shape[2:]))

        position = sequences.length
        states = carried.begin(self.transform, prompt, self.num_samples)
        allowed = allow(
            logits,
            prompt,
            sequences.tokens,
            position[..., None],
            self.transform,
            self.stop,
            states,
        )
        drawn_from = allowed.distribution()
        token, verifier_state = self.verifier.draw(
            keys, verifier_state, drawn_from.position(0), position, jnp.int32(0)
        )
        recorded = None
        if self.with_sample_log_prob:
            recorded = jnp.zeros(sequences.tokens.shape, jnp.float32)
        sequences, _ = append(
            sequences,
            token[..., None],
            jnp.ones(shape, jnp.int32),
            allowed.dead,
            of_model(logits),
            self.stop,
            limit,
        )
        most = draft_length.max_draft_tokens
        info = no_info(*shape, most, self.num_drafts)
        if self.with_trace:
            of_chain = most if self.stages is CHAIN else None
            info = info._replace(trace=no_blocks(*shape, max_new_tokens, of_chain))
        drafter_state = self.stages.init_drafter(
            self.drafter,
            prompt,
            self.num_samples,
            max_new_tokens,
            most,
            self.num_drafts,
            features,
        )
        return State(
            cache=cache,
            sequences=sequences,
            keys=keys,
            verifier_state=verifier_state,
            drafter_state=drafter_state,
            length_state=draft_length.init(*shape),
            info=info,
            sample_log_prob=record(recorded, position, sequences, drawn_from, token[..., None]),
            carried=self.advanced(prompt, sequences, states, 1),
        )

    def block_inputs(self, prompt: Prompt, state: State) -> BlockInputs:
        """The inputs of the next block.

        A block appends a final token too, so it drafts one token fewer than the limit allows. A
        lane that is done drafts nothing.
        """
        sequences, draft_length = state.sequences, self.draft_length(state.sequences)
        room = self.limits(sequences)[:, None] - sequences.length - 1
        room = jnp.where(sequences.done, 0, room)
        max_draft_tokens = draft_length.max_draft_tokens
        tree_size = self.num_drafted(max_draft_tokens)
        count = draft_length.count(state.length_state)
        if self.draft_tokens_by_row is not None:
            most = rows.per_row(self, "draft_tokens_by_row", count, jnp.int32)
            count = jnp.minimum(count, most)
        drafts = None
        if self.drafts_by_row is not None:
            drafts = rows.per_row(self, "drafts_by_row", count, jnp.int32)
            drafts = jnp.broadcast_to(jnp.minimum(drafts, self.num_drafts), count.shape)
        if self.stages is TREE:
            count = jnp.minimum(count, tree_size // (self.num_drafts if drafts is None else drafts))
        if self.stages is DYNAMIC:
            count = jnp.minimum(count, tree_size)  # A tree of N tokens has at most N levels.
        states = state.carried
        if states is not None:
            states = dataclasses.replace(states, rest=max_draft_tokens)
        return BlockInputs(
            prompt=prompt,
            sequences=sequences,
            cache=state.cache,
            drafter_state=state.drafter_state,
            keys=state.keys,
            verifier_state=state.verifier_state,
            draft_length=jnp.minimum(count, room),
            max_draft_tokens=max_draft_tokens,
            num_drafts=self.num_drafts,
            tree_size=tree_size,
            drafts_of_lane=drafts,
            counter=1 + state.info.blocks * (max_draft_tokens * self.num_drafts + 1),
            allow=lambda logits, paths, length: allow(
                logits, prompt, paths, length, self.transform, self.stop, states
            ),
        )

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """One block: Algorithm 1 of Leviathan et al., one iteration of Algorithm 2 of Chen et al.

        The comments use the names of Leviathan et al.: p is the target and q is the draft.
        """
        drafter, verifier, stages = self.drafter, self.verifier, self.stages
        model, _ = self.with_features(model)
        inputs = self.block_inputs(prompt, state)
        if isinstance(drafter, KeyDrafter):
            length = inputs.sequences.length
            drafter = drafter.with_keys(model_calls.shared_keys(model, inputs.cache, length))
        # Draft: for i = 1 .. K, sample x_i ~ q_i(x) = q(x | prefix, x_1 .. x_(i-1)).
        draft, drafter_state, draft_calls = stages.propose(
            drafter, verifier, inputs, model.vocab_size
        )
        # Score: in one call, p_1(x) = p(x | prefix), ..., p_(K+1)(x) = p(x | prefix, x_1 .. x_K).
        scores, cache = stages.score(model, inputs, draft)
        # Verify, as ``TokenVerifier`` does: accept x_i with probability min(1, p_i(x_i) / q_i(x_i))
        # up to the first rejection, so that n tokens are accepted. Sample the final token t from
        # p_(n+1) - q_(n+1), clipped at 0 and normalised, if x_(n+1) was rejected, and from p_(K+1)
        # if all K tokens were accepted. The other verifiers apply their own rules.
        result = stages.verify(verifier, inputs, draft, scores)
        cache, drafter_state = stages.keep(model, drafter, inputs, result, cache, drafter_state)
        if isinstance(drafter, FeatureDrafter):
            start = inputs.sequences.length - 1
            drafter_state = drafter.observe(drafter_state, seen_features(scores, result), start)
        # Append: return prefix + x_1 .. x_n, t, cut where a stop condition or the limit applies.
        sequences, appended = append(
            state.sequences,
            result.tokens,
            result.accepted + 1,
            result.dead,
            result.distribution,
            self.stop,
            self.limits(state.sequences),
        )
        length_state = self.draft_length(sequences).update(
            state.length_state, result.verifiable, result.accepted
        )
        info = count_block(
            state.info,
            live=~state.sequences.done,
            result=result,
            appended=appended,
            draft_calls=draft_calls,
        )
        return State(
            cache=cache,
            sequences=sequences,
            keys=state.keys,
            verifier_state=result.verifier_state,
            drafter_state=drafter_state,
            length_state=length_state,
            info=info if info.trace is None else trace_block(state.info, info, draft),
            sample_log_prob=record(
                state.sample_log_prob,
                state.sequences.length,
                sequences,
                result.drawn_from,
                result.tokens,
            ),
            carried=self.advanced(prompt, sequences, state.carried, inputs.max_draft_tokens + 1),
        )

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return state.sequences.done.all(-1)

    def settled(self, state: State) -> Array:
        """See ``Strategy.settled``."""
        return state.sequences.length

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``."""
        tokens, length, log_prob = state.sequences[:3]
        finished = state.sequences.finished
        return DecodeOutput(
            tokens, length, log_prob, log_prob, finished, state.info, state.sample_log_prob
        )


def _checked_drafter(drafter: Any) -> Any:
    """A drafter; a model that ``generate`` is to bind to its inputs is returned unchanged."""
    if is_unbound(drafter) and not isinstance(drafter, type):
        return drafter
    return as_drafter(check_drafter(drafter))


speculative_sample = as_function(SpeculativeSample)


def check_models(model: LanguageModel, drafter: Drafter | Guesser) -> None:
    """Refuses models that cannot work together.

    Raises:
      ValueError: for a target that is not ragged, or without the keys that the drafter reads; for
        vocabularies that differ; or for a target from ``models.reproducible`` and a network, as a
        head or a model, whose drafts depend on the batch, since drawn tokens depend on the drafts.
    """
    if not model.ragged:
        raise ValueError("model: expected one with ragged=True, got one whose rows advance in step")
    size = getattr(drafter, "vocab_size", model.vocab_size)
    if size != model.vocab_size:
        raise ValueError(
            f"drafter: expected the model's vocabulary of {model.vocab_size}, got one of {size}; "
            "generate takes a model with its tokenizer, and ModelDrafter a target_size, where the "
            "tables of one tokenizer are padded to different sizes"
        )
    if isinstance(drafter, KeyDrafter):
        model_calls.check_shared_keys(model)
    if _fixed_rows(model) and (isinstance(drafter, FeatureDrafter) or _fixed_rows(drafter) is None):
        raise ValueError(
            "drafter: expected a reproducible model or no network beside a reproducible model, got "
            f"one whose drafts depend on the batch, {type(drafter).__name__}"
        )


def _fixed_rows(model: Any) -> int | None:
    """The setting of ``models.reproducible`` of a network, and 0 for what is no network."""
    while hasattr(model, "model"):
        model = model.model
    return getattr(getattr(model, "config", None), "reproducible_rows", 0)
