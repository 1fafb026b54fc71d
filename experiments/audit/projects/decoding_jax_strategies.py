"""decoding_jax: strategies on a table."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import Case, draft_table, length, letters, main, settings, table, vocab_size

import decoding_jax
from decoding_jax import constraints, transforms
from decoding_jax.testing import TableLM
from decoding_jax.text import TokenTexts
from decoding_jax.text.token_texts import concatenated


def model(rows: np.ndarray) -> TableLM:
    size = len(rows)
    every = jnp.broadcast_to(jnp.asarray(rows), (11, size + 1, size, size))
    return TableLM(every, jnp.zeros((11, size, 1)))


def transform(case: Case, rows: int) -> transforms.Chain:
    """All transforms, most of which do nothing in a case, so that cases share a program."""
    defaults = {"temperature": 1.0, "top_k": vocab_size(case), "top_p": 1.0, "min_p": 0.0}
    given = settings(case, **defaults)
    each = {name: jnp.broadcast_to(jnp.asarray(given[name]), rows) for name in defaults}
    return transforms.chain(*(getattr(transforms, name)(each[name]) for name in defaults))


def arguments(case: Case, samples: int) -> tuple[decoding_jax.Prompt, jax.Array, dict]:
    batch = {"pair": samples, "rows": 2}.get(case["kind"], 1)
    lanes = {"pair": 2}.get(case["kind"], samples)
    prompt = decoding_jax.Prompt(jnp.zeros((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32))
    steps = 2 if case["kind"] == "sequence" else 1
    options = {"num_samples": lanes, "max_new_tokens": steps, "transform": transform(case, batch)}
    return prompt, jax.random.key(case["seed"]), options


def arranged(case: Case, output: decoding_jax.DecodeOutput) -> np.ndarray:
    tokens = np.asarray(output.tokens)
    if case["kind"] == "rows":
        return tokens[:, :, 0].T
    return tokens[:, :, 0] if case["kind"] == "pair" else tokens[0]


def sample(case: Case, samples: int) -> np.ndarray:
    prompt, key, options = arguments(case, samples)
    output = decoding_jax.sample(model(table(case)), prompt, key, **options)
    return arranged(case, output)


def arithmetic(case: Case, samples: int) -> np.ndarray:
    """One of four coordinated samples of each of ``samples`` rows."""
    prompt, key, options = arguments({**case, "kind": "pair"}, samples)
    steps = 2 if case["kind"] == "sequence" else 1
    options |= {"num_samples": 4, "max_new_tokens": steps}
    output = decoding_jax.arithmetic_sample(model(table(case)), prompt, key, **options)
    return np.asarray(output.tokens)[np.arange(samples), np.arange(samples) % 4]


def beams(case: Case, samples: int) -> np.ndarray:
    width, plain = settings(case)["width"], {**case, "kind": "pair", "settings": {}}
    prompt, key, _ = arguments(plain, samples)
    output = decoding_jax.beam_sample(
        model(table(case)), prompt, key, beam_size=width, max_new_tokens=1
    )
    return np.asarray(output.tokens)[:, :, 0]


class Letters:
    """What a schema is compiled with: a letter for each token but the last, which ends a text."""

    def __init__(self, case: Case) -> None:
        self.vocab_size = vocab_size(case)
        self.eos_ids = (self.vocab_size - 1,)
        self._texts = [*letters(case, range(self.vocab_size - 1)), ""]

    def token_texts(self, size: int) -> TokenTexts:
        return concatenated([text.encode() for text in self._texts[:size]])


def language(case: Case) -> transforms.PrefixAllowedTokens:
    if "schema" in case:
        tokenizer: Any = Letters(case)
        return constraints.json_schema(case["schema"], tokenizer)
    texts = [["abc".index(letter) for letter in text] for text in case["texts"]]
    trie = transforms.Trie.from_sequences(texts, eos_ids=vocab_size(case) - 1)
    return transforms.prefix_allowed_tokens(trie)


def of_language(strategy: Any, **options: Any) -> Any:
    """The first text of each of ``samples`` rows: those of one row are not all independent."""

    def sampler(case: Case, samples: int) -> np.ndarray:
        prompt, key, given = arguments({**case, "kind": "pair"}, samples)
        given |= {
            "max_new_tokens": length(case),
            "stop": decoding_jax.Stop(eos_ids=vocab_size(case) - 1),
            **options,
        }
        if strategy is decoding_jax.sample:
            given["transform"] = transforms.chain(language(case), given["transform"])
        else:
            given["language"] = language(case)
        output = strategy(model(table(case)), prompt, key, **given)
        return np.asarray(output.tokens)[np.asarray(output.length)[:, 0] > 0, 0]

    return sampler


def speculative(case: Case, samples: int) -> np.ndarray:
    prompt, key, options = arguments(case, samples)
    target, draft = model(table(case)), model(draft_table(case))
    output = decoding_jax.speculative_sample(
        target, draft, prompt, key, num_draft_tokens=2, **options
    )
    return arranged(case, output)


main(
    {
        "sample": sample,
        "beam_sample": beams,
        "arithmetic_sample": arithmetic,
        "speculative_sample": speculative,
        "sample, masked": of_language(decoding_jax.sample),
        "conditional_sample": of_language(decoding_jax.conditional_sample, max_prefixes=32),
        "arithmetic_sample, language": of_language(decoding_jax.arithmetic_sample, max_texts=8),
    }
)
