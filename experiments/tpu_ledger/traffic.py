"""Counts the bytes that a step of a compiled program reads from HBM and writes to it.

What an instruction reads and writes is known from its operands and results. Arrays whose layout
names another memory space, such as ``S(1)`` for the memory on the chip, do not count. Of a table
that is gathered from, or an array that is sliced or updated, only the touched part counts; of the
experts of a ragged product, those that have rows. Sizes are those in memory, with padded tiles.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from experiments.tpu_ledger.program import SIZES, Instruction, Program, arrays
from experiments.tpu_ledger.turns import turns

_FREE = (
    "parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "partition-id",
    "replica-id", "optimization-barrier", "copy-done", "slice-done",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Access:
    """What an instruction moves at a step.

    Attributes:
      instruction: the instruction.
      times: how many times it runs.
      bytes: what it reads and writes each time.
    """

    instruction: Instruction
    times: int
    bytes: int

    @property
    def total(self) -> int:
        return self.times * self.bytes


def hbm_bytes(dtype: str, sizes: tuple[int, ...], layout: str) -> int:
    """The bytes of an array in HBM, padded to its tiles, or 0 if it is in another memory.

    Example:
      >>> hbm_bytes("bf16", (3, 100), "{1,0:T(8,128)(2,1)}"), hbm_bytes("bf16", (3,), "{0:S(1)}")
      (2048, 0)
    """
    if re.search(r"S\([1-9]\d*\)", layout):
        return 0
    order = [int(n) for n in re.findall(r"\d+", layout.partition(":")[0])]
    physical = [sizes[axis] for axis in reversed(order)] if order else list(sizes)
    if tile := re.search(r"T\(([\d,]+)\)", layout):
        multiples = [int(n) for n in tile[1].split(",")]
        physical = [1] * (len(multiples) - len(physical)) + physical
        for at, multiple in enumerate(reversed(multiples), 1):
            physical[-at] = -(-physical[-at] // multiple) * multiple
    return int(math.prod(physical) * SIZES.get(dtype, 4))


def in_hbm(shape: str) -> int:
    """The bytes in HBM of all arrays in the text of a shape."""
    return sum(hbm_bytes(*array) for array in arrays(shape))


def step(program: Program, experts: float = math.inf) -> list[Access]:
    """What each instruction of a program's main loop moves in one turn, most bytes first.

    A loop inside of it counts as many times as it turns. Where that is decided while it runs, a
    loop over slices of an array is taken to read all of it, and any other loop to turn once. Of a
    conditional, the branch that moves most counts.

    Args:
      program: from ``program.parse``.
      experts: how many of its experts a ragged product reads: those with rows.
    """
    reader = _Reader(program, experts)
    found = [a for name in program.main_loop().called() for a in reader.computation(name, 1)]
    return sorted(found, key=lambda a: -a.total)


def whole(program: Program, turns: int) -> int:
    """The bytes that a program moves whose only loop turns so many times."""
    reader, total = _Reader(program), 0
    for instruction in program.computations[program.entry]:
        of_loop = instruction.opcode == "while"
        names = instruction.called() if of_loop else []
        moved = [a.total for name in names for a in reader.computation(name, turns)]
        here = reader.computations[program.entry]
        total += sum(moved) if of_loop else reader.moved(here, instruction)
    return total


class _Reader:
    def __init__(self, program: Program, experts: float = math.inf) -> None:
        self.experts = experts
        self.computations: Mapping[str, dict[str, Instruction]] = {
            name: {i.name: i for i in instructions}
            for name, instructions in program.computations.items()
        }

    def computation(self, name: str, times: int) -> Iterator[Access]:
        here = self.computations.get(name, {})
        for instruction in here.values():
            called = instruction.called()
            if instruction.opcode == "while":
                inner = times * turns(self.computations, instruction)
                for body in called:
                    yield from self.computation(body, inner)
            elif instruction.opcode == "conditional":
                branches = [list(self.computation(branch, times)) for branch in called]
                yield from max(branches, key=lambda b: sum(a.total for a in b), default=[])
            elif instruction.opcode == "call":
                for body in called:
                    yield from self.computation(body, times)
            else:
                yield Access(instruction, times, self.moved(here, instruction))

    def moved(self, here: Mapping[str, Instruction], instruction: Instruction) -> int:
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            return 0
        operands = [here[name] for name in instruction.operands() if name in here]
        if opcode == "fusion":
            (name,) = instruction.called()
            read = sum(self.read(name, k, o.result) for k, o in enumerate(operands))
            return read + self.written(name, instruction.result)
        if opcode in ("copy-start", "slice-start"):
            return _copied(instruction)
        if opcode in ("dynamic-slice", "slice", "gather"):
            read = _part(operands[0].result, instruction.result)
            return read + in_hbm(instruction.result)
        if opcode in ("dynamic-update-slice", "scatter"):
            update = operands[-1] if opcode == "scatter" else operands[1]
            return in_hbm(update.result) + _part(instruction.result, update.result)
        result = 0 if opcode.endswith("-start") else in_hbm(instruction.result)
        sizes = [in_hbm(o.result) for o in operands]
        if "ragged_dot_tiling" in instruction.text:  # its last operand is the kernels
            ((_, (count, *_), _),) = arrays(operands[-1].result)
            sizes[-1] = round(min(self.experts / count, 1) * sizes[-1])
        return result + sum(sizes)

    def read(self, name: str, number: int, operand: str) -> int:
        """The bytes that a fusion reads of an operand."""
        whole = in_hbm(operand)
        if not whole:
            return 0
        here = self.computations[name]
        start = f"parameter({number})"
        parameter = next(i for i in here.values() if i.text.startswith(start))
        names, total = [parameter.name], 0
        while names:
            source = names.pop()
            for user in here.values():
                uses = [k for k, n in enumerate(user.operands()) if n == source]
                if not uses:
                    continue
                if user.opcode == "bitcast" or any(self.hands_on(user, k) for k in uses):
                    names.append(user.name)
                elif user.opcode == "fusion":
                    total += sum(self.read(user.called()[0], k, operand) for k in uses)
                elif user.opcode in ("dynamic-slice", "slice", "gather") and uses == [0]:
                    total += _part(operand, user.result)
                elif not (user.opcode in ("dynamic-update-slice", "scatter") and uses == [0]):
                    total += whole
        return min(total, whole)

    def hands_on(self, user: Instruction, number: int) -> bool:
        """Whether an instruction is a fusion whose result is one of its operands, as it is.

        It may have another layout, which inside of another fusion is a part of the reading.
        """
        if user.opcode != "fusion":
            return False
        here = self.computations[user.called()[0]]
        (source,) = (i for i in here.values() if i.is_root)
        while source.opcode in ("bitcast", "copy"):
            source = here[source.operands()[0]]
        return source.text.startswith(f"parameter({number})")

    def written(self, name: str, result: str) -> int:
        """The bytes that a fusion writes of its results, whose shapes ``result`` names."""
        here = self.computations[name]
        (root,) = (i for i in here.values() if i.is_root)
        parts = [here[n] for n in root.operands()] if root.opcode == "tuple" else [root]
        shapes = arrays(result)
        if len(parts) != len(shapes):
            return in_hbm(result)
        total = 0
        for part, shape in zip(parts, shapes, strict=True):
            while part.opcode == "bitcast":
                part = here[part.operands()[0]]
            if not hbm_bytes(*shape) or part.opcode == "parameter":
                continue
            if part.opcode == "fusion" and len(arrays(part.result)) == 1:
                dtype, sizes, layout = shape
                text = f"{dtype}[{','.join(map(str, sizes))}]{layout}"
                total += self.written(part.called()[0], text)
            elif part.opcode in ("dynamic-update-slice", "scatter"):
                at = -1 if part.opcode == "scatter" else 1
                total += _plain(here[part.operands()[at]].result)
            else:
                total += hbm_bytes(*shape)
        return total


def _plain(shape: str) -> int:
    """The bytes of the arrays of a shape, wherever they are and without padding."""
    return int(sum(math.prod(sizes) * SIZES.get(dtype, 4) for dtype, sizes, _ in arrays(shape)))


def _part(whole: str, part: str) -> int:
    """The bytes of a part of an array, if the array is in HBM."""
    return min(in_hbm(whole), _plain(part))


def _copied(instruction: Instruction) -> int:
    """The bytes of an asynchronous copy or slice, whose result names both its ends."""
    first, second = arrays(instruction.result)[:2]
    part = int(min(math.prod(first[1]), math.prod(second[1])) * SIZES.get(first[0], 4))
    return sum(min(part, hbm_bytes(*array)) for array in (first, second))
