"""Checks that a model's methods do what ``base.LanguageModel`` specifies, for your own models too:

    from decoding_jax.testing import check_model

    def test_my_model():
        check_model(my_model, tolerance=1e-5)

Each check compares logits from the cache with a reference that never rewinds, branches or moves
anything, and raises an AssertionError that states where the logits differ. Outputs that the
protocol leaves undefined are not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoding_jax.testing.conformance.chain import (
    check_blocks,
    check_hidden,
    check_junk,
    check_out_of_range,
    check_padding,
    check_prefill,
    check_ragged,
    check_rewind,
    check_rows_alone,
    check_widens,
)
from decoding_jax.testing.conformance.tree import (
    check_keep,
    check_position,
    check_select,
    check_tree,
)
from decoding_jax.testing.conformance.trial import Trial, make_trial

CHECKS: dict[Callable[[Trial], None], tuple[str, ...]] = {
    check_prefill: (),
    check_hidden: (),
    check_blocks: (),
    check_rewind: ("rewinds",),
    check_rows_alone: (),
    check_padding: (),
    check_junk: ("rewinds",),
    check_widens: ("widens",),
    check_ragged: ("ragged",),
    check_out_of_range: ("ragged",),
    check_tree: ("tree",),
    check_position: ("tree",),
    check_keep: ("tree", "keep"),
    check_select: ("select",),
}
"""The checks, and the capabilities that a model needs for each of them."""


def applies(check: Callable[[Trial], None], model: Any) -> bool:
    """Whether the model has the capabilities that the check needs.

    A model rewinds unless it says otherwise, as one does to whose cache tokens are only appended.
    """
    return all(getattr(model, needed, needed == "rewinds") for needed in CHECKS[check])


def check_model(
    model: Any,
    *,
    seed: int = 0,
    tolerance: float = 0.0,
    row_model: Callable[[int], Any] | None = None,
) -> list[str]:
    """Runs every check that applies to the model.

    Args:
      model: with a vocabulary of 2 or more, room for 16 positions and, if it is bound to inputs,
        three rows of them.
      seed: of the random prompts and paths.
      tolerance: 0 for a model whose logits do not depend on the batch, about 1e-5 for a network
        in float32.
      row_model: for a model bound to its rows' inputs: the model bound to those of one row.

    Returns:
      The names of the checks that ran.

    Raises:
      AssertionError: from the first check that fails.

    Example:
      >>> import jax
      >>> from decoding_jax.testing import TableLM
      >>> names = check_model(TableLM.random(jax.random.key(0), 5).lockstep())
      >>> "check_rewind" in names, "check_tree" in names
      (True, False)
    """
    trial = make_trial(model, seed=seed, tolerance=tolerance, row_model=row_model)
    names = []
    for check in CHECKS:
        if applies(check, model):
            check(trial)
            names.append(check.__name__)
    return names
