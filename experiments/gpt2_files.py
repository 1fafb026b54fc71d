"""GPT-2 of one of OpenAI's four sizes, from a Hugging Face directory or a TensorFlow checkpoint."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

import decoding_jax
from decoding_jax.models import GPT2, GPT2Config
from decoding_jax.models.checkpoint.directory import all_of
from decoding_jax.models.checkpoint.families.gpt import GPT_2
from decoding_jax.models.checkpoint.params import read_piece
from decoding_jax.text import Tokenizer, load_tokenizer

NAMES = {"124M": "gpt2", "355M": "gpt2-medium", "774M": "gpt2-large", "1558M": "gpt2-xl"}


def load_size(size: str, models_dir: str) -> tuple[Any, Tokenizer]:
    """Loads the model of a size, from the first directory that has one.

    These are ``models_dir/124M`` and ``models_dir/gpt2``, and so on: a Hugging Face directory, with
    ``config.json`` and safetensors, or OpenAI's files, with ``hparams.json``, ``encoder.json``,
    ``vocab.bpe`` and a TensorFlow checkpoint.

    Args:
      size: ``"124M"``, ``"355M"``, ``"774M"`` or ``"1558M"``, or the name of a directory.
      models_dir: the directory of all of them.

    Raises:
      ValueError: in one line, if there is no model, or TensorFlow is needed and not installed.
    """
    folders = [Path(models_dir) / name for name in (size, NAMES.get(size)) if name is not None]
    for folder in folders:
        if (folder / "config.json").exists():
            return decoding_jax.load(folder)
        if (folder / "hparams.json").exists():
            return load_openai(folder)
    raise ValueError(
        f"{' and '.join(map(str, folders))}: no model; takes a Hugging Face directory "
        "(config.json) or OpenAI's files (hparams.json)"
    )


def load_openai(folder: Path) -> tuple[GPT2, Tokenizer]:
    """Loads OpenAI's files.

    Raises:
      ValueError: if TensorFlow is not installed, or a file or a variable is missing.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            f"{folder}: a TensorFlow checkpoint, but tensorflow is not installed; takes "
            "pip install tensorflow-cpu, or a Hugging Face directory"
        )
    missing = [name for name in ("encoder.json", "vocab.bpe") if not (folder / name).exists()]
    if missing:
        raise ValueError(f"{folder}: no {missing[0]}; takes all of OpenAI's files")
    import tensorflow

    shape = json.loads((folder / "hparams.json").read_text())
    config = GPT2Config(
        vocab_size=shape["n_vocab"],
        emb_dim=shape["n_embd"],
        num_heads=shape["n_head"],
        mlp_dim=4 * shape["n_embd"],
        num_layers=shape["n_layer"],
        max_positions=shape["n_ctx"],
    )
    latest = tensorflow.train.latest_checkpoint(str(folder))
    if latest is None:
        raise ValueError(f"{folder}: no TensorFlow checkpoint; takes all of OpenAI's files")
    variables = tensorflow.train.load_checkpoint(latest)
    shapes = jax.eval_shape(lambda: GPT2.init(config, jax.random.key(0))).params
    table, params = GPT_2.table(config), {}
    for path, leaf in traverse_util.flatten_dict(shapes, sep="/").items():
        weight = table[path]
        name = openai_name(weight.name.removeprefix("transformer."))
        if not variables.has_tensor(name):
            raise ValueError(f"{folder}: no variable {name}; takes a GPT-2 of {shape}")
        # Matrices are stored as convolutions of width 1.
        value = np.asarray(variables.get_tensor(name)).reshape(weight.stored_shape(leaf.shape))
        params[path] = jnp.asarray(read_piece(value, weight, all_of(leaf.shape)), jnp.float32)
    with tempfile.TemporaryDirectory() as renamed:
        shutil.copy(folder / "encoder.json", Path(renamed) / "vocab.json")
        shutil.copy(folder / "vocab.bpe", Path(renamed) / "merges.txt")
        tokenizer = load_tokenizer(renamed, family={"model_type": "gpt2"})
    return GPT2(traverse_util.unflatten_dict(params, sep="/"), config), tokenizer


def openai_name(name: str) -> str:
    """The TensorFlow variable of a tensor of the Hugging Face layout.

    Example:
      >>> openai_name("h.3.attn.c_attn.weight"), openai_name("ln_f.bias"), openai_name("wte.weight")
      ('model/h3/attn/c_attn/w', 'model/ln_f/b', 'model/wte')
    """
    *parts, kind = name.removeprefix("h.").split(".")
    if name.startswith("h."):
        parts[0] = f"h{parts[0]}"
    if parts[-1] in ("wte", "wpe"):
        return f"model/{parts[-1]}"
    scale = "g" if parts[-1].startswith("ln_") else "w"
    return "/".join(["model", *parts, scale if kind == "weight" else "b"])
