"""Every strategy, verifier, drafter, point set and transform on small tables and networks.

Run as a program, it writes the results to the file that its first argument names.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # as a program
import examples

import decoding_jax
from decoding_jax import (
    Constraints,
    Decay,
    DecodeOutput,
    GNMTPenalty,
    Prompt,
    Stop,
    infer,
    transforms,
)
from decoding_jax.models.gpt2 import GPT2, GPT2Config
from decoding_jax.models.llama import Llama, LlamaConfig
from decoding_jax.models.positions import RopeScaling
from decoding_jax.models.t5 import T5, T5Config
from decoding_jax.strategies.speculative import (
    Bigram,
    Corpus,
    Heuristic,
    Measured,
    NextToken,
    PromptLookup,
    SuffixDrafter,
)
from decoding_jax.testing.table_lm import CHECKSUMS, TableLM

VOCAB, LENGTH = 5, 6

PROMPT = Prompt(np.array([[1, 2, 3, 2], [4, 0, 0, 0]], np.int32), np.array([4, 1], np.int32))
STOP = Stop(
    eos_ids=np.array([[4, -1], [1, 3]], np.int32),
    sequences=((2, 2, 2), (0, 3)),
    min_new_tokens=[3, 2],
    max_new_tokens=[6, 5],
)
TRANSFORM = transforms.chain(
    transforms.temperature(np.array([0.8, 1.3], np.float32)),
    transforms.repetition_penalty(1.2),
    transforms.presence_penalty([0.1, 0.3]),
    transforms.frequency_penalty(0.2),
    transforms.logit_bias({1: 0.5, 3: -0.25}),
    transforms.no_repeat_ngram(4),
    transforms.banned_sequences(((1, 1), (2, 3, 0))),
    transforms.min_length(2, 4),
    transforms.min_p(0.01),
    transforms.epsilon(0.001),
    transforms.eta(0.001),
    transforms.typical(0.99),
    transforms.top_k([4, 5]),
    transforms.top_p(0.98),
)
RULES = transforms.chain(
    transforms.allowed_tokens((0, 1, 2, 3, 4)),
    transforms.forced_first_token([2, -1]),
    transforms.forced_last_token(4, LENGTH),
    transforms.prefix_allowed_tokens(
        transforms.Automaton(np.array([[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]))
    ),
    transforms.logit_bias(np.linspace(-1, 1, VOCAB)),
    transforms.gumbel_watermark(2**40 + 3, context=1),
)
TRIE = transforms.prefix_allowed_tokens(
    transforms.Trie.from_sequences(((2, 1, 3), (2, 2, 0, 1), (0, 3)), eos_ids=(4,))
)


# The transforms of ``examples`` that are in none of these.
USED = {type(part) for part in (*TRANSFORM.transforms, *RULES.transforms, TRIE)}
TRANSFORM = transforms.chain(
    TRANSFORM,
    *(examples.made(name) for name in examples.TRANSFORMS if getattr(transforms, name) not in USED),
)


def table(seed: int = 0) -> TableLM:
    """A random table, which does not depend on the settings of JAX."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 2, (CHECKSUMS, VOCAB + 1, VOCAB, VOCAB)).astype(np.float32)
    return TableLM(logits, draw.normal(0, 1, (CHECKSUMS, VOCAB, 4)).astype(np.float32))


def strategies(model: Any, draft: Any) -> dict[str, Callable[..., DecodeOutput]]:
    """Every strategy as a function of a transform and stop conditions."""
    d, key = decoding_jax, jax.random.key(7)

    def call(function: Any, *args: Any, **options: Any) -> Callable[..., DecodeOutput]:
        return lambda transform=None, stop=STOP: function(
            model, *args, max_new_tokens=LENGTH, transform=transform, stop=stop, **options
        )

    def speculate(drafter: Any, **options: Any) -> Callable[..., DecodeOutput]:
        return call(d.speculative_sample, drafter, PROMPT, key, num_samples=2, **options)

    def call_example(name: str) -> Callable[..., DecodeOutput]:
        arguments = examples.arguments_of(name, draft, PROMPT, key)
        return call(getattr(d, name), *arguments, **examples.STRATEGIES[name])

    return {
        **{name: call_example(name) for name in examples.STRATEGIES},
        "greedy": call(d.greedy, PROMPT),
        "sample": call(d.sample, PROMPT, key, num_samples=3),
        "arithmetic_sample": call(d.arithmetic_sample, PROMPT, key, num_samples=3),
        "beam_search": call(d.beam_search, PROMPT, beam_size=3, length_penalty=0.6),
        "beam_sample": call(d.beam_sample, PROMPT, key, beam_size=3, early_stopping=True),
        "constrained_beam_search": call(
            d.constrained_beam_search,
            PROMPT,
            constraints=Constraints(phrases=((2, 0),), alternatives=(((1,), (3, 3)),)),
            beam_size=3,
            length_penalty=GNMTPenalty(0.6),
        ),
        "contrastive_search": call(d.contrastive_search, PROMPT, penalty_alpha=0.6, top_k=3),
        "diverse_beam_search": call(
            d.diverse_beam_search, PROMPT, beam_size=4, num_groups=2, early_stopping="never"
        ),
        "stochastic_beam_search": call(d.stochastic_beam_search, PROMPT, key, beam_size=3),
        "best_first_search": call(d.best_first_search, PROMPT, budget=9, fallback=True),
        "best_k_search": call(
            d.best_k_search, PROMPT, k=3, budget=12, score="mean", decay=Decay(0.1), branching=3
        ),
        "speculative_sample": speculate(draft, num_draft_tokens=2),
        "speculative_sample, block": speculate(
            draft, num_draft_tokens=Heuristic(max_draft_tokens=3), verifier="block"
        ),
        "speculative_sample, code": speculate(draft, num_draft_tokens=2, verifier="code"),
        "speculative_sample, coded_token": speculate(
            draft, num_draft_tokens=2, verifier="coded_token"
        ),
        "speculative_sample, greedy": call(
            d.speculative_sample,
            PromptLookup(),
            PROMPT,
            None,
            num_draft_tokens=3,
            verifier="greedy",
        ),
        "speculative_sample, gumbel": speculate(
            Bigram(table(2).table[0, 0]),
            num_draft_tokens=Measured(max_draft_tokens=3),
            verifier="gumbel",
        ),
        "speculative_sample, tree": speculate(draft, num_draft_tokens=2, num_drafts=2),
        "speculative_sample, tree by block": speculate(
            draft, num_draft_tokens=2, num_drafts=2, verifier="block"
        ),
        "speculative_sample, dynamic tree": speculate(
            draft, num_draft_tokens=2, num_drafts=2, tree="dynamic", drafts_by_row=2
        ),
        "speculative_sample, suffix": speculate(
            SuffixDrafter(corpus=Corpus.of([[1, 2, 3], [3, 0, 1]])), num_draft_tokens=2
        ),
        "speculative_sample, next token": speculate(
            NextToken(np.array([2, 3, -1, 1, 0], np.int32)), num_draft_tokens=1
        ),
        **{
            f"arithmetic_sample, {points}": call(
                d.arithmetic_sample, PROMPT, key, num_samples=3, points=points
            )
            for points in decoding_jax.codes.POINTS
            if points != "lattice"
        },
    }


CONFIGS: dict[str, Any] = {
    "t5": T5Config(VOCAB, 8, 2, 4, 8, 1, 1, ("gelu", "linear"), num_buckets=8, max_distance=9),
    "gpt2": GPT2Config(VOCAB, 8, num_heads=2, mlp_dim=8, num_layers=1, max_positions=32),
    "llama": LlamaConfig(
        VOCAB,
        8,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        mlp_dim=8,
        num_layers=1,
        max_positions=64,
        rope_scaling=RopeScaling("llama3", 8.0, original_max_positions=32),
        qkv_bias=True,
    ),
}


def network(name: str, seed: int = 0) -> Any:
    """A small random network whose logits are far from uniform. The T5 is bound to inputs."""
    kind = {"t5": T5, "gpt2": GPT2, "llama": Llama}[name]
    draw = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: kind.init(CONFIGS[name], jax.random.key(0)).params)
    params = jax.tree.map(lambda x: draw.normal(0, 0.7, x.shape).astype(np.float32), shapes)
    model = kind(params, CONFIGS[name])
    return model.bind(*PROMPT) if name == "t5" else model


class Digits:
    """A tokenizer whose tokens are digits below 5; 4 is the end token."""

    eos_ids = (4,)

    def encode(self, text: str) -> list[int]:
        return [int(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(str, ids))


def results(names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """What each strategy, a network, ``generate``, ``stream`` and the batch job give, by name.

    Args:
      names: which of them; all if there are none.
    """
    stop, texts = Stop(eos_ids=(4,)), ["1232", "0"]

    def tokens(call: Callable[..., DecodeOutput]) -> np.ndarray:
        return np.asarray(call(stop=stop).tokens)

    def text_of(rows: Any) -> np.ndarray:
        return np.array([c.text for row in rows for c in row])

    def generate() -> np.ndarray:
        options = {"strategy": "sample", "num_samples": 2, "key": jax.random.key(3)}
        return text_of(
            decoding_jax.generate(table(), Digits(), texts, max_new_tokens=LENGTH, **options)
        )

    def stream() -> np.ndarray:
        options = {"strategy": "greedy", "max_new_tokens": LENGTH}
        *_, last = decoding_jax.stream(table(), Digits(), texts, **options)
        return text_of(last)

    calls = {name: call for name, call in strategies(table(), table(1)).items() if "," not in name}
    calls["beam_search, t5"] = strategies(network("t5"), None)["beam_search"]
    makers = {name: functools.partial(tokens, call) for name, call in calls.items()}
    makers |= {"generate": generate, "stream": stream}
    makers["batch job"] = functools.partial(batch_job, texts)
    return {name: make() for name, make in makers.items() if not names or name in names}


def batch_job(texts: list[str]) -> np.ndarray:
    """The texts that the batch job records for each input, decoded greedily."""
    records: list[dict[str, Any]] = []
    strategy = functools.partial(decoding_jax.greedy, max_new_tokens=LENGTH)
    infer.run(
        (table(), Digits()),
        [infer.Item(text) for text in texts],
        strategy,
        report=records.append,
        batch_size=8,
        max_input_length=16,
    )
    return np.array([output["text"] for record in records for output in record["outputs"]])


if __name__ == "__main__":
    np.savez(sys.argv[1], **results(sys.argv[2:]))
