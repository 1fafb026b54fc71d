"""What all of the papers' experiments are given: a model, a task, a folder and limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.papers.decoding import Decoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every experiment.

    Attributes:
      model: the model and its tokenizer, as ``decoding_jax.load`` returns them.
      model_name: what the results call it.
      task: inputs and references; None for an experiment that has its own.
      output_dir: the folder of the records and results.
      max_new_tokens, max_input_tokens: the limits of the lengths.
      seed: of all keys and of the bootstrap.
    """

    model: tuple[Any, Any]
    model_name: str
    task: Any
    output_dir: str
    max_new_tokens: int = 64
    max_input_tokens: int = 512
    seed: int = 0

    @property
    def folder(self) -> Path:
        return Path(self.output_dir)

    def decoder(self, batch_size: int = 1) -> Decoder:
        """The model with the inputs of the task.

        Raises:
          ValueError: for a size or a limit below 1, and without a task.
        """
        if self.task is None:
            raise ValueError("task: expected the inputs of an experiment, got None")
        limits = self.max_new_tokens, self.max_input_tokens
        return Decoder(self.model, self.task, batch_size, *limits)

    def described(self, **settings: Any) -> dict[str, Any]:
        """These options and the settings of an experiment, as JSON values."""
        return {
            "model": self.model_name,
            **({} if self.task is None else {"task": self.task.describe()}),
            **settings,
            "max_new_tokens": self.max_new_tokens,
            "max_input_tokens": self.max_input_tokens,
            "seed": self.seed,
        }
