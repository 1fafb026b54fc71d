"""Times the models ``decoding_jax`` and ``hf`` of lm-evaluation-harness, on the same requests.

    pip install "decoding_jax[lm-eval,parity]"
    python -m experiments.benchmarks.evaluation --out runs/evaluation

Both answer requests of the harness about held-out functions of Python's standard library, by one
checkpoint in float32 on the CPU: choices (the next line of a function among four, so each context
has four continuations), cloze (a line after its function), whole texts (perplexity) and generation
(greedy, up to the end of a line). The first call of each kind is the cold one, with no programs on
the disk; the warm ones take turns. The numbers and texts of both are compared. Writes
``evaluation.json``.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from decoding_jax.text import embedded
from experiments import quick
from experiments.benchmarks.timing import interleaved, quartiles, quartiles_of_ratios
from experiments.papers.results import shown, table, versions
from experiments.results import write_json

DATA = Path(__file__).parents[1] / "data"
OURS, THEIRS = "decoding_jax", "hf"
UNTIL = {"until": ["\n"], "max_gen_toks": 32, "do_sample": False}
QUICK = {"count": 4, "repeats": 1}
_COMPILED = "/jax/core/compile/backend_compile_duration"


def requests_of(count: int) -> dict[str, list[Any]]:
    """Requests of each kind about so many functions."""
    from lm_eval.api.instance import Instance

    lines = (DATA / "stdlib_held_out_lines.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    records = [records[i * len(records) // count] for i in range(count)]
    answers = [record["reference"] for record in records]
    contexts = [record["prompt"][-300:] for record in records]

    def made(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]

    choices = [
        (context, answers[(i + j) % count]) for i, context in enumerate(contexts) for j in range(4)
    ]
    return {
        "choices": made("loglikelihood", choices),
        "cloze": made("loglikelihood", list(zip(contexts, answers, strict=True))),
        "whole texts": made(
            "loglikelihood_rolling", [(x["prompt"] + x["reference"],) for x in records]
        ),
        "generation": made("generate_until", [(context, UNTIL) for context in contexts]),
    }


def with_end_token(folder: Path) -> Path:
    """A copy of the embedded model whose tokenizer names its end token, as ``hf`` needs it."""
    shutil.copytree(embedded()["python-code"], folder, dirs_exist_ok=True)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def answered(model: Any, requests: Sequence[Any]) -> list[Any]:
    """A model's answers to requests of one kind."""
    answer: Callable[..., list[Any]] = getattr(model, requests[0].request_type)
    return answer(list(requests), disable_tqdm=True)


def largest_difference(mine: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Of log-likelihoods; infinite where a text or a greedy flag differs."""
    found = [0.0]
    for one, other in zip(mine, theirs, strict=True):
        numbers = [x[0] if isinstance(x, tuple) else x for x in (one, other)]
        same = one[1] == other[1] if isinstance(one, tuple) else True
        if isinstance(one, str):
            found.append(0.0 if one == other else float("inf"))
        else:
            found.append(abs(numbers[0] - numbers[1]) if same else float("inf"))
    return max(found)


def measure(directory: str, count: int, repeats: int, batch_size: int) -> list[dict[str, Any]]:
    """A row for each kind of request."""
    from lm_eval.models.huggingface import HFLM

    from decoding_jax.lm_eval import DecodingJax

    jax.config.update("jax_enable_compilation_cache", False)
    programs: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            programs.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    models = {
        OURS: DecodingJax(directory, batch_size=batch_size, dtype="float32"),
        THEIRS: HFLM(directory, batch_size=batch_size, dtype="float32", device="cpu"),
    }
    rows = []
    for kind, requests in requests_of(count).items():
        cold, answers = {}, {}
        before = len(programs)
        for name, model in models.items():
            start = time.perf_counter()
            answers[name] = answered(model, requests)
            cold[name] = time.perf_counter() - start
        compiled = len(programs) - before
        runs: dict[str, Callable[[], object]] = {
            name: functools.partial(answered, model, requests) for name, model in models.items()
        }
        seconds = interleaved(runs, repeats, warm_up={name: lambda: None for name in runs})
        row: dict[str, Any] = {
            "kind": kind,
            "requests": len(requests),
            "cold": cold,
            "programs": compiled,
            "warm": {name: quartiles(values) for name, values in seconds.items()},
            "ratio": quartiles_of_ratios(seconds, OURS, THEIRS),
            "largest_difference": largest_difference(answers[OURS], answers[THEIRS]),
        }
        rows.append(row)
        print(f"{kind}: {row['ratio'][0]:.2f} times as long, {compiled} programs", flush=True)
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of the page."""

    def of(row: dict[str, Any]) -> list[Any]:
        warm = [f"{row['warm'][name][0]:.2f}" for name in (OURS, THEIRS)]
        cold = [f"{row['cold'][name]:.1f}" for name in (OURS, THEIRS)]
        return [row["kind"], row["requests"], *warm, shown(row["ratio"], 2), *cold, row["programs"]]

    seconds = [f"{when}, s: {name}" for when in ("warm", "cold") for name in ("here", "`hf`")]
    header = ["", "requests", *seconds[:2], "here over `hf`", *seconds[2:], "programs"]
    return table(header, map(of, rows))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--model", default=None, help="a directory; the default is python-code")
    parser.add_argument("--count", type=int, default=48, help="functions")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch_size", type=int, default=16)
    args = quick.parse(parser, argv, QUICK)
    with tempfile.TemporaryDirectory() as folder:
        directory = args.model or with_end_token(Path(folder))
        rows = measure(str(directory), args.count, args.repeats, args.batch_size)
    settings = {"model": args.model or "python-code", "batch_size": args.batch_size}
    found = {"settings": settings, "versions": versions(), "rows": rows}
    write_json(args.out / "evaluation.json", found)
    print(markdown(rows))


if __name__ == "__main__":
    main()
