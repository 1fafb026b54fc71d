"""The loop that trains the embedded models and their heads, and the folder of a trained model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import serialization
from tqdm import tqdm

from decoding_jax.models.checkpoint import save_model

_SECONDS = 10  # between two lines of the bar


def train(
    update: Callable[[Any, Any, Any, int], tuple[Any, Any, Any]],
    params: Any,
    optimizer: optax.GradientTransformation,
    batches: Callable[[int], Iterable[Any]],
    steps: int,
    checkpoint: Path,
    every: int,
    shown: Callable[[Any, int], dict[str, str]],
) -> Any:
    """The trained parameters; a run that was killed goes on from its last checkpoint.

    Args:
      update: ``(params, opt, batch, step) -> (params, opt, loss)``; it may overwrite its arrays.
      params: the parameters to begin with.
      optimizer: its state is a part of a checkpoint.
      batches: the batches from a step on.
      steps: the number of steps.
      checkpoint: the file of the last checkpoint.
      every: the number of steps between two checkpoints.
      shown: ``(loss, step)`` to what the bar says of the average loss so far.
    """
    state = {"params": params, "opt": jax.jit(optimizer.init)(params), "step": 0}
    if checkpoint.exists():
        state = serialization.from_bytes(state, checkpoint.read_bytes())
    params, opt, first = state["params"], state["opt"], int(state["step"])
    average: Any = 0.0
    since = time.time()
    bar = tqdm(range(first, steps), initial=first, total=steps, mininterval=_SECONDS)
    for step, batch in zip(bar, batches(first), strict=False):
        params, opt, loss = update(params, opt, batch, step)
        loss = np.asarray(loss)
        average = loss if step == first else 0.98 * average + 0.02 * loss
        if time.time() - since > _SECONDS:
            bar.set_postfix(**shown(average, step))
            since = time.time()
        if (step + 1) % every == 0 or step + 1 == steps:
            state = {"params": params, "opt": opt, "step": step + 1}
            partial = checkpoint.with_suffix(".partial")
            partial.write_bytes(serialization.to_bytes(state))
            partial.replace(checkpoint)
    return params


def export(model: Any, vocabulary: Path, directory: Path | None, **options: Any) -> None:
    """Writes a model in bfloat16, with the file of its tokenizer, to a folder that ``load`` reads.

    Args:
      model: the model.
      vocabulary: the file.
      directory: the folder; None writes nothing.
      **options: as for ``save_model``.
    """
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        save_model(model, directory, dtype="bfloat16", **options)
        (directory / vocabulary.name).write_bytes(vocabulary.read_bytes())
