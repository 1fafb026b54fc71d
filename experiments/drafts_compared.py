"""How many tokens a call appends: copied drafts, a draft model, and several drafts of it.

    python -m experiments.drafts_compared

The embedded models translate held-out sentences and continue held-out functions of Python's
standard library, greedily and at temperature 1 (block verification), with drafts of K tokens.
Drafts are copied by ``PromptLookup``, by ``SuffixDrafter`` without a corpus, and by
``SuffixDrafter`` with one of

- ``outputs``: what the model gave for other held-out inputs, greedily;
- ``task``: the French of other held-out sentences; the files of the running Python's standard
  library that are not held out, up to ``--corpus_tokens`` tokens.

The embedded draft model is beside them, with one draft, with several, which ``token`` and ``block``
verify, and with dynamic trees of as many tokens; and the embedded head, and those of ``--heads``,
which ``train_drafter`` wrote for the domain's model. The table has the mean number of tokens that a
call of the target appends, with a 95% interval over inputs (bootstrap), and in how many blocks of
those drawn at temperature 1 the token of each depth was accepted.
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import decoding_jax
from decoding_jax.strategies.speculative import Corpus, PromptLookup, SuffixDrafter
from decoding_jax.text import Tokenizer
from experiments import code_data, held_out, quick
from experiments.papers import tasks
from experiments.papers.results import interval
from experiments.results import write_json

QUICK = {
    "count": 2,
    "others": 2,
    "corpus_tokens": 4096,
    "domains": ["translation"],
    "num_drafts": [2],
}


class Domain(NamedTuple):
    """A target, a draft model, embedded heads, and the texts of a domain."""

    target: str
    draft: str
    heads: list[str]
    inputs: list[str]
    others: list[str]
    task: list[str]
    max_new_tokens: int


def translation(args: argparse.Namespace) -> Domain:
    """The held-out sentences; those that are not translated make the corpora."""
    sentences = held_out.read()
    chosen = set(map(id, tasks.spread(sentences, args.count)))
    rest = [s for s in sentences if id(s) not in chosen]
    return Domain(
        "translation-en-fr",
        "translation-en-fr-draft",
        [],
        [s.english for s in sentences if id(s) in chosen],
        [s.english for s in tasks.spread(rest, args.others)],
        [text for s in rest for text in s.references],
        32,
    )


def code(args: argparse.Namespace) -> Domain:
    """The held-out functions, every second of them for the corpora."""
    functions = list(tasks.standard_library().inputs)
    root = Path(sysconfig.get_path("stdlib"))
    files, _ = code_data.split(code_data.read_files(root))
    return Domain(
        "python-code",
        "python-code-draft-wide",
        ["python-code-eagle"],
        tasks.spread(functions[::2], args.count),
        tasks.spread(functions[1::2], args.others),
        [file.text for file in files],
        64,
    )


DOMAINS = {"translation": translation, "code": code}


def corpus_of(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> Corpus:
    """The corpus of the first texts with ``most`` tokens in all."""
    parts: list[list[int]] = []
    for text in texts:
        parts.append(tokenizer.encode(text)[: most - sum(map(len, parts))])
        if sum(map(len, parts)) >= most:
            break
    return Corpus.of([part for part in parts if part], padded_size=2 * most)


Settings = dict[str, Any]


class Table:
    """The rows of all domains, which are printed, and written to a file if one is given."""

    def __init__(self, path: Path | None):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        print("| domain | drafter | greedy | temperature 1 | accepted by depth |")
        print("| --- " * 5 + "|")

    def add(self, domain: str, drafter: str, **found: dict[str, Any]) -> None:
        """Adds a row, from ``tokens_per_call`` for ``greedy`` and ``drawn``."""
        means = (found.get(name, {}).get("tokens") for name in ("greedy", "drawn"))
        cells = (f"{x[0]:.2f} ({x[1]:.2f} to {x[2]:.2f})" if x else "" for x in means)
        depths = " ".join(f"{x:.2f}" for x in found["drawn"]["accepted_by_depth"])
        print(f"| {domain} | {drafter} | {' | '.join(cells)} | {depths} |", flush=True)
        self.rows.append({"domain": domain, "drafter": drafter, **found})
        if self.path is not None:
            write_json(self.path, {"rows": self.rows})


def tokens_per_call(target: Any, domain: Domain, drafter: Any, settings: Settings) -> Settings:
    """The mean number of tokens that a call appends with its interval, and acceptance by depth."""
    model, tokenizer = target
    rows = decoding_jax.generate(
        model,
        tokenizer,
        domain.inputs,
        strategy="speculative_sample",
        drafter=drafter,
        max_new_tokens=domain.max_new_tokens,
        batch_size=16,
        **settings,
    )
    counts = [(row[0].info.emitted, row[0].info.blocks) for row in rows]
    emitted, blocks = np.array([[float(np.sum(x)) for x in pair] for pair in counts]).T
    found = interval(lambda e, b: e.sum(-1) / b.sum(-1), emitted, blocks)
    by_depth = sum(row[0].info.accepted_by_depth for row in rows) / blocks.sum()
    mean = [round(float(x), 4) for x in (found.value, found.low, found.high)]
    return {"tokens": mean, "accepted_by_depth": np.round(by_depth, 4).tolist()}


def measure(name: str, args: argparse.Namespace, table: Table) -> None:
    """Measures the rows of a domain."""
    domain = DOMAINS[name](args)
    model, tokenizer = target = decoding_jax.load(domain.target)
    decoded = decoding_jax.generate(
        model, tokenizer, domain.others, max_new_tokens=domain.max_new_tokens, batch_size=16
    )
    outputs = [other + row[0].text for other, row in zip(domain.others, decoded, strict=True)]
    if name == "translation":
        outputs = [row[0].text for row in decoded]
    corpora = {"outputs": outputs, "task": domain.task}
    drafters: dict[str, Any] = {
        "`PromptLookup()`": PromptLookup(),
        "`SuffixDrafter()`": SuffixDrafter(),
    }
    for kind, texts in corpora.items():
        corpus = corpus_of(tokenizer, texts, args.corpus_tokens)
        drafters[f"`SuffixDrafter`, {kind}, {int(corpus.count):,} tokens"] = SuffixDrafter(
            corpus=corpus
        )
    for directory in [*domain.heads, *args.heads]:
        head = decoding_jax.load_drafter(directory, model)
        drafters[f"`{type(head).__name__}`, {Path(directory).name}"] = head
    drafters["the draft model"] = draft = decoding_jax.load(domain.draft)
    size = {"num_draft_tokens": args.num_draft_tokens}
    drawing = {"key": jax.random.key(args.seed), **size}
    for label, drafter in drafters.items():
        greedy = tokens_per_call(target, domain, drafter, {"verifier": "greedy", **size})
        drawn = tokens_per_call(target, domain, drafter, {"verifier": "block", **drawing})
        table.add(name, label, greedy=greedy, drawn=drawn)
    for count in args.num_drafts:
        for verifier in ("token", "block"):
            given = {"num_drafts": count, "verifier": verifier, **drawing}
            drawn = tokens_per_call(target, domain, draft, given)
            table.add(name, f"{count} drafts of it, `{verifier}`", drawn=drawn)
        given = {"num_drafts": count, "tree": "dynamic"}
        greedy = tokens_per_call(target, domain, draft, {"verifier": "greedy", **given, **size})
        drawn = tokens_per_call(target, domain, draft, {**given, **drawing})
        label = f"dynamic tree of {count * args.num_draft_tokens} of its tokens"
        table.add(name, label, greedy=greedy, drawn=drawn)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS))
    parser.add_argument("--count", type=int, default=128, help="inputs of each domain")
    parser.add_argument("--others", type=int, default=128, help="other inputs, for outputs")
    parser.add_argument("--corpus_tokens", type=int, default=2**20)
    parser.add_argument("--num_draft_tokens", type=int, default=4)
    parser.add_argument("--num_drafts", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--heads", nargs="*", type=Path, default=[], help="for one domain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the rows, in JSON")
    args = quick.parse(parser, argv, QUICK)
    table = Table(args.out)
    for name in args.domains:
        measure(name, args, table)


if __name__ == "__main__":
    main()
