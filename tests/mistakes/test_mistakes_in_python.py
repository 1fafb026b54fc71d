"""Typical mistakes in calls of strategies and in their settings raise one line.

Nothing compiles: a mistake is found before a strategy is traced, or while it is.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistake_calls import (
    KEY,
    MODEL,
    PROMPT,
    SHORT,
    T5_MODEL,
    api,
    beams,
    check,
    named,
    sample,
    speculate,
)

import decoding_jax
from decoding_jax import (
    Constraints,
    Decay,
    GNMTPenalty,
    Prompt,
    Stop,
    transforms,
)
from decoding_jax.strategies.speculative import Heuristic
from decoding_jax.testing import TableLM
from decoding_jax.text import token_scores


class Tensor:
    """An array of a library whose dtypes NumPy does not know."""

    dtype, shape, ndim = "torch.int64", (1, 2), 2

    def numpy(self):
        return np.array([[1, 2]])


def scores(tokens=(((1,),), ((2,),)), *end, model=MODEL, prompt=PROMPT, **settings):
    return token_scores(model, prompt, np.asarray(tokens), *end, **settings)


NEAR = "expected transform=transforms."
TABLE = [
    # From Python: strategies called with a model and a prompt.
    (
        "model",
        lambda: api("greedy", model=T5_MODEL),
        r"expected model\.bind\(tokens, length\), which",
    ),
    (
        "model",
        lambda: api("greedy", model=(MODEL, None)),
        "expected a language model, got a pair with a TableLM:",
    ),
    (
        "prompt",
        lambda: api("greedy", prompt=PROMPT.tokens),
        r"expected Prompt\(tokens \[B, P\], length \[B\]\), got int32\[2, 3\]",
    ),
    (
        "prompt",
        lambda: api("greedy", prompt="hello"),
        r"expected Prompt\(tokens \[B, P\], length \[B\]\), got 'hello';",
    ),
    (
        "prompt.tokens",
        lambda: api("greedy", prompt=Prompt([[1], [1, 2]], [1, 2])),
        r"expected int32, as in Prompt\(tokens \[B, P\], length \[B\]\),",
    ),
    (
        "prompt.tokens",
        lambda: api("greedy", prompt=Prompt([[9]], [1])),
        "expected ids from 0 to 4, the model's vocabulary, got 9 in",
    ),
    (
        "prompt.tokens",
        lambda: api("greedy", prompt=Prompt([[-1]], [1])),
        "expected ids from 0 to 4, the model's vocabulary, got -1 in",
    ),
    (
        "prompt.length",
        lambda: api("greedy", prompt=Prompt([[1]], [0])),
        "expected 1 to P, 1, got 0 in row 0",
    ),
    (
        "prompt.length",
        lambda: api("greedy", prompt=Prompt([[1]], [2])),
        "expected 1 to P, 1, got 2 in row 0",
    ),
    (
        "prompt.tokens",
        lambda: api("greedy", prompt=Prompt(Tensor(), [2])),
        r"expected int32, as in .*, got torch.int64\[1, 2\]; value.numpy\(\) makes an array of it",
    ),
    (
        "prompt",
        lambda: api("greedy", prompt=Prompt([1, 2], 2)),
        r"expected tokens \[B, P\] with P of 1 or more, and length \[B\],",
    ),
    (
        "key",
        lambda: api("sample"),
        r"sample expected a typed key such as jax\.random\.key\(0\), got none",
    ),
    ("key", lambda: sample(0), r"expected a typed key such as jax\.random\.key\(0\), got 0"),
    ("key", lambda: sample(jax.random.PRNGKey(0)), r"expected a typed key .*, got uint32\[2\]"),
    (
        "key",
        lambda: sample(jax.random.split(KEY, 3)),
        r"expected one key, or 2 keys, .*, got keys of shape \[3\]",
    ),
    ("key", lambda: api("greedy", key=KEY), "greedy expected no key, since it draws nothing, got"),
    (
        "greedy",
        lambda: api("greedy", KEY),
        "expected model, prompt, and its settings by name, got 3 arguments",
    ),
    (
        "num_samples",
        lambda: api("greedy", num_samples=4),
        "greedy expected no such setting, got 4; it belongs to",
    ),
    ("num_samples", lambda: sample(num_samples=2.0), r"expected an int of 1 or more, got 2\.0"),
    ("num_samples", lambda: sample(num_samples="4"), "expected an int of 1 or more, got '4'"),
    ("num_samples", lambda: sample(num_samples=True), "expected an int of 1 or more, got True"),
    ("num_samples", lambda: sample(num_samples=0), "expected an int of 1 or more, got 0"),
    (
        "num_return_sequences",
        lambda: sample(num_return_sequences=3),
        "sample expected num_samples=3 instead, got 3",
    ),
    (
        "max_new_token",
        lambda: sample(max_new_token=3),
        "sample expected max_new_tokens=3 instead, got 3",
    ),
    ("temperature", lambda: sample(temperature=0.8), NEAR + r"temperature\(0.8\) instead"),
    ("top_p", lambda: sample(top_p=0.9), NEAR + r"top_p\(0.9\) instead"),
    ("topk", lambda: sample(topk=40), NEAR + r"top_k\(40\) instead"),
    (
        "repetition_penalty",
        lambda: sample(repetition_penalty=1.2),
        NEAR + r"repetition_penalty\(1.2",
    ),
    ("no_repeat_ngram_size", lambda: sample(no_repeat_ngram_size=3), NEAR + "no_repeat_ngram"),
    (
        "transform",
        lambda: sample(transform=transforms.top_p),
        r"expected transforms\.top_p\(\.\.\.\), got it without its settings",
    ),
    ("transform", lambda: sample(transform=[transforms.top_k(2)]), r"a list of 1; .*chain\(first"),
    ("transform", lambda: sample(transform=0.8), "expected one transform, such as"),
    (
        "transform",
        lambda: sample(transform=lambda x: x),
        r"expected a function of \(logits, prefix\), got <function",
    ),
    (
        "transform",
        lambda: sample(transform=lambda x, p: x[..., 0]),
        r"expected logits float32 \[B, W, T, V\], which is \[2, 1, 1, 5\]",
    ),
    ("num_beams", lambda: beams(num_beams=4), "beam_search expected beam_size=4 instead, got 4"),
    ("beam_size", lambda: beams(beam_size=2.0), r"expected an int of 1 or more, got 2\.0"),
    ("beam_size", lambda: api("beam_search"), "beam_search expected an int of 1 or more, got none"),
    ("num_return", lambda: beams(num_return=3), "expected 1 to beam_size, which is 2, got 3"),
    (
        "early_stopping",
        lambda: beams(early_stopping="no"),
        "expected one of True, False, 'never', got 'no'",
    ),
    (
        "length_penalty",
        lambda: beams(length_penalty="0.6"),
        r"expected a number, one for each row \[B\], or a function such",
    ),
    (
        "num_groups",
        lambda: beams("diverse_beam_search", num_groups=3),
        "expected a divisor of beam_size, which is 2, got 3",
    ),
    (
        "diversity_penalty",
        lambda: beams("diverse_beam_search", num_groups=2, diversity_penalty="0.5"),
        r"expected a number of 0 or more, or one for each row \[B\],",
    ),
    (
        "constraints",
        lambda: beams("constrained_beam_search", constraints=["house"]),
        r"expected Constraints\(phrases=\(\(5, 6\),\)\) of token ids, or",
    ),
    (
        "constraints.phrases",
        lambda: beams("constrained_beam_search", constraints=Constraints(((7,),))),
        "expected ids from 0 to 4, the model's vocabulary, got 7",
    ),
    (
        "budget",
        lambda: api("best_first_search"),
        "best_first_search expected an int of 1 or more, got none",
    ),
    (
        "k",
        lambda: api("best_first_search", budget=9, k=3),
        "best_first_search expected no such setting, got 3; it",
    ),
    (
        "score",
        lambda: api("best_k_search", k=2, budget=9, score="avg"),
        "expected one of log_prob, mean, last, or an object, got",
    ),
    (
        "gamma",
        lambda: api("best_k_search", k=2, budget=9, gamma="0.1"),
        "expected a probability from 0 to 1, or one for each row",
    ),
    (
        "gamma",
        lambda: api("best_k_search", k=2, budget=9, gamma=5),
        "expected a probability from 0 to 1, or one for each row",
    ),
    (
        "fallback",
        lambda: api("best_k_search", k=2, budget=9, fallback="yes"),
        "expected True or False, got 'yes'",
    ),
    (
        "points",
        lambda: api("arithmetic_sample", KEY, num_samples=2, points="grid"),
        "expected lattice, stratified, antithetic, iid,",
    ),
    (
        "points",
        lambda: api("arithmetic_sample", KEY, num_samples=2, points=["iid"]),
        "expected a name such as 'lattice', or a function, got",
    ),
    ("drafter", lambda: speculate(None), "expected a language model or a drafter, got a NoneType"),
    (
        "drafter",
        lambda: speculate((MODEL, None)),
        "expected a language model or a drafter, got a pair with a",
    ),
    ("drafter", lambda: speculate(T5_MODEL), r"expected drafter\.bind\(tokens, length\), which"),
    (
        "drafter",
        lambda: speculate(TableLM.random(KEY, 4)),
        "expected the model's vocabulary of 5, got one of 4",
    ),
    (
        "verifier",
        lambda: speculate(verifier="exact"),
        "expected one of block, code, coded_token, greedy, gumbel,",
    ),
    (
        "key",
        lambda: decoding_jax.speculative_sample(
            MODEL, MODEL, PROMPT, num_draft_tokens=2, max_new_tokens=4
        ),
        r"expected a typed key such as jax\.random\.key\(0\), got none",
    ),
    (
        "verifier",
        lambda: speculate(verifier=None),
        "expected one of block, code, coded_token, greedy, gumbel,",
    ),
    (
        "num_draft_tokens",
        lambda: speculate(num_draft_tokens=2.5),
        r"expected an int of 1 or more, Heuristic or Measured, got 2\.5",
    ),
    (
        "num_assistant_tokens",
        lambda: speculate(num_assistant_tokens=2),
        "num_draft_tokens=2 instead",
    ),
    (
        "prompt",
        lambda: api("greedy", model=SHORT, prompt=Prompt(np.ones((1, 90), int), [90])),
        "expected at most 16 tokens, padding included, before new ones, got 90: the model has 16",
    ),
    # Scores of given tokens.
    ("model", lambda: scores(model=T5_MODEL), r"expected model\.bind\(tokens, length\), which"),
    (
        "tokens",
        lambda: scores([[[7]], [[1]]]),
        "expected ids from 0 to 4, the model's vocab.*, got 7",
    ),
    ("tokens", lambda: scores([[[1]]]), r"expected \[B, N, L\] .*, and 2 prompts for B, got int64"),
    ("tokens", lambda: scores(np.ones((2, 1, 0), int)), "with L of 1 or more, .*, got int64"),
    ("tokens", lambda: scores([[[0.5]], [[1]]]), "expected int32, got float"),
    (
        "end",
        lambda: scores([[[1]], [[1]]], 2),
        "expected an int from 0 to 1, the number of tokens,",
    ),
    ("end", lambda: scores([[[1]], [[1]]], np.ones((2, 1), int)), "expected an int of 0 or more"),
    (
        "prompt.length",
        lambda: scores(prompt=Prompt([[1], [1]], [1, 0])),
        "expected 1 to P, 1, got 0 in row 1",
    ),
    (
        "tokens",
        lambda: scores(np.ones((2, 1, 15), int), model=SHORT),
        "expected at most 14 after a prompt of 3, since the model has 16 positions, got 15",
    ),
    (
        "num_alternatives",
        lambda: scores(num_alternatives=6),
        "expected an int from 0 to 5, the model's vocabulary, got 6",
    ),
    # What is built before: stop conditions, transforms, rules.
    ("eos_ids", lambda: Stop(eos_ids="</s>"), "expected token ids of 0 or more, got '</s>'"),
    ("eos_ids", lambda: Stop(eos_ids=-1), r"expected token ids of 0 or more, got \(-1,\)"),
    ("eos_ids", lambda: Stop(eos_ids=(1.0,)), r"expected token ids of 0 or more, got \(1\.0,\)"),
    (
        "sequences",
        lambda: Stop(sequences=["."]),
        r"expected sequences of token ids, such as \[\[5, 6\]\], got \['\.'\]",
    ),
    (
        "sequences",
        lambda: Stop(sequences="."),
        r"expected sequences of token ids, such as \[\[5, 6\]\], got '\.'",
    ),
    (
        "sequences",
        lambda: Stop(sequences=(5, 6)),
        r"expected sequences of token ids, such as \[\[5, 6\]\], got \(5,",
    ),
    (
        "max_new_tokens",
        lambda: Stop(max_new_tokens="5"),
        r"expected an int of 0 or more, or one for each row \[B\], got",
    ),
    (
        "min_new_tokens",
        lambda: Stop(min_new_tokens=1.5),
        r"expected an int of 0 or more, or one for each row \[B\], got",
    ),
    ("temperature.value", lambda: transforms.temperature("0.8"), r"expected a finite number of 0"),
    ("temperature.value", lambda: transforms.temperature(-1), r"expected a finite number of 0 or"),
    ("temperature.value", lambda: transforms.temperature(None), r"expected a finite number of 0"),
    ("top_k.k", lambda: transforms.top_k(2.5), r"expected an int of 1 or more, or one for each"),
    ("top_p.p", lambda: transforms.top_p(90), r"expected a probability from 0 to 1, or one for"),
    (
        "chain",
        lambda: transforms.chain(transforms.top_k),
        r"expected functions of \(logits, prefix\), got TopK as",
    ),
    (
        "chain",
        lambda: transforms.chain([transforms.top_k(2)]),
        r"expected functions of \(logits, prefix\), got",
    ),
    ("temperature.value", lambda: transforms.temperature(jnp.float32(-1)), r"expected a finite"),
    ("top_p.p", lambda: transforms.top_p(jnp.array([0.9, 95])), r"expected a probability from 0"),
    (
        "banned_sequences.sequences",
        lambda: sample(transform=transforms.banned_sequences([(1, 7)])),
        "expected ids from 0 to 4, the model's vocabulary, got 7",
    ),
    (
        "allowed_tokens.tokens",
        lambda: sample(transform=transforms.chain(transforms.allowed_tokens(jnp.array([1, 5])))),
        "expected ids from 0 to 4, the model's vocabulary, got 5",
    ),
    (
        "forced_first_token.token",
        lambda: sample(transform=transforms.forced_first_token(9)),
        "expected ids from 0 to 4, the model's vocabulary, got 9",
    ),
    (
        "min_length.eos_ids",
        lambda: sample(transform=transforms.min_length(2, eos_ids=9)),
        "expected ids from 0 to 4, the model's vocabulary, got 9",
    ),
    (
        "trie.token",
        lambda: sample(
            transform=transforms.prefix_allowed_tokens(transforms.Trie.from_sequences([(6, 1)]))
        ),
        "expected ids from 0 to 4, the model's vocabulary, got 6",
    ),
    ("logit_bias.bias", lambda: transforms.logit_bias({"a": 1.0}), "expected token ids of 0 or"),
    ("allowed_tokens.tokens", lambda: transforms.allowed_tokens("yes"), r"expected at least one"),
    ("banned_sequences.sequences", lambda: transforms.banned_sequences((5, 6)), r"expected"),
    (
        "phrases",
        lambda: Constraints(phrases=("house",)),
        r"expected sequences of token ids, such as \[\[5, 6\]\], got",
    ),
    ("decay.kappa", lambda: Decay("0.1"), "expected a number of 0 or more, got '0.1'"),
    ("gnmt_penalty.alpha", lambda: GNMTPenalty("0.6"), r"expected a number, or one for each row"),
    ("max_draft_tokens", lambda: Heuristic(max_draft_tokens=0), r"expected an int of 1 or more,"),
]


@pytest.mark.parametrize(("argument", "call", "message"), named(TABLE))
def test_a_mistake_gets_one_line(argument, call, message):
    check(argument, call, message)


def test_the_table_is_as_long_as_it_should_be():
    assert len(TABLE) >= 77


def test_traced_values_are_left_alone():
    """Ids are not checked under the caller's own ``jit``, where they are traced."""

    def decode(model, tokens, ends):
        prompt = Prompt(tokens, jnp.ones(1, jnp.int32))
        return decoding_jax.greedy(model, prompt, max_new_tokens=2, stop=Stop(eos_ids=ends))

    tokens = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    ends = jax.ShapeDtypeStruct((2,), jnp.int32)
    assert jax.eval_shape(decode, MODEL, tokens, ends).tokens.shape == (1, 1, 2)


def test_lists_make_a_prompt():
    given = Prompt([[1, 2, 3], [4, 0, 0]], [3, 1])
    for function in (decoding_jax.greedy, decoding_jax.strategies.greedy):
        decode = functools.partial(function, MODEL, max_new_tokens=2)
        assert jax.eval_shape(lambda call=decode: call(given)).tokens.shape == (2, 1, 2)
        assert jax.eval_shape(decode, given).tokens.shape == (2, 1, 2)


def test_counts_of_numpy_and_jax_are_taken_as_ints():
    for count in (np.int64(2), jnp.int32(2)):
        shape = jax.eval_shape(lambda n=count: sample(num_samples=n)).tokens.shape
        assert shape == (2, 2, 4)
