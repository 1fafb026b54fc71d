"""Executes the notebooks in fresh kernels and stores their outputs.

    python -m experiments.notebooks.execute                  # all of them
    python -m experiments.notebooks.execute 3_speculation    # one

The kernels are processes of their own, on the CPU and in the directory of the notebooks, with this
checkout on their path. Only what a cell shows is stored: no execution times, no counts of other
runs, and not the log line of a long compilation. A cell that is tagged ``t5x`` keeps what it showed
before where T5X is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMPILING = "compiling "
"""The beginning of the log line of a long compilation (``decoding_jax.ops.jit``)."""


def notebooks() -> list[Path]:
    """The notebooks of this folder, in order."""
    return sorted(HERE.glob("*.ipynb"))


def tags(cell: Any) -> list[str]:
    """The tags of a cell: ``check`` and ``t5x`` mean something here and to the test."""
    return list(cell.metadata.get("tags", []))


def printed(cell: Any) -> str:
    """What a cell prints, and the text of its results; figures are left out."""
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            texts.append(output.text)
        elif output.output_type == "execute_result":
            texts.append(output.data.get("text/plain", "") + "\n")
    return "".join(texts)


def complaints(cell: Any) -> str:
    """What a cell writes to stderr, such as warnings, without the line of a long compilation."""
    lines = [
        line
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
        for line in output.text.splitlines(keepends=True)
    ]
    return "".join(line for line in lines if not line.startswith(COMPILING))


def has_t5x() -> bool:
    """Whether T5X is installed."""
    found = importlib.util.find_spec("t5x")
    return found is not None and found.origin is not None


def execute(path: Path, **variables: str) -> Any:
    """Runs all cells of a notebook in a fresh kernel and returns it with its new outputs.

    Args:
      path: the notebook, which is not changed.
      **variables: further environment variables of the kernel.

    Raises:
      nbclient.exceptions.CellExecutionError: if a cell raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    changes = {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "XLA_FLAGS": "",
        **variables,
    }
    resources = {"metadata": {"path": str(HERE)}}
    client = NotebookClient(notebook, timeout=600, resources=resources)
    # The kernel's own log, of its transport for example, is not the notebook's.
    client.extra_arguments = ["--log-level=ERROR"]
    client.execute(env={**os.environ, **changes})
    return notebook


def clean(notebook: Any, before: Any) -> None:
    """Leaves in the outputs what a reader sees.

    Args:
      notebook: the executed notebook, which is changed.
      before: the notebook with the outputs that were stored so far.
    """
    notebook.metadata = before.metadata
    for cell, old in zip(notebook.cells, before.cells, strict=True):
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        if "t5x" in tags(cell) and not has_t5x() and old.outputs:
            cell.outputs = old.outputs
        if not complaints(cell):
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [path.stem for path in notebooks()]
    parser.add_argument("names", nargs="*", default=names, help="the notebooks; by default all")
    chosen = parser.parse_args().names
    if unknown := set(chosen) - set(names):
        parser.error(f"names: expected {', '.join(names)}, got {', '.join(sorted(unknown))}")
    for name in (bar := tqdm(chosen, unit="notebook")):
        bar.set_postfix_str(name)
        path = HERE / f"{name}.ipynb"
        before = nbformat.read(path, as_version=4)
        notebook = execute(path)
        clean(notebook, before)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
