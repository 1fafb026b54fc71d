"""BLEU of a translation model's greedy output on the held-out sentences.

    python -m experiments.evaluate_translation --model translation-en-fr

``--english`` and ``--french`` name a test set of one's own, a sentence a line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import sacrebleu

import decoding_jax
from experiments import held_out, quick

QUICK = {"model": quick.MODEL, "sentences": 2, "batch_size": 2}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="translation-en-fr", help="a directory, or a name")
    parser.add_argument("--english", type=Path)
    parser.add_argument("--french", type=Path)
    parser.add_argument("--sentences", type=int, help="the first ones only")
    parser.add_argument("--batch_size", type=int, default=64)
    args = quick.parse(parser, argv, QUICK)

    if args.english and args.french:
        lines = [p.read_text(encoding="utf-8").splitlines() for p in (args.english, args.french)]
        sentences = [held_out.Sentence(e, [f]) for e, f in zip(*lines, strict=True)]
    else:
        sentences = held_out.read()
    sentences = sentences[: args.sentences]
    model, tokenizer = decoding_jax.load(args.model)
    rows = decoding_jax.generate(
        model,
        tokenizer,
        [s.english for s in sentences],
        batch_size=args.batch_size,
        max_new_tokens=48,
    )
    bleu = sacrebleu.corpus_bleu([row[0].text for row in rows], held_out.columns(sentences))
    for sentence, row in list(zip(sentences, rows, strict=True))[:: max(1, len(rows) // 10)]:
        print(f"{sentence.english}\n    {row[0].text}\n    {' | '.join(sentence.references)}")
    print(f"{args.model}: {bleu} on {len(sentences):,} sentences")


if __name__ == "__main__":
    main()
