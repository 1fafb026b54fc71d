"""Typical mistakes in the sources and the flags of batch jobs raise one line."""

from pathlib import Path

import pytest
from mistake_calls import check, job, named

from decoding_jax import infer

FOLDER = Path(__file__).parent
TABLE = [
    (
        "source",
        lambda: job(source=infer.JsonLines),
        r"expected an object of the class, in gin @infer.JsonLines\(\) .*, got the class JsonLines",
    ),
    (
        "strategy",
        lambda: job(strategy="greedy"),
        "expected a function .*, in gin @decoding_jax.greedy",
    ),
    (
        "path",
        lambda: infer.TextLines(str(FOLDER)),
        "expected a file, or a pattern .*, got the folder '.*'",
    ),
    ("path", lambda: infer.JsonLines(f"{FOLDER}/*.none"), "which matches none; the folder"),
    ("path", lambda: infer.TextLines([]), "expected at least one file, got an empty list"),
    (
        "path",
        lambda: infer.TextLines([__file__, f"{FOLDER}/*.py"]),
        "expected each file once, got '.*' twice",
    ),
    ("path", lambda: infer.TextLines(3), "expected a path, a pattern, or a list of these, got 3"),
    ("with_tokens", lambda: job(with_tokens="true"), "expected True or False, got 'true'"),
    ("refill", lambda: job(refill=0), "expected True or False, got 0"),
]


@pytest.mark.parametrize(("argument", "call", "message"), named(TABLE))
def test_a_mistake_gets_one_line(argument, call, message):
    check(argument, call, message)
