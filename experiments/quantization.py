"""What weights of 8 and 4 bits cost in quality, and how often such a draft is accepted.

    python -m experiments.quantization --out runs/quantization

BLEU of ``translation-en-fr``, greedily, on the held-out sentences, and bits a character of
``python-code`` on files of the standard library that it was not trained on, with the weights as
they are and quantised. Then the quantised form of each model drafts four tokens at a time for the
model itself, whose sequences stay exact.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import sacrebleu
import tokenizers
from tqdm import tqdm

import decoding_jax
from decoding_jax.models import quantize
from decoding_jax.text import bind_drafter, default_stop, embedded, encode_batch
from experiments import code_data, held_out, quick, results
from experiments.papers.results import table, versions
from experiments.train_code import bits_per_character

TRANSLATION, CODE = "translation-en-fr", "python-code"
WEIGHTS = ("none", "int8", "int4", "int4-32")
DTYPES = ("float32", "bfloat16")
VERIFIERS = ("greedy", "token")
NUM_DRAFT_TOKENS, INPUTS = 4, 64
QUICK = {
    "sentences": 2,
    "characters": 2000,
    "dtypes": ["float32"],
    "weights": ["int8"],
    "verifiers": ["greedy"],
}


def load(name: str, dtype: str, weights: str) -> tuple[Any, Any]:
    return decoding_jax.load(name, dtype=dtype, weights=None if weights == "none" else weights)


def bleu(dtype: str, weights: str, sentences: Sequence[held_out.Sentence]) -> float:
    """BLEU of greedy translations."""
    model, tokenizer = load(TRANSLATION, dtype, weights)
    rows = decoding_jax.generate(
        model, tokenizer, [s.english for s in sentences], batch_size=64, max_new_tokens=48
    )
    texts = [row[0].text for row in rows]
    return sacrebleu.corpus_bleu(texts, held_out.columns(list(sentences))).score


def held_out_files(characters: int | None) -> list[code_data.File]:
    """The held-out files of the standard library, or the beginning of the first one."""
    _, files = code_data.split(code_data.read_files(Path(sysconfig.get_path("stdlib"))))
    if characters is None:
        return files
    return [files[0]._replace(text=files[0].text[:characters])]


def bits(dtype: str, weights: str, files: Sequence[code_data.File]) -> float:
    """Bits a character of some files."""
    model, _ = load(CODE, dtype, weights)
    encoder = tokenizers.Tokenizer.from_file(str(embedded()[CODE] / "tokenizer.json"))
    tokens = code_data.encode(encoder, files)
    return bits_per_character(model.params, model.config, tokens, sum(len(f.text) for f in files))


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
        return [s.english for s in sentences[:count]]
    with open(held_out.FUNCTIONS, encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for _, line in zip(range(count), lines, strict=False)]


def quality_table(found: Mapping[str, Any]) -> str:
    """What each form of the weights costs in quality."""
    rows = []
    for row in found["quality"]:
        weights = f"`{row['weights']}`" if row["weights"] != "none" else row["dtype"]
        rows.append([row["dtype"], weights, f"{row['bleu']:.2f}", f"{row['bits']:.4f}"])
    return table(["activations", "weights", "BLEU", "bits a character"], rows)


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
    parser.add_argument("--sentences", type=int, help="the first ones only")
    parser.add_argument("--characters", type=int, help="the first ones only")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS)
    parser.add_argument("--verifiers", nargs="+", default=VERIFIERS)
    args = quick.parse(parser, argv, QUICK)
    path = args.out / "quantization.json"
    sentences, files = held_out.read()[: args.sentences], held_out_files(args.characters)
    found: dict[str, Any] = {
        "sentences": len(sentences),
        "files": len(files),
        "inputs": min(len(sentences), INPUTS),
        "draft_tokens": NUM_DRAFT_TOKENS,
        "versions": versions(),
        "quality": [],
        "drafts": [],
    }
    for dtype, weights in tqdm([(d, w) for d in args.dtypes for w in args.weights]):
        quality = {"bleu": bleu(dtype, weights, sentences), "bits": bits(dtype, weights, files)}
        found["quality"].append({"dtype": dtype, "weights": weights, **quality})
        results.write_json(path, found)
    narrow = [w for w in args.weights if w != "none"]
    ways = [(m, w, v) for m in (TRANSLATION, CODE) for w in narrow for v in args.verifiers]
    for name, weights, verifier in tqdm(ways):
        measured = acceptance(name, weights, verifier, texts_of(name, sentences))
        found["drafts"].append(
            {"model": name, "weights": weights, "verifier": verifier, **measured}
        )
        results.write_json(path, found)
    print(quality_table(found), drafts_table(found), sep="\n")


if __name__ == "__main__":
    main()
