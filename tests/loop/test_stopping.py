import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import Stop
from decoding_jax.loop import stopping


def compiled(function, stop, *arrays):
    """The result of a function of stop conditions in one program, in which these are constants."""
    return np.asarray(jax.jit(functools.partial(function, stop))(*arrays))


def test_end_tokens_of_all_rows_and_of_each():
    is_end_token = functools.partial(compiled, stopping.is_end_token)
    token = np.array([[1, 2, 3], [1, 2, 3]], np.int32)
    shared = is_end_token(Stop(eos_ids=(2, 3)), token)
    assert shared.tolist() == [[False, True, True]] * 2
    found = is_end_token(Stop(eos_ids=np.array([[1, -1], [2, 3]], np.int32)), token)
    assert found.tolist() == [[True, False, False], [False, True, True]]
    assert not is_end_token(Stop(), token).any()


def ends(sequences, tokens, length):
    stop = Stop(sequences=sequences)
    return stopping.ends_with_sequence(
        stop, jnp.array([tokens], jnp.int32), jnp.array([length], jnp.int32)
    )[0].tolist()


@pytest.mark.exhaustive
def test_stop_sequences_match_the_tail_of_new_tokens_only():
    tokens = [[5, 6, 7, 0], [6, 7, 0, 0], [7, 0, 0, 0], [0, 0, 0, 0]]
    length = [3, 2, 1, 0]
    assert ends(((6, 7),), tokens, length) == [True, True, False, False]
    assert ends(((5, 6, 7), (7,)), tokens, length) == [True, True, True, False]
    assert ends(((0, 0),), tokens, length) == [False] * 4  # Padding matches nothing.
    assert ends(((1, 5, 6, 7, 8),), tokens, length) == [False] * 4  # Longer than the buffer.


def test_stop_sequences_of_each_row():
    stop = Stop(sequences=np.array([[[-1, 7], [-1, -1]], [[6, 7], [-1, 9]]], np.int32))
    tokens, length = np.array([[[5, 7]], [[5, 7]]], np.int32), np.full((2, 1), 2, np.int32)
    got = compiled(stopping.ends_with_sequence, stop, tokens, length)
    assert got.tolist() == [[True], [False]]


def test_end_tokens_are_banned_until_the_minimum_per_row():
    stop = Stop(eos_ids=(1,), min_new_tokens=(0, 2))
    logits = np.zeros((2, 3, 1, 4), np.float32)
    length = np.array([[0, 1, 2]] * 2, np.int32)[..., None]
    banned = np.isneginf(compiled(stopping.ban_end_tokens, stop, logits, length))
    assert banned[..., 1].tolist() == [[[False]] * 3, [[True], [True], [False]]]
    assert not banned[..., [0, 2, 3]].any()


def test_limits_never_exceed_the_buffers():
    assert stopping.limits(Stop(), 2, 5).tolist() == [5, 5]
    assert stopping.limits(Stop(max_new_tokens=(3, 9)), 2, 5).tolist() == [3, 5]
