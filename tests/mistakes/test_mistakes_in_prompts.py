"""Prompts whose padding is on the other side than expected."""

import contextlib

import pytest

from decoding_jax import Prompt
from decoding_jax.loop.inputs import check_prompt_ids


@pytest.mark.parametrize(
    ("tokens", "length", "warns"),
    [
        ([[0, 0, 3, 4], [0, 1, 2, 3]], [2, 3], True),
        ([[3, 4, 0, 0], [1, 2, 3, 0]], [2, 3], False),
        ([[0, 0, 3, 4], [1, 2, 3, 0]], [2, 3], False),  # The second row is padded on the right.
        ([[3, 3, 1, 2]], [4], False),
        ([[0, 4]], [1], False),  # May be either.
        ([[0, 0, 3, 4]], [2], False),  # So may this, which is too little to tell.
        ([[0, 0, 0, 3, 4, 2]], [3], True),
    ],
)
def test_a_prompt_that_is_padded_on_the_left_is_warned_of(tokens, length, warns):
    prompt = Prompt(tokens, length)
    seen = (
        pytest.warns(UserWarning, match=r"^prompt: expected .* on the left with 0, such as row 0, ")
        if warns
        else contextlib.nullcontext()
    )
    with seen:
        check_prompt_ids(prompt, 5)
