"""Models, tokenizers and T5X checkpoints in buckets are those on the disk, and so are faults."""

from pathlib import Path

import jax
import numpy as np
import pytest
from networks import drawn

import decoding_jax
from decoding_jax import text
from decoding_jax.models import (
    T5,
    CheckpointError,
    Llama,
    LlamaConfig,
    T5Config,
    load_model,
    load_t5x,
    save_model,
    save_t5x,
)
from decoding_jax.models.checkpoint.directory import CONFIG, WEIGHTS, Tensors
from decoding_jax.storage import CloudPath
from decoding_jax.text.loading import embedded

MEMORY = CloudPath("memory://models")


@pytest.fixture(scope="module")
def t5():
    shape = {"vocab_size": 384, "emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 12}
    config = T5Config(**shape, num_encoder_layers=1, num_decoder_layers=2)
    return drawn(T5, config)


def same(got, want):
    assert got.config == want.config
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(got.params), want.params)


def copied(directory, to):
    for file in directory.iterdir():
        if file.is_file():
            (to / file.name).write_bytes(file.read_bytes())


@pytest.mark.exhaustive
def test_a_model_and_its_tokenizer(bucket, t5):
    save_model(t5, bucket.path, settings={"eos_token_id": 1})
    model, tokenizer = decoding_jax.load(str(bucket.path))
    same(model, t5)
    assert tokenizer.decode(tokenizer.encode("Ça va ?")) == "Ça va ?"
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    same(load_model(bucket.path, mesh=mesh), t5)


def test_a_tokenizer_of_pieces():
    pieces = embedded()["translation-en-fr"] / "spiece.model"
    (MEMORY / "pieces" / "spiece.model").write_bytes(pieces.read_bytes())
    for path in (MEMORY / "pieces", MEMORY / "pieces" / "spiece.model"):
        tokenizer = text.load_tokenizer(path)
        assert tokenizer.encode("Hello.") == text.load_tokenizer(pieces).encode("Hello.")
    (MEMORY / "broken" / "tokenizer.json").write_bytes(b"{")
    with pytest.raises(text.TokenizerError, match=r"^memory://models/broken/tokenizer.json: not a"):
        text.load_tokenizer(MEMORY / "broken")
    with pytest.raises(text.TokenizerError, match=r"^memory://models/none: no such directory"):
        text.load_tokenizer(MEMORY / "none")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_a_file_are_those_of_the_whole(dtype, t5, tmp_path):
    save_model(t5, tmp_path, dtype=dtype)
    copied(tmp_path, MEMORY / dtype)
    local, remote = Tensors(tmp_path), Tensors(MEMORY / dtype)
    for name in local._file_of:
        shape = local.shape(name)
        assert remote.shape(name) == shape
        parts = [tuple(slice(0, n) for n in shape), tuple(slice(n // 2, n) for n in shape)]
        parts += [(slice(1, 3), *[slice(0, 2)] * (len(shape) - 1))]
        for part in parts:
            got, want = remote.slices(name, shape)[part], local.slices(name, shape)[part]
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:5],
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"[" + data[9:],
    ],
)
def test_a_file_that_is_not_whole_is_one_line(spoil, t5):
    folder = MEMORY / "spoiled"
    save_model(t5, folder)
    (folder / WEIGHTS).write_bytes(spoil((folder / WEIGHTS).read_bytes()))
    with pytest.raises(CheckpointError, match=rf"^{folder}/{WEIGHTS}: truncated, or not safetens"):
        load_model(folder)
    (folder / WEIGHTS).remove()
    with pytest.raises(CheckpointError, match=rf"^{folder}: has neither {WEIGHTS} nor"):
        load_model(folder)
    (folder / CONFIG).remove()
    with pytest.raises(CheckpointError, match=f"^{folder}: no such directory$"):
        load_model(folder)


def test_a_llama_with_rows_that_are_transposed():
    shape = {"vocab_size": 12, "emb_dim": 8, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
    model = drawn(Llama, LlamaConfig(**shape, num_kv_heads=1, head_dim=4, max_positions=16))
    save_model(model, MEMORY / "llama")
    same(load_model(MEMORY / "llama"), model)


@pytest.mark.exhaustive
def test_a_t5x_checkpoint(bucket, t5, tmp_path):
    save_t5x(t5, tmp_path, step=7)
    for file in (tmp_path / "checkpoint_7").rglob("*"):
        if file.is_file():
            (bucket.path / file.relative_to(tmp_path)).write_bytes(file.read_bytes())
    same(load_t5x(bucket.path), t5)
    path = save_t5x(t5, bucket.path, step=12)
    assert str(path) == f"{bucket.path}/checkpoint_12"
    same(load_model(bucket.path, mesh=jax.make_mesh((1, 2), ("data", "model"))), t5)
    with pytest.raises(CheckpointError, match="checkpoint_12: is there already"):
        save_t5x(t5, bucket.path, step=12)
    chunk = next(
        p for p in (path / "target.decoder.logits_dense.kernel").iterdir() if p.name != ".zarray"
    )
    chunk.write_bytes(chunk.read_bytes()[:40])
    with pytest.raises(
        CheckpointError, match=r"checkpoint_12.*logits_dense.kernel: cannot be read"
    ):
        load_t5x(bucket.path)


@pytest.mark.exhaustive
def test_an_orbax_checkpoint(gs, t5, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="Orbax is not installed")
    from decoding_jax.models import to_t5x

    tree = {"target": to_t5x(t5)}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint_1" / "state", tree)
    for file in Path(tmp_path).rglob("*"):
        if file.is_file():
            (gs.path / file.relative_to(tmp_path)).write_bytes(file.read_bytes())
    same(load_t5x(gs.path), load_t5x(tmp_path))
