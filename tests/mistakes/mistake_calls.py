"""Calls with one mistake each, and helpers that check the error of each."""

import functools

import jax
import jax.numpy as jnp
import pytest
from networks import drawn

import decoding_jax
from decoding_jax import (
    Prompt,
    infer,
)
from decoding_jax.models import T5, Llama, LlamaConfig, T5Config
from decoding_jax.t5x import decode_fns
from decoding_jax.testing import TableLM
from decoding_jax.text import ByteTokenizer

KEY = jax.random.key(0)
MODEL = TableLM.random(jax.random.key(0), 5)
PROMPT = Prompt(jnp.array([[1, 2, 3], [4, 0, 0]]), jnp.array([3, 1]))
SMALL = T5Config(50, 16, 2, 8, 32, 1, 1, dtype="float32")
T5_MODEL = drawn(T5, T5Config(259, 16, 2, 8, 32, 1, 1, dtype="float32"))
SHORT = drawn(Llama, LlamaConfig(259, 8, 1, 1, 8, 8, 1, max_positions=16))
TOKENIZER = ByteTokenizer()
PAIR = (T5_MODEL, TOKENIZER)


class HuggingFaceLike:
    """A tokenizer like those of other libraries, without ``eos_ids``."""

    eos_token_id = 1

    def encode(self, text):
        return [5, 1]

    def decode(self, ids):
        return ""


class OfTransformers(HuggingFaceLike):
    name_or_path = "gpt2"


class Table:
    """A table like those of other libraries, which yields the names of its columns."""

    columns = ("text",)

    def __len__(self):
        return 1

    def __iter__(self):
        return iter(self.columns)


class EosAsText(HuggingFaceLike):
    eos_ids = "</s>"


def api(name, *args, model=MODEL, prompt=PROMPT, **settings):
    return getattr(decoding_jax, name)(model, prompt, *args, **{"max_new_tokens": 4, **settings})


def sample(key=KEY, **settings):
    return api("sample", key, **settings)


def beams(name="beam_search", **settings):
    return api(name, **{"beam_size": 2, **settings})


def speculate(drafter=MODEL, **settings):
    given = {"num_draft_tokens": 2, "max_new_tokens": 4, **settings}
    return decoding_jax.speculative_sample(MODEL, drafter, PROMPT, KEY, **given)


def generate(model=T5_MODEL, tokenizer=TOKENIZER, texts=("a",), **settings):
    return decoding_jax.generate(model, tokenizer, texts, **{"max_new_tokens": 4, **settings})


def stream(model=T5_MODEL, texts=("a",), **settings):
    return list(decoding_jax.stream(model, TOKENIZER, texts, **settings))


def job(**settings):
    greedy = functools.partial(decoding_jax.greedy, max_new_tokens=2)
    items = [infer.Item("a")]
    given = {"model": PAIR, "source": items, "strategy": greedy, "report": print, **settings}
    return infer.run(**{"max_input_length": 16, **given})


def t5x(name="beam_search", **settings):
    given = {
        "inputs": jnp.zeros((1, 4), jnp.int32),
        "cache": {},
        "tokens_to_logits": None,
        "eos_id": 1,
        "num_decodes": 2,
        **settings,
    }
    return getattr(decode_fns, name)(**given)


def check(argument, call, message):
    """Checks for one line that names the argument, its value and the accepted values."""
    with pytest.raises(ValueError, match=rf"^({argument}): .*{message}") as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def named(table):
    return [pytest.param(*row, id=f"{i}-{row[0]}") for i, row in enumerate(table)]
