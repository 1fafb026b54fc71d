"""The transforms that keep texts to a pattern, a schema or a list."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decoding_jax import fields
from decoding_jax.batches.widths import round_up
from decoding_jax.constraints import (
    automata,
    definitions,
    gbnf,
    grammars,
    json_texts,
    kept,
    patterns,
    token_pushdown,
)
from decoding_jax.constraints.automata import Automaton, TooManyStatesError
from decoding_jax.constraints.counted import Counted
from decoding_jax.constraints.encodings import in_utf8
from decoding_jax.constraints.expressions import compiled
from decoding_jax.constraints.references import Retrieve, as_json
from decoding_jax.constraints.token_automata import Vocabulary, over_tokens
from decoding_jax.text.stop_strings import texts_of
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn
from decoding_jax.transforms import CompressedAutomaton, PrefixAllowedTokens, StackAutomaton

_MOST_UNROLLED = 1024
"""The states of nested texts up to which they are unrolled; with more, the device has a stack."""

KINDS = ("json_schema", "regex", "grammar")
"""The constraints that programs have settings for."""

_NOTATIONS = {"lark": "grammar", "gbnf": "gbnf"}  # the kind of a grammar in each notation


def regex(
    pattern: str, tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> PrefixAllowedTokens:
    r"""Keeps each text to a regular expression, which the whole text matches.

    The automaton is over bytes, so tokens may begin and end anywhere, within a character too. End
    tokens are allowed exactly where the text matches, and tokens without text nowhere. A text that
    ends with an end token therefore matches; one that the limit of tokens cuts is not ``finished``.
    Where nothing may follow a text and the tokenizer has no end tokens, the text ends there, and is
    not ``finished`` either.

    The transform comes before transforms that truncate: ``chain(regex(...), top_p(0.9))``.

    Args:
      pattern: in the syntax of Python's ``re``, with look-around, and without back-references,
        atomic groups and possessive repetitions.
      tokenizer: a tokenizer, from ``load``, or one of your own with ``token_texts`` and
        ``vocab_size``.
      vocab_size: the number of tokens that are considered; by default the tokenizer's.

    Raises:
      ValueError: in one line, for a pattern that cannot be compiled, has too many states, or that
        no text of the tokenizer matches, and for a tokenizer that does not know the texts of its
        tokens.

    Example:
      >>> import decoding_jax
      >>> from decoding_jax import constraints
      >>> model, tokenizer = decoding_jax.load("translation-en-fr-draft")
      >>> question = constraints.regex("Où est [a-zé ]{1,20}[?]", tokenizer)
      >>> [[made]] = decoding_jax.generate(
      ...     model, tokenizer, ["Where is the station?"], transform=question, max_new_tokens=16)
      >>> made.text, made.finished
      ('Où est la gare ?', True)
    """
    return _made("regex", pattern, None, tokenizer, vocab_size, "pattern")


def json_schema(
    schema: Any,
    tokenizer: Tokenizer,
    *,
    max_depth: int | None = None,
    spaces: str = "any",
    open_objects: bool = False,
    any_order: int = 0,
    any_escapes: bool = False,
    retrieve: Retrieve | None = None,
    vocab_size: int | None = None,
) -> PrefixAllowedTokens:
    """Keeps each text to JSON that is valid by a schema; otherwise as ``regex``.

    Properties are in the order of the schema, but for ``any_order``. ``docs/constraints.md`` lists
    the keywords that are followed, and which valid texts are left out; a keyword that restricts
    values and is not followed is an error.

    Args:
      schema: a JSON Schema as a dict or a string, or a class of pydantic.
      tokenizer, vocab_size: as for ``regex``.
      max_depth: for a schema that refers to itself, how many of its values may be open at once, the
        outermost one included: a tree of nodes has at most so many levels. With it, ``{}`` and
        items and properties without a schema are values of any type, of at most so many levels.
      spaces: ``"any"`` for at most one space between the parts of a text, ``"none"``, ``"one"`` for
        those of ``json.dumps``, or ``"indent"`` for those and the lines that ``indent=2`` gives.
      open_objects: whether objects may have properties of which the schema says nothing, and which
        it does not forbid; with ``max_depth``, values may also be of any type where it gives none.
      any_order: properties of an object of at most so many named ones may be in any order; with n
        of them, it has 2^n times as many states, so that a few are enough.
      any_escapes: whether characters of strings may be escaped that need not be, as ``json.dumps``
        escapes those beyond ASCII.
      retrieve: a function that gives the schema of an address outside of this one, or None.

    Raises:
      ValueError: in one line, for a schema with a keyword that is not followed; for one that refers
        to itself without ``max_depth``, or has no text of that depth; for one that has neither a
        stack on the device nor an automaton of at most 65,536 states; and as ``regex``.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
      >>> made = constraints.json_schema(schema, ByteTokenizer())
      >>> made.language.transitions.shape
      (1, 48, 16)
      >>> lists = {"type": "array", "items": {"$ref": "#"}}
      >>> nested = constraints.json_schema(lists, ByteTokenizer(), max_depth=2)
      >>> state = int(nested.start)
      >>> for byte in b"[[]]":
      ...     token_class = nested.language.token_class[0, byte + 3]
      ...     state = nested.language.transitions[0, state, token_class]
      >>> bool(nested.language.transitions[0, state, nested.language.token_class[0, 1]] >= 0)
      True
    """
    if spaces not in json_texts.SPACES:
        raise fields.error("spaces", f"one of {', '.join(json_texts.SPACES)}", spaces)
    any_order = fields.as_count("any_order", any_order, 0)
    style = json_texts.Style(spaces, open_objects, any_order, any_escapes)
    return _made("json_schema", schema, max_depth, tokenizer, vocab_size, "schema", style, retrieve)


def grammar(
    text: str,
    tokenizer: Tokenizer,
    *,
    max_depth: int | None = None,
    notation: str = "lark",
    vocab_size: int | None = None,
) -> PrefixAllowedTokens:
    r"""Keeps each text to a context-free grammar; otherwise as ``regex``.

    In Lark's notation, texts are those of the rule ``start``. They parse with ``lark.Lark(text,
    lexer="dynamic_complete")``: a text is divided into terminals in any way that a rule allows.
    After each terminal, at most one match of the terminals of ``%ignore`` is allowed. Where
    Python's ``re`` prefers a shorter match of a terminal, as of ``/a|ab/``, Lark does not find the
    longer one, which is a text here. In GBNF, the notation of llama.cpp, texts are those of the
    rule ``root``.

    Args:
      text: the grammar.
      notation: ``"lark"`` or ``"gbnf"``.
      tokenizer, vocab_size: as for ``regex``.
      max_depth: how often a rule may be within itself, the outermost included. Rules need it that
        contain themselves between other symbols, and in GBNF all that contain themselves. In
        Lark's notation, those that only begin or end with themselves are repetitions, and do not
        nest.

    Raises:
      ValueError: in one line, for a grammar that ``lark`` does not read, or whose terminals
        are not regular or look out of themselves; where ``max_depth`` is as for ``json_schema``;
        and as ``regex``.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> sums = 'start: part ("+" part)*\npart: /[0-9]/ | "(" start ")"'
      >>> made = constraints.grammar(sums, ByteTokenizer(), max_depth=3)
      >>> made.language.transitions.shape
      (1, 8, 8)
    """
    if notation not in tuple(_NOTATIONS):
        raise fields.error("notation", f"one of {', '.join(_NOTATIONS)}", notation)
    return _made(_NOTATIONS[notation], text, max_depth, tokenizer, vocab_size, "grammar")


def choice(
    texts: Sequence[str], tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> PrefixAllowedTokens:
    """Keeps each text to one of a list, however it is divided into tokens; otherwise as ``regex``.

    Args:
      texts: one text or more, none of them empty.
      tokenizer, vocab_size: as for ``regex``.

    Raises:
      ValueError: in one line, for an empty list or text, and as ``regex``.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> made = constraints.choice(["yes", "no"], ByteTokenizer())
      >>> bool((made.language.transitions[0, 0] >= 0).sum() == 2)
      True
    """
    expected = "a list of texts, none of them empty"
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise fields.error("texts", expected, texts)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise fields.error("texts", expected, text)
    vocabulary = vocabulary_of(tokenizer, vocab_size)
    return _over_tokens(automata.of_texts([*map(str.encode, texts)]), vocabulary, "texts", texts)


def by_row(
    constraints: Sequence[PrefixAllowedTokens], *, least: PrefixAllowedTokens | None = None
) -> PrefixAllowedTokens:
    """One transform of another constraint for each row or text; rows may share one.

    The arrays are padded to a few sizes: other constraints of the same padded sizes compile nothing
    again.

    Args:
      constraints: of the other functions of this module, for one tokenizer. A row without a
        constraint takes ``regex("(?s:.*)", tokenizer)``.
      least: what an earlier call has returned. No table is smaller than its, so that calls with
        constraints of many sizes, one after another, compile few programs.

    Raises:
      ValueError: for an empty list, other transforms, and constraints for other tokenizers.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> answer = constraints.choice(["yes", "no"], ByteTokenizer())
      >>> city = constraints.choice(["Rome", "Lima"], ByteTokenizer())
      >>> constraints.by_row([answer, city, answer]).start.tolist()
      [0, 16, 0]
    """
    if not isinstance(constraints, Sequence):
        raise fields.error("constraints", "a list of constraints", constraints)
    different = list({id(made): made for made in constraints}.values())
    for made in different:
        if not _is_ours(made) or np.ndim(made.start) or made.language.num_automata != 1:
            raise fields.error("constraints", "those of decoding_jax.constraints", made)
    kinds = {(x.language.token_class.shape[-1], x.first is None, x.digest) for x in different}
    if len(kinds) != 1:
        raise fields.error("constraints", "one or more, for one tokenizer", sorted(kinds, key=str))
    parts = [made.language for made in different]
    count, filling = round_up(len(parts)), parts[0]
    if least is not None:
        size = filling.token_class.shape[-1]
        if not _is_ours(least) or least.language.token_class.shape[-1] != size:
            raise fields.error("least", "what by_row has returned, for one tokenizer", least)
        filling = least.language
        count = max(round_up(len(parts) + 1), filling.num_automata)
    parts += [filling] * (count - len(parts))
    has_stack = any(isinstance(part, StackAutomaton) for part in parts)
    language = (StackAutomaton if has_stack else CompressedAutomaton).joined(parts)
    number = {id(made): g * language.num_states for g, made in enumerate(different)}

    def of_rows(name: str) -> np.ndarray:
        return np.array([number[id(made)] + getattr(made, name) for made in constraints], np.int32)

    first = None if different[0].first is None else of_rows("first")
    start, digest = of_rows("start"), different[0].digest
    return PrefixAllowedTokens(language, start=start, first=first, digest=digest)


def _is_ours(made: Any) -> bool:
    """Whether this is a constraint of this package, for one row or for several."""
    kinds = CompressedAutomaton, StackAutomaton
    return isinstance(made, PrefixAllowedTokens) and isinstance(made.language, kinds)


def of_settings(
    settings: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int
) -> PrefixAllowedTokens | None:
    """The constraint among the settings of a program, whose names are those in errors.

    Args:
      settings: perhaps one of ``json_schema``, ``regex`` and ``grammar``, and ``max_depth``; None
        is as none.
      tokenizer, vocab_size: as for ``regex``.

    Raises:
      ValueError: for several constraints, and as for each of them.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> of_settings({"regex": None}, ByteTokenizer(), 10) is None
      True
    """
    kind = check_single(settings)
    if kind is None:
        return None
    return _made(kind, settings[kind], settings.get("max_depth"), tokenizer, vocab_size, kind)


def check_single(settings: Mapping[str, Any]) -> str | None:
    """The name of the constraint among settings, or None.

    Raises:
      ValueError: for several constraints.
    """
    given = [kind for kind in KINDS if settings.get(kind) is not None]
    if len(given) > 1:
        raise fields.error(given[1], f"none beside {given[0]}", settings[given[1]])
    return given[0] if given else None


def free(tokenizer: Tokenizer, vocab_size: int) -> PrefixAllowedTokens:
    """A constraint that allows every token after every other one, for ``by_row``."""
    only_end = automata.of_edges([[]], [True])
    like = _over_tokens(only_end, vocabulary_of(tokenizer, vocab_size), "constraints", None)
    classes = np.zeros(like.language.token_class.shape[-1], np.int32)
    language = CompressedAutomaton.of_classes(np.zeros((1, 1), np.int32), classes)
    first = None if like.first is None else 0
    return PrefixAllowedTokens(language, start=0, first=first, digest=like.digest)


def _made(
    kind: str,
    value: Any,
    max_depth: int | None,
    tokenizer: Tokenizer,
    vocab_size: int | None,
    name: str,
    style: json_texts.Style | None = None,
    retrieve: Retrieve | None = None,
) -> PrefixAllowedTokens:
    """The constraint of a kind; ``name`` is that of the argument ``value``."""
    if max_depth is not None:
        max_depth = fields.as_count("max_depth", max_depth)
    style = json_texts.Style() if style is None else style
    vocabulary = vocabulary_of(tokenizer, vocab_size)

    def make() -> kept.Made:
        if kind == "regex":
            return _over_tokens(_of_pattern(value, name), vocabulary, name, value), None
        parts: Sequence[Automaton | Counted]
        if kind == "json_schema":
            parts, places = json_texts.automata_of(value, name, max_depth, style, retrieve)
        else:
            parts, places = _of_grammar(gbnf if kind == "gbnf" else grammars, value, name)
        network = definitions.network_of(parts, places, max_depth, name)
        found = over_network(network, vocabulary, name, value)
        return found, None if isinstance(network, Automaton) else network.shortened

    # What a function gives may change; what is no text is an error.
    if retrieve is not None or (kind != "json_schema" and not isinstance(value, str)):
        found, words = make()
    else:
        said = as_json(value, name) if kind == "json_schema" else value
        asked = [kind, said, max_depth, dataclasses.astuple(style)]
        found, words = kept.kept(asked, vocabulary, make)
    if words is not None:
        warn(words)
    return found


@automata.without_collections()
def over_network(
    network: definitions.Network | Automaton, vocabulary: Vocabulary, name: str, value: Any
) -> PrefixAllowedTokens:
    """The transform of definitions over bytes, by a stack if they are large.

    Args:
      network: of ``definitions.network_of``.
      vocabulary: the texts of the tokens.
      name, value: those of an argument, for errors.
    """
    if isinstance(network, Automaton):
        return _over_tokens(network, vocabulary, name, value)
    try:
        made = network.automaton(_MOST_UNROLLED)
    except TooManyStatesError:
        if (stacked := token_pushdown.over_tokens(network, vocabulary)) is not None:
            return dataclasses.replace(stacked, digest=vocabulary.digest)
        made = network.automaton()
    return _over_tokens(made, vocabulary, name, value)


def _of_grammar(notation: Any, text: Any, name: str) -> tuple[list[Automaton], list[str]]:
    """The automata of the rules of a grammar."""
    try:
        return notation.automata_of(text, name)
    except (TooManyStatesError, RecursionError):
        expected = (
            f"a grammar whose rules have at most {automata.MOST_STATES:,} states and few levels"
        )
        raise fields.error(name, expected, text) from None


def _of_pattern(pattern: str, name: str) -> Automaton:
    """The automaton of the texts that a pattern matches as a whole."""
    try:
        return in_utf8(compiled(patterns.matched(pattern, name)))
    except TooManyStatesError:
        expected = f"a pattern of at most {automata.MOST_STATES // 2:,} states"
        raise fields.error(name, expected, pattern) from None


_VOCABULARIES: dict[int, tuple[weakref.ref[Any], dict[Any, Vocabulary]]] = {}  # by identity


def byte_of_mark(index: int) -> bytes:
    """The text of a special token: a byte that no character has."""
    return bytes([255 - index])


def vocabulary_of(
    tokenizer: Tokenizer, vocab_size: int | None, marks: tuple[int, ...] = ()
) -> Vocabulary:
    """The texts of the tokens, which are read once for each tokenizer.

    Args:
      tokenizer, vocab_size: as for ``regex``.
      marks: special tokens that texts may have, whose texts are those of ``byte_of_mark``.
    """
    place = id(tokenizer)
    refers, known = _VOCABULARIES.get(place, (None, {}))
    if refers is None or refers() is not tokenizer:
        known = {}
        try:
            gone = weakref.ref(tokenizer, lambda _: _VOCABULARIES.pop(place, None))
        except TypeError:  # A tokenizer of one's own may not be referred to weakly.
            pass
        else:
            _VOCABULARIES[place] = gone, known
    key = vocab_size, tuple(getattr(tokenizer, "eos_ids", ())), marks
    if key not in known:
        size = getattr(tokenizer, "vocab_size", None) if vocab_size is None else vocab_size
        if size is None:
            expected = "the number of tokens, for a tokenizer without vocab_size"
            raise fields.error("vocab_size", expected, None)
        size = fields.as_count("vocab_size", size)
        made = Vocabulary(texts_of("constraints", tokenizer, size), tokenizer.eos_ids)
        of_marks = [byte_of_mark(i) for i in range(len(marks))]
        for added in (made.begun, made.first) if marks else ():
            # Other tokens with these bytes are in no text.
            added[:] = [b"" if any(map(one.__contains__, of_marks)) else one for one in added]
            for token, byte in zip(marks, of_marks, strict=True):
                added[token] = byte
        known[key] = made
    return known[key]


def _over_tokens(
    made: Automaton, vocabulary: Vocabulary, name: str, value: Any
) -> PrefixAllowedTokens:
    """The transform of an automaton over bytes; ``name`` and ``value`` are those of an argument."""
    found = over_tokens(made, vocabulary)
    if found is None:
        raise fields.error(name, "one that some text of the tokenizer's tokens matches", value)
    return dataclasses.replace(found, digest=vocabulary.digest)
