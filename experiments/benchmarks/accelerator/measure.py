"""The time of a step of this library, of its prefill and of its compilation."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax import Prompt, Stop, registry
from decoding_jax.models import Llama, quantize
from experiments.benchmarks.accelerator import models
from experiments.benchmarks.accelerator.settings import NARROW, OWN, SMALL, Setting
from experiments.benchmarks.timing import interleaved

NUM_DRAFT_TOKENS = 4
SMALL_LAYERS = {"1B": 2, "8B": 2, "tiny": 1}
"""The layers of the small draft: the first ones of the model itself."""
LANES = {"sample": "num_samples", "arithmetic_sample": "num_samples", "beam_search": "beam_size"}
CONTRASTIVE = {"penalty_alpha": 0.6, "top_k": 4}


def measure(setting: Setting) -> dict[str, Any]:
    """The seconds of a setting and the bytes of its floor, as JSON takes them.

    ``step_s`` is the seconds of a step, or of a block of speculation: the difference between a
    decode of all tokens and one of the first alone, by one program, over the number of steps.
    ``first_s`` is those of the first token, with the prefill. ``floor_bytes`` are those of the
    weights that a step needs and of the keys and values in use, each read once.
    """
    model = models.random_model(setting.model, setting.weights)
    draft = draft_of(setting, model)
    call = _call(setting, model, draft)
    began = time.perf_counter()
    call(1)
    first = time.perf_counter() - began
    row: dict[str, Any] = {**timed(lambda: call(1), lambda: call(setting.new_tokens))}
    row["compile_s"] = first - row["first_s"]
    row["prefill_operations"] = models.prefill_operations(
        model.config, setting.rows, setting.prompt_length
    )
    if draft is not None:
        return row | _speculation(setting, model, draft, row.pop("rest_s"), call)
    row["step_s"] = row.pop("rest_s") / (setting.new_tokens - 1)
    return row | {"floor_bytes": floor(setting, model)}


def timed(first: Callable[[], object], all_tokens: Callable[[], object]) -> dict[str, float]:
    """The median seconds of the first token and of the rest, by runs in turns.

    Args:
      first: decodes the first token.
      all_tokens: decodes it and the rest, and has run before if it has to compile.
    """
    began = time.perf_counter()
    all_tokens()
    repeats = 7 if time.perf_counter() - began < 2 else 3
    seconds = interleaved({"first": first, "all": all_tokens}, repeats)
    pairs = zip(seconds["first"], seconds["all"], strict=True)
    rest = statistics.median(b - a for a, b in pairs)
    return {"first_s": statistics.median(seconds["first"]), "rest_s": rest}


def floor(setting: Setting, model: Llama) -> int:
    """The bytes that a call of a model has to read: weights, and keys and values half way."""
    tokens = setting.prompt_length + setting.lanes * setting.new_tokens // 2
    cache = setting.rows * tokens * models.token_bytes(model.config)
    return models.weight_bytes(model) + cache


def prompts(setting: Setting, vocab_size: int) -> Prompt:
    """Prompts of random tokens."""
    shape = (setting.rows, setting.prompt_length)
    tokens = jax.random.randint(jax.random.key(1), shape, 0, vocab_size, jnp.int32)
    return Prompt(tokens, jnp.full(setting.rows, setting.prompt_length, jnp.int32))


def _call(setting: Setting, model: Llama, draft: Llama | None) -> Callable[[int], Any]:
    """Decodes a number of tokens of every row, by one program for all numbers."""
    name = setting.strategy.partition(",")[0]
    entry = registry.STRATEGIES[name]
    given: list[Any] = [model, prompts(setting, model.vocab_size)]
    settings: dict[str, Any] = {}
    if entry.drafts:
        given.insert(1, draft)
        settings["num_draft_tokens"] = NUM_DRAFT_TOKENS
    if entry.draws:
        given.append(jax.random.key(2))
    if name in LANES:
        settings[LANES[name]] = setting.lanes
    if name == "contrastive_search":
        settings |= CONTRASTIVE

    def call(count: int) -> Any:
        stop = Stop(eos_ids=(), max_new_tokens=jnp.int32(count))
        output = entry.function(*given, max_new_tokens=setting.new_tokens, stop=stop, **settings)
        return jax.block_until_ready(output)

    return call


def draft_of(setting: Setting, model: Llama) -> Llama | None:
    """The draft of speculation: the model itself, its first layers, or its form in 8 bits."""
    drafts: dict[str, Callable[[], Llama]] = {
        OWN: lambda: model,
        SMALL: lambda: model.early_exit(SMALL_LAYERS[setting.model]),
        NARROW: lambda: quantize(model, "int8"),
    }
    return drafts[setting.strategy]() if setting.strategy in drafts else None


def _speculation(
    setting: Setting, model: Llama, draft: Llama, seconds: float, call: Callable[[int], Any]
) -> dict[str, Any]:
    """The figures of a block, beside those of its parts: K calls of the draft, one of the model."""
    info = jax.device_get(call(setting.new_tokens).info)
    blocks = int(info.target_calls)
    parts = NUM_DRAFT_TOKENS * _fed(setting, draft, 1) + _fed(setting, model, NUM_DRAFT_TOKENS + 1)
    return {
        "step_s": seconds / blocks,
        "parts_s": parts,
        "tokens_a_block": float(info.tokens_per_iteration),
        "floor_bytes": floor(setting, model) + NUM_DRAFT_TOKENS * floor(setting, draft),
    }


def _fed(setting: Setting, model: Llama, tokens: int) -> float:
    """Seconds of a call of a model with some tokens, without choosing any."""
    prompt, count = prompts(setting, model.vocab_size), setting.new_tokens // 2

    def run(count: int) -> Any:
        slots = setting.new_tokens + tokens
        return jax.block_until_ready(_feed(model, prompt, jnp.int32(count), tokens, slots))

    return timed(lambda: run(0), lambda: run(count))["rest_s"] / count


@functools.partial(jax.jit, static_argnums=(3, 4))
def _feed(model: Llama, prompt: Prompt, count: Any, tokens: int, slots: int) -> Any:
    batch = prompt.length.shape[0]
    _, cache = model.prefill(*prompt, lanes=1, slots=slots)

    def step(i: Any, carry: Any) -> Any:
        cache, fed = carry
        output, cache = model.extend(cache, fed, jnp.full((batch, 1), i, jnp.int32))
        return cache, output.logits.argmax(-1).astype(jnp.int32)

    return jax.lax.fori_loop(0, count, step, (cache, jnp.ones((batch, 1, tokens), jnp.int32)))[1]
