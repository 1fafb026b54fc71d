"""Strategies under test: how they are called, what is expected of them, and those of the library.

Your own strategy is a function with the signature of a public strategy. The signature determines
its kind:

- a *sampler*, ``f(model, prompt, key, *, num_samples, max_new_tokens, transform, stop)``, has to
  follow the exact distribution, lane by lane. ``key`` is a typed key, or one typed key per row;
- a *search*, ``f(model, prompt, *, max_new_tokens, transform, stop)``, has to give the greedy path.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import decoding_jax
from decoding_jax import registry
from decoding_jax.base import DecodeOutput, Prompt
from decoding_jax.ops.jit import jit
from decoding_jax.strategies import speculative
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.testing.certificate import brute_force, enumeration, expectations
from decoding_jax.testing.certificate.problems import LENGTH, PROMPTS, VOCAB, AnyProblem, Rows
from decoding_jax.testing.table_head import TableAssistant, TableBlockHead, TableHead
from decoding_jax.testing.table_lm import TableLM

SAMPLES = 4
"""The number of sequences per row of a sampler, and of a search that returns several."""


class DraftCase(NamedTuple):
    """A drafter and the number of tokens that it drafts.

    Attributes:
      make: a function from the target model to the drafter.
      num_draft_tokens: as for ``speculative_sample``.
      num_drafts: as for ``speculative_sample``.
      tree: likewise; only the verifiers of trees take several ``independent`` drafts.
      tree_size: likewise.
      by_row: whether the number and the length of the drafts of a row follow from its prompt.
    """

    make: Callable[[Any], Any]
    num_draft_tokens: Any
    num_drafts: int = 1
    tree: str = "independent"
    tree_size: int | None = None
    by_row: bool = False

    def settings(self, prompt: Prompt) -> dict[str, Any]:
        """The settings of ``speculative_sample`` besides the drafter."""
        names = ("num_draft_tokens", "num_drafts", "tree", "tree_size")
        settings = {name: getattr(self, name) for name in names}
        if self.by_row:
            settings["drafts_by_row"] = 1 + prompt.length % self.num_drafts
            settings["draft_tokens_by_row"] = prompt.tokens[:, 0] % (self.num_draft_tokens + 1)
        return settings


@functools.cache
def _another(vocab_size: int, zeros: float = 0.0) -> TableLM:
    key = jax.random.fold_in(jax.random.key(30), int(100 * zeros))
    return TableLM.random(key, vocab_size, sharpness=2.0, zeros=zeros)


def _bigram(model: Any) -> speculative.Bigram:
    return speculative.Bigram(_another(model.vocab_size).table[0, 0])


def _next_token(model: Any) -> speculative.NextToken:
    following = [2, 3, -1, 1, *range(4, model.vocab_size)]
    return speculative.NextToken(np.array(following, np.int32))


def _suffix(model: Any) -> speculative.SuffixDrafter:
    texts = np.random.default_rng(0).integers(0, model.vocab_size, (6, 9))
    return speculative.SuffixDrafter(size=4, corpus=speculative.Corpus.of(texts.tolist()))


def _eagle(model: Any) -> speculative.Eagle:
    """A head that sees the target's features, errs, and never drafts token 0."""
    ids = np.arange(1, model.vocab_size, dtype=np.int32)
    table = getattr(model, "model", model)  # of a model that counts how often it is traced
    head = TableHead(table, _another(model.vocab_size), ids)
    return speculative.Eagle(head, vocab_size=model.vocab_size, token_ids=ids)


def _multi_token(model: Any) -> speculative.MultiTokenPrediction:
    """Two blocks that see the target's features and err, the second of them more often."""
    table = getattr(model, "model", model)
    drafts, ids = (table, _another(model.vocab_size)), np.arange(model.vocab_size, dtype=np.int32)
    blocks = [TableHead(table, draft, ids, depth=k) for k, draft in enumerate(drafts, 1)]
    return speculative.MultiTokenPrediction(blocks)


def _dflash(model: Any) -> speculative.DFlash:
    """A head that sees the target's features, and drafts a block of four tokens."""
    table = getattr(model, "model", model)
    head = TableBlockHead(table, _another(model.vocab_size))
    return speculative.DFlash(head, vocab_size=model.vocab_size)


def _assistant(model: Any) -> speculative.Assistant:
    """A head that reads the target's keys and values, and errs."""
    ids = np.arange(model.vocab_size, dtype=np.int32)
    table = getattr(model, "model", model)
    return speculative.Assistant(TableAssistant(TableHead(table, _another(model.vocab_size), ids)))


DRAFTS: dict[str, DraftCase] = {
    "itself, 4": DraftCase(lambda model: model, 4),
    "another, 3": DraftCase(lambda model: _another(model.vocab_size), 3),
    "with zeros, 2": DraftCase(lambda model: _another(model.vocab_size, 0.4), 2),
    "another, up to 8": DraftCase(
        lambda model: _another(model.vocab_size),
        speculative.Heuristic(max_draft_tokens=8, first=3),
    ),
    "another, 3 of 2": DraftCase(lambda model: _another(model.vocab_size), 2, num_drafts=3),
    "another, up to 3 of 2": DraftCase(
        lambda model: _another(model.vocab_size), 2, num_drafts=3, tree_size=4, by_row=True
    ),
    "another, tree of 5": DraftCase(
        lambda model: _another(model.vocab_size), 3, num_drafts=2, tree="dynamic", tree_size=5
    ),
    "bigram, up to 6": DraftCase(_bigram, speculative.Measured(max_draft_tokens=6)),
    "eagle, 3": DraftCase(_eagle, 3),
    "eagle, 3 of 2": DraftCase(_eagle, 2, num_drafts=3),
    "multi-token, 3": DraftCase(_multi_token, 3),
    "multi-token, 2 of 3": DraftCase(_multi_token, 3, num_drafts=2),
    "multi-token, tree of 6": DraftCase(_multi_token, 3, num_drafts=2, tree="dynamic"),
    "eagle, trees of 6": DraftCase(
        _eagle, 2, num_drafts=3, tree="dynamic", tree_size=6, by_row=True
    ),
    "dflash, 4": DraftCase(_dflash, 4),
    "dflash, 3 of 2": DraftCase(_dflash, 2, num_drafts=3),
    "dflash, tree of 4": DraftCase(_dflash, 2, num_drafts=2, tree="dynamic"),
    "assistant, 3": DraftCase(_assistant, 3),
    "assistant, 3 of 2": DraftCase(_assistant, 2, num_drafts=3),
    "assistant, tree of 6": DraftCase(_assistant, 3, num_drafts=2, tree="dynamic"),
    "next token, 1": DraftCase(_next_token, 1),
    "prompt lookup, 7": DraftCase(lambda model: speculative.PromptLookup(size=2), 7),
    "suffix, 5": DraftCase(_suffix, 5),
}


@dataclasses.dataclass(frozen=True)
class Tested:
    """A strategy under test.

    Attributes:
      name: as the certificate prints it.
      function: the strategy, jitted.
      plain: the strategy, not jitted.
      sampler: whether it takes a key and draws samples.
      independent: whether the lanes of a row are independent draws.
      draft: the drafter and its settings, or None for a strategy without drafts.
      spread: how far the number of samples with a given prefix may be from N p (see
        ``comparisons.check_prefix_counts``), or None if there is no bound.
      expectation: compares the output with what is expected. By default that follows from the
        attributes above.
      trees: whether it is given models with trees. A table model's cost grows with the cube of the
        number of a tree's slots, so wide beams use the cache that moves lanes instead.
      lanes: the number of sequences per row; by default 1 for a search and ``SAMPLES`` for a
        sampler.
      settings: the settings that a strategy of the library is given.
      row_settings: from the rows of a batch to further keyword arguments.
      info_fields: fields ``[B, N]`` of ``DecodeOutput.info`` that the expectation reads.
      lockstep: whether it takes a model without ragged rows and trees.
      logits: whether its expectation gives transforms the same input as the strategy does. A beam
        of one follows the greedy path, but transforms get log-probabilities instead of logits, and
        the result of a penalty that depends on signs differs.
      ties: whether it is given the model with ties. Where a beam of several draws, the outcome of a
        tie between hypotheses depends on the last bit of their scores.
    """

    name: str
    function: Callable[..., DecodeOutput]
    plain: Callable[..., DecodeOutput]
    sampler: bool
    independent: bool = False
    spread: float | None = None
    lockstep: bool = True
    logits: bool = True
    ties: bool = True
    draft: DraftCase | None = None
    expectation: expectations.Expectation | None = None
    trees: bool = True
    lanes: int | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    row_settings: Callable[[Rows], dict[str, Any]] = lambda rows: {}
    info_fields: tuple[str, ...] = ()

    @property
    def function_name(self) -> str:
        """The name without that of a variant."""
        return self.name.partition("/")[0]

    @property
    def num_lanes(self) -> int:
        """The number of sequences per row."""
        return self.lanes or (SAMPLES if self.sampler else 1)

    @property
    def takes_count(self) -> bool:
        """Whether the function takes ``num_samples``, as every sampler of your own has to."""
        parameters = inspect.signature(self.plain).parameters.values()
        return any(p.name == "num_samples" or p.kind is p.VAR_KEYWORD for p in parameters)

    def check(self, output: DecodeOutput, problem: AnyProblem) -> list[float]:
        """Compares an output with what is expected.

        Args:
          output: its rows repeat those of the problem.
          problem: the problem.

        Returns:
          The p-values of the statistical tests.

        Raises:
          AssertionError: where the output is wrong for certain.
        """
        if self.expectation is not None:
            return self.expectation(output, problem)
        if self.sampler:
            return expectations.follows_distribution(
                output, problem, independent=self.independent, spread=self.spread
            )
        return expectations.is_path(output, problem, enumeration.greedy_path)

    def with_draft(self, name: str) -> Tested:
        """The strategy with the draft of that name, if it takes drafts."""
        return dataclasses.replace(self, draft=DRAFTS[name]) if self.draft else self

    def __call__(
        self,
        model: Any,
        prompt: Prompt,
        keys: Any,
        settings: dict[str, Any],
        *,
        eager: bool = False,
    ) -> DecodeOutput:
        """Calls the strategy; a search takes neither keys nor a number of samples."""
        function = self.plain if eager else self.function
        if self.draft is not None:
            settings = {**settings, **self.draft.settings(prompt)}
            function = functools.partial(_drafted, function, self.draft.make(model))
        if self.sampler:
            count = {"num_samples": self.num_lanes} if self.takes_count else {}
            return function(model, prompt, keys, **count, **settings)
        return function(model, prompt, **settings)


EVERY = VOCAB ** (LENGTH - 1)
"""The largest number of hypotheses that can still be running before the last step."""
PHRASES = np.array(
    [[[-1, 1]], [[2, 3]], [[-1, -1]], [[0, 0]], [[-1, 2]], [[1, 3]], [[-1, 0]], [[3, 3]]], np.int32
)
"""What the sequences of each prompt must contain in a constrained search."""
ALTERNATIVES = (((0,), (2, 1)),)
PENALTIES = np.array([0.0, 0.5, 0.05, 2.0, 0.0, 0.2, 1.0, 0.01], np.float32)
"""The diversity penalty of each prompt."""
SPREADS = {"lattice": 1.0, "stratified": 2.0}
"""The spread of the point sets that promise one."""


def known() -> dict[str, Tested]:
    """The library's strategies by name; each of the registry is here, in one or several variants.

    A strategy that this table does not name is called with the defaults of its settings, and has to
    follow the exact distribution if it draws, or the greedy path if it does not.
    """
    found = [
        _public("greedy"),
        _public("sample", independent=True),
        *(
            _public(
                f"arithmetic_sample/{points}",
                independent=points == "iid",
                spread=SPREADS.get(points),
                points=points,
            )
            for points in ("lattice", "stratified", "antithetic", "iid", "radical_inverse")
        ),
        _public("conditional_sample", independent=True, lockstep=False, max_prefixes=32),
        # Of other powers, and of languages, particles and chains are only near the target.
        _public("power_sample", independent=True, alpha=1.0),
        _public(
            "metropolis_sample",
            independent=True,
            lockstep=False,
            alpha=1.0,
            num_steps=1,
            block_size=2,
        ),
        _public("arithmetic_sample/several", spread=1.0, order="probability", after="lattice"),
        *_beams(),
        *_tree_searches(),
        *(_speculative(verifier) for verifier in speculative.VERIFIERS),
    ]
    named = {strategy.function_name for strategy in found}
    found += [_public(name) for name in registry.STRATEGIES if name not in named]
    return {strategy.name: strategy for strategy in found}


def _beams() -> list[Tested]:
    """The beam searches.

    A beam of ``EVERY`` keeps every running hypothesis, so a search has to find the sequences with
    the best scores of all. Each group of a diverse search is wide enough to keep all hypotheses to
    the end, so that what the second is penalised for does not depend on ties.
    """
    rank = expectations.rank_with_constraints(PHRASES, ALTERNATIVES)
    return [
        _public("beam_search/1", logits=False, beam_size=1),
        _ranked("beam_search", brute_force.rank_sequences, beam_size=EVERY),
        _ranked(
            "diverse_beam_search",
            brute_force.rank_two_groups(PENALTIES),
            row_settings=lambda rows: {"diversity_penalty": PENALTIES[rows % PROMPTS]},
            num_groups=2,
            beam_size=2 * VOCAB**LENGTH,
        ),
        # The candidates of twice that width are all continuations.
        _ranked(
            "constrained_beam_search",
            rank,
            row_settings=lambda rows: {
                "constraints": Constraints(PHRASES[rows % PROMPTS], ALTERNATIVES)
            },
            beam_size=2 * EVERY,
        ),
        *(
            _public(
                f"beam_sample/{size}",
                expectation=expectations.follows_beam_sample,
                lanes=size,
                ties=size == 1,
                beam_size=size,
            )
            for size in (1, 2)
        ),
        _public(
            "stochastic_beam_search",
            expectation=expectations.are_draws_without_replacement,
            info_fields=("sampling_log_prob",),
            beam_size=SAMPLES,
        ),
    ]


def _ranked(name: str, rank: Callable[..., brute_force.Ranking], **options: Any) -> Tested:
    """A search that returns the ``SAMPLES`` best sequences of a ranking."""
    expectation = functools.partial(expectations.are_ranked, rank=rank)
    return _public(
        name, expectation=expectation, lanes=SAMPLES, trees=False, num_return=SAMPLES, **options
    )


def _tree_searches() -> list[Tested]:
    """Best-first and best-k search, with room for every node and every child; and contrastive."""
    room = {"lockstep": False, "budget": 100, "gamma": 0.0}
    ranked = functools.partial(expectations.are_ranked, rank=expectations.rank_by_model)
    path = functools.partial(expectations.is_path, path=brute_force.contrastive_path)
    return [
        _public("best_first_search", expectation=expectations.is_likeliest, **room),
        _public("best_k_search", expectation=ranked, lanes=SAMPLES, k=SAMPLES, **room),
        # Where candidates are equally probable, the last bit of a cosine decides.
        _public(
            "contrastive_search",
            expectation=path,
            lockstep=False,
            ties=False,
            penalty_alpha=brute_force.ALPHA,
            top_k=brute_force.TOP_K,
        ),
    ]


def _speculative(verifier: str) -> Tested:
    """Speculative decoding with one of the verifiers; ``with_draft`` chooses the draft."""
    return _public(
        f"speculative_sample/{verifier}",
        sampler=verifier != "greedy",
        independent=verifier not in ("greedy", "code", "coded_token"),
        spread=1.0 if verifier == "code" else None,
        draft=next(iter(DRAFTS.values())),
        lockstep=False,
        verifier=verifier,
    )


def _public(name: str, **options: Any) -> Tested:
    """A strategy of the library: jitted from the top level, plain from ``strategies``.

    Args:
      name: the name of the function, or this and a variant after a slash.
      **options: attributes of ``Tested``, and settings of the strategy.
    """
    function = name.partition("/")[0]
    about = {f.name: options.pop(f.name) for f in dataclasses.fields(Tested) if f.name in options}
    entry, required = registry.STRATEGIES[function], registry.defaults_of(function)
    given = {k: required[k] for k in required if k not in ("max_new_tokens", "num_samples")}
    options = given | options
    jitted = functools.partial(entry.function, **options)
    plain = functools.partial(getattr(decoding_jax.strategies, function), **options)
    return Tested(name, jitted, plain, settings=options, **({"sampler": entry.draws} | about))


def find(names: list[str]) -> list[Tested]:
    """Finds strategies by name, by the part before a slash, or by ``module:function``.

    Args:
      names: the names; all strategies of the library if there are none.
    """
    table = known()
    found: list[Tested] = []
    for name in names:
        matching = [s for key, s in table.items() if name in (key, s.function_name)]
        found += matching or [import_strategy(name)]
    return found or list(table.values())


def _drafted(
    function: Callable[..., DecodeOutput],
    drafter: Any,
    model: Any,
    prompt: Prompt,
    *args: Any,
    **settings: Any,
) -> DecodeOutput:
    """Calls a speculative strategy like one without a drafter; the greedy one has no key."""
    return function(model, drafter, prompt, *(args or (None,)), **settings)


def import_strategy(path: str) -> Tested:
    """Imports your own strategy, ``"module:function"``.

    Raises:
      ValueError: for a path without a colon, or a name that cannot be imported.
    """
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"--strategy: expected a name of the list, or module:function, got {path}")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--strategy: expected module:function, got {path}: {error}") from None
    return from_function(function, path)


def from_function(function: Callable[..., DecodeOutput], name: str) -> Tested:
    """Makes a strategy of a function, which may already be jitted."""
    sampler = "key" in inspect.signature(function).parameters
    plain = inspect.unwrap(function)
    if plain is function:
        static = ("num_samples", "max_new_tokens") if sampler else ("max_new_tokens",)
        function = jit(function, static)
    return Tested(name, function, plain, sampler)
