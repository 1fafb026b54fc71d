"""Which instructions of a loop write whole arrays of given shapes, such as a cache or a weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from experiments.tpu_ledger.program import Instruction, Program, arrays

CONTROL = "while conditional call"
_SAME = ("get-tuple-element", "tuple", "bitcast", "parameter", "optimization-barrier")
_IN_PLACE = ("dynamic-update-slice", "scatter")

Shape = tuple[str, tuple[int, ...]]
"""A dtype and sizes, without the axes of size 1, in ascending order."""


def shape_of(dtype: str, sizes: Iterable[int]) -> Shape:
    """The shape of an array, whatever the order of its axes.

    Example:
      >>> shape_of("bf16", (2, 1, 3))
      ('bf16', (2, 3))
    """
    return dtype, tuple(sorted(n for n in sizes if n > 1))


def rewrites(program: Program, shapes: Iterable[Shape]) -> list[Instruction]:
    """The instructions in a program's main loop that write a whole array of one of some shapes.

    An update in place writes a part, and does not count. Arrays that are only handed on do not
    either.

    Args:
      program: from ``program.parse``.
      shapes: from ``shape_of``, with the sizes on one device.
    """
    shapes = set(shapes)
    return [
        instruction
        for instruction in program.in_loop(CONTROL)
        if instruction.opcode not in (*_SAME, *CONTROL.split())
        and any(shape in shapes for shape in _written(program, instruction))
    ]


def _written(program: Program, instruction: Instruction) -> Iterator[Shape]:
    """The shapes of the arrays that an instruction writes whole."""
    if instruction.opcode != "fusion":
        if instruction.opcode not in _IN_PLACE:
            yield from (shape_of(d, s) for d, s, _ in arrays(instruction.result))
        return
    (name,) = instruction.called()
    inside = {i.name: i for i in program.computations[name]}
    (root,) = (i for i in inside.values() if i.is_root)
    for result in [inside[n] for n in root.operands()] if root.opcode == "tuple" else [root]:
        yield from _written_inside(program, inside, result)


def _written_inside(
    program: Program, inside: dict[str, Instruction], result: Instruction
) -> Iterator[Shape]:
    source = result
    while source.opcode == "bitcast":
        source = inside[source.operands()[0]]
    if source.opcode == "parameter":
        return
    if source.opcode == "fusion":
        yield from _written(program, source)
    elif source.opcode not in _IN_PLACE:
        yield from (shape_of(d, s) for d, s, _ in arrays(result.result))
