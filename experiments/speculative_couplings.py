"""How often coupled drafts stand, and how much of a lattice's evenness speculation keeps.

    python experiments/speculative_couplings.py --out runs/couplings

First, the chance that target and draft choose the same token, exactly, at every position of sampled
translations of held-out sentences: for the maximal coupling (which token verification attains), for
Gumbel noise in common, and for one uniform number in common that is inverted through both laws with
the vocabulary in one order or another. Then the acceptance rate of the verifiers as they run. Last,
the standard deviation of mean sentence-BLEU over repeated runs of N samples, over that of
independent samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sacrebleu
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))

import decoding_jax
from decoding_jax.text import completions, default_stop, encode_batch
from experiments import held_out
from experiments.arithmetic_variance import ratio_interval

TARGET, DRAFT = "translation-en-fr", "translation-en-fr-draft"
LENGTH = 32
VERIFIERS = ("token", "block", "gumbel", "code", "coded_token")


def laws(ids: list[list[int]], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The laws of target and draft at every position of one sample a sentence: ``[n, V]`` each."""
    width = max(len(row) for row in ids)
    models = [encode_batch(decoding_jax.load(name)[0], ids, width) for name in (TARGET, DRAFT)]
    stop = default_stop(decoding_jax.load(TARGET)[1])
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


def chances(p: np.ndarray, q: np.ndarray, seed: int) -> dict[str, float]:
    """The mean chance of the same token, over positions."""
    rng = np.random.default_rng(seed)
    model, _ = decoding_jax.load(TARGET)
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
    for name, order in orders.items():
        means[f"code, {name}"] = float(
            np.mean([inversion_chance(a, b, order) for a, b in zip(p, q, strict=True)])
        )
    # An order of each position's own, which target and draft both know once the draft is there.
    means["code, by the draft's law"] = float(
        np.mean([inversion_chance(a, b, np.argsort(-b)) for a, b in zip(p, q, strict=True)])
    )
    return means


def decode(ids: list[list[int]], keys: Any, verifier: str, count: int, width: int) -> Any:
    """N samples of every row by speculation with four drafted tokens."""
    target, prompt = encode_batch(decoding_jax.load(TARGET)[0], ids, width)
    draft, _ = encode_batch(decoding_jax.load(DRAFT)[0], ids, width)
    return decoding_jax.speculative_sample(
        target,
        draft,
        prompt,
        keys,
        num_samples=count,
        num_draft_tokens=4,
        verifier=verifier,
        max_new_tokens=LENGTH,
        stop=default_stop(decoding_jax.load(TARGET)[1]),
    )


def bleu_means(
    sentences: list[held_out.Sentence], verifier: str, count: int, runs: int, seed: int
) -> tuple[np.ndarray, float]:
    """Mean sentence-BLEU of N samples, ``[sentences, runs]``, and the acceptance rate."""
    _, tokenizer = decoding_jax.load(TARGET)
    ids = [tokenizer.encode(s.english) for s in sentences]
    width = max(len(row) for row in ids)
    means, accepted, judged = np.zeros((len(sentences), runs)), 0, 0
    for i, sentence in enumerate(tqdm(sentences, verifier, leave=False)):

        @cache
        def bleu(text: str, references: tuple[str, ...] = tuple(sentence.references)) -> float:
            return sacrebleu.sentence_bleu(text, list(references)).score

        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i), runs)
        output = jax.device_get(decode([ids[i]] * runs, keys, verifier, count, width))
        accepted += output.info.accepted.sum()
        judged += output.info.accepted.sum() + output.info.rejected.sum()
        for run, row in enumerate(completions(tokenizer, output, runs)):
            means[i, run] = np.mean([bleu(c.text) for c in row])
    return means, accepted / judged


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--num_samples", type=int, default=16)
    parser.add_argument("--verifiers", nargs="+", default=list(VERIFIERS), choices=VERIFIERS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    everything = held_out.read()
    sentences = everything[:: max(1, len(everything) // args.sentences)][: args.sentences]
    _, tokenizer = decoding_jax.load(TARGET)
    p, q = laws([tokenizer.encode(s.english) for s in sentences], args.seed)
    same = chances(p, q, args.seed)
    print(f"the chance of the same token, over {len(p)} positions")
    for name, chance in same.items():
        print(f"  {name:26} {chance:.3f}")

    rows = []
    means = {}
    for verifier in dict.fromkeys(("token", *args.verifiers)):
        # Seeds of their own: the figures are compared as independent ones.
        seed = args.seed + 1 + VERIFIERS.index(verifier)
        means[verifier], rate = bleu_means(sentences, verifier, args.num_samples, args.runs, seed)
        rng = np.random.default_rng(args.seed)
        ratio, low, high = ratio_interval(means[verifier], means["token"], rng)
        mean = float(means[verifier].mean())
        row = {"verifier": verifier, "acceptance": float(rate), "bleu": mean}
        rows.append(row | {"ratio": ratio, "low": low, "high": high})
    print(f"{len(sentences)} sentences, {args.runs} runs of {args.num_samples} samples")
    print("verifier      acceptance   BLEU   deviation over token's   95% interval")
    for r in rows:
        print(
            f"{r['verifier']:12}  {r['acceptance']:10.3f}  {r['bleu']:5.2f}   {r['ratio']:22.3f}"
            f"   [{r['low']:.3f}, {r['high']:.3f}]"
        )
    settings = {k: v for k, v in vars(args).items() if k != "out"}
    found = {**settings, "positions": len(p), "same_token": same, "verifiers": rows}
    (args.out / "couplings.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
