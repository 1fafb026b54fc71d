"""Says in one line that a batch does not fit into the memory of a device."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import jax

_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@contextlib.contextmanager
def checked(model: Any, batch_size: int, width: int, spread: int) -> Iterator[None]:
    """Turns the error of a device without enough memory into one line that says what may fit.

    A TPU's compiler says how much a program needs. The model's part of it is fixed, and the rest
    grows with the batch. Elsewhere half of the batch is suggested.

    Args:
      model: the model.
      batch_size: B, the number of rows of a batch.
      width: the number of tokens that inputs are padded to.
      spread: the number of devices, or groups of devices, that rows are spread over.

    Raises:
      ValueError: in place of XLA's RESOURCE_EXHAUSTED.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as e:
        reason = str(e).partition("\n")[0]
        if "RESOURCE_EXHAUSTED" not in reason:
            raise
        fits = smaller_batch(reason, _bytes_on_a_device(model), batch_size, spread)
        takes = "a MESH that spreads the model over more devices"
        if fits is not None:
            takes = f"a smaller one, such as {fits}, or {takes}"
        raise ValueError(
            f"batch_size: got {batch_size} inputs of up to {width} tokens, which do not fit into "
            f"the memory of a device ({reason}); takes {takes}"
        ) from e


def smaller_batch(reason: str, model_bytes: int, batch_size: int, spread: int) -> int | None:
    """A batch size that may fit, a multiple of ``spread``; None if no smaller one does.

    Example:
      >>> used = "RESOURCE_EXHAUSTED: XLA:TPU: Used 22.00G of 16.00G hbm."
      >>> smaller_batch(used, 10 * 2**30, 64, 8), smaller_batch(used, 16 * 2**30, 64, 8)
      (32, None)
      >>> smaller_batch("RESOURCE_EXHAUSTED: Out of memory", 0, 64, 8)
      32
    """
    part = 0.5
    if found := _USED.search(reason):
        used, limit = (float(found[i]) * _UNITS[found[i + 1]] for i in (1, 3))
        part = (limit - model_bytes) / max(used - model_bytes, 1)
    fits = int(batch_size * part) // spread * spread
    return fits if 0 < fits < batch_size else None


def _bytes_on_a_device(model: Any) -> int:
    """The size of the largest part of a model that one device holds."""
    total: dict[jax.Device, int] = {}
    for leaf in jax.tree.leaves(model):
        for shard in leaf.addressable_shards if isinstance(leaf, jax.Array) else ():
            total[shard.device] = total.get(shard.device, 0) + shard.data.nbytes
    return max(total.values(), default=0)
