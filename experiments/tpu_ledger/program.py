"""Reads a compiled program's text: its loops, and the collectives in them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
SIZES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
"""Bytes of an element."""

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPCODE = re.compile(r"(?:^|[\s)}])([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
    r"|(?:branch_computations|called_computations|calls)=\{([^}]*)\}"
)
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a program.

    Attributes:
      name: its name.
      opcode: its operation, such as ``fusion``.
      result: the text of its result's shape.
      text: the rest of its line.
      is_root: whether its result is that of its computation.
    """

    name: str
    opcode: str
    result: str
    text: str
    is_root: bool = False

    def operands(self) -> list[str]:
        """The names of the operands."""
        depth = 0
        for at, letter in enumerate(self.text):
            depth += (letter == "(") - (letter == ")")
            if letter == ")" and depth == 0:
                return re.findall(r"%([\w.\-]+)", self.text[:at])
        return []

    def source(self) -> str:
        """The path of the operation in the traced program, or the empty text."""
        found = re.search(r'op_name="([^"]*)"', self.text)
        return found[1] if found else ""

    def called(self) -> list[str]:
        """The computations that the instruction calls."""
        names = []
        for one, several in _CALLED.findall(self.text):
            names += [one] if one else [n.strip().lstrip("%") for n in several.split(",")]
        return names


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      computations: the instructions of every computation, by its name.
      entry: the name of the computation that the program begins with.
    """

    computations: Mapping[str, list[Instruction]]
    entry: str

    def reachable(self, names: list[str], through: str = "") -> Iterator[Instruction]:
        """All instructions of some computations and of those that they call, each once.

        Args:
          names: names of computations.
          through: the operations whose calls are followed, separated by spaces, or all.
        """
        seen: set[str] = set()
        names = list(names)
        while names:
            name = names.pop()
            if name in seen or name not in self.computations:
                continue
            seen.add(name)
            for instruction in self.computations[name]:
                yield instruction
                if not through or instruction.opcode in through.split():
                    names += instruction.called()

    def main_loop(self) -> Instruction:
        """The loop over the steps: of those outside of other loops, the one with most in it.

        Raises:
          ValueError: for a program without loops.
        """
        loops = [i for i in self.computations[self.entry] if i.opcode == "while"]
        if not loops:
            raise ValueError("program: expected one with a loop, got one without")
        return max(loops, key=lambda loop: sum(1 for _ in self.reachable(loop.called())))

    def in_loop(self, through: str = "") -> Iterator[Instruction]:
        """The instructions of the main loop, those of fusions too unless ``through`` says less."""
        return self.reachable(self.main_loop().called(), through)


def parse(text: str) -> Program:
    """Parses a program, as ``jax.stages.Compiled.as_text`` prints it."""
    computations: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    entry = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            current = computations.setdefault(found[2], [])
            entry = found[2] if found[1] else entry
        elif found := _INSTRUCTION.match(line):
            root, name, rest = found.groups()
            if opcode := _OPCODE.search(rest):
                result = rest[: opcode.start(1)]
                text = rest[opcode.start(1) :]
                current.append(Instruction(name, opcode[1], result, text, root is not None))
    return Program(computations, entry)


def arrays(shape: str) -> list[tuple[str, tuple[int, ...], str]]:
    """The dtype, sizes and layout of every array in the text of a shape.

    Example:
      >>> arrays("(f32[2,3]{1,0}, pred[])")
      [('f32', (2, 3), '{1,0}'), ('pred', (), '')]
    """
    found = _ARRAY.findall(shape)
    return [(d, tuple(int(n) for n in s.split(",") if n), layout) for d, s, layout in found]


def num_bytes(shape: str) -> int:
    """The bytes of all arrays in the text of a shape.

    Example:
      >>> num_bytes("(f32[2,3]{1,0}, bf16[4])")
      32
    """
    return int(sum(SIZES.get(dtype, 4) * math.prod(sizes) for dtype, sizes, _ in arrays(shape)))


@dataclasses.dataclass(frozen=True, order=True)
class Collective:
    """A kind of collective.

    Attributes:
      kind: such as ``all-reduce``.
      axis: the axis of the mesh that it runs over, or several joined by ``+``.
      bytes: the size of its result on one device.
      largest: the size of the largest array of its result, which the compiler may have combined of
        several.
    """

    kind: str
    axis: str
    bytes: int
    largest: int


def collectives(program: Program, mesh_shape: Mapping[str, int]) -> Counter[Collective]:
    """The collectives inside of a program's main loop.

    Args:
      program: from ``parse``.
      mesh_shape: the sizes of the axes of the mesh, in their order.
    """
    found: Counter[Collective] = Counter()
    for instruction in program.in_loop():
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            # The result of a start is a pair of operand and result.
            sizes = [int(SIZES.get(d, 4) * math.prod(n)) for d, n, _ in arrays(instruction.result)]
            axis = axis_of(instruction, mesh_shape)
            found[Collective(kind, axis, sum(sizes), max(sizes))] += 1
    return found


def axis_of(collective: Instruction, mesh_shape: Mapping[str, int]) -> str:
    """The axis of the mesh that a collective runs over, or several joined by ``+``."""
    groups = _groups(collective.text, int(np.prod(list(mesh_shape.values()))))
    devices = np.arange(np.prod(list(mesh_shape.values()))).reshape(*mesh_shape.values())
    place = {int(d): at for at, d in np.ndenumerate(devices)}
    varies = {
        name
        for group in groups
        for axis, name in enumerate(mesh_shape)
        if len({place[d][axis] for d in group}) > 1
    }
    return "+".join(name for name in mesh_shape if name in varies) or "none"


def _groups(text: str, count: int) -> list[list[int]]:
    """The groups of devices of a collective, which XLA prints in three forms."""
    if found := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", text
    ):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        ids = np.arange(count)
        if turned := re.search(r"\[([\d,]+)\]T\(([\d,]+)\)", found[2] or ""):
            source, axes = ([int(n) for n in part.split(",")] for part in turned.groups())
            ids = ids.reshape(source).transpose(axes)
        ids = ids.reshape([int(n) for n in sizes.values()])
        within = [axis for axis, name in enumerate(sizes) if f"'{name}'" in found[3]]
        ids = np.moveaxis(ids, within, range(-len(within), 0))
        size = int(np.prod(ids.shape[ids.ndim - len(within) :]))
        return ids.reshape(-1, size).tolist()
    if found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, source, order = ([int(n) for n in (g or "").split(",") if n] for g in found.groups())
        ids = np.arange(count).reshape(source)
        ids = ids.transpose(order) if order else ids
        return ids.reshape(shape).tolist()
    if found := re.search(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)+)\}", text):
        return [[int(n) for n in g.split(",") if n] for g in re.findall(r"\{([\d,]*)\}", found[1])]
    return [list(range(count))]
