"""Writes an embedded model at the shape, and so at the cost, of a large one.

    python -m experiments.widened python-code 1558M --out models/code-1558M
    python -m experiments.widened python-code-draft-deep 124M --out models/code-124M
    python -m experiments.widened translation-en-fr T5-base --out models/translation-T5-base

writes a directory that ``decoding_jax.load`` reads. The large network computes the function of the
small one: a draft is accepted as often, and texts are as long, while a step reads the weights of a
large model. Times of published sizes can thus be measured where no such weights are at hand. The
command prints how far the logits are from those of the small network, which is rounding.

The expansion is in the manner of Net2Net (Chen et al. 2015, "Net2Net: Accelerating Learning via
Knowledge Transfer"). The small arrays are the first entries of the large ones. All further columns
of the residual stream are zero, and a norm's weights and epsilon make up for their number. Further
heads, features and layers have random weights, and their outputs are multiplied by zeros, which are
read and multiplied like all others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

import decoding_jax
from decoding_jax.models import GPT2, T5, Llama, save_model
from decoding_jax.text import embedded
from experiments import held_out

DEVIATION = 0.02
"""The standard deviation of random weights."""

OUTPUTS = ("out", "down", "wo")
"""The projections whose results are added to the residual stream."""


class Shape(NamedTuple):
    """The shape of a published model.

    Attributes:
      width: the size of the residual stream.
      layers: the number of layers, of encoder and decoder each.
      features: the size of an ungated feed-forward part.
    """

    width: int
    layers: int
    features: int


SHAPES = {
    "124M": Shape(768, 12, 3072),
    "355M": Shape(1024, 24, 4096),
    "774M": Shape(1280, 36, 5120),
    "1558M": Shape(1600, 48, 6400),
    "T5-base": Shape(768, 12, 3072),
    "T5-large": Shape(1024, 24, 4096),
}
"""GPT-2's sizes (Radford et al. 2019) and T5's (Raffel et al. 2020)."""


def widened_config(config: Any, shape: Shape) -> Any:
    """The config of a network of a shape, with the heads' size and the vocabulary of the small one.

    A gated feed-forward part has three matrices for two, so it has two thirds of the features, a
    multiple of 64.

    Raises:
      ValueError: for a shape that is smaller than the network, or no multiple of its heads' size.

    Example:
      >>> model, _ = decoding_jax.load("python-code")
      >>> wide = widened_config(model.config, SHAPES["774M"])
      >>> wide.num_heads, wide.mlp_dim, wide.num_layers
      (20, 3392, 36)
    """
    gated = not hasattr(config, "num_decoder_layers")
    features = shape.features * 2 // 3 // 64 * 64 if gated else shape.features
    epsilon = "norm_epsilon" if gated else "layer_norm_epsilon"
    heads = shape.width // config.head_dim
    sizes = {"emb_dim": shape.width, "mlp_dim": features, "num_heads": heads}
    sizes |= (
        {"num_kv_heads": heads, "num_layers": shape.layers}
        if gated
        else {"num_encoder_layers": shape.layers, "num_decoder_layers": shape.layers}
    )
    for name, size in sizes.items():
        if size < getattr(config, name):
            raise ValueError(
                f"shape: expected {name} of {getattr(config, name)} or more, got {size}"
            )
    if shape.width % config.head_dim:
        raise ValueError(f"shape: expected a multiple of {config.head_dim}, got {shape.width}")
    # The mean of squares is over more columns, whose squares are zero.
    sizes[epsilon] = getattr(config, epsilon) * config.emb_dim / shape.width
    return dataclasses.replace(config, **sizes)


def widened(model: Llama | T5, shape: Shape, seed: int = 0) -> Llama | T5:
    """The same function at another shape.

    Args:
      model: a network whose query heads have a key-value head each.
      shape: the shape, at least as large in all sizes.
      seed: that of the random weights.

    Returns:
      A network with float32 weights, on the host.

    Raises:
      ValueError: as ``widened_config``.
    """
    config = widened_config(model.config, shape)
    wide = jax.eval_shape(lambda: type(model).init(config, jax.random.key(0)))
    small = traverse_util.flatten_dict(model.params, sep="/")
    ratio = math.sqrt(model.config.emb_dim / shape.width)
    rng = np.random.default_rng(seed)
    params = {}
    for path, leaf in traverse_util.flatten_dict(wide.params, sep="/").items():
        name = path.split("/")[-2]
        if path.endswith("scale"):
            values = np.ones(leaf.shape, np.float32)
        elif name in OUTPUTS or (path.endswith("embedding") and name == "token_embedder"):
            values = np.zeros(leaf.shape, np.float32)
        else:
            values = rng.standard_normal(leaf.shape, np.float32) * np.float32(DEVIATION)
        if path in small:
            first = np.asarray(small[path], np.float32)
            # A tied output multiplies by width^-0.5 in a T5, which its last norm makes up for.
            last = name == "decoder_norm" and model.config.logits_via_embedding
            scale = ratio if path.endswith("scale") and not last else 1.0
            values[tuple(slice(n) for n in first.shape)] = first * np.float32(scale)
        params[path] = values
    return type(model)(traverse_util.unflatten_dict(params, sep="/"), config)


def largest_difference(model: Llama | T5, wide: Llama | T5, tokenizer: Any, rows: int = 4) -> float:
    """The largest difference of two networks' log-probabilities after each token of some texts."""
    if isinstance(model, T5):
        pairs = [[s.english, s.references[0]] for s in held_out.read()[:rows]]
    else:
        with open(held_out.LINES, encoding="utf-8") as lines:
            pairs = [[json.loads(next(lines))["prompt"]] for _ in range(rows)]
    network = T5.bound.network if isinstance(model, T5) else Llama.network
    given: list[jax.Array] = []
    for texts in zip(*pairs, strict=True):
        ids = [list(tokenizer.encode(text))[:64] for text in texts]
        length = np.array([len(row) for row in ids])
        padded = np.zeros((rows, length.max()), np.int32)
        for row, tokens in zip(padded, ids, strict=True):
            row[: len(tokens)] = tokens
        given += [jnp.asarray(padded), jnp.asarray(length, jnp.int32)]
    real = np.arange(given[-2].shape[1]) < np.asarray(given[-1])[:, None]

    def log_probs(config: Any, params: Any) -> jax.Array:
        logits: Any = network(config).apply({"params": params}, *given)
        return jax.nn.log_softmax(logits)

    small, large = (
        np.asarray(jax.jit(log_probs, static_argnums=0)(m.config, m.params))[real]
        for m in (model, wide)
    )
    return float(np.abs(small - large).max())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="an embedded model, or a directory")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--out", type=Path, required=True, help="the directory")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0, help="that of the random weights")
    args = parser.parse_args(argv)
    model, tokenizer = decoding_jax.load(args.model)
    if not isinstance(model, (Llama, T5)) or isinstance(model, GPT2):
        parser.error(f"model: expected a Llama or a T5, got {type(model).__name__}")
    wide = widened(model, SHAPES[args.shape], args.seed)
    count = sum(x.size for x in jax.tree.leaves(wide.params))
    source = embedded().get(args.model, Path(args.model))
    save_model(wide, args.out, dtype=args.dtype, settings={"eos_token_id": tokenizer.eos_ids[0]})
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors", "README.md"):
            shutil.copy(file, args.out / file.name)
    read: Any = decoding_jax.load(str(args.out))[0]
    difference = largest_difference(model, read, tokenizer)
    print(f"{args.out}: {count / 1e6:.0f} million parameters in {args.dtype}")
    print(f"the largest difference of a log-probability is {difference:.1g}")


if __name__ == "__main__":
    main()
