"""Random schemas: texts that are sampled are valid, and instances that are valid are accepted."""

import collections
import decimal
import itertools
import json
import random
import re

import jsonschema
import numpy as np
import pytest

from decoding_jax.constraints import definitions, json_texts

DEPTH = 4  # more than instances have levels
NAMES = ["a", "b", "ab", "é"]
NAME_PATTERNS = ["^a", "b$", "^(a|é)$", "[^a]"]
# Strings that follow each pattern, or nearly.
PATTERNS = {
    "^a+$": ["a", "aa", "ab", ""],
    "b": ["b", "ab", "abc", "a"],
    "^(ab|é){1,2}$": ["ab", "éab", "é", "ababab"],
    "^[^a]?b*$": ["", "b", "\nb", "ab"],
    r"^(?!b)\w{1,3}$": ["a", "abc", "b", "é"],
}
FORMATS = {
    "date": ["2024-02-29", "2023-02-29", "a"],
    "ipv4": ["127.0.0.1", "127.0.0.256"],
    "uuid": ["01234567-89ab-cdef-0123-456789abcdef", "01234567"],
}
SCALARS = [None, True, False, 0, 1, -1, 2, 3.5, 10, "", "a", "ab", "é", 'b"\n']
VALUES = [*SCALARS, [], {}, [1], ["a", None], {"a": 1}, {"b": "a", "a": None}]
KINDS = ["null", "boolean", "integer", "number", "string", "array", "object"]


def kind_of(value):
    of = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return of.get(type(value), "null" if value is None else "object")


class Schemas:
    """Makes random schemas, each of few keywords of every kind, beside each other."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def whole(self):
        """A schema, with definitions that it may refer to."""
        defs = {}
        for name in ("two", "one"):  # Of the same value, each asks only what those before ask.
            defs[name] = self.made(1, KINDS, [*defs])
        return {**self.made(2, KINDS, [*defs]), "$defs": defs}

    def inner(self, depth):
        """The schema of a value within another one, which may be of a definition."""
        if (chance := self.rng.random()) < 0.14:
            names = ["#/$defs/one", "#/$defs/two", "#"]
            return {"$ref": self.rng.choice(names)} if chance < 0.1 else chance < 0.13
        return self.made(depth, KINDS, ["one", "two"])

    def made(self, depth, kinds, refs):
        """A schema of some types, which may ask for some definitions of the same value."""
        rng = self.rng
        own = rng.sample(kinds, min(rng.choice([1, 1, 1, 2, 3]), len(kinds)))
        made = {}
        if rng.random() < (0.85 if kinds is KINDS else 0.4):
            made["type"] = own if len(own) > 1 else own[0]
        else:
            own = kinds
        if depth == 0 and rng.random() < 0.4:
            return made | self.listed(own)
        for keywords, of in (
            (self.of_numbers, {"integer", "number"}),
            (self.of_strings, {"string"}),
            (self.of_arrays, {"array"}),
            (self.of_objects, {"object"}),
        ):
            if rng.random() < ((0.8 if len(own) < 4 else 0.3) if of & {*own} else 0.02):
                made |= keywords(depth - 1)
        made |= self.listed(own) if rng.random() < 0.1 else {}
        if depth > 0 and rng.random() < 0.5:
            made |= self.combined(depth - 1, own, refs)
        return made

    def some(self, choices, most):
        """Some of the keywords, by their chances."""
        given = self.rng.sample([*choices], self.rng.randint(1, most))
        return {key: value for key in choices if key in given and (value := choices[key]()) != {}}

    def listed(self, kinds):
        rng = self.rng
        values = [x for x in VALUES if rng.random() < 0.1 or kind_of(x) in kinds] or VALUES
        if rng.random() < 0.2:
            return {"const": rng.choice(values)}
        return {"enum": rng.sample(values, min(rng.randint(1, 6), len(values)))}

    def of_numbers(self, _):
        rng = self.rng
        bounds = [-10, -1.5, 0, 1, 2.25, 7, 12, 100]
        return self.some(
            {
                "minimum": lambda: rng.choice(bounds),
                "maximum": lambda: rng.choice(bounds[3:]),
                "exclusiveMinimum": lambda: rng.choice(bounds[:5]),
                "exclusiveMaximum": lambda: rng.choice(bounds[4:]),
                "multipleOf": lambda: rng.choice([1, 2, 3, 0.1, 0.5, 1.5, 0.75]),
            },
            2,
        )

    def of_strings(self, _):
        rng = self.rng
        return self.some(
            {
                "minLength": lambda: rng.choice([0, 1, 2, 66]),
                "maxLength": lambda: rng.choice([0, 1, 2, 3, 3, 68]),
                "pattern": lambda: rng.choice([*PATTERNS]),
                "format": lambda: rng.choice([*FORMATS]) if rng.random() < 0.3 else "unknown",
            },
            2,
        )

    def of_arrays(self, depth):
        rng = self.rng
        if rng.random() < 0.15:
            finite = {"type": rng.choice(["boolean", "null"])} if rng.random() < 0.3 else None
            finite = finite or {"enum": rng.sample(SCALARS, rng.randint(1, 4))}
            made = {"items": finite, "uniqueItems": True}
            return made | self.some({"minItems": lambda: 2, "contains": lambda: {"const": 1}}, 2)
        made = self.some(
            {
                "items": lambda: self.inner(depth),
                "prefixItems": lambda: [self.inner(depth) for _ in range(rng.randint(1, 2))],
                "contains": lambda: self.inner(0),
                "minItems": lambda: rng.randint(0, 3),
                "maxItems": lambda: rng.randint(0, 3),
            },
            3,
        )
        if "contains" in made and rng.random() < 0.4:
            made |= self.some({"minContains": lambda: 2, "maxContains": lambda: 2}, 2)
        return made

    def of_objects(self, depth):
        rng = self.rng

        def names(most):
            return rng.sample(NAMES, rng.randint(1, most))

        return self.some(
            {
                "properties": lambda: {name: self.inner(depth) for name in names(3)},
                "required": lambda: names(2),
                "additionalProperties": lambda: self.inner(depth) if rng.random() < 0.5 else False,
                "patternProperties": lambda: {rng.choice(NAME_PATTERNS): self.inner(depth)},
                "propertyNames": lambda: {"pattern": rng.choice(NAME_PATTERNS)},
                "minProperties": lambda: rng.randint(0, 2),
                "maxProperties": lambda: rng.randint(0, 3),
                "dependentRequired": lambda: {rng.choice(NAMES): names(2)},
            },
            4,
        )

    def combined(self, depth, kinds, refs):
        rng = self.rng

        def one():
            return rng.random() < 0.8 if rng.random() < 0.05 else self.made(depth, kinds, refs)

        def many():
            return [one() for _ in range(rng.randint(1, 3))]

        found = {"anyOf": many, "oneOf": many, "allOf": many, "not": one, "if": one}
        if refs:
            found["$ref"] = lambda: f"#/$defs/{rng.choice(refs)}"
        made = self.some(found, 2)
        return made | (self.some({"then": one, "else": one}, 2) if "if" in made else {})


class Instances:
    """Makes random instances that a schema is about: its values, bounds and names, and others."""

    def __init__(self, schema, rng):
        self.whole, self.rng = schema, rng

    def near(self, schema, depth=DEPTH - 1):
        rng = self.rng
        if isinstance(schema, bool) or rng.random() < 0.05:
            return rng.choice([*SCALARS, [], {}, [0], {"a": 1}] if depth else SCALARS)
        found = [*self.scalars(schema)]
        for key in ("anyOf", "oneOf", "allOf"):
            found += [self.near(rng.choice(schema[key]), depth)] if key in schema else []
        for key in ("not", "if", "then", "else"):
            found += [self.near(schema[key], depth)] if key in schema else []
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            found.append(self.near(self.whole["$defs"].get(name, self.whole), max(depth - 1, 0)))
        if depth:
            wants = {*np.ravel(schema.get("type", ["object", "array"]))}
            found += [self.object_(schema, depth - 1)] * 2 if "object" in wants else []
            found += [self.array(schema, depth - 1)] * 2 if "array" in wants else []
        objects = [one for one in found if isinstance(one, dict)]
        if len(objects) > 1 and rng.random() < 0.5:
            merged = {key: value for one in objects for key, value in one.items()}
            found += [merged] * 3
        return rng.choice(found or SCALARS)

    def scalars(self, schema):
        rng, kinds = self.rng, {*np.ravel(schema.get("type", KINDS))}
        yield from schema.get("enum", [])
        yield from [schema["const"]] if "const" in schema else []
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            if key in schema:
                yield from (schema[key] + more for more in (0, 1, -1, 0.5))
        if "multipleOf" in schema:
            yield round(schema["multipleOf"] * rng.randint(-9, 9), 2)
        yield from PATTERNS.get(schema.get("pattern"), [])
        yield from FORMATS.get(schema.get("format"), [])
        for key in ("minLength", "maxLength"):
            if key in schema:
                length = max(schema[key] + rng.randint(-1, 1), 0)
                yield "".join(rng.choice("abé😀") for _ in range(length))
        yield from [1e-7] if rng.random() < 0.05 else []
        yield from (one for one in SCALARS if kind_of(one) in kinds and rng.random() < 0.3)

    def array(self, schema, depth):
        size = self.rng.randint(0, 3)
        if self.rng.random() < 0.5:
            size = schema.get("minItems", schema.get("minContains", size))
        prefix, rest = schema.get("prefixItems", []), schema.get("items", True)
        of = [*prefix[:size], *[rest] * (size - len(prefix))]
        some = schema.get("contains", True)
        return [self.near(some if self.rng.random() < 0.3 else one, depth) for one in of]

    def object_(self, schema, depth):
        rng, made = self.rng, {}
        properties = schema.get("properties", {})
        other = schema.get("additionalProperties", True)
        for more in schema.get("patternProperties", {}).values():
            other = more if rng.random() < 0.6 else other
        for name in dict.fromkeys([*properties, *schema.get("required", ()), *NAMES, "x"]):
            is_likely = name in properties or name in schema.get("required", ())
            if rng.random() < (0.75 if is_likely else 0.2):
                made[name] = self.near(properties.get(name, other), depth)
        return made


def exact(number):
    """The value of a number of JSON, of which floats are no measure."""
    value = decimal.Decimal(number)
    return int(value) if value == value.to_integral_value() else value


def validator(schema):
    """Judges values with exact numbers; ``$`` of ECMA-262 is the end, and its letters are ASCII."""
    text = json.dumps(schema).replace('$"', r'\\Z"').replace(r"\\w", "[A-Za-z0-9_]")
    kind = jsonschema.Draft202012Validator
    return kind(json.loads(text, parse_float=exact), format_checker=kind.FORMAT_CHECKER)


def plain(value):
    """The same value, where integers have no point."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def orders(value):
    """The same value with the properties of its objects in every order."""
    if isinstance(value, list):
        yield from ([*items] for items in itertools.product(*([*orders(x)] for x in value)))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for items in itertools.product(*([*orders(value[key])] for key in keys)):
                yield dict(zip(keys, items, strict=True))
    else:
        yield value


class Walks:
    """Random texts of definitions, without a bound of their depth.

    Attributes:
      least: the fewest bytes from each place to the end of its definition.
    """

    def __init__(self, network, rng):
        self.network = network.spelled(70) if network.strings else network
        self.rng, self.edges = rng, []
        table, classes = self.network.table, self.network.byte_class
        self.bytes_of = [np.flatnonzero(classes == c).tolist() for c in range(table.shape[1])]
        for row, calls in zip(table.tolist(), self.network.calls, strict=True):
            reads = [(-1 - c, to) for c, to in enumerate(row) if to >= 0]  # classes are negative
            self.edges.append([*reads, *calls])
        self.least = [0.0 if ends else float("inf") for ends in self.network.accepting]
        while True:
            before = [*self.least]
            for place, edges in enumerate(self.edges):
                self.least[place] = min([before[place], *map(self.cost, edges)])
            if self.least == before:
                break

    def cost(self, edge):
        symbol, to = edge
        return self.least[to] + (1 if symbol < 0 else self.least[self.network.starts[symbol]])

    def text(self, definition=0, length=12):
        """A text that turns to its end after so many bytes."""
        place, made = self.network.starts[definition], bytearray()
        while True:
            edges = [edge for edge in self.edges[place] if self.cost(edge) < float("inf")]
            ends = self.network.accepting[place]
            if not edges or (ends and (len(made) >= length or self.rng.random() < 0.5)):
                return bytes(made)
            if len(made) >= length or self.rng.random() < 0.3:
                edges = [min(edges, key=self.cost)]
            symbol, place = self.rng.choice(edges)
            if symbol < 0:
                made.append(self.rng.choice(self.bytes_of[-1 - symbol]))
            else:
                made += self.text(symbol, max(length - len(made), 0) // 2)


def is_left_out(schema, text):
    """Whether the page names a reason for which a text of a valid value may be refused."""
    words, keys = {"patternProperties", "propertyNames", "additionalProperties"}, {*keys_of(schema)}
    # What is excluded for a property without a name, and objects with two of these for a count.
    is_excluded = {"not", "oneOf", "if"} & keys and words & keys and "{" in text
    is_counted = re.search('"minProperties": [2-9]', json.dumps(schema)) and text.count('": ') > 1
    return bool(is_excluded or is_counted) or "1e-07" in text  # an exponent


def keys_of(schema):
    """The keywords of a schema and of all within it."""
    if isinstance(schema, dict):
        yield from schema
    inner = schema.values() if isinstance(schema, dict) else schema
    for one in inner if isinstance(schema, (dict, list)) else ():
        yield from keys_of(one)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 250), pytest.param(1000, 3500, marks=pytest.mark.exhaustive)]
)
def test_random_schemas_have_the_texts_of_their_values(first, count):
    """Ten texts and 30 instances of each. Settings by which more texts are allowed are random.

    Instances are written in every order of their properties, unless any order is allowed.
    """
    made, found, errors = collections.Counter(), collections.Counter(), []
    for seed in range(first, first + count):
        schema, rng = Schemas(seed).whole(), random.Random(seed)
        is_open, is_escaped = rng.random() < 0.8, rng.random() < 0.3
        style = json_texts.Style(
            rng.choice(["any", "one"]), is_open, rng.choice([0, 4]), is_escaped
        )
        try:
            parts, places = json_texts.automata_of(schema, "schema", DEPTH, style)
        except ValueError as error:
            errors.append(str(error))
            continue
        network = definitions.Network(parts, places, DEPTH, "schema")
        is_valid, walks = validator(schema).is_valid, Walks(network, rng)
        made["compiled"] += 1
        made["with texts"] += walks.least[0] < float("inf")
        for _ in range(10 if walks.least[0] < float("inf") else 0):
            text = walks.text().decode()
            with decimal.localcontext(prec=1000):  # Steps of numbers of many digits are exact.
                assert is_valid(json.loads(text, parse_float=exact)), (schema, style, text)
        instances = Instances(schema, rng)
        for _ in range(30):
            value = plain(instances.near(schema))
            valid = is_valid(json.loads(json.dumps(value), parse_float=exact))
            values = orders(value) if valid and not style.any_order else [value]
            texts = [json.dumps(one, ensure_ascii=False) for one in values]
            accepted = any(network.accepts(text.encode()) for text in texts)
            assert valid or not accepted, (schema, style, value)
            if valid and style.open_objects:
                assert accepted or is_left_out(schema, texts[0]), (schema, style, value)
                found["accepted" if accepted else "left out"] += 1
    assert not any("\n" in error for error in errors)
    assert made["compiled"] > 0.85 * count
    assert made["with texts"] > 0.6 * count
    assert found["accepted"] > 5 * count
    assert found["left out"] < 0.01 * found["accepted"]
