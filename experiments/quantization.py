"""What weights of 8 and 4 bits cost in quality, and how often such a draft is accepted.

    python -m experiments.quantization --out runs/quantization

BLEU of ``translation-en-fr``, greedily, on the held-out sentences, and bits a character of
``python-code`` on files of the standard library that it was not trained on, with the weights as
they are and quantised. Then the quantised form of each model drafts four tokens at a time for the
model itself, whose sequences stay exact. With ``--page`` the tables of a page are written anew from
the file of results.
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
from experiments.train_code import bits_per_character

TRANSLATION, CODE = "translation-en-fr", "python-code"
WEIGHTS = ("none", "int8", "int4", "int4-32")
DTYPES = ("float32", "bfloat16")
VERIFIERS = ("greedy", "token")
NUM_DRAFT_TOKENS = 4
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


def bits(dtype: str, weights: str, characters: int | None) -> float:
    """Bits a character of the held-out files, or of the first ``characters`` of them."""
    model, _ = load(CODE, dtype, weights)
    library = Path(sysconfig.get_path("stdlib"))
    _, files = code_data.split(code_data.read_files(library))
    if characters is not None:
        files = [files[0]._replace(text=files[0].text[:characters])]
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
    """As many inputs of a model as there are sentences, 64 at most."""
    count = min(len(sentences), 64)
    if name == TRANSLATION:
        return [s.english for s in sentences[:count]]
    with open(held_out.FUNCTIONS, encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for _, line in zip(range(count), lines, strict=False)]


def tables(found: Mapping[str, Any]) -> dict[str, str]:
    """The tables of a page by their names."""
    lines = ["| activations | weights | BLEU | bits a character |", "| --- " * 4 + "|"]
    for row in found["quality"]:
        weights = f"`{row['weights']}`" if row["weights"] != "none" else row["dtype"]
        cells = [row["dtype"], weights, f"{row['bleu']:.2f}", f"{row['bits']:.4f}"]
        lines.append("| " + " | ".join(cells) + " |")
    drafts = ["| model | draft | verifier | accepted | tokens a call |", "| --- " * 5 + "|"]
    for row in found["drafts"]:
        cells = [f"`{row['model']}`", f"its `{row['weights']}` form", f"`{row['verifier']}`"]
        cells += [f"{row['accepted']:.3f}", f"{row['tokens']:.2f}"]
        drafts.append("| " + " | ".join(cells) + " |")
    return {"quality": "\n".join(lines), "drafts": "\n".join(drafts)}


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
    parser.add_argument("--page", type=Path, help="the page whose tables are written anew")
    args = quick.parse(parser, argv, QUICK)
    path = args.out / "quantization.json"
    if args.page:
        results.write_tables(args.page, tables(json.loads(path.read_text())))
        return
    sentences = held_out.read()[: args.sentences]
    found: dict[str, Any] = {"quality": [], "drafts": []}
    for dtype, weights in tqdm([(d, w) for d in args.dtypes for w in args.weights]):
        quality = {
            "bleu": bleu(dtype, weights, sentences),
            "bits": bits(dtype, weights, args.characters),
        }
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
    print("\n\n".join(tables(found).values()))


if __name__ == "__main__":
    main()
