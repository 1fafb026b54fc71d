"""GRPO on the embedded draft of the translation model, with groups from several samplers.

    python -m experiments.rollouts_training --out runs/rollouts_training

Every step draws G translations of each of a few sentences at temperature 1. The reward is
sentence-BLEU; less its group's mean and over the group's deviation, it weighs the gradient of the
text's log-probability (GRPO, Shao et al. 2024, with one update for each rollout, where nothing is
clipped). Runs of one seed see the same sentences in the same order, whatever the sampler. The
figures are the mean reward over the last quarter of the steps, the share of groups whose rewards
are all equal, and BLEU on other sentences after the last step, of samples and greedily.
Differences from independent samples are of runs of one seed, with Student's 95% intervals over
seeds. A run that was killed continues after its last finished seed, and writes
``rollouts_training.json`` and ``.png``.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sacrebleu
from scipy import stats

import decoding_jax
from decoding_jax.models.t5 import T5, T5Network
from decoding_jax.text import completions, default_stop, encode_batch
from experiments import drawing, held_out, quick
from experiments.papers import samplers
from experiments.papers.decoding import keys_of
from experiments.papers.records import Records
from experiments.papers.results import Estimate, shown, signed, table, versions
from experiments.results import read_json, write_json

INDEPENDENT = "independent"
SAMPLERS: dict[str, Any] = {INDEPENDENT: samplers.INDEPENDENT, **samplers.SAMPLERS}
FIGURES = {
    "reward": "reward, last quarter",
    "equal": "groups of equal rewards, %",
    "sampled": "BLEU of samples after it",
    "greedy": "BLEU of greedy texts after it",
}
MODEL, WIDTH = "translation-en-fr-draft", 12
QUICK: dict[str, Any] = {"steps": 2, "seeds": 2, "group": 2, "sentences": 2, "tokens": 4}
QUICK |= {"held_out": 2, "samplers": [INDEPENDENT]}
EPSILON = 1e-4


def short_sentences(tokenizer: Any, count: int) -> list[held_out.Sentence]:
    """The first held-out sentences of at most ``WIDTH`` tokens."""
    found = (s for s in held_out.read() if len(tokenizer.encode(s.english)) <= WIDTH)
    return [next(found) for _ in range(count)]


class Run:
    """A policy that is trained by one sampler with one seed."""

    def __init__(self, sampler: str, seed: int, args: argparse.Namespace):
        model, self.tokenizer = decoding_jax.load(MODEL)
        self.params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), model.params)
        self.config, self.args, self.seed = model.config, args, seed
        self.sample = functools.partial(SAMPLERS[sampler], num_samples=args.group)
        self.sampler, self.stop = sampler, default_stop(self.tokenizer)
        self.optimizer = _optimizer(args.learning_rate, args.steps)
        self.state = self.optimizer.init(self.params)

    def texts(self, strategy: Any, chosen: Sequence[held_out.Sentence], name: str) -> Any:
        """The output of a strategy for some sentences, and BLEU of each text."""
        ids = [self.tokenizer.encode(s.english) for s in chosen]
        bound, prompt = encode_batch(T5(self.params, self.config), ids, WIDTH)
        keys = keys_of(self.seed, name, range(len(chosen)))
        given = {"max_new_tokens": self.args.tokens, "stop": self.stop}
        output = jax.device_get(strategy(bound, prompt, keys, **given))
        rows = completions(self.tokenizer, output, len(chosen))
        scores = [
            [sacrebleu.sentence_bleu(c.text, list(s.references)).score for c in row]
            for s, row in zip(chosen, rows, strict=True)
        ]
        source = np.zeros((len(ids), WIDTH), np.int32)
        for row, tokens in zip(source, ids, strict=True):
            row[: len(tokens)] = tokens
        return source, output, np.array(scores)

    def step(self, chosen: Sequence[held_out.Sentence], number: int) -> np.ndarray:
        """One update; the rewards ``[sentences, G]``."""
        source, output, rewards = self.texts(self.sample, chosen, f"step {number}")
        apart = rewards - rewards.mean(1, keepdims=True)
        advantage = apart / (rewards.std(1, keepdims=True) + EPSILON)
        with jax.numpy_dtype_promotion("standard"):  # Optax needs it.
            self.params, self.state = _update(
                self.params, self.state, source, output.tokens, output.length,
                np.asarray(advantage, np.float32), self.config, self.optimizer.update,
            )  # fmt: skip
        return rewards


@functools.cache  # One for all runs, so that the update is compiled once.
def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    warm = optax.linear_schedule(0.0, learning_rate, max(1, steps // 10))
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(warm))


@functools.partial(jax.jit, static_argnames=("config", "update"))
def _update(
    params: Any, state: Any, source: Any, tokens: Any, length: Any, advantage: Any, config: Any,
    update: Any,
) -> Any:  # fmt: skip
    rows, group, size = tokens.shape
    flat = tokens.reshape(rows * group, size)
    real = jnp.arange(size)[None] < length.reshape(-1, 1)
    source = jnp.repeat(source, group, 0)
    inputs = jnp.pad(jnp.where(real, flat, 0)[:, :-1], ((0, 0), (1, 0)))
    is_token = jnp.arange(config.vocab_size)[None, None] == flat[..., None]

    def loss(params: Any) -> Any:
        logits: Any = T5Network(config).apply(
            {"params": params}, source, (source > 0).sum(-1), inputs, jnp.full(len(flat), size)
        )
        normaliser = jax.nn.logsumexp(logits, axis=-1)
        log_prob = jnp.where(is_token, logits, 0).sum(-1) - normaliser
        per_text = jnp.where(real, log_prob, 0).sum(-1)
        return -(advantage.reshape(-1) * per_text).mean() / size

    updates, state = update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


def train(sampler: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """All steps of a run: the mean reward and the share of equal groups of each, and both BLEUs."""
    run = Run(sampler, seed, args)
    sentences = short_sentences(run.tokenizer, args.held_out + 40 * args.sentences)
    test, training = sentences[: args.held_out], sentences[args.held_out :]
    rng = np.random.default_rng(seed)
    rewards, equal = [], []
    for number in range(args.steps):
        chosen = [training[i] for i in rng.choice(len(training), args.sentences, replace=False)]
        found = run.step(chosen, number)
        rewards.append(round(float(found.mean()), 4))
        equal.append(float((found.max(1) == found.min(1)).mean()))
    sampled = functools.partial(samplers.INDEPENDENT, num_samples=args.group)

    def greedy(model: Any, prompt: Any, keys: Any, **given: Any) -> Any:
        return decoding_jax.greedy(model, prompt, **given)

    def score(strategy: Any) -> float:  # In batches of one shape, that of training.
        parts = [test[i : i + args.sentences] for i in range(0, len(test), args.sentences)]
        found = [run.texts(strategy, x, f"test {i}")[2].mean() for i, x in enumerate(parts)]
        return float(np.mean(found))

    return {
        "rewards": rewards,
        "equal": equal,
        "sampled": score(sampled),
        "greedy": score(greedy),
    }


def over_seeds(values: Sequence[float] | np.ndarray) -> Estimate:
    """A mean over seeds, with Student's 95% interval.

    Example:
      >>> over_seeds([1.0, 1.0, 1.0])
      Estimate(value=1.0, low=1.0, high=1.0)
    """
    value = float(np.mean(values))
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return Estimate(value, value - float(half), value + float(half))


def analyse(made: dict[str, Any], names: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """The figures of each sampler over seeds, and their differences from independent samples."""

    def figures(name: str) -> dict[str, np.ndarray]:
        runs = [made[f"{name}, seed {seed}"] for seed in range(seeds)]
        late = [run["rewards"][-max(1, len(run["rewards"]) // 4) :] for run in runs]
        return {
            "reward": np.array([np.mean(x) for x in late]),
            "equal": 100 * np.array([np.mean(run["equal"]) for run in runs]),
            "sampled": np.array([run["sampled"] for run in runs]),
            "greedy": np.array([run["greedy"] for run in runs]),
        }

    alone, rows = figures(INDEPENDENT), []
    for name in names:
        ours = figures(name)
        apart = {x: over_seeds(ours[x] - alone[x]) for x in FIGURES}
        rows.append(
            {
                "sampler": name,
                "figures": {x: over_seeds(ours[x]) for x in FIGURES},
                "apart": None if name == INDEPENDENT else apart,
            }
        )
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table that the command prints."""
    cells = []
    for row in rows:
        cells.append([row["sampler"], *(shown(row["figures"][x], 2) for x in FIGURES)])
        if row["apart"]:
            cells.append(["above independent", *(signed(row["apart"][x], 2) for x in FIGURES)])
    return table(["samples", *FIGURES.values()], cells)


def plot(data: dict[str, Any], path: Path) -> None:
    """The mean reward over steps, and the differences from independent samples."""
    figure, axes = drawing.panels(1, 2, 3.6)
    width = max(1, data["steps"] // 12)
    for i, name in enumerate(data["samplers"]):
        rewards = np.array(
            [data["runs"][f"{name}, seed {seed}"]["rewards"] for seed in range(data["seeds"])]
        )
        count = rewards.shape[1] // width
        means = rewards[:, : count * width].reshape(len(rewards), count, width).mean(2)
        at = (np.arange(count) + 0.5) * width + (i - 1) * width / 8
        found = [over_seeds(column) for column in means.T]
        drawing.named(axes[0], at, found, name)
    axes[0].set_xlabel("steps")
    axes[0].set_ylabel("reward, sentence-BLEU")
    rows = [row for row in data["rows"] if row["apart"]]
    columns = [[row["apart"][x] for x in FIGURES] for row in rows]
    names = [words.replace(", ", ",\n").replace(" after", "\nafter") for words in FIGURES.values()]
    drawing.differences(axes[1], names, columns, [row["sampler"] for row in rows])
    axes[1].set_xlabel("above independent")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    drawing.save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--samplers", nargs="+", default=[INDEPENDENT, samplers.LIBRARY], choices=list(SAMPLERS)
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--group", type=int, default=8, help="G, translations of a sentence")
    parser.add_argument("--sentences", type=int, default=8, help="of a step")
    parser.add_argument("--tokens", type=int, default=16, help="of a translation")
    parser.add_argument(
        "--held_out", type=int, default=64, help="sentences of the test, a multiple of those"
    )
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    args = quick.parse(parser, argv, QUICK)
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "quick")}
    work = {
        f"{name}, seed {seed}": functools.partial(train, name, seed, args)
        for seed in range(args.seeds)
        for name in args.samplers
    }
    made = Records(args.out, settings).complete(work)
    rows = analyse(made, args.samplers, args.seeds)
    print(markdown(rows))
    data = {**settings, "versions": versions(), "runs": made, "rows": rows}
    file = args.out / "rollouts_training.json"
    write_json(file, data)
    plot(read_json(file), args.out / "rollouts_training.png")


if __name__ == "__main__":
    main()
