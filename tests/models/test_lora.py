"""Adapters of PEFT, beside ``peft`` on random weights."""

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiers
from safetensors.numpy import load_file, save_file
from tiny_transformers import network

from decoding_jax.models.checkpoint import CheckpointError, load_model

TOKENS = [[1, 5, 9, 2, 7, 3]]
LAYERS = {
    "llama": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj"],
    "t5": ["q", "v", "wo"],
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"alpha_pattern": {"layers.0.self_attn.q_proj": 3}},
    "stabilised": {"use_rslora": True, "rank_pattern": {"o_proj": 3}},
    "dora": {"use_dora": True},
}


def adapted(family: str, folder: Path, **settings: Any) -> Any:
    """A tiny network and an adapter of random numbers, in two folders; and both as one."""
    import peft
    import torch

    base = network(family)
    base.save_pretrained(folder / "base")
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=LAYERS[family], **settings)
    model = peft.get_peft_model(base, config)
    for name, value in model.named_parameters():
        if "lora" in name:
            noise = torch.randn(value.shape) / 2
            value.data = value.data * (1 + noise / 4) if "magnitude" in name else noise
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    model.save_pretrained(folder / "adapter")
    return model.eval()


def logits(family: str, model: Any) -> np.ndarray:
    tokens, length = np.array(TOKENS, np.int32), np.array([6], np.int32)
    if family == "t5":
        start = np.array([[0, 4, 6]], np.int32), np.array([3], np.int32)
        network = model.bound.network(model.config)
        found = network.apply({"params": model.params}, tokens, length, *start)
        return np.asarray(found)[0]
    found = [
        model.prefill(tokens, np.array([n], np.int32), lanes=1, slots=1)[0].logits[0, 0, 0]
        for n in (2, 6)
    ]
    return np.asarray(jax.device_get(found))


def logits_of_peft(family: str, model: Any) -> np.ndarray:
    import torch

    with torch.no_grad():
        if family == "t5":
            ids, start = torch.tensor(TOKENS), torch.tensor([[0, 4, 6]])
            return model(input_ids=ids, decoder_input_ids=start).logits[0].numpy()
        return model(input_ids=torch.tensor(TOKENS)).logits[0, [1, 5]].numpy()


@pytest.mark.parametrize(("family", "kind"), tiers.combinations(itertools.product(LAYERS, KINDS)))
def test_a_merged_model_is_that_of_peft(family: str, kind: str, tmp_path: Path) -> None:
    """From both directories, and from that of the adapter alone."""
    theirs = adapted(family, tmp_path, **KINDS[kind])
    want = logits_of_peft(family, theirs)
    merged = load_model(tmp_path / "base", lora=tmp_path / "adapter")
    np.testing.assert_allclose(logits(family, merged), want, atol=1e-4)
    plain = logits(family, load_model(tmp_path / "base"))
    assert np.abs(plain - want).max() > 0.01
    again = load_model(tmp_path / "adapter")
    jax.tree.map(np.testing.assert_array_equal, again.params, merged.params)


@pytest.mark.exhaustive
def test_pieces_of_a_mesh_are_merged_alone(tmp_path: Path) -> None:
    """With magnitudes too, whose norms are of whole rows; and layers are stacked."""
    adapted("llama", tmp_path, **KINDS["dora"])
    want = load_model(tmp_path / "base", lora=tmp_path / "adapter")
    found = load_model(tmp_path / "adapter", mesh={"data": 1, "model": 2})
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), found.params, want.params
    )


def write(folder: Path, tensors: dict[str, np.ndarray], **settings: Any) -> Path:
    """An adapter directory."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


FIXTURE = Path(__file__).parent / "fixtures" / "qwen2"
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


def matrices(layer: str = LAYER) -> dict[str, np.ndarray]:
    shape = load_file(FIXTURE / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].shape
    random = np.random.default_rng(0).normal
    down = random(size=(2, shape[1])).astype(np.float32)
    up = random(size=(shape[0], 2)).astype(np.float32)
    return {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}


def test_the_equation(tmp_path: Path) -> None:
    given = matrices()
    model = load_model(FIXTURE, lora=write(tmp_path / "lora", given))
    plain = load_model(FIXTURE)
    down, up = given.values()
    change = jax.tree.map(lambda x, y: np.asarray(x - y), model.params, plain.params)
    found = [x for x in jax.tree.leaves(change) if np.any(x)]
    assert len(found) == 1
    np.testing.assert_allclose(found[0], (2 * up @ down).T.reshape(found[0].shape), atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "settings", "said"),
    [
        (f"{LAYER}s", {}, "linear layers, got one of model.layers.0.self_attn.q_projs"),
        (LAYER, {"peft_type": "IA3"}, "peft_type: expected 'LORA', got 'IA3'"),
        (LAYER, {"bias": "all"}, "bias: expected 'none' only, got 'all'"),
        (LAYER, {"modules_to_save": ["lm_head"]}, "modules_to_save: expected no such setting, or"),
        (LAYER, {"init_lora_weights": "pissa"}, "init_lora_weights: expected weights that leave"),
        (LAYER, {"use_dora": True}, "expected lora_A, lora_B, lora_magnitude_vector of model"),
        (LAYER.replace("q_proj", "k_proj"), {}, "k_proj.weight: expected an adapter of shape"),
    ],
)
def test_what_does_not_fit_is_one_line(
    layer: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    lora = write(tmp_path / "lora", matrices(layer), **settings)
    with pytest.raises(CheckpointError, match=said) as error:
        load_model(FIXTURE, lora=lora)
    assert "\n" not in str(error.value)


def test_tables_of_tokens_are_refused(tmp_path: Path) -> None:
    name = "base_model.model.model.embed_tokens.lora_embedding_A"
    lora = write(tmp_path / "lora", {name: np.ones((2, 3), np.float32)})
    with pytest.raises(CheckpointError, match=f"of linear layers, got {name}"):
        load_model(FIXTURE, lora=lora)


def test_a_base_that_is_not_here(tmp_path: Path) -> None:
    lora = write(tmp_path / "lora", matrices(), base_model_name_or_path="Qwen/Qwen3-0.6B")
    said = "expected the directory of a model, got 'Qwen/Qwen3-0.6B'; load.directory, lora="
    with pytest.raises(CheckpointError, match=said):
        load_model(lora)
