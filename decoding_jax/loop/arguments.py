"""Checks of a strategy's arguments before anything is traced: one line for each mistake."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from decoding_jax import fields, transforms
from decoding_jax.loop.token_ids import check_prompt_ids, check_token_ids
from decoding_jax.loop.values import COUNTS, check_value, describe
from decoding_jax.transforms.settings import token_ids_of

F = TypeVar("F", bound=Callable[..., Any])

_SIGNATURES: dict[str, inspect.Signature] = {}
"""The signatures of all strategies that ``checked`` was called with, by name."""

_TAKES = {
    "constraints": "Constraints(phrases=...)",
    "drafter": "a language model or a drafter",
    "key": "a typed key such as jax.random.key(0)",
    "model": "a language model",
    "num_draft_tokens": "an int of 1 or more, Heuristic or Measured",
    "prompt": "Prompt(tokens [B, P], length [B])",
    **dict.fromkeys(COUNTS, "an int of 1 or more"),
}

_RENAMED: dict[str, tuple[str, ...]] = {
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
_EXPRESSIONS: dict[str, tuple[str, str]] = {
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
    "attention_mask": "none: texts and prompts have lengths of their own, and no padding is read",
    "batch_size": "none: generate and infer.run have it; stream decodes its texts as one batch",
    "chunk": "none: stream and stream_text have it, and yield texts as they grow",
    "do_sample": "none: sampling is a separate strategy, sample",
    "progress": "none: generate has it, and prints a progress bar",
    "streamer": "none: stream_text(...).print() or .to(streamer) gives texts as they grow",
}
"""Names of other calls or libraries that no strategy takes, and what to do instead."""


def checked(strategy: F, build: Callable[..., Any] | None = None) -> F:
    """Wraps a strategy so that its arguments are checked before it is called.

    Counts are converted to ints. Attributes of the function, such as ``lower``, are kept.

    Args:
      strategy: takes a model, a prompt and further inputs by position, and its settings by keyword.
      build: as for ``check_settings``.
    """
    signature = inspect.signature(strategy)
    name = strategy.__name__
    _SIGNATURES[name] = signature

    @functools.wraps(strategy)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = check_call(name, signature, args, kwargs, build)
        return strategy(*args, **kwargs)

    return cast(F, wrapper)


def check_call(
    name: str,
    signature: inspect.Signature,
    args: tuple,
    kwargs: dict[str, Any],
    build: Callable[..., Any] | None = None,
) -> tuple[tuple, dict[str, Any]]:
    """Checks the arguments of a call, and returns them with settings converted.

    ``build`` is as for ``check_settings``.

    Raises:
      ValueError: in one line, for an argument that is missing, unknown or invalid.
    """
    inputs = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(inputs):
        extra = describe(args[len(inputs)])
        raise ValueError(
            f"{name}: got {len(args)} arguments without a name, the last of them {extra}; takes "
            f"{', '.join(inputs)}, and its settings by name"
        )
    positional = dict(zip(inputs, args, strict=False))
    for repeated in positional.keys() & kwargs.keys():
        raise ValueError(f"{repeated}: got {describe(kwargs[repeated])} and another; takes one")
    arguments = check_settings(name, signature, {**positional, **kwargs}, build=build)
    check_ids(arguments)
    args = tuple(arguments.pop(input_name) for input_name in positional)
    return args, arguments


def signature_of(strategy: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a strategy, or of a ``functools.partial`` of one.

    Raises:
      ValueError: for a bound setting that the strategy does not have.
    """
    if isinstance(strategy, functools.partial):
        inner = signature_of(strategy.func)
        name = getattr(strategy.func, "__name__", "the strategy")
        check_names(name, inner, strategy.keywords, given_elsewhere=inner.parameters)
    return inspect.signature(strategy)


def check_names(
    name: str,
    signature: inspect.Signature,
    settings: Mapping[str, Any],
    *,
    given_elsewhere: Iterable[str] = (),
    also: Iterable[str] = (),
) -> None:
    """Checks that a strategy has these settings, and that no required setting is missing.

    Args:
      name: the strategy's name.
      signature: the strategy's signature.
      settings: the settings by name.
      given_elsewhere: names of arguments that are passed in another way.
      also: names of settings that the caller takes in addition.

    Raises:
      ValueError: in one line, for a setting that is missing or unknown.
    """
    parameters = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for setting, value in settings.items():
        if setting not in parameters and not takes_any:
            raise ValueError(_unknown(name, list(parameters), setting, value, list(also)))
    given = {*settings, *given_elsewhere}
    for setting, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if required and setting not in given:
            takes = _TAKES.get(setting, "a value")
            raise ValueError(f"{setting}: got none; {name} takes {takes}")


def check_settings(
    name: str,
    signature: inspect.Signature,
    settings: Mapping[str, Any],
    *,
    build: Callable[..., Any] | None = None,
    **names: Iterable[str],
) -> dict[str, Any]:
    """Checks a strategy's settings by name and type, and returns them converted.

    Args:
      name, signature, settings, **names: as for ``check_names``.
      build: a ``Strategy``, whose fields declare what they take; None, or a function of ``Steps``,
        whose settings are checked by name.

    Raises:
      ValueError: in one line, for a setting that is missing, unknown or invalid.
    """
    check_names(name, signature, settings, **names)
    parameters = signature.parameters
    if isinstance(build, type):
        declared = build.__dataclass_fields__  # type: ignore[attr-defined]
        return {
            setting: fields.checked(declared[setting], value)
            if setting in declared
            else check_value(setting, value)
            for setting, value in settings.items()
        }
    return {
        setting: value
        if _is_default_or_literal(parameters.get(setting), value)
        else check_value(setting, value)
        for setting, value in settings.items()
    }


def _is_default_or_literal(parameter: inspect.Parameter | None, value: Any) -> bool:
    """Whether a value is the default None, or a string that the annotation lists."""
    if parameter is None or not isinstance(value, str):
        return parameter is not None and value is None and parameter.default is None
    return f"Literal['{value}']" in str(parameter.annotation).replace('"', "'")


def check_ids(arguments: Mapping[str, Any]) -> None:
    """Checks token ids against the model's vocabulary where they are readable on the host.

    Raises:
      ValueError: for a prompt, an end token, a phrase or a transform with an id outside the
        vocabulary.
    """
    vocab_size = arguments["model"].vocab_size
    check_prompt_ids(arguments["prompt"], vocab_size)
    stop, constraints = arguments.get("stop"), arguments.get("constraints")
    for name, owner in (("stop", stop), ("constraints", constraints)):
        for field in ("eos_ids", "sequences", "phrases", "alternatives"):
            ids = getattr(owner, field, None)
            if ids is not None:
                check_token_ids(f"{name}.{field}", ids, vocab_size)
    check_transform_ids(arguments.get("transform"), vocab_size)


def check_transform_ids(transform: Any, vocab_size: int) -> None:
    """Checks the token ids of a transform where they are readable on the host.

    Raises:
      ValueError: for an id outside the vocabulary.
    """
    for name, ids in token_ids_of(transform):
        check_token_ids(name, ids, vocab_size)


def _unknown(name: str, parameters: list[str], setting: str, value: Any, also: list[str]) -> str:
    """The error for a setting that a strategy does not have, with the closest one that it has."""
    got = f"{setting}: got {describe(value)}; {name} takes"
    if setting == "key":
        return f"{got} none, since it draws nothing"
    if setting in NOT_TAKEN and setting not in also:
        return f"{got} {NOT_TAKEN[setting]}"
    for renamed in _RENAMED.get(setting, ()):
        if renamed in parameters:
            return f"{got} {renamed}={describe(value)} instead"
    owner, expression = _EXPRESSIONS.get(setting, ("transform", ""))
    if not expression and setting in transforms.__all__ and setting.islower():
        expression = f"transform=transforms.{setting}({{value}})"
    if expression and owner in parameters:
        return f"{got} {expression.format(value=describe(value))} instead"
    equivalents = {setting, *_RENAMED.get(setting, ()), *((owner,) if expression else ())}
    strategies = sorted(
        strategy
        for strategy, signature in _SIGNATURES.items()
        if equivalents & set(signature.parameters)
    )
    if strategies:
        return f"{got} no such setting, which belongs to {', '.join(strategies)}"
    known = [p for p in [*parameters, *also] if p not in ("model", "prompt")]
    closest = difflib.get_close_matches(setting, known, 1)
    if closest:
        return f"{got} {closest[0]}={describe(value)} instead"
    return f"{got} {', '.join(known)}"
