"""Token-by-token decoding: greedy decoding, sampling and arithmetic sampling.

Every sequence grows by one token a step, which the strategy chooses. All sequences have the same
number of slots in the cache, so each step writes to one slot of every lane, in place.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from decoding_jax import codes, fields
from decoding_jax.base import (
    Array,
    Cache,
    CarriedStates,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
    Transform,
)
from decoding_jax.loop import as_function, model_calls, stopping
from decoding_jax.loop.inputs import check_transform
from decoding_jax.loop.listed_texts import ListedTexts, list_texts
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
    new_values,
    output_of_some,
    per_lane,
)
from decoding_jax.loop.strategy import Strategy
from decoding_jax.ops import random
from decoding_jax.ops.logits import log_prob_of, lowest_argmax
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import carried


class CodesTrace(NamedTuple):
    """How the codes of ``arithmetic_sample`` chose its tokens; integers of 64 bits.

    The text of n tokens has the codes from ``point - offset`` to ``point - offset + last``, with
    the values after its last token.

    Attributes:
      point: uint32 ``[B, N, 2]``, the code of each sample, its high word first.
      offset: uint32 ``[B, N, L, 2]``: after each token, how far the code is from the first one of
        the text so far.
      last: uint32 ``[B, N, L, 2]``: after each token, the number of the text's codes minus one.
      carried: bool ``[B, N, L]``: whether the code chose the token. Once no other sample can share
        the text so far, tokens are drawn by other bits, and the numbers above no longer change.
    """

    point: Array
    offset: Array
    last: Array
    carried: Array


class TokenByTokenInfo(NamedTuple):
    """Statistics of a token-by-token strategy.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
      trace: of ``arithmetic_sample`` with ``with_trace``.
    """

    model_calls: Array
    trace: CodesTrace | None = None


class ConditionalCodesInfo(NamedTuple):
    """What ``arithmetic_sample`` knows of a language.

    Attributes:
      model_calls: int32 ``[B]``, those that find the texts, and those that decode the samples.
      complete: bool ``[B]``, whether ``max_texts`` sufficed. Rows where it did not have no text.
      log_language_prob: float32 ``[B]``, in nats: the logarithm of the probability of the language;
        of the texts that were found, where they are not complete.
      trace: with ``with_trace``.
    """

    model_calls: Array
    complete: Array
    log_language_prob: Array
    trace: CodesTrace | None = None


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      cache: the model's cache.
      sequences: the sequences decoded so far.
      token: int32 ``[B, W]``, the last token of each sequence, which is not in the cache yet.
      chooser: what the strategy chooses by, such as random keys; None for nothing.
      step: int32, a scalar or ``[B]``, the number of tokens that have been chosen for each
        sequence.
      sample_log_prob: as in ``DecodeOutput``.
      texts: all texts of the language that is conditioned on; None without one.
      carried: the states of the transform.
      trace: how the tokens were chosen; None where it is not recorded.
    """

    cache: Cache
    sequences: Sequences
    token: Array
    chooser: Any
    step: Array
    sample_log_prob: Array | None
    texts: ListedTexts | None = None
    carried: CarriedStates | None = None
    trace: Any = None


class TokenByToken(Strategy):
    """A strategy that chooses one token for each sequence from its transformed logits.

    Attributes:
      with_sample_log_prob: whether the output has ``sample_log_prob``.
    """

    with_sample_log_prob: bool = False

    @property
    def lanes(self) -> int:
        """W, the number of sequences of a row."""
        return 1

    def start(self, key: Any, batch_size: int) -> Any:
        """The ``State.chooser`` before the first token, such as the keys of all lanes."""
        return None

    def prepared(self, state: State, model: LanguageModel, prompt: Prompt) -> State:
        """The state before the first token; a strategy may add ``texts`` and a ``trace``."""
        return state

    def traced(self, state: State, chooser: Any, new: Sequences) -> Any:
        """The trace of a state that has one, with the tokens of ``new``, which were chosen."""
        raise NotImplementedError

    def choose(self, chooser: Any, logits: Array, step: Array) -> tuple[Array, Any]:
        """Chooses a token of each sequence.

        Args:
          chooser: from ``start`` or the step before.
          logits: float32 ``[B, W, V]``, transformed. A sequence whose logits are all -inf ends
            without the token.
          step: int32, a scalar or ``[B, W]``, the number of tokens before.

        Returns:
          The tokens, int32 ``[B, W]``, and the chooser of the next step.
        """
        raise NotImplementedError

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """See ``Strategy.init``: the first tokens are chosen from the logits of the prompts."""
        batch, size = prompt.tokens.shape
        limit = check_lengths(model, size, self.max_new_tokens)
        slots = max(limit - 1, 1)  # the last token is never fed
        output, cache = model_calls.prefill(model, prompt, lanes=self.lanes, slots=slots)
        empty = empty_sequences(stopping.limits(self.stop, batch, limit), self.lanes, limit)
        recorded = None
        if self.with_sample_log_prob:
            recorded = jnp.zeros(empty.tokens.shape, jnp.float32)
        states = None
        if self.transform is not None:
            states = carried.begin(self.transform, prompt, self.lanes)
        chooser = self.start(key, batch)
        state = State(cache, empty, empty.length, chooser, jnp.int32(0), recorded, carried=states)
        state = self.prepared(state, model, prompt)
        shape = batch, self.lanes, *output.logits.shape[2:]
        return self.advance(jnp.broadcast_to(output.logits, shape), prompt, state)

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """See ``Strategy.step``: the last tokens are fed, and the next ones chosen."""
        token, start = state.token[..., None], per_lane(state.step - 1, self.lanes)
        output, cache = model_calls.extend(model, state.cache, token, start)
        return self.advance(output.logits, prompt, state._replace(cache=cache))

    def advance(self, logits: Array, prompt: Prompt, state: State) -> State:
        """Chooses a token from ``logits [B, W, 1, V]`` and appends it to sequences not done."""
        old = state.sequences
        path = Prefix(*prompt, old.tokens[:, :, None], old.length[..., None])
        if state.carried is not None:
            path = carried.advance(self.transform, path, state.carried)
        allowed = model_calls.allowed_logits(logits, path, self.stop, self.transform)
        allowed, logits = allowed[:, :, 0], logits[:, :, 0]
        if state.texts is not None:
            allowed = state.texts.next_masses(path, allowed.shape[-1])
        token, chooser = self.choose(state.chooser, allowed, per_lane(state.step, self.lanes))
        new = append_token(old, token, logits, allowed, self.stop, old.tokens.shape[-1])
        recorded = state.sample_log_prob
        if recorded is not None:
            recorded = new_values(old, new, log_prob_of(allowed, token), recorded)
        return state._replace(
            sequences=new,
            token=token,
            chooser=chooser,
            step=state.step + 1,
            sample_log_prob=recorded,
            carried=path.carried,
            trace=None if state.trace is None else self.traced(state, chooser, new),
        )

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return state.sequences.done.all(-1)

    def settled(self, state: State) -> Array:
        """See ``Strategy.settled``."""
        return state.sequences.length

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``."""
        sequences = state.sequences
        return DecodeOutput(
            tokens=sequences.tokens,
            length=sequences.length,
            log_prob=sequences.log_prob,
            score=sequences.log_prob,
            finished=sequences.finished,
            info=TokenByTokenInfo(state.step, state.trace),
            sample_log_prob=state.sample_log_prob,
        )


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Greedy(TokenByToken):
    """Appends the most probable token at every step; ties go to the lowest id.

    The output has one sequence a row, and its ``score`` is ``log_prob``. A sequence whose every
    continuation is banned ends unfinished. ``info.model_calls`` includes the prefill.

    Attributes:
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the choice.
      stop: when a sequence ends.

    Raises:
      ValueError: for a prompt of wrong shapes or a length that the model cannot hold.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> greedy(model, prompt, max_new_tokens=4).tokens.shape
      (1, 1, 4)
    """

    def choose(self, chooser: Any, logits: Array, step: Array) -> tuple[Array, Any]:
        return lowest_argmax(logits), chooser


greedy = as_function(Greedy)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(TokenByToken):
    """Draws independent samples for every row.

    Each token is drawn by inverting an integer CDF at one 64-bit uniform number (``codes.draw``),
    instead of comparing V random numbers. The distribution of a token is within 1e-6 of the softmax
    in total variation.

    The key is a typed key, which is folded with each row's index; or typed keys ``[B]``, one for
    each row, so that the samples of a row depend only on its prompt, its key and its settings. The
    output is in the order of the draws, and its ``score`` is ``log_prob``. A sequence whose every
    continuation is banned ends unfinished.

    Attributes:
      num_samples: N, the number of samples of a row.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the draw, such as a temperature or a truncation.
      stop: when a sequence ends.
      with_sample_log_prob: whether the output has ``sample_log_prob``, the log-probability of each
        token under the distribution that it was drawn from.

    Raises:
      ValueError: for a raw key, a prompt of wrong shapes, ``num_samples`` below 1, or a length
        that the model cannot hold.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> sample(model, prompt, jax.random.key(1), num_samples=8, max_new_tokens=4).tokens.shape
      (1, 8, 4)
    """

    num_samples: int = fields.count(default=1)
    with_sample_log_prob: bool = fields.switch(default=False)

    draws: ClassVar[bool] = True

    @property
    def lanes(self) -> int:
        return self.num_samples

    def start(self, key: Array, batch_size: int) -> Array:
        return random.lane_keys(random.row_keys(key, batch_size), self.num_samples)

    def choose(self, chooser: Array, logits: Array, step: Array) -> tuple[Array, Array]:
        return codes.draw(logits, random.bits_at(chooser, step)), chooser


sample = as_function(Sample)


MOST_TEXTS = 4096
"""The largest ``max_texts``, whose pairs are compared."""


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class ArithmeticSample(TokenByToken):
    """Draws N samples for every row, from codes that are spread evenly over the unit interval.

    Vilnis et al. 2023, "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models".
    Each sample by itself follows the transformed model exactly. With the lattice, the number of
    samples that begin with a prefix of probability p is N p, rounded up or down, so averages over
    the samples vary less than averages over independent ones. A code is a 64-bit integer. It is
    carried exactly for as long as another sample may have the same prefix; after that, every token
    draws fresh bits. Codes therefore never run out (see ``codes.arithmetic``).

    The key is as for ``sample``. The output is in the order of the points, and its ``score`` is
    ``log_prob``. A sequence whose every continuation is banned ends unfinished.

    With a ``language``, the codes are those of ``p(text | the text is in the language)``, where p
    is the model after ``transform``: N samples are exact and spread among the valid texts. First,
    all texts of the language are found with their probabilities, at the cost of a beam search of
    ``max_texts`` beams; a token's share of its prefix's interval is then that of the texts that it
    leads to. Texts have to end by a stop condition. Rows in which the language has no probability,
    or more than ``max_texts`` texts or beginnings, have samples of length 0 and
    ``log_prob`` -inf. ``info`` is a ``ConditionalCodesInfo``.

    Attributes:
      num_samples: N, the number of samples of a row.
      points: ``lattice`` (the paper's), ``stratified``, ``antithetic``, ``iid`` (plain sampling),
        ``radical_inverse``, or a function of your own (``codes.Points``).
      order: of the tokens in the interval of their prefix: ``id``, or ``probability``, the most
        probable ones first. Equal codes then mean alike after different prefixes.
      after: what chooses the tokens of a sample that no other may share a prefix with:
        ``independent`` bits (the paper), or the next ``lattice``, which spreads such samples over
        each other's later tokens.
      language: a transform that bans the tokens which may not follow, as for
        ``conditional_sample``; None for samples of the model.
      max_texts: the maximum number of texts of the language, or of beginnings of one length with
        the texts that are whole by then; at most 4,096. Needed with a language.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the choice; with a language, before that.
      stop: when a sequence ends.
      with_sample_log_prob: whether the output has ``sample_log_prob``, the log-probability of each
        token under the distribution that it was drawn from.
      with_trace: whether ``info`` has a ``trace`` of the codes, a ``CodesTrace``.

    Raises:
      ValueError: for an unknown point set, ``order`` or ``after``, a raw key, a prompt of wrong
        shapes, ``num_samples`` below 1, or a length that the model cannot hold; for a language
        without ``max_texts`` or the reverse, and for one and a model with neither ``tree`` nor
        ``select``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt, Stop, transforms
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> key = jax.random.key(1)
      >>> arithmetic_sample(model, prompt, key, num_samples=8, max_new_tokens=4).tokens.shape
      (1, 8, 4)
      >>> trie = transforms.Trie.from_sequences([(2, 3), (4,)], eos_ids=1)
      >>> output = arithmetic_sample(
      ...     model, prompt, key, num_samples=8, max_new_tokens=4, stop=Stop(eos_ids=1),
      ...     language=transforms.prefix_allowed_tokens(trie), max_texts=2,
      ... )
      >>> output.info.complete.tolist(), output.finished.all().item()
      ([True], True)
    """

    num_samples: int = fields.count()
    points: str | codes.Points = fields.field(codes.as_points, static=True, default="lattice")
    order: str = fields.choice(*codes.ORDERS, default="id")
    after: str = fields.choice(*codes.AFTER, default="independent")
    language: Transform | None = fields.field(check_transform, default=None)
    max_texts: int | None = fields.count(default=None)
    with_sample_log_prob: bool = fields.switch(default=False)
    with_trace: bool = fields.switch(default=False)

    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language is not None and not 1 <= (self.max_texts or 0) <= MOST_TEXTS:
            expected = f"an int from 1 to {MOST_TEXTS:,}, for a language"
            raise fields.error("max_texts", expected, self.max_texts)

    @property
    def lanes(self) -> int:
        return self.num_samples

    def start(self, key: Array, batch_size: int) -> codes.Code:
        keys = random.row_keys(key, batch_size)
        return codes.start(self.points, keys, self.num_samples, self.after)

    def prepared(self, state: State, model: LanguageModel, prompt: Prompt) -> State:
        """See ``TokenByToken.prepared``: the texts of the language, and the codes of no text."""
        texts, trace, shape = None, None, state.sequences.tokens.shape
        if self.language is not None:
            texts = list_texts(
                model,
                prompt,
                self.language,
                max_texts=self.max_texts or 1,
                max_new_tokens=shape[-1],
                transform=self.transform,
                stop=self.stop,
            )
        elif self.max_texts is not None:
            raise fields.error("language", "a transform, for max_texts", None)
        if self.with_trace:
            code = state.chooser
            offset, last = (
                jnp.broadcast_to(value[:, :, None], (*shape, 2))
                for value in (code.offset, code.last)
            )
            trace = CodesTrace(code.offset, offset, last, jnp.zeros(shape, bool))
        return state._replace(texts=texts, trace=trace)

    def traced(self, state: State, chooser: codes.Code, new: Sequences) -> CodesTrace:
        old, trace = state.sequences, state.trace
        alone = codes.is_alone(state.chooser.last) if chooser.used is None else chooser.used > 0
        # What follows the first code is not of these intervals, which stay as they were.
        at = jnp.maximum(old.length - 1, 0)[..., None, None]
        now = [
            jnp.where(alone[..., None], jnp.take_along_axis(values, at, axis=2)[:, :, 0], value)
            for values, value in ((trace.offset, chooser.offset), (trace.last, chooser.last))
        ]
        return trace._replace(
            offset=new_values(old, new, now[0], trace.offset),
            last=new_values(old, new, now[1], trace.last),
            carried=new_values(old, new, ~alone, trace.carried),
        )

    def choose(self, chooser: codes.Code, logits: Array, step: Array) -> tuple[Array, codes.Code]:
        return codes.choose(chooser, logits, step, order=self.order)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``: rows whose texts are not known have none."""
        if state.texts is None:
            return super().finalize(prompt, state)
        texts, sequences = state.texts, state.sequences
        is_nan = jnp.isnan(texts.log_language_prob)[:, None] | jnp.isnan(sequences.log_prob)
        log_prob = jnp.where(is_nan, jnp.nan, sequences.log_prob)
        calls = texts.model_calls + state.step
        info = ConditionalCodesInfo(calls, texts.complete, texts.log_language_prob, state.trace)
        exists = texts.known[:, None] | is_nan
        output = output_of_some(sequences._replace(log_prob=log_prob), exists, info)
        return output._replace(sample_log_prob=state.sample_log_prob)


arithmetic_sample = as_function(ArithmeticSample)
