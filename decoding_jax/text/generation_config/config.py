"""``GenerationConfig``: parameters of generation by the names of ``transformers``, in files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from decoding_jax import fields
from decoding_jax.fields import describe
from decoding_jax.loop.strategy import check_max_new_tokens
from decoding_jax.storage import StoragePath, model_path, storage_path
from decoding_jax.suggestions import NOT_TAKEN
from decoding_jax.text.generation_config.parameters import PARAMETERS

FILE = "generation_config.json"

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
_SWITCHES = ("do_sample", "renormalize_logits")
_LISTS = ("bad_words_ids", "force_words_ids")
_IDS = (
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
)
_SCHEDULES = ("constant", "heuristic", "heuristic_transient")


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

        Raises:
          ValueError: in one line, for a file that is missing or no JSON object, and for a parameter
            that is unknown or of the wrong kind.
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

    Raises:
      ValueError: as ``GenerationConfig.load``, in one line that begins with the path.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: broken JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: got a {type(values).__name__}; takes a JSON object")
    try:
        return GenerationConfig(**values)
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
        raise ValueError(
            f"{name}: GenerationConfig expected no such parameter, got {describe(value)}: "
            f"{NOT_TAKEN[name]}"
        )
    if name not in PARAMETERS:
        close = difflib.get_close_matches(name, PARAMETERS, 1)
        hint = f"; {close[0]} is near" if close else ""
        raise ValueError(f"{name}: got {describe(value)}; GenerationConfig has no such one{hint}")
    if value is None:
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name in _ONE_OR_MORE and not (whole and value >= 1):
        check = check_max_new_tokens if name == "max_new_tokens" else fields.as_count
        check(name, value)
    if name in _ZERO_OR_MORE and not (whole and value >= 0):
        raise ValueError(f"{name}: got {describe(value)}; takes an int of 0 or more")
    if name in _SWITCHES and not isinstance(value, bool):
        raise ValueError(f"{name}: got {describe(value)}; takes True or False")
    if name in _LISTS and not (_is_list(value) and all(_is_list(words) for words in value)):
        raise ValueError(
            f"{name}: got {describe(value)}; takes lists of token ids, such as [[5, 6], [7]]"
        )
    if name == "suppress_tokens" and not _is_ids(value):
        raise ValueError(f"{name}: got {describe(value)}; takes a list of token ids")
    if name in _IDS and not (_is_ids(value) or _is_id(value)):
        raise ValueError(f"{name}: got {describe(value)}; takes a token id, or a list of them")
    if name == "penalty_alpha" and not (isinstance(value, (int, float)) and 0 <= value <= 1):
        raise ValueError(f"{name}: got {describe(value)}; takes a number from 0 to 1")
    if name == "assistant_confidence_threshold" and not (
        isinstance(value, (int, float)) and 0 <= value <= 1
    ):
        raise ValueError(f"{name}: got {describe(value)}; takes a probability from 0 to 1")
    if name == "early_stopping" and value not in (True, False, "never"):
        raise ValueError(f'early_stopping: got {describe(value)}; takes True, False or "never"')
    if name == "num_assistant_tokens_schedule" and value not in _SCHEDULES:
        raise ValueError(f"{name}: got {describe(value)}; takes one of {', '.join(_SCHEDULES)}")


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))


def _is_ids(value: Any) -> bool:
    return _is_list(value) and all(_is_id(token) for token in value)
