"""Sentences a second on a CPU, beside CTranslate2 with the same weights.

The embedded model translates held-out sentences, greedily and with four beams, at most 64 tokens
and 64 rows: by ``generate``, with float32 and with int8 weights; by the decoder of the batch job;
and by CTranslate2 in float32 and int8, with a worker of one thread for each core. All in one
process, interleaved. The table has the median seconds, also of all cores together (CPU seconds,
which depend less on what else runs), and the part of the texts that are those of ``generate`` in
float32.

    pip install ctranslate2 transformers torch
    python -m experiments.benchmarks.cpu_translation --out runs/benchmarks
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tqdm import tqdm

import decoding_jax
from decoding_jax.batches import RowDecoder, parse, widths
from decoding_jax.text import completions, default_stop, embedded
from experiments import held_out
from experiments.results import read_json, write_json

MODEL = "translation-en-fr"
NEW_TOKENS = 64
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"strategy": "greedy"},
    "beams": {"strategy": "beam_search", "beam_size": 4, "num_return": 1},
}
Run = Callable[[], list[str]]


def with_generate(texts: list[str], search: str, rows: int, name: str, **options: Any) -> Run:
    """Our ``generate``."""
    model, tokenizer = decoding_jax.load(name, **options)
    settings = {**SEARCHES[search], "max_new_tokens": NEW_TOKENS, "batch_size": rows}

    def run() -> list[str]:
        made = decoding_jax.generate(model, tokenizer, texts, progress=False, **settings)
        return [row[0].text for row in made]

    return run


def with_job(texts: list[str], search: str, rows: int, name: str) -> Run:
    """The decoder of the batch job, with the strings before and after it."""
    model, tokenizer = decoding_jax.load(name)
    settings = {**SEARCHES[search], "max_new_tokens": NEW_TOKENS, "stop": default_stop(tokenizer)}
    decoder = RowDecoder(parse(model, settings.pop("strategy"), settings), batch_size=rows)
    of_inputs = widths.widths(max(len(tokenizer.encode(text)) for text in texts))
    decoder.prepare(of_inputs[-1])

    def run() -> list[str]:
        ids = [tokenizer.encode(text) for text in texts]
        by_width = widths.by_width([len(x) for x in ids], of_inputs)
        found = [""] * len(texts)
        for members, output in decoder.decode(ids, range(len(ids)), by_width):
            for i, row in zip(members, completions(tokenizer, output, len(members)), strict=True):
                found[i] = row[0].text
        return found

    return run


def with_peer(texts: list[str], search: str, rows: int, name: str, weights: str) -> Run:
    """CTranslate2, with weights of its own converter."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    source = embedded().get(name, Path(name))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(source / "spiece.model"))
    with tempfile.TemporaryDirectory() as folder:
        # Without this file, the tokenizer of transformers adds a hundred tokens.
        copied, made = Path(folder, "model"), str(Path(folder, "converted"))
        shutil.copytree(source, copied)
        config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
        (copied / "tokenizer_config.json").write_text(json.dumps(config))
        TransformersConverter(str(copied)).convert(made, quantization=weights)
        compute = "int8_float32" if weights == "int8" else weights
        threads = {"inter_threads": os.cpu_count() or 1, "intra_threads": 1}
        translator = ctranslate2.Translator(made, compute_type=compute, **threads)
    beam_size = SEARCHES[search].get("beam_size", 1)

    def run() -> list[str]:
        tokens = [[*pieces.encode(text, out_type=str), "</s>"] for text in texts]
        made = translator.translate_batch(
            tokens,
            beam_size=beam_size,
            length_penalty=0,
            max_batch_size=rows,
            max_input_length=0,
            max_decoding_length=NEW_TOKENS,
        )
        return [pieces.decode(result.hypotheses[0]) for result in made]

    return run


def timed(runs: dict[str, Run], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds, and CPU seconds, of every run, taken in turns."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter(), time.process_time()
            run()
            seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return seconds


def measure(
    out: Path,
    repeats: int = 5,
    count: int = 1200,
    rows: int = 64,
    searches: Sequence[str] = tuple(SEARCHES),
    name: str = MODEL,
) -> None:
    """Times all cases, prints a table, and writes ``cpu_translation.json``.

    Rows of other models in the file stay.

    Args:
      out: a folder.
      repeats: how often each run is timed.
      count: the number of sentences.
      rows: the number of rows of a batch.
      searches: names in ``SEARCHES``.
      name: of the embedded model, or the directory of a widened one.
    """
    out.mkdir(parents=True, exist_ok=True)
    sentences = [s.english for s in held_out.read()]
    random.Random(0).shuffle(sentences)
    texts = sentences[:count]
    installed = all(map(importlib.util.find_spec, ("ctranslate2", "transformers", "torch")))
    if not installed:
        print("CTranslate2 is left out: ctranslate2, transformers or torch is not installed")
    path, title = out / "cpu_translation.json", Path(name).name
    table = [row for row in read_json(path) if row.get("model") != title] if path.exists() else []
    for search in tqdm(searches):
        runs = {
            "generate": with_generate(texts, search, rows, name),
            "generate, int8": with_generate(texts, search, rows, name, weights="int8"),
            "job": with_job(texts, search, rows, name),
        }
        if installed:
            runs["CTranslate2"] = with_peer(texts, search, rows, name, "float32")
            runs["CTranslate2, int8"] = with_peer(texts, search, rows, name, "int8")
        made = {key: run() for key, run in runs.items()}
        for key, values in timed(runs, repeats).items():
            wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
            same = sum(a == b for a, b in zip(made[key], made["generate"], strict=True))
            row = {"model": title, "search": search, "by": key}
            row |= {"seconds": wall, "cpu_seconds": cpu}
            row |= {"sentences_per_second": count / wall, "same_texts": same / count}
            table.append(row)
            print(
                f"{search:7}  {key:18}  {count / wall:7.0f} /s  {wall:6.2f} s  {cpu:6.2f} CPU s  "
                f"{same / count:5.1%} equal"
            )
    write_json(path, table)


def markdown(table: list[dict[str, Any]]) -> str:
    """Sentences a second by each program, and their CPU time over that of CTranslate2."""
    lines = ["| model | search | by | sentences a second | CPU ms a sentence | over CTranslate2 |"]
    lines += ["| --- " * 6 + "|"]
    peers = {(r["model"], r["search"]): r for r in table if r["by"] == "CTranslate2"}
    for row in table:
        peer = peers.get((row["model"], row["search"]))
        count = row["seconds"] * row["sentences_per_second"]
        over = f"{row['cpu_seconds'] / peer['cpu_seconds']:.2f}" if peer else ""
        lines += [
            f"| {row['model']} | {row['search']} | {row['by']} "
            f"| {row['sentences_per_second']:,.0f} | {1e3 * row['cpu_seconds'] / count:.1f} "
            f"| {over} |"
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--count", type=int, default=1200, help="the number of sentences")
    parser.add_argument("--rows", type=int, default=64, help="the rows of a batch")
    parser.add_argument("--model", default=MODEL, help="or a directory of experiments.widened")
    args = parser.parse_args()
    measure(args.out, args.repeats, args.count, args.rows, name=args.model)


if __name__ == "__main__":
    main()
