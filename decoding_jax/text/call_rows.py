"""The texts of a call that are decoded together, as the arguments of its strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, LanguageModel, Prompt
from decoding_jax.rows import row_arguments, take_rows
from decoding_jax.text.batch import encode_batch
from decoding_jax.text.drafting import bind_drafter
from decoding_jax.text.limits import shared_positions
from decoding_jax.text.resolve import Resolved
from decoding_jax.text.sizes import padded_width, rounded_length, shared_size


class CallRows(NamedTuple):
    """The arguments of a strategy for some texts, padded to one of a few sizes.

    Attributes:
      model: the language model, bound to the texts if it is an encoder-decoder.
      prompt: the prompts, one row for each text.
      keys: a key for each row, or None for a strategy that draws nothing.
      drafter: the drafter, bound to the texts if it uses encoder inputs, or None.
      settings: the other settings.
    """

    model: LanguageModel
    prompt: Prompt
    keys: Array | None
    drafter: Any
    settings: dict[str, Any]


def rows_of(call: Resolved, members: Sequence[int], size: int) -> CallRows:
    """The rows of some texts.

    The strategies of ``STRATEGIES`` obey ``stop.max_new_tokens``, which limits each text and whose
    value is not part of the program. So their ``max_new_tokens`` is rounded up. Other functions get
    the exact value.

    Args:
      call: the call.
      members: the texts, by number.
      size: the number of rows. They are filled up with copies of the first text, so that fewer
        shapes are compiled.
    """
    rows = [*members, *[members[0]] * (size - len(members))]
    ids = [call.ids[i] for i in rows]
    longest = max(len(row) for row in ids)
    length = call.limits.of_batch(members, longest)
    positions = shared_positions(call.model)
    width = padded_width(longest, length, positions, shared_size(call.model))
    model, prompt = encode_batch(call.model, ids, width)
    given = {**call.settings, "drafter": call.drafter}
    settings = take_rows(given, rows, len(call.ids), row_arguments(call.run))
    drafter = bind_drafter(settings.pop("drafter"), call.model, ids, width)
    if call.registered:
        models = (model, drafter, getattr(drafter, "model", None))
        length = rounded_length(length, prompt.tokens.shape[1], models)
    keys = None if call.keys is None else call.keys[jnp.asarray(rows)]
    return CallRows(model, prompt, keys, drafter, {**settings, "max_new_tokens": length})
