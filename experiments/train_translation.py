"""Trains the embedded English-French translation pair: a target model and its small draft.

    python -m experiments.train_translation --data fra-eng.tsv.gz --out runs/translation

Both models share one vocabulary. Seeds are fixed; a run that was killed goes on from its last
checkpoint. ``--model draft`` trains the draft, ``--export DIR`` writes the Hugging Face layout that
``decoding_jax.load`` reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import sentencepiece

from decoding_jax.models.t5 import T5, T5Config, T5Network
from experiments import quick, training
from experiments import translation_data as data

VOCAB_SIZE = 8000
QUICK = {"model": "draft", "held_out": 4, "tokens": 64, "epochs": 0.5}
MODELS = {
    "target": T5Config(VOCAB_SIZE, 256, 4, 64, 896, 4, 4, logits_via_embedding=True),
    "draft": T5Config(VOCAB_SIZE, 128, 4, 32, 512, 2, 1, logits_via_embedding=True),
}


def loss_fn(
    params: Any, batch: data.Batch, key: jax.Array, config: T5Config, smoothing: float
) -> jax.Array:
    """Label-smoothed cross-entropy per target token, in nats, computed in bfloat16."""
    network = T5Network(config, training=True)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    source, target = batch
    inputs = jnp.pad(target[:, :-1], ((0, 0), (1, 0)))
    logits: Any = network.apply(
        {"params": half},
        source,
        (source > 0).sum(-1),
        inputs,
        jnp.full(target.shape[0], target.shape[1]),
        rngs={"dropout": key},
    )
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    # A masked sum rather than a gather: its gradient is elementwise, not a scatter.
    is_target = jnp.arange(config.vocab_size)[None, None] == target[..., None]
    chosen = jnp.where(is_target, logits, 0).sum(-1)
    loss = normaliser - (1 - smoothing) * chosen - smoothing * logits.mean(-1)
    real = target > 0
    return (loss * real).sum() / real.sum()


def make_optimizer(params: Any, config: T5Config, steps: int, peak: float) -> Any:
    """AdamW with a step for each kind of weight in proportion to its size.

    Adam moves all weights by the same amount, and T5's are of different sizes: queries carry the
    1 / sqrt(head_dim) of the attention, embeddings have unit variance. Without this the attention
    of the first layers saturates and nothing is learnt.
    """

    def factor(path: Any, _: Any) -> float:
        names = [part.key for part in path]
        if "query" in names:
            return config.head_dim**-0.5
        return 8.0 if "embedding" in names else 1.0

    factors = jax.tree_util.tree_map_with_path(factor, params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, min(400, steps // 5), steps)

    def scale(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda u, f: u * f, updates, factors), state

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b2=0.98, weight_decay=1e-4),
        optax.GradientTransformation(lambda params: optax.EmptyState(), scale),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="fra-eng.tsv.gz")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--model", choices=sorted(MODELS), default="target")
    parser.add_argument("--vocab_size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--held_out", type=int, default=2000, help="pairs of the test set")
    parser.add_argument("--epochs", type=float, default=2.4)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens a batch and side")
    parser.add_argument("--learning_rate", type=float, default=1.5e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--label_smoothing", type=float, default=0.1)
    parser.add_argument("--checkpoint_every", type=int, default=500, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export", type=Path, help="where to write the trained model")
    args = quick.parse(parser, argv, QUICK)

    args.out.mkdir(parents=True, exist_ok=True)
    train, test = data.split(data.read_pairs(args.data), held_out=args.held_out, seed=0)
    pieces = args.out / "spiece.model"
    if not pieces.exists():
        data.train_tokenizer(train, pieces, args.vocab_size)
    with open(args.out / "held_out.jsonl", "w", encoding="utf-8") as f:
        for english, french in zip(*test, strict=True):
            f.write(json.dumps({"en": english, "fr": french}, ensure_ascii=False) + "\n")
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    batches = data.Batches(
        tokenizer.encode(train.english), tokenizer.encode(train.french), args.tokens, args.seed
    )

    plain = dataclasses.replace(MODELS[args.model], vocab_size=args.vocab_size)
    config = dataclasses.replace(plain, dtype="bfloat16", dropout_rate=args.dropout)
    key = jax.random.key(args.seed)
    params = T5.init(config, key).params
    steps = int(args.epochs * batches.steps_per_epoch)
    optimizer = make_optimizer(params, config, steps, args.learning_rate)
    print(
        f"{sum(x.size for x in jax.tree.leaves(params)):,} parameters, {steps:,} steps", flush=True
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, opt: Any, batch: data.Batch, step: int) -> Any:
        rng = jax.random.fold_in(key, step)
        loss, grads = jax.value_and_grad(loss_fn)(params, batch, rng, config, args.label_smoothing)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    def shown(loss: Any, step: int) -> dict[str, str]:
        return {"loss": f"{loss:.3f}", "epoch": f"{step / batches.steps_per_epoch:.2f}"}

    checkpoint = args.out / f"{args.model}.msgpack"
    every = args.checkpoint_every
    params = training.train(update, params, optimizer, batches, steps, checkpoint, every, shown)
    training.export(T5(params, plain), pieces, args.export)


if __name__ == "__main__":
    main()
