"""The settings of ``load``."""

import jax
import pytest

import decoding_jax
from decoding_jax.models import GPT2, GPT2Config, save_model
from decoding_jax.text.loading import embedded


def test_prompts_run_in_chunks(tmp_path):
    config = GPT2Config(8000, 8, num_heads=2, mlp_dim=8, num_layers=1)
    save_model(GPT2.init(config, jax.random.key(0)), tmp_path)
    tokenizer = embedded()["translation-en-fr"]
    model, _ = decoding_jax.load(tmp_path, tokenizer=tokenizer, prefill_chunk=3)
    assert model.config.prefill_chunk == 3
    with pytest.raises(ValueError, match="prefill_chunk: got 0; takes None or a positive integer"):
        decoding_jax.load(tmp_path, tokenizer=tokenizer, prefill_chunk=0)


def test_the_inputs_of_an_encoder_are_not_cut():
    with pytest.raises(ValueError, match="prefill_chunk: got 3 for a T5; takes None, because"):
        decoding_jax.load("translation-en-fr", prefill_chunk=3)
