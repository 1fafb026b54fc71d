"""Decodes the lines of a file on a Ray cluster, and writes Parquet files.

    python -m experiments.cloud.ray_decode --model translation-en-fr \
        --inputs prompts.txt --out /shared/decodes --workers 4 --num_samples 4

A worker is an actor that holds the model. ``--address`` names a cluster that runs; without it, Ray
is started on this machine. ``--resources`` is what a worker needs, such as ``'{"TPU": 4}'``.
"""

from __future__ import annotations

import argparse
import functools
import json

import ray

import decoding_jax
from decoding_jax.infer import BatchDecoder, TextLines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="directory, URL or name of the model")
    parser.add_argument("--inputs", required=True, help="a text file with one input a line")
    parser.add_argument("--out", required=True, help="folder or URL for Parquet files")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--resources", type=json.loads, default={}, help="of a worker, as JSON")
    parser.add_argument("--address", help="of a Ray cluster")
    parser.add_argument("--num_samples", type=int, default=1)
    parser.add_argument("--max_new_tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=32, help="rows decoded at a time")
    parser.add_argument("--max_input_length", type=int, default=512)
    args = parser.parse_args()

    ray.init(address=args.address)
    items = [{"index": i, "inputs": item.inputs} for i, item in enumerate(TextLines(args.inputs))]
    strategy = functools.partial(
        decoding_jax.sample, num_samples=args.num_samples, max_new_tokens=args.max_new_tokens
    )
    decoded = ray.data.from_items(items).map_batches(
        BatchDecoder,
        fn_constructor_args=(args.model, strategy),
        fn_constructor_kwargs={
            "seed": args.seed,
            "batch_size": args.batch_size,
            "max_input_length": args.max_input_length,
        },
        batch_size=16 * args.batch_size,
        compute=ray.data.ActorPoolStrategy(size=args.workers),
        resources=args.resources,
    )
    decoded.write_parquet(args.out)


if __name__ == "__main__":
    main()
