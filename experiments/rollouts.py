"""The error of a policy gradient from groups of samples that are spread evenly, by enumeration.

    python -m experiments.rollouts --out runs/rollouts

The policy is a table of logits given the last token, as in ``docs/rollouts.md``, and a text has
three tokens. The reward of a text is 1 or 0: whether its first token, or its last one, is one that
was drawn, or whether it differs from a drawn text in one token at most. GRPO (Shao et al. 2024)
estimates the gradient of the mean reward by a group of G samples, (1/G) sum_i A_i grad log p(x_i),
where the advantage A_i is the reward less the group's mean, which is also divided by the group's
standard deviation; or, as a baseline that knows more, less the policy's own mean.

If samples depend on each other, so do a sample's gradient and the rewards of the others, whose mean
it is compared with: the estimate's mean then has another direction than the gradient. The figure is
therefore the error, the mean square of the distance between the gradient and the estimate that is
scaled so that its mean has the gradient's length along the gradient, over the gradient's square;
for independent samples, whose mean has the gradient's direction, this is the variance. The angle
between the estimate's mean and the gradient is given too, since more groups do not average it away,
and how often all rewards of a group are equal, so that it teaches nothing.

All of this is exact for independent samples, the codes of ``arithmetic_sample`` with both orders,
and QuasiMoTTo's lattice: between two boundaries of the shift, all samples have fixed prefixes, and
the rest of them is independent. Several codes are measured: the ratio of errors needs a variance
only. A run that was killed continues, and writes ``rollouts.json`` and ``.png``.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import Prompt
from decoding_jax.adapters import from_logits
from experiments import drawing, quick
from experiments.papers import samplers
from experiments.papers.fewer_samples_truth import Pieces, by_probability, pieces_of_lattice
from experiments.papers.records import Records
from experiments.papers.results import interval, mean, shown, table
from experiments.results import read_json, write_json

KINDS = {"first": "first token", "last": "last token", "whole": "whole text"}
ADVANTAGES = {
    "group": "less the group's mean",
    "normalised": "over its deviation, too",
    "mean": "less the policy's mean",
}
SEVERAL = "several codes"
NAMES = (samplers.LIBRARY, "by probability", samplers.PEER, SEVERAL)
EPSILON = 1e-4
"""What is added to the deviation of a group's rewards."""
QUICK = {"tables": 2, "groups": [4], "vocab_size": 3, "runs": 8, "sharpnesses": [1.0]}


class Moments(NamedTuple):
    """The sums R of the gradients of samples with reward 1, and W of the others, by their number k.

    Attributes:
      chance: float64 ``[G + 1]``, the probability of k.
      right, wrong: float64 ``[G + 1, D]``, the means of R and W over groups with that k, times it.
      squares: float64 ``[G + 1, 3]``, those of R R, R W and W W.
    """

    chance: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    squares: np.ndarray


class Estimate(NamedTuple):
    """The error of an estimate and its parts, over the square of the gradient."""

    error: float
    bias: float
    equal: float


def every_logit(logits: Any, tokens: Any, length: Any) -> Any:
    """The logits after every token, for ``from_logits``."""
    return logits[tokens]


def texts_of(logits: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All texts after token 1: tokens ``[M, T]``, probabilities ``[M]``, gradients ``[M, V * V]``.

    A gradient is that of the log-probability by the table of logits.
    """
    size = len(logits)
    prob = np.exp(logits - logits.max(-1, keepdims=True))
    prob /= prob.sum(-1, keepdims=True)
    tokens = np.indices((size,) * length).reshape(length, -1).T
    before = np.concatenate([np.ones((len(tokens), 1), int), tokens[:, :-1]], 1)
    gradients = np.zeros((len(tokens), size, size))
    every = np.arange(len(tokens))
    for t in range(length):
        gradients[every, before[:, t]] -= prob[before[:, t]]
        gradients[every, before[:, t], tokens[:, t]] += 1
    return tokens, prob[before, tokens].prod(1), gradients.reshape(len(tokens), -1)


def moments(pieces: Pieces, prob: np.ndarray, reward: np.ndarray, gradients: np.ndarray) -> Moments:
    """The moments of a group, sample after sample: given a piece they are independent.

    Args:
      pieces: which texts each sample can be.
      prob: float64 ``[M]``, of each text.
      reward: bool ``[M]``.
      gradients: float64 ``[M, D]``.
    """

    def of_cells(values: np.ndarray) -> np.ndarray:
        flat = values.reshape(len(prob), -1) * prob[:, None]
        sums = np.concatenate([np.zeros((1, flat.shape[1])), np.cumsum(flat, 0)])
        whole = np.append(0, np.cumsum(prob))
        width = whole[pieces.last] - whole[pieces.first]
        return (sums[pieces.last] - sums[pieces.first]) / width[:, None]

    norm = (gradients**2).sum(1)
    parts = [of_cells(x[:, None] * np.c_[np.ones(len(prob)), norm, gradients])
             for x in (reward, ~reward)]  # fmt: skip
    (size, count), dim = pieces.cell.shape, gradients.shape[1]
    chance, right, wrong, squares = (
        np.zeros((size, count + 1, *shape)) for shape in ((), (dim,), (dim,), (3,))
    )
    chance[:, 0] = 1

    def shifted(x: np.ndarray) -> np.ndarray:  # One more sample has reward 1.
        return np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], 1)

    for i in range(count):
        (yes, yes_norm, yes_mean), (no, no_norm, no_mean) = (
            (part[pieces.cell[:, i], 0, None], part[pieces.cell[:, i], 1, None],
             part[pieces.cell[:, i], 2:])
            for part in parts
        )  # fmt: skip
        inner = [np.einsum("pkd,pd->pk", x, m) for m in (yes_mean, no_mean) for x in (right, wrong)]
        squares = squares * no[..., None] + shifted(squares) * yes[..., None]
        squares[..., 0] += shifted(2 * inner[0] + chance * yes_norm)
        squares[..., 1] += shifted(inner[1]) + inner[2]
        squares[..., 2] += 2 * inner[3] + chance * no_norm
        right, wrong = (
            right * no[..., None] + shifted(right) * yes[..., None]
            + shifted(chance[..., None] * yes_mean[:, None]),
            wrong * no[..., None] + shifted(wrong) * yes[..., None]
            + chance[..., None] * no_mean[:, None],
        )  # fmt: skip
        chance = chance * no + shifted(chance) * yes
    return Moments(*(np.tensordot(pieces.weight, x, 1) for x in (chance, right, wrong, squares)))


def weights(advantage: str, count: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The advantages of samples with reward 1 and 0, for each number k of those with 1."""
    k = np.arange(count + 1) / count
    if advantage == "mean":
        return np.full(count + 1, 1 - share), np.full(count + 1, -share)
    scale = 1.0 if advantage == "group" else np.sqrt(k * (1 - k)) + EPSILON
    return (1 - k) / scale, -k / scale


def estimate(found: Moments, advantage: str, share: float, gradient: np.ndarray) -> Estimate:
    """The error of a group's estimate of the gradient, float64 ``[D]``."""
    count = len(found.chance) - 1
    yes, no = (x / count for x in weights(advantage, count, share))
    average = yes @ found.right + no @ found.wrong
    square = (np.stack([yes**2, 2 * yes * no, no**2], -1) * found.squares).sum()
    return _estimate(average, square, gradient, found.chance[0] + found.chance[-1])


def _estimate(average: np.ndarray, square: float, gradient: np.ndarray, equal: float) -> Estimate:
    whole = gradient @ gradient
    scale = average @ gradient / whole
    bias = (average @ average) / (scale**2 * whole) - 1
    return Estimate(float(square / (scale**2 * whole) - 1), float(bias), float(equal))


@functools.cache
def _drawn(count: int, length: int, runs: int) -> Callable[..., Any]:
    prompt = Prompt(jnp.ones((runs, 1), jnp.int32), jnp.ones(runs, jnp.int32))

    def draw(logits: Any, key: Any) -> np.ndarray:
        model = from_logits(every_logit, len(logits), parameters=jnp.asarray(logits, jnp.float32))
        output = samplers.SAMPLERS[SEVERAL](
            model, prompt, key, num_samples=count, max_new_tokens=length
        )
        return np.ravel_multi_index(
            tuple(np.moveaxis(np.asarray(output.tokens), -1, 0)), (len(logits),) * length
        )

    return draw


def measured(
    texts: np.ndarray, reward: np.ndarray, gradients: np.ndarray, advantage: str, share: float,
    gradient: np.ndarray,
) -> Estimate:  # fmt: skip
    """``estimate`` from groups that were drawn: texts ``[R, G]``. Of the bias nothing is known."""
    count = texts.shape[1]
    right = reward[texts]
    k = right.sum(1)
    yes, no = (x[k][:, None] for x in weights(advantage, count, share))
    drawn = np.einsum("rg,rgd->rd", np.where(right, yes, no) / count, gradients[texts])
    average, square = drawn.mean(0), float((drawn**2).sum(1).mean())
    found = _estimate(average, square, gradient, float(((k == 0) | (k == count)).mean()))
    return found._replace(bias=float("nan"))


def of_table(number: int, sharpness: float, args: argparse.Namespace) -> dict[str, Any]:
    """By kind of reward, group, advantage and sampler: the figures of one table."""
    rng = np.random.default_rng([args.seed, number, round(1000 * sharpness)])
    logits = sharpness * rng.normal(size=(args.vocab_size, args.vocab_size))
    tokens, prob, gradients = texts_of(logits, args.length)
    chosen = tokens[rng.choice(len(prob), p=prob / prob.sum())]
    rewards = {
        "first": tokens[:, 0] == chosen[0],
        "last": tokens[:, -1] == chosen[-1],
        "whole": (tokens != chosen).sum(1) <= 1,
    }
    shape = (args.vocab_size,) * args.length
    order = by_probability(prob.reshape(shape), np.arange(len(prob)).reshape(shape))[1].ravel()
    key = jax.random.fold_in(jax.random.key(args.seed), number)
    found: dict[str, Any] = {}
    for count in args.groups:
        alone = Pieces(
            np.ones(1), np.zeros((1, count), int), np.zeros(1, int), np.array([len(prob)])
        )
        ways = {
            "independent": (alone, np.arange(len(prob))),
            samplers.LIBRARY: (pieces_of_lattice(prob.reshape(shape), count), np.arange(len(prob))),
            "by probability": (pieces_of_lattice(prob[order].reshape(shape), count), order),
            samplers.PEER: (
                pieces_of_lattice(prob.reshape(shape), count, carried=True),
                np.arange(len(prob)),
            ),
        }
        drawn = _drawn(count, args.length, args.runs)(logits, jax.random.fold_in(key, count))
        for kind, reward in rewards.items():
            share, gradient = prob @ reward, (prob * reward) @ gradients
            all_moments = {
                name: moments(pieces, prob[ids], reward[ids], gradients[ids])
                for name, (pieces, ids) in ways.items()
            }
            for advantage in ADVANTAGES:
                of = {
                    name: estimate(x, advantage, share, gradient) for name, x in all_moments.items()
                }
                of[SEVERAL] = measured(drawn, reward, gradients, advantage, share, gradient)
                found[f"{kind}, {count}, {advantage}"] = {n: list(x) for n, x in of.items()}
    return found


def ratio(logs: np.ndarray) -> np.ndarray:
    """The geometric mean, for ``interval``."""
    return np.exp(logs.mean(-1))


def _degrees(bias: np.ndarray) -> np.ndarray:
    """The angle between the gradient and the estimate's mean."""
    return np.degrees(np.arctan(np.sqrt(np.maximum(bias, 0))))


def analyse(found: Sequence[dict[str, Any]], sharpness: float, args: argparse.Namespace) -> list:
    """A row for each kind of reward, group, advantage and sampler, over tables of a sharpness."""
    rows = []
    for name in found[0]:
        kind, count, advantage = name.split(", ")
        alone = np.array([x[name]["independent"] for x in found])
        base = {"sharpness": sharpness, "reward": kind, "G": int(count), "advantage": advantage}
        for sampler in NAMES:
            ours = np.array([x[name][sampler] for x in found])
            logs = np.log(ours[:, 0]) - np.log(alone[:, 0])
            rows.append(
                {
                    **base,
                    "sampler": sampler,
                    "ratio": interval(ratio, logs, seed=args.seed),
                    "angle": None
                    if sampler == SEVERAL
                    else interval(mean, _degrees(ours[:, 1]), seed=args.seed),
                    "equal": interval(mean, ours[:, 2], seed=args.seed),
                    "equal_independent": float(alone[:, 2].mean()),
                }
            )
    return rows


def plot(data: dict[str, Any], path: Path) -> None:
    """The ratio of errors over G for each reward, at the middle sharpness.

    The advantages are those less the group's mean; its deviation changes next to nothing.
    """
    sharpness = data["sharpnesses"][len(data["sharpnesses"]) // 2]
    advantage = next(iter(ADVANTAGES))
    figure, axes = drawing.panels(1, len(KINDS), 3.4)
    for ax, kind in zip(axes, KINDS, strict=True):
        for i, name in enumerate(NAMES):
            of = sharpness, kind, advantage, name
            rows = [
                r
                for r in data["rows"]
                if (r["sharpness"], r["reward"], r["advantage"], r["sampler"]) == of
            ]
            x = np.array([r["G"] for r in rows]) * 2 ** drawing.shifts(len(NAMES), 0.14)[i]
            drawing.named(ax, x, [r["ratio"] for r in rows], name)
        ax.axhline(1, color=drawing.GREY, linewidth=0.9)
        drawing.counts_axis(ax, data["groups"], "samples, G")
        ax.set_ylim(0, 1.2)
        ax.set_title(KINDS[kind])
    axes[0].set_ylabel("error, over independent")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.save(figure, path)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table that the command prints."""
    header = ["logits", "reward", "G", "advantage", "samples", "error over independent"]
    header += ["angle of the mean, degrees", "groups of equal rewards, %", "independent, %"]
    cells = [
        [
            f"{r['sharpness']:g}",
            KINDS[r["reward"]],
            r["G"],
            ADVANTAGES[r["advantage"]],
            r["sampler"],
            shown(r["ratio"], 2),
            "" if r["angle"] is None else shown(r["angle"], 1),
            shown([100 * x for x in r["equal"]], 1),
            f"{100 * r['equal_independent']:.1f}",
        ]
        for r in rows
    ]
    return table(header, cells)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", type=int, default=30, help="of each sharpness")
    parser.add_argument("--sharpnesses", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--vocab_size", type=int, default=6)
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1024, help="groups of several codes")
    parser.add_argument("--seed", type=int, default=0)
    args = quick.parse(parser, argv, QUICK)
    rows: list[dict[str, Any]] = []
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "quick")}
    work = {
        f"sharpness {sharpness:g}, table {number}": functools.partial(
            of_table, number, sharpness, args
        )
        for sharpness in args.sharpnesses
        for number in range(args.tables)
    }
    made = list(Records(args.out, settings).complete(work).values())
    for i, sharpness in enumerate(args.sharpnesses):
        rows += analyse(made[i * args.tables : (i + 1) * args.tables], sharpness, args)
    print(markdown(rows))
    data = {**settings, "rows": rows}
    file = args.out / "rollouts.json"
    write_json(file, data)
    plot(read_json(file), args.out / "rollouts.png")


if __name__ == "__main__":
    main()
