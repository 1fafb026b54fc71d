"""Arithmetic codes: exact integer laws, their inversion, and point sets."""

from decoding_jax.codes.arithmetic import Code, choose, is_alone, start, step
from decoding_jax.codes.cdf import (
    IntegerLaw,
    block_count,
    block_sums,
    draw,
    draw_weighted,
    integer_law,
    invert,
    weighted_law,
)
from decoding_jax.codes.point_sets import POINTS, Points, points

__all__ = [
    "POINTS",
    "Code",
    "IntegerLaw",
    "Points",
    "block_count",
    "block_sums",
    "choose",
    "draw",
    "draw_weighted",
    "integer_law",
    "invert",
    "is_alone",
    "points",
    "start",
    "step",
    "weighted_law",
]
