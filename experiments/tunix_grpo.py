"""Spread samples as the groups of Tunix' GRPO learner: a recipe, and a run of a few steps.

    pip install google-tunix
    python -m experiments.tunix_grpo --steps 8

Tunix (https://github.com/google/tunix) takes a class of rollouts, ``SpreadRollout``, and repeats
every prompt as often as its group has samples. The class draws each group as one row of
``arithmetic_sample``, from Tunix' own model: any with its signature, such as its Gemma, Llama and
Qwen. Here it is a Llama of two small layers on bytes, and the reward is the share of vowels.

The model is called without a cache, which is simple, and right for short texts; a function for
``adapters.from_cache`` is faster for long ones.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3.model import Llama3, ModelConfig
from tunix.rl import common
from tunix.rl import rl_cluster as clusters
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.adapters import from_logits

PROMPTS = ("a cat ", "the tree ", "we eat ", "on hills ")


class SpreadRollout(base_rollout.BaseRollout):
    """Rollouts whose groups are samples that are spread together.

    Args:
      rollout_actor: Tunix' model, with ``(tokens, positions, cache, attention_mask) -> (logits,
        cache)``.
      tokenizer: with ``encode``, ``decode``, ``eos_id`` and ``pad_id``.
      mesh, rollout_config: Tunix gives them.
      group: G, how often Tunix repeats each prompt (``num_generations``).
      vocab_size: V of the model.
      sampler: a strategy with ``num_samples`` and ``with_sample_log_prob``.
      seed: of the keys; every call has its own.
    """

    def __init__(
        self,
        rollout_actor: nnx.Module,
        tokenizer: Any,
        mesh: Any,
        rollout_config: base_rollout.RolloutConfig,
        *,
        group: int,
        vocab_size: int,
        sampler: Callable[..., decoding_jax.DecodeOutput] = decoding_jax.arithmetic_sample,
        seed: int = 0,
    ):
        del mesh, rollout_config
        self._actor, self._tokenizer, self._group = rollout_actor, tokenizer, group
        self._sampler, self._calls = sampler, jax.random.key(seed)
        self._vocab_size, self._count = vocab_size, 0
        graph = nnx.graphdef(rollout_actor)

        def every_logit(state: Any, tokens: Any, length: Any) -> Any:
            rows, width = tokens.shape
            at = jnp.arange(width)
            mask = (at[None] <= at[:, None])[None] & (at[None, None] < length[:, None, None])
            positions = jnp.broadcast_to(at[None], (rows, width))
            logits, _ = nnx.merge(graph, state)(tokens, positions, None, mask)
            return logits.astype(jnp.float32)

        self._every_logit = every_logit

    def generate(
        self, prompts: list[str], rollout_config: base_rollout.RolloutConfig, **kwargs: Any
    ) -> base_rollout.RolloutOutput:
        """One row of G samples for each G equal prompts, in Tunix' order."""
        texts = [str(prompt) for prompt in prompts]
        groups = [texts[i : i + self._group] for i in range(0, len(texts), self._group)]
        if any(len({*group}) != 1 or len(group) != self._group for group in groups):
            raise ValueError(f"prompts: expected each {self._group} times in a row, got {texts}")
        size, length = rollout_config.max_prompt_length, rollout_config.max_tokens_to_generate
        ids = [self._tokenizer.encode(group[0])[-size:] for group in groups]
        right, left = (np.full((len(ids), size), self.pad_id(), np.int32) for _ in range(2))
        for i, row in enumerate(ids):
            right[i, : len(row)], left[i, size - len(row) :] = row, row
        model = from_logits(self._every_logit, self._vocab_size, parameters=nnx.state(self._actor))
        prompt = Prompt(jnp.asarray(right), jnp.asarray([len(row) for row in ids]))
        key, self._count = jax.random.fold_in(self._calls, self._count), self._count + 1
        output = jax.device_get(
            self._sampler(
                model,
                prompt,
                key,
                num_samples=self._group,
                max_new_tokens=length,
                transform=transforms.temperature(rollout_config.temperature),
                stop=Stop(eos_ids=rollout_config.eos_tokens or (self.eos_id(),)),
                with_sample_log_prob=True,
            )
        )
        ends = output.length.reshape(-1)
        tokens, log_probs = (
            [row[:end] for row, end in zip(x.reshape(-1, length), ends, strict=True)]
            for x in (output.tokens, output.sample_log_prob)
        )
        return base_rollout.RolloutOutput(
            text=[self._tokenizer.decode(row.tolist()) for row in tokens],
            logits=None,
            tokens=tokens,
            left_padded_prompt_tokens=np.repeat(left, self._group, 0),
            logprobs=log_probs,
        )

    def get_per_token_logps(
        self, prompt_tokens: jax.Array, completion_tokens: jax.Array, **kwargs: Any
    ) -> jax.Array:
        """Tunix' own log-probabilities of given tokens."""
        graph, state = nnx.split(self._actor)
        ids = {"pad_id": self.pad_id(), "eos_id": self.eos_id()}
        return common.compute_per_token_logps(graph, state, prompt_tokens, completion_tokens, **ids)

    def update_params(self, params: Any, filter_types: Any = None) -> None:
        """Takes new weights."""
        nnx.update(self._actor, params)

    def pad_id(self) -> int:
        return self._tokenizer.pad_id()

    def eos_id(self) -> int:
        return self._tokenizer.eos_id()

    def model(self) -> nnx.Module:
        return self._actor


class Bytes:
    """ASCII characters as tokens; 0 pads and 1 ends a text."""

    vocab_size = 128

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return list(text.encode("ascii"))

    def decode(self, ids: Sequence[int], **kwargs: Any) -> str:
        return "".join(chr(i) for i in ids if i > 1)

    def bos_id(self) -> int:
        return 2

    def eos_id(self) -> int:
        return 1

    def pad_id(self) -> int:
        return 0


def vowels(prompts: Sequence[str], completions: Sequence[str], **kwargs: Any) -> list[float]:
    """The share of vowels in each completion.

    Example:
      >>> vowels(["", ""], ["banana", ""])
      [0.5, 0.0]
    """
    return [sum(c in "aeiou" for c in text) / max(1, len(text)) for text in completions]


def train(
    steps: int,
    group: int = 8,
    length: int = 8,
    seed: int = 0,
    rollout: type[SpreadRollout] = SpreadRollout,
) -> list[float]:
    """Runs Tunix' GRPO learner with a class of rollouts; the mean reward of each step's groups."""
    tokenizer, rewards = Bytes(), []
    config = ModelConfig(
        num_layers=2, vocab_size=tokenizer.vocab_size, embed_dim=32, hidden_dim=64, num_heads=2,
        head_dim=16, num_kv_heads=2, rope_theta=10_000, norm_eps=1e-5,
    )  # fmt: skip
    actor, reference = (Llama3(config, rngs=nnx.Rngs(seed)) for _ in range(2))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    cluster_config = clusters.ClusterConfig(
        role_to_mesh=dict.fromkeys(
            (clusters.Role.ACTOR, clusters.Role.REFERENCE, clusters.Role.ROLLOUT), mesh
        ),
        rollout_engine=functools.partial(
            rollout, group=group, vocab_size=tokenizer.vocab_size, seed=seed
        ),
        training_config=clusters.RLTrainingConfig(
            actor_optimizer=optax.adam(1e-2), eval_every_n_steps=10**6, max_steps=steps
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=length, max_prompt_length=16, temperature=1.0
        ),
    )
    cluster = clusters.RLCluster(
        actor=actor, reference=reference, tokenizer=tokenizer, cluster_config=cluster_config
    )

    def reward(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        found = vowels(prompts, completions)
        rewards.append(float(np.mean(found)))
        return found

    learner = grpo_learner.GRPOLearner(
        cluster, grpo_learner.GRPOConfig(num_generations=group, beta=0.0), reward_fns=reward
    )
    learner.train([{"prompts": np.array(PROMPTS)} for _ in range(steps)])
    return rewards


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    args = parser.parse_args(argv)
    rewards = train(args.steps, args.group)
    print(" ".join(f"{x:.3f}" for x in rewards))


if __name__ == "__main__":
    main()
