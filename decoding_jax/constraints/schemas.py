"""Regular expressions of JSON Schemas, which ``outlines_core`` makes.

Every text that matches the expression is valid by the schema; some valid texts do not match, such
as those with the properties in another order. ``outlines_core`` leaves out what it does not follow,
and takes some keywords for others. A schema is therefore put into the few forms first that it
follows exactly, and a keyword that has none is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from decoding_jax import fields
from decoding_jax.constraints import byte_automata, definitions

Schema = Any
"""A dict, a string of JSON, or a class of pydantic."""

_MOST_NUMBERS = 1000  # that a range of integers is written out as
_MARK = "\ue000"  # begins the names of expressions that the library does not have
_NATURAL, _POSITIVE = "(0|[1-9][0-9]*)", "[1-9][0-9]*"
_FRACTION = r"(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_OWN = {
    "integer": f"-?{_NATURAL}",
    "integer of 0 or more": _NATURAL,
    "integer of 1 or more": _POSITIVE,
    "number": f"-?{_NATURAL}{_FRACTION}",
    "number of 0 or more": _NATURAL + _FRACTION,
}
_DAY = "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_DATE = f"[1-9][0-9]{{3}}-{_DAY}"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@({_LABEL}\.)+[a-z]{{2,63}}",
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# The keywords that say something about values of each type.
_KEYWORDS = {
    "null": (),
    "boolean": (),
    "integer": (*_BOUNDS, "multipleOf"),
    "number": (*_BOUNDS, "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": (
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains", "unevaluatedItems"),
    ),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
        *("dependencies", "unevaluatedProperties"),
    ),
}
_COMBINED = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
_REFUSED = ("not", "if", "then", "else", "$dynamicRef", "$recursiveRef")
_OF_TYPES = {keyword for keywords in _KEYWORDS.values() for keyword in keywords}
# What the values of keywords have to be.
_SHAPES: dict[tuple[str, ...], tuple[str, Callable[[Any], bool]]] = {
    ("$ref", "format"): ("a string", lambda x: isinstance(x, str)),
    ("enum", "anyOf", "oneOf", "allOf", "prefixItems"): ("a list", lambda x: isinstance(x, list)),
    ("properties",): ("schemas by their names", lambda x: isinstance(x, dict)),
    ("required",): ("a list of names", lambda x: isinstance(x, list) and _are_names(x)),
    ("type",): ("a type, or a list of types", lambda x: x and _are_names(x)),
    _BOUNDS: ("a number", lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)),
}
# Classes of characters that JSON Schema takes from ECMA-262, where they are of ASCII.
_ASCII = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}
# Keywords with a value that asks for nothing.
_IDLE = (("uniqueItems", False), ("minProperties", 0), ("unevaluatedProperties", False))


def patterns_of(
    schema: Schema, name: str = "schema", *, nested: bool = False
) -> tuple[list[str], list[str]]:
    """The regular expressions of the texts that a schema allows, or of some of them.

    Args:
      schema: a dict, a string of JSON, or a class of pydantic.
      name: the name of the argument, for errors.
      nested: whether values of any type are followed, which may be within each other.

    Returns:
      An expression for the schema and one for each schema that is referred to, with references as
      ``definitions.of_patterns`` takes them; and where each of them is, for errors.

    Raises:
      ValueError: in one line, for a schema with a keyword that is not followed, and for anything
        that is no schema.

    Example:
      >>> patterns_of({"type": "integer", "minimum": 0})
      (['(0|[1-9][0-9]*)'], ['schema'])
    """
    root = as_json(schema, name)
    if _MARK in json.dumps(root, ensure_ascii=False):
        raise fields.error(name, "one without the private character U+E000", root)
    made = _Rewriting(root, name, nested).definitions()
    return [_pattern(*one) for one in made], [place for _, place in made]


def _pattern(rewritten: dict[str, Any], place: str) -> str:
    """The expression of a rewritten schema."""
    made, core = json.dumps(rewritten, ensure_ascii=False), byte_automata.outlines_core()
    try:
        pattern = core.json_schema.build_regex_from_schema(made)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{place}: expected one that outlines_core takes ({reason})") from None
    for label, own in _OWN.items():
        pattern = pattern.replace(f'"{_MARK}{label}"', own)
    return re.sub(
        f'"{_MARK}definition ([0-9]+)"', lambda m: definitions.reference(int(m[1])), pattern
    )


def as_json(schema: Schema, name: str) -> Any:
    """The schema as a dict or a bool.

    Raises:
      ValueError: in one line, for anything that is no schema as JSON.
    """
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}: expected a schema as JSON, got {error}") from None
    if not isinstance(schema, (dict, bool)):
        raise fields.error(name, "a JSON Schema: a dict, a string or a class of pydantic", schema)
    try:
        return json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a schema as JSON, got {error}") from None


class _Rewriting:
    """Rewrites the parts of a schema in the forms that ``outlines_core`` follows.

    Args:
      root: the whole schema, which references are about.
      name: its name, for errors.
      nested: whether values of any type are followed.
    """

    def __init__(self, root: Any, name: str, nested: bool):
        self._root, self._name, self._nested = root, name, nested
        self._numbers: dict[str, int] = {}  # of each reference
        self._found: list[tuple[Any, str]] = []  # the schema and its place, by number
        self._exclusive: list[tuple[Any, str]] = []  # those with oneOf

    def definitions(self) -> list[tuple[dict[str, Any], str]]:
        """The rewritten schema, those that are referred to, and where each of them is."""
        self._reference("#", self._root, self._name)
        made = [(self.of(schema, place), place) for schema, place in self._found]  # which grows
        for schema, place in self._exclusive:
            self._check_exclusive(schema, place)
        return made

    def of(self, schema: Any, place: str) -> dict[str, Any]:
        """The rewritten schema; ``place`` is where it is, for errors."""
        schema = {} if schema is True else schema
        if not isinstance(schema, Mapping):
            raise fields.error(place, "a schema that some value follows", schema)
        for keywords, (expected, is_good) in _SHAPES.items():
            for keyword in keywords:
                if keyword in schema and not is_good(schema[keyword]):
                    raise fields.error(f"{place}.{keyword}", expected, schema[keyword])
        combined = [keyword for keyword in _COMBINED if keyword in schema]
        refused = [keyword for keyword in _REFUSED if keyword in schema]
        if refused or len(combined) > 1:
            raise _unfollowed(place, (refused or combined)[-1])
        if combined:
            idle = ("type",) if combined[0] in ("enum", "const") else ()
            for keyword in schema:
                if (keyword == "type" or keyword in _OF_TYPES) and keyword not in idle:
                    raise _unfollowed(place, f"{keyword} beside {combined[0]}")
            return getattr(self, f"_{combined[0].removeprefix('$').lower()}")(schema, place)
        kinds = _kinds(schema, place)
        if not kinds and self._nested:
            return self._reference("any", {"type": list(_KEYWORDS)}, f"{self._name} (any value)")
        if not kinds:
            expected = "a schema with a type, or max_depth for values of any type"
            raise fields.error(place, expected, dict(schema))
        made = [self._of_type(kind, schema, place) for kind in kinds]
        return made[0] if len(made) == 1 else {"anyOf": made}

    def _of_type(self, kind: str, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        given = {k: schema[k] for k in _KEYWORDS[kind] if k in schema}
        made, followed = getattr(self, f"_{kind}")(given, place)
        for keyword, value in given.items():
            if keyword not in followed and (keyword, value) not in _IDLE:
                raise _unfollowed(place, keyword)
        return made

    def _ref(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        ref, under = schema["$ref"], f"{self._name}{schema['$ref'][1:].replace('/', '.')}"
        return self._reference(ref, self._target(ref, place), under)

    def _reference(self, ref: str, target: Any, place: str) -> dict[str, Any]:
        """The name of the expression of a schema that is compiled once."""
        if ref not in self._numbers:
            self._numbers[ref] = len(self._found)
            self._found.append((target, place))
        return {"const": f"{_MARK}definition {self._numbers[ref]}"}

    def _target(self, ref: str, place: str) -> Any:
        target, (first, *keys) = self._root, ref.split("/")
        known = first == "#"
        for key in (key.replace("~1", "/").replace("~0", "~") for key in keys):
            known = known and isinstance(target, Mapping) and key in target
            target = target[key] if known else None
        if not known:
            raise fields.error(f"{place}.$ref", "a place in the schema, such as #/$defs/A", ref)
        return target

    def _enum(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        kinds = _kinds({"type": schema.get("type", list(_KEYWORDS))}, place)
        values = [value for value in schema["enum"] if _kinds_of_value(value) & {*kinds}]
        if not values:
            raise fields.error(f"{place}.enum", "one value of the type or more", schema["enum"])
        return {"enum": values}

    def _const(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        return self._enum({**schema, "enum": [schema["const"]]}, place)

    def _anyof(self, schema: Mapping[str, Any], place: str, key: str = "anyOf") -> dict[str, Any]:
        made = [self.of(part, f"{place}.{key}[{i}]") for i, part in enumerate(schema[key])]
        if not made:
            raise fields.error(f"{place}.{key}", "one schema or more", schema[key])
        return made[0] if len(made) == 1 else {"anyOf": made}

    def _allof(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        if len(schema["allOf"]) != 1:
            raise _unfollowed(place, "an allOf of several schemas")
        return self._anyof(schema, place, "allOf")

    def _oneof(self, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
        self._exclusive.append((schema, place))
        return self._anyof(schema, place, "oneOf")

    def _check_exclusive(self, schema: Mapping[str, Any], place: str) -> None:
        """Checks that no value follows two schemas of a ``oneOf``, once all schemas are known."""
        parts = [self._marks(part, place) for part in schema["oneOf"]]
        for i, (kinds, marks) in enumerate(parts):
            for others, other_marks in parts[:i]:
                both = marks.keys() & other_marks.keys()
                marked = any(marks[k].isdisjoint(other_marks[k]) for k in both)
                if kinds & others - ({"object"} if marked else set()):
                    raise _unfollowed(place, "a oneOf of schemas that one value may follow")

    def _marks(self, schema: Any, place: str) -> tuple[set[str], dict[str, set[str]]]:
        """The types of a schema's values, and the constants of properties that they must have."""
        followed: set[str] = set()
        while isinstance(schema, Mapping) and schema.get("$ref", place) not in {place, *followed}:
            followed.add(schema["$ref"])
            schema = self._target(schema["$ref"], place)
        if not isinstance(schema, Mapping) or "type" not in schema:
            return set(_KEYWORDS), {}
        marks = {}
        for name in schema.get("required", ()):
            part = schema.get("properties", {}).get(name)
            if isinstance(part, Mapping) and ("const" in part or "enum" in part):
                values = part.get("enum", [part.get("const")])
                marks[name] = {_canonical(value) for value in values}
        kinds = {*_kinds(schema, place)}
        return kinds | ({"number"} if "integer" in kinds else set()), marks

    # The types: each returns the rewritten schema, and the keywords that it has followed.

    def _null(self, given: dict[str, Any], place: str) -> tuple[dict[str, Any], Any]:
        return {"type": "null"}, ()

    def _boolean(self, given: dict[str, Any], place: str) -> tuple[dict[str, Any], Any]:
        return {"type": "boolean"}, ()

    def _integer(self, given: dict[str, Any], place: str) -> tuple[dict[str, Any], Any]:
        low = [math.ceil(given["minimum"])] if "minimum" in given else []
        low += [math.floor(given["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in given else []
        high = [math.floor(given["maximum"])] if "maximum" in given else []
        high += [math.ceil(given["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in given else []
        if low and high and 0 <= min(high) - max(low) < _MOST_NUMBERS:
            return {"enum": list(range(max(low), min(high) + 1))}, _BOUNDS
        if high or (low and max(low) not in (0, 1)):
            allowed = f"a minimum of 0 or 1, and ranges of at most {_MOST_NUMBERS} integers"
            raise _unfollowed(place, f"bounds other than {allowed}")
        label = f"integer of {max(low)} or more" if low else "integer"
        return {"const": _MARK + label}, _BOUNDS

    def _number(self, given: dict[str, Any], place: str) -> tuple[dict[str, Any], Any]:
        label = "number of 0 or more" if given.get("minimum") == 0 else "number"
        return {"const": _MARK + label}, ("minimum",) if given.get("minimum") == 0 else ()

    def _string(self, given: dict[str, Any], place: str) -> tuple[dict[str, Any], Any]:
        if "pattern" in given:
            return _matching(_inner(given["pattern"], f"{place}.pattern")), ("pattern",)
        if "format" in given:
            if given["format"] not in _FORMATS:
                expected = f"one of {', '.join(_FORMATS)}"
                raise fields.error(f"{place}.format", expected, given["format"])
            return _matching(_FORMATS[given["format"]]), ("format",)
        return {"type": "string", **_counts(given, place)}, given

    def _array(self, given: dict[str, Any], place: str) -> tuple[dict[str, Any], Any]:
        followed, counts = ("items", "minItems", "maxItems"), _counts(given, place)
        if "prefixItems" in given:
            parts = given["prefixItems"]
            if not counts.get("minItems", 0) <= len(parts) <= counts.get("maxItems", math.inf):
                return {}, ()
            made = [self.of(part, f"{place}.prefixItems[{i}]") for i, part in enumerate(parts)]
            return {"type": "array", "prefixItems": made}, (*followed, "prefixItems")
        items = self.of(given.get("items", True), f"{place}.items")
        return {"type": "array", "items": items, **counts}, followed

    def _object(self, given: dict[str, Any], place: str) -> tuple[dict[str, Any], Any]:
        followed = ("properties", "required", "additionalProperties")
        parts, more = given.get("properties", {}), given.get("additionalProperties", True)
        for name in given.get("required", ()):
            if name not in parts:
                raise fields.error(f"{place}.required", "names of properties", name)
        made: dict[str, Any] = {"type": "object"}
        if parts or more is False:
            in_json = {name: json.dumps(name, ensure_ascii=False)[1:-1] for name in parts}
            made["properties"] = {
                in_json[name]: self.of(part, f"{place}.properties.{name}")
                for name, part in parts.items()
            }
            made["required"] = [in_json[name] for name in given.get("required", ())]
        else:
            made["additionalProperties"] = self.of(more, f"{place}.additionalProperties")
        return made, followed


def _kinds(schema: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """The types that a schema names, or else those that its keywords are about."""
    about = [kind for kind, keywords in _KEYWORDS.items() if any(k in schema for k in keywords)]
    kinds = schema.get("type", about[-1:])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in kinds:
        if kind not in _KEYWORDS:
            raise fields.error(f"{place}.type", f"one of {', '.join(_KEYWORDS)}", kind)
    return tuple(dict.fromkeys(kinds))


def _canonical(value: Any) -> str:
    """A text that equal values have in common, such as 1 and 1.0.

    Example:
      >>> _canonical({"a": 1.0}) == _canonical({"a": 1}) != _canonical({"a": True})
      True
    """

    def number(text: str) -> float:
        return int(float(text)) if float(text).is_integer() else float(text)

    return json.dumps(json.loads(json.dumps(value), parse_float=number), sort_keys=True)


def _are_names(value: Any) -> bool:
    """Whether a value is a string, or consists of strings."""
    return isinstance(value, (str, list)) and all(isinstance(part, str) for part in value)


def _kinds_of_value(value: Any) -> set[str]:
    """The types of a value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"number", "integer"} if value == int(value) else {"number"}
    of_types = ((str, "string"), (list, "array"), (dict, "object"))
    return {next((kind for made, kind in of_types if isinstance(value, made)), "null")}


def _counts(given: Mapping[str, Any], place: str) -> dict[str, int]:
    """The numbers of characters or items among keywords."""
    names = ("minLength", "maxLength", "minItems", "maxItems")
    return {k: fields.as_count(f"{place}.{k}", given[k], 0) for k in names if k in given}


def _matching(pattern: str) -> dict[str, Any]:
    """The schema of strings that match an expression as a whole."""
    return {"type": "string", "pattern": f"(?:{pattern})"}


def _inner(pattern: Any, place: str) -> str:
    """The expression of a ``pattern``, without its anchors and with classes of ASCII.

    Raises:
      ValueError: for one of strings with characters that JSON escapes.
    """
    if isinstance(pattern, str):
        pattern = re.sub(r"\\.", lambda escape: _ASCII.get(escape[0], escape[0]), pattern)
    transitions, _ = byte_automata.of_pattern(pattern, place)
    if (transitions[:, [*range(32), ord('"'), ord("\\")]] >= 0).any():
        expected = r'one without quotes, backslashes and control characters, as [^"\\\x00-\x1f]*'
        raise ValueError(f"{place}: expected {expected}, got {fields.describe(pattern)}")
    return byte_automata.without_anchors(pattern)


def _unfollowed(place: str, keyword: str) -> ValueError:
    followed = "keywords that constraints follow (docs/constraints.md lists them)"
    return ValueError(f"{place}: expected {followed}, got {keyword}")
