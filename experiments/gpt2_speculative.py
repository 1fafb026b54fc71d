"""A text, plainly and by speculation: the time and the text of both.

    python -m experiments.gpt2_speculative --draft_model_size 124M --target_model_size 1558M \\
        --models_dir models --n_tokens_to_generate 40 --K 4 --temperature 0.0 --seed 123

takes the flags of a published NumPy program (github.com/jaymody/speculative-sampling) and prints
what it prints. ``models/124M`` or ``models/gpt2`` is a Hugging Face directory, or has OpenAI's
files, a TensorFlow checkpoint that is read if TensorFlow is installed. With ``--draft_model DIR
--target_model DIR`` the models are directories of any family, and without any of these flags the
embedded English-French pair, which translates the prompt.

At temperature 0 the two texts are the same. Exactly ``n_tokens_to_generate`` tokens are decoded,
whatever they are. Times are without compilation, and the samples of a seed are not NumPy's.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import jax
from tqdm import tqdm

import decoding_jax
from decoding_jax import Stop, transforms
from decoding_jax.models.encoder_decoder import EncoderDecoder
from experiments.gpt2_files import load_size

EMBEDDED = ("translation-en-fr-draft", "translation-en-fr")


def decode(title: str, call: tuple[Any, ...], count: int, **settings: Any) -> tuple[str, float]:
    """Decodes with a bar of progress.

    Args:
      title: what the bar is of.
      call: the model, the tokenizer and the texts.
      count: the number of new tokens.
      **settings: the arguments of ``stream``.

    Returns:
      The text of the new tokens, and the seconds.
    """
    settings |= {"max_new_tokens": count}
    next(iter(decoding_jax.stream(*call, **settings)))  # Compiles all of it.
    start, text = time.perf_counter(), ""
    with tqdm(total=count, desc=title) as bar:
        for [[completion]] in decoding_jax.stream(*call, **settings):
            bar.update(len(completion.tokens) - bar.n)
            text = completion.text
    return text, time.perf_counter() - start


def models_of(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The draft, the target and its tokenizer.

    Raises:
      ValueError: for a directory together with a size, or for one directory without the other.
    """
    sizes = (args.draft_model_size, args.target_model_size, args.models_dir)
    folders = (args.draft_model, args.target_model)
    if any(folders) and (any(sizes) or not all(folders)):
        raise ValueError(
            "--draft_model, --target_model: takes both directories, without sizes and --models_dir"
        )
    if any(sizes):
        models_dir = args.models_dir or "models"
        draft, _ = load_size(args.draft_model_size or "124M", models_dir)
        target, tokenizer = load_size(args.target_model_size or "1558M", models_dir)
        return draft, target, tokenizer
    draft_name, target_name = folders if all(folders) else EMBEDDED
    target, tokenizer = decoding_jax.load(target_name)
    return decoding_jax.load(draft_name)[0], target, tokenizer


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt")
    parser.add_argument("--n_tokens_to_generate", type=int, default=40)
    parser.add_argument("--draft_model_size", metavar="SIZE", help="124M, 355M, 774M or 1558M")
    parser.add_argument("--target_model_size", metavar="SIZE", help="1558M if another is given")
    parser.add_argument("--models_dir", metavar="DIR", help="of the sizes; models by default")
    parser.add_argument("--draft_model", metavar="DIR")
    parser.add_argument("--target_model", metavar="DIR")
    parser.add_argument("--K", type=int, default=4, help="drafted tokens a block")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=123)
    args = parser.parse_args(argv)
    try:
        draft, target, tokenizer = models_of(args)
    except ValueError as error:
        sys.exit(str(error))
    translates = isinstance(target, EncoderDecoder)
    prompt = args.prompt or (
        "Where is the station?"
        if translates
        else "Alan Turing theorized that computers would one day become"
    )
    call, count = (target, tokenizer, [prompt]), args.n_tokens_to_generate
    common = {
        "key": jax.random.key(args.seed),
        "transform": transforms.temperature(args.temperature),
        "stop": Stop(eos_ids=()),
    }
    before = "" if translates else prompt
    plain, plain_seconds = decode(
        "autoregressive sampling", call, count, strategy="sample", **common
    )
    drafted, seconds = decode(
        "speculative sampling",
        call,
        count,
        strategy="speculative_sample",
        drafter=draft,
        num_draft_tokens=args.K,
        **common,
    )
    for title, text, time_taken in (
        ("Autoregressive Decode", plain, plain_seconds),
        ("Speculative Decode", drafted, seconds),
    ):
        print(f"\n{title}\n{'-' * len(title)}\nTime = {time_taken:.2f}s\nText = {before}{text}")
    print(f"\nspeed-up: {plain_seconds / seconds:.2f}")
    if args.temperature == 0:
        print("the texts are the same" if drafted == plain else "the texts DIFFER")


if __name__ == "__main__":
    main()
