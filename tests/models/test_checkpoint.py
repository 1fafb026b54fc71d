"""Reading and writing model directories: round trips, and the spellings of older files."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from examples import FAMILIES
from families import FIXTURES
from folders import change, copy, edit

from decoding_jax.models.checkpoint import CheckpointError, load_model, save_model
from decoding_jax.models.positions import RopeScaling, frequencies
from decoding_jax.models.t5 import T5


def same(model: Any, other: Any) -> None:
    assert model.config == other.config
    jax.tree.map(np.testing.assert_array_equal, model.params, other.params)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_is_read_back(family: str, tmp_path: Path) -> None:
    model = load_model(FIXTURES / family)
    save_model(model, tmp_path / "new" / "folder")
    same(load_model(tmp_path / "new" / "folder"), model)


def test_bfloat16_is_stored_and_read_without_float32_between(tmp_path: Path) -> None:
    model = load_model(FIXTURES / "qwen2", dtype="bfloat16")
    assert model.config.dtype == "bfloat16"
    assert {leaf.dtype.name for leaf in jax.tree.leaves(model.params)} == {"bfloat16"}
    save_model(model, tmp_path)
    stored = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    same(load_model(tmp_path, dtype="bfloat16"), model)
    # Stored in bfloat16 from float32: rounded, and half the size.
    save_model(load_model(FIXTURES / "gpt2"), tmp_path / "32")
    save_model(load_model(FIXTURES / "gpt2"), tmp_path / "16", dtype="bfloat16")
    size = {d: (tmp_path / d / "model.safetensors").stat().st_size for d in ("32", "16")}
    assert size["16"] < 0.6 * size["32"]


def test_other_settings_are_written(tmp_path: Path) -> None:
    save_model(load_model(FIXTURES / "t5"), tmp_path, settings={"eos_token_id": 7})
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 7


def test_t5_spelled_as_before(tmp_path: Path) -> None:
    # Until transformers 5, only tie_word_embeddings distinguished T5 1.1 from T5 1.0.
    directory = copy("t5_1_1", tmp_path)
    new = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "num_decoder_layers")
    edit(directory, new, tie_word_embeddings=False)
    same(load_model(directory), load_model(FIXTURES / "t5_1_1"))
    directory = copy("t5", tmp_path)
    edit(directory, (*new, "tie_word_embeddings", "feed_forward_proj"))
    same(load_model(directory), load_model(FIXTURES / "t5"))


def test_t5_with_each_tying_and_scaling(tmp_path: Path) -> None:
    plain = load_model(FIXTURES / "t5")
    table = plain.params["token_embedder"]["embedding"]
    # Tied tensors, logits not scaled: the output is the table as it is.
    directory = copy("t5", tmp_path)
    edit(directory, scale_decoder_outputs=False)
    model = load_model(directory)
    assert not model.config.logits_via_embedding
    np.testing.assert_array_equal(model.params["decoder"]["logits_dense"]["kernel"], table.T)
    # An untied output table, whose scale is folded into the table.
    untied = np.asarray(table) + 1
    edit(directory, scale_decoder_outputs=True)
    change(directory, lambda tensors: tensors.update({"lm_head.weight": untied}))
    kernel = load_model(directory).params["decoder"]["logits_dense"]["kernel"]
    np.testing.assert_array_equal(kernel, untied.T / 4)
    # The same table once more, under every name that older files use.
    names = ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    change(directory, lambda t: t.update(dict.fromkeys(names, t["shared.weight"])))
    same(load_model(directory), plain)
    # Or under one other name alone, as in MADLAD-400.
    for name in ("shared.weight", "lm_head.weight", "encoder.embed_tokens.weight"):
        change(directory, lambda t, name=name: t.pop(name))
    same(load_model(directory), plain)


def test_t5x_tree_is_taken_as_it_is() -> None:
    model = load_model(FIXTURES / "byt5")
    same(T5(dict(model.params), model.config), model)
    layer = model.params["encoder"]["layers_0"]
    assert sorted(layer) == ["attention", "mlp", "pre_attention_layer_norm", "pre_mlp_layer_norm"]


def test_rotary_settings_spelled_as_before(tmp_path: Path) -> None:
    directory = copy("llama3", tmp_path)
    rope = json.loads((directory / "config.json").read_text())["rope_parameters"]
    theta = rope.pop("rope_theta")
    edit(directory, ("rope_parameters",), rope_theta=theta, rope_scaling=rope)
    same(load_model(directory), load_model(FIXTURES / "llama3"))
    rope = {"type": "linear", "factor": 2}
    edit(directory, rope_scaling=rope)
    assert load_model(directory).config.rope_scaling == RopeScaling("linear", 2.0)
    edit(directory, ("rope_theta",), rope_scaling=None)
    config = load_model(directory).config
    assert (config.rope_theta, config.rope_scaling) == (10_000.0, None)


def test_yarn_in_older_and_newer_settings(tmp_path: Path) -> None:
    fixture = load_model(FIXTURES / "llama_yarn")
    directory = copy("llama_yarn", tmp_path)
    # The length before the extension, the type as before transformers 4.43, and no factor.
    old = {
        "type": "yarn",
        "original_max_position_embeddings": 64,
        "beta_fast": 4,
        "finetuned": True,
    }
    spelled = {"rope_theta": 50.0, "rope_scaling": {**old, "factor": 4}}
    edit(directory, ("rope_parameters",), **spelled, max_position_embeddings=64)
    same(load_model(directory), fixture)
    edit(directory, rope_scaling=old, max_position_embeddings=256)
    same(load_model(directory), fixture)
    # The length before the extension beside the section, and what follows without any.
    edit(directory, rope_scaling={"type": "yarn", "factor": 2.0})
    config = load_model(directory).config
    assert config.rope_scaling == RopeScaling("yarn", 2.0, original_max_positions=256)
    assert config.max_positions == 512
    edit(directory, original_max_position_embeddings=128)
    assert load_model(directory).config.rope_scaling.original_max_positions == 128
    scaled = {"type": "yarn", "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 1.0}
    edit(directory, rope_scaling=scaled)
    factor = (0.0707 * np.log(4.0) + 1) / (0.1 * np.log(4.0) + 1)
    assert np.isclose(load_model(directory).config.rope_scaling.rotated_factor, factor)


def test_gemma3_and_gpt_neox_spelled_as_before(tmp_path: Path) -> None:
    directory = copy("gemma3", tmp_path)
    rope = {"rope_type": "linear", "factor": 4.0}
    new = ("rope_parameters", "layer_types")
    spelled = {"rope_theta": 500.0, "rope_local_base_freq": 50.0, "rope_scaling": rope}
    edit(directory, new, **spelled, sliding_window_pattern=2)
    same(load_model(directory), load_model(FIXTURES / "gemma3"))
    edit(directory, ("sliding_window_pattern",))
    assert load_model(directory).config.window_pattern == (True,)  # the sixth layer is global
    directory = copy("gpt_neox", tmp_path)
    edit(directory, ("rope_parameters",), rotary_emb_base=50, rotary_pct=0.5)
    same(load_model(directory), load_model(FIXTURES / "gpt_neox"))
    # Its first files contain the causal mask and the frequencies.
    old = dict.fromkeys(("bias", "masked_bias", "rotary_emb.inv_freq"), np.ones(1, np.float32))
    old = {f"gpt_neox.layers.0.attention.{name}": value for name, value in old.items()}
    change(directory, lambda tensors: tensors.update(old))
    same(load_model(directory), load_model(FIXTURES / "gpt_neox"))


def test_the_text_network_of_a_gemma4_that_reads_images(tmp_path: Path) -> None:
    """It has projections that no layer uses, and the released spelling of its two heads."""
    directory = copy("gemma4", tmp_path)
    heads = {"global_head_dim": 8, "num_global_key_value_heads": 1}
    edit(directory, ("per_layer_config",), **heads)
    text = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps({"model_type": "gemma4", "text_config": text})
    )

    def as_a_part(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.replace("model.", "model.language_model.", 1)] = tensors.pop(name)
        for name in ("vision_tower.std_bias", "embed_audio.embedding_projection.weight"):
            tensors[f"model.{name}"] = np.ones(3, np.float32)
        unused = "model.language_model.layers.4.self_attn.k_proj.weight"
        tensors[unused] = np.ones((8, 16), np.float32)

    change(directory, as_a_part)
    same(load_model(directory), load_model(FIXTURES / "gemma4"))


def test_layers_of_a_gemma4_whose_indices_have_one_length(tmp_path: Path) -> None:
    """As transformers writes those of ten layers and more."""
    directory = copy("gemma4", tmp_path)
    heads = {"head_dim": 8, "num_key_value_heads": 1}
    edit(directory, per_layer_config={"01": heads, "03": heads, "05": heads})
    same(load_model(directory), load_model(FIXTURES / "gemma4"))


def beginning(changes: dict[str, str]) -> Any:
    """Renames the tensors whose names begin with a key, the first that fits."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            old = next((old for old in changes if name.startswith(old)), None)
            if old is not None:
                tensors[changes[old] + name.removeprefix(old)] = tensors.pop(name)

    return change


TIED = {"tie_word_embeddings": True}
IMAGES = ("vision_tower.embeddings.bias", "multi_modal_projector.mm_soft_emb_norm.weight")
# Names of tensors that versions of transformers write, and wrote: the fixture, changed settings,
# what names begin with instead, and tensors of other networks.
SPELLED: dict[str, tuple[str, dict[str, Any], dict[str, str], tuple[str, ...]]] = {
    "GPT2Model": ("gpt2", {}, {"transformer.": ""}, ("h.0.attn.bias", "h.1.attn.masked_bias")),
    "GPT-2's output alone": ("gpt2", {}, {"transformer.wte": "lm_head"}, ()),
    "GPT-2 with masks": ("gpt2", {}, {}, ("transformer.h.0.attn.bias",)),
    "GPTNeoXModel": ("gpt_neox", TIED, {"gpt_neox.": ""}, ()),
    "Llama's output alone": ("smollm", {}, {"model.embed_tokens": "lm_head"}, ()),
    "LlamaModel": ("smollm", {}, {"model.": ""}, ("layers.0.self_attn.rotary_emb.inv_freq",)),
    "Qwen2Model": ("qwen2", TIED, {"model.": ""}, ()),
    "Qwen2's output alone": ("qwen2", TIED, {"model.embed_tokens": "lm_head"}, ()),
    "Gemma2Model": ("gemma2", {}, {"model.": ""}, ()),
    "Gemma 2's output alone": ("gemma2", {}, {"model.embed_tokens": "lm_head"}, ()),
    "Gemma3TextModel": ("gemma3", {}, {"model.": ""}, ()),
    "Gemma 3 before 4.52": ("gemma3", {}, {"model.": "language_model.model."}, IMAGES),
    "Gemma 3 since 4.52": (
        "gemma3", {}, {"model.": "model.language_model."}, tuple(f"model.{x}" for x in IMAGES)
    ),
    "Gemma3Model": ("gemma3", {}, {"model.": "language_model."}, IMAGES),
    "Gemma 3's output alone": (
        "gemma3", {},
        {"model.embed_tokens": "language_model.lm_head", "model.": "language_model.model."}, IMAGES,
    ),
    "Gemma 4's output alone": ("gemma4", {}, {"model.embed_tokens.": "lm_head."}, ()),
    "BartModel": ("bart", {}, {"model.": ""}, ()),
    "BART's output alone": ("bart", {}, {"model.shared": "lm_head"}, ()),
    "T5's output alone": ("t5", {}, {"shared": "lm_head"}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLED)
def test_tensors_spelled_as_other_classes_and_versions_do(name: str, tmp_path: Path) -> None:
    family, changes, renamed, others = SPELLED[name]
    directory = copy(family, tmp_path)
    edit(directory, **changes)
    heads = ("lm_head.weight", "embed_out.weight")
    change(directory, lambda tensors: [tensors.pop(x, None) for x in heads])
    want = load_model(directory)
    if "vision" in "".join(others):
        text = json.loads((directory / "config.json").read_text())
        settings = {"model_type": "gemma3", "text_config": text}
        (directory / "config.json").write_text(json.dumps(settings))
    change(directory, beginning(renamed))
    change(directory, lambda tensors: tensors.update(dict.fromkeys(others, np.ones(3, "f4"))))
    same(load_model(directory), want)


def test_tables_that_files_do_not_tie(tmp_path: Path) -> None:
    """Until version 5, both stacks of a BART share their table beside another output."""
    for family, first, output in (
        ("bart", "model.shared.weight", "lm_head.weight"),
        ("t5gemma2", "model.encoder.embed_tokens.weight", "lm_head.out_proj.weight"),
    ):
        directory = copy(family, tmp_path)
        edit(directory, tie_word_embeddings=family != "bart")
        change(directory, lambda tensors, x=first, y=output: tensors.update({y: 2 * tensors[x]}))
        params = load_model(directory).params
        table = params["token_embedder"]["embedding"]
        np.testing.assert_array_equal(params["source_token_embedder"]["embedding"], table)
        dense = params.get("logits_dense", params["decoder"].get("logits_dense"))
        np.testing.assert_array_equal(dense["kernel"], 2 * table.T)


def test_tensors_that_no_class_names_so(tmp_path: Path) -> None:
    """The error names what is there."""
    cases = {
        "lacks model.norm.weight; found _orig_mod.model.norm.weight and 10 more, unexpected": {
            "": "_orig_mod."
        },
        "lacks model.embed_tokens.weight; found model.embed.weight, unexpected": {
            "model.embed_tokens": "model.embed"
        },
        "lacks model.norm.weight; found model.final.norm.weight, unexpected": {
            "model.norm": "model.final.norm"
        },
    }
    for i, (message, renamed) in enumerate(cases.items()):
        directory = copy("smollm", tmp_path / str(i))
        change(directory, beginning(renamed))
        with pytest.raises(CheckpointError, match=re.escape(message)):
            load_model(directory)
    # The output of a network that is not tied is no table of its inputs.
    for family, embedding in (("qwen2", "model.embed_tokens.weight"), ("t5", "shared.weight")):
        directory = copy(family, tmp_path / "untied")
        edit(directory, tie_word_embeddings=False)
        change(directory, lambda tensors: tensors.pop("lm_head.weight", None))
        change(directory, beginning({embedding: "lm_head.weight"}))
        with pytest.raises(CheckpointError, match=f"lacks {embedding}$"):
            load_model(directory)


def test_a_file_and_shards(tmp_path: Path) -> None:
    """As in ``transformers``, the single file is read; a warning says so."""
    directory = copy("llama3", tmp_path)
    want = load_model(directory)
    shards = sorted(directory.glob("*-of-*.safetensors"))
    tensors = {k: v for path in shards for k, v in safetensors.numpy.load_file(path).items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    with pytest.warns(UserWarning, match="model.safetensors is read, and not the shards of model"):
        model = load_model(directory)
    scale = model.params["final_norm"]["scale"]
    np.testing.assert_array_equal(scale, 2 * want.params["final_norm"]["scale"])


@pytest.mark.exhaustive
def test_t5gemma_spelled_as_before(tmp_path: Path) -> None:
    # The tensors of the encoder's text network as transformers names them in Python.
    directory, place = copy("t5gemma2", tmp_path), "model.encoder."

    def in_text_model(tensors: dict[str, np.ndarray]) -> None:
        for name in [x for x in tensors if x.startswith(place)]:
            if not name.startswith((place + "vision_tower", place + "multi_modal")):
                other = name.replace(place, place + "text_model.")
                tensors[other] = tensors.pop(name)
        embedder = "embed_tokens.weight"
        tensors["model.decoder." + embedder] = tensors[f"{place}text_model.{embedder}"]

    change(directory, in_text_model)
    same(load_model(directory), load_model(FIXTURES / "t5gemma2"))
    # Rotary settings of transformers 4, and the first token of a prompt.
    directory = copy("t5gemma", tmp_path)
    stacks = json.loads((directory / "config.json").read_text())
    stacks = {name: stacks[name] for name in ("encoder", "decoder")}
    for stack in stacks.values():
        stack["rope_theta"] = stack.pop("rope_parameters")["rope_theta"]
        del stack["layer_types"]
    edit(directory, ("bos_token_id",), **stacks)
    fixture = load_model(FIXTURES / "t5gemma")
    same(load_model(directory), fixture)
    edit(directory, decoder_start_token_id=3)
    assert load_model(directory).config == dataclasses.replace(fixture.config, start_id=3)


def test_rotary_scaling_leaves_fast_waves_and_slows_slow_ones() -> None:
    plain = frequencies(64, 500_000.0)
    np.testing.assert_allclose(frequencies(64, 500_000.0, RopeScaling("linear", 8.0)), plain / 8)
    scaled = frequencies(64, 500_000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    waves = 8192 * plain / (2 * np.pi)
    np.testing.assert_allclose(scaled[waves > 4], plain[waves > 4])
    np.testing.assert_allclose(scaled[waves < 1], plain[waves < 1] / 8)
    between = (waves > 1) & (waves < 4)
    assert between.sum() == 3
    blend = (waves[between] - 1) / 3
    want = plain[between] * (blend + (1 - blend) / 8)
    np.testing.assert_allclose(scaled[between], want, rtol=1e-6)
    # YaRN: the frequencies of Qwen2.5 with its factor of 4, of which 24 are kept and 24 divided.
    plain = frequencies(128, 1e6)
    scaled = frequencies(128, 1e6, RopeScaling("yarn", 4.0, original_max_positions=32_768))
    np.testing.assert_allclose(scaled[:24], plain[:24])
    np.testing.assert_allclose(scaled[40:], plain[40:] / 4)
    assert (np.diff(scaled / plain)[23:40] < 0).all()


def test_gpt2_in_the_first_layout(tmp_path: Path) -> None:
    # No prefix, and the causal masks among the tensors.
    def as_before(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.ones((1, 1, 32, 32), np.float32)
        tensors["h.0.attn.masked_bias"] = np.full((), -1e4, np.float32)

    directory = copy("gpt2", tmp_path)
    change(directory, as_before)
    same(load_model(directory), load_model(FIXTURES / "gpt2"))


def test_float16_and_float64_are_read(tmp_path: Path) -> None:
    directory = copy("llama2", tmp_path)
    for dtype in (np.float16, np.float64):
        change(directory, lambda t: t.update({k: v.astype(dtype) for k, v in t.items()}))  # noqa: B023
        got = load_model(directory).params["final_norm"]["scale"]
        want = load_model(FIXTURES / "llama2").params["final_norm"]["scale"]
        np.testing.assert_allclose(got, want, rtol=1e-3)
        assert got.dtype == jnp.float32


def test_mistral_without_a_window(tmp_path: Path) -> None:
    directory = copy("llama2", tmp_path)
    edit(directory, model_type="mistral", sliding_window=None)
    same(load_model(directory), load_model(FIXTURES / "llama2"))
    edit(directory, sliding_window=64)
    same(load_model(directory), load_model(FIXTURES / "llama2"))
