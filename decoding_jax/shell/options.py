"""The options of the command: every setting of every strategy, and the transforms of one number."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from decoding_jax import fields, transforms
from decoding_jax.registry import STRATEGIES, defaults_of
from decoding_jax.text import embedded


def _takes_one_number(name: str) -> bool:
    """Whether a transform has one setting without a default, which is a number."""
    made = getattr(transforms, name)
    settings = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    required = [setting.metadata for setting in settings if setting.default is dataclasses.MISSING]
    if len(required) != 1 or required[0].get("token_ids"):
        return False
    is_number = required[0].get("static") or required[0].get("shared_axes") == 0
    return is_number or required[0].get("check") is fields.as_words


TRANSFORMS = tuple(
    name for name in transforms.__all__ if _takes_one_number(name) and name.islower()
)
"""The transforms that take one number, by which an option is named."""

_NOT_FROM_SHELL = (
    *("model", "prompt", "key", "drafter", "constraints", "transform", "stop"),
    *("language", "potential", "proposal"),
    *("with_sample_log_prob", "with_trace"),  # For the page of ``--html``.
)


class UsageError(ValueError):
    """Invalid options; the message is one line."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; --help lists the options")


class _InOrder(argparse.Action):
    """Collects transforms in the order in which they are given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        name = (option_string or "").removeprefix("--")
        namespace.transforms = [*namespace.transforms, (name, values)]


def settings_of(strategy: str) -> dict[str, Any]:
    """The settings of a strategy that the shell can give, with their defaults.

    Example:
      >>> settings_of("sample")
      {'num_samples': 1, 'max_new_tokens': 64}
    """
    defaults = defaults_of(strategy)
    parameters = inspect.signature(STRATEGIES[strategy].function).parameters.values()
    return {
        p.name: defaults.get(p.name, p.default) for p in parameters if p.name not in _NOT_FROM_SHELL
    }


def value_of(text: str) -> Any:
    """The value of an option: a Python literal, or else the text itself.

    Example:
      >>> value_of("0.5"), value_of("None"), value_of("never")
      (0.5, None, 'never')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the options.

    Returns:
      The options; ``settings`` are those of the strategy that were given, and ``transforms`` a list
      of names and values, in the order given.

    Raises:
      UsageError: for an unknown option or a missing value.
      SystemExit: for ``--help``, after it is printed.
    """
    parser = Parser(
        prog="python -m decoding_jax",
        description="Decodes texts with any strategy. Transforms apply in the order given.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "texts",
        nargs="*",
        help="the inputs: prompts, or texts to translate. The text - stands for the lines of "
        "standard input, as does a pipe without any text",
    )
    parser.add_argument(
        "--strategy",
        help="its name; --list lists all. By default that of the model's generation_config.json, "
        "or else greedy",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the strategies, or all about --strategy NAME"
    )
    parser.add_argument(
        "--model",
        default="translation-en-fr",
        metavar="DIR",
        help="a directory, a model of the Hugging Face Hub such as hf://Qwen/Qwen3-0.6B, or one of "
        f"the embedded models: {', '.join(embedded())}",
    )
    parser.add_argument("--tokenizer", metavar="DIR", help="where the model's has none")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or auto")
    parser.add_argument("--weights", help="int8 or int4, for the model's weights")
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="texts that are the same to the bit in batches of any size and order",
    )
    parser.add_argument(
        "--drafter",
        metavar="DIR",
        help="of speculative_sample: a draft model, or a head of EAGLE-3, of DFlash or of "
        "multi-token prediction, which may be in the model's own DIR, or an assistant of Gemma 4; "
        "prompt_lookup or suffix, which copy from the text; or suffix:FILE, which copies from the "
        "lines of a file too",
    )
    parser.add_argument("--seed", type=int, help="of a strategy that draws; 0 by default")
    parser.add_argument(
        "--stop_strings",
        action="append",
        metavar="TEXT",
        help="a string that ends a text; repeatable",
    )
    _add_constraints(parser)
    parser.add_argument(
        "--truncate", action="store_true", help="cut texts that are too long for the model"
    )
    _add_outputs(parser)
    parser.add_argument(
        "--phrase", action="append", default=[], help="for constrained_beam_search; repeatable"
    )
    settings = parser.add_argument_group("settings of strategies")
    every = {name for strategy in STRATEGIES for name in settings_of(strategy)}
    names = sorted(every.difference(TRANSFORMS))
    for name in names:
        settings.add_argument(
            f"--{name}", type=value_of, metavar="VALUE", default=argparse.SUPPRESS
        )
    group = parser.add_argument_group("transforms")
    for name in TRANSFORMS:
        group.add_argument(
            f"--{name}", type=value_of, metavar="NUMBER", action=_InOrder, dest="transforms"
        )
    parser.set_defaults(transforms=[])
    options = parser.parse_args(argv)
    options.settings = {name: getattr(options, name) for name in names if name in options}
    return options


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON for each text, as the batch job writes it",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page, too, which shows the texts with the probabilities of their tokens",
    )


def _add_constraints(parser: argparse.ArgumentParser) -> None:
    constraints = parser.add_mutually_exclusive_group()
    constraints.add_argument(
        "--json_schema", metavar="FILE", help="keep texts to JSON that is valid by a schema"
    )
    constraints.add_argument(
        "--regex", metavar="PATTERN", help="keep texts to a regular expression, as a whole"
    )
    constraints.add_argument(
        "--grammar", metavar="FILE", help="keep texts to a grammar in Lark's notation"
    )
    parser.add_argument(
        "--max_depth",
        type=int,
        metavar="N",
        help="how often values of a schema, and rules of a grammar, may be within themselves",
    )


def divided(
    strategy: str, chosen: Sequence[tuple[str, Any]]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Settings and transforms: ``--top_k`` is a setting where the strategy has one of that name.

    Example:
      >>> divided("contrastive_search", [("top_k", 5), ("temperature", 0.5)])
      ({'top_k': 5}, [('temperature', 0.5)])
    """
    known = settings_of(strategy)
    settings = {name: value for name, value in chosen if name in known}
    return settings, [(name, value) for name, value in chosen if name not in known]


def transform_of(chosen: Sequence[tuple[str, Any]], constraint: Any = None) -> Any:
    """The constraint and then the transforms of the options, chained; None without any.

    Example:
      >>> len(transform_of([("top_k", 5), ("temperature", 0.5)]).transforms)
      2
    """
    made = [] if constraint is None else [constraint]
    made += [getattr(transforms, name)(value) for name, value in chosen]
    if not made:
        return None
    return made[0] if len(made) == 1 else transforms.chain(*made)


def listed(strategy: str | None) -> Iterator[str]:
    """The lines of ``--list``: all strategies, or one of them with its whole documentation.

    Example:
      >>> next(listed(None)).split(" --")[:3]
      ['arithmetic_sample', 'num_samples 4', 'points lattice']
    """
    if strategy is not None:
        yield _options(strategy)
        yield ""
        yield inspect.getdoc(STRATEGIES[strategy].function) or ""
        return
    for name in STRATEGIES:
        summary = (inspect.getdoc(STRATEGIES[name].function) or "").splitlines()[0]
        yield _options(name)
        yield f"    {summary}"
    yield ""
    yield f"transforms, in the order given: {' '.join(f'--{name}' for name in TRANSFORMS)}"


def _options(strategy: str) -> str:
    settings = [f"--{name} {value}" for name, value in settings_of(strategy).items()]
    entry = STRATEGIES[strategy]
    drafter = ["--drafter DIR"] if entry.drafts else []
    takes_phrases = "constraints" in inspect.signature(entry.function).parameters
    phrases = ["--phrase TEXT"] if takes_phrases else []
    return " ".join([strategy, *drafter, *phrases, *settings])
