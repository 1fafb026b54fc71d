"""The errors for arguments that a function does not have, with what to write instead.

They know the names that other libraries use.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from decoding_jax import fields, transforms

F = TypeVar("F", bound=Callable[..., Any])

RENAMED: dict[str, tuple[str, ...]] = {
    "assistant_model": ("drafter",),
    "beam_size": ("num_beams",),
    "beam_width": ("beam_size", "num_beams"),
    "beams": ("beam_size", "num_beams"),
    "draft": ("drafter",),
    "draft_model": ("drafter",),
    "gamma": ("num_draft_tokens",),
    "logprobs": ("with_scores",),
    "max_decode_len": ("max_new_tokens",),
    "max_decode_steps": ("max_new_tokens",),
    "max_len": ("max_new_tokens",),
    "max_length": ("max_new_tokens",),
    "max_tokens": ("max_new_tokens",),
    "n": ("num_samples", "num_return", "num_return_sequences"),
    "num_assistant_tokens": ("num_draft_tokens",),
    "num_beam_groups": ("num_groups",),
    "num_beams": ("beam_size",),
    "num_decodes": ("num_samples", "beam_size", "num_return"),
    "num_return_sequences": ("num_samples", "num_return", "beam_size"),
    "num_speculative_tokens": ("num_draft_tokens",),
    "output_scores": ("with_scores",),
    "num_samples": ("num_return_sequences",),
    "stop_sequences": ("stop_strings",),
    "stop_token_ids": ("eos_token_id",),
    "timeout": ("max_time",),
    "top_logprobs": ("with_scores",),
    "truncation": ("truncate",),
    "width": ("beam_size", "k"),
}
"""Names of arguments in other libraries, and their names here.

Of several names, the error suggests the first one that the call has.
"""

_KEY = "key=jax.random.key(0)"
_END = "stop=Stop(eos_ids=(1,))"
_TEXTS = "stop=Stop(sequences=((5, 6),)) of token ids"
_GRAMMAR = "transform=constraints.grammar(text, tokenizer)"
_SCHEMA = "transform=constraints.json_schema(schema, tokenizer)"
_STORED = 'weights="int8" or "int4" (files of GPTQ and AWQ are read as they are)'
_AXES = 'mesh={{"model": N}} for N devices'
EXPRESSIONS: dict[str, tuple[str, str]] = {
    "allowed_token_ids": ("transform", "transform=transforms.allowed_tokens({value})"),
    "alpha": ("length_penalty", "length_penalty=GNMTPenalty({value})"),
    "attn_implementation": ("attention", 'attention="auto", "xla" or "pallas"'),
    "bad_words_ids": ("transform", "transform=transforms.banned_sequences({value})"),
    "brevity_penalty": ("length_penalty", "length_penalty=GNMTPenalty(0.6)"),
    "decode_rng": ("key", _KEY),
    "device_map": ("mesh", _AXES),
    "eos_id": ("stop", _END),
    "eos_ids": ("stop", _END),
    "eos_token_id": ("stop", _END),
    "epsilon_cutoff": ("transform", "transform=transforms.epsilon({value})"),
    "eta_cutoff": ("transform", "transform=transforms.eta({value})"),
    "force_words_ids": ("constraints", "constraints=Constraints(phrases=((5, 6),))"),
    "forced_bos_token_id": ("transform", "transform=transforms.forced_first_token({value})"),
    "grammar": ("transform", _GRAMMAR),
    "guided_choice": ("transform", "transform=constraints.choice(texts, tokenizer)"),
    "guided_grammar": ("transform", _GRAMMAR),
    "guided_json": ("transform", _SCHEMA),
    "guided_regex": ("transform", "transform=constraints.regex(pattern, tokenizer)"),
    "ignore_eos": ("stop", "stop=Stop(eos_ids=())"),
    "json_schema": ("transform", _SCHEMA),
    "load_in_4bit": ("weights", 'weights="int4"'),
    "load_in_8bit": ("weights", 'weights="int8"'),
    "logits_processor": ("transform", "transform=transforms.chain(...)"),
    "logits_processors": ("transform", "transform=transforms.chain(...)"),
    "min_length": ("stop", "stop=Stop(min_new_tokens={value})"),
    "min_new_tokens": ("stop", "stop=Stop(min_new_tokens={value})"),
    "min_tokens": ("stop", "stop=Stop(min_new_tokens={value})"),
    "no_repeat_ngram_size": ("transform", "transform=transforms.no_repeat_ngram({value})"),
    "phrases": ("constraints", "constraints=Constraints(phrases=((5, 6),))"),
    "prng_key": ("key", _KEY),
    "quantization": ("weights", _STORED),
    "quantization_config": ("weights", _STORED),
    "regex": ("transform", "transform=constraints.regex(pattern, tokenizer)"),
    "response_format": ("transform", _SCHEMA),
    "rng": ("key", _KEY),
    "seed": ("key", "key=jax.random.key({value})"),
    "stop_sequences": ("stop", _TEXTS),
    "stop_strings": ("stop", _TEXTS),
    "stop_token_ids": ("stop", "stop=Stop(eos_ids={value})"),
    "stopping_criteria": ("stop", _TEXTS),
    "structured_outputs": ("transform", _SCHEMA),
    "tensor_parallel_size": ("mesh", 'mesh={{"model": {value}}}'),
    "topk": ("transform", "transform=transforms.top_k({value})"),
    "topp": ("transform", "transform=transforms.top_p({value})"),
    "torch_dtype": ("dtype", 'dtype="bfloat16", "float32" or "auto"'),
    "transforms": ("transform", "transform=transforms.chain(...)"),
    "typical_p": ("transform", "transform=transforms.typical({value})"),
}
"""Settings of other libraries, the argument that replaces each here, and an expression for it.

``{value}`` in an expression is the value that was given.
"""

NOT_TAKEN = {
    "attention_mask": "texts and prompts have lengths of their own, and no padding is read",
    "batch_size": "generate and infer.run have it; stream decodes its texts as one batch",
    "chunk": "stream and stream_text have it, and yield texts as they grow",
    "device": "JAX_PLATFORMS and jax.default_device choose a device, and load(mesh=...) several",
    "do_sample": "sampling is a separate strategy, sample",
    "input_ids": "generate takes texts, and a strategy such as greedy Prompt(tokens, length)",
    "inputs": "generate takes texts, and a strategy such as greedy Prompt(tokens, length)",
    "messages": "a conversation is one of the texts: [messages]",
    "pad_token_id": "texts and prompts have lengths of their own, and no token means padding",
    "progress": "generate has it, and prints a progress bar",
    "prompt_logprobs": "score(model, tokenizer, prompts, continuations) scores given texts",
    "prompts": "they are the texts of generate",
    "revision": "huggingface_hub.snapshot_download(name, revision=...) gives a directory",
    "sampling_params": "each parameter is an argument, such as max_new_tokens, stop_strings and "
    "transform",
    "skip_special_tokens": "texts have no special tokens, and the tokens of a Completion have them",
    "stream": "stream_text(model, tokenizer, texts).print() gives texts as they grow",
    "streamer": "stream_text(...).print() or .to(streamer) gives texts as they grow",
    "tool_choice": "generate has it, beside tools",
    "tools": "generate keeps answers to their calls, and tokenizer.apply_chat_template(messages, "
    "tools=...) makes a prompt with them",
    "trust_remote_code": "no code of a checkpoint is ever run",
}
"""Names of other calls or libraries that nothing here takes, and what to do instead."""

SETTINGS_OF: dict[str, Collection[str]] = {}
"""The names of the arguments of every registered strategy."""


def mistake(
    caller: str,
    parameters: Mapping[str, str | None],
    settings: Mapping[str, Any],
    *,
    also: Iterable[str] = (),
) -> ValueError | None:
    """The error for settings that a strategy does not have or lacks, in one line; None if all fit.

    Args:
      caller: the strategy's name.
      parameters: the names of its arguments, each with what it expects if it is required here, and
        None otherwise.
      settings: the settings by name.
      also: names of settings that the caller takes in addition.
    """
    for setting, value in settings.items():
        if setting not in parameters:
            return ValueError(unknown(caller, list(parameters), setting, value, list(also)))
    for setting, expected in parameters.items():
        if expected is not None and setting not in settings:
            return ValueError(f"{setting}: {caller} expected {expected}, got none")
    return None


def check_function(
    function: Callable[..., Any],
    settings: Mapping[str, Any],
    *,
    given_elsewhere: Iterable[str] | None = (),
    also: Iterable[str] = (),
) -> None:
    """Checks the settings of any function, or of a ``functools.partial`` of one.

    Args:
      function: takes the settings by name.
      settings: the settings by name.
      given_elsewhere: names of arguments that are passed in another way; None for all.
      also: as for ``mistake``.

    Raises:
      ValueError: as ``mistake``, also for a setting that a partial binds.
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
    if (error := mistake(caller, expected, settings, also=also)) is not None:
        raise error


def _expected(function: Any, name: str) -> str:
    strategy = getattr(getattr(function, "func", function), "strategy", None)
    declared = getattr(strategy, "__dataclass_fields__", {})
    return declared[name].metadata.get("expected", "a value") if name in declared else "a value"


def unknown(caller: str, parameters: list[str], setting: str, value: Any, also: list[str]) -> str:
    """What to say of an argument that a function does not have, with the closest one that it has.

    Args:
      caller: the name of the function.
      parameters: the names of its arguments.
      setting, value: the argument.
      also: names that a message may suggest too.
    """
    shown = fields.describe(value)

    def instead(expression: str) -> str:
        return f"{setting}: {caller} expected {expression} instead, got {shown}"

    unexpected = f"{setting}: {caller} expected no such setting, got {shown}"
    taken = [*parameters, *also]
    draws = "key" in parameters or caller not in SETTINGS_OF
    if setting == "key" or (not draws and EXPRESSIONS.get(setting, ("",))[0] == "key"):
        return (
            f"{setting}: {caller} expected no key, since it draws nothing, got {shown}; sample, "
            "which draws, takes key=jax.random.key(0)"
        )
    if setting in NOT_TAKEN and setting not in also:
        return f"{unexpected}: {NOT_TAKEN[setting]}"
    if (expression := equivalent(setting, shown, taken)) is not None:
        return instead(expression)
    owner = EXPRESSIONS.get(setting, (_owner(setting),))[0]
    equivalents = {setting, *RENAMED.get(setting, ()), owner}
    strategies = sorted(s for s, names in SETTINGS_OF.items() if equivalents & set(names))
    if strategies:
        return f"{unexpected}; it belongs to {', '.join(strategies)}"
    known = [p for p in dict.fromkeys(taken) if p not in ("model", "prompt")]
    closest = difflib.get_close_matches(setting, known, 1)
    if closest:
        return instead(f"{closest[0]}={shown}")
    return f"{setting}: {caller} expected {', '.join(known)}, got {shown}"


def equivalent(setting: str, shown: str, taken: Collection[str]) -> str | None:
    """What to write for a setting of another library, or None if this is not known.

    Args:
      setting: its name there.
      shown: the value as it is written.
      taken: the names of the arguments that the call has.

    Example:
      >>> equivalent("n", "4", ["num_samples"]), equivalent("stop_token_ids", "[1]", ["stop"])
      ('num_samples=4', 'stop=Stop(eos_ids=[1])')
    """
    for renamed in RENAMED.get(setting, ()):
        if renamed in taken:
            return f"{renamed}={shown}"
    if setting in EXPRESSIONS:
        owner, expression = EXPRESSIONS[setting]
    else:
        owner = _owner(setting)
        expression = f"transform=transforms.{setting}({{value}})"
    return expression.format(value=shown) if owner in taken else None


def _owner(setting: str) -> str:
    """The argument that takes a transform of this name, or an empty name for no transform."""
    return "transform" if setting in transforms.__all__ and setting.islower() else ""


def in_one_line(function: F) -> F:
    """The function, whose calls with other arguments than it has raise one line.

    Example:
      >>> @in_one_line
      ... def load(directory, *, dtype="float32"):
      ...     return directory
      >>> load("gpt2", torch_dtype="float16")  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ValueError: torch_dtype: load expected dtype="bfloat16", ...
    """
    signature = inspect.signature(function)
    names = list(signature.parameters)
    required = [n for n, p in signature.parameters.items() if p.default is p.empty]
    required = [n for n in required if signature.parameters[n].kind is not _ANY_NAME]
    takes_all = any(p.kind is _ANY_NAME for p in signature.parameters.values())
    name = function.__name__

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for setting, value in kwargs.items() if not takes_all else ():
            if setting not in names:
                raise ValueError(unknown(name, names, setting, value, []))
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            given = ", ".join(map(fields.describe, args))
            expected = f"{name}({', '.join(required)})"
            raise ValueError(f"{name}: expected {expected}, got {name}({given}): {error}") from None
        return function(*args, **kwargs)

    vars(checked).update(__signature__=signature)
    return checked  # type: ignore[return-value]


_ANY_NAME = inspect.Parameter.VAR_KEYWORD
