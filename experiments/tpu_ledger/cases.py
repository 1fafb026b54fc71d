"""The strategies as programs on a mesh: lowered on shapes, without any numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax import Constraints, Prompt, registry, sharding, transforms
from decoding_jax.models import T5
from decoding_jax.models.caches import Cache

WARPED = transforms.chain(transforms.temperature(0.8), transforms.top_k(40), transforms.top_p(0.9))
FEW = transforms.allowed_tokens(tuple(range(100)))
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "sample": {"num_samples": 2},
    "sample, top-k and top-p": {"num_samples": 2, "transform": WARPED},
    "arithmetic_sample": {"num_samples": 2},
    "beam_search": {"beam_size": 4},
    "beam_sample": {"beam_size": 4},
    "conditional_sample": {"num_samples": 2, "language": FEW},
    "constrained_beam_search": {"beam_size": 4, "constraints": Constraints(phrases=((7, 8),))},
    "contrastive_search": {"penalty_alpha": 0.6, "top_k": 4},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2, "diversity_penalty": 0.5},
    "metropolis_sample": {"num_samples": 2},
    "power_sample": {"num_samples": 4},
    "smc_sample": {"num_samples": 4, "language": FEW},
    "stochastic_beam_search": {"beam_size": 4},
    "best_first_search": {"num_return": 2, "budget": 24},
    "best_k_search": {"num_return": 2, "budget": 24, "k": 2},
    "speculative_sample": {"num_draft_tokens": 2},
}
"""The strategies, with the settings that they are compiled with; a comma ends a strategy's name."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A strategy on a mesh.

    Attributes:
      strategy: a name of ``SETTINGS``.
      model: a language model or a ``T5``, of abstract arrays: see ``abstract``.
      draft: the draft of speculative decoding, or None.
      batch: B, which the axis ``data`` divides.
      prompt_length: P, the length of prompts, or of a T5's inputs.
      max_new_tokens: L.
      settings: settings beside those of ``SETTINGS``, which they override.
    """

    strategy: str
    model: Any
    draft: Any = None
    batch: int = 8
    prompt_length: int = 8
    max_new_tokens: int = 16
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def entry(self) -> registry.Entry:
        return registry.STRATEGIES[self.strategy.split(",")[0]]

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the strategy."""
        length = {"max_new_tokens": self.max_new_tokens}
        return {**SETTINGS[self.strategy], **length, **self.settings}

    def arguments(self) -> list[Any]:
        """The abstract arguments of the strategy, without the places of arrays."""
        size = 1 if isinstance(self.model, T5) else self.prompt_length
        tokens: Any = jax.ShapeDtypeStruct((self.batch, self.prompt_length), jnp.int32)
        first: Any = jax.ShapeDtypeStruct((self.batch, size), jnp.int32)
        length: Any = jax.ShapeDtypeStruct((self.batch,), jnp.int32)
        models = [self.model, *([self.draft] if self.entry.drafts else [])]
        models = [
            jax.eval_shape(T5.bind, m, tokens, length) if isinstance(m, T5) else m for m in models
        ]
        prompt = Prompt(first, length)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.batch))
        return [*models, prompt, *([keys] if self.entry.draws else [])]

    def lower(self, mesh: Mesh) -> jax.stages.Lowered:
        """Lowers the strategy for a mesh, with rows over ``data``."""
        rows = NamedSharding(mesh, PartitionSpec(sharding.DATA))
        count = 2 if self.entry.drafts else 1
        given = self.arguments()
        models = [placed(m, mesh) for m in given[:count]]
        others = jax.tree.map(lambda x: _at(x, rows), given[count:])
        function: Any = self.entry.function
        with jax.set_mesh(mesh):
            return function.lower(*models, *others, **self.keywords())

    def caches(self) -> list[Cache]:
        """The abstract caches that the strategy's loop carries: the model's, then the draft's."""
        model, *others = self.arguments()
        draft = {"drafter": others.pop(0)} if self.entry.drafts else {}

        def init(model: Any, draft: Any, prompt: Any, key: Any = None) -> Any:
            steps = self.entry.strategy(**draft, **self.keywords())
            return steps.init(model, prompt, key)

        state = jax.eval_shape(init, model, draft, *others)
        found = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Cache))
        return [x for x in found if isinstance(x, Cache)]


def abstract(model: Any, dtype: Any = jnp.bfloat16) -> Any:
    """A model of abstract arrays of a dtype.

    Args:
      model: a model, or a function of no arguments that makes one and is only traced.
      dtype: the dtype of the weights.
    """
    shapes = jax.eval_shape(model) if callable(model) else model
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)


def placed(model: Any, mesh: Mesh) -> Any:
    """A model of abstract arrays, laid out on a mesh by its own rules."""
    model = jax.eval_shape(lambda m: sharding.fit_model_axis(m, mesh), model)
    return jax.tree.map(_at, model, sharding.shardings(model, mesh))


def _at(x: Any, place: NamedSharding) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
