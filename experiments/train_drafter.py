"""Trains a head of EAGLE-3, or a block of multi-token prediction, for a model of the library.

    python -m experiments.train_drafter --head eagle --out runs/drafter

The target is the embedded model of Python code, or any Llama or T5 that ``decoding_jax.load``
reads; it stays as it is. The text is the standard library of the Python that runs this, as for
``train_code``; or a folder of ``.py`` files, or a file whose lines are texts. That of a T5, for
which there are heads of EAGLE-3 alone, is a gzipped file of pairs, as for ``train_translation``:

    python -m experiments.train_drafter --target translation-en-fr --data fra-eng.tsv.gz \\
        --out runs/drafter --drafted 2048 --rows 8 --steps 2400

A head learns the target's distributions of the next tokens (the cross-entropy of all of them),
from the hidden states of the target and then from its own: it is unrolled over its own states, with
the attention that it has where it drafts ("training-time test": Li et al. 2025, arXiv:2503.01840,
section 3.2). Seeds are fixed; a run that was killed goes on from its last checkpoint. ``--export
DIR`` writes the layout that ``decoding_jax.load_drafter`` reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import decoding_jax
from decoding_jax.models import (
    T5,
    EagleConfig,
    EagleHead,
    Llama,
    MultiTokenBlock,
    MultiTokenConfig,
)
from decoding_jax.models.attention import Part
from decoding_jax.models.caches import KeyValue
from decoding_jax.models.checkpoint import eagle, multi_token
from decoding_jax.models.checkpoint.directory import CONFIG, WEIGHTS
from decoding_jax.models.checkpoint.families import FAMILIES
from decoding_jax.models.checkpoint.family import BLOCKS
from decoding_jax.models.checkpoint.params import Weight, write_params
from experiments import code_data, quick, training, translation_data
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


class Batch(NamedTuple):
    """Texts that a head is trained on.

    Attributes:
      tokens: int32 ``[B, T + 1]``, right-padded.
      length: int32 ``[B]``.
      inputs: of an encoder-decoder, int32 ``[B, P]`` with their end tokens, and their lengths.
    """

    tokens: Any
    length: Any
    inputs: Any = ()


class Data(NamedTuple):
    """Batches from any step on, and the tokens of them all."""

    batches: Callable[[int], Iterator[Batch]]
    tokens: np.ndarray


def head_of(kind: str, target: Llama | T5, drafted: int, key: jax.Array, **layer: int) -> Head:
    """A head with random parameters, whose layer adds nothing to its input yet.

    Args:
      kind: ``eagle`` or ``mtp``.
      target: the target, a ``Llama`` for ``mtp``.
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
        "feature_dim": shape.emb_dim,
    }
    if isinstance(target, Llama):
        for name in ("max_positions", "rope_theta", "rope_scaling", "norm_epsilon"):
            given[name] = getattr(shape, name)
    else:  # Its own positions are relative, and do not limit it.
        given |= {"max_positions": 2048, "norm_epsilon": shape.layer_norm_epsilon}
    depth = target.num_layers
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
    head: Head, target: Llama | T5, ids: np.ndarray, batch: Batch, steps: int
) -> tuple[jax.Array, jax.Array]:
    """The loss, and the expected rate of acceptance of each step.

    Args:
      head: the head.
      target: the target.
      ids: int32 ``[V']``, the target's id of each token of the head.
      batch: the texts.
      steps: as for ``unrolled``.

    Returns:
      The cross-entropy, in nats of a token; and float32 ``[steps]``, the probability that a token
      drawn from the head is accepted.
    """
    model: Any = target.bind(*batch.inputs) if isinstance(target, T5) else target
    model = model.with_features((*head.feature_layers, model.num_layers))
    features = model.prefill(batch.tokens, batch.length, lanes=1, slots=1)[0].features
    features = jax.lax.stop_gradient(features)
    wanted = jax.nn.softmax(model.project(features[-1][:, :, 1:]), axis=-1)
    wanted = jnp.take(wanted, ids, axis=-1)  # of tokens that the head can draft
    states = head.fuse(tuple(x[:, :, :-1] for x in features[:-1]))
    place = jnp.arange(1, batch.tokens.shape[1])[None, None]
    real = place < batch.length[:, None, None]
    loss, rates = jnp.float32(0), []
    for step, after in enumerate(unrolled(head, batch.tokens[:, 1:], states, steps)):
        log_prob = jax.nn.log_softmax(head.project(after), axis=-1)
        counted = real & (place > step)
        error, rate = (
            jnp.where(counted, x.sum(-1), 0).sum() / counted.sum()
            for x in (-wanted * log_prob, jnp.minimum(wanted, jnp.exp(log_prob)))
        )
        loss += 0.8**step * error
        rates.append(rate)
    return loss / sum(0.8**step for step in range(steps)), jnp.stack(rates)


def export(head: Head, ids: np.ndarray, target: Llama | T5, directory: Path) -> None:
    """Writes a head in bfloat16, as SpecForge does for EAGLE-3, and DeepSeek-V3 a block.

    Args:
      head: the head.
      ids: int32 ``[V']``, the target's id of each token of the head.
      target: the target.
      directory: where ``config.json`` and ``model.safetensors`` are written to.
    """
    config: Any = head.config
    params: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), head.params)
    values = FAMILIES["llama"].settings_of(config)
    if isinstance(head, MultiTokenBlock):
        table = multi_token.block_table(config, f"model.layers.{target.num_layers}")
        values |= {"num_hidden_layers": target.num_layers, BLOCKS: 1}
    else:
        table = {**eagle.head_table(config, "midlayer"), "d2t": Weight("d2t")}
        params = {**params, "d2t": ids.astype(np.int64) - np.arange(len(ids))}
        layers = [layer - 1 for layer in config.feature_layers]
        values |= {"vocab_size": target.config.vocab_size, "draft_vocab_size": len(ids)}
        values |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}}
        values |= {"architectures": ["LlamaForCausalLMEagle3"]}
    directory.mkdir(parents=True, exist_ok=True)
    write_params(directory / WEIGHTS, table, params, None)
    (directory / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def texts_of(target: Any, tokenizer: Any, args: argparse.Namespace) -> list[Data]:
    """The data to train on, and those held out."""
    if isinstance(target, T5):
        pairs = translation_data.read_pairs(args.data)
        return [
            pairs_of(target, tokenizer, part, args)
            for part in translation_data.split(pairs, held_out=args.held_out, seed=0)
        ]
    found = []
    for files in code_data.split(read_files(args.data)[: args.files], args.every):
        text = np.concatenate([[*tokenizer.eos_ids[:1], *tokenizer.encode(f.text)] for f in files])
        text = text.astype(np.int32)
        windows = code_data.Batches(text, args.length + 1, args.rows, args.seed)
        found.append(Data(functools.partial(windows_from, windows), text))
    return found


def windows_from(windows: code_data.Batches, step: int) -> Iterator[Batch]:
    """Batches of windows, all tokens of which are real, from a step on."""
    for tokens in windows(step):
        yield Batch(tokens, np.full(len(tokens), tokens.shape[1], np.int32))


def pairs_of(
    target: T5, tokenizer: Any, pairs: translation_data.Pairs, args: argparse.Namespace
) -> Data:
    """Data of an encoder-decoder. Nothing is drafted after an end token, so texts have none."""
    english, french = ([tokenizer.pieces(x) for x in texts] for texts in pairs)
    every = translation_data.Batches(english, french, args.rows * args.length, args.seed)

    def batches(step: int) -> Iterator[Batch]:
        for source, text in every(step):
            tokens = np.pad(text[:, :-1], ((0, 0), (1, 0)), constant_values=target.config.start_id)
            inputs = source, (source > 0).sum(-1, dtype=np.int32)
            yield Batch(tokens, (text > 0).sum(-1, dtype=np.int32), inputs)

    ends = [np.full(len(french), translation_data.EOS_ID, np.int32)]
    return Data(batches, np.concatenate([np.asarray(x, np.int32) for x in french] + ends))


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
        "--data", type=Path, default=library, help="a folder of .py, or a file of lines or pairs"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--target", default="python-code", help="as for decoding_jax.load")
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
    parser.add_argument(
        "--length", type=int, default=128, help="tokens of a window; a batch of pairs has as many"
    )
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--windows", type=int, default=64, help="held-out windows to measure")
    parser.add_argument("--checkpoint_every", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=20, help="one file in so many is held out")
    parser.add_argument("--files", type=int, help="use so many of the files")
    parser.add_argument("--held_out", type=int, default=2000, help="pairs that are held out")
    parser.add_argument("--export", type=Path, help="where to write the trained head")
    return quick.parse(parser, argv, QUICK)


def train(head: Head, target: Llama | T5, ids: np.ndarray, data: Data, args: Any) -> Head:
    """The trained head, from the last checkpoint on; a bar shows the rates of acceptance."""
    optimizer = make_optimizer(args.steps, args.learning_rate)
    frozen = dataclasses.replace(head, params={}), target

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def update(frozen: Any, params: Any, opt: Any, batch: Batch, step: int) -> Any:
        def loss_of(params: Any) -> tuple[jax.Array, jax.Array]:
            made = dataclasses.replace(frozen[0], params=params)
            return losses(made, frozen[1], ids, batch, args.unrolled)

        (_, rates), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, rates

    def shown(rates: Any, step: int) -> dict[str, str]:
        return {"accepted": " ".join(f"{rate:.3f}" for rate in rates)}

    params = training.train(
        functools.partial(update, frozen),
        head.params,
        optimizer,
        data.batches,
        args.steps,
        args.out / f"{args.head}.msgpack",
        args.checkpoint_every,
        shown,
    )
    return dataclasses.replace(head, params=params)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    loaded: Any = decoding_jax.load(args.target, scan_layers=True)  # One layer is compiled.
    target, tokenizer = loaded
    if args.head == "mtp" and not isinstance(target, Llama):
        raise SystemExit(f"--head: expected eagle for a {type(target).__name__}, got mtp")
    data, measured = texts_of(target, tokenizer, args)
    size = target.config.vocab_size
    count = args.drafted if args.head == "eagle" else size
    ids = most_frequent(data.tokens, size, count)
    sizes = {"num_heads": args.heads, "num_kv_heads": args.kv_heads, "mlp_dim": args.mlp}
    head = head_of(args.head, target, count, jax.random.key(args.seed), **sizes)
    share = np.isin(data.tokens, ids).mean()
    print(
        f"{len(data.tokens):,} tokens, of which {share:.1%} can be drafted;"
        f" {sum(x.size for x in jax.tree.leaves(head.params)):,} parameters of the head",
        flush=True,
    )
    head = train(head, target, ids, data, args)
    if args.export:
        export(head, ids, target, args.export)
    rates_of = jax.jit(
        lambda head, target, batch: losses(head, target, ids, batch, args.unrolled)[1]
    )
    windows = zip(range(0, args.windows, args.rows), measured.batches(0), strict=False)
    found = np.mean([rates_of(head, target, batch) for _, batch in windows], axis=0)
    print("held out, accepted of each drafted token:", " ".join(f"{rate:.3f}" for rate in found))


if __name__ == "__main__":
    main()
