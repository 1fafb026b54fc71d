"""Arithmetic codes: exact integer distributions, their inversion, and point sets."""

from decoding_jax.codes.arithmetic import Code, choose, is_alone, start, step
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
from decoding_jax.codes.point_sets import POINTS, Points, points

__all__ = [
    "POINTS",
    "Code",
    "IntegerDistribution",
    "Points",
    "block_count",
    "block_sums",
    "choose",
    "draw",
    "draw_weighted",
    "integer_distribution",
    "invert",
    "is_alone",
    "points",
    "start",
    "step",
    "weighted_distribution",
]
