"""Results that are kept as they are made, so that a run that was killed continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm


class Records:
    """Values by name in ``records.jsonl`` of a folder, which belongs to one experiment.

    Args:
      folder: is made if it is not there.
      settings: what the values depend on, as JSON values.

    Raises:
      ValueError: if the folder has records of other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "records.jsonl"
        self._values: dict[str, Any] = {}
        mine = json.loads(json.dumps(settings))
        if not self._path.exists():
            self._path.write_text(json.dumps({"settings": mine}) + "\n", "utf-8")
            return
        whole = self._path.read_text("utf-8").splitlines(keepends=True)
        lines = [json.loads(line) for line in whole if line.endswith("\n")]
        theirs = lines[0].get("settings") if lines else mine
        if theirs != mine:
            names = [n for n in {**theirs, **mine} if theirs.get(n) != mine.get(n)]
            raise ValueError(
                f"output_dir: expected an empty folder, or the settings of its records, got "
                f"{folder}, which has records of other settings ({', '.join(names)})"
            )
        if not lines or not whole[-1].endswith("\n"):  # It was killed while it wrote.
            kept = [json.dumps({"settings": mine}), *(json.dumps(line) for line in lines[1:])]
            self._path.write_text("\n".join(kept) + "\n", "utf-8")
        self._values = {line["name"]: line["value"] for line in lines[1:]}

    def complete(self, work: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """The values of all names: those kept, and the others made in order, with a progress bar.

        Args:
          work: makes the value of each name, as JSON values.
        """
        missing = [name for name in work if name not in self._values]
        with tqdm(total=len(work), initial=len(work) - len(missing), unit="batch") as bar:
            for name in missing:
                bar.set_postfix_str(name)
                value = json.loads(json.dumps(work[name]()))
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"name": name, "value": value}) + "\n")
                self._values[name] = value
                bar.update()
        return {name: self._values[name] for name in work}
