"""Arithmetic codes: exact integer distributions, their inversion, and point sets."""

from decoding_jax.codes.arithmetic import (
    AFTER,
    ORDERS,
    Code,
    by_probability,
    choose,
    is_alone,
    narrow,
    renewed,
    start,
    step,
)
from decoding_jax.codes.cdf import (
    IntegerDistribution,
    block_count,
    block_sums,
    draw,
    draw_weighted,
    integer_distribution,
    invert,
    weighted_distribution,
)
from decoding_jax.codes.point_sets import POINTS, Points, as_points, points

__all__ = [
    "AFTER",
    "ORDERS",
    "POINTS",
    "Code",
    "IntegerDistribution",
    "Points",
    "as_points",
    "block_count",
    "block_sums",
    "by_probability",
    "choose",
    "draw",
    "draw_weighted",
    "integer_distribution",
    "invert",
    "is_alone",
    "narrow",
    "points",
    "renewed",
    "start",
    "step",
    "weighted_distribution",
]
