"""A trained Llama gives exactly the greedy text of its author's program."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest
import sentencepiece

from decoding_jax import Prompt, greedy
from decoding_jax.models.checkpoint import load_model

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "stories260K"


@pytest.mark.exhaustive
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the model stories260K is not beside the project")
def test_greedy_text_is_the_authors() -> None:
    # A text begins with token 1.
    prompt = Prompt(jnp.array([[1]]), jnp.array([1]))
    tokens = greedy(load_model(FOLDER), prompt, max_new_tokens=200).tokens[0, 0].tolist()
    text = sentencepiece.SentencePieceProcessor(str(FOLDER / "tokenizer.model")).decode(tokens)
    assert text == (FOLDER / "greedy_200_steps.txt").read_text()
