"""The examples in docstrings give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import decoding_jax
from decoding_jax import strategies
from decoding_jax.registry import STRATEGIES

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(decoding_jax.__path__, "decoding_jax.")
    if not m.name.endswith("__main__") and not m.name.startswith("decoding_jax.gin_files")
)

# The examples of these modules take longest, many of them operation by operation; the gate runs
# them with the exhaustive tests, and what they show has tests besides.
LONG = {
    f"decoding_jax.{name}"
    for name in (
        "adapters.from_cache",
        "adapters.from_logits",
        "codes.arithmetic",
        "codes.cdf",
        "codes.point_sets",
        "constraints.made",
        "estimators.pairwise",
        "estimators.pruning",
        "infer.batch_decoder",
        "infer.job",
        "infer.phrases",
        "models.bart",
        "models.combined",
        "models.dflash",
        "models.eagle",
        "models.fixed_shapes",
        "models.gemma4_assistant",
        "models.gpt2",
        "models.llama",
        "models.quantized",
        "ops.exact",
        "ops.logits",
        "ops.shortest_prefix",
        "ops.top_k",
        "strategies.beam.beam_search",
        "strategies.beam.constrained_beam_search",
        "strategies.beam.diverse_beam_search",
        "strategies.beam.stochastic_beam_search",
        "strategies.best_first.best_k",
        "strategies.best_first.priority",
        "strategies.conditional.conditional_sample",
        "strategies.contrastive.contrastive_search",
        "strategies.metropolis_sample",
        "strategies.particles.power_sample",
        "strategies.particles.smc_sample",
        "strategies.speculative.distributions",
        "strategies.speculative.drafters.prompt_lookup",
        "strategies.speculative.drafters.suffix",
        "strategies.speculative.speculative_sample",
        "strategies.token_by_token",
        "t5x.decode_fns.beams",
        "t5x.decode_fns.forms",
        "t5x.decode_fns.sampling",
        "t5x.decode_fns.speculative",
        "testing.conformance",
        "testing.near_ties",
        "testing.table_lm",
        "text.generate",
        "text.generation_config.processors",
        "text.running_batch",
        "text.score",
        "text.shared_prefix",
        "text.show.page",
        "text.stream_text",
        "text.streaming",
        "text.token_scores",
        "transforms.languages",
        "transforms.repetition",
        "transforms.truncation",
        "transforms.watermarks",
    )
}


def compiled(value):
    """The compiled form of a strategy, except ``greedy``; any other value as it is.

    Operation by operation, an example takes hundreds of programs; one strategy stands for all.
    """
    name = getattr(value, "__name__", None)
    if name in STRATEGIES and name != "greedy" and value is getattr(strategies, name):
        return getattr(decoding_jax, name)
    return value


class Finder(doctest.DocTestFinder):
    """Finds the examples of decorated functions too, which belong to the module they name."""

    def _from_module(self, module, object):
        named = getattr(object, "__module__", None) == module.__name__
        return named or super()._from_module(module, object)


class Runner(doctest.DocTestRunner):
    """Raises what an example raises unexpectedly, such as an import that fails."""

    def report_unexpected_exception(self, out, test, example, exc_info):
        raise exc_info[1]


@pytest.mark.parametrize(
    "name", [pytest.param(m, marks=pytest.mark.exhaustive) if m in LONG else m for m in MODULES]
)
def test_examples(name):
    module = importlib.import_module(name)
    runner = Runner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for example in Finder().find(module):
        example.globs = {name: compiled(value) for name, value in example.globs.items()}
        runner.run(example)
    assert runner.failures == 0
