"""Constraints as automata over tokens: the sequences that they accept, for all tokenizers."""

import datetime
import decimal
import enum
import ipaddress
import itertools
import json
import pathlib
import re
import uuid
from typing import Annotated, Any, Literal, Optional

import jsonschema
import languages
import numpy as np
import pytest
from languages import PATTERNS, SCHEMAS, TOKENIZERS, Pieces, tables, walk

from decoding_jax import constraints
from decoding_jax.constraints import automata, definitions, json_texts, token_automata, tries
from decoding_jax.transforms import CompressedAutomaton


def accepted(made, tokens):
    """Whether an end token may follow these tokens; None where they have left the language."""
    table, token_class = tables(made)
    state = int(made.start)
    for token in tokens:
        state = table[state, token_class[token]]
        if state < 0:
            return None
    return bool(table[state, token_class[-1]] >= 0)


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        ("(é|日){1,2}a?", ["é", b"\xc3", b"\xa9", "日", b"\xe6\x97", b"\xa5", "aé", b"\xa9a"]),
        ("a*(ba){0,2}|c", ["a", "b", "ab", "ba", "c", "aba", "", "cc"]),
        (r'"(x|\\u00[0-9])*"', ['"', "x", "\\", "u", "\\u0", "0", "07", '1"']),
    ],
)
def test_the_sequences_of_tokens_are_those_whose_texts_match(pattern, pieces):
    """Every sequence of up to five of eight tokens, most of which leave the language early."""
    tokenizer = Pieces(pieces)
    made = constraints.regex(pattern, tokenizer)
    matching = 0
    live = {()}
    for length in range(6):
        for tokens in itertools.product(range(8), repeat=length):
            text = b"".join(tokenizer.texts[i] for i in tokens).decode(errors="replace")
            matches = re.fullmatch(pattern, text) is not None and all(
                tokenizer.texts[i] for i in tokens
            )
            got = accepted(made, tokens)
            assert bool(got) == matches, text
            matching += matches
            if got is not None:
                live.add(tokens)
                assert tokens[:-1] in live
    assert matching > 5


def test_states_that_reach_no_text_are_left_out():
    """No token has the byte that would complete ``ab``; none follows where a text must end."""
    made = constraints.regex("ab|c+d", Pieces(["a", "c", "d", "cd"]))
    assert accepted(made, (0,)) is None
    assert accepted(made, (1, 3))
    with pytest.raises(ValueError, match="pattern: expected one that some text of the tokenizer's"):
        constraints.regex("x", Pieces(["a", "b"]))


def test_end_tokens_are_allowed_exactly_where_a_text_may_end():
    """Even where an end token has a text, and where there are none or several."""
    tokenizer = Pieces(["a", "b"])
    tokenizer.eos_ids = (1, 2)
    made = constraints.regex("a+b?", tokenizer)
    table, token_class = tables(made)
    after = table[table[0, token_class[0]]][token_class]
    assert (after >= 0).tolist() == [True, True, True]
    assert (table[after[1]] == -1).all()
    assert (table[0][token_class] >= 0).tolist() == [True, False, False]
    tokenizer.eos_ids = ()
    made = constraints.regex("ab", tokenizer)
    assert (tables(made)[0] >= 0).sum() == 2


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("begun", [False, True])
def test_texts_of_patterns_match(kind, begun):
    """Twenty texts of each pattern, after other tokens and as the first."""
    tokenizer, rng = TOKENIZERS[kind](), np.random.default_rng(0)
    before = tokenizer.pieces("some words")
    for pattern in PATTERNS:
        made = constraints.regex(pattern, tokenizer)
        for _ in range(20):
            tokens = walk(made, rng, begun=begun)
            text = tokenizer.decode([*before, *tokens] if begun else tokens)
            text = text.removeprefix(tokenizer.decode(before)) if begun else text
            assert re.fullmatch(pattern, text), (pattern, text)
            assert tokens[-1] in tokenizer.eos_ids


@pytest.mark.parametrize(
    "count", [8, pytest.param(300, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind != "sentencepiece"])
def test_texts_of_schemas_are_valid(kind, count):
    """The tokens of the translation model have no braces."""
    validator = jsonschema.Draft202012Validator
    tokenizer, rng = TOKENIZERS[kind](), np.random.default_rng(1)
    for schema in SCHEMAS.values():
        made = constraints.json_schema(schema, tokenizer)
        texts = [tokenizer.decode(walk(made, rng, begun=False)) for _ in range(count)]
        for text in texts:
            checked = validator(schema, format_checker=validator.FORMAT_CHECKER)
            checked.validate(json.loads(text))


def test_digits_and_letters_of_a_schema_are_of_ascii():
    """As in ECMA-262, which JSON Schema refers to; those of ``regex`` are of Unicode."""
    arabic_digit, tokenizer = "\u0663".encode(), languages.ByteTokenizer()
    schema = {"type": "string", "pattern": r"^[\w-]+\d$"}
    for made, text, is_valid in (
        (constraints.regex(r"\d", tokenizer), arabic_digit, True),
        (constraints.json_schema(schema, tokenizer), b'"a-_7"', True),
        (constraints.json_schema(schema, tokenizer), b'"a-' + arabic_digit, False),
        (constraints.json_schema(schema, tokenizer), '"é'.encode(), False),
    ):
        assert (accepted(made, [byte + 3 for byte in text]) is not None) == is_valid


def test_a_vocabulary_without_texts_gets_one_line():
    with pytest.raises(ValueError, match="constraints: expected tokens with texts, got none among"):
        constraints.choice(["a"], languages.byte_fallback(), vocab_size=5)


def test_choices_are_the_texts_however_they_are_divided():
    tokenizer = Pieces(["y", "e", "s", "es", "yes", "no", "n", "o"])
    made = constraints.choice(["yes", "no", "yes"], tokenizer)
    found = [
        tokens
        for length in range(4)
        for tokens in itertools.product(range(8), repeat=length)
        if accepted(made, tokens)
    ]
    assert found == [(4,), (5,), (0, 3), (6, 7), (0, 1, 2)]
    assert automata.of_texts([b"abc", b"xbc", b"c"]).table.shape[0] == 4


def test_tables_are_the_same_in_parts(monkeypatch):
    """States are handled a few at a time; the table does not depend on how many."""
    tokenizer = languages.byte_level()
    whole = constraints.json_schema(languages.PERSON, tokenizer)
    monkeypatch.setattr(token_automata, "_STATES", 3)
    parts = constraints.json_schema(languages.PERSON, tokenizer)
    (table, classes), (other, other_classes) = tables(whole), tables(parts)
    np.testing.assert_array_equal(table[:, classes], other[:, other_classes])


def test_classes_of_pydantic_and_strings_are_schemas():
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        score: int = pydantic.Field(ge=1, le=5)
        reason: str | None = None

    both = Answer, json.dumps(Answer.model_json_schema())
    for schema in both:
        [made], _ = json_texts.automata_of(schema, "schema", None, json_texts.Style())
        assert made.accepts(b'{"score": 5}')
        assert not made.accepts(b'{"score": 6}')


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def fields_of_classes(p):
    """Types of fields as classes of pydantic have them, each with a value."""
    made = p.create_model
    cat = made("Cat", kind=(Literal["cat"], ...), lives=(int, 9))
    dog = made("Dog", kind=(Literal["dog"], ...), name=(str, ...))
    tagged = Annotated[cat | dog, p.Field(discriminator="kind")]
    address = made("Address", street=(str, ...), zip=(p.constr(pattern=r"^\d{5}(-\d{4})?$"), ...))
    page = made("Page", items=(list[address], ...), total=(int, 0))
    node = made("Node", value=(int, ...), children=(list["Node"], []))  # noqa: F821
    linked = made("Linked", v=(str, ...), next=(Optional["Linked"], None))  # noqa: F821
    home, moment = {"street": "A", "zip": "12345-6789"}, datetime.datetime(2024, 2, 29, 1, 2, 3)
    aware = moment.replace(tzinfo=datetime.UTC)
    closed = made("Closed", __config__=p.ConfigDict(extra="forbid"), a=(int, ...))
    opened = made("Open", __config__=p.ConfigDict(extra="allow"), a=(int, ...))
    return [
        *[(int, -3), (float, 0.5), (str, "é\n"), (bool, True), (None, None), (Any, [1, {}])],
        *[(int | None, None), (int | str, "a"), (cat | dog, {"kind": "dog", "name": "x"})],
        *[(tagged, {"kind": "cat"}), (list[tagged], [{"kind": "dog", "name": ""}])],
        *[(Literal["a", 1, True, None], 1), (Color, "red"), (datetime.date, moment.date())],
        *[(datetime.datetime, aware), (p.AwareDatetime, aware), (datetime.timedelta, 61)],
        *[(uuid.UUID, uuid.UUID(int=7)), (p.UUID4, uuid.UUID(int=(4 << 76) + (2 << 62)))],
        *[(decimal.Decimal, "-1.50"), (p.condecimal(max_digits=5, decimal_places=2), "1.25")],
        *[(Annotated[decimal.Decimal, p.Field(ge=0, lt=100)], "9.5"), (p.FiniteFloat, 2.5)],
        *[(p.conint(ge=1, lt=10), 9), (p.conint(multiple_of=5), 15), (p.PositiveInt, 1)],
        *[(p.confloat(gt=0, le=1), 1.0), (p.NonNegativeFloat, 0.0), (p.ByteSize, 10)],
        *[(p.constr(min_length=2, max_length=8), "ab"), (p.constr(pattern=r"^[A-Z]-\d+$"), "A-1")],
        *[(list[int], [1]), (p.conlist(int, min_length=1, max_length=3), [1, 2]), (list, [1])],
        *[(list[address], [home]), (tuple[int, str], (1, "a")), (tuple[int, ...], (1,))],
        *[(set[Literal["a", "b"]], {"b"}), (dict[str, int], {"a": 1}), (dict, {"a": [1]})],
        *[(dict[str, address], {"a": home}), (dict[str, list[float]], {"a": [0.5]})],
        *[(dict[Literal["a", "b"], int], {"b": 1}), (dict[p.constr(pattern="^k"), int], {"k1": 1})],
        *[(dict[int, str], {1: "a"}), (dict[Color, int], {"red": 1}), (dict[str, Any], {"a": {}})],
        *[(p.AnyUrl, "https://a.b/c?d"), (ipaddress.IPv4Address, "1.2.3.4"), (p.SecretStr, "a")],
        *[(p.IPvAnyAddress, "::1"), (pathlib.Path, "a/b"), (bytes, b"a"), (p.Base64Str, "YQ==")],
        *[(page, {"items": [home]}), (node, {"value": 1, "children": [{"value": 2}]})],
        *[(linked, {"v": "a", "next": {"v": "b"}}), (closed, {"a": 1}), (opened, {"a": 1})],
        *[(list[address | None], [None, home]), (list[address | None] | None, [None])],
        *[(list[int] | dict[str, str] | None, {"a": "b"}), (Annotated[int, p.Field(alias="z")], 3)],
    ]


def test_classes_of_pydantic_are_followed():
    """Each field has the text of a value that pydantic writes; sets are refused."""
    pydantic = pytest.importorskip("pydantic")
    for kind, value in fields_of_classes(pydantic):
        made = pydantic.create_model("Made", x=(kind, ...))
        name = made.model_fields["x"].alias or "x"
        text = made.model_validate({name: value}).model_dump_json(by_alias=True)
        parts, places = json_texts.automata_of(made, "schema", 4, json_texts.Style())
        assert definitions.network_of(parts, places, 4, "schema").accepts(text.encode()), text
    made = pydantic.create_model("Made", x=(set[int], ...))
    with pytest.raises(ValueError, match="got uniqueItems of items that are not listed"):
        json_texts.automata_of(made, "schema", 4, json_texts.Style())


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
BAD = [
    ({"type": "number", "multipleOf": 1e-12}, "schema: expected keywords that constraints follow"),
    (
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        "got uniqueItems of items that are not listed",
    ),
    ({"type": "object", "not": {"additionalProperties": False}}, "got not of patternProperties,"),
    ({"type": "string", "not": {"format": "date"}}, "got what a format or many alternatives"),
    ({"type": "object", "minProperties": 3, "additionalProperties": {"const": 1}}, "got minProp"),
    (
        {"type": "string", "oneOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
        "got what a format or many alternatives exclude, in not, if or oneOf",
    ),
    (
        {"type": "array", "unevaluatedItems": False, "contains": {"const": 1}},
        "got unevaluatedItems beside contains",
    ),
    ({"type": "string", "maxlength": 3}, "schema: expected maxLength to be spelt so, got 'maxl"),
    ({"additonalProperties": False}, "schema: expected additionalProperties to be spelt so"),
    ({"$schema": "https://example.org/own"}, "schema.$schema: expected one of http://json-schema"),
    ({"type": "array", "items": [{}]}, "schema.items: expected a schema, as the newest draft says"),
    ({"$dynamicRef": "#a"}, "schema.$dynamicRef: expected an anchor of the schema, got '#a'"),
    ({"$schema": DRAFT_4, "exclusiveMinimum": 3}, "schema.exclusiveMinimum: expected a bool, got"),
    (
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        "schema: expected max_depth, since it refers to",
    ),
    (
        {
            "$defs": {"n": {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
        },
        "schema: expected max_depth, since it refers to itself, got none",
    ),
    ({"$ref": "https://example.org/a"}, "schema.$ref: expected a part of the schema, such as"),
    ({}, "schema: expected a schema with a type, or max_depth for values"),
    (False, "schema: expected one that some text of the tokenizer's tokens matches, got False"),
    ("{", "schema: expected a schema as JSON, got Expecting property name"),
    (3, "schema: expected a JSON Schema: a dict, a string or a class of pydantic, got 3"),
    ({"type": "text"}, "schema.type: expected one of null, boolean, integer,"),
    ({"type": "string", "pattern": "(a)\\1"}, "schema.pattern: expected a regular expression of"),
    ({"type": "string", "pattern": "x*+"}, "got 'x*+' (a repetition of a repetition)"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "schema: expected one that some text of"),
    ({"type": "string", "minLength": -1}, "schema.minLength: expected an int of 0 or more"),
    ({"enum": [1], "type": "string"}, "schema: expected one that some text of the tokenizer's"),
    ({"type": "integer", "exclusiveMinimum": True}, "schema.exclusiveMinimum: expected a number,"),
    ({"type": 5}, "schema.type: expected a type, or a list of types, got 5"),
    ({"properties": ["a"]}, "schema.properties: expected schemas by their names, got ['a']"),
    ({"properties": {}, "required": "a"}, "schema.required: expected a list of names, got 'a'"),
    ({"anyOf": 5}, "schema.anyOf: expected a list of schemas, got 5"),
    ({"prefixItems": [], "minItems": "1"}, "schema.minItems: expected an int of 0 or more"),
    ({"const": float("inf")}, "schema: expected a schema as JSON, got Out of range float values"),
    ({"$ref": "other.json"}, "schema.$ref: expected a part of the schema, such as #/$defs/A, or"),
    ({"type": "string", "pattern": "a)|(b"}, "(a closing parenthesis without an opening one)"),
]


@pytest.mark.parametrize(("schema", "words"), BAD)
def test_schemas_that_are_not_followed_get_one_line(schema, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        constraints.json_schema(schema, Pieces(["a"]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda t: constraints.regex("(", t),
            "pattern: expected a regular expression of Python's re, got '(' (it ends where",
        ),
        (lambda t: constraints.regex(3, t), "pattern: expected a regular expression, got 3"),
        (lambda t: constraints.regex("a)|(b", t), "(a closing parenthesis without an opening one)"),
        (
            lambda t: constraints.by_row(constraints.choice(["a"], t)),
            "constraints: expected a list of constraints, got PrefixAllowedTokens",
        ),
        (lambda t: constraints.choice("yes", t), "texts: expected a list of texts, none of them"),
        (lambda t: constraints.choice(["a", ""], t), "texts: expected a list of texts, none of"),
        (lambda t: constraints.regex("a", object()), "vocab_size: expected the number of tokens"),
        (
            lambda t: constraints.regex("a", object(), vocab_size=3),
            "constraints: expected a tokenizer that says what text each token adds,",
        ),
        (lambda t: constraints.by_row([]), "constraints: expected one or more, for one tokenizer"),
        (
            lambda t: constraints.by_row([t]),
            "constraints: expected those of decoding_jax.constraints",
        ),
        (
            lambda t: constraints.by_row(
                [
                    constraints.choice(["a"], t),
                    constraints.choice(["a"], Pieces(["a"])),
                ]
            ),
            "constraints: expected one or more, for one tokenizer, got",
        ),
    ],
)
def test_bad_arguments_get_one_line(make, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        make(Pieces(["a", "b"]))
    assert "\n" not in str(caught.value)


def test_tables_of_classes_may_lie_in_memory_in_any_order():
    table = np.random.default_rng(0).integers(-1, 5, (30, 20)).astype(np.int32)
    by_rows, by_columns = (
        CompressedAutomaton.of_classes(one, np.arange(50) % 20)
        for one in (table, np.asfortranarray(table))
    )
    np.testing.assert_array_equal(by_rows.row, by_columns.row)
    np.testing.assert_array_equal(by_rows.bits, by_columns.bits)


def test_texts_of_a_trie_are_followed_from_all_states(monkeypatch):
    """Beside each text alone, with the sizes of many bytes, texts and sets as small as these."""
    for name, size in {
        "_FEW": 3,
        "_WIDE": 3,
        "_MANY": 20,
        "_SEVERAL": 1,
        "_MOST_KEPT": 300,
    }.items():
        monkeypatch.setattr(tries, name, size)
    rng = np.random.default_rng(0)
    for _ in range(20):
        texts = [bytes(rng.integers(97, 103, rng.integers(1, 7)).tolist()) for _ in range(120)]
        table = np.full((9, 256), -1, np.int32)
        table[:, 97:103] = rng.integers(-1, 9, (9, 6))
        table[:3, 98:103] = [[0] * 5, [1] * 5, [5] * 5]  # within a string, and one that counts
        trie = tries.Trie([*texts, b""])
        states = np.array([0, 1, 2, 4, 8])
        places = trie.places([*texts, b""])
        number, found = token_automata._classes(table, trie, places, states)
        for text, column in zip([*texts, b""], number, strict=True):
            for state, after in zip(states.tolist(), found[:, column].tolist(), strict=True):
                for byte in text:
                    state = table[state, byte] if state >= 0 else -1
                assert after == (state if text else -1)
        assert len(np.unique(found, axis=1).T) == found.shape[1]
