"""Decodes the lines of a file by an Apache Beam pipeline, and writes JSON lines.

    python -m experiments.cloud.beam_decode --model translation-en-fr \
        --inputs prompts.txt --out decodes --num_samples 4

Options of Beam, such as ``--runner``, come after ``--``.
"""

from __future__ import annotations

import argparse
import functools
import json

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference
from apache_beam.options.pipeline_options import PipelineOptions

import decoding_jax
from decoding_jax.infer import BatchDecoder, TextLines
from decoding_jax.infer.beam import DecodingHandler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="directory, URL or name of the model")
    parser.add_argument("--inputs", required=True, help="a text file with one input a line")
    parser.add_argument("--out", required=True, help="beginning of the names of the output files")
    parser.add_argument("--num_samples", type=int, default=1)
    parser.add_argument("--max_new_tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=32, help="rows decoded at a time")
    parser.add_argument("--max_input_length", type=int, default=512)
    parser.add_argument("options", nargs="*", help="options of Beam")
    args = parser.parse_args()

    strategy = functools.partial(
        decoding_jax.sample, num_samples=args.num_samples, max_new_tokens=args.max_new_tokens
    )
    make = functools.partial(
        BatchDecoder,
        args.model,
        strategy,
        seed=args.seed,
        batch_size=args.batch_size,
        max_input_length=args.max_input_length,
    )
    items = [{"index": i, "inputs": item.inputs} for i, item in enumerate(TextLines(args.inputs))]
    with beam.Pipeline(options=PipelineOptions(args.options)) as pipeline:
        _ = (
            pipeline
            | beam.Create(items)
            | RunInference(DecodingHandler(make, max_batch_size=16 * args.batch_size))
            | beam.Map(functools.partial(json.dumps, ensure_ascii=False))
            | beam.io.WriteToText(args.out, file_name_suffix=".jsonl")
        )


if __name__ == "__main__":
    main()
