"""A widened network computes what the small one computes, and its directory is read again."""

import pytest

import decoding_jax
from experiments import widened


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["python-code-draft-deep", "translation-en-fr-draft"])
def test_logits_are_those_of_the_small_network(name):
    model, tokenizer = decoding_jax.load(name)
    shape = widened.Shape(width=192, layers=7, features=640)
    wide = widened.widened(model, shape)
    assert wide.config.emb_dim == 192
    assert widened.largest_difference(model, wide, tokenizer, rows=1) < 2e-5


@pytest.mark.release
def test_a_directory_has_the_model_and_its_tokenizer(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(widened.SHAPES, "124M", widened.Shape(128, 7, 512))
    widened.main(["python-code-draft-deep", "124M", "--out", str(tmp_path)])
    assert "in float32\nthe largest difference of a log-probability is " in capsys.readouterr().out
    model, tokenizer = decoding_jax.load(tmp_path)
    assert model.config.num_layers == 7
    small, reference = decoding_jax.load("python-code-draft-deep")
    assert tokenizer.eos_ids == reference.eos_ids
    [[wide]] = decoding_jax.generate(model, tokenizer, ["def f(x):"], max_new_tokens=8)
    [[narrow]] = decoding_jax.generate(small, reference, ["def f(x):"], max_new_tokens=8)
    assert wide.text == narrow.text


def test_a_shape_that_is_too_small_is_named():
    model, _ = decoding_jax.load("python-code")
    with pytest.raises(ValueError, match=r"^shape: expected emb_dim of 192 or more, got 128$"):
        widened.widened(model, widened.Shape(128, 12, 3072))
