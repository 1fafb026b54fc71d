"""Directories whose kernels are integers: compressed-tensors, GPTQ and AWQ."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiers
from networks import drawn
from test_quantized import assert_same_arrays, run, widened

from decoding_jax.models import (
    CheckpointError,
    Gemma4,
    Gemma4Config,
    Llama,
    LlamaConfig,
    load_model,
    save_model,
)

GROUP = 8
CONFIG = LlamaConfig(
    vocab_size=24, emb_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=64, num_layers=2,
    max_positions=32,
)  # fmt: skip
GEMMA4 = Gemma4Config(
    vocab_size=24, emb_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, global_head_dim=16,
    mlp_dim=64, num_layers=4, max_positions=32, window=3, window_pattern=(True, False),
    num_kv_layers=2, per_layer_dim=8,
)  # fmt: skip
AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]


def words(integers, bits):
    """Integers in the columns of 32-bit words, the first in the lowest bits.

    One below 0 borrows from the next in its word, as where a writer subtracts 1 from all.
    """
    split = integers.reshape(len(integers), -1, 32 // bits).astype(np.uint64)
    shifts = np.arange(0, 32, bits, dtype=np.uint64)
    packed = (split << shifts).sum(-1).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(packed)


def gptq(name, values, scale, zero, bits):
    return {
        f"{name}.qweight": np.ascontiguousarray(words(values.T, bits).T),
        f"{name}.qzeros": words(zero - 1, bits),
        f"{name}.scales": scale,
        f"{name}.g_idx": np.arange(len(values), dtype=np.int32) // (len(values) // len(scale)),
    }


def gptq_v2(name, values, scale, zero, bits):
    return gptq(name, values, scale, zero + 1, bits)


def awq(name, values, scale, zero, bits):
    def ordered(x):
        return x.reshape(len(x), -1, 8)[..., AWQ_COLUMNS].reshape(x.shape)

    return {
        f"{name}.qweight": words(ordered(values), bits),
        f"{name}.qzeros": words(ordered(zero), bits),
        f"{name}.scales": scale,
    }


def packed(name, values, scale, zero, bits):
    return {
        f"{name}.weight_packed": words(values.T, bits),
        f"{name}.weight_scale": np.ascontiguousarray(scale.T),
        f"{name}.weight_shape": np.array(values.T.shape, np.int64),
    }


def integers(name, values, scale, zero, bits):
    return {
        f"{name}.weight": np.ascontiguousarray((values.T - 128).astype(np.int8)),
        f"{name}.weight_scale": np.ascontiguousarray(scale.T),
    }


def compressed(form, bits, group, order=None):
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"}
    if group:
        weights |= {"strategy": "group", "group_size": group, "actorder": order}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


LAYOUTS = {
    "gptq": (gptq, 4, GROUP, True, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "gptq_8": (
        gptq, 8, None, True,
        {"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True, "desc_act": True},
    ),
    "gptq_8_zeros": (
        gptq, 8, GROUP, True, {"quant_method": "gptq", "bits": 8, "group_size": GROUP}
    ),
    "gptq_v2": (
        gptq_v2, 4, GROUP, True,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
    ),
    "awq": (
        awq, 4, GROUP, True,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    ),
    "awq_other_words": (
        awq, 4, GROUP, True,
        {
            **{"quant_method": "awq", "bits": 4, "group_size": GROUP, "format": "GEMM"},
            "zero_point": False,
        },
    ),
    "packed": (packed, 4, GROUP, False, compressed("pack-quantized", 4, GROUP)),
    "packed_ordered": (packed, 4, GROUP, False, compressed("pack-quantized", 4, GROUP, "weight")),
    "int8": (integers, 8, None, False, compressed("int-quantized", 8, None)),
}  # fmt: skip


def write(directory, layout, model=None):
    """Writes a model with random integers, and into the folder ``wide`` that of their floats."""
    pack, bits, group, zeros, settings = LAYOUTS[layout]
    zeros = zeros and not settings.get("sym")
    save_model(model or drawn(Llama, CONFIG), directory)
    path = directory / "model.safetensors"
    tensors, draw = safetensors.numpy.load_file(path), np.random.default_rng(1)
    wide = dict(tensors)
    for name in [n for n in tensors if "_proj.weight" in n]:
        outputs, inputs = tensors.pop(name).shape
        counts = (inputs // (group or inputs), outputs)
        values = draw.integers(2**bits, size=(inputs, outputs))
        scale = draw.uniform(0.5, 1.0, counts).astype(np.float16) / np.float16(2**bits)
        zero = draw.integers(0, 2**bits, counts) if zeros else np.full(counts, 2 ** (bits - 1))
        tensors |= pack(name.removesuffix(".weight"), values, scale, zero, bits)
        size = inputs // counts[0]
        differences = values - np.repeat(zero, size, 0)
        wide[name] = (differences * np.repeat(scale, size, 0).astype(np.float32)).T.astype("f4")
        wide[name] = np.ascontiguousarray(wide[name])
    safetensors.numpy.save_file(tensors, path)
    config = directory / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(values | {"quantization_config": settings}))
    (directory / "wide").mkdir()
    (directory / "wide/config.json").write_text(json.dumps(values))
    safetensors.numpy.save_file(wide, directory / "wide/model.safetensors")


@pytest.mark.parametrize(
    "layout", tiers.of_table(LAYOUTS, ["gptq_8", "gptq_8_zeros", "int8", "awq_other_words"])
)
def test_the_integers_of_a_directory(layout, tmp_path):
    write(tmp_path, layout)
    model, wide = load_model(tmp_path), load_model(tmp_path / "wide")
    assert model.params["layers_0"]["mlp"]["up"]["kernel"].values.dtype.itemsize == 1
    assert_same_arrays(widened(model), wide)
    for logits, expected in zip(run(model), run(wide), strict=True):
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-5)


BESIDE = [
    ("gptq", "quantize_config.json", {"bits": 4, "group_size": GROUP, "desc_act": False}, None),
    ("gptq_v2", "quantize_config.json",
     {"bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"}, "gptq_model-4bit-8g"),
    ("gptq", "quantize_config.json",
     {"bits": 4, "group_size": GROUP, "model_file_base_name": "own"}, "own"),
    ("awq", "quant_config.json",
     {"w_bit": 4, "q_group_size": GROUP, "zero_point": True, "version": "GEMM"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "file", "settings", "weights"), BESIDE)
def test_settings_in_a_file_beside_the_config(layout, file, settings, weights, tmp_path):
    """AutoGPTQ and older versions of AutoAWQ write them so, and AutoGPTQ other names of weights."""
    write(tmp_path, layout)
    config = tmp_path / "config.json"
    values = json.loads(config.read_text())
    del values["quantization_config"]
    config.write_text(json.dumps(values))
    (tmp_path / file).write_text(json.dumps(settings))
    if weights:
        (tmp_path / "model.safetensors").rename(tmp_path / f"{weights}.safetensors")
    assert_same_arrays(widened(load_model(tmp_path)), load_model(tmp_path / "wide"))


def test_biases_that_no_layer_has(tmp_path):
    """AutoGPTQ writes zeros for them."""
    write(tmp_path, "gptq")
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    kernels = [name for name in tensors if name.endswith(".scales")]
    biases = {n.replace("scales", "bias"): np.zeros(tensors[n].shape[1], "f2") for n in kernels}
    safetensors.numpy.save_file(tensors | biases, path)
    assert_same_arrays(widened(load_model(tmp_path)), load_model(tmp_path / "wide"))
    name = "model.layers.1.mlp.down_proj.bias"
    biases[name][3] = 0.5
    safetensors.numpy.save_file(tensors | biases, path)
    with pytest.raises(CheckpointError, match=f"{name}: expected zeros, since the layer has no bi"):
        load_model(tmp_path)


@pytest.mark.parametrize("layout", tiers.values("packed", exhaustive=["gptq", "awq", "int8"]))
def test_projections_that_no_layer_uses(layout, tmp_path):
    """Those of a Gemma 4's layers that read the keys of others; its other layers have no more."""
    model = jax.eval_shape(lambda: Gemma4.init(GEMMA4, jax.random.key(0)))
    write(tmp_path, layout, jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), model))
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    own = "layers.0.self_attn.k_proj."
    kept = {name.replace(own, "layers.2.self_attn.k_proj."): tensors[name] for name in tensors}
    assert len(kept) == len(tensors)
    safetensors.numpy.save_file(tensors | kept, path)
    found = load_model(tmp_path)
    assert found.params["layers_0"]["attention"]["key"]["kernel"].values.dtype.itemsize == 1
    assert_same_arrays(widened(found), load_model(tmp_path / "wide"))
    more = {f"model.{own}input_scale": np.ones(1, np.float32)}
    safetensors.numpy.save_file(tensors | kept | more, path)
    with pytest.raises(CheckpointError, match=f"unexpected tensor model.{own}input_scale$"):
        load_model(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_directory_of_integers_on_a_mesh(scan_layers, tmp_path):
    write(tmp_path, "gptq")
    mesh = {"data": 2, "model": 2}
    model = load_model(tmp_path, mesh=mesh, scan_layers=scan_layers)
    alone = load_model(tmp_path, scan_layers=scan_layers)
    assert_same_arrays(model, alone)
    down = model.params["layers" if scan_layers else "layers_1"]["mlp"]["down"]["kernel"]
    assert down.values.sharding.spec[-2:] == ("model", None)
    for logits, expected in zip(run(model), run(alone), strict=True):
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-5)


def test_a_mesh_repeats_the_heads_of_integers(tmp_path):
    write(tmp_path, "awq")
    fitted = load_model(tmp_path).for_model_axis(4)
    on_mesh = load_model(tmp_path, mesh={"data": 2, "model": 4})
    assert on_mesh.config == fitted.config
    for name in ("key", "value"):
        assert_same_arrays(*(m.params["layers_0"]["attention"][name] for m in (on_mesh, fitted)))


FAULTS = [
    ("gptq", {"quant_method": "bitsandbytes"}, "quant_method: expected one of awq, compressed-"),
    ("gptq", {"bits": 3}, "quantization_config.bits: expected 4 or 8, got 3"),
    (
        "gptq",
        {"checkpoint_format": "marlin"},
        "checkpoint_format: expected gptq or gptq_v2, got 'm",
    ),
    ("gptq", {"sym": True}, "expected zeros in the middle with sym = True, got others in model"),
    ("gptq", {"group_size": 24}, "expected kernels of two axes with inputs in groups of 24"),
    ("awq", {"version": "gemv"}, "version: expected gemm, got 'gemv'"),
    ("packed", {"format": "float-quantized"}, "format: expected one of int-quantized, pack-"),
    (
        "packed",
        {"config_groups": compressed("", 4, GROUP, "group")["config_groups"]},
        "weights.actorder: expected none, weight or static, .* got 'group'",
    ),
    ("packed", {"config_groups": {}}, "config_groups: expected one group, got \\[\\]"),
]


def test_what_is_not_supported_is_one_line(tmp_path):
    for layout in ("gptq", "awq", "packed"):
        directory = tmp_path / layout
        write(directory, layout)
        config = directory / "config.json"
        before = json.loads(config.read_text())
        for _, changes, message in (f for f in FAULTS if f[0] == layout):
            settings = before["quantization_config"] | changes
            config.write_text(json.dumps(before | {"quantization_config": settings}))
            with pytest.raises(CheckpointError, match=message) as error:
                load_model(directory)
            assert "\n" not in str(error.value)
        config.write_text(json.dumps(before))
    path = tmp_path / "awq/model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    without = {name: x for name, x in tensors.items() if not name.endswith("qzeros")}
    safetensors.numpy.save_file(without, path)
    with pytest.raises(CheckpointError, match=r"expected zero points, .* got none for model"):
        load_model(tmp_path / "awq")
    with pytest.raises(CheckpointError, match="weights: expected None with quantization_config"):
        load_model(tmp_path / "gptq", weights="int8")


def test_another_order_of_the_inputs_is_refused(tmp_path):
    write(tmp_path, "gptq")
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    name = "model.layers.1.mlp.up_proj.g_idx"
    tensors[name] = tensors[name][::-1].copy()
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(CheckpointError, match=f"desc_act = False, .* order in {name}"):
        load_model(tmp_path)
