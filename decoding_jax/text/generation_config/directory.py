"""The ``generation_config.json`` of a model's directory, which ``generate`` applies by itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from decoding_jax.storage import StoragePath
from decoding_jax.text.generation_config.config import FILE, GenerationConfig, parsed
from decoding_jax.text.generation_config.parameters import PARAMETERS


class DirectoryConfig(NamedTuple):
    """The file as ``load`` has read it; it is parsed when it is used.

    Attributes:
      path: where the file is, for messages.
      text: its contents.
    """

    path: str
    text: str

    def config(self) -> GenerationConfig | None:
        """The parameters, or None if they are those of a call without any.

        End tokens do not count, since the tokenizer has them.

        Raises:
          ValueError: in one line, for a file that is broken, or has parameters that are unknown or
            of the wrong kind.

        Example:
          >>> DirectoryConfig("gpt2/generation_config.json", '{"num_beams": 4}').config()
          GenerationConfig(num_beams=4)
          >>> DirectoryConfig("gpt2/generation_config.json", '{"eos_token_id": 1}').config()
        """
        try:
            config = parsed(self.text, self.path)
        except ValueError as error:
            raise ValueError(f"{error}; strategy= or config= replaces the file") from None
        chooses = any(_chooses(name, value) for name, value in config.values.items())
        return config if chooses else None


def _chooses(name: str, value: Any) -> bool:
    parameter = PARAMETERS[name]
    changed = value not in (parameter.default, *parameter.harmless)
    return changed and parameter.use != "no effect" and name != "eos_token_id"


def read(directory: StoragePath) -> DirectoryConfig | None:
    """The file of a directory, or None if there is none."""
    path = directory / FILE
    try:
        return DirectoryConfig(str(path), path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
