"""``experiments.gpt2_speculative`` takes the published program's flags, and its models."""

import json

import jax
import numpy as np
import pytest
import tokenizers
from networks import drawn
from safetensors.numpy import load_file

from decoding_jax.models import GPT2, GPT2Config, save_model
from decoding_jax.models.checkpoint.families.gpt import GPT_2
from experiments import gpt2_files, gpt2_speculative

SHAPE = {"n_vocab": 257, "n_ctx": 64, "n_embd": 8, "n_head": 2, "n_layer": 1}
CONFIG = GPT2Config(
    vocab_size=257, emb_dim=8, num_heads=2, mlp_dim=32, num_layers=1, max_positions=64
)


def random_model(seed):
    return drawn(GPT2, CONFIG, seed)


def write_tokenizer(folder, vocabulary, merges):
    """Bytes, as the tokenizer of GPT-2 spells them, and no merges."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: i for i, letter in enumerate([*letters, "<|endoftext|>"])}
    folder.mkdir(exist_ok=True)
    (folder / vocabulary).write_text(json.dumps(ids), encoding="utf-8")
    (folder / merges).write_text("#version: 0.2\n", encoding="utf-8")


@pytest.fixture
def hugging_face(tmp_path):
    for seed, name in enumerate(("gpt2", "1558M")):
        write_tokenizer(tmp_path / name, "vocab.json", "merges.txt")
        save_model(random_model(seed), tmp_path / name)
    return tmp_path


@pytest.mark.exhaustive
def test_the_published_flags(hugging_face, capsys):
    """The draft has the name of the Hugging Face Hub, and the target that of OpenAI."""
    flags = f"--draft_model_size 124M --target_model_size=1558M --models_dir {hugging_face}"
    flags += " --n_tokens_to_generate 12 --K 3 --temperature 0.0 --seed 1"
    gpt2_speculative.main([*flags.split(), "--prompt", "Alan Turing"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:3] == ["", "Autoregressive Decode", "---------------------"]
    speculative = lines.index("Speculative Decode")
    assert lines[speculative + 1] == "------------------"
    texts = [line for line in lines if line.startswith("Text = Alan Turing")]
    assert len(texts) == 2
    assert len([line for line in lines if line.startswith("Time = ")]) == 2
    assert lines[-1] == "the texts are the same"
    for title in ("autoregressive sampling: 100%", "speculative sampling: 100%"):
        assert title in err
    assert "12/12" in err


def test_a_model_that_is_missing_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match=r"355M and .*gpt2-medium: no model; takes a Hugging"):
        gpt2_speculative.main(["--draft_model_size", "355M", "--models_dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="--draft_model, --target_model: takes both directories"):
        gpt2_speculative.main(["--draft_model", "a", "--models_dir", "b"])


def test_without_tensorflow_its_checkpoints_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "124M"
    folder.mkdir()
    (folder / "hparams.json").write_text(json.dumps(SHAPE))
    monkeypatch.setattr(gpt2_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"124M: a TensorFlow checkpoint, but tensorflow is not"):
        gpt2_files.load_size("124M", str(tmp_path))


def openai_name(name):
    """OpenAI's name of a tensor of a Hugging Face directory."""
    return gpt2_files.openai_name(name.removeprefix("transformer."))


def test_openai_s_names():
    stored = {weight.name for weight in GPT_2.table(CONFIG).values()}
    names = [openai_name(name) for name in stored]
    assert len(set(names)) == len(names)
    assert {"model/wte", "model/wpe", "model/ln_f/g", "model/h0/mlp/c_proj/b"} <= set(names)
    assert "model/h0/attn/c_attn/w" in names


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # TensorFlow's own
def test_openai_s_files(tmp_path):
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    folder, model = tmp_path / "124M", random_model(0)
    save_model(model, tmp_path / "saved")
    write_tokenizer(folder, "encoder.json", "vocab.bpe")
    (folder / "hparams.json").write_text(json.dumps(SHAPE))
    v1 = tensorflow.compat.v1
    with tensorflow.Graph().as_default(), v1.Session() as session:
        for name, stored in load_file(tmp_path / "saved" / "model.safetensors").items():
            is_matrix = stored.ndim == 2 and not name.endswith(("wte.weight", "wpe.weight"))
            stored = stored[None] if is_matrix else stored
            v1.get_variable(openai_name(name), initializer=stored)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "model.ckpt"))
    loaded, tokenizer = gpt2_files.load_size("124M", str(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)
    assert tokenizer.decode(tokenizer.encode("Alan Turing")) == "Alan Turing"
