"""The settings of ``load``."""

import contextlib
import dataclasses
import types

import jax
import pytest
import tokenizers
from networks import drawn

import decoding_jax
from decoding_jax.models import GPT2, T5, GPT2Config, T5Config, load_model, save_model, save_t5x
from decoding_jax.text import ByteTokenizer, embedded, load_tokenizer
from decoding_jax.text.inputs import check_tokenizer


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


# Rows of released networks and their tokens: T5, Pythia 70M and 12B, MPT, Qwen2.5 14B,
# DeepSeek MoE, ByT5 without its sentinels; and pairs of two models.
PADDED = [(32128, 32100), (50304, 50277), (50688, 50277), (50432, 50279)]
PADDED += [(152064, 151665), (102400, 100015), (384, 259)]
FOREIGN = [(50257, 32100), (65024, 50257), (152064, 50257), (256000, 152064), (8192, 259)]


@pytest.mark.parametrize(("rows", "tokens"), PADDED + FOREIGN)
def test_far_fewer_tokens_than_rows_come_with_a_warning(rows, tokens):
    """Unless the tokenizer's own directory has a network of this size."""
    sizes = {"vocab_size": tokens, "base_vocab_size": tokens - 100}
    tokenizer = types.SimpleNamespace(encode=None, decode=None, eos_ids=(1,), **sizes)
    model = types.SimpleNamespace(vocab_size=rows)
    message = f"tokenizer: .* vocabulary of {rows}, got one of {tokens} tokens, which may be that"
    warns = pytest.warns(UserWarning, match=message)
    with warns if (rows, tokens) in FOREIGN else contextlib.nullcontext():
        check_tokenizer(tokenizer, model)
    tokenizer.network_size = rows
    check_tokenizer(tokenizer, model)


def test_a_tokenizer_is_compared_with_that_of_the_directory(tmp_path):
    """Tokens that only one of them has make no difference."""
    words = ["end", "a", "b"]
    folders = {"own": words, "more": [*words, "c"], "end": words, "other": words[::-1]}
    for name, vocabulary in folders.items():
        (tmp_path / name).mkdir()
        numbers = {word: i for i, word in enumerate(vocabulary)}
        model = tokenizers.models.WordLevel(numbers, unk_token="a")
        tokenizers.Tokenizer(model).save(str(tmp_path / name / "tokenizer.json"))
    config = GPT2Config(8, 8, num_heads=2, mlp_dim=8, num_layers=1)
    save_model(drawn(GPT2, config), tmp_path / "own", settings={"eos_token_id": 0})
    (tmp_path / "end" / "config.json").write_text('{"eos_token_id": [2, 7]}')
    for name in ("own", "more"):
        _, tokenizer = decoding_jax.load(tmp_path / "own", tokenizer=tmp_path / name)
        assert (tokenizer.eos_ids, tokenizer.network_size) == ((0,), 8 if name == "own" else None)
    for name, message in (
        ("other", "own, whose id of 'end' is 0, got one with 2, which may be that of another"),
        ("end", r"whose texts end with \[0\], as those of .*, got one with \[2, 7\], which may"),
    ):
        with pytest.warns(UserWarning, match=f"^tokenizer: expected .*{message}"):
            decoding_jax.load(tmp_path / "own", tokenizer=tmp_path / name)


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
