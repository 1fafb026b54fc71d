"""Beam search gives the sequences and scores of ``transformers`` on the same random weights."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
import tiny_transformers
from tiny_transformers import VOCAB

import decoding_jax
from decoding_jax import Prompt, Stop
from decoding_jax.loop import run
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.beam.loop import RankedBeams

# transformers and PyTorch emit warnings that do not concern this project.
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, LENGTH = 4, 9
TOKENS = np.array([[5, 9, 11, 2], [8, 4, 0, 0], [6, 12, 20, 0]])
LENGTHS = np.array([4, 2, 3])
PENALTIES = (0.0, 1.0, 2.0, -0.5)


@pytest.fixture(
    scope="module",
    params=tiers.values("gpt2", exhaustive=["t5"], release=["llama"]),
)
def pair(request, tmp_path_factory) -> tuple[Any, Any, tuple[int, ...]]:
    """A random network in ``transformers``, the same network loaded, and two end tokens."""
    reference = tiny_transformers.network(request.param)
    loaded = tiny_transformers.loaded(reference, tmp_path_factory.mktemp(request.param))
    # End tokens that occur often enough, but not so often that all sequences end at once.
    endless = decoding_jax.beam_search(*bind_model(loaded), beam_size=WIDTH, max_new_tokens=LENGTH)
    common = np.bincount(np.asarray(endless.tokens[:, :, 3:]).ravel(), minlength=VOCAB).argsort()
    return reference, loaded, tuple(int(token) for token in common[-5:-3])


def transformers_search(
    model: Any, ends: tuple[int, ...], **settings: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Sequences ``[B, N, L]``, zeros after their ends, and scores ``[B, N]``."""
    import torch

    inputs = torch.zeros((3, 4), dtype=torch.long)
    mask = torch.zeros((3, 4), dtype=torch.long)
    encoder = model.config.is_encoder_decoder
    for row, length in enumerate(LENGTHS):
        where = slice(0, length) if encoder else slice(4 - length, 4)
        inputs[row, where] = torch.from_numpy(TOKENS[row, :length])
        mask[row, where] = 1
    with torch.no_grad():
        output = model.generate(
            inputs,
            attention_mask=mask,
            num_beams=WIDTH,
            max_new_tokens=LENGTH,
            eos_token_id=list(ends),
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
    new = output.sequences.numpy()[:, 1 if encoder else 4 :]
    new = np.pad(new, ((0, 0), (0, LENGTH - new.shape[1])))
    ended = np.cumsum(np.isin(new, ends), -1) - np.isin(new, ends) > 0
    new = np.where(ended, 0, new)
    count = settings["num_return_sequences"]
    return new.reshape(3, count, LENGTH), output.sequences_scores.numpy().reshape(3, count)


def bind_model(model: Any) -> tuple[Any, Prompt]:
    tokens, length = jnp.asarray(TOKENS, jnp.int32), jnp.asarray(LENGTHS, jnp.int32)
    if hasattr(model, "bind"):
        bound = model.bind(tokens, length)
        return bound, bound.start_prompt()
    return model, Prompt(tokens, length)


def check(output: Any, tokens: np.ndarray, scores: np.ndarray) -> None:
    np.testing.assert_array_equal(output.tokens, tokens)
    np.testing.assert_allclose(output.score, scores, atol=1e-4)


@pytest.mark.release
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_beam_search(pair, early_stopping):
    reference, model, ends = pair
    bound, prompt = bind_model(model)
    stop = Stop(eos_ids=ends)
    lengths = set()
    for penalty in PENALTIES:
        output = decoding_jax.beam_search(
            bound,
            prompt,
            beam_size=WIDTH,
            max_new_tokens=LENGTH,
            length_penalty=penalty,
            early_stopping=early_stopping,
            stop=stop,
        )
        settings = {"length_penalty": penalty, "early_stopping": early_stopping}
        check(output, *transformers_search(reference, ends, num_return_sequences=WIDTH, **settings))
        last = np.take_along_axis(output.tokens, output.length[..., None] - 1, -1)[..., 0]
        np.testing.assert_array_equal(output.finished, np.isin(last, ends))
        lengths |= set(np.asarray(output.length).ravel().tolist())
    assert len(lengths) > 3, "the sequences do not end at enough places to tell searches apart"


@pytest.mark.release
def test_fewer_returned(pair):
    reference, model, ends = pair
    output = decoding_jax.beam_search(
        *bind_model(model),
        beam_size=WIDTH,
        num_return=2,
        max_new_tokens=LENGTH,
        length_penalty=1.0,
        stop=Stop(eos_ids=ends),
    )
    check(output, *transformers_search(reference, ends, num_return_sequences=2, length_penalty=1.0))


@pytest.mark.release
def test_beam_sample_given_the_same_noise(pair, monkeypatch):
    """Both libraries draw candidates by their scores plus the same given noise.

    The first of them may end; from version 5.24 on, transformers sorts them by their scores before.
    """
    import torch
    import transformers

    sorts = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
    reference, model, ends = pair
    noise = np.random.default_rng(0).gumbel(size=(LENGTH, 3, WIDTH * VOCAB)).astype(np.float32)
    calls = iter(range(LENGTH))

    def multinomial(probs: Any, num_samples: int) -> Any:
        perturbed = probs.log() + torch.from_numpy(noise[next(calls)])
        return torch.topk(perturbed, num_samples)[1]

    monkeypatch.setattr(torch, "multinomial", multinomial)
    settings = {"do_sample": True, "top_k": 0, "length_penalty": 1.0}
    want = transformers_search(reference, ends, num_return_sequences=WIDTH, **settings)

    class GivenNoise(RankedBeams):
        def choose(self, keys: Any, totals: Any, count: int, step: Any) -> Any:
            index = top_k(totals + jnp.asarray(noise)[step], count)[1]
            score = jnp.take_along_axis(totals, index, axis=1)
            if sorts:
                score, order = top_k(score, count)
                index = jnp.take_along_axis(index, order, axis=1)
            return score, index

    search = GivenNoise(
        beam_size=WIDTH, max_new_tokens=LENGTH, length_penalty=1.0, stop=Stop(eos_ids=ends)
    )
    bound, prompt = bind_model(model)
    check(jax.jit(functools.partial(run, search))(bound, prompt), *want)
