"""Every fault of a model directory raises one line that names the file and the fault."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FIXTURES
from folders import change, copy, edit

import decoding_jax
from decoding_jax import text
from decoding_jax.models import checkpoint
from decoding_jax.models.checkpoint import (
    CheckpointError,
    load_model,
    load_t5x,
    save_model,
    save_t5x,
)


def fault(directory: Path, message: str, **options: Any) -> None:
    """The one-line error of reading ``directory``, without the directory's name."""
    with pytest.raises(CheckpointError) as error:
        load_model(directory, **options)
    assert str(error.value).replace(f"{directory}/", "").replace(str(directory), "DIR") == message


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "t5",
            {"model_type": "whisper"},
            f"model_type: expected one of {', '.join(sorted(checkpoint._FAMILIES))}, got 'whisper';"
            " decoding_jax.adapters makes a model of another network",
        ),
        ("t5", {"d_model": "16"}, "d_model: expected a value of type int, got '16'"),
        ("t5", {"num_heads": 0}, "num_heads: expected 1 and above, got 0"),
        (
            "t5",
            {"dense_act_fn": "tanh"},
            "dense_act_fn: expected one of gelu, gelu_fast, gelu_new, gelu_pytorch_tanh, linear,"
            " relu, relu2, silu, swish, got 'tanh'",
        ),
        (
            "switch",
            {"router_dtype": "bfloat16"},
            "router_dtype: expected 'float32' only, got 'bfloat16'",
        ),
        (
            "longt5",
            {"encoder_attention_type": "global"},
            "encoder_attention_type: expected one of local, transient-global, got 'global'",
        ),
        ("gpt2", {"n_head": 3}, "num_heads: expected a divisor of emb_dim = 16, got 3"),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx: expected False only, got True",
        ),
        (
            "bart",
            {"share_encoder_decoder_embeddings": False},
            "share_encoder_decoder_embeddings: expected True only, got False",
        ),
        (
            "bart",
            {"encoder_attention_heads": 3},
            "num_encoder_heads: expected a divisor of emb_dim = 16, got 3",
        ),
        (
            "marian",
            {"tie_word_embeddings": False, "decoder_vocab_size": 39},
            "decoder_vocab_size: expected vocab_size = 40, with share_encoder_decoder_embeddings,"
            " got 39",
        ),
        (
            "gpt2",
            {"add_cross_attention": True},
            "add_cross_attention: expected False only, got True",
        ),
        (
            "llama2",
            {"rope_scaling": {"rope_type": "su", "factor": 4.0}},
            "rope_type: expected one of default, dynamic, linear, llama3, longrope, yarn, got 'su'",
        ),
        (
            "llama2",
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "attn_factor": 0.5}},
            "attn_factor: expected none with yarn, whose settings are type, rope_type, rope_theta,"
            " partial_rotary_factor, finetuned, factor, original_max_position_embeddings,"
            " beta_fast, beta_slow, truncate, attention_factor, mscale, mscale_all_dim,"
            " llama_4_scaling_beta, max_position_embeddings, got 0.5",
        ),
        (
            "llama2",
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta: expected none in this family, got 0.1",
        ),
        (
            "gpt_oss",
            {"rope_parameters": None},
            "rope_scaling: expected the object that the released files have, got None",
        ),
        (
            "mpt",
            {"attn_config": {"alibi_bias_max": 16}},
            "alibi_bias_max: expected 8 only, got 16",
        ),
        (
            "llama2",
            {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
            "factor: expected 1 and above, got 0.5",
        ),
        ("llama2", {"rope_scaling": {"rope_type": "linear"}}, "has no factor"),
        (
            "llama2",
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor: expected 1.0 only, got 0.5",
        ),
        ("mistral", {"sliding_window": 0}, "sliding_window: expected null, or 1 and above, got 0"),
        (
            "mistral",
            {"layer_types": ["full_attention"] * 2},
            "layer_types: expected ['sliding_attention', 'sliding_attention'] only, got"
            " ['full_attention', 'full_attention']",
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["chunked_attention"]},
            "layer_types: expected sliding_attention or full_attention, got 'chunked_attention'",
        ),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention: expected False only, got True",
        ),
        (
            "gemma3",
            {"attn_logit_softcapping": 50},
            "attn_logit_softcapping: expected null only, got 50",
        ),
        (
            "gemma3",
            {"rope_parameters": {"rope_theta": 500.0}},
            "rope_parameters: expected sliding_attention and full_attention, got 'rope_theta'",
        ),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type: expected 'default' only, got 'linear'",
        ),
        (
            "gemma3",
            {"final_logit_softcapping": -1.0},
            "logit_soft_cap: expected None, or numbers above 0, got -1.0",
        ),
        (
            "gemma4",
            {"enable_moe_block": True, "num_experts": 4},
            "has no top_k_experts",
        ),
        (
            "gemma4",
            {"use_bidirectional_attention": "all"},
            "use_bidirectional_attention: expected null, or 'vision', got 'all'",
        ),
        (
            "gemma4",
            {"num_kv_shared_layers": 5},
            "num_kv_layers: expected local and global layers among those that make keys and values,"
            " got 1",
        ),
        (
            "gemma4",
            {"per_layer_config": {"0": {"head_dim": 8}}},
            "per_layer_config: expected one size and number of heads in all layers of"
            " full_attention, got {'0': {'head_dim': 8}}",
        ),
        (
            "gemma4",
            {"per_layer_config": {"last": {"head_dim": 8}}},
            "per_layer_config: expected indices of layers, got 'last'",
        ),
        (
            "gemma4",
            {"final_logit_softcapping": 0.0},
            "logit_soft_cap: expected None, or numbers above 0, got 0.0",
        ),
        (
            "gpt_neox",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}},
            "rotary_dim: expected None, or even numbers up to the size of a head, 8, got 3",
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention"] * 2},
            "layer_types: expected one for each of 1 layers, got "
            "['full_attention', 'full_attention']",
        ),
        (
            "qwen2",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types: expected full_attention only, got 'sliding_attention'",
        ),
    ],
)
def test_faults_of_the_settings(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory = copy(family, tmp_path)
    edit(directory, **changes)
    fault(directory, f"config.json: {message}")


def test_faults_of_the_files(tmp_path: Path) -> None:
    fault(tmp_path / "nowhere", "DIR: no such directory")
    directory = copy("llama2", tmp_path)
    edit(directory, ("hidden_size",))
    fault(directory, "config.json: has no hidden_size")
    (directory / "config.json").write_text("[1]")
    fault(directory, "config.json: expected an object, got list")
    (directory / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json: is not JSON \(.*\)$"):
        load_model(directory)
    (directory / "config.json").unlink()
    message = "has expected.safetensors and no config.json, which says what network it is"
    fault(directory, f"DIR: {message}")
    for path in directory.iterdir():
        path.unlink()
    fault(directory, "config.json: cannot be read (No such file or directory)")

    directory = copy("qwen2", tmp_path)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model.safetensors: truncated, or not safetensors"):
        load_model(directory)
    weights.rename(directory / "pytorch_model.bin")
    fault(directory, "pytorch_model.bin: is a pickle and is not read; convert it to safetensors")
    (directory / "pytorch_model.bin").unlink()
    neither = "DIR: has neither model.safetensors nor model.safetensors.index.json"
    fault(directory, f"{neither}; found expected.safetensors")
    (directory / "expected.safetensors").unlink()
    fault(directory, neither)


OTHERS = [
    (["refs/main", "snapshots/1f0/config.json"], "is a folder of the hub's cache; expected DIR/sn"),
    (["models--a--b/snapshots/1f0/config.json"], "is the hub's cache; expected DIR/models--a--b/s"),
    (["checkpoint-50/config.json"], "has the checkpoints of a trainer; expected one, such as DIR/"),
    (
        ["trainer_state.json", "model.safetensors"],
        "is a trainer's checkpoint without config.json; c",
    ),
    (
        ["model-Q4_K_M.gguf", "README.md"],
        "has DIR/model-Q4_K_M.gguf, which is GGUF; expected the d",
    ),
    (
        ["params.json", "consolidated.00.pth"],
        "has DIR/params.json, of the layout of Llama's or Mis",
    ),
    (
        ["flax_model.msgpack"],
        "has DIR/flax_model.msgpack, which is flax's; save the model as safet",
    ),
    (["model/config.json"], "has no config.json, but DIR/model has; expected that directory"),
    (
        ["model.safetensors"],
        "has DIR/model.safetensors and no config.json, which says what network",
    ),
]


@pytest.mark.parametrize(("files", "message"), OTHERS)
def test_directories_of_another_kind(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError) as error:
        load_model(tmp_path)
    said = str(error.value).replace(str(tmp_path), "DIR")
    assert said.startswith(f"DIR: {message}")
    assert "\n" not in said


def test_what_is_no_directory_or_not_fetched(tmp_path: Path) -> None:
    for name, message in (
        ("model.gguf", "is GGUF; expected"),
        ("a.bin", "is a file; expected its"),
    ):
        (tmp_path / name).write_text("")
        with pytest.raises(CheckpointError, match=f"{name}: {message}"):
            load_model(tmp_path / name)
    directory = copy("gpt2", tmp_path)
    for name in ("model.safetensors", "config.json"):
        (directory / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
        fault(
            directory,
            f"{name}: is a pointer of git-lfs and not the file, which `git lfs pull` fetches",
        )


def test_faults_of_the_tensors(tmp_path: Path) -> None:
    directory = copy("smollm", tmp_path)
    change(directory, lambda t: t.update({"extra": np.ones(2, np.float32), "b": np.ones(1)}))
    fault(directory, "model.safetensors: unexpected tensor b and 1 more")
    change(directory, lambda t: [t.pop("extra"), t.pop("b"), t.pop("model.norm.weight")])
    fault(directory, "model.safetensors: lacks model.norm.weight")
    change(directory, lambda t: t.update({"model.norm.weight": np.ones(5, np.float32)}))
    fault(directory, "model.safetensors: model.norm.weight: got shape (5,); config.json says (16,)")
    change(directory, lambda t: t.update({"model.norm.weight": np.ones(16, np.int32)}))
    with pytest.raises(
        CheckpointError, match=r"model.norm.weight: expected float64, .*, got int32"
    ):
        load_model(directory)
    # More layers in the files than in the settings are as wrong as fewer.
    directory = copy("gpt2", tmp_path)
    edit(directory, n_layer=1)
    with pytest.raises(CheckpointError, match=r"unexpected tensor transformer.h.1.* and 11 more"):
        load_model(directory)
    edit(directory, n_layer=3)
    with pytest.raises(CheckpointError, match=r"model.safetensors: lacks transformer.h.2."):
        load_model(directory)


def test_faults_of_shards(tmp_path: Path) -> None:
    directory = copy("llama3", tmp_path)
    index = directory / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    name = "model.norm.weight"
    values["weight_map"][name] = "../elsewhere.safetensors"
    index.write_text(json.dumps(values))
    fault(
        directory,
        f"model.safetensors.index.json: {name}: expected a file beside the index, got"
        " '../elsewhere.safetensors'",
    )
    values["weight_map"][name] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"lacks model.*, which .*index.json places there$"):
        load_model(directory)
    (directory / "model-00002-of-00002.safetensors").unlink()
    fault(directory, "model-00002-of-00002.safetensors: no such file")
    index.write_text("{}")
    fault(directory, "model.safetensors.index.json: has no weight_map")


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^dtype: expected 'float32', 'bfloat16' or 'auto', got 'int8'$"
    ):
        load_model(FIXTURES / "t5", dtype="int8")
    model = load_model(FIXTURES / "qwen2")
    with pytest.raises(
        ValueError, match=r"^dtype: expected 'float32' or 'bfloat16', got 'float16'$"
    ):
        save_model(model, tmp_path, dtype="float16")
    with pytest.raises(
        ValueError,
        match=r"^model: expected one of Bart, GPT2, Gemma, Gemma4, Llama, T5, T5Gemma, got ",
    ):
        save_model(model.params, tmp_path)
    changes = {"out_bias": True, "qkv_bias": False, "qk_norm": True}
    config = type(model.config)(**{**model.config.__dict__, **changes})
    with pytest.raises(ValueError, match=r"^out_bias: expected False in qwen3, the nearest"):
        save_model(type(model)(model.params, config), tmp_path)
    config = dataclasses.replace(model.config, qk_norm=True)
    with pytest.raises(ValueError, match=r"^qk_norm: expected False in qwen2, the nearest"):
        save_model(dataclasses.replace(model, config=config), tmp_path)


@pytest.mark.parametrize(
    "url", ["ftp://host/model", "https://host/model", Path("ftp://host/model")]
)
def test_urls_are_refused(tmp_path, monkeypatch, url):
    """Nothing is read, and no folder called ``ftp:`` is made."""
    monkeypatch.chdir(tmp_path)
    model = load_model(FIXTURES / "t5")
    calls = {
        "directory": [
            lambda: decoding_jax.load(url),
            lambda: load_model(url),
            lambda: load_t5x(url),
            lambda: save_model(model, url),
            lambda: save_t5x(model, url),
        ],
        "tokenizer": [
            lambda: decoding_jax.load("translation-en-fr", tokenizer=url),
            lambda: text.load_tokenizer(url),
        ],
    }
    for name, calls_of_name in calls.items():
        for call in calls_of_name:
            with pytest.raises(
                ValueError, match=f"^{name}: expected a local path, or a URL of .*, got '{url}'"
            ):
                call()
    assert list(tmp_path.iterdir()) == []
