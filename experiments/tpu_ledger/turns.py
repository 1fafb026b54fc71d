"""How many times a loop of a compiled program turns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Set

from experiments.tpu_ledger.program import SIZES, Instruction, arrays

Computations = Mapping[str, Mapping[str, Instruction]]
"""The instructions of each computation, both by name, in the order of the program."""

_LARGE = 2**14  # bytes; a loop over smaller slices is not a loop over an array


def turns(computations: Computations, loop: Instruction) -> int:
    """Returns the bound in a loop's condition, or else the number of slices of an array it reads.

    Of a slice, only the axes count along which the loop moves it: a loop that reads one layer of a
    stack in pieces turns once for each piece, the last of which may overlap the one before.

    Args:
      computations: those of the program.
      loop: a ``while``.
    """
    names = dict(re.findall(r"(condition|body)=%?([\w.\-]+)", loop.text))
    condition = computations[names["condition"]]
    (root,) = (i for i in condition.values() if i.is_root)
    if root.opcode == "compare" and "direction=LT" in root.text:
        for operand in root.operands():
            if bound := re.match(r"constant\((\d+)\)", condition[operand].text):
                return int(bound[1])
    body = computations[names["body"]]
    return max(_slices(computations, names["body"], _unchanged(body)), default=1)


def _unchanged(body: Mapping[str, Instruction]) -> set[str]:
    """The elements of a loop's state that its body hands on as they are."""
    (root,) = (i for i in body.values() if i.is_root)
    return {
        name
        for index, name in enumerate(root.operands())
        if body[name].opcode == "get-tuple-element"
        and re.search(rf"index={index}\b", body[name].text)
    }


def _slices(computations: Computations, name: str, fixed: Set[str]) -> Iterator[int]:
    """For each slice in a computation and its fusions, how many of them the array has.

    Args:
      computations: those of the program.
      name: the name of the computation.
      fixed: the instructions whose results are the same in all turns of the loop.
    """
    here, fixed = computations[name], set(fixed)
    for i in here.values():
        operands = i.operands()
        is_input = i.opcode in ("parameter", "get-tuple-element")
        if i.opcode == "constant" or (not is_input and all(n in fixed for n in operands)):
            fixed.add(i.name)
        if i.opcode == "dynamic-slice" and (source := here.get(operands[0])):
            ((_, whole, _),), ((dtype, part, _),) = arrays(source.result), arrays(i.result)
            if math.prod(part) * SIZES.get(dtype, 4) >= _LARGE:
                sizes = zip(whole, part, operands[1:], strict=True)
                yield math.prod(-(-w // p) for w, p, index in sizes if index not in fixed)
        elif i.opcode == "fusion":
            for called in i.called():
                inputs = _parameters(computations[called])
                held = {p for p, n in zip(inputs, operands, strict=True) if n in fixed}
                yield from _slices(computations, called, held)


def _parameters(computation: Mapping[str, Instruction]) -> list[str]:
    """The names of a computation's parameters, in their order."""
    numbers = {
        int(found[1]): name
        for name, i in computation.items()
        if (found := re.match(r"parameter\((\d+)\)", i.text))
    }
    return [numbers[at] for at in sorted(numbers)]
