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

NEAR = "takes transform=transforms."
TABLE = [
    # From Python: strategies called with a model and a prompt.
    ("model", lambda: api("greedy", model=T5_MODEL), r"not bound to its inputs; takes model.bind"),
    (
        "model",
        lambda: api("greedy", model=(MODEL, None)),
        "got a pair with a TableLM; takes a lang",
    ),
    (
        "prompt",
        lambda: api("greedy", prompt=PROMPT.tokens),
        r"got int32\[2, 3\]; takes Prompt\(tok",
    ),
    ("prompt", lambda: api("greedy", prompt="hello"), r"got 'hello'; takes Prompt.*generate takes"),
    ("prompt.tokens", lambda: api("greedy", prompt=Prompt([[1], [1, 2]], [1, 2])), "takes int32"),
    (
        "prompt.tokens",
        lambda: api("greedy", prompt=Prompt([[9]], [1])),
        "got 9 in row 0; takes ids",
    ),
    ("prompt.tokens", lambda: api("greedy", prompt=Prompt([[-1]], [1])), "got -1 in row 0; takes"),
    (
        "prompt.length",
        lambda: api("greedy", prompt=Prompt([[1]], [0])),
        "got 0 in row 0; takes 1 to",
    ),
    (
        "prompt.length",
        lambda: api("greedy", prompt=Prompt([[1]], [2])),
        "got 2 in row 0; takes 1 to",
    ),
    ("prompt", lambda: api("greedy", prompt=Prompt([1, 2], 2)), r"takes \[B, P\] with P of 1 or"),
    ("key", lambda: api("sample"), "got none; sample takes a typed key such as jax.random.key"),
    ("key", lambda: sample(0), "got 0; takes a typed key such as jax.random.key"),
    ("key", lambda: sample(jax.random.PRNGKey(0)), r"got uint32\[2\]; takes a typed key"),
    (
        "key",
        lambda: sample(jax.random.split(KEY, 3)),
        r"keys of shape \[3\]; takes one key, or 2 keys",
    ),
    ("key", lambda: api("greedy", key=KEY), "greedy takes none, since it draws nothing"),
    ("greedy", lambda: api("greedy", KEY), "got 3 arguments without a name.*; takes model, prompt"),
    ("num_samples", lambda: api("greedy", num_samples=4), "greedy takes no such setting.*sample"),
    ("num_samples", lambda: sample(num_samples=2.0), "got 2.0; takes an int of 1 or more"),
    ("num_samples", lambda: sample(num_samples="4"), "got '4'; takes an int of 1 or more"),
    ("num_samples", lambda: sample(num_samples=True), "got True; takes an int of 1 or more"),
    ("num_samples", lambda: sample(num_samples=0), "got 0; takes 1 or more"),
    ("num_return_sequences", lambda: sample(num_return_sequences=3), "takes num_samples=3 instead"),
    ("max_new_token", lambda: sample(max_new_token=3), "sample takes max_new_tokens=3 instead"),
    ("temperature", lambda: sample(temperature=0.8), NEAR + r"temperature\(0.8\) instead"),
    ("top_p", lambda: sample(top_p=0.9), NEAR + r"top_p\(0.9\) instead"),
    ("topk", lambda: sample(topk=40), NEAR + r"top_k\(40\) instead"),
    (
        "repetition_penalty",
        lambda: sample(repetition_penalty=1.2),
        NEAR + r"repetition_penalty\(1.2",
    ),
    ("no_repeat_ngram_size", lambda: sample(no_repeat_ngram_size=3), NEAR + "no_repeat_ngram"),
    ("transform", lambda: sample(transform=transforms.top_p), r"takes transforms.top_p\(...\)"),
    ("transform", lambda: sample(transform=[transforms.top_k(2)]), r"a list of 1; .*chain\(first"),
    ("transform", lambda: sample(transform=0.8), "got 0.8; takes one transform, such as"),
    ("transform", lambda: sample(transform=lambda x: x), r"takes a function of \(logits, prefix\)"),
    (
        "transform",
        lambda: sample(transform=lambda x, p: x[..., 0]),
        r"got logits .*; takes float32",
    ),
    ("num_beams", lambda: beams(num_beams=4), "beam_search takes beam_size=4 instead"),
    ("beam_size", lambda: beams(beam_size=2.0), "got 2.0; takes an int of 1 or more"),
    ("beam_size", lambda: api("beam_search"), "got none; beam_search takes an int of 1 or more"),
    ("num_return", lambda: beams(num_return=3), "got 3; takes 1 to beam_size, which is 2"),
    (
        "early_stopping",
        lambda: beams(early_stopping="no"),
        "got 'no'; takes True, False or \"never\"",
    ),
    ("length_penalty", lambda: beams(length_penalty="0.6"), "got '0.6'; takes a number, one a row"),
    (
        "num_groups",
        lambda: beams("diverse_beam_search", num_groups=3),
        "takes a divisor of beam_size",
    ),
    (
        "diversity_penalty",
        lambda: beams("diverse_beam_search", num_groups=2, diversity_penalty="0.5"),
        "got '0.5'; takes a number",
    ),
    (
        "constraints",
        lambda: beams("constrained_beam_search", constraints=["house"]),
        r"got \['house'\]; takes Constraints\(phrases=.* of token ids, or decoding_jax.text",
    ),
    (
        "constraints.phrases",
        lambda: beams("constrained_beam_search", constraints=Constraints(((7,),))),
        "got 7; takes ids from 0 to 4",
    ),
    ("budget", lambda: api("best_first_search"), "got none; best_first_search takes an int of 1"),
    ("k", lambda: api("best_first_search", budget=9, k=3), "takes no such setting.*best_k_search"),
    (
        "score",
        lambda: api("best_k_search", k=2, budget=9, score="avg"),
        "takes one of log_prob, mean",
    ),
    (
        "gamma",
        lambda: api("best_k_search", k=2, budget=9, gamma="0.1"),
        "got '0.1'; takes a number",
    ),
    ("gamma", lambda: api("best_k_search", k=2, budget=9, gamma=5), "got 5; takes a probability"),
    (
        "fallback",
        lambda: api("best_k_search", k=2, budget=9, fallback="yes"),
        "takes True or False",
    ),
    (
        "points",
        lambda: api("arithmetic_sample", KEY, num_samples=2, points="grid"),
        "takes lattice,",
    ),
    (
        "points",
        lambda: api("arithmetic_sample", KEY, num_samples=2, points=["iid"]),
        "takes a name",
    ),
    ("drafter", lambda: speculate(None), "got a NoneType; takes a language model or a drafter"),
    (
        "drafter",
        lambda: speculate((MODEL, None)),
        "got a pair with a TableLM; takes a language model",
    ),
    ("drafter", lambda: speculate(T5_MODEL), "got a T5 that is not bound to its inputs; takes"),
    (
        "drafter",
        lambda: speculate(TableLM.random(KEY, 4)),
        "got a vocabulary of 4; takes the model's",
    ),
    ("verifier", lambda: speculate(verifier="exact"), "got 'exact'; takes block, code"),
    (
        "key",
        lambda: decoding_jax.speculative_sample(
            MODEL, MODEL, PROMPT, num_draft_tokens=2, max_new_tokens=4
        ),
        "got none; takes a typed key such as jax.random.key",
    ),
    ("verifier", lambda: speculate(verifier=None), "got None; takes block, code"),
    ("num_draft_tokens", lambda: speculate(num_draft_tokens=2.5), "got 2.5; takes an int"),
    (
        "num_assistant_tokens",
        lambda: speculate(num_assistant_tokens=2),
        "num_draft_tokens=2 instead",
    ),
    # What is built before: stop conditions, transforms, rules.
    ("eos_ids", lambda: Stop(eos_ids="</s>"), "got '</s>'; takes token ids of 0 and above"),
    ("eos_ids", lambda: Stop(eos_ids=-1), r"got \(-1,\); takes token ids of 0 and above"),
    ("eos_ids", lambda: Stop(eos_ids=(1.0,)), r"got \(1.0,\); takes token ids of 0 and above"),
    ("sequences", lambda: Stop(sequences=["."]), "got '.'; takes non-empty sequences of token ids"),
    ("sequences", lambda: Stop(sequences="."), "got '.'; takes token ids"),
    ("sequences", lambda: Stop(sequences=(5, 6)), "got 5; takes non-empty sequences of token ids"),
    ("max_new_tokens", lambda: Stop(max_new_tokens="5"), "got '5'; takes counts of 0 and above"),
    ("min_new_tokens", lambda: Stop(min_new_tokens=1.5), "got 1.5; takes counts of 0 and above"),
    ("temperature", lambda: transforms.temperature("0.8"), "got value='0.8'; takes finite numbers"),
    ("temperature", lambda: transforms.temperature(-1), "got value=-1; takes finite numbers of 0"),
    ("temperature", lambda: transforms.temperature(None), "got value=None; takes finite numbers"),
    ("top_k", lambda: transforms.top_k(2.5), "got k=2.5; takes k of 1 and above"),
    ("top_p", lambda: transforms.top_p(90), "got p=90; takes"),
    (
        "chain",
        lambda: transforms.chain(transforms.top_k),
        "got TopK .* without its settings; takes",
    ),
    ("chain", lambda: transforms.chain([transforms.top_k(2)]), "takes functions of"),
    ("temperature", lambda: transforms.temperature(jnp.float32(-1)), "got value=-1.0; takes"),
    ("top_p", lambda: transforms.top_p(jnp.array([0.9, 95])), r"got p=\[ 0.9 95. \]; takes p from"),
    (
        "banned_sequences.sequences",
        lambda: sample(transform=transforms.banned_sequences([(1, 7)])),
        "got 7; takes ids from 0 to 4, the model's vocabulary",
    ),
    (
        "allowed_tokens.tokens",
        lambda: sample(transform=transforms.chain(transforms.allowed_tokens(jnp.array([1, 5])))),
        "got 5; takes ids from 0 to 4",
    ),
    (
        "forced_first_token.token",
        lambda: sample(transform=transforms.forced_first_token(9)),
        "got 9; takes ids from 0 to 4",
    ),
    (
        "min_length.eos_ids",
        lambda: sample(transform=transforms.min_length(2, eos_ids=9)),
        "got 9; takes ids from 0 to 4",
    ),
    (
        "trie.token",
        lambda: sample(
            transform=transforms.prefix_allowed_tokens(transforms.Trie.from_sequences([(6, 1)]))
        ),
        "got 6; takes ids from 0 to 4",
    ),
    ("logit_bias", lambda: transforms.logit_bias({"a": 1.0}), "got id 'a'; takes token ids of 0"),
    ("allowed_tokens", lambda: transforms.allowed_tokens("yes"), "got 'yes'; takes token ids"),
    ("banned_sequences", lambda: transforms.banned_sequences((5, 6)), "got 5; takes non-empty"),
    (
        "phrases",
        lambda: Constraints(phrases=("house",)),
        "got 'house'; takes non-empty sequences of",
    ),
    ("decay", lambda: Decay("0.1"), "got kappa='0.1'; takes numbers of 0 and above"),
    ("g_n_m_t_penalty|gnmt_penalty", lambda: GNMTPenalty("0.6"), "got alpha='0.6'; takes numbers"),
    ("num_draft_tokens", lambda: Heuristic(max_draft_tokens=0), "got 0; takes"),
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
