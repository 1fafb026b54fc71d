"""A text, plainly and by speculation: both times, both texts.

    python -m experiments.gpt2_speculative --prompt "Alan Turing theorized that computers would" \\
        --n_tokens_to_generate 40 --draft_model DIR --target_model DIR --K 4 --temperature 0.0

At temperature 0 the two texts are the same. Directories are in the Hugging Face layout; without
them the embedded English-French pair translates the prompt.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import jax

import decoding_jax
from decoding_jax import Stop, transforms


def timed(run: Callable[[], list]) -> tuple[str, float]:
    """The text, and the seconds of a run after the one that compiles."""
    run()
    start = time.perf_counter()
    ((completion,),) = run()
    return completion.text, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", default="Where is the station?")
    parser.add_argument("--n_tokens_to_generate", type=int, default=40)
    parser.add_argument("--draft_model", default="translation-en-fr-draft", metavar="DIR")
    parser.add_argument("--target_model", default="translation-en-fr", metavar="DIR")
    parser.add_argument("--K", type=int, default=4, help="drafted tokens a block")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=123)
    args = parser.parse_args()

    target, tokenizer = decoding_jax.load(args.target_model)
    draft, _ = decoding_jax.load(args.draft_model)
    common = {
        "key": jax.random.key(args.seed),
        "max_new_tokens": args.n_tokens_to_generate,
        "transform": transforms.temperature(args.temperature),
        "stop": Stop(eos_ids=()),  # as many tokens as asked for, whatever they are
    }

    def plain() -> list:
        return decoding_jax.generate(target, tokenizer, [args.prompt], strategy="sample", **common)

    def speculative() -> list:
        return decoding_jax.generate(
            target,
            tokenizer,
            [args.prompt],
            strategy="speculative_sample",
            drafter=draft,
            num_draft_tokens=args.K,
            **common,
        )

    plain_text, plain_seconds = timed(plain)
    text, seconds = timed(speculative)
    print(f"Autoregressive decode\n  time: {plain_seconds:.3f} s\n  text: {plain_text}")
    print(f"Speculative decode\n  time: {seconds:.3f} s\n  text: {text}")
    print(f"speed-up: {plain_seconds / seconds:.2f}")
    if args.temperature == 0:
        print("the texts are the same" if text == plain_text else "the texts DIFFER")


if __name__ == "__main__":
    main()
