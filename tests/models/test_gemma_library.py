"""Checkpoints of the library gemma, written by Orbax, beside directories with the same tensors.

The conversion is written once more here, the other way round.
"""

import json
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiers
from examples import FAMILIES
from flax import traverse_util
from safetensors.numpy import save_file

import decoding_jax
from decoding_jax.models import CheckpointError, load_model
from decoding_jax.models.checkpoint import gemma_library
from decoding_jax.models.checkpoint.families import FAMILIES as FAMILY
from decoding_jax.models.checkpoint.stored_arrays import StoredArray

V, D, H, HEAD, F = 40, 16, 4, 6, 24
LAYERS, KINDS = 5, 2  # the kinds of attention come in turns
NORMS = {
    "pre_attention_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_ffw_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn/_query_norm": "self_attn.q_norm",
    "attn/_key_norm": "self_attn.k_norm",
}
FIRST = {"pre_attention_norm": "input_layernorm", "pre_ffw_norm": "post_attention_layernorm"}
# By family: its norms, the number of heads of keys, and whether the gates are transposed.
CASES = {
    "gemma": (FIRST, 4, False),
    "gemma2": (dict(list(NORMS.items())[:4]), 2, False),
    "gemma3": (NORMS, 1, True),
}


def arrays_of(family):
    """Random arrays of a layer after another, and of the whole, by their nested names."""
    norms, shared, is_transposed = CASES[family]
    normal = np.random.default_rng(0).normal

    def draw(*shape):
        return normal(0, 0.5, shape).astype(np.float32)

    layers = []
    for _ in range(LAYERS):
        layer = {f"{name}/scale": draw(HEAD if "attn/" in name else D) for name in norms}
        if shared == H:
            layer["attn/qkv_einsum/w"] = draw(3, H, D, HEAD)
        else:
            layer["attn/q_einsum/w"] = draw(H, D, HEAD)
            layer["attn/kv_einsum/w"] = draw(2, shared, D, HEAD)
        layer["attn/attn_vec_einsum/w"] = draw(H, HEAD, D)
        layer["mlp/gating_einsum"] = draw(2, F, D) if is_transposed else draw(2, D, F)
        layer["mlp/linear"] = draw(F, D)
        layers.append(layer)
    return layers, {"embedder/input_embedding": draw(V, D), "final_norm/scale": draw(D)}


def tensors_of(family):
    """The same in the layout of Hugging Face."""
    norms, _, is_transposed = CASES[family]
    layers, whole = arrays_of(family)
    found = {
        "model.embed_tokens.weight": whole["embedder/input_embedding"],
        "model.norm.weight": whole["final_norm/scale"],
    }
    for i, layer in enumerate(layers):
        if "attn/qkv_einsum/w" in layer:
            heads = list(layer["attn/qkv_einsum/w"])
        else:
            heads = [layer["attn/q_einsum/w"], *layer["attn/kv_einsum/w"]]
        own = {f"self_attn.{x}_proj": np.concatenate([head.T for head in heads[j]])
               for j, x in enumerate("qkv")}  # fmt: skip
        own["self_attn.o_proj"] = np.concatenate(layer["attn/attn_vec_einsum/w"]).T
        gate, up = layer["mlp/gating_einsum"]
        own |= {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer["mlp/linear"].T}
        if not is_transposed:
            own |= {name: own[name].T for name in ("mlp.gate_proj", "mlp.up_proj")}
        own |= {theirs: layer[f"{ours}/scale"] for ours, theirs in norms.items()}
        found |= {f"model.layers.{i}.{name}.weight": x for name, x in own.items()}
    return {name: np.ascontiguousarray(x) for name, x in found.items()}


def tree_of(family, layout):
    """The tree of a layout: nested, a trainer's, flat, or flat and stacked."""
    layers, whole = arrays_of(family)
    named = dict(whole)
    for name in layers[0]:
        if layout == "stacked":
            for kind in range(KINDS):
                stack = np.stack([layer[name] for layer in layers[kind::KINDS]])
                named[f"stacked_layers/attention_type_{kind}/{name}"] = stack
        else:
            named |= {f"layer_{i}/{name}": layer[name] for i, layer in enumerate(layers)}
    if layout in ("nested", "trainer"):
        tree = traverse_util.unflatten_dict(named, sep="/")
        state = {"step": np.zeros(1, np.int32), "collections": {}, "opt_state": {}}
        return {"params": tree, **state} if layout == "trainer" else tree
    named = {x + "/w" * x.endswith(("gating_einsum", "linear")): y for x, y in named.items()}
    named["embedder/mm_input_projection/w"] = np.zeros((3, 3), np.float32)
    tree = {}
    for name, array in named.items():
        module, leaf = name.rsplit("/", 1)
        tree.setdefault(f"transformer/{module}", {})[leaf] = array
    return tree | {"SigLiPFromPatches_0/head": {"w": np.zeros((3, 3), np.float32)}}


def write(family, folder, layout, **settings):
    """Writes both directories: that of Hugging Face's layout, and one of the library's."""
    orbax = pytest.importorskip("orbax.checkpoint")
    (folder / "hf").mkdir(parents=True)
    save_file(tensors_of(family), folder / "hf" / "model.safetensors")
    name, given = FAMILIES[family]
    kind = name.removesuffix("Config").lower().replace("text", "_text")
    given = {**given, "model_type": kind, "num_key_value_heads": CASES[family][1], **settings}
    given["num_hidden_layers"] = LAYERS
    if "layer_types" in given:
        given["layer_types"] = [given["layer_types"][i % KINDS] for i in range(LAYERS)]
    (folder / "hf" / "config.json").write_text(json.dumps(given))
    own = folder / "own"
    with orbax.PyTreeCheckpointer(
        use_ocdbt=layout != "stacked", use_zarr3=layout == "nested"
    ) as checkpointer:
        checkpointer.save(own / "checkpoint", tree_of(family, layout))
    (own / "config.json").write_text(json.dumps(given))
    return own


LAYOUTS = [("gemma", "nested"), ("gemma2", "flat"), ("gemma3", "stacked"), ("gemma2", "trainer")]


@pytest.mark.parametrize(
    ("family", "layout"), tiers.combinations(LAYOUTS, [LAYOUTS[0], LAYOUTS[2]])
)
def test_the_model_is_that_of_the_tensors(family, layout, tmp_path):
    own = write(family, tmp_path, layout)
    got, want = load_model(own), load_model(tmp_path / "hf")
    assert got.config == want.config
    jax.tree.map(np.testing.assert_array_equal, got.params, want.params)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_mesh_reads_every_array_once(scan_layers, tmp_path, monkeypatch):
    own, read, reads = write("gemma", tmp_path, "nested"), StoredArray.__getitem__, Counter()

    def counted(array, index):
        reads[array.name, index] += 1
        return read(array, index)

    monkeypatch.setattr(StoredArray, "__getitem__", counted)
    got = load_model(own, mesh={"data": 2, "model": 2}, scan_layers=scan_layers)
    assert len(reads) == 2 + 9 * LAYERS
    assert set(reads.values()) == {1}
    want = load_model(tmp_path / "hf", scan_layers=scan_layers)
    jax.tree.map(np.testing.assert_array_equal, got.params, want.params)


def test_what_does_not_fit_is_one_line(tmp_path):
    own = write("gemma2", tmp_path, "flat")

    def refusal(**options):
        with pytest.raises(CheckpointError) as error:
            load_model(own, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "lora: expected None with the library gemma" in refusal(lora=tmp_path / "hf")
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "model_type": "gemma"}))
    assert (
        "unexpected tensor model.layers.0.post_feedforward_layernorm.weight and 9 more" in refusal()
    )
    (own / "config.json").write_text(json.dumps({**config, "intermediate_size": 9}))
    assert "config.json says (16, 9)" in refusal()
    (own / "config.json").unlink()
    assert refusal().endswith(
        "got num_hidden_layers=5, hidden_size=16, intermediate_size=24, num_attention_heads=4,"
        " num_key_value_heads=2, head_dim=6"
    )
    (own / "another").symlink_to(own / "checkpoint")
    assert "has several checkpoints, another, checkpoint; expected one" in refusal()


def shapes_of(family, layers, width, mlp, heads, shared, head):
    """The arrays of a released model, which have shapes alone."""
    found = {"embedder/input_embedding": (256_128, width), "final_norm/scale": (width,)}
    for i in range(layers):
        names = {f"{name}/scale": (width,) for name in CASES[family][0]}
        names |= {"attn/q_einsum": (heads, width, head), "mlp/linear": (mlp, width)}
        names |= {"attn/kv_einsum": (2, shared, width, head), "mlp/gating_einsum": (2, mlp, width)}
        names["attn/attn_vec_einsum"] = heads, head, width
        found |= {f"layer_{i}/{name}": shape for name, shape in names.items()}
    return {name: SimpleNamespace(name=name, shape=shape) for name, shape in found.items()}


@pytest.mark.parametrize(
    ("family", "sizes", "told"),
    [
        ("gemma", (18, 2048, 16384, 8, 1, 256), {"query_scalar": None, "max_positions": 8192}),
        (
            "gemma2",
            (46, 4608, 36864, 32, 16, 128),
            {"query_scalar": 144.0, "window": 4096, "attention_soft_cap": 50.0},
        ),
        (
            "gemma3",
            (26, 1152, 6912, 4, 1, 256),
            {"query_scalar": 256.0, "window": 512, "local_rope_theta": 1e4, "rope_theta": 1e6},
        ),
    ],
)
def test_released_sizes_tell_the_settings(family, sizes, told, tmp_path, monkeypatch):
    arrays = shapes_of(family, *sizes)
    monkeypatch.setattr(gemma_library, "orbax_arrays", lambda items, name: arrays)
    settings, _ = gemma_library.read_gemma(tmp_path, tmp_path / "2b")
    config = FAMILY[settings.get("model_type", str)].config_of(settings, "bfloat16")
    told = {"num_layers": sizes[0], "mlp_dim": sizes[2], "num_kv_heads": sizes[4], **told}
    assert {name: getattr(config, name) for name in told} == told


def test_texts_begin_and_end_as_in_the_library(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    own = write("gemma", tmp_path, "nested")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat"] * 20),
        model_prefix=str(own / "tokenizer"),
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
        pad_id=0, eos_id=1, bos_id=2, unk_id=3,
    )  # fmt: skip
    config = json.loads((own / "config.json").read_text())

    def check(*arguments, **options):
        tokenizer = decoding_jax.load(*arguments, **options)[1]
        start, *_, end = tokenizer.encode("the<end_of_turn>")
        assert start == 2
        assert tokenizer.eos_ids == (1, end)

    for stated in ({}, {"eos_token_id": 1}):
        (own / "config.json").write_text(json.dumps({**config, **stated}))
        check(own)
    (own / "config.json").rename(own / "checkpoint" / "config.json")
    check(own / "checkpoint", tokenizer=own / "tokenizer.model")
