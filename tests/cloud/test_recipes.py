"""The gin files of configs/tpu run, with a small model and a mesh that fits it."""

import json
from pathlib import Path

import pytest

from decoding_jax.infer.command import main
from experiments.cloud.preemptions import save_small_model

# Meshes of more devices than there are.
SMALLER = {"v5e_64_llama_70b": {"MESH": {"data": 2, "model": 4}}}
RECIPES = sorted((Path(__file__).parent.parent.parent / "configs" / "tpu").glob("v*.gin"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    save_small_model(directory, seed=0, emb_dim=16, num_heads=4, head_dim=4, mlp_dim=16)
    return directory


@pytest.mark.release
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            path, id=path.stem, marks=() if path.stem == "v5e_8" else pytest.mark.exhaustive
        )
        for path in RECIPES
    ],
)
def test_a_recipe_runs(recipe, model, tmp_path, capsys):
    assert len(RECIPES) == 5
    (tmp_path / "inputs.txt").write_text("one\n\ntwo\n")
    bindings = {
        "MODEL_DIR": str(model),
        "INPUT": str(tmp_path / "inputs.txt"),
        "OUTPUT_DIR": str(tmp_path / "out"),
        "MAX_NEW_TOKENS": 2,
        "MAX_INPUT_LENGTH": 16,
        "BATCH_SIZE": 2,
        **SMALLER.get(recipe.stem, {}),
    }
    given = [f"--gin.{name}={value!r}" for name, value in bindings.items()]
    if "load.tokenizer" in recipe.read_text():
        given.append("--gin.decoding_jax.load.tokenizer=None")
    assert main(["infer", f"--gin_file={recipe}", *given]) == 0, capsys.readouterr().err
    (shard,) = (tmp_path / "out").glob("decodes-*.jsonl")
    records = [json.loads(line) for line in shard.read_text().splitlines()]
    assert ["error" in record for record in records] == [False, True, False]
    assert all(record["outputs"] for record in records if "error" not in record)
