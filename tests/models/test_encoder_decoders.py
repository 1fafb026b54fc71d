"""Encoder-decoders: methods, meshes, limits, and texts as transformers generates them."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import exam
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiers
import tokenizers
from families import FIXTURES, VOCAB, torch_model
from folders import change, copy
from test_more_families import same

import decoding_jax
from decoding_jax.models.bart import sinusoids
from decoding_jax.models.checkpoint import CheckpointError, load_model, save_model, to_t5x
from decoding_jax.testing import check_model
from decoding_jax.text.inputs import check_tokens

SOURCE = np.array([[5, 9, 2, 33, 3], [3, 0, 0, 0, 0], [4, 4, 7, 0, 0], [8, 6, 0, 0, 0]], np.int32)
LENGTH = np.array([5, 1, 3, 2], np.int32)


@pytest.mark.parametrize(
    "family",
    tiers.values(
        exhaustive=["longt5", "switch"], release=["bart", "m2m_100", "t5gemma", "t5gemma2"]
    ),
)
def test_verbs_do_what_they_say(family: str) -> None:
    model = load_model(FIXTURES / family)
    if family == "switch":  # Its layers are of one kind, and those of LongT5 are two.
        model = model.early_exit(1)

    def alone(row: int) -> Any:
        source = jnp.asarray(SOURCE[row : row + 1, : LENGTH[row]])
        return model.bind(source, jnp.asarray(LENGTH[row : row + 1]))

    bound = model.bind(jnp.asarray(SOURCE[:3]), jnp.asarray(LENGTH[:3]))
    ran = check_model(bound, tolerance=1e-4, row_model=alone)
    assert {"check_tree", "check_keep", "check_select", "check_out_of_range"} <= set(ran)


def test_inputs_have_the_vocabulary_of_the_source() -> None:
    model = load_model(FIXTURES / "marian_separate")
    assert (model.source_vocab_size, model.config.vocab_size) == (44, 40)
    assert model.sharded_sizes["source_vocab_size"] == 44
    assert model.bind(np.array([[43]]), np.array([1])).vocab_size == 40
    with pytest.raises(ValueError, match="expected ids from 0 to 43, the model's vocabulary"):
        model.bind(np.array([[44]]), np.array([1]))
    check_tokens(model, [[43]])
    with pytest.raises(ValueError, match="ids from 0 to 43, got id 44 for text 0"):
        check_tokens(model, [[44]])
    with pytest.raises(ValueError, match="ids from 0 to 39, got id 43 for text 0"):
        importlib.import_module("decoding_jax.text.score")._check(model, [([43], [43])])
    own = dataclasses.replace(model.config, source_vocab_size=None)
    with pytest.raises(ValueError, match="source_vocab_size: expected a number with"):
        save_model(dataclasses.replace(model, config=own), "nowhere")


@pytest.mark.parametrize(
    "family",
    tiers.values(exhaustive=["longt5"], release=["m2m_100", "mbart", "t5gemma", "t5gemma2"]),
)
def test_scanned_layers_and_bfloat16_compute_nearly_the_same(family: str) -> None:
    stored = safetensors.numpy.load_file(FIXTURES / family / "expected.safetensors")
    model = load_model(FIXTURES / family, scan_layers=True)
    exam.compare(exam.answers(model, stored, step=3), stored, 1e-4)
    got = exam.answers(load_model(FIXTURES / family, dtype="bfloat16"), stored, step=3)
    for part in exam.PARTS:
        assert np.abs(got[part] - stored[part]).mean() < 0.05 * stored[part].std()


@pytest.mark.parametrize(
    "family",
    tiers.values(
        exhaustive=["switch"], release=["bart", "longt5", "m2m_100", "t5gemma", "t5gemma2"]
    ),
)
def test_a_mesh_decodes_the_same_tokens(family: str) -> None:
    found = []
    for mesh in (None, jax.make_mesh((4, 2), ("data", "model"))):
        model = load_model(FIXTURES / family, mesh=mesh).bind(SOURCE, LENGTH)
        prompt = model.start_prompt()
        found.append(decoding_jax.greedy(model, prompt, max_new_tokens=6).tokens)
    np.testing.assert_array_equal(*found)


def test_inputs_and_outputs_have_as_many_tokens_as_positions() -> None:
    model = load_model(FIXTURES / "bart")
    length = np.array([5, 33], np.int32)
    message = r"^inputs.length: expected 1 to the model's 32 positions, got 33 in row 1$"
    with pytest.raises(ValueError, match=message):
        model.bind(np.ones((2, 40), np.int32), length)
    bound = model.bind(np.ones((2, 40), np.int32), length - 1)
    assert bound.max_positions == 32
    with pytest.raises(ValueError, match=r"expected at most 32 .*: the model has 32"):
        decoding_jax.greedy(bound, bound.start_prompt(), max_new_tokens=33)
    unlimited = load_model(FIXTURES / "m2m_100").bind(np.ones((2, 40), np.int32), length)
    assert unlimited.max_positions is None


def test_experts_in_some_layers() -> None:
    directory = FIXTURES / "switch"
    model = load_model(directory)
    layers = [
        model.params[stack][f"layers_{i}"] for stack in ("encoder", "decoder") for i in (0, 1)
    ]
    assert ["router" in layer["mlp"] for layer in layers] == [False, True, True, True]
    with pytest.raises(CheckpointError, match=r"scan_layers: expected False where not all layers"):
        load_model(directory, scan_layers=True)
    with pytest.raises(ValueError, match=r"^encoder_sparse_step: expected 0 without num_experts"):
        dataclasses.replace(model.config, num_experts=None)
    with pytest.raises(ValueError, match=r"^model: expected one without num_experts, got 4$"):
        to_t5x(model)


def test_what_the_layout_does_not_hold_is_refused(tmp_path: Path) -> None:
    model = load_model(FIXTURES / "pegasus")
    config = dataclasses.replace(model.config, embedding_norm=True)
    with pytest.raises(ValueError, match=r"^config: .*, got positions='sinusoidal', norm_first=T"):
        save_model(dataclasses.replace(model, config=config), tmp_path)
    directory = copy("pegasus", tmp_path)
    name = "model.encoder.embed_positions.weight"
    change_table = lambda tensors: tensors.update({name: np.ones((32, 16), np.float32)})  # noqa: E731
    save_model(model, directory, dtype="float32")
    change(directory, change_table)
    with pytest.raises(
        CheckpointError, match=f"{name}: expected the sines and cosines .*, got 'another table'"
    ):
        load_model(directory)


@pytest.mark.release
def test_older_files_have_other_names(tmp_path: Path) -> None:
    """Several names of one table, no prefix, tables of sines and cosines."""
    directory = copy("m2m_100", tmp_path)
    table = np.array(sinusoids(jnp.arange(34), 16, inclusive=True))
    table[1] = 0.0  # the padding token
    positions = "model.encoder.embed_positions.weights"

    def rename(tensors: dict[str, np.ndarray]) -> None:
        shared = tensors.pop("model.shared.weight")
        tensors |= {"lm_head.weight": shared, "model.decoder.embed_tokens.weight": shared}
        tensors[positions] = table

    change(directory, rename)
    same(load_model(directory), load_model(FIXTURES / "m2m_100"))
    change(directory, lambda tensors: tensors.update({"lm_head.weight": np.ones((40, 16))}))
    with pytest.raises(
        CheckpointError, match=r"lm_head.weight: expected the same table .*, got 'another tensor'"
    ):
        load_model(directory)
    directory = copy("bart", tmp_path)

    def unprefixed(tensors: dict[str, np.ndarray]) -> None:
        del tensors["final_logits_bias"]
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    change(directory, unprefixed)
    bare, whole = load_model(directory), load_model(FIXTURES / "bart")
    assert bare.config == dataclasses.replace(whole.config, logits_bias=False)
    params = {name: tree for name, tree in whole.params.items() if name != "logits_bias"}
    jax.tree.map(np.testing.assert_array_equal, bare.params, params)


def test_a_tokenizer_that_numbers_otherwise_is_not_read(tmp_path: Path) -> None:
    directory = copy("pegasus", tmp_path)
    (directory / "spiece.model").touch()
    message = "pegasus: no tokenizer; expected tokenizer.json for a pegasus, which AutoTok"
    with pytest.raises(ValueError, match=message):
        decoding_jax.load(directory)


def words(directory: Path, end: int) -> None:
    """Writes a tokenizer whose words are token ids, and which ends texts with a token."""
    vocabulary = {str(i): i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="3"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(str(end), end)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # those of transformers and PyTorch
@pytest.mark.parametrize(
    "family",
    tiers.values(
        exhaustive=["m2m_100"], release=["bart", "mbart", "pegasus", "marian", "t5gemma2"]
    ),
)
def test_generate_gives_the_tokens_of_transformers(family: str, tmp_path: Path) -> None:
    import torch

    original = torch_model(family, seed=6)
    original.save_pretrained(tmp_path)
    end = json.loads((tmp_path / "config.json").read_text())["eos_token_id"]
    words(tmp_path, end)
    model, tokenizer = decoding_jax.load(tmp_path)
    texts = ["5 9 11 21", "8 4", "6 12 20 7 7 30 31"]
    forced = {"forced_bos_token_id": 21, "forced_eos_token_id": None, "max_new_tokens": 9}
    if family == "marian":
        forced |= {"bad_words_ids": [[VOCAB - 1]], "renormalize_logits": True}
    for flags in (forced, {**forced, "num_beams": 3}):
        rows = decoding_jax.generate(model, tokenizer, texts, **flags)
        for text, row in zip(texts, rows, strict=True):
            source = torch.tensor([tokenizer.encode(text)])
            tokens = original.generate(source, **flags)[0, 1:].tolist()
            assert row[0].tokens[0] == 21
            assert row[0].tokens == tokens[: len(row[0].tokens)]
            assert len(row[0].tokens) in (9, tokens.index(end) + 1 if end in tokens else 9)
