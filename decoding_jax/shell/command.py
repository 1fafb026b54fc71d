"""The command: it decodes texts, prints them as they grow, and then as a table."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Sequence
from typing import Any

import jax

from decoding_jax.infer.printing import Printer
from decoding_jax.ops.programs import keep_programs
from decoding_jax.registry import STRATEGIES
from decoding_jax.shell import listing
from decoding_jax.shell.options import UsageError, divided, parse, settings_of, transform_of
from decoding_jax.text import Completion, constraints, generate, load, stream_text
from decoding_jax.text.arguments import check_strategy
from decoding_jax.text.generation_config.call import Chooser, chooser_of


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``python -m decoding_jax``.

    Args:
      argv: the arguments, without the program's name. The default is ``sys.argv``.

    Returns:
      The exit status: 0, or 1 if decoding failed, 2 if the options are invalid, or 130 if it was
      interrupted. A failure is one line on standard error.

    Example:
      >>> main(["--strategy", "greedy", "--list"])  # doctest: +ELLIPSIS
      greedy --max_new_tokens 64
      ...
      0
    """
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except UsageError as error:
        return _fail(str(error), 2)
    except (ValueError, OSError) as error:
        return _fail(str(error).splitlines()[0], 1)


def _main(argv: list[str]) -> int:
    options = parse(argv)
    if options.list:
        if options.strategy is not None:
            check_strategy(options.strategy)
        print("\n".join(listing.lines(options.strategy)))
        return 0
    if not options.texts:
        raise UsageError('texts: got none; takes one or more, such as "Where is the station?"')
    logging.basicConfig(format="%(message)s")
    keep_programs()
    if options.strategy is not None:
        check_strategy(options.strategy)
    model, tokenizer = load(options.model, dtype=options.dtype, tokenizer=options.tokenizer)
    chooser = chooser_of(options.strategy, None, tokenizer, {})
    if chooser is not None:
        settings = _settings_of_file(options, chooser)
        single = chooser.config.num_return_sequences == 1
    else:
        options.strategy = options.strategy or "greedy"
        settings = _settings(options, check_strategy(options.strategy), tokenizer)
        single = _is_single({**settings_of(options.strategy), **settings})
        settings["strategy"] = options.strategy
    if single:
        results = [_streamed(model, tokenizer, text, settings) for text in options.texts]
    else:
        results = generate(model, tokenizer, options.texts, **settings)
    printer = Printer()
    for index, (text, row) in enumerate(zip(options.texts, results, strict=True)):
        printer(_record(index, text, row))
    return 0


def _settings_of_file(options: Any, chooser: Chooser) -> dict[str, Any]:
    """The arguments of ``generate`` where the file of the model's directory chooses the strategy.

    Raises:
      UsageError: for a setting of a strategy.
    """
    changes = dict(options.settings)
    settings = {"transform": transform_of(options.transforms)}
    if "max_new_tokens" in changes:
        settings["max_new_tokens"] = changes.pop("max_new_tokens")
    given = next(iter(changes), "phrase" if options.phrase else None)
    if given is not None:
        raise UsageError(f"--{given}: needs --strategy, since {chooser.path} chooses one")
    if chooser.config.do_sample:
        settings["key"] = jax.random.key(options.seed)
    if options.drafter is not None:
        settings["drafter"] = load(options.drafter, dtype=options.dtype)[0]
    print(
        f"decoding_jax: {chooser.config}, from {chooser.path}; --strategy chooses another",
        file=sys.stderr,
    )
    return settings


def _settings(options: Any, function: Any, tokenizer: Any) -> dict[str, Any]:
    """The arguments of ``generate`` besides model, tokenizer, texts and strategy."""
    named, chosen = divided(options.strategy, options.transforms)
    settings = {**settings_of(options.strategy), **options.settings, **named}
    settings["transform"] = transform_of(chosen)
    if STRATEGIES[options.strategy].draws:
        settings["key"] = jax.random.key(options.seed)
    if options.drafter is not None or STRATEGIES[options.strategy].drafts:
        if options.drafter is None:
            raise UsageError(
                f"--drafter: got none; {options.strategy} takes a directory, or "
                "translation-en-fr-draft"
            )
        settings["drafter"] = load(options.drafter, dtype=options.dtype)[0]
    takes_phrases = "constraints" in inspect.signature(function).parameters
    if takes_phrases and not options.phrase:
        raise UsageError(f"--phrase: got none; {options.strategy} takes one or more")
    if options.phrase:
        settings["constraints"] = constraints(tokenizer, options.phrase)
    return settings


def _is_single(settings: dict[str, Any]) -> bool:
    """Whether a strategy returns one completion with these settings, printed as it grows."""
    counts = [settings.get(name) for name in ("num_samples", "num_return", "beam_size")]
    return next((count for count in counts if count is not None), 1) == 1


def _streamed(model: Any, tokenizer: Any, text: str, settings: dict[str, Any]) -> list[Completion]:
    """Prints one completion as it grows, and returns it as ``generate`` does."""
    [row] = stream_text(model, tokenizer, [text], **settings).print()
    print()
    return row


def _record(index: int, text: str, row: Sequence[Completion]) -> dict[str, Any]:
    """The completions of a text in the form of the batch job's records."""
    outputs = [
        {
            "rank": rank,
            "text": completion.text,
            "log_prob": completion.log_prob,
            "score": completion.score,
            "finished": completion.finished,
        }
        for rank, completion in enumerate(row, 1)
    ]
    return {"index": index, "inputs": text, "outputs": outputs}


def _fail(message: str, status: int) -> int:
    print(f"decoding_jax: {message}", file=sys.stderr)
    return status
