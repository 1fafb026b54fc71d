"""Python's standard library as text: read, split by file, tokenised, in windows.

The files are those of a Python installation, under the PSF licence.
"""

from __future__ import annotations

import ast
import hashlib
import textwrap
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

END = "<|endoftext|>"
"""The token between two files, with id 0."""

SKIPPED = {
    "encodings",  # tables
    "idlelib",
    "lib2to3",
    "pydoc_data",  # prose
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


class File(NamedTuple):
    """A source file: its path in the library, and its text."""

    name: str
    text: str


def read_files(root: Path) -> list[File]:
    """The ``.py`` files below ``root`` in the order of their names, without folders in ``SKIPPED``.

    What is generated for an installation is skipped too.

    Raises:
      ValueError: if there is no such file.
    """
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        generated = path.name.startswith("_sysconfigdata")
        if SKIPPED.isdisjoint(relative.parts[:-1]) and not generated:
            with tokenize.open(path) as file:  # in the encoding that it declares
                text = file.read()
            if text.strip():
                found.append(File(relative.as_posix(), text))
    if not found:
        raise ValueError(f"data: expected a folder with .py files, got {str(root)!r}")
    return found


def split(files: Sequence[File], every: int = 20) -> tuple[list[File], list[File]]:
    """Training and held-out files: of the latter about one in ``every``, by a digest of names.

    Raises:
      ValueError: if there are none on one side.
    """
    parts: tuple[list[File], list[File]] = [], []
    for file in files:
        digest = hashlib.sha256(file.name.encode()).digest()
        parts[int.from_bytes(digest[:4], "big") % every == 0].append(file)
    if not all(parts):
        raise ValueError(f"every: expected a number that holds out some of the files, got {every}")
    return parts


def train_tokenizer(files: Sequence[File], path: Path, vocab_size: int) -> None:
    """Byte-pair encoding of bytes, which keeps every character; writes ``tokenizer.json``."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([file.text for file in files], trainer)
    tokenizer.save(str(path), pretty=False)


def encode(tokenizer: tokenizers.Tokenizer, files: Sequence[File]) -> np.ndarray:
    """The tokens of all files, each with ``END`` before and after it, int32 ``[T]``."""
    rows = tokenizer.encode_batch([file.text for file in files])
    ids = [tokenizer.token_to_id(END)]
    for row in rows:
        ids += [*row.ids, ids[0]]
    return np.asarray(ids, np.int32)


class Batches:
    """Endless passes over a text in windows, in an order fixed by the seed, from any step.

    Args:
      tokens: int32 ``[T]``, ``length`` or more.
      length: the number of tokens of a window, with the first, which is not predicted.
      size: the number of windows of a batch.
      seed: of the order. Each pass begins its windows at another token.
    """

    def __init__(self, tokens: np.ndarray, length: int, size: int, seed: int):
        self.tokens, self.length, self.size, self.seed = tokens, length, size, seed
        windows = (len(tokens) - 1) // (length - 1) - 1
        self.steps_per_epoch = windows // size
        if not self.steps_per_epoch:
            raise ValueError(
                f"data: expected {(size + 1) * (length - 1) + 1} or more, got {len(tokens)} tokens"
            )

    def __call__(self, first_step: int) -> Iterator[np.ndarray]:
        """Batches int32 ``[size, length]``; the last token of a window is the next one's first."""
        epoch, skip = divmod(first_step, self.steps_per_epoch)
        stride = self.length - 1
        while True:
            rng = np.random.default_rng((self.seed, epoch))
            starts = rng.integers(stride) + stride * rng.permutation(
                self.steps_per_epoch * self.size
            )
            for chosen in starts.reshape(-1, self.size)[skip:]:
                yield self.tokens[chosen[:, None] + np.arange(self.length)]
            epoch, skip = epoch + 1, 0


class Window(NamedTuple):
    """A part of a text that is scored: its tokens, and how many of the first are context."""

    tokens: np.ndarray
    context: int


def windows(tokens: np.ndarray, length: int) -> Iterator[Window]:
    """Windows of at most ``length`` tokens, after the first half of which each token is scored.

    Every token but the first of the text is scored once; those of the first window all are.
    """
    half = length // 2
    yield Window(tokens[:length], 1)
    for first in range(half, len(tokens) - length + half, half):
        yield Window(tokens[first : first + length], length - half)


class Example(NamedTuple):
    """The beginning of a function, and what follows.

    Attributes:
      file: the name of its file.
      line: the number of its first line.
      prompt: whole lines of it, without the last line break.
      reference: the text after them, which begins with a line break.
      domain: ``docstring or comment``, or ``code``: what the line after the prompt is.
    """

    file: str
    line: int
    prompt: str
    reference: str
    domain: str


def examples(
    tokenizer: tokenizers.Tokenizer, files: Sequence[File], prompt: int = 64, reference: int = 64
) -> list[Example]:
    """One example for each function that is long enough and is not within another one.

    Args:
      tokenizer: that of the model.
      files: those with the functions.
      prompt: the largest number of tokens of a prompt; the smallest is half of it.
      reference: the number of tokens of a reference.
    """
    found = []
    for file in files:
        lines = file.text.splitlines(keepends=True)
        for function in functions(ast.parse(file.text)):
            first = function.lineno - 1
            cut = [lines[first]]
            for line in lines[first + 1 : function.end_lineno]:
                if len(tokenizer.encode("".join([*cut, line]).rstrip()).ids) > prompt:
                    break
                cut.append(line)
            text, number = "".join(cut), first + len(cut)
            begun = text.rstrip()
            rest = text[len(begun) :] + "".join(lines[number : function.end_lineno])
            ids = tokenizer.encode(rest).ids
            if len(ids) >= reference and len(tokenizer.encode(begun).ids) >= prompt // 2:
                domain = "docstring or comment" if _prose(function, lines, number) else "code"
                after = tokenizer.decode(ids[:reference])
                found.append(Example(file.name, first + 1, begun, after, domain))
    return found


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods of a module, without those within others."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from functions(child)


def _prose(
    function: ast.FunctionDef | ast.AsyncFunctionDef, lines: Sequence[str], number: int
) -> bool:
    """Whether the line of that number, counted from 0, is of the docstring or a comment."""
    while not lines[number].strip():
        number += 1
    begins = function.body[0]
    if ast.get_docstring(function) is None or not begins.end_lineno:
        return lines[number].lstrip().startswith("#")
    inside = begins.lineno - 1 <= number < begins.end_lineno
    return inside or lines[number].lstrip().startswith("#")


class Line(NamedTuple):
    """A line of a function, with what is before and after it.

    Attributes:
      file: the name of its file.
      line: its number.
      prompt: the function up to the last space of the line's indentation, which is left out since
        it belongs to the token of the first word.
      reference: that space, and the line.
      after: the rest of the function, which begins with a line break.
    """

    file: str
    line: int
    prompt: str
    reference: str
    after: str


def held_out_lines(
    tokenizer: tokenizers.Tokenizer, files: Sequence[File], prompt: int = 192, reference: int = 24
) -> list[Line]:
    """The middle one of the simple statements of a line of each function, if it is short enough.

    Args:
      tokenizer: that of the model.
      files: those with the functions.
      prompt: the largest number of tokens of a prompt; the smallest is 32.
      reference: the largest number of tokens of a reference.
    """
    found = []
    for file in files:
        rows = file.text.splitlines(keepends=True)
        for function in functions(ast.parse(file.text)):
            simple = [
                node
                for node in ast.walk(function)
                if isinstance(node, ast.stmt)
                and not hasattr(node, "body")
                and node.lineno == node.end_lineno
                and rows[node.lineno - 1][: node.col_offset].isspace()
                and node is not function.body[0]
            ]
            simple.sort(key=lambda node: node.lineno)
            if not simple:
                continue
            node = simple[len(simple) // 2]
            indent = node.col_offset - 1
            row = rows[node.lineno - 1]
            before = "".join(rows[function.lineno - 1 : node.lineno - 1]) + row[:indent]
            line = row[indent:].rstrip("\n")
            after = "\n" + "".join(rows[node.lineno : function.end_lineno])
            sizes = [len(tokenizer.encode(text).ids) for text in (before, line)]
            if 32 <= sizes[0] <= prompt and sizes[1] <= reference:
                found.append(Line(file.name, node.lineno, before, line, after))
    return found


def parses(line: Line, text: str) -> bool:
    """Whether the function is Python with ``text``, up to a line break, in the place of the line.

    Example:
      >>> line = Line("a.py", 2, "def f(x):\\n   ", " return x", "\\n")
      >>> parses(line, " return -x\\n!"), parses(line, " return x +")
      (True, False)
    """
    return _is_python(line.prompt + text.partition("\n")[0] + line.after)


def continues(example: Example, text: str) -> bool:
    """Whether the prompt is Python with the whole lines of ``text``, of which one is not blank.

    Example:
      >>> example = Example("a.py", 1, "def f(x):", "", "code")
      >>> continues(example, "\\n    return x\\n  !"), continues(example, "\\n    return x")
      (True, False)
    """
    whole = text.rpartition("\n")[0]
    return bool(whole.strip()) and _is_python(example.prompt + whole)


def _is_python(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those of escapes in strings
        try:
            ast.parse(textwrap.dedent(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
