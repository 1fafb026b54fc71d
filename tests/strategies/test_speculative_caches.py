"""The caches of target and draft are updated in place."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from test_speculative import KEY, prompt_of

import decoding_jax
from decoding_jax.models import GPT2, GPT2Config


@pytest.mark.exhaustive
@pytest.mark.optimized
def test_the_loop_copies_no_cache():
    """The compiled loops update the caches of target and draft in place.

    One row of one lane is the hardest case for XLA's CPU compiler.
    """
    batch = 1
    config = GPT2Config(
        vocab_size=11, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=1, max_positions=2048
    )
    small = dataclasses.replace(config, emb_dim=4, head_dim=0)
    target, draft = (
        jax.tree.map(
            lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(lambda c=c: GPT2.init(c, KEY))
        )
        for c in (config, small)
    )
    prompt = prompt_of(np.ones((batch, 3)), np.full(batch, 3))
    program = (
        decoding_jax.speculative_sample.lower(
            target, draft, prompt, KEY, num_draft_tokens=3, max_new_tokens=1010
        )
        .compile()
        .as_text()
    )
    whole = re.compile(rf"= f32\[{batch},1,2,1009,([24])\]\S* ([\w-]+)\(")
    bodies = set(re.findall(r"while\(.*body=%?([\w.-]+)", program))
    found = {}
    for text in program.split("\n\n"):
        name = text.split(" ", 1)[0].lstrip("%")
        if name in bodies:
            for line in text.splitlines():
                if match := whole.search(line):
                    found.setdefault(name, []).append(match.groups())
    assert len(found) == 2  # The loop, and the draft's loop in it.
    # Updates of the draft's cache and of the target's, whose heads have these widths.
    updates = {"2": [], "4": []}
    in_place = {"get-tuple-element", "fusion", "while", "scatter"}
    for operations in found.values():
        assert {name for _, name in operations} <= in_place
        for width, counts in updates.items():
            counts.append(sum(operations.count((width, name)) for name in ("fusion", "scatter")))
    # Every call updates keys and values once. On a CPU, a draft begins with two calls and has one
    # in its loop; the target has one call.
    assert max(updates["2"]) <= 4
    assert min(updates["2"]) <= 2
    assert min(updates["4"]) == 0
    assert max(updates["4"]) <= 2
