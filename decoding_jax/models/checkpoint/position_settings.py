"""The settings of rotary positions and sliding windows, which several families share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.positions import KINDS, RopeScaling, yarn_factor
from decoding_jax.models.view import is_local

SLIDING, FULL = "sliding_attention", "full_attention"

_KINDS = {"default": ""} | {kind: kind for kind in KINDS}
_ORIGINAL, GROWTH = "original_max_position_embeddings", "llama_4_scaling_beta"
# The first four belong to all kinds. Nothing reads "finetuned" of the first YaRN networks.
_COMMON = (
    *("type", "rope_type", "rope_theta", "partial_rotary_factor", "finetuned"),
    *("factor", _ORIGINAL),
)
_YARN = (
    *(*_COMMON, "beta_fast", "beta_slow", "truncate"),
    *("attention_factor", "mscale", "mscale_all_dim", GROWTH, "max_position_embeddings"),
)
_LONGROPE = (*_COMMON, "attention_factor", "short_factor", "long_factor")


def rotary_of(
    settings: Settings, theta: float = 10_000.0, fraction: float | None = None
) -> tuple[float, RopeScaling | None, float]:
    """The base of the rotary frequencies, their scaling, and the rotated fraction of a head.

    Args:
      settings: the settings.
      theta: the base where none is stated.
      fraction: the fraction where none is stated, or None where it has to be 1.
    """
    rope = settings.section("rope_scaling", "rope_parameters")
    if fraction is None:
        rope.refuse(partial_rotary_factor=1.0)
        fraction = 1.0
    stated = settings.get("partial_rotary_factor", float, fraction)
    theta = rope.get("rope_theta", float, settings.get("rope_theta", float, theta))
    fraction = rope.get("partial_rotary_factor", float, stated)
    return theta, scaling_of(rope, settings), fraction


def two_ropes_of(
    settings: Settings, theta: float, local_theta: float, positions: int | None = None
) -> dict[str, Any]:
    """The fields of a network whose layers with a window have other rotary frequencies.

    Args:
      settings: the settings.
      theta: the first base where none is stated.
      local_theta: the other one where none is stated.
      positions: the length of the longest text where none is stated, or None where one has to be.
    """
    ropes = settings.section("rope_parameters")
    for key in ropes.values:
        if key not in (SLIDING, FULL):
            raise settings.error("rope_parameters", key, f"{SLIDING} and {FULL}")
    sliding, scaling = ropes.section(SLIDING), settings.section("rope_scaling")
    full = Settings(settings.path, {**ropes.section(FULL).values, **scaling.values})
    for rope in (sliding, full):
        rope.refuse(partial_rotary_factor=1.0)
    sliding.refuse(rope_type="default")
    base = settings.get("rope_theta", float, theta)
    local_base = settings.get("rope_local_base_freq", float, local_theta)
    found = scaling_of(full, settings)
    return {
        "rope_theta": full.get("rope_theta", float, base),
        "rope_scaling": found,
        "local_rope_theta": sliding.get("rope_theta", float, local_base),
        "max_positions": max_positions_of(settings, found, positions),
    }


def scaling_of(rope: Settings, settings: Settings) -> RopeScaling | None:
    """The scaling of the rotary frequencies in the section of the rotary settings."""
    kind = rope.one_of("rope_type" if "rope_type" in rope.values else "type", _KINDS, "default")
    if not kind:
        return None
    if kind == "dynamic":
        _check_known(rope, kind, _COMMON)
    if kind in ("dynamic", "linear"):
        return RopeScaling(kind, rope.get("factor", float))
    places = (s for s in (settings, rope) if s.values.get(_ORIGINAL) is not None)
    place = next(places, None)
    original = settings.size("max_position_embeddings") if place is None else place.size(_ORIGINAL)
    if kind == "yarn":
        return _yarn(rope, original, settings)
    if kind == "longrope":
        _check_known(rope, kind, _LONGROPE)
        extended = settings.size("max_position_embeddings") / original
        return RopeScaling(
            kind,
            rope.get("factor", float, max(extended, 1.0)),
            original_max_positions=original,
            attention_factor=rope.get("attention_factor", float, None),
            short_factors=_factors(rope, "short_factor"),
            long_factors=_factors(rope, "long_factor"),
        )
    return RopeScaling(
        kind,
        rope.get("factor", float),
        rope.get("low_freq_factor", float),
        rope.get("high_freq_factor", float),
        original,
    )


def _check_known(rope: Settings, kind: str, known: Sequence[str]) -> None:
    """Refuses settings that the kind of scaling does not have."""
    for key, value in rope.values.items():
        if key not in known:
            expected = f"none with {kind}, whose settings are {', '.join(known)}"
            raise rope.error(key, value, expected)


def _factors(rope: Settings, key: str) -> tuple[float, ...]:
    """A list of numbers above 0."""
    values = rope.get(key, list)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise rope.error(key, value, "numbers above 0")
    return tuple(map(float, values))


def _yarn(rope: Settings, original: int, settings: Settings) -> RopeScaling:
    _check_known(rope, "yarn", _YARN)
    rope.refuse(max_position_embeddings=settings.values.get("max_position_embeddings"))
    if rope.values.get("factor") is None:
        factor = settings.size("max_position_embeddings") / original
    else:
        factor = rope.get("factor", float)
    attention = rope.get("attention_factor", float, None)
    weights = [rope.get(key, float, 0.0) for key in ("mscale", "mscale_all_dim")]
    if attention is None and all(weights):
        attention = yarn_factor(factor, weights[0]) / yarn_factor(factor, weights[1])
    return RopeScaling(
        "yarn",
        factor,
        original_max_positions=original,
        beta_fast=rope.get("beta_fast", float, 0.0) or 32.0,
        beta_slow=rope.get("beta_slow", float, 0.0) or 1.0,
        truncate=rope.get("truncate", bool, True),
        attention_factor=attention,
        query_growth=rope.get(GROWTH, float, 0.0),
    )


def max_positions_of(settings: Settings, scaling: RopeScaling | None, absent: Any = None) -> int:
    """The length of the longest text.

    Files with YaRN may state the length before or after the extension. A network with ``longrope``
    takes texts of the length before it.

    Args:
      settings: the settings.
      scaling: the scaling of the rotary frequencies.
      absent: the length where none is stated, or None where one has to be.
    """
    default = {} if absent is None else {"default": absent}
    stated = settings.size("max_position_embeddings", **default)
    if scaling is not None and scaling.kind == "longrope":
        return min(stated, scaling.original_max_positions)
    if scaling is None or scaling.kind != "yarn":
        return stated
    return max(stated, int(scaling.factor * scaling.original_max_positions))


def settings_of_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """The inverse of ``scaling_of``."""
    if scaling is None:
        return None
    rope = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind in ("dynamic", "linear"):
        return rope
    rope[_ORIGINAL] = scaling.original_max_positions
    if scaling.kind == "llama3":
        return rope | {
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
        }
    if scaling.kind == "longrope":
        rope |= {"short_factor": [*scaling.short_factors], "long_factor": [*scaling.long_factors]}
    else:
        rope |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        rope |= {} if scaling.truncate else {"truncate": False}
        rope |= {GROWTH: scaling.query_growth} if scaling.query_growth else {}
    given = scaling.attention_factor
    return rope | ({} if given is None else {"attention_factor": given})


def read_window(
    settings: Settings, window: Any, pattern: Sequence[bool]
) -> tuple[int | None, tuple[bool, ...]]:
    """The window of a network, and which of its layers have it, as short a pattern as says so.

    Args:
      settings: the settings, whose ``layer_types`` have precedence over ``pattern``.
      window: the value of ``sliding_window``, or None where there is no window.
      pattern: whether each layer has the window, without ``layer_types``.

    Raises:
      CheckpointError: for a window that is not a positive integer, or other types of layers.
    """
    if window is not None and (not isinstance(window, int) or window < 1):
        raise settings.error("sliding_window", window, "null, or 1 and above")
    kinds = settings.get("layer_types", list, None)
    if kinds is not None:
        expected = f"{FULL} only" if window is None else f"{SLIDING} or {FULL}"
        for kind in kinds:
            if kind != FULL and (kind != SLIDING or window is None):
                raise settings.error("layer_types", kind, expected)
        if len(kinds) != len(pattern):
            raise settings.error("layer_types", kinds, f"one for each of {len(pattern)} layers")
        pattern = [kind == SLIDING for kind in kinds]
    size = len(pattern)
    period = next(
        p for p in range(1, size + 1) if all(pattern[i] == pattern[i % p] for i in range(size))
    )
    return window, tuple(pattern[:period])


def local_layers(num_layers: int, period: int) -> list[bool]:
    """All layers but the last one of each period."""
    return [(i + 1) % period != 0 for i in range(num_layers)]


def settings_of_rotated_window(config: Any) -> dict[str, Any]:
    """The settings of a network whose layers have positions if they have a window."""
    return {
        "sliding_window": config.window or config.max_positions,
        "layer_types": layer_types(config.rotary_pattern, config.num_layers),
    }


def layer_types(pattern: Sequence[bool], num_layers: int) -> list[str]:
    """The types of the layers of a network with a window."""
    return [SLIDING if is_local(pattern, i) else FULL for i in range(num_layers)]
