"""What schemas and patterns are compiled to, over bytes: beside ``re``, sets of texts and JSON."""

import dataclasses
import itertools
import json
import random
import re
import resource
import shutil
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT

from decoding_jax import constraints
from decoding_jax.constraints import (
    automata,
    definitions,
    encodings,
    json_texts,
    kept,
    numbers,
    patterns,
)
from decoding_jax.constraints.expressions import (
    Repeat,
    Series,
    Symbols,
    Union,
    Without,
    both,
    compiled,
    sequence,
    symbols,
    union,
)
from decoding_jax.text import ByteTokenizer, load_tokenizer

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def acceptor(schema, style=None):
    """Whether a text follows a schema that does not nest."""
    parts, places = json_texts.automata_of(schema, "schema", None, style or json_texts.Style())
    made = definitions.network_of(parts, places, None, "schema")
    return lambda text: made.accepts(text.encode())


def expression(rng, depth):
    """A random expression over a, b and c."""
    kind = rng.randrange(7) if depth else 0
    parts = [expression(rng, depth - 1) for _ in range(2)] if kind else []
    low = rng.randrange(3)
    if kind == 0:
        low = rng.randrange(97, 100)
        return Symbols(((low, rng.randrange(low, 100)),))
    if kind in (3, 4):
        return Repeat(parts[0], low, None if kind == 3 else low + rng.randrange(3))
    makers = {1: sequence, 2: union, 5: both, 6: lambda a, b: Without(a, b)}
    return makers[kind](*parts)


def texts_of(part, longest):
    """The texts of an expression of at most so many characters."""
    if isinstance(part, Symbols):
        return {chr(c) for low, high in part.intervals for c in range(low, high + 1)}
    if isinstance(part, Without):
        return texts_of(part.part, longest) - texts_of(part.excluded, longest)
    if isinstance(part, Repeat):
        inner, found, made = texts_of(part.part, longest), set(), {""}
        for count in range((part.low + longest if part.high is None else part.high) + 1):
            found |= made if count >= part.low else set()
            made = {x + y for x in made for y in inner if len(x + y) <= longest}
        return found
    sets = [texts_of(one, longest) for one in part.parts]
    if isinstance(part, Union):
        return set().union(*sets)
    if not isinstance(part, Series):
        return set.intersection(*sets)
    found = {""}
    for one in sets:
        found = {x + y for x in found for y in one if len(x + y) <= longest}
    return found


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.exhaustive)])
def test_automata_of_random_expressions_have_their_texts(count):
    """All texts of up to four characters, with intersections and differences."""
    rng = random.Random(0)
    words = ["".join(w) for n in range(5) for w in itertools.product("abc", repeat=n)]
    for _ in range(count):
        part = expression(rng, 4)
        made, known = compiled(part), texts_of(part, 4)
        assert {w for w in words if made.accepts(map(ord, w))} == known


PYTHON = [
    *(r"ab?", r"a(?=b)b*", r"(?!ab)[abc]+", r"[abc]*(?<!a)", r"(?<=x)a", r"a\b.b", r"\ba+\b c"),
    *(r"(a(?=b)|b)*", r"(?i)aB", r"a$\n", r"(?m:a$\n^b)", "(?x) a b # c", r"[]a]+", r"[^]a]"),
    *(r"a{,2}", r"a{x}", r"(?P<n>a|b)c", r"(?:a(?!b(?!c)))?[abc]*", r"\Aa\Z", r"(?s:.)a", r".{2}"),
    *(r"\x61\u0062", r"a.*(?<!b)(bb)*?a", r"(?=.*b)(?=.*c)[abc]{2,4}", r"^a|b$", r"(^a|b)c$"),
    *(r"(?!^a)[abc]+", r"a(?=\bb|c|b)[bc]", r"[abc]+(?<!b$)", r"(?=^a)[ab]+", r"[abc]+(?!\b)c"),
    *(r"a\Bb", r"[a-b-c]", r"a*?b+?", r"(|a)b", r"(?i:A(?-i:b))"),
]
ECMA = [
    *(r"^ab", r"ab$", r"b", r"^a|b$", r"^(?!.*aa).*$", r"^(?=.*b)(?=.*c)[abc]{2,4}$", r"\bb\b"),
    *(
        r"(^|x)a",
        r"a($|x)",
        r"^(?!a$|b$)[abc]+$",
        r"^[^a]*$",
        r"^[x\[a]]$",
        r"^(ab|c)+x?$",
        r"^\s*a",
    ),
]


@pytest.mark.parametrize("pattern", [*PYTHON, *ECMA])
def test_patterns_match_what_re_matches(pattern):
    """All texts of up to four characters of six; ``$`` of ECMA-262 is the end alone."""
    if pattern in PYTHON:
        made, known = patterns.matched(pattern, "pattern"), re.compile(pattern).fullmatch
        letters = "abc \nx"
    else:
        made = patterns.searched(pattern, "pattern")
        known, letters = re.compile(pattern.replace("$", r"\Z")).search, "abcx[]"
    made = compiled(made)
    for length in range(5):
        for word in itertools.product(letters, repeat=length):
            assert made.accepts(map(ord, word)) == bool(known("".join(word))), word


def test_characters_are_those_of_utf_8_and_of_json():
    """Random intervals of code points, at their bounds and within them."""
    rng, last = random.Random(0), 0x10FFFF
    for _ in range(20):
        bounds = sorted(rng.sample(range(last + 1), 4))
        kind = symbols([(0, rng.randrange(200)), (bounds[0], bounds[1]), (bounds[2], bounds[3])])
        made = compiled(both(kind, encodings.CHARACTERS))
        utf8, in_json = encodings.in_utf8(made), encodings.in_json(made)
        escaped = encodings.in_json(made, any_escapes=True)
        near = {b + d for b in (*bounds, 0x7F, 0x7FF, 0xFFFF) for d in (-1, 0, 1)}
        for code in {*range(200), *rng.sample(range(last), 200), *near}:
            if 0 <= code <= last and not 0xD800 <= code < 0xE000:
                inside = any(low <= code <= high for low, high in kind.intervals)
                assert utf8.accepts(chr(code).encode()) == inside
                text = json.dumps(chr(code), ensure_ascii=False)
                assert in_json.accepts(text.encode()) == inside
                if code not in near and code % 8:
                    continue
                units = chr(code).encode("utf-16-be").hex()
                units = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
                assert json.loads(f'"{units}"') == chr(code)
                for one in (text, f'"{units}"', '"' + units.upper().replace("U", "u") + '"'):
                    assert escaped.accepts(one.encode()) == inside
                assert not escaped.accepts(f'"{units[:6]}'.encode())


def test_numbers_follow_bounds_by_value():
    """Random decimals, with zeros at their ends, beside random bounds and steps."""
    rng = random.Random(1)

    def number():
        whole = rng.choice([rng.randrange(13), rng.randrange(3000)])
        places = "".join(rng.choice("0159") for _ in range(rng.randrange(4)))
        return rng.choice(["", "-"]) + str(whole) + (f".{places}" if places else "")

    for _ in range(60):
        bound = float(number()) if rng.random() < 0.7 else int(Decimal(number()))
        limit, exclusive = numbers.exact(bound), rng.random() < 0.5
        low, high = numbers.at_least(bound, exclusive), numbers.at_most(bound, exclusive)
        steps = numbers.multiples_of(abs(bound)) if bound else None
        made = [compiled(one.decimals) for one in (low, high, numbers.others_than(low))]
        for text in (*(number() for _ in range(60)), f"{limit:f}"):
            value = Decimal(text)
            wanted = value > limit if exclusive else value >= limit
            found = [one.accepts(text.encode()) for one in made]
            assert found == [wanted, value < limit if exclusive else value <= limit, not wanted]
            if steps:
                is_multiple = value % abs(limit) == 0
                assert compiled(steps.decimals).accepts(text.encode()) == is_multiple


HUGE = [
    *({"type": "string", "maxLength": n} for n in (18, 20, 256, 1000, 10_000)),
    {"type": "string", "minLength": 900, "maxLength": 1000},
    *({"type": "string", "pattern": p} for p in (r"^[a-z][a-z0-9]{0,30}$", r"^(ab?){0,1000}$")),
    {"type": "string", "pattern": r"^(a|b)*a(a|b){30}$"},
    {"type": "string", "pattern": r"^((a{1,100}){1,100}){1,100}$"},
    {"type": "array", "items": {"type": "string"}, "maxItems": 1000},
    *(r"Q: .{1,36}", r"\w{0,200}", r".{0,1000}", r"[a-z]{1,1000}", r"(a|aa){0,1000}"),
    {"type": "number", "minimum": 1e200},
    {"type": "integer", "multipleOf": 997},
]


@pytest.mark.parametrize("huge", HUGE, ids=str)
def test_what_is_large_is_compiled_in_a_moment_or_is_one_error(huge):
    """A budget of processor time and memory, for bytes as tokens; the texts are not looked at."""
    check_budget(huge, ByteTokenizer(), 6)  # on a busy machine; alone it is about 1


@pytest.mark.release
def test_what_is_large_is_compiled_in_a_moment_for_50_257_tokens(tmp_path):
    """Those of GPT-2, which are sorted once, before the first constraint."""
    vocabulary = ROOT.parent / "shared" / "data" / "tokenizers"
    if not vocabulary.is_dir():
        pytest.skip(f"{vocabulary} is not there")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(vocabulary / f"gpt2_{name}", tmp_path / name)
    tokenizer = load_tokenizer(tmp_path)
    constraints.choice(["a"], tokenizer)
    for huge in HUGE[:-1]:  # Lengths and counts; many steps of numbers take longer.
        check_budget(huge, tokenizer, 6)


def check_budget(huge, tokenizer, seconds):
    """Compiles what is large, or gets one error, within a budget of processor time and 200 MB."""
    make, words = constraints.regex if isinstance(huge, str) else constraints.json_schema, "states"
    before, begin = peak_memory(reset=True), time.process_time()
    try:
        make(huge, tokenizer)
    except ValueError as error:
        words = str(error)
    assert "states" in words
    assert "\n" not in words
    assert time.process_time() - begin < seconds, huge
    assert peak_memory() - before < 200_000, huge


def peak_memory(*, reset=False):
    """The most memory that this process has had, in KB; since the last reset where Linux has it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])


CLOSED = {"additionalProperties": False}

# Schemas with texts that are valid and texts that are not, which one could take for valid.
TRAPS = [
    ({"type": "object", "unevaluatedProperties": False}, ["{}"], ['{"foo": "foo"}']),
    (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"$id": "a.json", "$ref": "#/$defs/b", "$defs": {"b": {"const": 1}}},
                "b": {"const": 2},
            },
        },
        ["1"],
        ["2"],
    ),
    ({"const": 18446744073709551617}, ["18446744073709551617"], ["1.8446744073709552e+19"]),
    ({"enum": [[2**64 + 1], {"a": 10**22 + 1}]}, [f"[{2**64 + 1}]"], [f"[{2**64}]"]),
    ({"type": "string", "pattern": "^[[a]]$"}, ['"a]"', '"[]"'], ['"a"', '"["']),
    ({"type": "string", "pattern": "^[a-z&&[^aeiou]]$"}, ['"a]"', '"&]"'], ['"b"']),
    ({"type": "string", "pattern": "^[[:alpha:]]$"}, ['":]"'], ['"x"']),
    ({"type": "string", "pattern": r"^\d$"}, ['"7"'], ['"\u0663"']),
    ({"type": "string", "pattern": r"^.$"}, ['"a"', r'"\""', r'"\\"'], [r'"\n"', '"\u2028"']),
    (
        {"$schema": DRAFT_7, "type": "array", "prefixItems": [{}], "items": {"const": 1}},
        ["[1, 1]"],
        ["[2]"],
    ),
    (
        {
            "$schema": DRAFT_7,
            "$ref": "#/definitions/a",
            "const": 1,
            "definitions": {"a": {"const": 2}},
        },
        ["2"],
        ["1"],
    ),
    ({"$schema": DRAFT_4, "type": "integer"}, ["1"], ["1.0"]),
    ({"type": "integer"}, ["-12"], ["1" * 5000, "1e3", "1.5"]),
    ({"type": "number"}, ["1.5e-7", "1E+22"], ["1e999", "1" * 400]),
    ({"type": "integer", "minimum": 7, "maximum": 2000}, ["7", "2000"], ["6", "2001", "-8"]),
    ({"type": "number", "exclusiveMinimum": -0.5}, ["-0.49", "3"], ["-0.5", "-0.50", "-1e5"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, ["1", "2.5"], ["3"]),
    ({"type": "object", "properties": {"a": False, "b": {"const": 1}}}, ['{"b": 1}'], ['{"a": 1}']),
    (
        {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": {"const": 1}},
        ['{"ab": 1}'],
        ['{"abc": 1}'],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^a": {"const": 1}, "b$": {"enum": [1, 2]}},
            "additionalProperties": False,
        },
        ['{"a": 1, "b": 2, "ab": 1}'],
        ['{"ab": 2}', '{"c": 1}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}},
            "dependentRequired": {"a": ["b"]},
        },
        ["{}", '{"a": 1, "b": 2}', '{"b": 2}'],
        ['{"a": 1}'],
    ),
    (
        {
            "type": "object",
            "properties": {"k": {"enum": ["x", "y"]}, "n": {"enum": [1, 2]}},
            "required": ["k", "n"],
            "if": {"properties": {"k": {"const": "x"}}},
            "then": {"properties": {"n": {"const": 1}}},
            "else": {"properties": {"n": {"const": 2}}},
        },
        ['{"k": "x", "n": 1}', '{"k": "y", "n": 2}'],
        ['{"k": "x", "n": 2}', '{"k": "y", "n": 1}'],
    ),
    (
        {"type": "array", "items": {"enum": [1, 2, 3]}, "contains": {"const": 2}, "maxContains": 1},
        ["[1, 2]", "[2, 3, 1]"],
        ["[1]", "[2, 2]"],
    ),
    (
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
        ["[]", '["b", "a"]'],
        ['["a", "a"]'],
    ),
    (
        {
            "type": "object",
            "minProperties": 2,
            "additionalProperties": {"const": 1},
            "properties": {"a": {"const": 1}},
        },
        ['{"a": 1, "b": 1}'],
        ['{"b": 1, "b": 1}', '{"a": 1}'],
    ),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"minimum": 2}}, "required": ["a"]},
                {"properties": {"a": {"type": "integer", "maximum": 3}}},
            ]
        },
        ['{"a": 2}', '{"a": 3}'],
        ['{"a": 4}', '{"a": 1}', "{}"],
    ),
    (
        {
            "type": "object",
            "minProperties": 2,
            "additionalProperties": {"type": "integer"},
            "properties": {"a": {"const": 1}, "b": {"const": 1}},
        },
        ['{"b": 1, "c": 1}', '{"a": 1, "b": 1}', '{"a": 1, "c": 1, "d": 2}'],
        ['{"c": 1, "c": 2}', '{"c": 1}', '{"a": 1}', "{}"],
    ),
    ({"not": {"type": "object"}, "type": ["object", "boolean"]}, ["true"], ["{}"]),
    (
        {
            "oneOf": [
                {"properties": {"a": {}, "b": {}}, **CLOSED},
                {"properties": {"b": {}, "c": {}}, **CLOSED},
            ],
            "type": "object",
            "properties": {key: {"type": "integer"} for key in "abc"},
        },
        ['{"a": 1}', '{"a": 1, "b": 2}', '{"b": 2, "c": 3}', '{"c": 3}'],
        ["{}", '{"b": 2}', '{"a": 1, "c": 3}', '{"d": 4}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 2]}},
            "not": {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        },
        ['{"b": 2}', '{"a": 1, "b": 2}'],
        ["{}", '{"a": 1}', '{"b": "x"}', '{"a": 1, "b": "x"}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}},
            "not": {"not": {"properties": {"a": {}}, **CLOSED}},
        },
        ["{}", '{"a": 1}'],
        ['{"b": 2}', '{"a": 1, "b": 2}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"const": 0}},
            "anyOf": [
                {"properties": {"b": {"const": 1}}, "required": ["b"]},
                {"properties": {"c": {"const": 2}}, "required": ["c"]},
            ],
            "unevaluatedProperties": False,
        },
        ['{"a": 0, "b": 1}', '{"b": 1, "c": 2}', '{"c": 2}'],
        ['{"a": 0}', '{"b": 1, "c": 3}', '{"b": 1, "d": 1}'],
    ),
    (
        {
            "type": "object",
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "unevaluatedProperties": False,
        },
        ['{"a": 1}', "{}"],
        ['{"a": 2}', '{"b": 1}'],
    ),
    (
        {
            "type": "array",
            "items": {"enum": [1, 2, 3]},
            "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}, "maxContains": 1}],
            "maxItems": 4,
        },
        ["[1, 2]", "[3, 2, 1]", "[1, 1, 2]"],
        ["[1]", "[2]", "[1, 2, 2]", "[]"],
    ),
    (
        {
            "type": "object",
            "properties": {
                "a": {
                    "$schema": DRAFT_4,
                    "type": "integer",
                    "minimum": 1,
                    "exclusiveMinimum": True,
                }
            },
        },
        ['{"a": 2}'],
        ['{"a": 1}'],
    ),
    (
        {
            "$id": "https://example.org/words",
            "$ref": "list",
            "$defs": {
                "word": {"$dynamicAnchor": "item", "type": "string"},
                "list": {
                    "$id": "list",
                    "type": "array",
                    "items": {"$dynamicRef": "#item"},
                    "$defs": {"any": {"$dynamicAnchor": "item"}},
                },
            },
        },
        ['["a"]', "[]"],
        ["[1]"],
    ),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"0000-01-01"']),
    ({"type": "string", "minLength": 2, "pattern": "^a*$"}, ['"aa"'], ['"a"']),
    (
        {"type": "string", "format": "regex"},
        ['"^[a-zA-Z0-9_.]{3,16}$"', '"[^a-z-]{2,}"', '"x{2,4}"', '"x{3,3}"'],
        ['"a{5,3}"', '"[z-a]"'],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), TRAPS, ids=lambda x: str(x)[:40])
def test_texts_that_follow_a_schema_are_valid(schema, valid, invalid):
    """Listed texts, which ``jsonschema`` judges alike where they are JSON at all."""
    jsonschema = pytest.importorskip("jsonschema")
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    checked = kind(schema, format_checker=kind.FORMAT_CHECKER)
    accepts = acceptor(schema)
    for text in valid:
        assert accepts(text), text
        checked.validate(json.loads(text))
    for text in invalid:
        assert not accepts(text), text


def test_characters_of_strings_are_counted():
    """An escape is one; beside patterns, and where a comparison needs each length as a state."""
    accepts = acceptor({"type": "array", "items": {"type": "string", "maxLength": 10_000}})
    assert [accepts(f'["", "{"é" * n}"]') for n in (9999, 10_000, 10_001)] == [True, True, False]
    style = json_texts.Style(any_escapes=True)
    accepts = acceptor({"type": "string", "minLength": 2, "maxLength": 70}, style)
    for character in ("a", "é", "😀", r"\"", r"\u0001", r"\ud83d\ude00"):
        found = [accepts(f'"{character * n}"') for n in (0, 1, 2, 70, 71)]
        assert found == [False, False, True, True, False]
    accepts = acceptor({"type": "string", "pattern": "^x.*[yz]$", "maxLength": 5000})
    found = [accepts(f'"x{"-" * n}z"') for n in (0, 4998, 4999)]
    assert [*found, accepts('"x"'), accepts('"z"')] == [True, True, False, False, False]
    accepts = acceptor({"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 101})
    assert [accepts(f'"{"ab" * n}"') for n in (1, 2, 50, 51)] == [False, True, True, False]
    accepts = acceptor({"type": "string", "pattern": "^[a-z][a-z0-9]{99,199}$"})
    assert [accepts(f'"{"a" * n}"') for n in (99, 100, 200, 201)] == [False, True, True, False]
    items = {"type": "string", "maxLength": 70}
    some = {"type": "string", "minLength": 69, "maxLength": 99}
    accepts = acceptor({"type": "array", "items": items, "contains": some})
    texts = [["a" * n for n in sizes] for sizes in ((1, 69), (70,), (), (68,), (71,))]
    assert [accepts(json.dumps(one)) for one in texts] == [True, True, False, False, False]


def test_strings_that_cannot_be_counted_are_shorter_with_a_warning(monkeypatch, tmp_path):
    """A character may be that of two strings. The warning comes with what is kept on disk too."""
    monkeypatch.setattr(definitions, "LONGEST", (20,))
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path))
    monkeypatch.setattr(kept, "_SHORT", 0)
    schema = {"anyOf": [{"const": "abc"}, {"type": "string", "minLength": 9, "maxLength": 3000}]}
    for _ in range(2):
        with pytest.warns(UserWarning, match="schema: strings with maxLength=3000 have at most 20"):
            constraints.json_schema(schema, ByteTokenizer())
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(automata, "MOST_STATES", 5000)
    with pytest.raises(
        ValueError, match="schema: expected a schema whose texts need at most 5,000"
    ):
        acceptor({"type": "string", "minLength": 500})


def test_white_space_and_open_objects_are_settings():
    schema = {"type": "object", "properties": {"a": {"const": [1, 2]}}, "required": ["a"]}
    texts = ['{"a":[1,2]}', '{"a": [1, 2]}', '{ "a" :[ 1,2 ] }']
    texts.append(json.dumps({"a": [1, 2]}, indent=2))
    indented = ("indent", texts[3:])
    for spaces, known in (("any", texts[:3]), ("none", texts[:1]), ("one", texts[1:2]), indented):
        accepts = acceptor(schema, json_texts.Style(spaces))
        assert [text for text in texts if accepts(text)] == known
    values = [[], {}, [[], {}, {"a": {"b": [[1], 2]}, "c": {}}], {"a": [1]}]
    accepts = acceptor({"enum": values}, json_texts.Style("indent"))
    assert all(accepts(json.dumps(value, indent=2)) for value in values)
    unique = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    accepts = acceptor(unique, json_texts.Style("indent"))
    assert all(accepts(json.dumps(value, indent=2)) for value in ([], [2], [1, 2]))
    with pytest.raises(ValueError, match="spaces: expected any, none or one for values that are"):
        constraints.json_schema({}, ByteTokenizer(), spaces="indent", max_depth=2)
    rest = {**schema, "additionalProperties": {"type": "null"}}
    assert acceptor(rest)('{"a": [1, 2], "b": null}')
    open_ = json_texts.Style(open_objects=True)
    parts, _ = json_texts.automata_of(schema, "schema", 2, open_)
    assert len(parts) == 2
    assert len(json_texts.automata_of(schema, "schema", 2, json_texts.Style())[0]) == 1
    small = {"maxLength": 1}
    for style, known in ((json_texts.Style(), False), (open_, True)):
        accepts = definitions.network_of(
            *json_texts.automata_of(small, "schema", 2, style), 2, "schema"
        ).accepts
        assert [accepts(text) for text in (b'"a"', b'"ab"', b"[12]")] == [True, False, known]
    with pytest.raises(ValueError, match="spaces: expected one of any, none, one, indent, got"):
        constraints.json_schema(schema, ByteTokenizer(), spaces="two")


def test_items_that_are_counted_may_nest():
    tree = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    schema = {"$defs": {"tree": tree}, **tree, "contains": {"const": []}, "maxContains": 1}
    parts, places = json_texts.automata_of(schema, "schema", 4, json_texts.Style())
    accepts = definitions.network_of(parts, places, 4, "schema").accepts
    assert all(map(accepts, (b"[[]]", b"[[[]], []]", b"[[], [[]]]")))
    assert not any(map(accepts, (b"[]", b"[[], []]", b"[[[]]]")))


def test_a_property_that_asks_for_itself_is_there_once():
    """No other keyword stands beside the one that asks for it."""
    open_ = json_texts.Style(open_objects=True)
    schema = {"dependentRequired": {"a": ["a", "b", "b"]}}
    parts, places = json_texts.automata_of(schema, "schema", 2, open_)
    accepts = definitions.network_of(parts, places, 2, "schema").accepts
    assert all(map(accepts, (b'{"a": 1, "b": 2}', b'{"b": 1}', b"{}")))
    assert not any(map(accepts, (b'{"a": 1, "a": 1}', b'{"a": 1, "b": 1, "b": 1}', b'{"a": 1}')))


def test_properties_may_be_in_any_order():
    """Beside ``jsonschema``, with all texts of up to three properties."""
    jsonschema = pytest.importorskip("jsonschema")
    values = {"a": "1", "b": "2", "c": "3", "d": "4"}
    orders = [keys for n in range(4) for keys in itertools.permutations(values, n)]
    texts = ["{" + ", ".join(f'"{k}": {values[k]}' for k in keys) + "}" for keys in orders]
    whole = {"type": "integer"}
    named = {"type": "object", "properties": {"a": {"const": 1}, "b": whole, "c": whole}}
    for more in (
        {"required": ["b"]},
        {"required": ["c", "a"], "additionalProperties": {"const": 4}},
        {"minProperties": 2, "additionalProperties": False},
        {"maxProperties": 1, "required": ["b"]},
    ):
        schema = {"additionalProperties": whole, **named, **more}
        checked = jsonschema.Draft202012Validator(schema)
        accepts = acceptor(schema, json_texts.Style(any_order=3))
        assert [accepts(x) for x in texts] == [checked.is_valid(json.loads(x)) for x in texts]
        accepts = acceptor(schema, json_texts.Style(any_order=2))
        in_order = [
            text for keys, text in zip(orders, texts, strict=True) if [*keys] == sorted(keys)
        ]
        assert [x for x in texts if accepts(x)] == [
            x for x in in_order if checked.is_valid(json.loads(x))
        ]


def test_schemas_of_other_addresses_are_given_by_a_function():
    schema = {"type": "array", "items": {"$ref": "https://example.org/n#/$defs/one"}}
    there = {"$defs": {"one": {"$ref": "two"}, "two": {"$id": "two", "type": "null"}}}
    known = {"https://example.org/n": there}.get
    [made], _ = json_texts.automata_of(schema, "schema", None, json_texts.Style(), known)
    assert made.accepts(b"[null]")
    assert not made.accepts(b"[1]")


def test_look_around_within_a_terminal_is_followed():
    """Lark's own strings look behind; what looks out of its terminal is one line."""
    pytest.importorskip("lark")
    text = "start: ESCAPED_STRING\n%import common.ESCAPED_STRING"
    made = constraints.grammar(text, ByteTokenizer())
    table, token_class = made.language.transitions[0], made.language.token_class[0]
    for string, is_valid in ((rb'"a\"b"', True), (rb'"a\"', False), (rb'"a\\"', True)):
        state = 0
        for byte in string:
            state = table[state, token_class[byte + 3]]
        assert (table[state, token_class[1]] >= 0) == is_valid
    with pytest.raises(
        ValueError, match=r"grammar\.IF: expected a regular .* outside of a terminal"
    ):
        constraints.grammar("start: IF\nIF: /if(?!x)/", ByteTokenizer())
    commented = "start: WORD\nWORD: /a b # c\n/x"
    assert constraints.grammar(commented, ByteTokenizer()).language.num_states


def test_constraints_are_kept_on_disk(monkeypatch, tmp_path):
    """What is read is what was made; other settings and a broken file are made again."""
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path))
    monkeypatch.setattr(kept, "_SHORT", 0)
    tokenizer, lists = ByteTokenizer(), {"type": "array", "items": [{"$ref": "#"}, {"$ref": "#"}]}
    lists["$schema"] = "http://json-schema.org/draft-07/schema#"

    def made(max_depth):
        return constraints.json_schema(lists, tokenizer, max_depth=max_depth)

    first = [made(2), made(12)]
    assert [type(one.language).__name__[:5] for one in first] == ["Compr", "Stack"]
    files = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_bytes_of", lambda made: 1 / 0)
        again = [made(2), made(12)]
        for one, other in zip(first, again, strict=True):
            assert (one.start, one.first, one.digest) == (other.start, other.first, other.digest)
            for field in dataclasses.fields(one.language):
                x, y = getattr(one.language, field.name), getattr(other.language, field.name)
                assert np.array_equal(x, y)
                assert np.asarray(x).dtype == np.asarray(y).dtype
    files[0].write_bytes(b"PK")
    for max_depth in (2, 12, 3):
        made(max_depth)
    assert len(files) == 2
    assert len(list(tmp_path.iterdir())) == 3
    assert files[0].stat().st_size > 2
    monkeypatch.setenv(kept.VARIABLE, "")
    constraints.regex("a{3,7}", tokenizer)
    assert len(list(tmp_path.iterdir())) == 3
