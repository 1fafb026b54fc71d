"""How often coupled drafts agree with the target, and how much of a lattice's spread remains.

    python -m experiments.speculative_couplings --out runs/couplings

A run that is started again with the same settings continues after the last decoded sentence.

The first part computes exactly how probable it is that target and draft choose the same token, at
every position of sampled translations of held-out sentences. The couplings are the maximal one,
which token verification attains, shared Gumbel noise, and a shared uniform number that is inverted
through both distributions with the vocabulary in several orders. The second part reports the
acceptance rates of complete runs, and the standard deviation of mean sentence-BLEU over repeated
runs of N samples, relative to that of independent samples (token verification's), with a 95%
interval over sentences (bootstrap).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sacrebleu
from tqdm import tqdm

import decoding_jax
from decoding_jax.text import completions, default_stop, encode_batch
from experiments import held_out, quick
from experiments.papers.arithmetic_estimates import ratio_of_deviations
from experiments.papers.results import interval
from experiments.results import write_json

TARGET, DRAFT = "translation-en-fr", "translation-en-fr-draft"
LENGTH = 32
QUICK = {
    "target": quick.MODEL,
    "sentences": 2,
    "runs": 2,
    "num_samples": 2,
    "verifiers": ["token"],
}
VERIFIERS = ("token", "block", "gumbel", "code", "coded_token")


class Row(NamedTuple):
    """What one sentence came to with one verifier.

    Attributes:
      bleu: the mean sentence-BLEU of N samples, one a run.
      accepted: drafted tokens that stood, in all runs.
      judged: drafted tokens that stood or were rejected.
    """

    bleu: list[float]
    accepted: int
    judged: int


def distributions(ids: list[list[int]], name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft distributions at the positions of a sample of each sentence: ``[n, V]``."""
    width = max(len(row) for row in ids)
    models = [encode_batch(decoding_jax.load(n)[0], ids, width) for n in (name, DRAFT)]
    stop = default_stop(decoding_jax.load(name)[1])
    (target, prompt), _ = models
    key = jax.random.key(seed)
    output = decoding_jax.sample(target, prompt, key, max_new_tokens=LENGTH, stop=stop)
    real = np.arange(LENGTH) < np.asarray(output.length)[:, 0, None]

    @jax.jit
    def teach(model: Any, tokens: Any) -> Any:
        first, cache = model.prefill(*prompt, lanes=1, slots=LENGTH)
        rest, _ = model.extend(cache, tokens, 0)
        return jax.nn.softmax(jnp.concatenate([first.logits, rest.logits[:, :, :-1]], axis=2))

    found = [np.asarray(teach(model, output.tokens), np.float64)[:, 0][real] for model, _ in models]
    return found[0], found[1]


def gumbel_chance(p: np.ndarray, q: np.ndarray) -> float:
    """Both argmaxes are v with probability 1 / sum_u max(p_u / p_v, q_u / q_v); summed over v."""
    p, q = p[keep := (p > 0) & (q > 0)], q[keep]
    order = np.argsort(-p / q, kind="stable")
    p, q = p[order], q[order]
    above = np.cumsum(p)  # those of a ratio at least as large, itself included
    below = q.sum() - np.cumsum(q)
    return float((1 / (above / p + below / q)).sum())


def inversion_chance(p: np.ndarray, q: np.ndarray, order: np.ndarray) -> float:
    """How much of [0, 1) two inverse distribution functions map to the same token."""
    ends_p, ends_q = np.cumsum(p[order]), np.cumsum(q[order])
    starts_p, starts_q = ends_p - p[order], ends_q - q[order]
    overlap = np.minimum(ends_p, ends_q) - np.maximum(starts_p, starts_q)
    return float(np.maximum(overlap, 0).sum())


def chances(p: np.ndarray, q: np.ndarray, name: str, seed: int) -> dict[str, float]:
    """The mean chance of the same token, over positions."""
    rng = np.random.default_rng(seed)
    model, _ = decoding_jax.load(name)
    table = np.asarray(model.params["token_embedder"]["embedding"], np.float64)
    table = table - table.mean(0)
    principal = table @ np.linalg.eigh(table.T @ table)[1][:, -1]
    orders = {
        "as it is": np.arange(p.shape[1]),
        "at random": rng.permutation(p.shape[1]),
        "by frequency": np.argsort(-p.mean(0)),
        "by embedding": np.argsort(principal),
    }
    means = {
        "maximal": float(np.minimum(p, q).sum(-1).mean()),
        "gumbel": float(np.mean([gumbel_chance(*pair) for pair in zip(p, q, strict=True)])),
    }
    for kind, order in orders.items():
        means[f"code, {kind}"] = float(
            np.mean([inversion_chance(a, b, order) for a, b in zip(p, q, strict=True)])
        )
    # An order of each position's own, which target and draft both know once the draft is there.
    means["code, by the draft's distribution"] = float(
        np.mean([inversion_chance(a, b, np.argsort(-b)) for a, b in zip(p, q, strict=True)])
    )
    return means


def decode(
    ids: list[list[int]], keys: Any, args: argparse.Namespace, verifier: str, width: int
) -> Any:
    """N samples of every row by speculation with four drafted tokens."""
    model, tokenizer = decoding_jax.load(args.target)
    target, prompt = encode_batch(model, ids, width)
    draft, _ = encode_batch(decoding_jax.load(DRAFT)[0], ids, width)
    return decoding_jax.speculative_sample(
        target,
        draft,
        prompt,
        keys,
        num_samples=args.num_samples,
        num_draft_tokens=4,
        verifier=verifier,
        max_new_tokens=LENGTH,
        stop=default_stop(tokenizer),
    )


def score(
    sentence: held_out.Sentence, keys: Any, args: argparse.Namespace, verifier: str, width: int
) -> Row:
    """Decodes N samples of a sentence for every key, as the rows of one batch."""
    _, tokenizer = decoding_jax.load(args.target)

    @cache
    def bleu(text: str) -> float:
        return sacrebleu.sentence_bleu(text, sentence.references).score

    rows = [tokenizer.encode(sentence.english)] * len(keys)
    output = jax.device_get(decode(rows, keys, args, verifier, width))
    accepted, rejected = int(output.info.accepted.sum()), int(output.info.rejected.sum())
    texts = completions(tokenizer, output, len(rows))
    means = [float(np.mean([bleu(c.text) for c in row])) for row in texts]
    return Row(means, accepted, accepted + rejected)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, one JSON line each; a line that was not written whole is cut off."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    path.write_text("".join(whole))
    return [Row(**json.loads(line)) for line in whole]


def decode_all(
    sentences: list[held_out.Sentence], verifiers: list[str], args: argparse.Namespace
) -> dict[str, list[Row]]:
    """Every sentence's row for every verifier, from ``--out`` where it is there already."""
    _, tokenizer = decoding_jax.load(args.target)
    width = max(len(tokenizer.encode(s.english)) for s in sentences)
    paths = {verifier: args.out / f"{verifier}.jsonl" for verifier in verifiers}
    found = {verifier: read_rows(path) for verifier, path in paths.items()}
    done = sum(map(len, found.values()))
    with tqdm(total=len(verifiers) * len(sentences), initial=done, unit="sentence") as bar:
        for verifier, rows in found.items():
            bar.set_postfix_str(verifier)
            # Keys of their own: the figures are compared as independent ones.
            key = jax.random.key(args.seed + 1 + VERIFIERS.index(verifier))
            with open(paths[verifier], "a", encoding="utf-8") as out:
                for i in range(len(rows), len(sentences)):
                    keys = jax.random.split(jax.random.fold_in(key, i), args.runs)
                    rows.append(score(sentences[i], keys, args, verifier, width))
                    out.write(json.dumps(rows[-1]._asdict()) + "\n")
                    out.flush()
                    bar.update()
    return found


def check_settings(out: Path, settings: dict[str, Any]) -> None:
    """Refuses to go on with what was decoded with other settings."""
    path = out / "settings.json"
    if path.exists() and (there := json.loads(path.read_text())) != settings:
        raise SystemExit(
            f"--out: expected a new directory, got {out}, which holds a run of {there}"
        )
    path.write_text(json.dumps(settings) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default=TARGET, help="a directory, or a name")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--num_samples", type=int, default=16)
    parser.add_argument("--verifiers", nargs="+", default=list(VERIFIERS), choices=VERIFIERS)
    parser.add_argument("--seed", type=int, default=0)
    args = quick.parse(parser, argv, QUICK)
    args.out.mkdir(parents=True, exist_ok=True)
    names = ("target", "sentences", "runs", "num_samples", "seed")
    settings = {name: getattr(args, name) for name in names}
    check_settings(args.out, settings)

    everything = held_out.read()
    sentences = everything[:: max(1, len(everything) // args.sentences)][: args.sentences]
    _, tokenizer = decoding_jax.load(args.target)
    ids = [tokenizer.encode(s.english) for s in sentences]
    p, q = distributions(ids, args.target, args.seed)
    same = chances(p, q, args.target, args.seed)
    print(f"the chance of the same token, over {len(p)} positions")
    for name, chance in same.items():
        print(f"  {name:26} {chance:.3f}", flush=True)

    verifiers = list(dict.fromkeys(("token", *args.verifiers)))
    decoded = decode_all(sentences, verifiers, args)
    independent = np.array([row.bleu for row in decoded["token"]])
    rows = []
    print(f"{len(sentences)} sentences, {args.runs} runs of {args.num_samples} samples")
    print("verifier      acceptance   BLEU   deviation over token's   95% interval")
    for verifier, found in decoded.items():
        means = np.array([row.bleu for row in found])
        variances = means.var(axis=1, ddof=1), independent.var(axis=1, ddof=1)
        ratio, low, high = interval(ratio_of_deviations, *variances, seed=args.seed)
        acceptance = sum(row.accepted for row in found) / sum(row.judged for row in found)
        bleu = float(means.mean())
        rows.append({"verifier": verifier, "acceptance": acceptance, "bleu": bleu})
        rows[-1] |= {"ratio": ratio, "low": low, "high": high}
        print(
            f"{verifier:12}  {acceptance:10.3f}  {bleu:5.2f}   {ratio:22.3f}"
            f"   [{low:.3f}, {high:.3f}]"
        )
    results = {**settings, "positions": len(p), "same_token": same, "verifiers": rows}
    write_json(args.out / "couplings.json", results)


if __name__ == "__main__":
    main()
