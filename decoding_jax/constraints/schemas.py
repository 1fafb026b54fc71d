"""JSON Schemas in the normal form of ``forms``.

Every value of a form is valid by its schema. A keyword that is not followed is an error; one that
restricts nothing by the schema's draft, such as ``title`` or a name that no draft has, is ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from decoding_jax import fields
from decoding_jax.constraints import forms, numbers, patterns
from decoding_jax.constraints.expressions import (
    Expression,
    Without,
    compiled,
    text,
    union,
)
from decoding_jax.constraints.formats import FORMATS
from decoding_jax.constraints.forms import (
    ANY_TEXT,
    ANYTHING,
    NEVER,
    Arrays,
    Form,
    Goal,
    Objects,
    Strings,
    UnfollowedError,
)
from decoding_jax.constraints.references import Document, Part, Retrieve, as_json

_COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"),
    *("minProperties", "maxProperties"),
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# The first draft of each keyword that restricts values, and the last one if it is not the newest.
_KEYWORDS: dict[str, tuple[int, int]] = {
    **dict.fromkeys((*_COUNTS, *_BOUNDS), (4, 2020)),
    **dict.fromkeys(("$ref", "type", "enum", "multipleOf", "pattern", "format"), (4, 2020)),
    **dict.fromkeys(("items", "uniqueItems", "properties", "required"), (4, 2020)),
    **dict.fromkeys(("patternProperties", "additionalProperties"), (4, 2020)),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "dependencies"), (4, 2020)),
    **dict.fromkeys(("const", "contains", "propertyNames"), (6, 2020)),
    **dict.fromkeys(("if", "then", "else", "contentEncoding"), (7, 2020)),
    **dict.fromkeys(("minContains", "maxContains", "dependentRequired"), (2019, 2020)),
    **dict.fromkeys(("dependentSchemas", "unevaluatedItems"), (2019, 2020)),
    "unevaluatedProperties": (2019, 2020),
    "prefixItems": (2020, 2020),
    "$dynamicRef": (2020, 2020),
    "additionalItems": (4, 2019),
    "$recursiveRef": (2019, 2019),
}
_ANNOTATIONS = {
    *("$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema"),
    *("$vocabulary", "contentMediaType", "contentSchema", "default", "definitions", "deprecated"),
    *("description", "examples", "id", "readOnly", "title", "writeOnly", "example", "name"),
}
_OBJECT = (
    *("properties", "required", "patternProperties", "additionalProperties", "minProperties"),
    *("maxProperties", "propertyNames"),
)
_ARRAY = (
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    *("contains", "minContains", "maxContains"),
)
_LIST = "a list of schemas"
_SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("$ref", "pattern", "format"), ("a string", lambda x: isinstance(x, str))),
    "enum": ("a list", lambda x: isinstance(x, list)),
    **dict.fromkeys(
        ("anyOf", "oneOf", "allOf", "prefixItems"),
        (_LIST, lambda x: (isinstance(x, list) and bool(x)) or x == []),
    ),
    **dict.fromkeys(
        (
            "properties",
            "patternProperties",
            "dependencies",
            "dependentRequired",
            "dependentSchemas",
        ),
        ("schemas by their names", lambda x: isinstance(x, dict)),
    ),
    "required": ("a list of names", lambda x: isinstance(x, list) and _are_names(x)),
    "type": ("a type, or a list of types", lambda x: bool(x) and _are_names(x)),
    "uniqueItems": ("a bool", lambda x: isinstance(x, bool)),
    "multipleOf": ("a number above 0", lambda x: _is_number(x) and x > 0),
    **dict.fromkeys(_BOUNDS, ("a number", lambda x: _is_number(x))),
}


def _are_names(value: Any) -> bool:
    return isinstance(value, (str, list)) and all(isinstance(part, str) for part in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _OpenError(Exception):
    """A form depends on that of a schema that is being looked at, of a value around it."""


class Schemas:
    """The forms of a schema and of those within it.

    Args:
      schema: a dict, a bool, a string of JSON, or a class of pydantic.
      name: the name of the argument, for errors.
      retrieve: gives the schema of another address.
    """

    def __init__(self, schema: Any, name: str = "schema", retrieve: Retrieve | None = None):
        self._document = Document(as_json(schema, name), name, retrieve)
        self._parts: list[Part] = []
        self._number: dict[tuple[int, str, tuple[str, ...]], int] = {}
        self._open: set[Any] = set()  # what is being looked at, for one value
        self._outer: list[set[Any]] = []  # and for the values around it
        self._forms: dict[Goal, Form] = {}
        self._of_part: dict[int, Form] = {}
        self._empty: dict[Goal, bool] = {}
        self.root = self.goal(self._document.root)

    def place(self, goal: Goal) -> str:
        """Where a goal is in the schema, for errors."""
        return self._parts[min(goal)[0]].place if goal and min(goal)[0] >= 0 else "schema"

    def shown(self, goal: Goal) -> Any:
        """The schema of a goal, for errors."""
        return self._parts[min(goal)[0]].schema if goal and min(goal)[0] >= 0 else {}

    def goal(self, part: Part) -> Goal:
        """The goal of the values of a part."""
        schema = part.schema
        if schema is False:
            return NEVER
        if schema is True:
            return ANYTHING
        if not isinstance(schema, Mapping):
            raise fields.error(part.place, "a schema: an object or a boolean", schema)
        restricting = _restricting(schema, part.draft)
        if not restricting:
            _check_spelling(part)
            return ANYTHING
        if restricting == {"$ref"} or ("$ref" in restricting and part.draft <= 7):
            return self._of_reference(part)
        part = self._document.entered(part)
        key = id(schema), part.base, part.scope
        if key not in self._number:
            _check_spelling(part)
            self._number[key] = len(self._parts)
            self._parts.append(part)
        return frozenset({(self._number[key], True)})

    def _of_reference(self, part: Part) -> Goal:
        """The goal of a schema that is nothing but a reference."""
        part = self._document.entered(part)
        key = id(part.schema), part.base, part.scope
        if key in self._open:
            expected = "a schema that does not refer to itself before any value"
            raise fields.error(part.place, expected, part.schema)
        self._open.add(key)
        try:
            return self.goal(self._document.target(part))
        finally:
            self._open.discard(key)

    def form(self, goal: Goal) -> Form:
        """The values of a goal.

        Raises:
          ValueError: in one line, for a keyword that is not followed.
        """
        if goal not in self._forms:
            found = forms.NONE if any(number < 0 for number, _ in goal) else forms.ALL
            for number, holds in sorted(goal):
                if found is forms.NONE:
                    break
                one = self._form_of(number)
                if not holds:
                    one = self._at(number, functools.partial(self._unlike, one))
                found = self._at(number, functools.partial(self._both, found, one))
            self._forms[goal] = found
        return self._forms[goal]

    def is_empty(self, goal: Goal) -> bool:
        """Whether no value follows a goal; False where that is not known."""
        if goal in self._empty or any(goal in one for one in (self._open, *self._outer)):
            return self._empty.get(goal, False)
        if goal in (ANYTHING, NEVER):
            return goal == NEVER
        if any((number, not holds) in goal for number, holds in goal):
            return True
        outer, self._open = self._open, {goal}
        self._outer.append(outer)
        try:
            self._empty[goal] = forms.is_none(self.form(goal))
        except _OpenError:  # It depends on a schema that is being looked at.
            return False
        finally:
            self._open = self._outer.pop()
        return self._empty[goal]

    def alternatives(self, goal: Goal) -> list[Goal]:
        """Goals of which one is followed, where a schema is nothing but ``anyOf`` or ``oneOf``.

        Otherwise, and where a value might follow two schemas of ``oneOf``, it is the goal alone.
        """
        if len(goal) != 1:
            return [goal]
        [(number, holds)] = goal
        part = self._parts[number] if number >= 0 and holds else None
        kinds = _restricting(part.schema, part.draft) if part else set()
        if part is None or not (kinds == {"anyOf"} or kinds == {"oneOf"}):
            return [goal]
        [key] = kinds
        self.form(goal)  # It may be an error.
        within = [part.within(one, f"{key}[{i}]") for i, one in enumerate(part.schema[key])]
        goals = list(dict.fromkeys(map(self.goal, within)))
        if key == "oneOf":
            pairs = itertools.combinations(map(self.goal, within), 2)
            if not all(self.is_empty(one | other) for one, other in pairs):
                return [goal]
        return [inner for one in goals for inner in self.alternatives(one)]

    def _both(self, first: Form, second: Form) -> Form:
        if first is forms.ALL or second is forms.ALL:
            return second if first is forms.ALL else first
        return forms.both_of(first, second, self.is_empty)

    def _unlike(self, form: Form) -> Form:
        return forms.others_than(form, self.is_empty)

    def _at(self, number: int, make: Callable[[], Form]) -> Form:
        """A form; what is not followed is an error that says where it is."""
        try:
            return make()
        except UnfollowedError as error:
            raise unfollowed(self._parts[number].place, str(error)) from None

    def _form_of(self, number: int) -> Form:
        if number not in self._of_part:
            part = self._parts[number]
            if any(number in one for one in self._outer):
                raise _OpenError
            if number in self._open:
                expected = "a schema that does not refer to itself before any value"
                raise fields.error(part.place, expected, part.schema)
            self._open.add(number)
            try:
                self._of_part[number] = self._at(number, lambda: self._read(part))
            finally:
                self._open.discard(number)
        return self._of_part[number]

    def _read(self, part: Part) -> Form:
        """The form of a schema: that of all its keywords at once."""
        given = {k: v for k, v in part.schema.items() if k in _restricting(part.schema, part.draft)}
        _check_shapes(part, given)
        made = [self._typed(part, given)]
        if "enum" in given:
            made.append(self._values(part, "enum", given["enum"]))
        if "const" in given:
            made.append(self._values(part, "const", [given["const"]]))
        made += [self._numbers(part, given), self._strings(part, given)]
        if any(keyword in given for keyword in _ARRAY):
            made.append(Form(arrays=(self._arrays(part, given),)))
        made += self._objects(part, given)
        for keyword, target in (
            ("$ref", self._document.target),
            ("$dynamicRef", self._document.dynamic_target),
            ("$recursiveRef", self._document.dynamic_target),
        ):
            if keyword in given:
                made.append(self.form(self.goal(target(part))))
        for i, inner in enumerate(given.get("allOf", ())):
            made.append(self._inner(part, inner, f"allOf[{i}]"))
        if "anyOf" in given:
            made.append(forms.either_of(self._with_several(self._all(part, given, "anyOf"))))
        if "oneOf" in given:
            made.append(self._one_of(self._all(part, given, "oneOf")))
        if "not" in given:
            made.append(self._unlike(self._inner(part, given["not"], "not")))
        if "if" in given and ("then" in given or "else" in given or self._document.is_evaluated):
            made.append(self._conditional(part, given))
        found = functools.reduce(self._both, made)
        return self._unevaluated(part, given, found)

    def _inner(self, part: Part, schema: Any, name: str) -> Form:
        return self.form(self.goal(part.within(schema, name)))

    def _all(self, part: Part, given: Mapping[str, Any], key: str) -> list[Form]:
        return [self._inner(part, inner, f"{key}[{i}]") for i, inner in enumerate(given[key])]

    def _with_several(self, parts: list[Form]) -> list[Form]:
        """Alternatives, with what follows several of them, which says what has been looked at."""
        found: list[Form] = []
        for one in parts if self._document.is_evaluated else ():
            also = [self._both(other, one) for other in found]
            found += [one, *(both for both in also if both.arrays or both.objects)]
            if len(found) > forms.MOST_ALTERNATIVES:  # Some values are then left out.
                return [dataclasses.replace(one, is_exact=False) for one in parts]
        return found or parts

    def _one_of(self, parts: list[Form]) -> Form:
        """The values of exactly one of some forms."""
        made = []
        for i, one in enumerate(parts):
            for j, other in enumerate(parts):
                if i != j and not forms.is_none(self._both(parts[i], other)):
                    one = self._both(one, self._unlike(other))
            made.append(one)
        return forms.either_of(made)

    def _conditional(self, part: Part, given: Mapping[str, Any]) -> Form:
        condition = self._inner(part, given["if"], "if")
        then = self._inner(part, given.get("then", True), "then")
        other = self._inner(part, given.get("else", True), "else")
        negated = self._both(self._unlike(condition), other)
        return forms.either_of([self._both(condition, then), negated])

    def _typed(self, part: Part, given: Mapping[str, Any]) -> Form:
        if "type" not in given:
            return forms.ALL
        kinds = given["type"]
        kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in kinds:
            if kind not in forms.KINDS:
                raise fields.error(f"{part.place}.type", f"one of {', '.join(forms.KINDS)}", kind)
        return forms.of_kinds(kinds, part.draft > 4)

    def _values(self, part: Part, keyword: str, values: list[Any]) -> Form:
        """The form of a list of values."""
        texts, of_numbers, arrays, objects = [], [], [], []
        for i, value in enumerate(values):
            if isinstance(value, str):
                _check_text(part, keyword, value)
                texts.append(value)
            elif _is_number(value):
                of_numbers.append(value)
            elif isinstance(value, list):
                goals = tuple(self._of_value(part, f"{keyword}[{i}]", v) for v in value)
                arrays.append(Arrays(goals, NEVER, len(goals), len(goals)))
            elif isinstance(value, dict):
                inner = tuple(
                    (name, self._of_value(part, f"{keyword}[{i}].{name}", v))
                    for name, v in value.items()
                )
                objects.append(Objects(inner, tuple(value), ((ANY_TEXT, NEVER, True),)))
        return Form(
            None in values,
            frozenset(value for value in values if isinstance(value, bool)),
            numbers.of_values(tuple(of_numbers)) if of_numbers else numbers.NONE,
            (Strings(values=tuple(dict.fromkeys(texts))),) if texts else (),
            tuple(arrays),
            tuple(objects),
        )

    def _of_value(self, part: Part, name: str, value: Any) -> Goal:
        return self.goal(part.within({"enum": [value]}, name))

    def _numbers(self, part: Part, given: Mapping[str, Any]) -> Form:
        made = []
        for side, make in (("Minimum", numbers.at_least), ("Maximum", numbers.at_most)):
            bound, exclusive = given.get(side.lower()), given.get(f"exclusive{side}")
            if part.draft == 4:
                if bound is not None:
                    made.append(make(bound, exclusive is True))
                continue
            if bound is not None:
                made.append(make(bound, False))
            if exclusive is not None:
                made.append(make(exclusive, True))
        if "multipleOf" in given:
            found = numbers.multiples_of(given["multipleOf"])
            if found is None:
                raise UnfollowedError(f"multipleOf {given['multipleOf']}")
            made.append(found)
        return Form(numbers=functools.reduce(numbers.both_of, made)) if made else forms.ALL

    def _strings(self, part: Part, given: Mapping[str, Any]) -> Form:
        found, low = [], _count(part, given, "minLength", 0)
        if "pattern" in given:
            found.append(patterns.searched(given["pattern"], f"{part.place}.pattern"))
        # What no draft knows says nothing.
        known = [given[k] for k in ("format", "contentEncoding") if given.get(k) in FORMATS]
        of_known = frozenset(FORMATS[one]() for one in known)
        high = _count(part, given, "maxLength", None)
        if not found and not known and not low and high is None:
            return forms.ALL
        strings = Strings(frozenset(found), low or 0, high, formats=of_known)
        return Form(strings=() if strings.is_empty else (strings,), is_exact=not known)

    def _arrays(self, part: Part, given: Mapping[str, Any]) -> Arrays:
        prefix_key, rest_key = "prefixItems", "items"
        if part.draft < 2020 and isinstance(given.get("items"), list):
            prefix_key, rest_key = "items", "additionalItems"
        prefix = tuple(
            self.goal(part.within(inner, f"{prefix_key}[{i}]"))
            for i, inner in enumerate(given.get(prefix_key, ()) if prefix_key in given else ())
        )
        rest = given.get(rest_key)
        contains: tuple[tuple[Goal, int, int | None], ...] = ()
        if "contains" in given:
            low = _count(part, given, "minContains", 1)
            high = _count(part, given, "maxContains", None)
            goal = self.goal(part.within(given["contains"], "contains"))
            contains = ((goal, 1 if low is None else low, high),)
        return Arrays(
            prefix,
            ANYTHING if rest is None else self.goal(part.within(rest, rest_key)),
            _count(part, given, "minItems", 0) or 0,
            _count(part, given, "maxItems", None),
            contains,
            given.get("uniqueItems", False),
            len(prefix) if rest is None else None,
        )

    def _objects(self, part: Part, given: Mapping[str, Any]) -> Iterator[Form]:
        if any(keyword in given for keyword in _OBJECT):
            yield Form(objects=(self._object(part, given),))
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, inner in given.get(keyword, {}).items():
                place = f"{keyword}.{name}"
                if isinstance(inner, list) and _are_names(inner) and keyword[-7:] != "Schemas":
                    then = Form(objects=(Objects(required=(*dict.fromkeys((name, *inner)),)),))
                elif keyword == "dependentRequired":
                    raise fields.error(f"{part.place}.{place}", "a list of names", inner)
                else:
                    then = self._inner(part, inner, place)
                    then = self._both(Form(objects=(Objects(required=(name,)),)), then)
                    then = forms.both_of(then, forms.of_kinds(("object",), True), self.is_empty)
                absent = Form(objects=(Objects(((name, NEVER),)),))
                yield forms.either_of([absent, then])

    def _object(self, part: Part, given: Mapping[str, Any]) -> Objects:
        parts = given.get("properties", {})
        named = {name: self.goal(part.within(s, f"properties.{name}")) for name, s in parts.items()}
        for name in (*parts, *given.get("required", ())):
            _check_text(part, "properties", name)
        others: tuple[tuple[Expression, Goal, bool], ...] = ((ANY_TEXT, ANYTHING, False),)
        looked: list[Expression] = []
        for pattern, schema in given.get("patternProperties", {}).items():
            place = f"patternProperties.{pattern}"
            names = patterns.searched(pattern, f"{part.place}.{place}")
            goal = self.goal(part.within(schema, place))
            for name in named:
                if compiled(names).accepts(map(ord, name)):
                    named[name] |= goal
            split = ((names, goal, True), (Without(ANY_TEXT, names), ANYTHING, False))
            others = forms.crossed(others, split)
            looked.append(names)
        evaluated = union(*looked, *(text([*map(ord, name)]) for name in parts))
        if "additionalProperties" in given:
            rest = self.goal(part.within(given["additionalProperties"], "additionalProperties"))
            others = tuple(one if one[2] else (one[0], rest, rest != ANYTHING) for one in others)
            evaluated = ANY_TEXT
        if "propertyNames" in given:
            others, named = self._with_names(part, given["propertyNames"], others, named)
        return Objects(
            tuple(named.items()),
            tuple(dict.fromkeys(given.get("required", ()))),
            others,
            _count(part, given, "minProperties", 0) or 0,
            _count(part, given, "maxProperties", None),
            evaluated,
        )

    def _with_names(
        self,
        part: Part,
        schema: Any,
        others: tuple[tuple[Expression, Goal, bool], ...],
        named: dict[str, Goal],
    ) -> tuple[tuple[tuple[Expression, Goal, bool], ...], dict[str, Goal]]:
        """What is asked of properties, where names that do not follow a schema may not be."""
        good = union(*(s.language for s in self._inner(part, schema, "propertyNames").strings))
        split = ((good, ANYTHING, False), (Without(ANY_TEXT, good), NEVER, True))
        allowed = compiled(good)
        named = {n: g if allowed.accepts(map(ord, n)) else NEVER for n, g in named.items()}
        return forms.crossed(others, split), named

    def _unevaluated(self, part: Part, given: Mapping[str, Any], form: Form) -> Form:
        """The form, where goals are given to what no other keyword has looked at."""
        counted = part.draft >= 2020 and any(one.contains for one in form.arrays)
        if "unevaluatedItems" in given and counted:
            raise UnfollowedError("unevaluatedItems beside contains")
        arrays, objects = list(form.arrays), list(form.objects)
        if "unevaluatedProperties" in given:
            goal = self.goal(part.within(given["unevaluatedProperties"], "unevaluatedProperties"))
            for i, one in enumerate(objects):
                seen = compiled(one.evaluated)
                rest = Without(ANY_TEXT, one.evaluated)
                split = ((one.evaluated, ANYTHING, False), (rest, goal, goal != ANYTHING))
                objects[i] = Objects(
                    tuple(
                        (n, g if seen.accepts(map(ord, n)) else g | goal) for n, g in one.properties
                    ),
                    one.required,
                    forms.crossed(one.others, split),
                    one.low,
                    one.high,
                    ANY_TEXT,
                    one.some,
                )
        if "unevaluatedItems" in given:
            goal = self.goal(part.within(given["unevaluatedItems"], "unevaluatedItems"))
            for i, array in enumerate(arrays):
                if array.evaluated is None:
                    continue
                size = max(array.evaluated, len(array.prefix))
                prefix = [array.goal(j) for j in range(size)]
                prefix[array.evaluated :] = [one | goal for one in prefix[array.evaluated :]]
                items = array.items | goal
                arrays[i] = Arrays(
                    *(tuple(prefix), items, array.low, array.high, array.contains, array.unique),
                    evaluated=None,
                )
        if "unevaluatedItems" not in given and "unevaluatedProperties" not in given:
            return form
        return Form(
            *(form.null, form.booleans, form.numbers, form.strings),
            tuple(one for one in arrays if not forms.none_of(one, self.is_empty)),
            tuple(one for one in objects if not forms.none_of(one, self.is_empty)),
            form.is_exact,
        )


def _check_shapes(part: Part, given: Mapping[str, Any]) -> None:
    for keyword, value in given.items():
        expected, is_good = _SHAPES.get(keyword, ("", lambda x: True))
        if part.draft == 4 and keyword.startswith("exclusive"):
            expected, is_good = "a bool", lambda x: isinstance(x, bool)
        if not is_good(value):
            raise fields.error(f"{part.place}.{keyword}", expected, value)
    if part.draft >= 2020 and isinstance(given.get("items"), list):
        expected = "a schema, as the newest draft says, or $schema of an older one"
        raise fields.error(f"{part.place}.items", expected, given["items"])
    if "type" in given and isinstance(given["type"], list) and not given["type"]:
        raise fields.error(f"{part.place}.type", "a type or more", given["type"])


def _restricting(schema: Mapping[str, Any], draft: int) -> set[str]:
    """The keywords of a schema that restrict values by its draft."""
    return {k for k in schema if k in _KEYWORDS and _KEYWORDS[k][0] <= draft <= _KEYWORDS[k][1]}


def _check_spelling(part: Part) -> None:
    """Checks that no keyword that drafts do not know is nearly one that restricts values."""
    for keyword in part.schema:
        if keyword not in _KEYWORDS and keyword not in _ANNOTATIONS and keyword[:1].isalpha():
            near = next((known for known in _KEYWORDS if _is_near(keyword, known)), None)
            if near is not None:
                raise fields.error(part.place, f"{near} to be spelt so", keyword)


def _is_near(word: str, known: str) -> bool:
    """Whether a word is another one but for case and one letter."""
    word, known = word.lower(), known.lower()
    if len(known) < 5 or abs(len(word) - len(known)) > 1:
        return word == known
    begin = 0
    while begin < min(len(word), len(known)) and word[begin] == known[begin]:
        begin += 1
    rest, other = word[begin:], known[begin:]
    swapped = rest[:2] == other[:2][::-1] and rest[2:] == other[2:]
    return swapped or rest[1:] == other or rest == other[1:] or rest[1:] == other[1:]


def _check_text(part: Part, keyword: str, value: str) -> None:
    if any(0xD800 <= ord(character) < 0xE000 for character in value):
        raise fields.error(f"{part.place}.{keyword}", "texts without single surrogates", value)


def _count(part: Part, given: Mapping[str, Any], keyword: str, default: int | None) -> int | None:
    """The number of a keyword, which may be written as 2.0."""
    value = given.get(keyword, default)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if keyword in given:
        return fields.as_count(f"{part.place}.{keyword}", value, 0)
    return default


def unfollowed(place: str, keyword: str) -> ValueError:
    """The error of a keyword that is not followed."""
    followed = "keywords that constraints follow (docs/constraints.md lists them)"
    return ValueError(f"{place}: expected {followed}, got {keyword}")
