"""Jobs whose inputs come after a shared text."""

from __future__ import annotations

import functools
import json

import jax
import numpy as np
import pytest
from infer_fakes import LINES, Digits, files_of, records_of

import decoding_jax
from decoding_jax import infer
from decoding_jax.infer.sources import Item
from decoding_jax.models import GPT2, GPT2Config
from decoding_jax.text import share_prefix

PREFIX = "6 1 6 2 6 3 6 4"
CONFIG = GPT2Config(vocab_size=7, emb_dim=16, num_heads=2, mlp_dim=16, num_layers=2)
SAMPLE = functools.partial(decoding_jax.sample, num_samples=2, max_new_tokens=5)


@pytest.fixture(scope="module")
def model():
    shapes = jax.eval_shape(lambda: GPT2.init(CONFIG, jax.random.key(0)).params)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda x: draw.normal(0, 0.3, x.shape).astype("f"), shapes)
    return GPT2(params, CONFIG), Digits()


def decode(model, lines, directory, strategy=SAMPLE, **settings):
    settings = {"max_input_length": 8, "batch_size": 4, "with_tokens": True, **settings}
    infer.run(model, [Item(line) for line in lines], strategy, directory, **settings)
    return files_of(directory)


@pytest.mark.release
def test_a_job_gives_what_whole_inputs_give(model, tmp_path):
    shared = share_prefix(model, PREFIX)
    made = records_of(decode(shared, LINES, tmp_path / "shared", with_token_log_probs=True))
    whole = [PREFIX + " " + line for line in LINES]
    plain = records_of(decode(model, whole, tmp_path / "plain", max_input_length=16))
    for ours, theirs, line in zip(made, plain, LINES, strict=True):
        assert ours["inputs"] == line  # without the prefix
        for x, y in zip(ours["outputs"], theirs["outputs"], strict=True):
            assert (x["tokens"], x["text"]) == (y["tokens"], y["text"])
            assert abs(x["log_prob"] - y["log_prob"]) < 1e-4
            assert abs(sum(x["token_log_probs"]) - x["log_prob"]) < 1e-4


@pytest.mark.release
def test_records_do_not_depend_on_order_or_batches(model, tmp_path):
    shared = share_prefix(model, PREFIX)
    first = decode(shared, LINES, tmp_path / "first")
    again = decode(share_prefix(model, PREFIX), LINES, tmp_path / "first")  # finds it finished
    assert first == again
    assert json.loads(first["job.json"])["group_size"]  # refilled
    assert records_of(decode(shared, LINES, tmp_path / "of_two", batch_size=2, shard_size=2)) == (
        records_of(first)
    )
    greedy = functools.partial(decoding_jax.greedy, max_new_tokens=5)
    orders = LINES, LINES[::-1]
    outputs = [
        {r["inputs"]: r["outputs"] for r in records_of(decode(shared, lines, d, greedy))}
        for lines, d in zip(orders, (tmp_path / "there", tmp_path / "back"), strict=True)
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.release
def test_another_prefix_is_another_job(model, tmp_path):
    decode(share_prefix(model, PREFIX), LINES, tmp_path)
    with pytest.raises(ValueError, match="belongs to another job"):
        decode(share_prefix(model, "6 1 6 2 6 3 6 5"), LINES, tmp_path)
