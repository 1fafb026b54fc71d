"""The cost of a step that follows a trie of ten million sequences, as in generative retrieval.

Random sequences of 8 tokens of 2,048 become a trie. For texts of some lengths, in rows of 70 beams,
whose states before the last token are known, the mask of the next token is timed (CPU time of the
process, medians), and compiled for a TPU without one, of which the bytes in HBM are counted (needs
the extra ``tpu``). Beside it is the mask of a trie whose nodes all are searched. STATIC
(arXiv:2602.22647) publishes 0.033 ms a step on a TPU.

    python -m experiments.wide_tries --out docs/measured
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import CarriedStates, Prefix
from decoding_jax.transforms import Trie, prefix_allowed_tokens
from experiments import quick
from experiments.results import write_json
from experiments.tpu_ledger import program, topology, traffic

LENGTH, VOCAB, ROWS, BEAMS = 8, 2048, 2, 70


@jax.jit
def mask(transform: Any, logits: jax.Array, prefix: Prefix) -> jax.Array:
    """The logits of the tokens that continue a sequence."""
    return transform(logits, prefix)


def searched(trie: Trie) -> Trie:
    """The trie without rows of bits."""
    most = int(np.diff(np.asarray(trie.first_edge)).max())
    return dataclasses.replace(trie, bits=trie.bits[:0], rank=trie.rank[:0], max_children=most)


def arguments(transform: Any, sequences: np.ndarray, length: int) -> tuple[jax.Array, Prefix]:
    """Logits, and beginnings of the sequences, with the states before their last tokens."""
    draw = np.random.default_rng(1)
    texts = sequences[draw.integers(len(sequences), size=(ROWS, BEAMS, 1))]
    prefix = Prefix(
        jnp.zeros((ROWS, 1), jnp.int32),
        jnp.ones(ROWS, jnp.int32),
        jnp.asarray(texts),
        jnp.full((ROWS, BEAMS, 1), max(length - 1, 0), jnp.int32),
    )
    states = CarriedStates(transform.states_after(prefix), prefix.length, rest=1)
    prefix = prefix._replace(length=jnp.full((ROWS, BEAMS, 1), length, jnp.int32), carried=states)
    return jnp.zeros((ROWS, BEAMS, 1, VOCAB)), prefix


def cpu_ms(transform: Any, logits: jax.Array, prefix: Prefix, repeats: int) -> float:
    """The median CPU time of a mask in milliseconds, after one to warm up."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.process_time()
        jax.block_until_ready(mask(transform, logits, prefix))
        seconds.append(time.process_time() - start)
    return 1e3 * statistics.median(seconds[1:])


def tpu_bytes(transform: Any, logits: jax.Array, prefix: Prefix) -> float:
    """The bytes in HBM that a mask moves on a TPU v5e, the walk by the last token included."""
    place = jax.sharding.SingleDeviceSharding(topology.mesh("v5e:2x2", (1, 1)).devices.flat[0])
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype, sharding=place),
        (transform, logits, prefix),
    )
    parsed = program.parse(topology.compile_for(mask.lower(*shapes), {}).as_text() or "")
    return traffic.whole(parsed, turns=1)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--sequences", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 1, 2, 4, 7])
    parser.add_argument("--tpu", action=argparse.BooleanOptionalAction, default=True)
    small = {"sequences": 1000, "repeats": 1, "lengths": [2], "tpu": False}
    args = quick.parse(parser, argv, small)
    sequences = np.random.default_rng(0).integers(VOCAB, size=(args.sequences, LENGTH))
    start = time.process_time()
    trie = Trie.from_sequences(sequences.astype(np.int32))
    seconds = time.process_time() - start
    megabytes = sum(np.asarray(x).nbytes for x in jax.tree.leaves(trie)) / 1e6
    found: dict[str, Any] = {
        "sequences": args.sequences,
        "nodes": len(trie.token),
        "nodes with bits": len(trie.bits),
        "megabytes": megabytes,
        "seconds": seconds,
        "steps": [],
    }
    print(f"{len(trie.token):,} nodes, {len(trie.bits):,} with rows of bits, {megabytes:,.1f} MB")
    print(f"made in {seconds:.1f} s")
    kinds = {"rows of bits": trie, "all searched": searched(trie)}
    print("kind            tokens   CPU ms   TPU kB")
    for kind, made in kinds.items():
        transform = jax.tree.map(jnp.asarray, prefix_allowed_tokens(made))
        for length in args.lengths:
            given = arguments(transform, sequences.astype(np.int32), length)
            moved = tpu_bytes(transform, *given) / 1e3 if args.tpu else float("nan")
            ms = cpu_ms(transform, *given, args.repeats)
            row = {"kind": kind, "tokens": length, "cpu_ms": ms}
            found["steps"] += [{**row, "tpu_kb": moved} if args.tpu else row]
            print(f"{kind:<14}  {length:>6}  {ms:>7.3f}  {moved:>7.1f}", flush=True)
    write_json(args.out / "wide_tries.json", found)


if __name__ == "__main__":
    main()
