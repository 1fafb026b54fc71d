"""``GenerationConfig``: parameters of ``transformers`` (5.x), their effects here, and files."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from decoding_jax import fields
from decoding_jax.loop.inputs import check_max_new_tokens
from decoding_jax.storage import StoragePath, model_path, storage_path
from decoding_jax.suggestions import NOT_TAKEN, equivalent
from decoding_jax.text.warn import warn

FILE = "generation_config.json"


class Parameter(NamedTuple):
    """One parameter.

    Attributes:
      use: ``"used"``, ``"no effect"`` if it changes no token here, or ``"refused"``.
      note: its effect, or the reason why it is refused.
      default: the value that it has unless it is set.
      harmless: the values beside the default that ask for nothing.
    """

    use: str
    note: str
    default: Any = None
    harmless: tuple[Any, ...] = ()


def _used(note: str, default: Any = None) -> Parameter:
    return Parameter("used", note, default)


def _no_effect(note: str, default: Any = None) -> Parameter:
    return Parameter("no effect", note, default)


def _refused(note: str, default: Any = None, *harmless: Any) -> Parameter:
    return Parameter("refused", note, default, harmless)


_CACHE = "the cache always has a slot for each new token, see model_methods.md"
_OUTPUT = "a `Completion` has log-probability and score, and scores of tokens by `with_scores`"

PARAMETERS: dict[str, Parameter] = {  # docs/generation_config.md shows this table.
    # Length
    "max_length": _used("limits prompt and new tokens together, by each text's own length"),
    "max_new_tokens": _used("limits the new tokens; without both, 20 new tokens"),
    "min_length": _used("bans end tokens below this length, the prompt included", 0),
    "min_new_tokens": _used("bans end tokens below this number of new tokens"),
    "early_stopping": _used("`early_stopping` of beam searches", False),
    "max_time": _used("`max_time`: the seconds after which no further tokens are decoded"),
    "stop_strings": _used("`stop_strings`: a text ends with the token that completes one"),
    # Strategy
    "do_sample": _used("draws instead of taking the best; needs a key", False),
    "num_beams": _used("`beam_size` of beam searches; 1 is none", 1),
    "num_beam_groups": _used("`diverse_beam_search` if above 1", 1),
    "diversity_penalty": _used("`diversity_penalty` of `diverse_beam_search`", 0.0),
    "num_return_sequences": _used("`num_samples`, or `num_return` of a beam search", 1),
    "length_penalty": _used("scores of beams are divided by length to this power", 1.0),
    "force_words_ids": _used("`constrained_beam_search`: phrases, and lists of alternatives"),
    "constraints": _used("a `Constraints`, for `constrained_beam_search`"),
    "penalty_alpha": _used("`contrastive_search` with `top_k`, without sampling and beams"),
    "dola_layers": _refused("`models.layers_contrasted` makes a model that is decoded so"),
    "low_memory": _no_effect("the candidates of contrastive search share one cache"),
    # Logits
    "temperature": _used("`transforms.temperature` where `do_sample`", 1.0),
    "top_k": _used("`transforms.top_k` where `do_sample`; 0 keeps all; see `penalty_alpha`", 50),
    "top_p": _used("`transforms.top_p` where `do_sample`", 1.0),
    "min_p": _used("`transforms.min_p` where `do_sample`"),
    "top_h": _refused("`transforms.top_h` has the bound of the paper, which keeps other tokens"),
    "typical_p": _used("`transforms.typical` where `do_sample`; refused with beams", 1.0),
    "epsilon_cutoff": _used("`transforms.epsilon` where `do_sample`", 0.0),
    "eta_cutoff": _used("`transforms.eta` where `do_sample`", 0.0),
    "repetition_penalty": _used("`transforms.repetition_penalty`, the prompt included", 1.0),
    "encoder_repetition_penalty": _refused("there is no such transform", 1.0, 1),
    "no_repeat_ngram_size": _used("`transforms.no_repeat_ngram`, the prompt included", 0),
    "encoder_no_repeat_ngram_size": _refused("there is no such transform", 0),
    "bad_words_ids": _used("`transforms.banned_sequences`, but not of an end token alone"),
    "renormalize_logits": _used("a softmax after all transforms, which beams' scores show", False),
    "forced_bos_token_id": _used("the first new token, where the prompt is one token"),
    "forced_eos_token_id": _used("the last token of a text of full length"),
    "remove_invalid_values": _refused("NaN is never chosen; infinities are not hidden", False),
    "exponential_decay_length_penalty": _refused("there is no such transform"),
    "suppress_tokens": _used("`transforms.banned_sequences`, of single tokens"),
    "begin_suppress_tokens": _refused("there is no such transform", None, []),
    "sequence_bias": _used("`transforms.logit_bias`; sequences of several tokens are refused"),
    "guidance_scale": Parameter(
        "used", "`models.guided` of a decoder-only model, without beams", None, (1,)
    ),
    "token_healing": _refused("prompts are decoded from as they are", None, False),
    "watermarking_config": _refused(
        "`transforms.tournament_watermark` and `gumbel_watermark` have other keys"
    ),
    # Assisted decoding
    "num_assistant_tokens": _used("`num_draft_tokens`, with a `drafter`", 20),
    "num_assistant_tokens_schedule": _used(
        "`constant`, or `Heuristic` without a largest K", "constant"
    ),
    "prompt_lookup_num_tokens": _used("`speculative_sample` with `PromptLookup`"),
    "max_matching_ngram_size": _used("`size` of `PromptLookup`, by default 2"),
    "assistant_early_exit": _used("`speculative_sample` with the model's first layers"),
    "assistant_confidence_threshold": _used("`min_confidence` of `ModelDrafter`", 0.4),
    "assistant_ensemble_weight": _refused("speculation is exact"),
    "assistant_lookbehind": _refused("target and draft have one tokenizer"),
    "target_lookbehind": _refused("target and draft have one tokenizer"),
    "speculation_type": _refused("`verifier` of `speculative_sample` chooses"),
    "use_mtp": _refused("a `drafter` from `load_drafter` has the model's blocks", None, False),
    "is_assistant": _no_effect("a drafter is passed as `drafter`"),
    # Tokens
    "eos_token_id": _used("the end tokens, one or a list; by default the tokenizer's"),
    "pad_token_id": _no_effect("lengths are carried, and no token means padding"),
    "bos_token_id": _no_effect("every text has a token, which the tokenizer gives"),
    "decoder_start_token_id": _used("the token that the decoder of an encoder-decoder starts from"),
    # Cache and compilation
    "use_cache": _no_effect(_CACHE, True),
    "cache_implementation": _no_effect(_CACHE),
    "cache_config": _no_effect(_CACHE),
    "max_cache_len": _no_effect(_CACHE),
    "prefill_chunk_size": _no_effect("`prefill_chunk` in a model's config does this"),
    "compile_config": _no_effect("every strategy is compiled, see compilation.md"),
    "disable_compile": _no_effect("every strategy is compiled, see compilation.md"),
    "continuous_batching_config": _no_effect("texts are decoded in batches of `batch_size`"),
    # Output
    "output_attentions": _refused(_OUTPUT, None, False),
    "output_hidden_states": _refused(_OUTPUT, None, False),
    "output_scores": _refused(_OUTPUT, False),
    "output_logits": _refused(_OUTPUT, None, False),
    "return_dict_in_generate": _no_effect(_OUTPUT, False),
    # Files
    "transformers_version": _no_effect("the version that wrote the file"),
    "_from_model_config": _no_effect("says where the file comes from"),
}


# What ``load`` gives to the tokenizer and to the model.
_OF_THE_MODEL = ("eos_token_id", "decoder_start_token_id")
# What transformers writes into files beside parameters.
_METADATA = ("_commit_hash", "_original_object_hash")
# The parts of config.json whose generation settings hold where it has none itself.
_SECTIONS = ("decoder", "generator", "text_config")
_ONE_OR_MORE = (
    "max_length",
    "max_new_tokens",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "num_assistant_tokens",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_early_exit",
)
_ZERO_OR_MORE = ("min_length", "min_new_tokens", "no_repeat_ngram_size", "top_k")


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))


def _is_ids(value: Any) -> bool:
    return _is_list(value) and all(_is_id(token) for token in value)


def _is_lists(value: Any) -> bool:
    return _is_list(value) and len(value) > 0 and all(_is_list(words) for words in value)


def _is_id_or_ids(value: Any) -> bool:
    return _is_id(value) or _is_ids(value)


def _is_one(value: Any) -> bool:
    return _is_id(value) or (_is_ids(value) and len(value) == 1)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_part(value: Any) -> bool:
    return _is_finite(value) and 0 <= value <= 1


_SWITCH = ("True or False", lambda value: isinstance(value, bool))
_LISTS = ("lists of token ids, such as [[5, 6], [7]]", _is_lists)
_IDS = ("a token id, or a list of them", _is_id_or_ids)
_ONE = ("one token id", _is_one)
_SCHEDULES = ("constant", "heuristic", "heuristic_transient")
_PART = ("a probability from 0 to 1", _is_part)
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "assistant_confidence_threshold": _PART,
    "bad_words_ids": _LISTS,
    "bos_token_id": _IDS,
    "decoder_start_token_id": _ONE,
    "do_sample": _SWITCH,
    "early_stopping": ('True, False or "never"', lambda value: value in (True, False, "never")),
    "eos_token_id": _IDS,
    "epsilon_cutoff": _PART,
    "eta_cutoff": _PART,
    "force_words_ids": _LISTS,
    "forced_bos_token_id": _ONE,
    "forced_eos_token_id": _ONE,
    "guidance_scale": ("a finite number", _is_finite),
    "min_p": _PART,
    "num_assistant_tokens_schedule": (
        f"one of {', '.join(_SCHEDULES)}",
        lambda value: value in _SCHEDULES,
    ),
    "pad_token_id": _IDS,
    "penalty_alpha": ("a number from 0 to 1", _is_part),
    "renormalize_logits": _SWITCH,
    "sequence_bias": ("biases of sequences of tokens, such as [[[5], 1.5]]", bool),
    "suppress_tokens": ("a list of token ids", _is_ids),
    "temperature": ("a finite number of 0 or more", lambda value: _is_finite(value) and value >= 0),
    "top_p": _PART,
    "typical_p": _PART,
}
"""What the other parameters take, and whether a value is that."""

_OF_CALL = ("key", "transform", "truncate", "with_scores")
"""The arguments of ``generate`` that replace other parameters."""


class GenerationConfig:
    """How to generate, by the parameters and defaults of ``transformers``' ``GenerationConfig``.

    ``generate(..., config=config)`` and ``stream`` choose the strategy from it by the rules of
    ``transformers``. ``docs/generation_config.md`` says what each parameter does here; one that
    cannot be followed is refused when texts are generated.

    An instance does not change. A parameter that is None or not given is not set, and reads as its
    default.

    Args:
      **values: parameters by name.

    Attributes:
      values: the parameters that are set.

    Raises:
      ValueError: in one line, for an unknown parameter or a value of the wrong kind.

    Example:
      >>> config = GenerationConfig(num_beams=4, length_penalty=0.6)
      >>> config.replace(do_sample=True)
      GenerationConfig(num_beams=4, length_penalty=0.6, do_sample=True)
      >>> config.num_beams, config.top_k, config.mode
      (4, 50, 'beam_search')
    """

    values: Mapping[str, Any]

    def __init__(self, **values: Any):
        values = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in values.items()
        }
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in values.items():
            _check(name, value)
        object.__setattr__(self, "values", MappingProxyType(given))

    def __getattr__(self, name: str) -> Any:
        if name not in PARAMETERS:
            raise AttributeError(f"{name}: GenerationConfig has no such parameter")
        return self.values.get(name, PARAMETERS[name].default)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: a GenerationConfig does not change; replace returns another")

    def __repr__(self) -> str:
        return f"GenerationConfig({', '.join(f'{k}={v!r}' for k, v in self.values.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenerationConfig) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return _rebuild, (dict(self.values),)

    def replace(self, **changes: Any) -> GenerationConfig:
        """Returns these parameters with some changed; None makes one unset."""
        return GenerationConfig(**{**self.values, **changes})

    @property
    def mode(self) -> str:
        """The mode of generation in the words of ``transformers``, without an assistant model."""
        if self.constraints is not None or self.force_words_ids is not None:
            return "constrained_beam_search"
        if self.num_beams > 1:
            if self.num_beam_groups > 1:
                return "group_beam_search"
            return "beam_sample" if self.do_sample else "beam_search"
        if self.prompt_lookup_num_tokens is not None or self.assistant_early_exit is not None:
            return "assisted_generation"
        if self.do_sample:
            return "sample"
        contrastive = self.top_k > 1 and self.penalty_alpha is not None and self.penalty_alpha > 0
        return "contrastive_search" if contrastive else "greedy_search"

    @classmethod
    def load(cls, directory: str | StoragePath, name: str = FILE) -> GenerationConfig:
        """Reads all of a file, such as the ``generation_config.json`` of a model directory.

        Args:
          directory: where the file is. A directory may have several, under different names.
          name: the file's name; ``.json`` may be left out.

        Warns:
          UserWarning: for an unknown parameter, which is ignored, as ``transformers`` does.

        Raises:
          ValueError: in one line, for a file that is missing or no JSON object, and for a parameter
            of the wrong kind.
        """
        path = model_path("directory", directory, weights=False) / _file_name(name)
        try:
            return parsed(path.read_text(encoding="utf-8"), path)
        except FileNotFoundError:
            raise ValueError(f"{path}: no such file") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: broken JSON: {error}") from None

    def save(self, directory: str | StoragePath, name: str = FILE) -> None:
        """Writes the parameters that are set, in a form that ``transformers`` reads too.

        Args:
          directory: created if it does not exist.
          name: as for ``load``.

        Raises:
          ValueError: for a parameter that JSON cannot hold, such as a ``Constraints``.
        """
        folder = storage_path("directory", directory)
        path = folder / _file_name(name)
        try:
            text = json.dumps(dict(self.values), indent=2, sort_keys=True)
        except TypeError:
            raise ValueError(f"{path}: a parameter has a value that JSON cannot hold") from None
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{text}\n".encode())


def parsed(text: str, path: Any) -> GenerationConfig:
    """The parameters in the text of a file.

    Warns:
      UserWarning: for an unknown parameter that is not null.

    Raises:
      ValueError: as ``GenerationConfig.load``, in one line that begins with the path.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: broken JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, got a {type(values).__name__}")
    unknown = [k for k, v in values.items() if k not in (*PARAMETERS, *_METADATA) and v is not None]
    if unknown:
        near = (difflib.get_close_matches(name, PARAMETERS, 1, 0.8) for name in unknown)
        pairs = zip(unknown, near, strict=True)
        listed = ", ".join(
            f"{name} ({close[0]} is near)" if close else name for name, close in pairs
        )
        warn(f"{path}: {listed}: unknown to GenerationConfig, and ignored")
    try:
        return GenerationConfig(**{k: v for k, v in values.items() if k in PARAMETERS})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _rebuild(values: dict[str, Any]) -> GenerationConfig:
    return GenerationConfig(**values)


def _file_name(name: str) -> str:
    return name if name.endswith(".json") else f"{name}.json"


def _check(name: str, value: Any) -> None:
    """Checks one parameter by its name.

    Raises:
      ValueError: for an unknown name, or a value of the wrong kind.
    """
    if name in NOT_TAKEN and name not in PARAMETERS:
        shown = fields.describe(value)
        raise ValueError(
            f"{name}: GenerationConfig expected no such parameter, got {shown}: {NOT_TAKEN[name]}"
        )
    if name not in PARAMETERS:
        shown = fields.describe(value)
        if (instead := equivalent(name, shown, [*PARAMETERS, *_OF_CALL])) is not None:
            raise ValueError(f"{name}: GenerationConfig expected {instead} instead, got {shown}")
        close = difflib.get_close_matches(name, PARAMETERS, 1)
        error = fields.error(name, "a parameter of GenerationConfig", value)
        raise ValueError(f"{error}; {close[0]} is near") if close else error
    if value is None:
        return
    if name == "max_new_tokens":
        check_max_new_tokens(name, value)
    elif name in _ONE_OR_MORE:
        _check_int(name, value, 1)
    elif name in _ZERO_OR_MORE:
        _check_int(name, value, 0)
    elif name in _KINDS:
        expected, is_valid = _KINDS[name]
        if not is_valid(value):
            raise fields.error(name, expected, value)


def _check_int(name: str, value: Any, minimum: int) -> None:
    if not isinstance(value, int):
        raise fields.error(name, f"an int of {minimum} or more", value)
    fields.as_count(name, value, minimum)


class DirectoryConfig(NamedTuple):
    """The file as ``load`` has read it; it is parsed when it is used.

    Attributes:
      path: where the file is, for messages.
      text: its contents.
    """

    path: str
    text: str

    def config(self) -> GenerationConfig | None:
        """The parameters, or None if they are those of a call without any.

        End tokens and start tokens do not count, since the tokenizer and the model have them.

        Warns:
          UserWarning: for an unknown parameter, which is ignored, as ``transformers`` does.

        Raises:
          ValueError: in one line, for a file that is broken, or has a parameter of the wrong kind.

        Example:
          >>> DirectoryConfig("gpt2/generation_config.json", '{"num_beams": 4}').config()
          GenerationConfig(num_beams=4)
          >>> DirectoryConfig("gpt2/generation_config.json", '{"eos_token_id": 1}').config()
        """
        try:
            config = parsed(self.text, self.path)
        except ValueError as error:
            raise ValueError(f"{error}; strategy= or config= replaces the file") from None
        chooses = any(_chooses(name, value) for name, value in config.values.items())
        return config if chooses else None

    @classmethod
    def read(cls, directory: StoragePath) -> DirectoryConfig | None:
        """The file of a directory, or the parameters among its ``config.json``, or None.

        Directories of old versions have the parameters there. As in ``transformers``, these hold
        where there is no ``generation_config.json``.
        """
        if (text := _text_of(directory / FILE)) is not None:
            return cls(str(directory / FILE), text)
        path = directory / "config.json"
        values = _settings_of_old_file(_text_of(path))
        return cls(str(path), json.dumps(values)) if values else None


def _text_of(path: StoragePath) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _settings_of_old_file(text: str | None) -> dict[str, Any]:
    """The parameters in the text of a ``config.json`` that choose how to generate."""
    settings = {} if text is None else json.loads(text)
    parts = (settings.get(name) for name in _SECTIONS)
    section = next((part for part in parts if part and isinstance(part, dict)), {})
    if settings.get("force_bos_token_to_be_generated"):  # of the first BARTs
        settings["forced_bos_token_id"] = settings.get("bos_token_id")
    values = {**section, **{k: v for k, v in settings.items() if v is not None}}
    return {k: v for k, v in values.items() if k in PARAMETERS and _chooses(k, v)}


def _chooses(name: str, value: Any) -> bool:
    parameter = PARAMETERS[name]
    changed = value not in (None, parameter.default, *parameter.harmless)
    return changed and parameter.use != "no effect" and name not in _OF_THE_MODEL
