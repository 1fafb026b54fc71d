"""Tunix' GRPO learner with groups of spread samples, in a process of its own."""

import importlib.util
import os
import subprocess
import sys

import pytest
from pages import ROOT

STEPS = 10
SCRIPT = f"""
import numpy as np
from experiments import tunix_grpo

class Checked(tunix_grpo.SpreadRollout):
    def generate(self, prompts, rollout_config, **kwargs):
        output = super().generate(prompts, rollout_config, **kwargs)
        tokens = np.zeros((len(output.tokens), rollout_config.max_tokens_to_generate), np.int32)
        ours = np.zeros(tokens.shape, np.float32)
        for i, (row, log_prob) in enumerate(zip(output.tokens, output.logprobs)):
            tokens[i, : len(row)], ours[i, : len(row)] = row, log_prob
        # Tunix takes token 0 for padding, so only texts without it are compared.
        clean = [i for i, row in enumerate(output.tokens) if 0 not in row]
        theirs = self.get_per_token_logps(output.left_padded_prompt_tokens, tokens)
        apart = np.abs(np.asarray(theirs) - ours)[clean]
        assert np.where(tokens[clean] > 0, apart, 0).max() < 1e-4
        return output

rewards = tunix_grpo.train({STEPS}, group=8, rollout=Checked)
assert len(rewards) == {STEPS}, rewards
assert np.mean(rewards[-2:]) > np.mean(rewards[:2]), rewards
print("rewards:", len(rewards))
"""


@pytest.mark.release
def test_some_steps_of_tunix_learner():
    """The log-probabilities of rollouts are those that Tunix finds, and the mean reward rises."""
    found = importlib.util.find_spec("tunix")
    if found is None or importlib.util.find_spec("tunix.rl") is None:
        pytest.skip("Tunix is not installed (extra tunix)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SCRIPT]
    given = {"capture_output": True, "text": True, "timeout": 500, "check": False}
    result = subprocess.run(command, env=environment, cwd=ROOT, **given)
    assert f"rewards: {STEPS}" in result.stdout, result.stderr[-2000:]
