"""Schemas that refer to themselves, and grammars, to a bounded depth."""

import functools
import itertools
import json
import re

import jsonschema
import languages
import lark
import numpy as np
import pytest
from languages import NESTED, TOKENIZERS, Pieces, walk

from decoding_jax import constraints
from decoding_jax.constraints import automata, definitions, gbnf, json_texts
from decoding_jax.constraints import made as made_
from decoding_jax.text import ByteTokenizer

LISTS = {"anyOf": [{"const": 1}, {"type": "array", "items": {"$ref": "#"}}]}
LIST_GRAMMAR = 'start: "1" | "[" [start ("," start)*] "]"'
SUMS = r"""
start: term | start ("+" | "-") term
term: factor ("*" factor)*
factor: NUMBER | "-" factor | "(" start ")"
NUMBER: /[0-9]+/
%ignore " "
"""
JSON = r"""
start: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" [pair ("," pair)*] "}"
pair: STRING ":" start
array: "[" [start ("," start)*] "]"
STRING: /"([^"\\\x00-\x1f]|\\["\\])*"/
NUMBER: /-?(0|[1-9][0-9]*)([.][0-9]+)?/
"""


GBNF = r"""# JSON
root ::= value
value ::= (object | array   # nested
    | string | number) ws | ( "true" | "false"
    | "null" ) ws
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ws ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,2})?
ws ::= | " " |
    "\n" [\t ]{0,4}
"""


def lists(depth, length):
    """The texts of nested lists of at most so many levels and characters."""
    if not depth or length < 1:
        return set()
    found, inner = {"1"}, lists(depth - 1, length - 2)
    for count in range(length // 2 + 1):
        for parts in itertools.product(inner, repeat=count):
            if len(text := f"[{','.join(parts)}]") <= length:
                found.add(text)
    return found


def texts_of(made, tokenizer, length):
    """All texts of an automaton over tokens of at most so many characters."""
    table, token_class = languages.tables(made)
    live, found = {(int(made.start), "")}, set()
    for _ in range(length + 1):
        found |= {text for state, text in live if table[state, token_class[-1]] >= 0}
        live = {
            (int(table[state, c]), text + piece.decode())
            for state, text in live
            for c, piece in zip(token_class, tokenizer.texts, strict=False)
            if table[state, c] >= 0
        }
        live = {(state, text) for state, text in live if len(text) <= length}
    return found


def test_texts_are_those_of_the_depth_and_no_others():
    """All texts of up to nine characters, by a schema and by a grammar; tokens cross levels."""
    tokenizer = Pieces(["[", "]", ",", "1", "[[", "]]", "],[", ",1]"])
    for depth in (1, 2, 3):
        known = lists(depth, 9)
        for made in (
            constraints.json_schema(LISTS, tokenizer, max_depth=depth),
            constraints.grammar(LIST_GRAMMAR, tokenizer, max_depth=depth),
        ):
            assert texts_of(made, tokenizer, 9) == known


def test_what_begins_or_ends_with_itself_does_not_nest():
    """Repetitions of all forms are regular, and need no depth."""
    tokenizer = Pieces(["a", "b"])
    for text, pattern in (
        ('start: "a" start | "b"', "a*b"),
        ('start: start "a" | "b"', "ba*"),
        ('start: pair+\npair: "a" "b"?', "(ab?)+"),
        ('start: a_s "b" a_s\na_s: "a" a_s |', "a*ba*"),
        ('start: ("a"~2..3 "b")*', "((aa|aaa)b)*"),
        ('start: start start | "a"', "a+"),
    ):
        depth = 4 if "start start" in text else None  # aaaa needs no more
        made = constraints.grammar(text, tokenizer, max_depth=depth)
        known = {
            "".join(parts)
            for length in range(5)
            for parts in itertools.product("ab", repeat=length)
            if re.fullmatch(pattern, "".join(parts))
        }
        assert texts_of(made, tokenizer, 4) == known


def nesting(value):
    """The number of levels of lists and dicts, a number being of none."""
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(nesting, parts), default=0) if isinstance(value, (dict, list)) else 0


@functools.cache
def validators():
    made = jsonschema.Draft202012Validator
    return {name: made(schema) for name, schema in NESTED.items()}


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("bytes", 4),
        pytest.param("byte-level", 40, marks=pytest.mark.exhaustive),
        *(
            pytest.param(kind, 300, marks=pytest.mark.release)
            for kind in TOKENIZERS
            if kind != "sentencepiece"
        ),
    ],
)
def test_texts_of_nested_schemas_are_valid(kind, count, monkeypatch):
    monkeypatch.setattr(made_, "_MOST_UNROLLED", 1 << 20)
    tokenizer, rng = TOKENIZERS[kind](), np.random.default_rng(2)
    for name, schema in NESTED.items():
        made = constraints.json_schema(schema, tokenizer, max_depth=3)
        for length in (20, 60):
            for _ in range(count):
                tokens = walk(made, rng, begun=False, length=length)
                value = json.loads(tokenizer.decode(tokens))
                validators()[name].validate(value)
                # Items of any type are within an array of an object.
                assert nesting(value) <= {"any value": 3, "any items": 2 + 3}.get(name, 6)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (SUMS, 8),
        pytest.param(SUMS, 200, marks=pytest.mark.exhaustive),
        pytest.param(JSON, 60, marks=pytest.mark.exhaustive),
    ],
)
def test_texts_of_grammars_parse(text, count):
    """By Lark; those of the grammar of JSON also by ``json``."""
    parser = lark.Lark(text, lexer="dynamic_complete")
    tokenizer, rng = ByteTokenizer(), np.random.default_rng(3)
    made = constraints.grammar(text, tokenizer, max_depth=3)
    for _ in range(count):
        found = tokenizer.decode(walk(made, rng, begun=False, length=12))
        parser.parse(found)
        if text is JSON:
            assert nesting(json.loads(found)) <= 3


def test_texts_of_grammars_in_gbnf_are_those_of_patterns_and_of_json():
    for text, pattern in (
        (
            'root ::= "a" [^a\\n]{2} | "b"+ c? | .{4,}\nc ::= "\\x61-" | "\\u0062"',
            "a[^a\n]{2}|b+(a-|b)?|(?s:.{4,})",
        ),
        ('root ::= ("a" |\n"b" #x\n){2,3} [b-]* ', "[ab]{2,3}[b-]*"),
        (
            'x-1 ::= [a-]  | ""\n\nroot ::= x-1{1} "b"* x-1 | "-" y_2 \ny_2 ::= "a" y_2 | "b"',
            "[a-]?b*[a-]?|-a*b",
        ),
    ):
        network = definitions.network_of(*gbnf.automata_of(text), None, "grammar")
        for length in range(5):
            for parts in itertools.product("ab-\n", repeat=length):
                found = "".join(parts)
                known = re.fullmatch(pattern, found) is not None
                assert network.accepts(found.encode()) == known, (text, found)
    tokenizer, rng = ByteTokenizer(), np.random.default_rng(4)
    made = constraints.grammar(GBNF, tokenizer, max_depth=2, notation="gbnf")
    for _ in range(8):
        assert nesting(json.loads(tokenizer.decode(walk(made, rng, begun=False, length=12)))) <= 1
    parts, places = gbnf.automata_of(GBNF)
    network = definitions.network_of(parts, places, 4, "grammar")
    for text in ('{"a": [1, -2.5e-3, {"\\u00e9": null}] }', "[[[0]]]", '["é", true\n\t]'):
        assert network.accepts(text.encode())
        json.loads(text)
    for text in ("[1,]", "01", '{"a":}', '"\n"', "[[[[0]]]]", "", "tru"):
        assert not network.accepts(text.encode())


def test_definitions_that_fan_out_are_compiled_once(monkeypatch):
    """Written out, the last of these schemas has 2^40 of the first, and 4^24."""
    number = {"type": "integer"}
    arrays = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i - 1}"}} for i in (1, 2)}
    choices = {
        f"c{i}": {"anyOf": [{"$ref": f"#/$defs/c{i - 1}"}, {"$ref": f"#/$defs/c{i - 1}"}]}
        for i in range(1, 41)
    }
    schema = {
        "$ref": "#/$defs/a2",
        "$defs": {"c0": number, **choices, "a0": {"$ref": "#/$defs/c40"}, **arrays},
    }
    [made], _ = json_texts.automata_of(schema, "schema", None, json_texts.Style())
    inner = {"type": "array", "items": {"$ref": "#/$defs/c0"}}
    plain = {"type": "array", "items": inner, "$defs": {"c0": number}}
    [want], _ = json_texts.automata_of(plain, "schema", None, json_texts.Style())
    np.testing.assert_array_equal(made.table, want.table)
    pair = {"type": "object", "additionalProperties": False, "required": ["a", "b"]}
    refs = {"$defs": {"c0": number}, "$ref": "#/$defs/c24"}
    for i in range(1, 25):
        part = {"$ref": f"#/$defs/c{i - 1}"}
        refs["$defs"][f"c{i}"] = {**pair, "properties": {"a": part, "b": part}}
    monkeypatch.setattr(automata, "MOST_STATES", 1000)
    expected = "schema.[$]defs.c[0-9]+: expected a schema whose texts need at most 1,000 states"
    with pytest.raises(ValueError, match=expected):
        constraints.json_schema(refs, ByteTokenizer())


ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t: constraints.json_schema(ENDLESS, t), "schema: expected max_depth, since it"),
        (
            lambda t: constraints.json_schema(ENDLESS, t, max_depth=3),
            "max_depth: expected a depth at which some text ends, got 3",
        ),
        (lambda t: constraints.json_schema({}, t, max_depth=0), "max_depth: expected an int of 1"),
        (
            lambda t: constraints.json_schema({"$ref": "#"}, t, max_depth=2),
            "schema: expected a schema that does not refer to itself before any value",
        ),
        (lambda t: constraints.grammar(SUMS, t), "grammar.start: expected max_depth, since it"),
        (lambda t: constraints.grammar("start: a", t), "grammar: expected a grammar that lark"),
        (
            lambda t: constraints.grammar(3, t),
            "grammar: expected a grammar in Lark's notation, got",
        ),
        (
            lambda t: constraints.grammar("start: start", t),
            "grammar: expected rules that do not always begin with themselves, got 'start'",
        ),
        (
            lambda t: constraints.grammar("start: A\n%declare A", t),
            "grammar: expected a pattern for each terminal, got 'A'",
        ),
        (
            lambda t: constraints.grammar("start: /a(?=b)/", t),
            "it looks at what is outside of a terminal",
        ),
        (
            lambda t: constraints.grammar("start: A", t, notation="ebnf"),
            "notation: expected one of lark, gbnf, got 'ebnf'",
        ),
        *(
            (
                lambda t, x=x: constraints.grammar(x, t, notation="gbnf"),
                f"grammar: expected {words}",
            )
            for x, words in (
                ('a ::= "x"', "a rule root, got ['a']"),
                ("root ::= b", "a rule of each name, got 'b'"),
                ('root ::= "x" )', "each rule on a line of its own, got ')'"),
                ('root ::= ("x"', "a closing parenthesis, got"),
                ("root ::= *", "something before a repetition, got"),
                ("root ::= <think>", "a grammar in GBNF, got '<think>'"),
                (r'root ::= "\q"', "a grammar in GBNF, got"),
                ("root ::= [z-a]", "ranges of characters in their order, got 'z-a'"),
                ('root ::= "a"{3,1}', "repetitions {m,n} of which n is m or more, got '{3,1}'"),
                ("root ::= [^]", "a grammar in GBNF, got '[^]'"),
                ('root ::= "a"{65536}', "a grammar whose rules have at most 65,536 states"),
                (f"root ::= {'(' * 999}", "a grammar whose rules have at most 65,536 states"),
                ('root ::= "a"\nroot ::= "b"', "rules with ::=, each name once, on one line"),
                ('root ::= "a"\n "b"', "rules with ::=, each name once, on one line"),
                (r'root ::= "\ud800"', "characters of Unicode, got"),
                (5, "a grammar in GBNF, got 5"),
            )
        ),
    ],
)
def test_bad_arguments_get_one_line(make, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        make(ByteTokenizer())
    assert "\n" not in str(caught.value)


def test_classes_may_contain_what_are_anchors_elsewhere():
    tokenizer = Pieces(["1", "^", "]", "$", "a"])
    for pattern, known in (
        (r"[\d^]", {"1", "^"}),
        ("[]^]", {"]", "^"}),
        (r"\^a|[^$\]1]", {"^a", "^", "a"}),
    ):
        assert texts_of(constraints.regex(pattern, tokenizer), tokenizer, 2) == known
    schema = {"type": "string", "pattern": r"^[\d^]$"}
    made = constraints.json_schema(schema, Pieces(['"', "1", "^"]))
    assert texts_of(made, Pieces(['"', "1", "^"]), 3) == {'"1"', '"^"'}
