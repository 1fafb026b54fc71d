"""The errors for settings that a strategy does not have, with what to write instead.

They know the names that other libraries use.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from decoding_jax import fields, transforms

RENAMED: dict[str, tuple[str, ...]] = {
    "assistant_model": ("drafter",),
    "beam_width": ("beam_size",),
    "beams": ("beam_size",),
    "draft": ("drafter",),
    "draft_model": ("drafter",),
    "gamma": ("num_draft_tokens",),
    "max_decode_len": ("max_new_tokens",),
    "max_decode_steps": ("max_new_tokens",),
    "max_len": ("max_new_tokens",),
    "max_length": ("max_new_tokens",),
    "max_tokens": ("max_new_tokens",),
    "n": ("num_samples", "num_return"),
    "num_assistant_tokens": ("num_draft_tokens",),
    "num_beam_groups": ("num_groups",),
    "num_beams": ("beam_size",),
    "num_decodes": ("num_samples", "beam_size", "num_return"),
    "num_return_sequences": ("num_samples", "num_return", "beam_size"),
    "num_speculative_tokens": ("num_draft_tokens",),
    "width": ("beam_size", "k"),
}
"""Names of arguments in other libraries, and their names here.

Of several names, the error suggests the first one that the strategy has.
"""

_KEY = "key=jax.random.key(0)"
_END = "stop=Stop(eos_ids=(1,))"
_TEXTS = "stop=Stop(sequences=((5, 6),)) of token ids"
EXPRESSIONS: dict[str, tuple[str, str]] = {
    "alpha": ("length_penalty", "length_penalty=GNMTPenalty({value})"),
    "bad_words_ids": ("transform", "transform=transforms.banned_sequences({value})"),
    "brevity_penalty": ("length_penalty", "length_penalty=GNMTPenalty(0.6)"),
    "decode_rng": ("key", _KEY),
    "eos_id": ("stop", _END),
    "eos_ids": ("stop", _END),
    "eos_token_id": ("stop", _END),
    "epsilon_cutoff": ("transform", "transform=transforms.epsilon({value})"),
    "eta_cutoff": ("transform", "transform=transforms.eta({value})"),
    "force_words_ids": ("constraints", "constraints=Constraints(phrases=((5, 6),))"),
    "forced_bos_token_id": ("transform", "transform=transforms.forced_first_token({value})"),
    "logits_processor": ("transform", "transform=transforms.chain(...)"),
    "min_length": ("stop", "stop=Stop(min_new_tokens={value})"),
    "min_new_tokens": ("stop", "stop=Stop(min_new_tokens={value})"),
    "no_repeat_ngram_size": ("transform", "transform=transforms.no_repeat_ngram({value})"),
    "phrases": ("constraints", "constraints=Constraints(phrases=((5, 6),))"),
    "prng_key": ("key", _KEY),
    "rng": ("key", _KEY),
    "seed": ("key", "key=jax.random.key({value})"),
    "stop_sequences": ("stop", _TEXTS),
    "stop_strings": ("stop", _TEXTS),
    "stopping_criteria": ("stop", _TEXTS),
    "topk": ("transform", "transform=transforms.top_k({value})"),
    "topp": ("transform", "transform=transforms.top_p({value})"),
    "transforms": ("transform", "transform=transforms.chain(...)"),
    "typical_p": ("transform", "transform=transforms.typical({value})"),
}
"""Settings of other libraries, the argument that replaces each here, and an expression for it."""

NOT_TAKEN = {
    "attention_mask": "texts and prompts have lengths of their own, and no padding is read",
    "batch_size": "generate and infer.run have it; stream decodes its texts as one batch",
    "chunk": "stream and stream_text have it, and yield texts as they grow",
    "do_sample": "sampling is a separate strategy, sample",
    "progress": "generate has it, and prints a progress bar",
    "streamer": "stream_text(...).print() or .to(streamer) gives texts as they grow",
}
"""Names of other calls or libraries that no strategy takes, and what to do instead."""

SETTINGS_OF: dict[str, Collection[str]] = {}
"""The names of the arguments of every registered strategy."""


def check_names(
    caller: str,
    parameters: Mapping[str, str | None],
    settings: Mapping[str, Any],
    *,
    also: Iterable[str] = (),
) -> None:
    """Checks that a strategy has these settings, and that no required one is missing.

    Args:
      caller: the strategy's name.
      parameters: the names of its arguments, each with what it expects if it is required here, and
        None otherwise.
      settings: the settings by name.
      also: names of settings that the caller takes in addition.

    Raises:
      ValueError: in one line, for a setting that is missing or unknown.
    """
    for setting, value in settings.items():
        if setting not in parameters:
            raise ValueError(_unknown(caller, list(parameters), setting, value, list(also)))
    for setting, expected in parameters.items():
        if expected is not None and setting not in settings:
            raise ValueError(f"{setting}: {caller} expected {expected}, got none")


def check_function(
    function: Callable[..., Any],
    settings: Mapping[str, Any],
    *,
    given_elsewhere: Iterable[str] | None = (),
    also: Iterable[str] = (),
) -> None:
    """As ``check_names``, for any function, or a ``functools.partial`` of one.

    Args:
      function: takes the settings by name.
      settings: the settings by name.
      given_elsewhere: names of arguments that are passed in another way; None for all.
      also: as for ``check_names``.

    Raises:
      ValueError: as ``check_names``, also for a setting that a partial binds.
    """
    if isinstance(function, functools.partial):
        check_function(function.func, function.keywords, given_elsewhere=None)
    parameters = inspect.signature(function).parameters
    elsewhere = set(parameters if given_elsewhere is None else given_elsewhere)
    expected: dict[str, str | None] = {}
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            expected |= dict.fromkeys(settings)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            required = parameter.default is parameter.empty and name not in elsewhere
            expected[name] = _expected(function, name) if required else None
    caller = getattr(getattr(function, "func", function), "__name__", "the strategy")
    check_names(caller, expected, settings, also=also)


def _expected(function: Any, name: str) -> str:
    strategy = getattr(getattr(function, "func", function), "strategy", None)
    declared = getattr(strategy, "__dataclass_fields__", {})
    return declared[name].metadata.get("expected", "a value") if name in declared else "a value"


def _unknown(caller: str, parameters: list[str], setting: str, value: Any, also: list[str]) -> str:
    """The error for a setting that a strategy does not have, with the closest one that it has."""
    shown = fields.describe(value)

    def instead(expression: str) -> str:
        return f"{setting}: {caller} expected {expression} instead, got {shown}"

    unexpected = f"{setting}: {caller} expected no such setting, got {shown}"
    if setting == "key":
        return f"key: {caller} expected no key, since it draws nothing, got {shown}"
    if setting in NOT_TAKEN and setting not in also:
        return f"{unexpected}: {NOT_TAKEN[setting]}"
    for renamed in RENAMED.get(setting, ()):
        if renamed in parameters:
            return instead(f"{renamed}={shown}")
    owner, expression = EXPRESSIONS.get(setting, ("transform", ""))
    if not expression and setting in transforms.__all__ and setting.islower():
        expression = f"transform=transforms.{setting}({{value}})"
    if expression and owner in parameters:
        return instead(expression.format(value=shown))
    equivalents = {setting, *RENAMED.get(setting, ()), *((owner,) if expression else ())}
    strategies = sorted(s for s, names in SETTINGS_OF.items() if equivalents & set(names))
    if strategies:
        return f"{unexpected}; it belongs to {', '.join(strategies)}"
    known = [p for p in [*parameters, *also] if p not in ("model", "prompt")]
    closest = difflib.get_close_matches(setting, known, 1)
    if closest:
        return instead(f"{closest[0]}={shown}")
    return f"{setting}: {caller} expected {', '.join(known)}, got {shown}"
