"""Checks of ``prefill`` and ``extend`` along chains."""

from __future__ import annotations

import jax
import numpy as np

from decoding_jax.loop.refill import resized
from decoding_jax.testing.conformance.trial import LANES, SLOTS, Trial, extend, prefill


def check_prefill(trial: Trial) -> None:
    """A prompt made longer by a path gives the logits that extending by the path gives.

    All prompts are padded to the same width, the one that is not made longer too.
    """
    model, (tokens, length) = trial.model, trial.prompt
    width = tokens.shape[1]
    for count in range(SLOTS + 1):
        longer = np.zeros((3, width + SLOTS), np.int32)
        longer[:, :width] = tokens
        for row, n in enumerate(length):
            longer[row, n : n + count] = trial.tokens[row, 0, :count]
        output, _ = prefill(model, longer, length + count, LANES, SLOTS)
        want = trial.reference[:, :1, count - 1 : count] if count else trial.start()[0]
        what = f"a prompt longer by {count} token{'s' if count > 1 else ''}"
        if count == 0:
            what = (
                f"the same prompts, padded to {width + SLOTS} tokens instead of {width} (padding "
                "must not change the logits)"
            )
        trial.same(output.logits, want, what)


def check_hidden(trial: Trial) -> None:
    """Hidden states, where the model gives any, are the same from a prompt as from a chain."""
    tokens, length = trial.prompt
    width = tokens.shape[1]
    longer = np.zeros((3, width + SLOTS), np.int32)
    longer[:, :width] = tokens
    for row, n in enumerate(length):
        longer[row, n : n + SLOTS] = trial.tokens[row, 0]
    whole, _ = prefill(trial.model, longer, length + SLOTS, LANES, SLOTS, True)
    output, _ = extend(trial.model, trial.start()[1], trial.tokens, 0)
    if whole.hidden is None or output.hidden is None:
        return
    index = (length[:, None] + np.arange(SLOTS))[:, None, :, None]
    want = np.take_along_axis(np.asarray(whole.hidden), index, 2)
    trial.same(np.asarray(output.hidden)[:, :1], want, "hidden states of a chain")


def check_blocks(trial: Trial) -> None:
    """Extending by T tokens equals T calls with one token, for any division into blocks."""
    for blocks in ((SLOTS,), (1, 3, 2)):
        _, cache = trial.start()
        at = 0
        for size in blocks:
            output, cache = extend(trial.model, cache, trial.tokens[..., at : at + size], at)
            what = f"blocks of {blocks} tokens, from slot {at}"
            trial.same(output.logits, trial.reference[:, :, at : at + size], what)
            at += size


def check_rewind(trial: Trial) -> None:
    """Writing again from an earlier slot replaces its contents: stale slots are not visible."""
    other = (trial.tokens + 1) % trial.model.vocab_size
    _, cache = trial.start()
    _, cache = extend(trial.model, cache, trial.tokens[..., :2], 0)
    _, cache = extend(trial.model, cache, other[..., 2:], 2)
    for t in range(2, SLOTS):
        output, cache = extend(trial.model, cache, trial.tokens[..., t : t + 1], t)
        trial.same(output.logits, trial.reference[:, :, t : t + 1], f"rewound to 2, at slot {t}")


def check_rows_alone(trial: Trial) -> None:
    """A row alone, without padding, gives the same logits as in the batch."""
    for row in range(2):
        model, width = trial.row_model(row), int(trial.prompt[1][row])
        tokens = trial.prompt[0][row : row + 1, :width]
        output, cache = prefill(model, tokens, np.array([width]), LANES, SLOTS)
        first = trial.start()[0][row : row + 1]
        trial.same(output.logits, first, f"prefill of row {row} alone")
        output, _ = extend(model, cache, trial.tokens[row : row + 1], 0)
        trial.same(output.logits, trial.reference[row : row + 1], f"row {row} alone")


def check_padding(trial: Trial) -> None:
    """Tokens after a prompt's end do not change the logits."""
    place = np.arange(trial.prompt[0].shape[1])
    padding = place >= trial.prompt[1][:, None]
    junk = np.where(padding, 1 - trial.prompt[0] % 2, trial.prompt[0])
    output, cache = prefill(trial.model, junk, trial.prompt[1], LANES, SLOTS)
    trial.same(output.logits, trial.start()[0], "prefill with other padding")
    output, _ = extend(trial.model, cache, trial.tokens, 0)
    trial.same(output.logits, trial.reference, "extend after other padding")


def check_widens(trial: Trial) -> None:
    """A cache serves prompts that are padded further, once its arrays are, and the other way."""
    (tokens, length), (_, narrow) = trial.prompt, trial.start()
    padded = np.pad(tokens, ((0, 0), (0, 3)))
    _, wide = prefill(trial.model, padded, length, LANES, SLOTS)
    for cache, like, what in ((narrow, wide, "padded"), (wide, narrow, "cut")):
        cache = jax.tree.map(lambda x, y: resized(x, y.shape), cache, like)
        output, _ = extend(trial.model, cache, trial.tokens, 0)
        trial.same(output.logits, trial.reference, f"extend after a cache was {what}")


def check_ragged(trial: Trial) -> None:
    """Sequences at different slots give the same logits as sequences at equal slots."""
    tokens, at = trial.tokens, np.array([[0, 2], [1, 0], [3, 2]])
    _, cache = trial.start()
    _, cache = extend(trial.model, cache, trial.tokens[..., :3], 0)
    for size in (2, 1):
        index = at[..., None] + np.arange(size)
        block = np.take_along_axis(tokens, index, 2)
        output, cache = extend(trial.model, cache, block, at)
        want = np.take_along_axis(trial.reference, index[..., None], 2)
        trial.same(output.logits, want, f"lanes at slots {at.tolist()}, {size} tokens")
        at = at + size


def check_out_of_range(trial: Trial) -> None:
    """Writes before the first slot and after the last are dropped and change nothing."""
    for edge, inside in ((-2, slice(2, 4)), (SLOTS - 2, slice(0, 2))):
        _, cache = trial.start()
        _, cache = extend(trial.model, cache, trial.tokens, 0)
        block = (trial.tokens[..., :4] + 1) % trial.model.vocab_size
        at = max(edge, 0)
        block[..., inside] = trial.tokens[..., at : at + 2]
        start = np.full((3, LANES), edge)
        output, cache = extend(trial.model, cache, block, start)
        what = f"a block of 4 written at slot {edge} of {SLOTS}"
        trial.same(output.logits[:, :, inside], trial.reference[:, :, at : at + 2], what)
        output, _ = extend(trial.model, cache, trial.tokens[..., -1:], SLOTS - 1)
        trial.same(output.logits, trial.reference[:, :, -1:], f"{what}: the slots afterwards")
    _, cache = extend(trial.model, cache, block, np.full((3, LANES), SLOTS + 7))
    _, cache = extend(trial.model, cache, block, np.full((3, LANES), -9))
    output, _ = extend(trial.model, cache, trial.tokens[..., -1:], SLOTS - 1)
    trial.same(output.logits, trial.reference[:, :, -1:], "blocks written wholly outside")


def check_junk(trial: Trial) -> None:
    """Invalid tokens that are on no path do not change any logits, not even to NaN."""
    junk = np.array([-1, trial.model.vocab_size, 2**31 - 1, -(2**31), 0, 7], np.int32)
    junk = np.broadcast_to(junk, trial.tokens.shape)
    for position in (None, junk[..., ::-1]):
        _, cache = extend(trial.model, trial.start()[1], junk, 0, None, position)
        for t in range(SLOTS):
            output, cache = extend(trial.model, cache, trial.tokens[..., t : t + 1], t)
            what = f"slot {t}, with junk in the slots behind it"
            trial.same(output.logits, trial.reference[:, :, t : t + 1], what)
