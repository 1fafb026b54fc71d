"""T5X checkpoints are written and read, and broken ones raise one line."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from networks import drawn

import decoding_jax
from decoding_jax import sharding
from decoding_jax.models import (
    T5,
    CheckpointError,
    T5Config,
    T5Decoder,
    T5DecoderConfig,
    from_t5x,
    load_model,
    load_t5x,
    quantize,
    save_t5x,
    to_t5x,
)

SMALL = {"vocab_size": 40, "emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 12}
GATED = {"mlp_activations": ("gelu", "linear")}
LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 3}
CONFIGS = {
    "t5_1_0": T5Config(**SMALL, **LAYERS, logits_via_embedding=True),
    "t5_1_1": T5Config(**SMALL, **LAYERS, **GATED),
    "scalable": T5Config(**SMALL, **LAYERS, **GATED, biases_per_layer=True),
    "decoder_only": T5DecoderConfig(**SMALL, **GATED, num_layers=2, logits_via_embedding=True),
}


def random_model(name):
    config = CONFIGS[name]
    kind = T5Decoder if isinstance(config, T5DecoderConfig) else T5
    return drawn(kind, config, seed=1)


def same(got, want):
    assert got.config == want.config
    assert jax.tree.structure(got.params) == jax.tree.structure(want.params)
    jax.tree.map(np.testing.assert_array_equal, got.params, want.params)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("scan_layers", [False, True])
def test_round_trip(name, scan_layers, tmp_path):
    model = random_model(name)
    if scan_layers and name != "scalable":
        with pytest.raises(ValueError, match=r"scan_layers|T5Decoder unscanned"):
            save_t5x(model, tmp_path, scan_layers=True)
        return
    path = save_t5x(model, tmp_path, step=20, scan_layers=scan_layers)
    assert path.name == "checkpoint_20"
    same(load_t5x(path), model)
    (tmp_path / "checkpoint_30.tmp-1").mkdir()
    same(load_model(tmp_path), model)
    with pytest.raises(CheckpointError, match="checkpoint_20: is there already"):
        save_t5x(model, tmp_path, step=20)


@pytest.mark.exhaustive
def test_weights_of_8_bits(tmp_path):
    model = random_model("t5_1_1")
    save_t5x(model, tmp_path)
    expected = quantize(model, "int8")
    same(load_t5x(tmp_path, weights="int8"), expected)
    same(from_t5x(to_t5x(model), weights="int8"), expected)
    on_mesh = load_t5x(tmp_path, weights="int8", mesh=sharding.as_mesh({"data": 4, "model": 2}))
    same(on_mesh, expected)
    assert tuple(on_mesh.params["decoder"]["logits_dense"]["kernel"].scale.sharding.spec) == (
        None,
        "model",
    )


def test_the_tree_of_scanned_layers():
    """As in T5X, layers are the second axis, and heads are a separate axis."""
    model = random_model("scalable")
    tree = to_t5x(model, scan_layers=True)
    decoder = tree["decoder"]["decoder"]
    assert decoder["self_attention"]["query"]["kernel"].shape == (8, 3, 2, 4)
    assert decoder["encoder_decoder_attention"]["out"]["kernel"].shape == (2, 3, 4, 8)
    assert decoder["pre_mlp_layer_norm"]["scale"].shape == (8, 3)
    assert decoder["relpos_bias"]["rel_embedding"].shape == (2, 3, 32)
    assert set(tree["encoder"]) == {"encoder", "encoder_norm"}
    same(from_t5x(tree, mlp_activations=("gelu", "linear")), model)
    first_axis = to_t5x(model, scan_layers=True, scan_axis=0)
    same(from_t5x(first_axis, scan_axis=0), model)


def test_arrays_inside_the_file(tmp_path):
    """The msgpack file may contain small parameters, or folder names from an earlier Orbax."""
    model = random_model("t5_1_1")
    target = jax.tree.map(np.asarray, to_t5x(model))
    contents = {"version": 3, "optimizer": {"state": {"step": 1}, "target": target}}
    (tmp_path / "checkpoint").write_bytes(serialization.to_bytes(contents))
    same(load_t5x(tmp_path), model)

    folder = save_t5x(model, tmp_path)
    names = jax.tree_util.tree_map_with_path(
        lambda path, _: "PLACEHOLDER://target." + ".".join(part.key for part in path), target
    )
    (folder / "checkpoint").write_bytes(serialization.to_bytes({"target": names}))
    same(load_t5x(folder), model)


def test_orbax(tmp_path):
    """T5X writes a directory ``state`` through Orbax."""
    orbax = pytest.importorskip("orbax.checkpoint")
    model = random_model("t5_1_1")
    checkpoint = {"state": {"step": np.int32(1)}, "target": jax.tree.map(np.asarray, model.params)}
    with orbax.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint_5" / "state", checkpoint)
    same(load_model(tmp_path), model)


def test_load_takes_a_tokenizer_from_elsewhere(tmp_path):
    translation, _ = decoding_jax.load("translation-en-fr-draft")
    save_t5x(translation, tmp_path)
    with pytest.raises(ValueError, match="no tokenizer"):
        decoding_jax.load(tmp_path)
    source = decoding_jax.text.embedded()["translation-en-fr-draft"]
    for place in (source, source / "spiece.model"):
        model, tokenizer = decoding_jax.load(tmp_path, tokenizer=place)
        assert tokenizer.encode("Good morning!")[-1] == 1
        assert tokenizer.decode(tokenizer.encode("Good morning!")) == "Good morning!"
    np.testing.assert_array_equal(
        model.params["token_embedder"]["embedding"],
        translation.params["token_embedder"]["embedding"],
    )


def test_a_checkpoint_says_in_one_line_what_is_wrong(tmp_path):
    model = random_model("t5_1_1")
    path = save_t5x(model, tmp_path)

    def faulty(change):
        contents = serialization.msgpack_restore((path / "checkpoint").read_bytes())
        change(contents["optimizer"]["target"])
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(path, broken)
        (broken / "checkpoint").write_bytes(serialization.msgpack_serialize(contents))
        with pytest.raises(CheckpointError) as error:
            load_t5x(broken)
        assert "\n" not in str(error.value)
        return str(error.value)

    with pytest.raises(CheckpointError, match=r"nowhere: no such directory"):
        load_t5x(tmp_path / "nowhere")

    def elsewhere(target):
        target["token_embedder"]["embedding"]["kvstore"]["path"] = "nothing/"

    assert "token_embedder/embedding: cannot be read" in faulty(elsewhere)

    def outside(target):
        target["token_embedder"]["embedding"]["kvstore"]["path"] = "../elsewhere/"

    assert "expected a folder beside checkpoint" in faulty(outside)

    def whole(target):
        array = np.zeros((3, 2), np.int32)
        target["token_embedder"]["embedding"] = array

    assert ", got int32" in faulty(whole)
    (path / "checkpoint").write_bytes(b"\x00 not msgpack")
    with pytest.raises(CheckpointError, match="is no checkpoint of T5X"):
        load_t5x(path)
    (tmp_path / "orbax" / "state").mkdir(parents=True)
    (tmp_path / "orbax" / "state" / "_METADATA").write_text(json.dumps({"tree_metadata": 3}))
    with pytest.raises(CheckpointError, match="is not Orbax's"):
        load_t5x(tmp_path / "orbax")
    with pytest.raises(ValueError, match=r"mlp_activations: expected 2, .*, got "):
        from_t5x(model.params, mlp_activations=("relu",))
    with pytest.raises(ValueError, match="expected those of a T5"):
        from_t5x({"decoder": {"layers_0": {}}, "encoder": jnp.zeros(1)})
