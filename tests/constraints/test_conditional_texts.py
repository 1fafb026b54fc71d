"""Exact conditional samples and particles of texts that follow a pattern."""

import re

import jax
import numpy as np
import pytest
import tiers
from languages import Pieces

import decoding_jax
from decoding_jax import Prompt, Stop, constraints, transforms
from decoding_jax.loop import forms
from decoding_jax.shell import command
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution
from decoding_jax.testing.certificate.comparisons import outcome_index

# Token 4 ends a text.
TOKENIZER = Pieces(["a", "b", "ab", "é"])
MODEL = TableLM.random(jax.random.key(3), 5)
CONSTRAINT = constraints.regex("(ab|é){1,2}b?|a", TOKENIZER)
SETTINGS = {"max_new_tokens": 6, "stop": Stop(eos_ids=(4,))}
ROWS = 1_500


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", tiers.values("conditional_sample", exhaustive=["smc_sample"]))
def test_texts_of_a_pattern_follow_the_conditional(name):
    """1,500 rows, chi-square at level 0.001; for particles, the mean weights within 0.03."""
    prompt = Prompt(np.tile(np.int32([[1, 2]]), (ROWS, 1)), np.full(ROWS, 2, np.int32))
    one = Prompt(prompt.tokens[:1], prompt.length[:1])
    want = enumerate_distribution(MODEL, one, transform=CONSTRAINT, **SETTINGS)
    mass = np.where(want.finished, np.exp(want.log_prob), 0.0)
    prob = mass / mass.sum()
    assert np.abs(prob - want.prob).sum() / 2 > 0.1  # masking is another distribution
    beside = {"smc_sample": {"weighted": True}, "conditional_sample": {"max_prefixes": 64}}[name]
    output = jax.device_get(
        getattr(decoding_jax, name)(
            MODEL if name == "conditional_sample" else MODEL.lockstep(),
            prompt,
            jax.random.key(1),
            num_samples=2 if name == "conditional_sample" else 16,
            language=CONSTRAINT,
            **beside,
            **SETTINGS,
        )
    )
    index = outcome_index(want, output.tokens.reshape(-1, 6), output.length.ravel())
    if name == "conditional_sample":
        kept = output.info.accepted.ravel()
        assert kept.mean() > 0.9
        counts = np.bincount(index[kept], minlength=len(prob))
        assert chi_square(counts, prob).p_value > 1e-3
    else:
        share = np.exp(np.float64(output.info.log_weight)).ravel()
        probs = np.bincount(index[share > 0], share[share > 0], len(prob)) / share.sum()
        assert np.abs(probs - prob).sum() / 2 < 0.03


def test_a_constraint_is_the_language_of_a_strategy_that_lists_texts_or_comes_first():
    sampler = forms.as_strategy("arithmetic_sample", {"max_texts": 8})
    kept = forms.constrained(sampler, "regex", CONSTRAINT)
    assert kept.language is CONSTRAINT
    assert kept.transform is None
    kept = forms.constrained(
        decoding_jax.Sample(transform=transforms.top_k(2)), "regex", CONSTRAINT
    )
    assert isinstance(kept.transform, transforms.Chain)
    assert kept.transform.transforms[0] is CONSTRAINT
    too_many = forms.as_strategy("arithmetic_sample", {"max_texts": 5_000})
    with pytest.raises(ValueError, match=r"^max_texts: expected an int from 1 to 4,096"):
        forms.constrained(too_many, "regex", CONSTRAINT)
    plain = forms.as_strategy(lambda model, prompt: None, {})
    with pytest.raises(ValueError, match=r"^regex: expected none for a strategy that takes no tra"):
        forms.constrained(plain, "regex", CONSTRAINT)


@pytest.mark.release
def test_a_pattern_of_the_shell_is_the_language(monkeypatch, capsys):
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: (MODEL, TOKENIZER))
    seen = {}
    generate = decoding_jax.generate

    def noted(*args, **settings):
        seen.update(settings)
        return generate(*args, **settings)

    monkeypatch.setattr(command, "generate", noted)
    argv = ["ab", "--strategy", "conditional_sample", "--max_new_tokens", "6", "--regex", "a|ab"]
    assert command.main(argv) == 0
    assert seen["language"] is not None
    assert seen["transform"] is None
    for line in capsys.readouterr().out.splitlines()[2:]:
        if line:
            assert re.fullmatch("a|ab", line.split()[-1])


@pytest.mark.release
def test_the_shell_says_that_max_texts_did_not_suffice(monkeypatch, capsys):
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: (MODEL, TOKENIZER))
    argv = ["ab", "--strategy", "arithmetic_sample", "--max_new_tokens", "6", "--regex", "a|ab"]
    reason = "the language has more texts, or beginnings of one length, than max_texts"
    for form in ["--num_samples", "1"], ["--num_samples", "1", "--json"]:
        assert command.main([*argv, "--max_texts", "1", *form]) == 0
        printed = capsys.readouterr()
        assert f"texts: got no completion for text 0, of 1: {reason}" in printed.err
        assert f"no output: {reason}" in printed.out
