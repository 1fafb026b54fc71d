"""Checkpoints of MaxText, written by Orbax, beside directories with the tensors they are made of.

The conversion is written once more here, the other way round, after MaxText's own tables
(``checkpoint_conversion/utils/param_mapping.py`` at e591f30).
"""

import json

import jax
import numpy as np
import pytest
import tiers
import yaml
from flax import traverse_util
from safetensors.numpy import save_file

from decoding_jax.models import CheckpointError, load_model

V, D, H, K, HEAD, F = 40, 16, 4, 2, 6, 24
SHAPE = {
    "vocab_size": V,
    "hidden_size": D,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": HEAD,
    "intermediate_size": F,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
GIVEN = {
    "vocab_size": V,
    "base_emb_dim": D,
    "base_num_query_heads": H,
    "base_num_kv_heads": K,
    "head_dim": HEAD,
    "base_mlp_dim": F,
    "max_target_length": 64,
    "normalization_layer_epsilon": "1e-06",
}
KERNELS = {
    "self_attention/query/kernel": ("self_attn.q_proj.weight", (D, H, HEAD)),
    "self_attention/key/kernel": ("self_attn.k_proj.weight", (D, K, HEAD)),
    "self_attention/value/kernel": ("self_attn.v_proj.weight", (D, K, HEAD)),
    "self_attention/out/kernel": ("self_attn.o_proj.weight", (H, HEAD, D)),
    "mlp/wi_0/kernel": ("mlp.gate_proj.weight", (D, F)),
    "mlp/wi_1/kernel": ("mlp.up_proj.weight", (D, F)),
    "mlp/wo/kernel": ("mlp.down_proj.weight", (F, D)),
}
NORMS = {
    "pre_self_attention_layer_norm/scale": ("input_layernorm.weight", (D,)),
    "post_self_attention_layer_norm/scale": ("post_attention_layernorm.weight", (D,)),
}
GEMMA_NORMS = {
    "pre_self_attention_norm/scale": ("input_layernorm.weight", (D,)),
    "post_self_attention_norm/scale": ("post_attention_layernorm.weight", (D,)),
    "pre_ffw_norm/scale": ("pre_feedforward_layernorm.weight", (D,)),
    "post_ffw_norm/scale": ("post_feedforward_layernorm.weight", (D,)),
}
GEMMA1_NORMS = {
    "pre_self_attention_norm/scale": ("input_layernorm.weight", (D,)),
    "pre_ffw_norm/scale": ("post_attention_layernorm.weight", (D,)),
}
HEAD_NORMS = {
    "self_attention/query_norm/scale": ("self_attn.q_norm.weight", (HEAD,)),
    "self_attention/key_norm/scale": ("self_attn.k_norm.weight", (HEAD,)),
}
BIASES = {
    "self_attention/query/bias": ("self_attn.q_proj.bias", (H, HEAD)),
    "self_attention/key/bias": ("self_attn.k_proj.bias", (K, HEAD)),
    "self_attention/value/bias": ("self_attn.v_proj.bias", (K, HEAD)),
}
GELU = {"mlp_activations": ["gelu", "linear"], "logits_via_embedding": True}
POST = {"use_post_attn_norm": True, "use_post_ffw_norm": True}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# By name: the block, its parts, MaxText's further settings, those of Hugging Face, and layers.
CASES = {
    "llama3.1-8b": ("llama2", KERNELS | NORMS, {"rope_max_timescale": 500_000},
        {"model_type": "llama", "rope_theta": 500_000.0, "rope_scaling": LLAMA3}, 2),
    "llama2-7b": ("llama2", KERNELS | NORMS, {}, {"model_type": "llama"}, 2),
    "qwen2.5-7b": ("qwen2", KERNELS | NORMS | BIASES, {"attention_bias": True},
        {"model_type": "qwen2"}, 2),
    "qwen3-0.6b": ("qwen3", KERNELS | NORMS | HEAD_NORMS,
        {"use_qk_norm": True, "logits_via_embedding": True, "normalize_embedding_logits": False},
        {"model_type": "qwen3", "tie_word_embeddings": True}, 2),
    "gemma-2b": ("gemma", KERNELS | GEMMA1_NORMS, GELU,
        {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}, 2),
    "gemma2-2b": ("gemma2", KERNELS | GEMMA_NORMS,
        {**GELU, **POST, "final_logits_soft_cap": 30.0, "attn_logits_soft_cap": 50.0,
         "sliding_window_size": 4},
        {"model_type": "gemma2", "sliding_window": 4, "query_pre_attn_scalar": HEAD}, 4),
    "gemma3-27b": ("gemma3", KERNELS | GEMMA_NORMS | HEAD_NORMS,
        {**GELU, **POST, "sliding_window_size": 4, "local_rope_max_timescale": 10_000,
         "rope_max_timescale": 1_000_000, "rope_linear_scaling_factor": 8.0},
        {"model_type": "gemma3_text", "sliding_window": 4, "query_pre_attn_scalar": D // H,
         "rope_theta": 1e6, "rope_local_base_freq": 1e4,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 8),
}  # fmt: skip


def tensors_of(name):
    """Random tensors in the layout of Hugging Face."""
    _, parts, given, _, count = CASES[name]
    normal = np.random.default_rng(0).normal

    def draw(*shape):
        return normal(0, 0.5, shape).astype(np.float32)

    made = {"model.embed_tokens.weight": draw(V, D), "model.norm.weight": draw(D)}
    if not given.get("logits_via_embedding"):
        made["lm_head.weight"] = draw(V, D)
    for i in range(count):
        for ours, (theirs, shape) in parts.items():
            size = int(np.prod(shape))
            inputs = H * HEAD if "/out/" in ours else shape[0]
            stored = (size // inputs, inputs) if ours.endswith("/kernel") else (size,)
            made[f"model.layers.{i}.{theirs}"] = draw(*stored)
    return made


def array_of(name, ours, shape, tensor):
    """The array of MaxText for a tensor of a layer."""
    block = CASES[name][0]
    if ours.endswith("/scale"):
        return tensor + 1 if block.startswith("gemma") else tensor
    if ours.endswith("/bias"):
        return tensor.reshape(shape)
    array = tensor.T.reshape(shape)
    if "/query/" in ours or "/key/" in ours:
        if name.startswith("llama3.1"):
            halves = array[..., : HEAD // 2], array[..., HEAD // 2 :]
            array = np.stack(halves, -1).reshape(shape)
        if "/query/" in ours and block in ("llama2", "gemma", "gemma2"):
            array = array / np.float32(np.sqrt(HEAD))
    return array


def tree_of(name, scanned, padding):
    """The parameters of MaxText, by their paths."""
    block, parts, _, _, count = CASES[name]
    tensors = tensors_of(name)
    table = np.pad(tensors["model.embed_tokens.weight"], ((0, padding), (0, 0)))
    is_gemma = block.startswith("gemma")
    found = {
        "token_embedder/embedding": table * np.float32(np.sqrt(D) if is_gemma else 1),
        "decoder/decoder_norm/scale": tensors["model.norm.weight"] + is_gemma,
    }
    if "lm_head.weight" in tensors:
        found["decoder/logits_dense/kernel"] = np.pad(
            tensors["lm_head.weight"].T, ((0, 0), (0, padding))
        )
    stacked: dict[str, list[np.ndarray]] = {}
    for i in range(count):
        for ours, (theirs, shape) in parts.items():
            array = array_of(name, ours, shape, tensors[f"model.layers.{i}.{theirs}"])
            folder, number = f"layers_{i}", i
            if block == "gemma2":
                first, rest = ours.split("/", 1)
                ours, number = f"{first}_{('local', 'global')[i % 2]}/{rest}", i // 2
                folder = f"layers_{number}"
            if not scanned:
                found[f"decoder/{folder}/{ours}"] = array
            elif block == "gemma3" and i >= 6:
                found[f"decoder/layers_remainder/layers_{i - 6}/{ours}"] = array
            else:
                inner = f"layers_{i}/" if block == "gemma3" else ""
                stacked.setdefault(f"decoder/layers/{inner}{ours}", []).append(array)
    return found | {path: np.stack(arrays, 1) for path, arrays in stacked.items()}


def write(name, folder, scanned=True, padding=0, **settings):
    """Writes both directories: that of Hugging Face's layout, and a run of MaxText's."""
    orbax = pytest.importorskip("orbax.checkpoint")
    block, _, given, config, count = CASES[name]
    (folder / "hf").mkdir()
    save_file(tensors_of(name), folder / "hf" / "model.safetensors")
    config = {**SHAPE, "num_hidden_layers": count, **config}
    (folder / "hf" / "config.json").write_text(json.dumps(config))
    tree = traverse_util.unflatten_dict(tree_of(name, scanned, padding), sep="/")
    state = {"params": {"params": tree}, "opt_state": {"count": np.zeros(1, np.int32)}}
    with orbax.PyTreeCheckpointer(use_ocdbt=True, use_zarr3=True) as checkpointer:
        checkpointer.save(folder / "run" / "checkpoints" / "12" / "items", state)
    values = {**GIVEN, **given, "decoder_block": block, "scan_layers": scanned, **settings}
    values["base_num_decoder_layers"] = count // (1 + (block == "gemma2"))
    (folder / "run" / f"{name}.yml").write_text(yaml.safe_dump(values))
    return folder / "run"


def same(got, want):
    assert got.config == want.config
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "scanned"),
    tiers.combinations(
        [(name, scanned) for name in CASES for scanned in (True, False)],
        [("llama3.1-8b", True)],
    ),
)
def test_the_model_is_that_of_the_tensors(name, scanned, tmp_path):
    run = write(name, tmp_path, scanned)
    same(load_model(run), load_model(tmp_path / "hf"))


@pytest.mark.exhaustive
def test_a_table_that_is_filled_up_is_cut_to_the_vocabulary(tmp_path):
    for name in ("llama2-7b", "gemma-2b"):
        folder = tmp_path / name
        folder.mkdir()
        same(load_model(write(name, folder, padding=8)), load_model(folder / "hf"))


@pytest.mark.exhaustive
def test_what_is_not_followed_is_one_line(tmp_path):
    run = write("llama2-7b", tmp_path)
    path = run / "llama2-7b.yml"
    values = yaml.safe_load(path.read_text())

    def refusal(**changes):
        path.write_text(yaml.safe_dump({**values, **changes}))
        with pytest.raises(CheckpointError) as error:
            load_model(run)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "decoder_block: expected one of llama2, " in refusal(decoder_block="deepseek")
    assert "llama2-7b.yml: num_experts: expected 1 only, got 8" in refusal(num_experts=8)
    assert "rope_type: expected one of default, llama3.1" in refusal(rope_type="yarn")
    tied = {"logits_via_embedding": True}
    assert "normalize_embedding_logits: expected False only" in refusal(
        **tied, normalize_embedding_logits=True
    )
    assert "mlp_activations: expected" in refusal(mlp_activations=["relu"])
    assert "is not MaxText's (could not convert" in refusal(rope_max_timescale="long")
    assert "lacks model.layers.0." in refusal(scan_layers=False)
    assert "llama2-7b.yml says" in refusal(base_mlp_dim=F + 8)
    (run / "other.yml").write_text("{}")
    assert "as config.yml, got llama2-7b.yml, other.yml" in refusal()
    with pytest.raises(CheckpointError, match="lora: expected None with MaxText"):
        load_model(run, lora=tmp_path / "hf")
