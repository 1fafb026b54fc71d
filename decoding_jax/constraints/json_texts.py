"""The texts of JSON whose values follow a schema, as automata over bytes.

Properties are written in the order of the schema, and those that it does not name come last. What a
schema refers to itself by is a definition of its own, for which a symbol stands in other texts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

from decoding_jax import fields
from decoding_jax.constraints import automata, forms, numbers
from decoding_jax.constraints.automata import Automaton, TooManyStatesError
from decoding_jax.constraints.counted import Counted, can_grow, shortest, unrepeated
from decoding_jax.constraints.definitions import reference
from decoding_jax.constraints.encodings import in_json
from decoding_jax.constraints.expressions import (
    EMPTY,
    NOTHING,
    Compiled,
    Expression,
    Net,
    Without,
    both,
    compiled,
    optional,
    sequence,
    text,
    union,
)
from decoding_jax.constraints.forms import (
    ALL,
    ANYTHING,
    Arrays,
    Form,
    Goal,
    Objects,
    Strings,
    UnfollowedError,
)
from decoding_jax.constraints.references import Retrieve
from decoding_jax.constraints.schemas import Schemas, unfollowed

_FEW = 8  # characters of a string, which are not counted
_MOST_SPELLED = 64  # characters of all strings with a length, up to which none are counted
_MOST_SUBSETS = 8  # items of a set that may be in any order
SPACES = ("any", "none", "one", "indent")
"""How much white space there is: at most one space between parts, none, as ``json.dumps`` writes,
or as it does with ``indent=2``."""


@dataclasses.dataclass(frozen=True)
class Style:
    """How values are written.

    Attributes:
      spaces: one of ``SPACES``.
      open_objects: whether objects may have properties of which the schema says nothing, and
        values any type where it gives none.
      any_order: properties of objects of at most so many named ones may be in any order.
      any_escapes: whether characters may be escaped that need not be.
    """

    spaces: str = "any"
    open_objects: bool = False
    any_order: int = 0
    any_escapes: bool = False

    def mark(self, character: str) -> Expression:
        """A character of the structure, with the space around it."""
        mark, space = text(character.encode()), text(b" ")
        if self.spaces == "any":
            before = EMPTY if character in "{[" else optional(space)
            after = EMPTY if character in "}]" else optional(space)
            return sequence(before, mark, after)
        spaced = {"one": ",:", "indent": ":"}.get(self.spaces, "")
        return sequence(mark, space) if character in spaced else mark

    def line(self, depth: int) -> Expression:
        """What is before a part within so many others: a line of its own, or nothing."""
        return text(b"\n" + b"  " * depth) if self.spaces == "indent" else EMPTY


@automata.without_collections()
def automata_of(
    schema: Any, name: str, max_depth: int | None, style: Style, retrieve: Retrieve | None = None
) -> tuple[list[Automaton | Counted], list[str]]:
    """The automata of the texts that a schema allows, or of some of them.

    Args:
      schema: a dict, a bool, a string of JSON, or a class of pydantic.
      name: the name of the argument, for errors.
      max_depth: how many values of one schema may be within each other; None for schemas that do
        not refer to themselves. With it, values may be of any type where a schema says nothing.
      style: how values are written.
      retrieve: gives the schema of another address.

    Returns:
      One automaton for the schema and one for each schema that refers to itself, with symbols as
      ``definitions.network_of`` takes them, and strings whose characters are counted; and where
      each of them is, for errors.

    Raises:
      ValueError: in one line, for a schema with a keyword that is not followed, and for anything
        that is no schema.

    Example:
      >>> [made], _ = automata_of({"type": "integer"}, "schema", None, Style())
      >>> made.accepts(b"-12"), made.accepts(b"012")
      (True, False)
    """
    schemas = Schemas(schema, name, retrieve)
    writer = _Writer(schemas, name, max_depth, style)
    nested = writer.find_nested(schemas.root)
    goals = [schemas.root, *(goal for goal in nested if goal != schemas.root)]
    writer.number = {goal: i for i, goal in enumerate(goals) if goal in nested}
    writer.begin_counts(len(goals))
    made = [
        _any_value(style, i) if goal == ANYTHING else compiled(writer.own(goal))
        for i, goal in enumerate(goals)
    ]
    places = [name, *map(schemas.place, goals[1:]), *[name] * len(writer.counted)]
    return [*made, *writer.counted], places


class _Writer:
    """Makes the expressions of goals.

    Attributes:
      number: those that are definitions of their own.
      counted: the strings that are, with their numbers.
    """

    def __init__(self, schemas: Schemas, name: str, max_depth: int | None, style: Style):
        self.schemas, self.number = schemas, dict[Goal, int]()
        self.counted: dict[Counted, int] = {}
        self._name, self._max_depth, self._style = name, max_depth, style
        self._made: dict[tuple[Goal, bool, int], Expression] = {}
        self._uses = Counter[Goal]()
        self._lengths: dict[Goal, int] = {}  # of the strings that each goal has
        self._first_counted = 0
        self._counts = False
        self._depth = 0  # of the values that are being written, where lines tell it

    def find_nested(self, root: Goal) -> list[Goal]:
        """The goals that are met within themselves, found from a root."""
        nested: dict[Goal, None] = {}
        open_ = [(root, self._inner(root))]
        path, done = {root}, set()
        while open_:
            goal, inner = open_[-1]
            following = next(inner, None)
            if following is None:
                open_.pop()
                path.discard(goal)
                done.add(goal)
                continue
            self._uses[following] += 1
            if following == ANYTHING and self._max_depth is None:
                expected = "a schema with a type, or max_depth for values of any type"
                raise fields.error(self.schemas.place(goal), expected, self.schemas.shown(goal))
            if following in path:
                nested[following] = None
                if self._style.spaces == "indent":
                    expected = "any, none or one for values that are nested without a bound"
                    raise fields.error("spaces", expected, "indent")
                if self._max_depth is None:
                    expected = "max_depth, since it refers to itself"
                    place = self._name if following == root else self.schemas.place(following)
                    raise ValueError(f"{place}: expected {expected}, got none")
            elif following not in done:
                path.add(following)
                open_.append((following, self._inner(following)))
        return list(nested)

    def begin_counts(self, first: int) -> None:
        """Counts characters from now on, if there may be many, by definitions from ``first`` on."""
        self._first_counted = first
        length = sum(n * max(self._uses[goal], 1) for goal, n in self._lengths.items())
        self._counts = length > _MOST_SPELLED

    def _form(self, goal: Goal) -> Form:
        """The values of a goal that are written.

        Where a schema gives no type, they are those of the types that it says something about,
        unless all that it allows may be written.
        """
        form = self._with_named(goal, self.schemas.form(goal))
        kinds: dict[str, Any] = {
            "numbers": (numbers.NONE, numbers.ALL),
            "strings": ((), ALL.strings),
            "arrays": ((), ALL.arrays),
            "objects": ((), ALL.objects),
        }
        of_any_type = form.null and len(form.booleans) == 2
        of_any_type &= all(getattr(form, kind) != none for kind, (none, _) in kinds.items())
        idle = {kind: none for kind, (none, whole) in kinds.items() if getattr(form, kind) == whole}
        is_open = self._style.open_objects and self._max_depth is not None
        if of_any_type and len(idle) < len(kinds) and not is_open:
            return dataclasses.replace(form, null=False, booleans=frozenset(), **idle)
        return form

    def _with_named(self, goal: Goal, form: Form) -> Form:
        """The form, where a property that an object has to have is one that is named."""
        if not any(one.some for one in form.objects):
            return form
        found = dict.fromkeys(one for many in form.objects for one in forms.with_named(many))
        left = tuple(one for one in found if not forms.none_of(one, self.schemas.is_empty))
        if not left:
            keywords = "patternProperties, propertyNames or additionalProperties"
            raise unfollowed(self.schemas.place(goal), f"not of {keywords}, of no known names")
        return dataclasses.replace(form, objects=left)

    def _inner(self, goal: Goal) -> Iterator[Goal]:
        """The goals of items and properties, without those that nothing follows."""
        parts = self.schemas.alternatives(goal)
        if parts != [goal]:
            return (one for one in parts if not self.schemas.is_empty(one))
        form = self._form(goal)
        self._lengths[goal] = sum(_with_length(one).high or 0 for one in form.strings)
        found: dict[Goal, None] = {}
        for array in form.arrays:
            most = self._most_items(array)
            items = dict.fromkeys(array.prefix[:most])
            if most is None or most > len(array.prefix):
                items[array.items] = None
            found |= {g: None for one in items for g, _ in self._choices(one, array)}
        for one in form.objects:
            found |= {g: None for _, g in self._named(one)}
            found |= {g: None for _, g in self._unnamed(one)}
        return (one for one in found if not self.schemas.is_empty(one))

    def own(self, goal: Goal) -> Expression:
        """The expression of a goal itself."""
        try:
            parts = self.schemas.alternatives(goal)
            if parts != [goal]:
                some = [one for one in parts if not self.schemas.is_empty(one)]
                return union(*map(self._of, some))
            return self._of_form(self._form(goal))
        except UnfollowedError as error:
            raise unfollowed(self.schemas.place(goal), str(error)) from None
        except TooManyStatesError as error:
            if error.args:  # It says where.
                raise
            expected = f"a schema whose texts need at most {automata.MOST_STATES:,} states"
            words = f"{self.schemas.place(goal)}: expected {expected}, got more"
            raise TooManyStatesError(words) from None

    def _of(self, goal: Goal) -> Expression:
        """The expression of a goal within another one."""
        if goal in self.number:
            return reference(self.number[goal])
        key = goal, self._counts, self._depth
        if key not in self._made:
            made = self.own(goal)
            self._made[key] = Compiled(compiled(made)) if self._uses[goal] > 1 else made
        return self._made[key]

    def _of_form(self, form: Form) -> Expression:
        parts = [text(b"null")] if form.null else []
        parts += [text(b"true" if one else b"false") for one in sorted(form.booleans)]
        if form.numbers is not numbers.NONE:
            parts.append(_numbers(form.numbers))
        parts += map(self._string, form.strings)
        self._depth += self._style.spaces == "indent"
        parts += [self._array(one) for one in form.arrays]
        parts += [self._object(one) for one in form.objects]
        self._depth -= self._style.spaces == "indent"
        return union(*parts)

    def _string(self, some: Strings) -> Expression:
        counted = _counted(some, self._style.any_escapes) if self._counts else None
        if counted is None:
            return _strings(some, self._style.any_escapes)
        return reference(self.counted.setdefault(counted, self._first_counted + len(self.counted)))

    def _most_items(self, array: Arrays) -> int | None:
        """How many items an array may have, for what they have to follow."""
        for i in range(len(array.prefix) + 1):
            if (array.high is None or i < array.high) and self.schemas.is_empty(array.goal(i)):
                return i
        return array.high

    def _array(self, array: Arrays) -> Expression:
        high = self._most_items(array)
        if not array.unique or (high is not None and high <= 1):
            return self._list(array, high)
        # What is compared is no symbol.
        counts, self._counts = self._counts, False
        made = self._set(array)
        made = both(made, self._list(array, high)) if array.contains else made
        self._counts = counts
        return made

    def _list(self, array: Arrays, high: int | None) -> Expression:
        """The texts of an array, with how many items follow each goal that is counted."""
        texts = _Container("[]", self._style, self._depth)
        net, size = texts.net, max(len(array.prefix), array.low, 1) if high is None else high
        wanted = [low for _, low, _ in array.contains]
        after = {(0, tuple(0 for _ in wanted)): texts.first}
        for place in after_each(after):
            i, counts = place
            if i >= array.low and all(map(operator.ge, counts, wanted)):
                texts.end(after[place])
            if i == size and high is not None:
                continue
            before = texts.next(after[place])
            for goal, more in self._choices(array.goal(i), array):
                if (found := _totals(counts, more, array)) is None:
                    continue
                then = min(i + 1, size), found
                if then not in after:
                    after[then] = net.state()
                made = self._of(goal)
                net.add(Compiled(compiled(made)) if size > 1 else made, before, after[then])
        return texts.made()

    def _choices(self, goal: Goal, array: Arrays) -> list[tuple[Goal, tuple[int, ...]]]:
        """The goals that an item may have, and how often each that is counted is among them."""
        found: list[tuple[Goal, tuple[int, ...]]] = [(goal, ())]
        for wanted, _, most in array.contains:
            others = [ANYTHING] if most is None else [*forms.unlike(wanted)]
            choices = [*((other, 0) for other in others), (wanted, 1)]
            found = [(one | x, (*counts, more)) for one, counts in found for x, more in choices]
        return [one for one in found if not self.schemas.is_empty(one[0])]

    def _set(self, array: Arrays) -> Expression:
        """The texts of an array without equal items, of which there are finitely many.

        More than eight are in the order of the schema.
        """
        texts = None if array.prefix else _listed(self._form(array.items))
        if texts is None:
            raise UnfollowedError("uniqueItems of items that are not listed")
        high = len(texts) if array.high is None else min(array.high, len(texts))
        in_order = len(texts) > _MOST_SUBSETS
        array_ = _Container("[]", self._style, self._depth)
        net, most = array_.net, array.low if high == len(texts) else high
        after = {(0, 0): array_.first}  # of the items that are used up, and the number of items
        for used, count in after_each(after):
            if count >= array.low:
                array_.end(after[used, count])
            if count == high and high < len(texts):
                continue
            before = array_.next(after[used, count])
            for i, one in enumerate(texts):
                if used >> i == 0 or not (in_order or used >> i & 1):
                    then = used | (2 << i) - 1 if in_order else used | 1 << i, min(count + 1, most)
                    if then not in after:
                        after[then] = net.state()
                    net.add(text(one.encode()), before, after[then])
        return array_.made()

    def _named(self, one: Objects) -> list[tuple[str, Goal]]:
        """The properties that are written by their names."""
        known = {name for name, _ in one.properties}
        named = [*one.properties, *((n, one.goal(n)) for n in one.required if n not in known)]
        return [(name, goal) for name, goal in named if not self.schemas.is_empty(goal)]

    def _unnamed(self, one: Objects) -> list[tuple[Expression, Goal]]:
        """The names of other properties, and their goals."""
        known = {name for name, _ in one.properties} | {*one.required}
        asked = self._style.open_objects or not known
        names = union(*(text([*map(ord, name)]) for name in sorted(known)))
        found = []
        for some, goal, said in one.others:
            if (said or asked) and not self.schemas.is_empty(goal):
                rest = Without(some, names) if known else some
                if not compiled(rest).is_empty:
                    found.append((rest, goal))
        return found

    def _object(self, one: Objects) -> Expression:
        """The texts of an object: named properties in their order, and then others.

        A state is the number of the next named property, or the set of those that there are where
        they may be in any order; how many properties there are for the least number of them, and
        how many for the largest. Others may have equal names, so that they count once for the least
        number: one that has been counted is as if there were another named property.
        """
        if any(self.schemas.is_empty(one.goal(name)) for name in one.required):
            return NOTHING
        named, unnamed = self._named(one), self._unnamed(one)
        required = [name in one.required for name, _ in named]
        low = 0 if one.low <= sum(required) else one.low
        high = one.high
        if high is not None and not unnamed and high >= len(named):
            high = None
        if low > len(named) + 1 and unnamed:
            raise UnfollowedError(f"minProperties {one.low} of properties without names")
        texts = _Container("{}", self._style, self._depth)
        net, colon = texts.net, self._style.mark(":")
        # Each place is one before a property; ``after`` are those after one.
        Place = tuple[int, int, int]
        before: dict[Place, int] = {}
        after: dict[Place, int] = {}
        before[0, 0, 0] = texts.next(texts.first)
        if not any(required) and not low:
            texts.end(texts.first)
        size = len(named)
        in_order = size > self._style.any_order

        needed = sum(1 << j for j, wanted in enumerate(required) if wanted)

        def may_end(i: int) -> bool:
            return i >= needed.bit_length() if in_order else not needed & ~i

        def put(place: Place, name: Expression, goal: Goal, i: int, counts: bool) -> None:
            _, least, most = place
            if high is not None and most == high:
                return
            then = i, min(least + counts, low), 0 if high is None else most + 1
            if then not in after:
                after[then] = net.state()
                texts.next(after[then], before.setdefault(then, net.state()))
                if may_end(i) and then[1] >= low:
                    texts.end(after[then])
            value = self._of(goal)
            if low or high is not None or not in_order:
                value = Compiled(compiled(value))
            net.add(sequence(name, colon, value), before[place], after[then])

        for place in after_each(before):
            i, least, most = place
            following = range(i, min(i + 1, size)) if in_order else range(size)
            for j in following:
                if in_order or not i >> j & 1:
                    name, goal = named[j]
                    key = text(json.dumps(name, ensure_ascii=False).encode())
                    put(place, key, goal, i + 1 if in_order else i | 1 << j, True)
            if in_order and i < size:
                if not required[i]:
                    skipped = i + 1, least, most
                    net.skip(before[place], before.setdefault(skipped, net.state()))
                continue
            has_other = i > size if in_order else bool(i >> size)
            then = i if least == low else size + 1 if in_order else i | 1 << size
            for names, goal in unnamed:
                key = _key(names, self._style.any_escapes)
                put(place, key, goal, then, not has_other)
        return texts.made()


class _Container:
    """The texts of an array or an object, whose parts lie between two brackets.

    Attributes:
      net: the states.
      first: the one after the opening bracket.
    """

    def __init__(self, brackets: str, style: Style, depth: int):
        self.net = Net()
        self._begin, self.first, self._last, self._end = (self.net.state() for _ in range(4))
        self._comma, self._line = style.mark(","), style.line(depth)
        self._close = style.mark(brackets[1])
        self.net.add(style.mark(brackets[0]), self._begin, self.first)
        self.net.add(sequence(style.line(depth - 1), self._close), self._last, self._end)

    def next(self, after: int, before: int | None = None) -> int:
        """The state before another part; ``after`` is one after a part, or the first one."""
        before = self.net.state() if before is None else before
        comma = EMPTY if after == self.first else self._comma
        self.net.add(sequence(comma, self._line), after, before)
        return before

    def end(self, after: int) -> None:
        """Lets the text end after a part, or after the opening bracket."""
        if after == self.first:
            self.net.add(self._close, after, self._end)
        else:
            self.net.skip(after, self._last)

    def made(self) -> Expression:
        return Compiled(self.net.automaton(self._begin, self._end))


def _totals(
    counts: tuple[int, ...], more: tuple[int, ...], array: Arrays
) -> tuple[int, ...] | None:
    """How many items follow each goal of ``contains``, up to what matters; None for too many."""
    found = []
    for count, one, (_, low, most) in zip(counts, more, array.contains, strict=True):
        if most is not None and count + one > most:
            return None
        found.append(min(count + one, low if most is None else most))
    return tuple(found)


def after_each(places: dict[Any, int]) -> Iterator[Any]:
    """The keys of a dict that grows, in the order in which they come."""
    done = 0
    while done < len(places):
        for key in itertools.islice([*places], done, None):
            yield key
            done += 1


@functools.lru_cache(256)
def _any_value(style: Style, number: int) -> Automaton:
    """The definition of values of any type, which has a number: it is that of many schemas."""
    schemas = Schemas(True)
    writer = _Writer(schemas, "schema", 1, style)
    writer.number = {ANYTHING: number}
    return compiled(writer.own(schemas.root))


@functools.lru_cache(4096)
def _key(names: Expression, any_escapes: bool) -> Expression:
    return Compiled(in_json(compiled(names), any_escapes))


@functools.lru_cache(4096)
def _numbers(some: numbers.Numbers) -> Expression:
    return numbers.texts_of(some)


@functools.lru_cache(4096)
def _with_length(some: Strings) -> Strings:
    """The same strings, where the repetition at the end of a pattern is a number of characters."""
    if some.values is not None:
        return some
    kept, lows, highs = set(), [some.low], [] if some.high is None else [some.high]
    for pattern in some.patterns:
        again = unrepeated(compiled(pattern))
        if again is None:
            kept.add(pattern)
            continue
        texts, low, high = again
        kept.add(Compiled(texts))
        lows.append(low)
        highs.append(high)
    most = min(highs, default=None)
    return dataclasses.replace(some, patterns=frozenset(kept), low=max(lows), high=most)


@functools.lru_cache(4096)
def _counted(some: Strings, any_escapes: bool) -> Counted | None:
    """Strings whose characters can be counted."""
    some = _with_length(some)
    if some.values is not None or some.high is None or some.high <= _FEW:
        return None
    made = compiled(some.texts)
    if made.is_empty or max(least := shortest(made), some.low) > some.high:
        return None
    if some.low > least and not can_grow(made):  # A string that is too short might not go on.
        return None
    found = Counted(some.texts, some.low, some.high, any_escapes)
    return None if found.places is None else found


@functools.lru_cache(4096)
def _strings(some: Strings, any_escapes: bool) -> Expression:
    if some.values is not None:
        formats = [compiled(one) for one in some.formats]
        values = [v for v in some.values if all(one.accepts(map(ord, v)) for one in formats)]
        texts = (json.dumps(value, ensure_ascii=False) for value in values)
        return union(*(text(one.encode()) for one in texts))
    return Compiled(in_json(compiled(some.language), any_escapes))


def _listed(form: Form) -> list[str] | None:
    """The texts of all values of a form, one for each value; None where they are not listed."""
    strings = [one.values for one in form.strings]
    of_numbers = form.numbers.values
    some_format = any(one.formats for one in form.strings)
    if form.arrays or form.objects or None in strings or of_numbers is None or some_format:
        return None
    values: list[Any] = [None] if form.null else []
    values += sorted(form.booleans)
    different = {numbers.exact(value): value for value in of_numbers}
    values += different.values()
    values += dict.fromkeys(v for some in strings for v in some or ())
    return [json.dumps(value, ensure_ascii=False) for value in values]
