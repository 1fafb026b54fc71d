"""The command: it decodes texts, and prints one as it grows, and several as a table or as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from decoding_jax.constraints import made
from decoding_jax.infer import records
from decoding_jax.infer.records import Printer
from decoding_jax.loop import Strategy, forms
from decoding_jax.models.checkpoint.drafters import holds_drafter, load_drafter
from decoding_jax.ops.jit import check_platform, keep_programs
from decoding_jax.shell.options import (
    UsageError,
    divided,
    listed,
    parse,
    settings_of,
    transform_of,
)
from decoding_jax.storage import read_text
from decoding_jax.strategies.speculative import PromptLookup, SuffixDrafter
from decoding_jax.strategies.speculative.verifiers import needs_key
from decoding_jax.text import (
    Completion,
    constraints,
    generate,
    load,
    read_corpus,
    show,
    stream_text,
)
from decoding_jax.text.generation_config import Chooser, chooser_of
from decoding_jax.text.inputs import vocabulary_size


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``python -m decoding_jax``.

    Args:
      argv: the arguments, without the program's name. The default is ``sys.argv``.

    Returns:
      The exit status: 0, or 1 if decoding failed or the model's logits were NaN, 2 if the options
      are invalid, or 130 if it was interrupted. A failure is one line on standard error.

    Example:
      >>> main(["--strategy", "greedy", "--list"])  # doctest: +ELLIPSIS
      greedy --max_new_tokens 64
      ...
      0
    """
    try:
        with _warnings_as_lines(), _any_character():
            return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except UsageError as error:
        return _fail(str(error), 2)
    except (ValueError, OSError) as error:
        return _fail(str(error).splitlines()[0], 1)


def _main(argv: list[str]) -> int:
    options = parse(argv)
    if options.strategy is not None:
        forms.named(options.strategy)  # Refuses other names.
    if options.list:
        print("\n".join(listed(options.strategy)))
        return 0
    texts = _texts(options.texts)
    if not texts:
        raise UsageError(
            'texts: expected one or more, such as "Where is the station?", or lines on standard '
            "input, got none"
        )
    logging.basicConfig(format="%(message)s")
    keep_programs()
    check_platform()
    model, tokenizer = load(
        options.model,
        dtype=options.dtype,
        tokenizer=options.tokenizer,
        weights=options.weights,
        reproducible=options.reproducible,
    )
    options.constraint = _constraint(options, model, tokenizer)
    chooser = chooser_of(options.strategy, None, tokenizer, {})
    if chooser is not None:
        settings = _settings_of_file(options, chooser, tokenizer)
        single = chooser.config.num_return_sequences == 1
        drawn = chooser.config.do_sample and chooser.config.num_beams == 1
    else:
        options.strategy = options.strategy or "greedy"
        kind = forms.named(options.strategy).strategy
        settings = _settings(options, kind, tokenizer)
        single = _is_single({**settings_of(options.strategy), **settings})
        drawn = "num_samples" in kind.__dataclass_fields__
        settings["strategy"] = options.strategy
    if options.truncate:
        settings["truncate"] = True
    if options.stop_strings:
        settings["stop_strings"] = options.stop_strings
    if options.html is not None:
        settings["with_scores"] = True
    if single and len(texts) == 1 and not options.json:
        rows = _print_growing(model, tokenizer, texts[0], settings)
    else:
        rows = generate(model, tokenizer, texts, **settings)
        _print(texts, rows, options, drawn)
    if options.html is not None:
        show(rows, tokenizer, texts=texts, title=" | ".join(texts[:3])).save(options.html)
    return int(any(completion.nan_logits for row in rows for completion in row))


def _print(texts: list[str], rows: list[list[Completion]], options: Any, drawn: bool) -> None:
    """Prints the completions of all texts, as a table or as lines of JSON."""
    printer = Printer(merge_duplicates=drawn)  # Equal texts are counted if they are draws.
    for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
        found = [one._replace(info=None, scores=None, sample_log_prob=None) for one in row]
        record = records.decoded(i, text, found or row, seed=options.seed or 0)
        if options.json:
            sys.stdout.write(_encodable(records.to_line(record)))
        else:
            printer(record)


def _texts(given: Sequence[str]) -> list[str]:
    """The texts of the command line, with the lines of standard input in place of ``-``.

    A pipe is read where there is no text at all. A byte-order mark and blank lines are left out.
    """
    if not given and not sys.stdin.isatty():
        given = ["-"]
    lines = [line.rstrip("\r\n") for line in sys.stdin] if "-" in given else []
    lines = [line.removeprefix("\ufeff") for line in lines[:1]] + lines[1:]
    if num_blank := sum(not line.strip() for line in lines):
        print(f"decoding_jax: {num_blank} blank lines are left out", file=sys.stderr)
        lines = [line for line in lines if line.strip()]
    return [text for one in given for text in (lines if one == "-" else [one])]


def _settings_of_file(options: Any, chooser: Chooser, tokenizer: Any) -> dict[str, Any]:
    """The arguments of ``generate`` where the file of the model's directory chooses the strategy.

    Raises:
      UsageError: for a setting of a strategy.
    """
    changes = dict(options.settings)
    settings = {"transform": transform_of(options.transforms, options.constraint)}
    if "max_new_tokens" in changes:
        settings["max_new_tokens"] = changes.pop("max_new_tokens")
    given = next(iter(changes), "phrase" if options.phrase else None)
    if given is not None:
        raise UsageError(f"--{given}: needs --strategy, since {chooser.path} chooses one")
    if chooser.config.do_sample:
        settings["key"] = jax.random.key(options.seed or 0)
    elif options.seed is not None:
        warnings.warn(
            f"seed: {chooser.config.mode} draws nothing and does not use it", stacklevel=2
        )
    if options.drafter is not None:
        settings["drafter"] = _drafter(options, tokenizer)
    print(
        f"decoding_jax: {chooser.config}, from {chooser.path}; --strategy chooses another",
        file=sys.stderr,
    )
    return settings


def _settings(options: Any, kind: type[Strategy], tokenizer: Any) -> dict[str, Any]:
    """The arguments of ``generate`` besides model, tokenizer, texts and strategy."""
    named, chosen = divided(options.strategy, options.transforms)
    settings = {**settings_of(options.strategy), **options.settings, **named}
    if "max_new_tokens" not in options.settings:
        del settings["max_new_tokens"]  # ``generate`` warns where its default cuts a text.
    takes = kind.__dataclass_fields__.__contains__
    has_language = forms.constrained_setting(takes, settings) == "language"
    settings["transform"] = transform_of(chosen, None if has_language else options.constraint)
    if has_language:
        settings["language"] = options.constraint
    if kind.draws and needs_key(settings.get("verifier", "token")):
        settings["key"] = jax.random.key(options.seed or 0)
    elif options.seed is not None:
        warnings.warn(f"seed: {options.strategy} draws nothing and does not use it", stacklevel=2)
    if options.drafter is not None or takes("drafter"):
        if options.drafter is None:
            raise UsageError(
                "--drafter: expected a directory, such as translation-en-fr-draft, or "
                f"prompt_lookup or suffix, for {options.strategy}, got none"
            )
        settings["drafter"] = _drafter(options, tokenizer)
    if options.html is not None:
        recorded = ("with_sample_log_prob", "with_trace")
        settings |= {name: True for name in recorded if takes(name)}
    if takes("constraints") and not options.phrase:
        raise UsageError(f"--phrase: expected one or more for {options.strategy}, got none")
    if options.phrase:
        settings["constraints"] = constraints(tokenizer, options.phrase)
    return settings


def _constraint(options: Any, model: Any, tokenizer: Any) -> Any:
    """The transform of ``--json_schema``, ``--regex`` or ``--grammar``, or None."""
    given = {name: getattr(options, name) for name in (*made.KINDS, "max_depth")}
    for name in ("json_schema", "grammar"):
        if given[name] is not None:
            given[name] = read_text(name, given[name])
    if options.max_depth is not None and options.json_schema is None and options.grammar is None:
        raise UsageError("--max_depth: expected --json_schema or --grammar beside it, got neither")
    return made.of_settings(given, tokenizer, vocabulary_size(model))


def _drafter(options: Any, tokenizer: Any) -> Any:
    """The draft model, or the lookup in the text itself and in a file."""
    if options.drafter == "prompt_lookup":
        return PromptLookup()
    name, colon, file = options.drafter.partition(":")
    if name == "suffix":
        if colon and not file:
            raise UsageError("--drafter: expected suffix, or suffix:FILE, got no file")
        return SuffixDrafter(corpus=read_corpus(file, tokenizer) if colon else None)
    if holds_drafter(options.drafter, options.model):
        return load_drafter(options.drafter)
    return load(options.drafter, dtype=options.dtype, reproducible=options.reproducible)


def _is_single(settings: dict[str, Any]) -> bool:
    """Whether a strategy returns one completion with these settings."""
    counts = [settings.get(name) for name in ("num_samples", "num_return", "beam_size")]
    return next((count for count in counts if count is not None), 1) == 1


def _print_growing(
    model: Any, tokenizer: Any, text: str, settings: dict[str, Any]
) -> list[list[Completion]]:
    """Decodes one completion of a text, and prints it as it grows, with its log-probability."""
    print(f"[1] {text}")
    rows = stream_text(model, tokenizer, [text], **settings).print()
    [row] = rows
    if not row:
        print(f"    not decoded: {records.decoded(0, text, row, seed=0)['error']}\n")
    for completion in row:
        ending = "" if completion.finished else ", not finished"
        print(f"    log-prob {completion.log_prob:.2f}{ending}\n")
    return rows


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Prints the warnings of calls as lines on standard error."""

    def show(message: Any, category: type[Warning], *place: Any, **rest: Any) -> None:
        print(f"decoding_jax: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _any_character() -> Iterator[None]:
    """Prints characters that the output's encoding does not have as escapes, such as ``\\xe9``."""
    streams = [s for s in (sys.stdout, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            stream.reconfigure(errors=errors)


def _encodable(line: str) -> str:
    """A line of JSON whose characters the output's encoding has."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(json.loads(line)) + "\n"
    return line


def _fail(message: str, status: int) -> int:
    print(f"decoding_jax: {message}", file=sys.stderr)
    return status
