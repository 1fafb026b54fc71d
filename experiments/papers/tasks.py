"""Tasks: inputs, each with its references."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import held_out


@dataclasses.dataclass(frozen=True)
class Task:
    """Texts to decode from, and what their completions are compared with.

    Attributes:
      name: what tables call it.
      inputs: the texts that the model is given.
      references: one list of texts for each input.
      domains: the name of the domain of each input, or None for one domain.

    Raises:
      ValueError: if there is no input, or not one list of references and one domain for each.
    """

    name: str
    inputs: Sequence[str]
    references: Sequence[Sequence[str]]
    domains: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.domains is not None and len(self.domains) != len(self.inputs):
            raise ValueError(
                f"task {self.name}: expected one domain for each of {len(self.inputs)} inputs, got "
                f"{len(self.domains)}"
            )
        if not self.inputs or len(self.inputs) != len(self.references):
            raise ValueError(
                f"task {self.name}: expected one or more inputs, with a list of references for "
                f"each, got {len(self.inputs)} inputs and {len(self.references)} lists"
            )

    def describe(self) -> dict[str, Any]:
        """The name, the number of inputs, and a digest of all texts."""
        texts = json.dumps([list(self.inputs), [list(r) for r in self.references]])
        digest = hashlib.sha256(texts.encode()).hexdigest()[:16]
        return {"name": self.name, "inputs": len(self.inputs), "digest": digest}


def tatoeba(count: int | None = None) -> Task:
    """Held-out sentences of the embedded model, English to French, from Tatoeba.

    Their domains are questions, and other sentences of up to five words and of more.

    Args:
      count: the number of sentences, taken at even distances; None for all.

    Example:
      >>> tatoeba(2).inputs[0], tatoeba(2).domains[0]
      ('Stop!', 'up to five words')
    """
    found = spread(held_out.read(), count)
    english = [s.english for s in found]
    name = "Tatoeba, held out"
    return Task(name, english, [s.references for s in found], [_form(text) for text in english])


def standard_library(count: int | None = None) -> Task:
    """Held-out functions of Python's standard library, for the embedded model of code to continue.

    Inputs are the first lines of functions, at most 64 tokens of that model, and references the 64
    tokens after them. Their domains are what comes next: a docstring or comment, or code.

    Args:
      count: the number of functions, taken at even distances; None for all.

    Example:
      >>> task = standard_library(4)
      >>> task.inputs[0].splitlines()[0], task.domains[0]
      ("def parse(source, filename='<unknown>', mode='exec', *,", 'docstring or comment')
    """
    return json_lines(
        str(held_out.FUNCTIONS),
        inputs="prompt",
        targets="reference",
        count=count,
        name="functions of the standard library, held out",
        domain="domain",
    )


def _form(text: str) -> str:
    if text.rstrip().endswith("?"):
        return "questions"
    return "up to five words" if len(text.split()) <= 5 else "more than five words"


def json_lines(
    path: str,
    inputs: str = "inputs",
    targets: str = "targets",
    prefix: str = "",
    count: int | None = None,
    name: str | None = None,
    domain: str | None = None,
) -> Task:
    """A file with one JSON object per line.

    Args:
      path: the file.
      inputs: the key of the input, a text.
      targets: the key of the reference: a text, or a list of texts.
      prefix: text put before each input, such as ``"summarize: "`` for T5.
      count: the number of lines, taken at even distances; None for all.
      name: the name of the task, by default that of the file.
      domain: the key of the name of the input's domain, a text; None for one domain.

    Raises:
      ValueError: in one line, for a file that is not there, and a line without these keys.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"path: expected a file with one JSON object per line, got {path!r}")
    pairs = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text, references = row[inputs], row[targets]
        except (ValueError, KeyError, TypeError) as e:
            raise ValueError(
                f"{path}:{number}: expected a JSON object with {inputs!r} and {targets!r}"
            ) from e
        references = [references] if isinstance(references, str) else references
        if not _is_text(text) or not references or not all(map(_is_text, references)):
            raise ValueError(f"{path}:{number}: expected texts with characters, got an empty text")
        of = "" if domain is None else row.get(domain)
        if domain is not None and not _is_text(of):
            raise ValueError(f"{path}:{number}: expected a text, got {of!r} as {domain!r}")
        pairs.append((prefix + text, references, of))
    pairs = spread(pairs, count)
    domains = None if domain is None else [p[2] for p in pairs]
    return Task(name or file.stem, [p[0] for p in pairs], [p[1] for p in pairs], domains)


def seqio_task(name: str, split: str = "validation", count: int | None = None) -> Task:
    """The first examples of a SeqIO task, by its own texts before tokenization.

    Args:
      name: the name of a registered task. The gin file imports the module that registers it.
      split: the split of the data.
      count: the number of examples from the beginning; None for all.

    Raises:
      ValueError: if SeqIO is not installed or has no such task.
    """
    try:
        import seqio
    except ImportError as e:
        raise ValueError(
            "seqio_task: expected SeqIO (pip install 'decoding_jax[seqio]'), got "
            f"{name!r} without it"
        ) from e
    task = seqio.get_mixture_or_task(name)
    data = task.get_dataset(sequence_length=None, split=split, shuffle=False, num_epochs=1)
    texts: dict[str, list[str]] = {"inputs": [], "targets": []}
    for example in data.take(-1 if count is None else count).as_numpy_iterator():
        for feature, found in texts.items():
            text = example.get(f"{feature}_pretokenized")
            if text is None:
                vocabulary = task.output_features[feature].vocabulary
                text = vocabulary.decode([int(i) for i in example[feature]])
            found.append(text.decode("utf-8") if isinstance(text, bytes) else str(text))
    return Task(name, texts["inputs"], [[t] for t in texts["targets"]])


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def spread(rows: Iterable[Any], count: int | None) -> list[Any]:
    """``count`` of the rows at even distances, or all for None."""
    rows = list(rows)
    if count is None or count >= len(rows):
        return rows
    if count < 1:
        raise ValueError(f"count: expected 1 or more, or None for all, got {count}")
    return rows[:: len(rows) // count][:count]
