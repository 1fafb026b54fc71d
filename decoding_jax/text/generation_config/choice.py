"""The strategy that a ``GenerationConfig`` chooses, and its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax import fields
from decoding_jax.base import Stop, Transform
from decoding_jax.batches import Call, Limits, parse, read_drafter
from decoding_jax.fields import describe
from decoding_jax.models import guided
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.strategies.speculative import Heuristic, ModelDrafter, PromptLookup
from decoding_jax.text.generation_config.config import PARAMETERS, GenerationConfig
from decoding_jax.text.generation_config.processors import one_token, transform_of
from decoding_jax.text.limits import DEFAULT_LENGTH
from decoding_jax.text.warn import warn

DEFAULT_NEW_TOKENS = 20
"""The limit of a call with parameters of ``transformers``, and without a length."""

LENGTHS = {"max_length", "max_new_tokens"}
"""The parameters that limit a text."""

_OF_CALLS = ("max_new_tokens", "stop", "stop_strings", "max_time")
_FOR_SAMPLING = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
_FOR_BEAMS = ("early_stopping", "length_penalty")


class Chooser(NamedTuple):
    """A config that chooses the strategy of a call.

    Attributes:
      config: the parameters, without those of the call.
      path: the file of the model's directory that they are from, or None.
    """

    config: GenerationConfig
    path: str | None = None

    def parameters(self, key: Any, given: Mapping[str, Any]) -> Parameters:
        """The parameters of a call, and its transform.

        Args:
          key: that of the call.
          given: its other arguments, by name; the transform, and parameters. Of the arguments that
            every call has, None is no parameter.

        Raises:
          ValueError: for stop conditions, which a config has itself, a key that is missing, and an
            unknown parameter.
        """
        changes = {k: v for k, v in given.items() if k not in _OF_CALLS or v is not None}
        transform = changes.pop("transform", None)
        if (stop := changes.pop("stop", None)) is not None:
            source = "a GenerationConfig" if self.path is None else self.path
            raise ValueError(
                f"stop: expected None beside parameters of {source}, among which are eos_token_id, "
                "stop_strings, min_new_tokens and max_new_tokens, got "
                f"{'a Stop' if isinstance(stop, Stop) else describe(stop)}; strategy= takes one"
            )
        config = self.config.replace(**changes)
        if self.path is not None and config.do_sample and key is None:
            raise ValueError(
                "key: expected a typed key such as jax.random.key(0), do_sample=False, or a "
                f'strategy such as "greedy", got None, and {self.path} says do_sample'
            )
        default = DEFAULT_NEW_TOKENS if self.path is None else DEFAULT_LENGTH
        return Parameters(config, default, transform)


def chooser_of(
    strategy: Any, config: Any, tokenizer: Any, settings: Mapping[str, Any]
) -> Chooser | None:
    """The config that chooses the strategy of a call; None if the call names one, or nothing does.

    A call with neither strategy nor config has that of the model's directory, which is the
    tokenizer's ``generation_config``. Parameters among the settings need none.

    Raises:
      ValueError: for a strategy and a config, a config of another type, or a file of the directory
        that cannot be followed.
    """
    if config is not None and not isinstance(config, GenerationConfig):
        expected = "a GenerationConfig, such as GenerationConfig.load(directory)"
        raise fields.error("config", expected, config)
    if config is not None and strategy is not None:
        raise ValueError(f"strategy: expected None beside a config, got {describe(strategy)}")
    if strategy is not None:
        return None
    if config is not None:
        return Chooser(config)
    file = getattr(tokenizer, "generation_config", None)
    if file is not None and (of_directory := file.config()) is not None:
        return Chooser(of_directory, file.path)
    return Chooser(GenerationConfig()) if PARAMETERS.keys() & settings.keys() else None


class Parameters(NamedTuple):
    """The parameters of a call, which choose its strategy once the lengths of its texts are known.

    Attributes:
      config: the parameters.
      default: the maximum number of new tokens of a config without one.
      transform: the transform of the call, or None.
    """

    config: GenerationConfig
    default: int
    transform: Transform | None

    @property
    def limits(self) -> Limits:
        """The limits of the call, so far as they do not depend on its texts."""
        return Limits(self.config.max_new_tokens, self.default, self.config.max_time)

    def call(self, model: Any, eos_ids: Sequence[int], lengths: Sequence[int], **own: Any) -> Call:
        """The call that the parameters choose; arguments and errors as of ``choose``."""
        own |= {"transform": self.transform, "default_length": self.default}
        return choose(self.config, model, eos_ids, lengths, **own)


def choose(
    config: GenerationConfig,
    model: Any,
    eos_ids: Sequence[int],
    lengths: Sequence[int],
    *,
    key: Any = None,
    drafter: Any = None,
    transform: Transform | None = None,
    default_length: int = DEFAULT_NEW_TOKENS,
) -> Call:
    """Chooses the strategy of a config by the rules of ``transformers``, and makes the call.

    Args:
      config: the parameters.
      model: the model, from ``load``.
      eos_ids: the tokenizer's end tokens, which hold unless the config has its own.
      lengths: the number of tokens of each text.
      key: the caller's key, or None.
      drafter: the caller's draft model, ``assistant_model`` in ``transformers``, or a pair with its
        tokenizer; or None.
      transform: the caller's own transform, or None.
      default_length: the maximum number of new tokens of a config without one.

    Warns:
      UserWarning: for a parameter that has no effect without sampling or without beams.

    Raises:
      ValueError: in one line, for a parameter that cannot be followed.

    Example:
      >>> chosen = choose(GenerationConfig(num_beams=2), None, (1,), [5]).strategy
      >>> type(chosen).__name__, chosen.beam_size, chosen.max_new_tokens
      ('BeamSearch', 2, 20)
    """
    _refuse(config)
    drafter = read_drafter(drafter, model)
    model = _started(config, model)
    ids = config.eos_token_id
    if ids is not None:
        eos_ids = [int(i) for i in (ids if isinstance(ids, (list, tuple)) else [ids])]
    prompts = [1] * len(lengths) if isinstance(model, EncoderDecoder) else list(lengths)
    limit = _limit(config, prompts, getattr(model, "max_positions", None), default_length)
    least = _least(config, prompts)
    settings: dict[str, Any] = {
        "transform": transform_of(
            config,
            eos_ids=eos_ids,
            prompt_lengths=prompts,
            min_new_tokens=least,
            max_new_tokens=limit,
            user_transform=transform,
        )
    }
    mode = _mode(config, drafter)
    count = config.num_return_sequences
    if mode == "greedy_search":
        strategy = "greedy"
    elif mode == "sample":
        strategy, settings["num_samples"] = "sample", count
    elif mode == "contrastive_search":
        strategy = "contrastive_search"
        settings |= {"penalty_alpha": float(config.penalty_alpha), "top_k": config.top_k}
    elif mode == "assisted_generation":
        strategy = "speculative_sample"
        drafter = _drafter(config, model, drafter)
        settings |= {"num_samples": count, "num_draft_tokens": _draft_length(config)}
        settings["verifier"] = "token" if config.do_sample else "greedy"
    else:
        strategy = _BEAMS[mode]
        settings |= {
            "beam_size": config.num_beams,
            "num_return": count,
            "length_penalty": float(config.length_penalty),
            "early_stopping": config.early_stopping,
        }
        if mode == "group_beam_search":
            settings |= {"num_groups": config.num_beam_groups}
            settings |= {"diversity_penalty": float(config.diversity_penalty)}
        if mode == "constrained_beam_search":
            settings["constraints"] = _constraints(config)
    longest = int(np.max(limit))
    settings["stop"] = Stop(
        eos_ids=tuple(eos_ids), max_new_tokens=limit, strings=config.stop_strings
    )
    settings["max_new_tokens"] = longest
    call = parse(_guided(config, model), strategy, settings, key=key, drafter=drafter)
    named = longest if LENGTHS & config.values.keys() else None
    return dataclasses.replace(call, limits=Limits(named, default_length, config.max_time))


def _started(config: GenerationConfig, model: Any) -> Any:
    """The model with the start token of the config, if it has one."""
    if config.decoder_start_token_id is None:
        return model
    start = one_token(config.decoder_start_token_id)
    if not isinstance(model, EncoderDecoder):
        warn(f"decoder_start_token_id={start}: no effect with a {type(model).__name__}")
        return model
    if not 0 <= start < model.config.vocab_size:
        expected = f"a token id from 0 to {model.config.vocab_size - 1}"
        raise fields.error("decoder_start_token_id", expected, start)
    if start == model.config.start_id:
        return model
    return dataclasses.replace(model, config=dataclasses.replace(model.config, start_id=start))


def _guided(config: GenerationConfig, model: Any) -> Any:
    """The model under the guidance of the config, if it has any.

    Raises:
      ValueError: for an encoder-decoder, and for beams, which add up scores that are not
        log-probabilities in ``transformers``.
    """
    scale = config.guidance_scale
    if scale is None or scale == 1:
        return model
    if isinstance(model, EncoderDecoder):
        got = f"{scale} with a {type(model).__name__}"
        raise ValueError(f"guidance_scale: expected a decoder-only model, got {got}")
    if config.num_beams > 1 or config.mode == "constrained_beam_search":
        raise ValueError(
            "guidance_scale: expected none with beams, whose scores in transformers are then no"
            f' log-probabilities (models.guided and strategy="beam_search" are exact), got {scale}'
        )
    return guided(model, scale)


_BEAMS = {
    "beam_search": "beam_search",
    "beam_sample": "beam_sample",
    "group_beam_search": "diverse_beam_search",
    "constrained_beam_search": "constrained_beam_search",
}


def _refuse(config: GenerationConfig) -> None:
    """Refuses parameters that cannot be followed, and warns of those without effect."""
    for name, value in config.values.items():
        parameter = PARAMETERS[name]
        if parameter.use == "refused" and value not in (parameter.default, *parameter.harmless):
            raise ValueError(f"{name}: expected none, got {describe(value)}: {parameter.note}")
    single, count = config.num_beams == 1, config.num_return_sequences
    if single and config.force_words_ids is None and config.constraints is None:
        if count > 1 and not config.do_sample:
            raise ValueError(
                "num_return_sequences: expected 1 with num_beams=1 and do_sample=False, got "
                f"{count}"
            )
    elif count > config.num_beams:
        raise ValueError(
            f"num_return_sequences: expected 1 to num_beams, which is {config.num_beams}, got "
            f"{count}"
        )
    if config.num_beam_groups > 1 and (
        config.do_sample or config.num_beams % config.num_beam_groups
    ):
        raise ValueError(
            "num_beam_groups: expected a divisor of num_beams, without sampling, got "
            f"{config.num_beam_groups} with num_beams={config.num_beams} and "
            f"do_sample={config.do_sample}"
        )
    _warn(config, _FOR_SAMPLING, "do_sample=False", config.do_sample)
    _warn(config, _FOR_BEAMS, "num_beams=1", not single)
    _warn(config, ("diversity_penalty",), "num_beam_groups=1", config.num_beam_groups > 1)
    contrastive = config.mode == "contrastive_search"
    _warn(config, ("top_k",), "do_sample=False", config.do_sample or contrastive)
    _warn(config, ("penalty_alpha",), "sampling, beams or top_k=1", contrastive)


def _warn(config: GenerationConfig, names: Sequence[str], where: str, used: bool) -> None:
    unused = [name for name in names if config.values.get(name, None) is not None and not used]
    changed = [name for name in unused if config.values[name] != PARAMETERS[name].default]
    if changed:
        listed = ", ".join(f"{name}={describe(config.values[name])}" for name in changed)
        warn(f"{listed}: no effect with {where}")


def _mode(config: GenerationConfig, drafter: Any) -> str:
    """The mode, with the caller's drafter."""
    mode = config.mode
    drafted = config.prompt_lookup_num_tokens is not None or config.assistant_early_exit is not None
    if drafter is not None and drafted:
        raise ValueError(
            "drafter: expected none with prompt_lookup_num_tokens or assistant_early_exit, got a "
            f"{type(drafter).__name__}"
        )
    if drafter is None and not drafted:
        return mode
    if mode not in ("greedy_search", "sample", "assisted_generation"):
        name = "drafter" if drafter is not None else "prompt_lookup_num_tokens"
        raise ValueError(f"{name}: expected greedy decoding or sampling, got one with {mode}")
    return "assisted_generation"


def _drafter(config: GenerationConfig, model: Any, drafter: Any) -> Any:
    if config.prompt_lookup_num_tokens is not None:
        return PromptLookup(config.max_matching_ngram_size or 2)
    if config.assistant_early_exit is None:
        return _confident(config, drafter)
    if not hasattr(model, "early_exit"):
        raise ValueError(
            "assistant_early_exit: expected a model with early_exit, which a "
            f"{type(model).__name__} has not, got {config.assistant_early_exit}"
        )
    return _confident(config, model.early_exit(config.assistant_early_exit))


def _confident(config: GenerationConfig, drafter: Any) -> Any:
    """The drafter, which ends its drafts by the threshold if it is a language model."""
    threshold = config.assistant_confidence_threshold
    if isinstance(drafter, EncoderDecoder) or hasattr(drafter, "prefill"):
        return drafter if threshold == 0 else ModelDrafter(drafter, min_confidence=threshold)
    if "assistant_confidence_threshold" in config.values:
        raise ValueError(
            "assistant_confidence_threshold: expected a language model as the drafter, got "
            f"{threshold} with a {type(drafter).__name__}"
        )
    return drafter


def _draft_length(config: GenerationConfig) -> int | Heuristic:
    if config.prompt_lookup_num_tokens is not None:
        return config.prompt_lookup_num_tokens
    count = config.num_assistant_tokens
    if config.num_assistant_tokens_schedule == "constant":
        return count
    return Heuristic(max_draft_tokens=None, first=count)


def _constraints(config: GenerationConfig) -> Constraints:
    """The constraints: a ``Constraints``, or lists of ids, and lists of alternatives."""
    if config.do_sample or config.num_beam_groups > 1:
        raise ValueError("force_words_ids: expected plain beams, got sampling or groups")
    if config.constraints is not None:
        if not isinstance(config.constraints, Constraints) or config.force_words_ids is not None:
            expected = "a Constraints, without force_words_ids"
            raise fields.error("constraints", expected, config.constraints)
        return config.constraints
    phrases, alternatives = [], []
    for words in config.force_words_ids:
        if words and isinstance(words[0], (list, tuple)):
            alternatives.append(tuple(tuple(word) for word in words))
        else:
            phrases.append(tuple(words))
    return Constraints(tuple(phrases), tuple(alternatives))


def _limit(
    config: GenerationConfig, prompts: Sequence[int], max_positions: int | None, default: int
) -> Any:
    """The maximum number of new tokens: a number, or one for each text."""
    if config.max_new_tokens is not None:
        return config.max_new_tokens
    if config.max_length is None:
        room = [default if max_positions is None else max_positions - n for n in prompts]
        return _shared([max(1, min(default, n)) for n in room] or [default])
    longest = max(prompts, default=0)
    if longest >= config.max_length:
        raise ValueError(
            f"max_length: expected more than the {longest} tokens of the prompt of text "
            f"{list(prompts).index(longest)}, got {config.max_length}"
        )
    return _shared([config.max_length - n for n in prompts] or [config.max_length])


def _least(config: GenerationConfig, prompts: Sequence[int]) -> Any:
    """The minimum number of new tokens: a number, or one for each text."""
    if config.min_new_tokens is not None:
        return config.min_new_tokens
    return _shared([max(config.min_length - n, 0) for n in prompts] or [0])


def _shared(counts: Sequence[int]) -> Any:
    """One number if all are equal, or int32 ``[N]``."""
    if len(set(counts)) == 1:
        return counts[0]
    return np.asarray(counts, np.int32)
