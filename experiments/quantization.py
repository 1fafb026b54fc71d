"""What weights of 8 and 4 bits cost in quality, and how often such a draft is accepted.

    python -m experiments.quantization --sentences 451 --characters 4000 --out runs/quantization

BLEU of ``translation-en-fr``, greedily, on held-out sentences, and bits a character of
``python-code`` on files of the standard library that it was not trained on, with the weights as
they are and quantised, and the differences between the two. Then the quantised form of each model
drafts four tokens at a time for the model itself, whose sequences stay exact.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import sacrebleu
import tokenizers
from tqdm import tqdm

import decoding_jax
from decoding_jax.models import quantize
from decoding_jax.text import bind_drafter, default_stop, embedded, encode_batch
from experiments import code_data, held_out, quick, results
from experiments.papers.results import difference, interval, signed, table, versions
from experiments.papers.tasks import spread
from experiments.train_code import bits_per_character

TRANSLATION, CODE = "translation-en-fr", "python-code"
WEIGHTS = ("int8", "int4", "int4-32")
DTYPES = ("float32", "bfloat16")
VERIFIERS = ("greedy", "token")
NUM_DRAFT_TOKENS, INPUTS = 4, 64
QUICK = {
    "sentences": 2,
    "characters": 100,
    "files": 2,
    "dtypes": ["float32"],
    "weights": ["int8"],
    "verifiers": ["greedy"],
}


Columns = list[np.ndarray]
"""Numbers of each input, from whose sums a result is made."""


def load(name: str, dtype: str, weights: str) -> tuple[Any, Any]:
    return decoding_jax.load(name, dtype=dtype, weights=None if weights == "none" else weights)


def translations(dtype: str, weights: str, sentences: Sequence[held_out.Sentence]) -> Columns:
    """What BLEU counts of each greedy translation: matches and n-grams, and two lengths."""
    model, tokenizer = load(TRANSLATION, dtype, weights)
    rows = decoding_jax.generate(
        model, tokenizer, [s.english for s in sentences], batch_size=64, max_new_tokens=48
    )
    scores = [
        sacrebleu.sentence_bleu(row[0].text, sentence.references)
        for row, sentence in zip(rows, sentences, strict=True)
    ]
    counts = np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], float)
    return list(counts.T)


def bleu(*counts: np.ndarray) -> np.ndarray:
    """BLEU of a corpus from what it counts of each sentence (Papineni et al. 2002).

    Args:
      counts: float64 ``[..., n]``: the matches and the numbers of n-grams of each length, and the
        lengths of translation and reference.

    Example:
      >>> round(float(bleu(*np.array([[8.0, 7, 6, 5, 8, 7, 6, 5, 8, 16]]).T)), 2)
      36.79
    """
    *ngrams, length, reference = (column.sum(-1) for column in counts)
    half = len(ngrams) // 2
    ratios = [np.log(m / t) for m, t in zip(ngrams[:half], ngrams[half:], strict=True)]
    return 100 * np.exp(np.mean(ratios, axis=0) + np.minimum(0, 1 - reference / length))


def held_out_files(count: int | None, characters: int | None) -> list[code_data.File]:
    """The held-out files of the standard library, or the beginnings of the first ones."""
    _, files = code_data.split(code_data.read_files(Path(sysconfig.get_path("stdlib"))))
    return [file._replace(text=file.text[:characters]) for file in files[:count]]


def bits(dtype: str, weights: str, files: Sequence[code_data.File]) -> Columns:
    """The bits and the characters of each file."""
    model, _ = load(CODE, dtype, weights)
    encoder = tokenizers.Tokenizer.from_file(str(embedded()[CODE] / "tokenizer.json"))
    sizes = [len(file.text) for file in files]
    each = [
        bits_per_character(model.params, model.config, code_data.encode(encoder, [file]), size)
        for file, size in zip(files, sizes, strict=True)
    ]
    return [np.multiply(each, sizes), np.array(sizes, float)]


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """A ratio of sums over inputs."""
    return above.sum(-1) / below.sum(-1)


def estimates(columns: dict[str, Columns], wide: dict[str, Columns] | None) -> dict[str, Any]:
    """Each number of a form of the weights, and how much above that of wide weights it is."""
    found: dict[str, Any] = {}
    for name, statistic in (("bleu", bleu), ("bits", ratio)):
        found[name] = interval(statistic, *columns[name])
        apart = None if wide is None else difference(statistic, columns[name], wide[name])
        found[f"{name}_above"] = apart
    return found


def acceptance(name: str, weights: str, verifier: str, texts: Sequence[str]) -> Mapping[str, float]:
    """The share of drafted tokens that is accepted, and the tokens of a call of the model."""
    model, tokenizer = load(name, "float32", "none")
    ids = [tokenizer.encode(text) for text in texts]
    width = max(map(len, ids))
    bound, prompt = encode_batch(model, ids, width)
    drafter = bind_drafter(quantize(model, weights), model, ids, width)
    output = decoding_jax.speculative_sample(
        bound,
        drafter,
        prompt,
        jax.random.key(0),
        verifier=verifier,
        num_draft_tokens=NUM_DRAFT_TOKENS,
        max_new_tokens=48,
        stop=default_stop(tokenizer),
    )
    info = jax.device_get(output.info)
    return {"accepted": float(info.acceptance_rate), "tokens": float(info.tokens_per_call)}


def texts_of(name: str, sentences: Sequence[held_out.Sentence]) -> list[str]:
    """As many inputs of a model as there are sentences, ``INPUTS`` at most."""
    count = min(len(sentences), INPUTS)
    if name == TRANSLATION:
        return [s.english for s in spread(sentences, count)]
    with open(held_out.FUNCTIONS, encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for _, line in zip(range(count), lines, strict=False)]


def quality_table(found: Mapping[str, Any]) -> str:
    """What each form of the weights costs in quality."""
    rows = []
    for row in found["quality"]:
        weights = f"`{row['weights']}`" if row["weights"] != "none" else row["dtype"]
        cells = [row["dtype"], weights]
        for name, digits in (("bleu", 2), ("bits", 4)):
            above = row[f"{name}_above"]
            cells += [f"{row[name][0]:.{digits}f}", "" if above is None else signed(above, digits)]
        rows.append(cells)
    words = ["activations", "weights", "BLEU", "above wide weights", "bits a character"]
    return table([*words, "above wide weights"], rows)


def drafts_table(found: Mapping[str, Any]) -> str:
    """How often each draft is accepted."""
    rows = []
    for row in found["drafts"]:
        names = f"`{row['model']}`", f"its `{row['weights']}` form", f"`{row['verifier']}`"
        rows.append([*names, f"{row['accepted']:.3f}", f"{row['tokens']:.2f}"])
    return table(["model", "draft", "verifier", "accepted", "tokens a call"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--sentences", type=int, help="so many, of all lengths")
    parser.add_argument("--files", type=int, help="the first ones only")
    parser.add_argument("--characters", type=int, help="of each file, the first ones only")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS)
    parser.add_argument("--verifiers", nargs="+", default=VERIFIERS)
    args = quick.parse(parser, argv, QUICK)
    path = args.out / "quantization.json"
    sentences = spread(held_out.read(), args.sentences)
    files = held_out_files(args.files, args.characters)
    found: dict[str, Any] = {
        "sentences": len(sentences),
        "files": len(files),
        "characters": args.characters,
        "inputs": min(len(sentences), INPUTS),
        "draft_tokens": NUM_DRAFT_TOKENS,
        "versions": versions(),
        "quality": [],
        "drafts": [],
    }
    wide: dict[str, dict[str, Columns]] = {}
    for dtype, weights in tqdm([(d, w) for d in args.dtypes for w in ("none", *args.weights)]):
        columns = {
            "bleu": translations(dtype, weights, sentences),
            "bits": bits(dtype, weights, files),
        }
        row = {"dtype": dtype, "weights": weights, **estimates(columns, wide.get(dtype))}
        wide.setdefault(dtype, columns)
        found["quality"].append(row)
        results.write_json(path, found)
    ways = [(m, w, v) for m in (TRANSLATION, CODE) for w in args.weights for v in args.verifiers]
    for name, weights, verifier in tqdm(ways):
        measured = acceptance(name, weights, verifier, texts_of(name, sentences))
        found["drafts"].append(
            {"model": name, "weights": weights, "verifier": verifier, **measured}
        )
        results.write_json(path, found)
    print(quality_table(found), drafts_table(found), sep="\n")


if __name__ == "__main__":
    main()
