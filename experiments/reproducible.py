"""Texts that change with the batch that they are in, with and without ``reproducible``.

    python -m experiments.reproducible --out docs/measured

Each network decodes the same texts in batches of several sizes, in other orders and at other
widths, as a refilled batch of the batch job decodes them, and on two devices. The first batches are
compared with all others: the number of texts whose tokens differ, and of log-probabilities that
differ in any bit. ``--price`` measures the CPU time of a decode beside that of the same network
without the setting instead. A run continues where the last one ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import decoding_jax
from decoding_jax import Stop, sharding, transforms
from decoding_jax.batches import RowDecoder, encode_batch, parse
from decoding_jax.models import (
    GPT2,
    T5,
    GPT2Config,
    Llama,
    LlamaConfig,
    T5Config,
    reproducible,
)
from decoding_jax.ops.random import row_keys
from decoding_jax.testing.certificate import devices
from experiments import held_out, quick, results

EMBEDDED = ("translation-en-fr", "python-code")
RANDOM = ("gpt2", "llama", "t5")
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"num_samples": 2, "transform": transforms.top_p(0.95)},
    "arithmetic_sample": {"num_samples": 2},
}
LENGTH = 24
WIDTHS = (16, 32)
QUICK = {
    **{"networks": ["gpt2"], "dtypes": ["float32"], "strategies": ["greedy"], "inputs": 3},
    **{"sizes": [3, 1], "job": False, "usual": False},
}


class Setting(NamedTuple):
    """A network and a strategy."""

    network: str
    dtype: str
    strategy: str
    reproducible: bool

    def name(self) -> str:
        way = "reproducible" if self.reproducible else "as usual"
        return f"{self.network}, {self.dtype}, {self.strategy}, {way}"


def model_of(setting: Setting) -> Any:
    """An embedded model, or a network with random weights."""
    if setting.network in EMBEDDED:
        model, _ = decoding_jax.load(setting.network, dtype=setting.dtype)
    else:
        shape: dict[str, Any] = {"vocab_size": 1000, "emb_dim": 64, "num_heads": 4, "mlp_dim": 160}
        shape["dtype"] = setting.dtype
        key, made = jax.random.key(0), setting.network
        if made == "gpt2":
            model = GPT2.init(GPT2Config(**shape, num_layers=2, max_positions=128), key)
        elif made == "llama":
            heads: dict[str, Any] = {"num_kv_heads": 2, "head_dim": 16}
            model = Llama.init(LlamaConfig(**shape, **heads, num_layers=2, max_positions=128), key)
        else:
            layers: dict[str, Any] = {
                "num_encoder_layers": 2,
                "num_decoder_layers": 2,
                "head_dim": 16,
            }
            model = T5.init(T5Config(**shape, **layers), key)
        params = jax.tree.map(lambda x: (2 * x).astype(setting.dtype), model.params)
        model = dataclasses.replace(model, params=params)
    return reproducible(model) if setting.reproducible else model


def texts_of(network: str, count: int) -> list[list[int]]:
    """The tokens of so many inputs of up to 32 tokens."""
    if network in RANDOM:
        draw = np.random.default_rng(0)
        return [draw.integers(1, 1000, draw.integers(1, 33)).tolist() for _ in range(count)]
    tokenizer = decoding_jax.load(network)[1]
    if network != "python-code":
        return [tokenizer.encode(sentence.english)[:32] for sentence in held_out.read()[:count]]
    lines = [
        x for path in (held_out.FUNCTIONS, held_out.LINES) for x in path.open(encoding="utf-8")
    ]
    found = [tokenizer.encode(json.loads(line)["prompt"]) for line in lines[:count]]
    return [ids[-(1 + 7 * n % 32) :] for n, ids in enumerate(found)]


Texts = dict[int, tuple[Any, Any]]
"""The tokens and log-probabilities of inputs by number."""


def run_of(setting: Setting) -> Any:
    """The strategy with its settings."""
    function = getattr(decoding_jax, setting.strategy)
    return functools.partial(function, max_new_tokens=LENGTH, **STRATEGIES[setting.strategy])


def stop_of(setting: Setting) -> Stop:
    return Stop(eos_ids=(1 if setting.network in ("translation-en-fr", "t5") else 0,))


def batches(
    setting: Setting, model: Any, ids: Sequence[list[int]], order: Sequence[int], size: int
) -> Texts:
    """Inputs in batches of one size, which are padded more the larger they are."""
    keys, run = row_keys(jax.random.key(5), len(ids)), run_of(setting)
    found: Texts = {}
    for first in range(0, len(order), size):
        members = [*order[first : first + size]]
        rows = [*members, *members[:1] * (size - len(members))]
        bound, prompt = encode_batch(model, [ids[i] for i in rows], WIDTHS[-1] + size // 4)
        given = (keys[np.array(rows)],) if run.func.strategy.draws else ()
        output = jax.device_get(run(bound, prompt, *given, stop=stop_of(setting)))
        found |= {i: (output.tokens[n], output.log_prob[n]) for n, i in enumerate(members)}
    return found


def job(
    setting: Setting, model: Any, ids: Sequence[list[int]], order: Sequence[int], count: int
) -> Texts:
    """Inputs as the batch job decodes them, in batches of 16 rows that are refilled."""
    run = run_of(setting)
    found: Texts = {}
    key = jax.random.key(5) if run.func.strategy.draws else None
    decoder = RowDecoder(
        parse(model, run, {"stop": stop_of(setting)}, key=key),
        batch_size=16,
        devices=jax.devices()[:count],
        few_programs=True,
    )
    decoder.inputs.expect(len(ids))
    decoder.prepare(WIDTHS[-1])
    assert decoder.group_size is not None, "the batch is not refilled"
    fits = [[n for n, i in enumerate(order) if len(ids[i]) <= width] for width in WIDTHS]
    by_width = {32: sorted({*fits[1]} - {*fits[0]}), 16: fits[0]}
    decoded = decoder.decode([ids[i] for i in order], list(order), by_width)
    for members, output in decoded:
        found |= {order[m]: (output.tokens[n], output.log_prob[n]) for n, m in enumerate(members)}
    return found


def ways(
    setting: Setting, ids: Sequence[list[int]], sizes: Sequence[int], with_job: bool
) -> Iterator[tuple[str, Texts]]:
    """The same inputs in all ways; the first one is that which the others are compared with."""
    draw, model = np.random.default_rng(1), model_of(setting)
    for size in sizes:
        order = draw.permutation(len(ids)).tolist()
        yield f"{size}", batches(setting, model, ids, order, size)
    if not with_job:
        return
    yield "job", job(setting, model, ids, draw.permutation(len(ids)).tolist(), 1)
    if jax.device_count() > 1:
        order = draw.permutation(len(ids)).tolist()
        mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
        spread = sharding.shard(model, mesh)
        yield "two devices", batches(setting, spread, ids, order, 16)


def compared(setting: Setting, count: int, sizes: Sequence[int], with_job: bool) -> dict[str, Any]:
    """The numbers of texts and log-probabilities that differ from those of the first way."""
    jax.clear_caches()  # A process has memory maps for the programs of some settings only.
    ids = texts_of(setting.network, count)
    made = ways(setting, ids, sizes, with_job)
    _, want = next(made)
    rows = {}
    for way, got in made:
        texts = [(want[i][0] != tokens).any(-1) for i, (tokens, _) in got.items()]
        sums = [want[i][1].view(np.int32) != x.view(np.int32) for i, (_, x) in got.items()]
        rows[way] = {
            "texts": int(np.size(texts)),
            "other_texts": int(np.sum(texts)),
            "other_log_probs": int(np.sum(sums)),
        }
    return rows


def price(setting: Setting, count: int, size: int, runs: int = 5) -> float:
    """The CPU time of decoding with the setting over that without it, medians, interleaved."""
    ids = texts_of(setting.network, max(count, size))[:size]
    models = [model_of(setting._replace(reproducible=way)) for way in (False, True)]
    times: list[list[float]] = [[], []]
    for _ in range(runs + 1):
        for model, measured in zip(models, times, strict=True):
            begun = time.process_time()
            batches(setting, model, ids, range(size), size)
            measured.append(time.process_time() - begun)
    usual, fixed = (statistics.median(measured[1:]) for measured in times)
    return fixed / usual


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/reproducible"))
    parser.add_argument("--networks", nargs="+", default=[*EMBEDDED, *RANDOM])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--strategies", nargs="+", default=["sample"])
    parser.add_argument("--inputs", type=int, default=560, help="at most so many of each network")
    parser.add_argument("--sizes", nargs="+", type=int, default=[16, 1, 64])
    parser.add_argument(
        "--job", action=argparse.BooleanOptionalAction, default=True, help="and two devices"
    )
    parser.add_argument(
        "--usual", action=argparse.BooleanOptionalAction, default=True, help="without the setting"
    )
    parser.add_argument("--price", action="store_true", help="measure the CPU time instead")
    args = quick.parse(parser, argv, QUICK)
    devices.add_flags({"--xla_force_host_platform_device_count": 2})
    out = args.out / "reproducible.json"
    ledger = json.loads(out.read_text("utf-8")) if out.exists() else {"rows": {}, "price": {}}
    ledger["versions"] = {"jax": jax.__version__}
    pairs = [(network, dtype) for network in args.networks for dtype in args.dtypes]
    if args.price:
        for network, dtype in pairs:
            for size in (1, 16, 64):
                setting = Setting(network, dtype, "greedy", True)
                name = f"{network}, {dtype}, {size} rows"
                ledger["price"].setdefault(name, round(price(setting, args.inputs, size), 2))
                results.write_json(out, ledger)
                print(name, ledger["price"][name])
        return
    settings = [
        Setting(*pair, strategy, way)
        for way in ((True, False) if args.usual else (True,))
        for strategy in args.strategies
        for pair in pairs
    ]
    given = {"count": args.inputs, "sizes": args.sizes, "with_job": args.job}
    results.add_rows(ledger, settings, lambda setting: compared(setting, **given), out)
    keys = ("texts", "other_texts", "other_log_probs")
    print("setting", "way", *keys, sep="\t")
    for setting in settings:
        for way, row in ledger["rows"][setting.name()].items():
            print(setting.name(), way, *(row[key] for key in keys), sep="\t")
    print(f"{len(settings)} settings in {out}")


if __name__ == "__main__":
    main()
