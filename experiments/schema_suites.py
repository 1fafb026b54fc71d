"""How many schemas of two suites compile, what they accept, and how long that takes.

    python -m experiments.schema_suites --out runs/suites --maskbench DIRECTORY --gpt2 DIRECTORY
    python -m experiments.schema_suites --out runs/suites --suite DIRECTORY

The first directory is ``maskbench/data`` in a checkout of guidance-ai/jsonschemabench: a schema
passes if it compiles, accepts its valid instances and refuses the others. The second one is a
checkout of JSON-Schema-Test-Suite, of which the groups of a draft are compiled. Instances are
written as ``json.dumps`` does, and read by the automata over bytes; ``--gpt2``, a folder with
``vocab.json`` and ``merges.txt``, also makes the automata over tokens, and times them. A run that
is broken off goes on where it was, and takes no constraint from disk. ``schemas.json`` has all that
is found, from which ``experiments.tables`` writes a table.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from decoding_jax.constraints import definitions, json_texts, made
from decoding_jax.constraints.automata import Automaton
from decoding_jax.constraints.token_automata import Vocabulary
from experiments.constraints import vocabulary
from experiments.papers.results import versions
from experiments.results import write_json

Counts = dict[str, Any]


class OutOfTimeError(Exception):
    """A schema has taken longer than it may."""


def network_of(schema: Any, depth: int, retrieve: Any = None) -> definitions.Network | Automaton:
    """The definitions of a schema over bytes, with properties that it says nothing of."""
    style = json_texts.Style(open_objects=True)
    parts, places = json_texts.automata_of(schema, "schema", depth, style, retrieve)
    return definitions.network_of(parts, places, depth, "schema")


def judged(case: dict[str, Any], accepts: Callable[[bytes], bool]) -> Counter[str]:
    """How the instances of a schema are judged."""
    found = Counter[str]()
    for test in case["tests"]:
        kind = "valid" if test["valid"] else "invalid"
        found[kind] += 1
        text = json.dumps(test["data"], ensure_ascii=False)
        found[f"{kind} accepted"] += accepts(text.encode(errors="replace"))
    return found


def limited(seconds: int, run: Callable[[], Any]) -> Any:
    """The result of a function, or an ``OutOfTimeError`` after so many seconds of the CPU."""

    def stop(*_: Any) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)  # Again, where a callback drops it.
    try:
        return run()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def measured(cases: Sequence[dict[str, Any]], file: Path, args: argparse.Namespace) -> Counts:
    """All cases: counts, times, and why others are refused.

    What is found of each is a line of a file; those that are there already are not taken again.
    """
    tokens = None
    if args.gpt2:
        tokenizer: Any = vocabulary(args.gpt2)
        texts = tokenizer.token_texts(tokenizer.vocab_size)
        tokens = Vocabulary(texts, tokenizer.eos_ids)
        tokens.sorted_begun  # noqa: B018  The texts are sorted once for all schemas.
    known = (
        [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    )
    done = {one["name"] for one in known}
    with file.open("a", encoding="utf-8") as lines:
        for case in tqdm(cases, file.stem, unit="schema", mininterval=10):
            if case["name"] not in done:
                known.append({"name": case["name"], **of_case(case, tokens, args)})
                lines.write(json.dumps(known[-1]) + "\n")
                lines.flush()
    names = {case["name"] for case in cases}  # An earlier sample may have had others.
    return summed([one for one in known if one["name"] in names])


def of_case(case: dict[str, Any], tokens: Any, args: argparse.Namespace) -> dict[str, Any]:
    """What is found of one schema."""
    schema, found = case["schema"], dict[str, Any]()
    begin = time.process_time()
    try:
        make = functools.partial(network_of, schema, args.depth, case.get("retrieve"))
        network = limited(args.seconds, make)
        found["seconds over bytes"] = time.process_time() - begin
        if tokens is not None:
            run = functools.partial(made.over_network, network, tokens, "schema", schema)
            language = limited(args.seconds, run).language
            found["seconds in all, over tokens"] = time.process_time() - begin
            found["states"] = language.num_states
        found |= limited(args.seconds, functools.partial(judged, case, network.accepts))
    except (ValueError, OutOfTimeError) as error:
        reason = str(error).partition(": expected ")[2] or "longer than it may take"
        found["refused"] = reason[:120]
    return found


def summed(known: Sequence[dict[str, Any]]) -> Counts:
    """Counts and times of what is found of schemas."""
    counts, refused, wrong = Counter[str](schemas=len(known)), Counter[str](), []
    kinds = [f"{kind}{state}" for kind in ("valid", "invalid") for state in ("", " accepted")]
    for one in known:
        if "refused" in one:
            refused[one["refused"]] += 1
            continue
        found = {kind: one.get(kind, 0) for kind in kinds}
        counts["compiled"] += 1
        counts.update(found)
        if found["invalid accepted"] or found["valid accepted"] < found["valid"]:
            wrong.append({"name": one["name"], **found})
        else:
            counts["passed"] += 1
    times = ("seconds over bytes", "seconds in all, over tokens")
    return {
        "counts": dict(counts),
        "refused": dict(refused.most_common()),
        "judged otherwise": wrong,
        **{
            name: quantiles([x[name] for x in known if name in x and "refused" not in x])
            for name in times
        },
    }


def quantiles(seconds: list[float]) -> dict[str, float]:
    """The median, the 95th percentile and the largest."""
    if len(seconds) < 2:
        return {}
    cut = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"median": cut[49], "95%": cut[94], "largest": max(seconds)}


def of_maskbench(folder: Path, sample: int, seed: int) -> Iterator[dict[str, Any]]:
    """A sample of the schemas of MaskBench with their instances."""
    files = sorted(folder.glob("*.json"))
    for file in random.Random(seed).sample(files, min(sample, len(files))):
        yield {**json.loads(file.read_text("utf-8")), "name": file.stem}


def of_suite(folder: Path, draft: str) -> Iterator[dict[str, Any]]:
    """The groups of a draft's tests, without the optional ones."""
    from jsonschema_specifications import REGISTRY

    def retrieve(address: str) -> Any:
        if address.startswith("http://localhost:1234/"):
            path = folder / "remotes" / address.removeprefix("http://localhost:1234/")
            return json.loads(path.read_text("utf-8")) if path.is_file() else None
        known = REGISTRY.get(address) or REGISTRY.get(f"{address}#")
        return known.contents if known else None

    key = {"draft7": "http://json-schema.org/draft-07/schema#"}.get(draft)
    for file in sorted((folder / "tests" / draft).glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            schema = group["schema"]
            if key and isinstance(schema, dict):
                schema = {"$schema": key, **schema}
            name = f"{file.stem}: {group['description']}"
            yield {**group, "schema": schema, "name": name, "retrieve": retrieve}


def commit_of(folder: Path) -> str | None:
    """The commit of a checkout."""
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    return done.stdout.strip() or None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON")
    parser.add_argument("--maskbench", type=Path, help="maskbench/data of jsonschemabench")
    parser.add_argument("--suite", type=Path, help="a checkout of JSON-Schema-Test-Suite")
    parser.add_argument("--gpt2", type=Path, help="folder with vocab.json and merges.txt")
    parser.add_argument("--sample", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int, default=8, help="max_depth")
    parser.add_argument(
        "--seconds", type=int, default=60, help="of the CPU, that a schema may take"
    )
    parser.add_argument("--suites_commit", help="the commit of a suite that is no checkout")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "schemas.json"
    found = json.loads(file.read_text("utf-8")) if file.exists() else {}
    found |= {"depth": args.depth, "seconds": args.seconds, "versions": versions()}
    if args.maskbench:
        sample = {"sample": args.sample, "seed": args.seed, "gpt2": args.gpt2 is not None}
        commit = args.suites_commit or commit_of(args.maskbench)
        cases = [*of_maskbench(args.maskbench, args.sample, args.seed)]
        of_cases = measured(cases, args.out / "maskbench.jsonl", args)
        found["maskbench"] = {**sample, "suite's commit": commit, **of_cases}
        shown = ("counts", "seconds over bytes", "seconds in all, over tokens")
        print(json.dumps({key: of_cases[key] for key in shown}, indent=1))
        write_json(file, found)
    for draft in ("draft2020-12", "draft7") if args.suite else ():
        commit = args.suites_commit or commit_of(args.suite)
        of_cases = measured([*of_suite(args.suite, draft)], args.out / f"{draft}.jsonl", args)
        found[draft] = {"suite's commit": commit, **of_cases}
        print(draft, json.dumps(of_cases["counts"], indent=1))
        write_json(file, found)


if __name__ == "__main__":
    main()
