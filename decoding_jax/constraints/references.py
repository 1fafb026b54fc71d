"""The parts of a JSON Schema document: where each is, what it refers to, and by which draft.

A part is found by its identifier, its anchor or the way to it (RFC 6901), as the draft that
``$schema`` names says.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from decoding_jax import fields

Retrieve = Callable[[str], Any]
"""Gives the schema of an address, or None."""

NEWEST = 2020
_DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
    "http://json-schema.org/schema": NEWEST,
    "https://json-schema.org/schema": NEWEST,
}
_OF_ONE = {
    *(
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
    ),
    *("not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
}
_OF_LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_OF_NAMES = {
    *("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"),
    "properties",
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A schema within a document.

    Attributes:
      schema: it, as JSON.
      base: the address that its references are relative to.
      place: where it is, for errors.
      draft: the number or the year of its draft.
      scope: the addresses with dynamic anchors that have been met on the way to it, in this order.
    """

    schema: Any
    base: str
    place: str
    draft: int
    scope: tuple[str, ...] = ()

    def within(self, schema: Any, name: str) -> Part:
        """A schema within this one."""
        place = f"{self.place}{name}" if name.startswith("[") else f"{self.place}.{name}"
        draft = _draft_of(schema, place, self.draft)
        return Part(schema, _base_of(schema, self.base, draft), place, draft, self.scope)


class Document:
    """A schema with all that it may refer to.

    Attributes:
      root: the schema as a whole.
      is_evaluated: whether a part of it may speak of unevaluated values.
    """

    def __init__(self, schema: Any, name: str, retrieve: Retrieve | None = None):
        draft = _draft_of(schema, name)
        self._name, self._retrieve, self.is_evaluated = name, retrieve, retrieve is not None
        self._known: dict[str, Part] = {}  # by address
        self._dynamic: dict[str, list[Part]] = {}  # by the name of an anchor
        self.root = Part(schema, _base_of(schema, "", draft), name, draft)
        self._add(self.root)

    def _add(self, part: Part, resource: Part | None = None) -> None:
        """Notes the addresses of a part and of those within it."""
        schema = part.schema
        if resource is None or part.base != resource.base:
            resource = part
            self._known.setdefault(part.base, part)
        if isinstance(schema, Mapping) and not _hides_siblings(schema, part.draft):
            for keyword in ("$anchor", "$dynamicAnchor"):
                if part.draft >= 2019 and isinstance(schema.get(keyword), str):
                    self._known.setdefault(f"{part.base}#{schema[keyword]}", part)
            if part.draft >= 2020 and isinstance(schema.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(part)
            if part.draft >= 2019 and schema.get("$recursiveAnchor") is True:
                self._dynamic.setdefault("", []).append(part)
            key = "id" if part.draft == 4 else "$id"
            if part.draft <= 7 and isinstance(schema.get(key), str) and "#" in schema[key][:1]:
                self._known.setdefault(f"{part.base}{schema[key]}", part)
        if isinstance(schema, Mapping):
            self.is_evaluated |= any(keyword[:11] == "unevaluated" for keyword in schema)
            for name, inner in _parts_of(schema):
                self._add(part.within(inner, name), resource)

    def entered(self, part: Part) -> Part:
        """The part, whose scope has its own address."""
        some = (one for anchors in self._dynamic.values() for one in anchors)
        if part.base in part.scope or all(one.base != part.base for one in some):
            return part
        return dataclasses.replace(part, scope=(*part.scope, part.base))

    def target(self, part: Part) -> Part:
        """The part that ``$ref`` of a part refers to.

        Raises:
          ValueError: where there is none.
        """
        found = self._found(part.schema["$ref"], part, "$ref")
        return dataclasses.replace(found, scope=part.scope)

    def dynamic_target(self, part: Part) -> Part:
        """The part that ``$dynamicRef`` or ``$recursiveRef`` of a part refers to.

        An anchor of the first address on the way to the part comes before others of its name.

        Raises:
          ValueError: where there is none.
        """
        keyword = "$dynamicRef" if part.draft >= 2020 else "$recursiveRef"
        reference = part.schema[keyword]
        found = self._found(reference, part, keyword)
        name = urldefrag(reference).fragment if part.draft >= 2020 else ""
        own = found.schema if isinstance(found.schema, Mapping) else {}
        is_dynamic = (
            own.get("$dynamicAnchor") == name
            if part.draft >= 2020
            else own.get("$recursiveAnchor") is True
        )
        anchors = {one.base: one for one in self._dynamic.get(name, ()) if is_dynamic}
        found = next((anchors[base] for base in part.scope if base in anchors), found)
        return dataclasses.replace(found, scope=part.scope)

    def _found(self, reference: Any, part: Part, keyword: str) -> Part:
        place = f"{part.place}.{keyword}"
        if not isinstance(reference, str):
            raise fields.error(place, "a string", reference)
        address, fragment = urldefrag(urljoin(part.base, reference))
        if reference.startswith("#"):
            address = part.base
        fragment = unquote(fragment)
        resource = self._known.get(address) or self._retrieved(address, place)
        if resource is None:
            expected = "a part of the schema, such as #/$defs/A, or one that retrieve gives"
            raise fields.error(place, expected, reference)
        if not fragment:
            return resource
        if not fragment.startswith("/"):
            if (found := self._known.get(f"{address}#{fragment}")) is None:
                raise fields.error(place, "an anchor of the schema", reference)
            return found
        found = resource
        for key in (k.replace("~1", "/").replace("~0", "~") for k in fragment[1:].split("/")):
            inner = found.schema
            if isinstance(inner, list) and re.fullmatch("0|[1-9][0-9]*", key):
                index = int(key)
                inner = {key: inner[index]} if index < len(inner) else {}
            if not isinstance(inner, Mapping) or key not in inner:
                raise fields.error(place, "a place in the schema, such as #/$defs/A", reference)
            found = found.within(inner[key], key)
        if not isinstance(found.schema, Mapping | bool):
            raise fields.error(place, "a place of a schema", reference)
        return found

    def _retrieved(self, address: str, place: str) -> Part | None:
        """The document of another address."""
        schema = self._retrieve(address) if self._retrieve and address else None
        if schema is None:
            return None
        draft = _draft_of(schema, place, self.root.draft)
        part = Part(schema, _base_of(schema, address, draft), address, draft)
        self._add(part)
        return self._known.setdefault(address, part)


def _draft_of(schema: Any, name: str, default: int = NEWEST) -> int:
    if not isinstance(schema, Mapping) or not _declares(schema, "$schema"):
        return default
    found = _DRAFTS.get(schema["$schema"].rstrip("#"))
    if found is None:
        expected = f"one of {', '.join(dict.fromkeys(map(str, _DRAFTS)))}"
        raise fields.error(f"{name}.$schema", expected, schema["$schema"])
    return found


def _declares(schema: Mapping[str, Any], keyword: str) -> bool:
    return isinstance(schema.get(keyword), str)


def _hides_siblings(schema: Mapping[str, Any], draft: int) -> bool:
    """Whether a reference is all that a schema says, as in old drafts."""
    return draft <= 7 and isinstance(schema.get("$ref"), str)


def _base_of(schema: Any, base: str, draft: int) -> str:
    """The address that the references of a schema are relative to."""
    key = "id" if draft == 4 else "$id"
    if not isinstance(schema, Mapping) or not _declares(schema, key):
        return base
    if _hides_siblings(schema, draft) or schema[key].startswith("#"):
        return base
    return urldefrag(urljoin(base, schema[key])).url


def _parts_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas within a schema, with the way to each."""
    for keyword, value in schema.items():
        if keyword in _OF_ONE and isinstance(value, Mapping):
            yield keyword, value
        elif keyword in _OF_LISTS and isinstance(value, list):
            yield from ((f"{keyword}[{i}]", one) for i, one in enumerate(value))
        elif keyword in _OF_NAMES and isinstance(value, Mapping):
            yield from ((f"{keyword}.{name}", one) for name, one in value.items())


def as_json(schema: Any, name: str) -> Any:
    """A schema as a dict or a bool.

    Args:
      schema: a dict, a bool, a string of JSON or a class of pydantic.
      name: its name, for errors.

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
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected a schema as JSON, got {error}") from None
