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
        r"got the class JsonLines; takes an object of it, in gin @infer.JsonLines\(\)",
    ),
    (
        "strategy",
        lambda: job(strategy="greedy"),
        "takes a function .*, in gin @decoding_jax.greedy",
    ),
    ("path", lambda: infer.TextLines(str(FOLDER)), "got the folder '.*'; takes a file, or a pat"),
    ("path", lambda: infer.JsonLines(f"{FOLDER}/*.none"), "which matches no file; the folder"),
    ("path", lambda: infer.TextLines([]), "got an empty list; takes at least one file"),
    ("path", lambda: infer.TextLines([__file__, f"{FOLDER}/*.py"]), "got '.*' twice; takes each"),
    ("path", lambda: infer.TextLines(3), "got 3; takes a path, a pattern, or a list of these"),
    ("with_tokens", lambda: job(with_tokens="true"), "expected True or False, got 'true'"),
    ("refill", lambda: job(refill=0), "expected True or False, got 0"),
]


@pytest.mark.parametrize(("argument", "call", "message"), named(TABLE))
def test_a_mistake_gets_one_line(argument, call, message):
    check(argument, call, message)
