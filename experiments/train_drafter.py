"""Trains a head of EAGLE-3, or a block of multi-token prediction, for a model of the library.

    python -m experiments.train_drafter --head eagle --out runs/drafter

The target is the embedded model of Python code, or any Llama that ``decoding_jax.load`` reads; it
stays as it is. The text is the standard library of the Python that runs this, as for
``train_code``; or a folder of ``.py`` files, or a file whose lines are texts. A head learns the
target's distributions of the next tokens (the cross-entropy of all of them), from the hidden states
of the target and then from its own: it is unrolled over its own states, with the attention that it
has where it drafts ("training-time test": Li et al. 2025, arXiv:2503.01840, section 3.2). Seeds are
fixed; a run that was killed goes on from its last checkpoint. ``--export DIR`` writes the layout
that ``decoding_jax.load_drafter`` reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization
from tqdm import tqdm

import decoding_jax
from decoding_jax.models import EagleConfig, EagleHead, Llama, MultiTokenBlock, MultiTokenConfig
from decoding_jax.models.attention import Part
from decoding_jax.models.caches import KeyValue
from decoding_jax.models.checkpoint import eagle, llama, multi_token
from decoding_jax.models.checkpoint.directory import CONFIG, WEIGHTS
from decoding_jax.models.checkpoint.params import Weight, write_params
from experiments import code_data, quick
from experiments.train_code import make_optimizer

QUICK = {
    "steps": 2,
    "rows": 1,
    "length": 16,
    "unrolled": 2,
    "drafted": 64,
    "windows": 1,
    "files": 12,
    "every": 4,
}
Head = EagleHead | MultiTokenBlock


def head_of(kind: str, target: Llama, drafted: int, key: jax.Array, **layer: int) -> Head:
    """A head with random parameters, whose layer adds nothing to its input yet.

    Args:
      kind: ``eagle`` or ``mtp``.
      target: the target.
      drafted: V', the number of tokens that ``eagle`` drafts.
      key: a typed key.
      **layer: ``num_heads``, ``num_kv_heads`` and ``mlp_dim`` of its layer.
    """
    shape = target.config
    given = {
        **layer,
        "emb_dim": shape.emb_dim,
        "head_dim": shape.head_dim,
        "num_layers": 1,
        "max_positions": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rope_scaling": shape.rope_scaling,
        "norm_epsilon": shape.norm_epsilon,
        "feature_dim": shape.emb_dim,
    }
    depth = shape.num_layers
    made: Any = EagleHead
    given["feature_layers"] = (min(1, depth), depth // 2, depth)
    config: Any = EagleConfig(drafted, **given)
    if kind == "mtp":
        made = MultiTokenBlock
        config = MultiTokenConfig(shape.vocab_size, **{**given, "feature_layers": (depth,)})

    @jax.jit
    def params(key: jax.Array) -> Any:
        def start(path: Any, x: jax.Array) -> jax.Array:
            return 0 * x if {part.key for part in path} & {"out", "down"} else x

        return jax.tree_util.tree_map_with_path(start, made.init(config, key).params)

    head = made(params(key), config, target.params["token_embedder"]["embedding"])
    if kind == "mtp" and not shape.logits_via_embedding:
        head = dataclasses.replace(head, output=target.params["logits_dense"]["kernel"])
    return head


def unrolled(head: Head, tokens: jax.Array, states: jax.Array, steps: int) -> list[jax.Array]:
    """The states after each entry, from the target's states, and then from the head's own.

    Args:
      head: the head.
      tokens: int32 ``[B, T]``, of each entry.
      states: ``[B, 1, T, D]``, of the target, before each token.
      steps: the number of times that the head is run.

    Returns:
      For each step, ``[B, 1, T, D]``. Those of step s, from 1, are as if the s-th token of a draft
      were drafted after the entry; they are undefined for the first s - 1 entries.
    """
    size = tokens.shape[1]
    place = jnp.arange(size, dtype=jnp.int32)
    before = (place[:, None] - place[None])[None, None]
    embedded = head.embed(tokens[:, None])
    held: list[KeyValue] = []
    out = []
    for step in range(steps):

        def cache_of(index: int, step: int = step) -> Callable:
            def layer_cache(new: KeyValue) -> tuple[list[Part], KeyValue]:
                held.append(new)
                # Entries of the target's states, up to the last that the draft began with; then
                # one of each step, the nearest of which is the entry itself.
                masks = [before >= step, *(before == step - n for n in range(1, step + 1))]
                parts = [Part(*kept, mask) for kept, mask in zip(held, masks, strict=True)]
                return parts, new

            return layer_cache

        after, _ = head.apply(
            head.network.run_layers, embedded, states, place[None, None], cache_of
        )
        out.append(after)
        states = jnp.pad(after, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :-1]
    return out


def losses(
    head: Head, target: Llama, ids: np.ndarray, tokens: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array]:
    """The loss, and the expected rate of acceptance of each step.

    Args:
      head: the head.
      target: the target.
      ids: int32 ``[V']``, the target's id of each token of the head.
      tokens: int32 ``[B, T + 1]``.
      steps: as for ``unrolled``.

    Returns:
      The cross-entropy, in nats of a token; and float32 ``[steps]``, the probability that a token
      drawn from the head is accepted.
    """
    last = (target.num_layers,)
    reading = target.with_features((*head.feature_layers, *last))
    length = jnp.full(tokens.shape[0], tokens.shape[1])
    features = reading.prefill(tokens, length, lanes=1, slots=1)[0].features
    features = jax.lax.stop_gradient(features)
    wanted = jax.nn.softmax(target.project(features[-1][:, :, 1:]), axis=-1)
    wanted = jnp.take(wanted, ids, axis=-1)  # of tokens that the head can draft
    states = head.fuse(tuple(x[:, :, :-1] for x in features[:-1]))
    loss, rates = jnp.float32(0), []
    for step, after in enumerate(unrolled(head, tokens[:, 1:], states, steps)):
        log_prob = jax.nn.log_softmax(head.project(after), axis=-1)
        error = -(wanted * log_prob).sum(-1)[:, :, step:].mean()
        loss += 0.8**step * error
        rates.append(jnp.minimum(wanted, jnp.exp(log_prob)).sum(-1)[:, :, step:].mean())
    return loss / sum(0.8**step for step in range(steps)), jnp.stack(rates)


def export(head: Head, ids: np.ndarray, target: Llama, directory: Path) -> None:
    """Writes a head in bfloat16, as SpecForge does for EAGLE-3, and DeepSeek-V3 a block.

    Args:
      head: the head.
      ids: int32 ``[V']``, the target's id of each token of the head.
      target: the target.
      directory: where ``config.json`` and ``model.safetensors`` are written to.
    """
    config: Any = head.config
    params: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), head.params)
    values = llama.settings_of_shape(config) | {"model_type": "llama", "hidden_act": "silu"}
    if isinstance(head, MultiTokenBlock):
        table = multi_token.block_table(config, f"model.layers.{target.num_layers}")
        values |= {"num_hidden_layers": target.num_layers, llama.BLOCKS: 1}
    else:
        table = {**eagle.head_table(config, "midlayer"), "d2t": Weight("d2t")}
        params = {**params, "d2t": ids.astype(np.int64) - np.arange(len(ids))}
        layers = [layer - 1 for layer in config.feature_layers]
        values |= {"vocab_size": target.vocab_size, "draft_vocab_size": len(ids)}
        values |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}}
        values |= {"architectures": ["LlamaForCausalLMEagle3"]}
    directory.mkdir(parents=True, exist_ok=True)
    write_params(directory / WEIGHTS, table, params, None)
    (directory / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def read_files(path: Path) -> list[code_data.File]:
    """The ``.py`` files of a folder, or the lines of a file as texts of their own."""
    if path.is_dir():
        return code_data.read_files(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    return [code_data.File(str(i), line) for i, line in enumerate(lines) if line.strip()]


def most_frequent(tokens: np.ndarray, vocab_size: int, count: int) -> np.ndarray:
    """The ids of the most frequent tokens of a text, in their order: int32 ``[count]``."""
    counts = np.bincount(tokens, minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:count]).astype(np.int32)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    library = Path(sysconfig.get_path("stdlib"))
    parser.add_argument(
        "--data", type=Path, default=library, help="a folder of .py, or a file of lines"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--target", default="python-code", help="a Llama, as for decoding_jax.load")
    parser.add_argument("--head", choices=("eagle", "mtp"), default="eagle")
    parser.add_argument("--drafted", type=int, default=1536, help="V', the vocabulary of eagle")
    parser.add_argument("--mlp", type=int, default=128, help="the width of the feed-forward layer")
    parser.add_argument("--heads", type=int, default=2, help="of queries")
    parser.add_argument("--kv_heads", type=int, default=1, help="of keys and values")
    parser.add_argument(
        "--unrolled", type=int, default=3, help="runs of the head, all but one over its own states"
    )
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--rows", type=int, default=4, help="windows a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens of a window")
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--windows", type=int, default=64, help="held-out windows to measure")
    parser.add_argument("--checkpoint_every", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=20, help="one file in so many is held out")
    parser.add_argument("--files", type=int, help="use so many of the files")
    parser.add_argument("--export", type=Path, help="where to write the trained head")
    return quick.parse(parser, argv, QUICK)


def train(
    head: Head, target: Llama, ids: np.ndarray, batches: code_data.Batches, args: Any
) -> Head:
    """The trained head, from the last checkpoint on; a bar shows the rates of acceptance."""
    optimizer = make_optimizer(args.steps, args.learning_rate)
    state = {"params": head.params, "opt": jax.jit(optimizer.init)(head.params), "step": 0}
    checkpoint = args.out / f"{args.head}.msgpack"
    if checkpoint.exists():
        state = serialization.from_bytes(state, checkpoint.read_bytes())

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, opt: Any, frozen: Any, batch: jax.Array) -> Any:
        def loss_of(params: Any) -> tuple[jax.Array, jax.Array]:
            made = dataclasses.replace(frozen[0], params=params)
            return losses(made, frozen[1], ids, batch, args.unrolled)

        (_, rates), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, rates

    params, opt, first = state["params"], state["opt"], int(state["step"])
    frozen = dataclasses.replace(head, params={}), target
    average: Any = 0.0
    bar = tqdm(range(first, args.steps), initial=first, total=args.steps, mininterval=10)
    since = time.time()
    for step, batch in zip(bar, batches(first), strict=False):
        params, opt, rates = update(params, opt, frozen, batch)
        average = np.asarray(rates) if step == first else 0.98 * average + 0.02 * np.asarray(rates)
        if time.time() - since > 10:
            bar.set_postfix(accepted=" ".join(f"{rate:.3f}" for rate in average))
            since = time.time()
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == args.steps:
            state = {"params": params, "opt": opt, "step": step + 1}
            partial = checkpoint.with_suffix(".partial")
            partial.write_bytes(serialization.to_bytes(state))
            partial.replace(checkpoint)
    return dataclasses.replace(head, params=params)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    loaded: Any = decoding_jax.load(args.target, scan_layers=True)  # One layer is compiled.
    target, tokenizer = loaded
    texts = [
        np.concatenate([[*tokenizer.eos_ids[:1], *tokenizer.encode(f.text)] for f in files])
        for files in code_data.split(read_files(args.data)[: args.files], args.every)
    ]
    texts = [text.astype(np.int32) for text in texts]
    count = args.drafted if args.head == "eagle" else target.vocab_size
    ids = most_frequent(texts[0], target.vocab_size, count)
    sizes = {"num_heads": args.heads, "num_kv_heads": args.kv_heads, "mlp_dim": args.mlp}
    head = head_of(args.head, target, count, jax.random.key(args.seed), **sizes)
    print(
        f"{len(texts[0]):,} tokens, of which {np.isin(texts[0], ids).mean():.1%} can be drafted;"
        f" {sum(x.size for x in jax.tree.leaves(head.params)):,} parameters of the head",
        flush=True,
    )
    batches, measured = (
        code_data.Batches(text, args.length + 1, args.rows, args.seed) for text in texts
    )
    head = train(head, target, ids, batches, args)
    if args.export:
        export(head, ids, target, args.export)
    rates_of = jax.jit(
        lambda head, target, batch: losses(head, target, ids, batch, args.unrolled)[1]
    )
    windows = zip(range(0, args.windows, args.rows), measured(0), strict=False)
    found = np.mean([rates_of(head, target, batch) for _, batch in windows], axis=0)
    print("held out, accepted of each drafted token:", " ".join(f"{rate:.3f}" for rate in found))


if __name__ == "__main__":
    main()
