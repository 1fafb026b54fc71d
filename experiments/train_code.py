"""Trains the embedded model of Python code, and two drafts of it that have one size.

    python -m experiments.train_code --out runs/code --model target

The text is the standard library of the Python that runs this, without its tests; one file in twenty
is held out. All models share one vocabulary. Seeds are fixed; a run that was killed goes on from
its last checkpoint. ``--model wide`` and ``--model deep`` train the drafts, ``--export DIR`` writes
the Hugging Face layout that ``decoding_jax.load`` reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import platform
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers

from decoding_jax.models.llama import Llama, LlamaConfig, LlamaNetwork
from experiments import code_data as data
from experiments import quick, training

VOCAB_SIZE = 2048
POSITIONS = 256
QUICK = {"model": "wide", "epochs": 0.001, "rows": 1}


def config_of(width: int, heads: int, mlp: int, layers: int) -> LlamaConfig:
    """A network with the output tied to the embedding."""
    return LlamaConfig(
        VOCAB_SIZE, width, heads, heads, width // heads, mlp, layers, POSITIONS,
        logits_via_embedding=True,
    )  # fmt: skip


MODELS = {
    "target": config_of(192, 3, 512, 4),
    "wide": config_of(128, 2, 520, 1),
    "deep": config_of(64, 2, 144, 6),
}


def loss_fn(params: Any, tokens: jax.Array, config: LlamaConfig) -> jax.Array:
    """The cross-entropy of each token of ``[B, T]`` after the first, in nats ``[B, T - 1]``."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    length = jnp.full(inputs.shape[0], inputs.shape[1])
    logits: Any = LlamaNetwork(config).apply({"params": params}, inputs, length)
    # A masked sum rather than a gather: its gradient is elementwise, not a scatter.
    is_target = jnp.arange(config.vocab_size)[None, None] == targets[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(is_target, logits, 0).sum(-1)


def initial(config: LlamaConfig, key: jax.Array) -> Any:
    """Random parameters of a network whose layers add nothing to their inputs yet."""

    def start(path: Any, x: jax.Array) -> jax.Array:
        return 0 * x if {part.key for part in path} & {"out", "down"} else x

    return jax.tree_util.tree_map_with_path(start, Llama.init(config, key).params)


def make_optimizer(steps: int, peak: float) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, min(200, steps // 5), steps)
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98, weight_decay=0.01)
    )


_losses = jax.jit(loss_fn, static_argnames="config")


def bits_per_character(params: Any, config: LlamaConfig, tokens: np.ndarray, size: int) -> float:
    """Of a text of ``size`` characters, read in windows that overlap by a half."""
    total = 0.0
    for window in data.windows(tokens, config.max_positions):
        padded = np.zeros((1, config.max_positions), np.int32)
        padded[0, : len(window.tokens)] = window.tokens
        loss = np.asarray(_losses(params, padded, config=config))[0]
        total += float(loss[window.context - 1 : len(window.tokens) - 1].sum())
    return total / size / math.log(2)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    library = Path(sysconfig.get_path("stdlib"))
    parser.add_argument("--data", type=Path, default=library, help="a folder of .py files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--model", choices=sorted(MODELS), default="target")
    parser.add_argument("--vocab_size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--every", type=int, default=20, help="one file in so many is held out")
    parser.add_argument("--epochs", type=float, default=0.9)
    parser.add_argument("--rows", type=int, default=4, help=f"windows of {POSITIONS} a batch")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--checkpoint_every", type=int, default=250, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export", type=Path, help="where to write the trained model")
    args = quick.parse(parser, argv, QUICK)

    args.out.mkdir(parents=True, exist_ok=True)
    train, held_out = data.split(data.read_files(args.data), args.every)
    pieces = args.out / "tokenizer.json"
    if not pieces.exists():
        data.train_tokenizer(train, pieces, args.vocab_size)
    tokenizer = tokenizers.Tokenizer.from_file(str(pieces))
    made: dict[str, Sequence[data.Example | data.Line]] = {
        "stdlib_held_out": data.examples(tokenizer, held_out),
        "stdlib_held_out_lines": data.held_out_lines(tokenizer, held_out),
    }
    for name, rows in made.items():
        with open(args.out / f"{name}.jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows)
    batches = data.Batches(data.encode(tokenizer, train), POSITIONS + 1, args.rows, args.seed)

    config = dataclasses.replace(MODELS[args.model], vocab_size=tokenizer.get_vocab_size())
    params = initial(config, jax.random.key(args.seed))
    steps = max(1, int(args.epochs * batches.steps_per_epoch))
    optimizer = make_optimizer(steps, args.learning_rate)
    print(
        f"Python {platform.python_version()}: {len(train)} files of"
        f" {sum(len(f.text) for f in train):,} characters, {len(batches.tokens):,} tokens;"
        f" {len(held_out)} held out\n"
        f"{sum(x.size for x in jax.tree.leaves(params)):,} parameters, {steps:,} steps",
        flush=True,
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, opt: Any, batch: jax.Array, step: int) -> Any:
        loss, grads = jax.value_and_grad(lambda p: loss_fn(p, batch, config).mean())(params)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    def shown(loss: Any, step: int) -> dict[str, str]:
        return {"loss": f"{loss:.3f}", "epoch": f"{step / batches.steps_per_epoch:.2f}"}

    checkpoint = args.out / f"{args.model}.msgpack"
    every = args.checkpoint_every
    params = training.train(update, params, optimizer, batches, steps, checkpoint, every, shown)
    text = data.encode(tokenizer, held_out)
    size = sum(len(f.text) for f in held_out)
    bits = bits_per_character(params, config, text, size)
    print(f"held out: {size:,} characters, {len(text):,} tokens, {bits:.3f} bits per character")
    end = {"eos_token_id": tokenizer.token_to_id(data.END)}
    training.export(Llama(params, config), pieces, args.export, settings=end)


if __name__ == "__main__":
    main()
