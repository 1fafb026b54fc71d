"""The settings of ``load``."""

import dataclasses

import jax
import pytest
from networks import drawn

import decoding_jax
from decoding_jax.models import GPT2, T5, GPT2Config, T5Config, load_model, save_model, save_t5x
from decoding_jax.text import ByteTokenizer, embedded, load_tokenizer


def test_prompts_run_in_chunks(tmp_path):
    config = GPT2Config(8000, 8, num_heads=2, mlp_dim=8, num_layers=1)
    save_model(drawn(GPT2, config), tmp_path)
    tokenizer = embedded()["translation-en-fr"]
    model, _ = decoding_jax.load(tmp_path, tokenizer=tokenizer, prefill_chunk=3)
    assert model.config.prefill_chunk == 3
    with pytest.raises(
        ValueError, match="prefill_chunk: expected None or a positive integer, got 0"
    ):
        decoding_jax.load(tmp_path, tokenizer=tokenizer, prefill_chunk=0)


def test_the_inputs_of_an_encoder_are_not_cut():
    with pytest.raises(ValueError, match="prefill_chunk: expected None for a T5, because"):
        decoding_jax.load("translation-en-fr", prefill_chunk=3)


def test_the_dtype_may_be_that_of_the_stored_weights(tmp_path):
    config = GPT2Config(300, 8, num_heads=2, mlp_dim=8, num_layers=1)
    model = drawn(GPT2, config)
    for dtype in ("float32", "bfloat16"):
        save_model(model, tmp_path / dtype, dtype=dtype)
        for given, want in (("auto", dtype), ("float32", "float32")):
            loaded = load_model(tmp_path / dtype, dtype=given)
            assert {x.dtype.name for x in jax.tree.leaves(loaded.params)} == {want}
            assert loaded.config.dtype == want


def test_the_dtype_of_a_t5x_checkpoint_may_be_the_stored_one(tmp_path):
    model = drawn(T5, T5Config(40, 8, 2, 4, 8, 1, 1, dtype="float32"))
    for dtype in ("float32", "bfloat16"):
        params = jax.tree.map(lambda x, to=dtype: x.astype(to), model.params)
        save_t5x(dataclasses.replace(model, params=params), tmp_path / dtype)
        loaded = load_model(tmp_path / dtype, dtype="auto")
        assert {x.dtype.name for x in jax.tree.leaves(loaded.params)} == {dtype}


def test_a_tokenizer_of_another_model_is_refused_by_its_size(tmp_path):
    """A network may have more rows than there are tokens, and may lack rows for added tokens."""
    for size in (100, 258, 259, 300):
        config = GPT2Config(size, 8, num_heads=2, mlp_dim=8, num_layers=1)
        save_model(drawn(GPT2, config), tmp_path / str(size))
    tokenizer = ByteTokenizer(extra_ids=20)
    assert (tokenizer.vocab_size, tokenizer.base_vocab_size) == (279, 259)
    tokenizer.library.save(str(tmp_path / "tokenizer.json"))
    for size in (100, 258):
        message = f"tokenizer: .*, of at most {size} tokens besides added ones, got one of 259$"
        with pytest.raises(ValueError, match=message):
            decoding_jax.load(tmp_path / str(size), tokenizer=tmp_path)
    for size in (259, 300):
        model, tokenizer = decoding_jax.load(tmp_path / str(size), tokenizer=tmp_path)
    assert len(decoding_jax.generate(model, tokenizer, ["a"], max_new_tokens=2)) == 1
    tokenizer.library.add_tokens(["<more>"])
    assert tokenizer.vocab_size == 280


def test_a_model_of_the_hub_is_downloaded_and_loaded(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    calls = []

    def snapshot_download(repository, **settings):
        calls.append(
            (repository, settings["revision"], "*.safetensors" in settings["allow_patterns"])
        )
        return str(embedded()["translation-en-fr-draft"])

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    model, tokenizer = decoding_jax.load("hf://someone/draft@v1")
    assert isinstance(model, T5)
    assert tokenizer.decode(load_tokenizer("hf://draft").encode("Good morning!")) == "Good morning!"
    assert calls[:1] == [("someone/draft", "v1", True)]
    assert calls[-1] == ("draft", None, False)
    assert ("draft", None, True) not in calls

    def refuse(repository, **settings):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(
        ValueError, match=r"^directory: got 'hf://a/b', which cannot be downloaded \(no network\)$"
    ):
        decoding_jax.load("hf://a/b")


def test_scanned_layers_on_a_gpu_come_with_a_warning(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.warns(UserWarning, match="scan_layers: .* twice as long on a GPU"):
        decoding_jax.load("translation-en-fr-draft", scan_layers=True)


def test_the_way_of_attention():
    model, _ = decoding_jax.load("translation-en-fr-draft", attention="xla")
    assert model.config.attention == "xla"
    with pytest.raises(ValueError, match="attention: expected 'auto', 'xla' or 'pallas', got"):
        decoding_jax.load("translation-en-fr-draft", attention="flash")
