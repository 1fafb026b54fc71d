"""Sets of JSON values in a normal form: for each type, what its values are.

Scalars of a type are one set. Arrays and objects are lists of alternatives, each with what is asked
of it at once; what is asked of items and properties is a ``Goal``, which is looked at when it is
needed, so that schemas may refer to themselves. Intersections, unions and complements are exact; a
complement that is no such form is an error.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from decoding_jax.constraints import numbers
from decoding_jax.constraints.counted import can_grow, shortest
from decoding_jax.constraints.encodings import CHARACTERS
from decoding_jax.constraints.expressions import (
    NOTHING,
    Expression,
    Repeat,
    Without,
    both,
    compiled,
    text,
    union,
)
from decoding_jax.constraints.numbers import Numbers

Goal = frozenset[tuple[int, bool]]
"""Schemas by number, all of which a value follows (True) or does not follow (False)."""

ANYTHING: Goal = frozenset()
NEVER: Goal = frozenset({(-1, True)})
ANY_TEXT = Repeat(CHARACTERS, 0, None)
MOST_ALTERNATIVES = 256


class UnfollowedError(Exception):
    """Says which keyword is not followed."""


@dataclasses.dataclass(frozen=True)
class Strings:
    """A set of strings: those of all expressions, of so many characters.

    Attributes:
      patterns: expressions over code points, of whole strings.
      low: the least number of characters.
      high: the largest number, or None.
      values: the strings, where they are listed.
      formats: expressions of formats. Drafts let a validator ignore them, so they say nothing about
        which sets are empty; texts that are written have them.
    """

    patterns: frozenset[Expression] = frozenset()
    low: int = 0
    high: int | None = None
    values: tuple[str, ...] | None = None
    formats: frozenset[Expression] = frozenset()

    @property
    def texts(self) -> Expression:
        """The expression of all that is asked but the number of characters, with formats."""
        parts = sorted(self.patterns | self.formats, key=hash)
        if self.values is not None:
            values = union(*(text([*map(ord, value)]) for value in self.values))
            return both(values, *sorted(self.formats, key=hash))
        return both(*parts) if parts else ANY_TEXT

    @property
    def language(self) -> Expression:
        """The expression of all that is asked."""
        if self.values is not None or not (self.low or self.high is not None):
            return self.texts
        return both(self.texts, Repeat(CHARACTERS, self.low, self.high))

    @property
    def is_empty(self) -> bool:
        """Whether there is none."""
        if self.values is not None:
            return not self.values
        if self.high is not None and self.low > self.high:
            return True
        if not self.patterns:
            return False
        without = dataclasses.replace(self, formats=frozenset())
        made = compiled(without.texts)
        if made.is_empty or (self.high is not None and shortest(made) > self.high):
            return True
        return not can_grow(made) and compiled(without.language).is_empty

    def holds(self, value: str) -> bool:
        """Whether a string is one of them."""
        if self.values is not None:
            return value in self.values
        if len(value) < self.low or (self.high is not None and len(value) > self.high):
            return False
        codes = [*map(ord, value)]
        return all(compiled(pattern).accepts(codes) for pattern in self.patterns)


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays of which all of this holds.

    Attributes:
      prefix: the goals of the first items.
      items: the goal of the others.
      low: the least number of items.
      high: the largest number, or None.
      contains: goals, each with how many items follow it, at least and at most (or None).
      unique: whether all items differ.
      evaluated: how many items have been looked at by some keyword; None for all.
    """

    prefix: tuple[Goal, ...] = ()
    items: Goal = ANYTHING
    low: int = 0
    high: int | None = None
    contains: tuple[tuple[Goal, int, int | None], ...] = ()
    unique: bool = False
    evaluated: int | None = 0

    def goal(self, index: int) -> Goal:
        """The goal of an item."""
        return self.prefix[index] if index < len(self.prefix) else self.items


@dataclasses.dataclass(frozen=True)
class Objects:
    """Objects of which all of this holds.

    Attributes:
      properties: names with goals, in the order in which they are written.
      required: names.
      others: names that are not among ``properties``: expressions that do not overlap and cover all
        names, each with a goal and whether a schema has said something about them.
      low: the least number of properties.
      high: the largest number, or None.
      evaluated: the names that some keyword has looked at.
      some: names, each with a goal that at least one property of such a name follows.
    """

    properties: tuple[tuple[str, Goal], ...] = ()
    required: tuple[str, ...] = ()
    others: tuple[tuple[Expression, Goal, bool], ...] = ((ANY_TEXT, ANYTHING, False),)
    low: int = 0
    high: int | None = None
    evaluated: Expression = NOTHING
    some: tuple[tuple[Expression, Goal], ...] = ()

    def goal(self, name: str) -> Goal:
        """The goal of a property."""
        for known, goal in self.properties:
            if known == name:
                return goal
        codes = [*map(ord, name)]
        return next(goal for names, goal, _ in self.others if compiled(names).accepts(codes))

    def known(self) -> list[str]:
        """The names of properties and of required ones."""
        return [*dict.fromkeys((*(name for name, _ in self.properties), *self.required))]


@dataclasses.dataclass(frozen=True)
class Form:
    """A set of JSON values.

    Attributes:
      null: whether null is one of them.
      booleans: which booleans are.
      numbers: which numbers are.
      strings: sets of strings, any of which holds.
      arrays: alternatives.
      objects: alternatives.
      is_exact: whether these are all values that follow the schema, and not only some of them.
    """

    null: bool = True
    booleans: frozenset[bool] = frozenset({False, True})
    numbers: Numbers = numbers.ALL
    strings: tuple[Strings, ...] = (Strings(),)
    arrays: tuple[Arrays, ...] = (Arrays(),)
    objects: tuple[Objects, ...] = (Objects(),)
    is_exact: bool = True


ALL = Form()
NONE = Form(False, frozenset(), numbers.NONE, (), (), ())
KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")


def of_kinds(kinds: tuple[str, ...], with_zeros: bool) -> Form:
    """The values of some types; ``with_zeros`` says whether 1.0 is an integer."""
    of_numbers = numbers.NONE
    if "number" in kinds:
        of_numbers = numbers.ALL
    elif "integer" in kinds:
        of_numbers = numbers.integers(with_zeros)
    return Form(
        "null" in kinds,
        ALL.booleans if "boolean" in kinds else frozenset(),
        of_numbers,
        ALL.strings if "string" in kinds else (),
        ALL.arrays if "array" in kinds else (),
        ALL.objects if "object" in kinds else (),
    )


def both_of(first: Form, second: Form, is_empty: Callable[[Goal], bool]) -> Form:
    """The values of two forms."""
    return Form(
        first.null and second.null,
        first.booleans & second.booleans,
        _numbers_of(first.numbers, second.numbers),
        _product(first.strings, second.strings, _strings, lambda one: one.is_empty),
        _product(first.arrays, second.arrays, _arrays, lambda one: none_of(one, is_empty)),
        _product(first.objects, second.objects, _objects, lambda one: none_of(one, is_empty)),
        first.is_exact and second.is_exact,
    )


def _numbers_of(first: Numbers, second: Numbers) -> Numbers:
    if first is numbers.ALL or second is numbers.ALL:
        return second if first is numbers.ALL else first
    if first is numbers.NONE or second is numbers.NONE:
        return numbers.NONE
    made = numbers.both_of(first, second)
    return numbers.NONE if made.is_empty else made


def _product(first: tuple, second: tuple, join: Callable, is_none: Callable) -> tuple:
    """The alternatives of two, without those of which there is none."""
    made = dict.fromkeys(join(a, b) for a in first for b in second)
    left = tuple(one for one in made if not is_none(one))
    if len(left) > MOST_ALTERNATIVES:
        raise UnfollowedError(f"more than {MOST_ALTERNATIVES} alternatives")
    return left


def either_of(forms: list[Form]) -> Form:
    """The values of any of some forms."""
    some = [one.numbers for one in forms if one.numbers is not numbers.NONE]
    return Form(
        any(one.null for one in forms),
        frozenset().union(*(one.booleans for one in forms)),
        functools.reduce(numbers.either_of, some) if some else numbers.NONE,
        _listed([s for one in forms for s in one.strings]),
        tuple(dict.fromkeys(a for one in forms for a in one.arrays)),
        tuple(dict.fromkeys(o for one in forms for o in one.objects)),
        all(one.is_exact for one in forms),
    )


def _listed(strings: list[Strings]) -> tuple[Strings, ...]:
    """Alternatives, of which all lists are one."""
    listed = [one for one in strings if one.values is not None and not one.formats]
    values = dict.fromkeys(value for one in listed for value in one.values or ())
    made = [Strings(values=tuple(values))] if values else []
    return tuple(dict.fromkeys([*made, *(one for one in strings if one not in listed)]))


def others_than(form: Form, is_empty: Callable[[Goal], bool]) -> Form:
    """The values that are not in a form.

    Raises:
      UnfollowedError: where that is no form.
    """
    if not form.is_exact:
        raise UnfollowedError("what a format or many alternatives exclude, in not, if or oneOf")
    strings: tuple[Strings, ...] = (Strings(),)
    if form.strings:
        language = union(*(one.language for one in form.strings))
        rest = Strings(frozenset({Without(ANY_TEXT, language)}))
        if form.strings == (Strings(),):
            strings = ()
        elif len(form.strings) == 1 and not form.strings[0].patterns and not form.strings[0].values:
            [one] = form.strings
            below = [Strings(high=one.low - 1)] if one.low else []
            above = [] if one.high is None else [Strings(low=one.high + 1)]
            strings = (*below, *above)
        else:
            strings = () if rest.is_empty else (rest,)
    some = form.numbers
    arrays, objects = ALL.arrays, ALL.objects
    for array in form.arrays:
        no_array = tuple(_unlike_array(array))
        arrays = _product(arrays, no_array, _arrays, lambda one: none_of(one, is_empty))
    for object_ in form.objects:
        no_object = tuple(_unlike_object(object_))
        objects = _product(objects, no_object, _objects, lambda one: none_of(one, is_empty))
    return Form(
        not form.null,
        ALL.booleans - form.booleans,
        numbers.ALL if some is numbers.NONE else numbers.others_than(some),
        strings,
        arrays,
        objects,
    )


def is_none(form: Form) -> bool:
    """Whether a form, whose alternatives are none that is empty, has no value."""
    return (
        not (form.null or form.booleans or form.arrays or form.objects)
        and form.numbers.is_empty
        and all(one.is_empty for one in form.strings)
    )


def none_of(one: Arrays | Objects, is_empty: Callable[[Goal], bool]) -> bool:
    """Whether there is no value of an alternative."""
    if one.high is not None and one.low > one.high:
        return True
    if isinstance(one, Arrays):
        if any(is_empty(one.goal(i)) for i in range(min(one.low, len(one.prefix) + 1))):
            return True
        goals = {*one.prefix, one.items}
        return any(
            low and all(is_empty(goal | wanted) for goal in goals)
            for wanted, low, _ in one.contains
        )
    if any(is_empty(one.goal(name)) for name in one.required):
        return True
    if not all(_may_have(one, names, wanted, is_empty) for names, wanted in one.some):
        return True
    if one.low and all(is_empty(goal) for _, goal, _ in one.others):
        return sum(not is_empty(goal) for _, goal in one.properties) < one.low
    return False


def _may_have(
    one: Objects, names: Expression, wanted: Goal, is_empty: Callable[[Goal], bool]
) -> bool:
    """Whether a property of some names may follow a goal."""
    if any(not is_empty(one.goal(name) | wanted) for name in _of_names(one, names)):
        return True
    known = union(*(text([*map(ord, name)]) for name in one.known()))
    return any(
        not is_empty(goal | wanted) and not compiled(both(some, Without(names, known))).is_empty
        for some, goal, _ in one.others
    )


def _of_names(one: Objects, names: Expression) -> list[str]:
    automaton = compiled(names)
    return [name for name in one.known() if automaton.accepts(map(ord, name))]


def with_named(one: Objects) -> Iterator[Objects]:
    """Alternatives for some of the objects, where one that is named follows each goal of ``some``.

    Those of which another property follows it are left out.
    """
    if not one.some:
        yield one
        return
    [(names, wanted), *rest] = one.some
    for name in _of_names(one, names):
        properties = dict(one.properties) | {name: one.goal(name) | wanted}
        required = tuple(dict.fromkeys((*one.required, name)))
        yield from with_named(
            dataclasses.replace(
                one, properties=tuple(properties.items()), required=required, some=tuple(rest)
            )
        )


def _least(first: int | None, second: int | None) -> int | None:
    return first if second is None else second if first is None else min(first, second)


def _strings(first: Strings, second: Strings) -> Strings:
    if first.values is not None or second.values is not None:
        one, other = (first, second) if first.values is not None else (second, first)
        values = tuple(v for v in one.values or () if other.holds(v))
        return Strings(values=values, formats=first.formats | second.formats)
    return Strings(
        first.patterns | second.patterns,
        max(first.low, second.low),
        _least(first.high, second.high),
        formats=first.formats | second.formats,
    )


def _arrays(first: Arrays, second: Arrays) -> Arrays:
    size = max(len(first.prefix), len(second.prefix))
    evaluated = first.evaluated, second.evaluated
    return Arrays(
        tuple(first.goal(i) | second.goal(i) for i in range(size)),
        first.items | second.items,
        max(first.low, second.low),
        _least(first.high, second.high),
        tuple(dict.fromkeys((*first.contains, *second.contains))),
        first.unique or second.unique,
        None if None in evaluated else max(first.evaluated or 0, second.evaluated or 0),
    )


def _objects(first: Objects, second: Objects) -> Objects:
    names = dict.fromkeys([n for n, _ in first.properties] + [n for n, _ in second.properties])
    return Objects(
        tuple((name, first.goal(name) | second.goal(name)) for name in names),
        tuple(dict.fromkeys((*first.required, *second.required))),
        crossed(first.others, second.others),
        max(first.low, second.low),
        _least(first.high, second.high),
        union(first.evaluated, second.evaluated),
        tuple(dict.fromkeys((*first.some, *second.some))),
    )


def crossed(
    first: tuple[tuple[Expression, Goal, bool], ...],
    second: tuple[tuple[Expression, Goal, bool], ...],
) -> tuple[tuple[Expression, Goal, bool], ...]:
    """The parts of names by which two divisions of them ask for something else."""
    made = []
    for names, goal, said in first:
        for other_names, other_goal, other_said in second:
            if names == ANY_TEXT or other_names == ANY_TEXT:
                common = other_names if names == ANY_TEXT else names
            else:
                common = both(names, other_names)
                if compiled(common).is_empty:
                    continue
            made.append((common, goal | other_goal, said or other_said))
    if len(made) > MOST_ALTERNATIVES:
        raise UnfollowedError(f"more than {MOST_ALTERNATIVES} kinds of names")
    return tuple(made)


def _unlike_array(one: Arrays) -> Iterator[Arrays]:
    """Alternatives that hold of the arrays that are not in ``one``."""
    if one.unique:
        raise UnfollowedError("not of uniqueItems")
    if one.low:
        yield Arrays(high=one.low - 1)
    if one.high is not None:
        yield Arrays(low=one.high + 1)
    for i, goal in enumerate(one.prefix):
        for other in unlike(goal):
            yield Arrays((ANYTHING,) * i + (other,), low=i + 1)
    for other in unlike(one.items):
        if one.prefix and other != ANYTHING:
            raise UnfollowedError("not of items after prefixItems")
        if one.prefix:
            yield Arrays(low=len(one.prefix) + 1)
        else:
            yield Arrays(contains=((other, 1, None),))
    for goal, low, high in one.contains:
        if low == 1:
            for other in unlike(goal):
                if len(goal) > 1:
                    raise UnfollowedError("not of contains of several schemas")
                yield Arrays(items=other)
        elif low:
            yield Arrays(contains=((goal, 0, low - 1),))
        if high is not None:
            yield Arrays(contains=((goal, high + 1, None),))


def _unlike_object(one: Objects) -> Iterator[Objects]:
    """Alternatives that hold of the objects that are not in ``one``."""
    for name in one.required:
        yield Objects(((name, NEVER),))
    for name, goal in one.properties:
        for other in unlike(goal):
            yield Objects(((name, other),), (name,))
    if one.low:
        yield Objects(high=one.low - 1)
    if one.high is not None:
        yield Objects(low=one.high + 1)
    known = union(*(text([*map(ord, name)]) for name, _ in one.properties))
    for names, goal, _ in one.others:
        for other in unlike(goal):
            yield Objects(some=((Without(names, known) if one.properties else names, other),))
    for names, wanted in one.some:
        goals = [NEVER] if wanted == ANYTHING else [*unlike(wanted)]
        if len(goals) > 1:
            raise UnfollowedError("not of not of additionalProperties of several schemas")
        rest = Without(ANY_TEXT, names), ANYTHING, False
        yield Objects(others=((names, goals[0], True), rest))


def unlike(goal: Goal) -> Iterator[Goal]:
    """Goals, one of which a value follows that does not follow a goal."""
    for number, holds in goal:
        yield ANYTHING if number < 0 else frozenset({(number, not holds)})
