"""States of transforms, carried from step to step, beside transforms that read whole texts."""

import jax
import numpy as np
import pytest
import tiers

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.text.token_texts import concatenated

VOCAB, LENGTH = 5, 6
MODEL = TableLM.random(jax.random.key(0), VOCAB)
DRAFT = TableLM.random(jax.random.key(1), VOCAB)
PROMPT = Prompt(np.array([[1, 2], [3, 0], [2, 2], [1, 4]], np.int32), np.array([2, 1, 2, 2]))
STOP = Stop(eos_ids=(4,), max_new_tokens=(LENGTH, 5, LENGTH, 4))

# Token 4 ends a text after an even number of tokens 1 and, after one of them, a token 2.
TABLE = np.array([[0, 1, 0, 0, 3], [1, 0, 2, -1, -1], [2, 0, 2, 2, 3], [-1] * VOCAB])
EVEN = transforms.prefix_allowed_tokens(transforms.Automaton(TABLE), start=np.array([0, 1, 0, 2]))
TRIE = transforms.prefix_allowed_tokens(
    transforms.Trie.from_sequences([(0, 1, 4), (0, 2, 2, 4), (1, 4), (1, 3, 3, 3, 4)])
)
# It forces tokens 0 and 2, which the automaton always allows.
BUDGET = transforms.thinking_budget((2,), (0,), max_tokens=np.array([1, 9, 9, 0]), then=(2,))


def unaware(transform):
    """The same transform as a function, which has no states to carry."""
    return jax.tree_util.Partial(lambda made, logits, prefix: made(logits, prefix), transform)


def speculative_sample(model, prompt, key, **settings):
    return decoding_jax.speculative_sample(
        model, DRAFT, prompt, key, num_draft_tokens=3, num_samples=2, **settings
    )


SAMPLED = {"num_samples": 3}
CASES = {
    "sample": (decoding_jax.sample, SAMPLED),
    "beam_search": (decoding_jax.beam_search, {"beam_size": 3}),
    "stochastic_beam_search": (decoding_jax.stochastic_beam_search, {"beam_size": 3}),
    "contrastive_search": (decoding_jax.contrastive_search, {"penalty_alpha": 0.4, "top_k": 3}),
    "best_k_search": (decoding_jax.best_k_search, {"k": 2, "budget": 16, "gamma": 0.0}),
    "metropolis_sample": (
        decoding_jax.metropolis_sample,
        {"num_samples": 3, "alpha": 2.0, "num_steps": 2, "block_size": 2},
    ),
    "conditional_sample": (decoding_jax.conditional_sample, {**SAMPLED, "language": TRIE}),
    "smc_sample": (
        decoding_jax.smc_sample,
        {**SAMPLED, "language": TRIE, "ess_threshold": 1.0, "proposal": EVEN},
    ),
    "arithmetic_sample": (
        decoding_jax.arithmetic_sample,
        {**SAMPLED, "language": TRIE, "max_texts": 8},
    ),
    "speculative_sample": (speculative_sample, {"verifier": "block"}),
    "speculative_sample, drafts": (speculative_sample, {"num_drafts": 2}),
    "speculative_sample, dynamic": (
        speculative_sample,
        {"num_drafts": 2, "tree": "dynamic", "tree_size": 4},
    ),
}
DETERMINISTIC = {"beam_search", "contrastive_search", "best_k_search"}


DEFAULT = ("beam_search",)
RELEASE = ("speculative_sample", "speculative_sample, dynamic")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    tiers.values(
        *DEFAULT,
        exhaustive=[name for name in CASES if name not in DEFAULT + RELEASE],
        release=RELEASE,
    ),
)
def test_a_strategy_decodes_what_it_decodes_without_them(name):
    """In every bit, with rows of their own states and limits, and in a chain of transforms."""
    strategy, settings = CASES[name]
    key = () if name in DETERMINISTIC else (jax.random.key(2),)

    def decoded(of):
        own = {k: of(v) if k in ("language", "proposal") else v for k, v in settings.items()}
        own["transform"] = transforms.chain(transforms.temperature(0.8), of(EVEN), of(BUDGET))
        if "language" in own:
            own["transform"] = transforms.temperature(0.8)
        return strategy(MODEL, PROMPT, *key, stop=STOP, max_new_tokens=LENGTH, **own)

    carried, whole = decoded(lambda transform: transform), decoded(unaware)
    assert same_bits(carried, whole)
    assert carried.finished.any()
    assert len({tuple(text) for text in np.asarray(carried.tokens).reshape(-1, LENGTH)}) > 1


STACKS = ("best_k_search", "conditional_sample", "speculative_sample, drafts")


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.values(
        "sample",
        exhaustive=STACKS,
        release=[name for name in CASES if name not in ("sample", *STACKS)],
    ),
)
def test_a_stack_decodes_what_an_automaton_decodes(name, monkeypatch):
    """Nested texts, whose states are several arrays, beside the same unrolled: in every bit."""
    from decoding_jax import constraints
    from decoding_jax.constraints import made

    strategy, settings = CASES[name]
    key = () if name in DETERMINISTIC else (jax.random.key(2),)

    def decoded(most):
        monkeypatch.setattr(made, "_MOST_UNROLLED", most)
        grammar = 'start: "(" start ")" | "1" "1"?'
        nested = constraints.grammar(grammar, Parentheses(), max_depth=2)
        own = {k: nested if k in ("language", "proposal") else v for k, v in settings.items()}
        if "language" not in own:
            own["transform"] = transforms.chain(transforms.temperature(0.8), nested)
        output = strategy(MODEL, PROMPT, *key, stop=STOP, max_new_tokens=LENGTH, **own)
        return type(nested.language).__name__, output

    (kind, stacked), (other, unrolled) = decoded(0), decoded(1 << 20)
    assert (kind, other) == ("StackAutomaton", "CompressedAutomaton")
    assert same_bits(stacked, unrolled)
    assert stacked.finished.any()


class Parentheses:
    """A tokenizer of four texts, one of which closes two levels; token 4 ends a text."""

    eos_ids, vocab_size = (4,), VOCAB

    def token_texts(self, size):
        return concatenated([b"(", b"1", b")", b"))", b""])
