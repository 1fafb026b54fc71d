"""One language, three distributions: masked, conditional, and particles, on an enumerable model.

    python -m experiments.conditional --out runs/conditional

The model is a table over six tokens, ``[ ] , 0 1`` and an end token. The language is that of arrays
of up to three binary digits, such as ``[0,1]``: 15 texts. ``p(text | the text is in the language)``
and the distribution of masking token by token are enumerated. ``smc_sample`` with N particles and
``conditional_sample`` are run on many rows; a text is then drawn by its weight. The distance of
exact draws, as many and as independent, from their own distribution is the noise of a figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.testing import TableLM, enumerate_distribution
from decoding_jax.testing.certificate.comparisons import outcome_index
from experiments import drawing, quick
from experiments.audit.measure import total_variation
from experiments.results import write_json

TOKENS = ("[", "]", ",", "0", "1", "")
END, LENGTH = 5, 8
TABLE = "the distances"


def automaton() -> transforms.Automaton:
    """States: before the array, at its first digit or end, after a digit, after it, at a digit."""
    table = np.full((6, len(TOKENS)), -1, np.int32)
    table[0, 0] = 1
    table[[1, 4], 3:5] = 2
    table[[1, 2], 1] = 3
    table[2, 2] = 4
    table[3, END] = 5
    return transforms.Automaton(table)


LANGUAGE = transforms.prefix_allowed_tokens(automaton())
STOP = Stop(eos_ids=(END,))
PROMPT = np.array([[2, 0]], np.int32)


def prompts(rows: int) -> Prompt:
    """The one prompt, as often as there are rows."""
    tokens = jnp.tile(jnp.asarray(PROMPT), (rows, 1))
    return Prompt(tokens, jnp.full(rows, PROMPT.shape[1], jnp.int32))


def measure(seed: int, rows: int, particles: Sequence[int]) -> dict[str, Any]:
    """The distributions of all texts of the language, their distances, and what each cost."""
    model = TableLM.random(jax.random.key(seed), len(TOKENS), sharpness=1.5)
    limits: dict[str, Any] = {"max_new_tokens": LENGTH, "stop": STOP}
    masked = enumerate_distribution(model, prompts(1), transform=LANGUAGE, **limits)
    whole = masked.finished
    prob = np.where(whole, np.exp(masked.log_prob), 0.0)
    target, key = prob / prob.sum(), jax.random.key(seed + 1)
    draw = np.random.default_rng(seed)

    def entry(name: str, probs: np.ndarray, runs: int, **more: Any) -> dict[str, Any]:
        exact = draw.multinomial(runs, target, 200) / runs if runs else target[None]
        noise = float(np.mean([total_variation(one, target) for one in exact]))
        return {
            "name": name,
            "probs": probs[whole].tolist(),
            "distance": total_variation(probs, target),
            "noise": noise,
            **more,
        }

    def drawn(output: Any, weight: np.ndarray) -> np.ndarray:
        index = outcome_index(masked, output.tokens.reshape(-1, LENGTH), output.length.ravel())
        weight = weight.ravel()
        probs = np.bincount(index[weight > 0], weight[weight > 0], len(target))
        return probs / probs.sum()

    found = [entry("masked", masked.prob, 0), entry("conditional", target, 0)]
    for count in particles:
        output = jax.device_get(
            decoding_jax.smc_sample(
                model.lockstep(), prompts(rows), key, num_samples=count, language=LANGUAGE,
                weighted=True, **limits,
            )
        )  # fmt: skip
        estimate = np.exp(np.float64(output.info.log_normaliser))
        found.append(
            entry(
                f"{count} particles",
                drawn(output, np.exp(np.float64(output.info.log_weight))),
                rows,
                estimate=float(estimate.mean()),
                deviation=float(estimate.std()),
                calls=LENGTH,
            )
        )
    output = jax.device_get(
        decoding_jax.conditional_sample(
            model, prompts(rows), key, num_samples=4, language=LANGUAGE, budget=20 * LENGTH,
            max_prefixes=128,
            **limits,
        )
    )  # fmt: skip
    accepted = output.info.accepted
    estimate = np.exp(np.float64(output.info.log_language_prob))
    found.append(
        entry(
            "conditional_sample",
            drawn(output, accepted.astype(np.float64)),
            int(accepted.sum()),
            estimate=float(estimate.mean()),
            deviation=float(estimate.std()),
            calls=float(np.mean(output.info.model_calls)),
            accepted=float(accepted.mean()),
            attempts=float(output.info.num_attempts.sum() / accepted.sum()),
        )
    )
    texts = ["".join(TOKENS[t] for t in tokens[:n]) for tokens, n in zip(*masked[:2], strict=True)]
    return {
        "texts": [text for text, kept in zip(texts, whole, strict=True) if kept],
        "language": float(prob.sum()),
        "rows": rows,
        "entries": found,
    }


def table(results: dict[str, Any]) -> str:
    """The table of the page."""
    lines = [
        "| | total variation | of it, noise | estimate of p(language) | model calls |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in results["entries"]:
        estimate = calls = noise = ""
        if "calls" in entry:
            estimate = f"{entry['estimate']:.2e} ± {entry['deviation']:.0e}"
            calls, noise = f"{entry['calls']:.0f}", f"{entry['noise']:.4f}"
        elif entry["name"] == "conditional":
            estimate = f"{results['language']:.2e}"
        lines.append(
            f"| {entry['name']} | {entry['distance']:.4f} | {noise} | {estimate} | {calls} |"
        )
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws the probability of each text under each distribution."""
    figure, (axes,) = drawing.panels(height=4.6)
    entries = [e for e in results["entries"] if e["name"] != "conditional_sample"]
    target = next(e for e in entries if e["name"] == "conditional")["probs"]
    order = np.argsort(-np.asarray(target))
    for i, entry in enumerate(entries):
        label = f"{entry['name']} ({entry['distance']:.3f})"
        probs = np.asarray(entry["probs"])[order]
        axes.plot(np.arange(len(probs)), probs, label=label, linestyle="none", **drawing.look(i))
    axes.set_yscale("log")
    axes.set_xticks(range(len(order)), [results["texts"][k] for k in order], rotation=60)
    axes.set_ylabel("probability")
    figure.legend(loc="outside upper center", ncols=2, title="total variation in brackets")
    drawing.save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/conditional"), help="a folder")
    parser.add_argument("--rows", type=int, default=4_000, help="runs of each sampler")
    parser.add_argument("--seed", type=int, default=14, help="of the table and of all draws")
    parser.add_argument("--particles", type=int, nargs="+", default=[4, 16, 64])
    args = quick.parse(parser, argv, {"rows": 50, "particles": [4]})
    results = measure(args.seed, args.rows, args.particles)
    write_json(args.out / "conditional.json", results)
    plot(results, args.out / "conditional.png")
    print(table(results))


if __name__ == "__main__":
    main()
