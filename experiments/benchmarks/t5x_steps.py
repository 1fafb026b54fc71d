"""Milliseconds per step: T5X's decode functions, this library's, and this library's native models.

    python -m experiments.benchmarks.t5x_steps --out runs/benchmarks

The benchmark needs T5X. It runs the three alternately in one process, on the same parameters:
greedy decoding, top-k 40, top-p 0.9, top-k with 8 decodes, and beam search with 4 and 16 beams, for
T5s of 4 and 77 million parameters. The end token is outside the vocabulary, so every run takes the
maximum number of steps. Points that ``t5x_steps.json`` contains already are not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import quick
from experiments.benchmarks.timing import interleaved, median_ratio

BATCH, LENGTH = 8, 64
MODELS: dict[str, dict[str, Any]] = {
    "4M": {"vocab_size": 8192, "emb_dim": 128, "num_heads": 4, "head_dim": 32, "mlp_dim": 256,
           "num_encoder_layers": 4, "num_decoder_layers": 4},
    "77M": {"vocab_size": 32128, "emb_dim": 512, "num_heads": 6, "head_dim": 64, "mlp_dim": 1024,
            "num_encoder_layers": 8, "num_decoder_layers": 8},
    "tiny": {"vocab_size": 384, "emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 16,
             "num_encoder_layers": 1, "num_decoder_layers": 1},
}  # fmt: skip
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "greedy": ("temperature_sample", 1, {"temperature": 0.0}),
    "top-k 40": ("temperature_sample", 1, {"topk": 40}),
    "top-p 0.9": ("temperature_sample", 1, {"topk": 0, "topp": 0.9}),
    "top-k 40, 8 decodes": ("temperature_sample", 8, {"topk": 40}),
    "beam 4": ("beam_search", 4, {}),
    "beam 16": ("beam_search", 16, {}),
}
WAYS = ("t5x", "decode_fn", "native")


def models_of(shape: dict[str, Any], strategy: str) -> tuple[dict[str, Any], Any]:
    """The models of ``WAYS``, and the parameters that they share."""
    import seqio
    from t5x import adafactor, decoding, models
    from t5x.examples.t5 import network

    from decoding_jax.t5x import decode_fns
    from decoding_jax.t5x.models import as_native

    config = network.T5Config(**shape, mlp_activations=("gelu", "linear"), dropout_rate=0.0)
    vocabulary = seqio.ByteVocabulary()
    optimizer = adafactor.Adafactor(decay_rate=0.8, step_offset=0)

    def make(decode_fn: Callable[..., Any]) -> Any:
        module = network.Transformer(config)
        return models.EncoderDecoderModel(module, vocabulary, vocabulary, optimizer, decode_fn)

    theirs = make(getattr(decoding, strategy))
    plugged = make(getattr(decode_fns, strategy))
    shapes = {"encoder_input_tokens": (1, LENGTH), "decoder_input_tokens": (1, LENGTH)}
    types = dict.fromkeys(shapes, jnp.int32)
    init = jax.jit(lambda key: theirs.get_initial_variables(key, shapes, types)["params"])
    params = init(jax.random.PRNGKey(0))
    return {"t5x": theirs, "decode_fn": plugged, "native": as_native(plugged)}, params


def runs_of(
    shape: dict[str, Any], strategy: str, count: int, settings: dict[str, Any]
) -> dict[str, Callable[[], object]]:
    """A compiled run of each of ``WAYS``."""
    models, params = models_of(shape, strategy)
    draw = np.random.default_rng(0)
    source = draw.integers(3, 384, size=(BATCH, LENGTH), dtype=np.int32)
    batch = {
        "encoder_input_tokens": jnp.asarray(source),
        "decoder_input_tokens": jnp.zeros((BATCH, LENGTH), jnp.int32),
    }

    def compiled(model: Any) -> Callable[[], object]:
        def predict(params: Any, batch: Any, rng: Any) -> Any:
            return model.predict_batch_with_aux(
                params,
                batch,
                num_decodes=count,
                return_all_decodes=True,
                decoder_params={"eos_id": shape["vocab_size"] + 1, "decode_rng": rng, **settings},
            )

        fn = jax.jit(predict)
        key = jax.random.PRNGKey(1)
        return lambda: jax.block_until_ready(fn(params, batch, key))

    return {way: compiled(models[way]) for way in WAYS}


def measure(out: Path, models: list[str], cases: list[str], repeats: int) -> dict[str, Any]:
    """Measures the points that ``t5x_steps.json`` lacks; prints and writes each at once."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "t5x_steps.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    print(f"{'model':6}{'case':22}" + "".join(f"{way:>11}" for way in WAYS) + "   ratios")
    for name, case in itertools.product(models, cases):
        point = f"{name} {case}"
        if point not in results:
            results[point] = time_point(name, case, repeats)
            file.write_text(json.dumps(results, indent=2) + "\n")
        step, ratio = results[point]["ms_per_step"], results[point]["ratio_to_t5x"]
        print(
            f"{name:6}{case:22}"
            + "".join(f"{step[way]:11.2f}" for way in WAYS)
            + f"   {ratio['decode_fn']:.2f} {ratio['native']:.2f}",
            flush=True,
        )
    return results


def time_point(name: str, case: str, repeats: int) -> dict[str, Any]:
    """Milliseconds per step of each of ``WAYS``, and the medians of their ratios to T5X's."""
    strategy, count, settings = CASES[case]
    seconds = interleaved(runs_of(MODELS[name], strategy, count, settings), repeats)
    jax.clear_caches()
    return {
        "ms_per_step": {w: 1000 * statistics.median(seconds[w]) / LENGTH for w in WAYS},
        "ratio_to_t5x": {w: median_ratio(seconds, w, "t5x") for w in WAYS[1:]},
        "repeats": repeats,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of t5x_steps.json")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["4M", "77M"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=int, default=7)
    small = {"models": ["tiny"], "cases": ["top-k 40"], "repeats": 1}
    args = quick.parse(parser, argv, small)
    measure(args.out, args.models, args.cases, args.repeats)


if __name__ == "__main__":
    main()
