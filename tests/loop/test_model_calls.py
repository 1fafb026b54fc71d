"""Results of models, drafters and transforms are checked when traced; nothing compiles here."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import examples
import jax
import jax.numpy as jnp
import pytest
import tiers

import decoding_jax
from decoding_jax import ModelOutput, Prompt, pytree
from decoding_jax.loop import model_calls
from decoding_jax.strategies.speculative import NextToken
from decoding_jax.testing import TableLM

KEY = jax.random.key(1)
TABLE = TableLM.random(jax.random.key(0), 5)
PROMPT = Prompt(jnp.array([[1, 2, 3], [4, 0, 0]]), jnp.array([3, 1]))


@pytree
@dataclasses.dataclass(frozen=True)
class Changed:
    """A table model that changes its outputs before it returns them."""

    table: Any
    verb: str = dataclasses.field(metadata={"static": True})
    change: Any = dataclasses.field(metadata={"static": True})
    vocab_size: int = dataclasses.field(default=5, metadata={"static": True})
    tree: bool = dataclasses.field(default=True, metadata={"static": True})

    max_positions = None
    ragged = True

    def prefill(self, *args, **kwargs):
        returned = self.table.prefill(*args, **kwargs)
        return self.change(*returned) if self.verb in ("prefill", "both") else returned

    def extend(self, *args):
        returned = self.table.extend(*args)
        return self.change(*returned) if self.verb in ("extend", "both") else returned

    def project(self, hidden):
        logits = jnp.zeros((*hidden.shape[:-1], self.vocab_size))
        return logits[..., 0] if self.verb == "project" else logits

    def select(self, cache, lanes):
        return self.table.select(cache, lanes)

    def keep(self, cache, source, start):
        return self.table.keep(cache, source, start)


def decode(strategy, model, **settings):
    """Calls a strategy by name, with the settings that it needs."""
    name, _, way = strategy.partition(", ")
    settings = {"max_new_tokens": 4, **examples.STRATEGIES[name], **settings}
    draft = TABLE
    if way == "lanes":
        model = dataclasses.replace(model, tree=False)
    if way.endswith("tree"):
        settings["num_drafts"] = 2
    if way.startswith("drafter"):
        model, draft = draft, model
    arguments = examples.arguments_of(name, draft, PROMPT, KEY)
    return getattr(decoding_jax, name)(model, *arguments, **settings)


def logits(change):
    return lambda output, cache: (output._replace(logits=change(output.logits)), cache)


STRATEGIES = [
    *(name for name in examples.STRATEGIES if name != "speculative_sample"),
    "beam_search, lanes",
    "speculative_sample, model",
    "speculative_sample, model of a tree",
    "speculative_sample, drafter",
    "speculative_sample, drafter of a tree",
]


# No strategy calls a model but by ``model_calls``, as the last test of this file says.
KIND = [name for name in STRATEGIES if name.partition(",")[0] in tiers.KINDS]
each = pytest.mark.parametrize(
    "strategy", tiers.values(*KIND, release=[name for name in STRATEGIES if name not in KIND])
)


class Output(NamedTuple):
    """The output of a model of one's own, without ``features``, as before these came."""

    logits: Any
    hidden: Any = None


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "strategy", tiers.values("speculative_sample, model", exhaustive=["greedy", "beam_search"])
)
def test_outputs_of_a_type_of_ones_own(strategy):
    own = Changed(TABLE, "both", lambda output, cache: (Output(output.logits), cache))
    shapes = [jax.eval_shape(lambda m=m: decode(strategy, m).tokens) for m in (own, TABLE)]
    assert shapes[0] == shapes[1]


@each
def test_every_strategy_checks_both_verbs(strategy):
    name = "drafter" if "drafter" in strategy else "model"
    for verb in ("prefill", "extend"):
        model = Changed(TABLE, verb, logits(lambda x: x[:, :, 0]))
        with pytest.raises(
            ValueError, match=rf"^{name}: expected logits .*, got float32\[.*\] from {verb}"
        ):
            decode(strategy, model)
    with pytest.raises(ValueError, match=r"^(model|drafter): expected (logits|the model's)"):
        decode(strategy, Changed(TABLE, "neither", None, vocab_size=6))


@pytest.mark.parametrize(
    ("verb", "change", "words"),
    [
        (
            "prefill",
            logits(lambda x: x[:, 0]),
            "expected logits float32 [B, 1, 1, V], which is [2, 1,",
        ),
        (
            "prefill",
            logits(lambda x: x[:, :, :, :4]),
            "expected logits float32 [B, 1, 1, V], which is [2, 1,",
        ),
        ("prefill", logits(lambda x: x[:1]), "which is [2, 1, 1, 5] here"),
        (
            "extend",
            logits(lambda x: x.sum(1)),
            "expected logits float32 [B, W, T, V], which is [2, 1, 1, 5]",
        ),
        (
            "extend",
            logits(lambda x: x.astype(jnp.int32)),
            "expected logits float32 [B, W, T, V], which is [2, 1,",
        ),
        ("extend", logits(lambda x: None), "expected logits float32 [B, W, T, V], which is [2, 1,"),
        (
            "extend",
            lambda o, c: (o.logits, c),
            "expected (ModelOutput(logits), cache) from extend, got a",
        ),
        (
            "extend",
            lambda o, c: o,
            "expected (ModelOutput(logits), cache) from extend, got a ModelOutput",
        ),
        (
            "extend",
            lambda o, c: (o, (c, 1)),
            "expected extend to return a cache of the structure, shapes",
        ),
        (
            "extend",
            lambda o, c: (o, c._replace(length=c.length.astype(jnp.float32))),
            "expected extend to return a cache of the structure, shapes and dtypes",
        ),
        (
            "extend",
            lambda o, c: (ModelOutput(o.logits, o.logits[:, 0]), c),
            "expected hidden None or [B, W, T, D], which begins with [2, 1, 1] here, got",
        ),
    ],
)
def test_the_error_names_what_it_got_and_what_it_takes(verb, change, words):
    with pytest.raises(ValueError, match="^model: .*" + re.escape(words)) as error:
        decode("greedy", Changed(TABLE, verb, change))
    assert "\n" not in str(error.value)


def test_the_result_of_project_is_checked(monkeypatch):
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, default, **on_others: default(*a))
    with pytest.raises(
        ValueError, match=r"drafter: expected logits float32 \[\.\.\., V\], which is \[2, 1, 5\]"
    ):
        decode("speculative_sample, drafter", Changed(TABLE, "project", None))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_of_another_floating_dtype_are_converted(dtype):
    cast = Changed(TABLE, "both", logits(lambda x: x.astype(dtype)))
    output, cache = model_calls.prefill(cast, PROMPT, lanes=2, slots=3)
    plain, _ = TABLE.prefill(*PROMPT, lanes=2, slots=3)
    assert output.logits.dtype == jnp.float32
    assert (output.logits == plain.logits.astype(dtype).astype(jnp.float32)).all()
    output, _ = model_calls.extend(cast, cache, jnp.ones((2, 2, 2), jnp.int32), 0)
    plain, _ = TABLE.extend(cache, jnp.ones((2, 2, 2), jnp.int32), 0)
    assert output.logits.dtype == jnp.float32
    assert (output.logits == plain.logits.astype(dtype).astype(jnp.float32)).all()


@each
def test_every_strategy_takes_bfloat16(strategy):
    cast = Changed(TABLE, "both", logits(lambda x: x.astype(jnp.bfloat16)))
    result = jax.eval_shape(lambda model: decode(strategy, model), cast)
    assert result.log_prob.dtype == result.score.dtype == jnp.float32


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda x, p: x[:, :, 0], r"^transform: expected logits float32 \[B, W, T, V\], which is"),
        (
            lambda x, p: None,
            r"^transform: expected logits float32 \[B, W, T, V\], which is \[2, \d, 1, 5\] here,",
        ),
        (lambda x, p: x > 0, r"^transform: expected logits float32 \[B, W, T, V\], which is"),
    ],
)
@pytest.mark.parametrize("strategy", ["greedy", "beam_search", "best_k_search", STRATEGIES[-4]])
def test_the_result_of_a_transform_is_checked(strategy, transform, words):
    with pytest.raises(ValueError, match=words):
        decode(strategy, TABLE, transform=transform)


def test_the_result_of_a_drafter_is_checked():
    class Short(NextToken):
        def guess(self, state, path, count):
            return super().guess(state, path, count)[:, :, :1]

    drafter = pytree(Short)(jnp.zeros(5, jnp.int32))
    with pytest.raises(
        ValueError, match=r"drafter: expected int32 \[B, W, K\] from guess, which is \[2, 1, 2\]"
    ):
        decoding_jax.speculative_sample(
            TABLE, drafter, PROMPT, KEY, num_draft_tokens=2, max_new_tokens=4
        )


def test_no_strategy_calls_a_model_past_the_checks():
    """The heads of drafters are no models."""
    heads = ("self.head", "self.blocks[k]")
    package = Path(decoding_jax.__file__).parent
    paths = [*package.glob("loop/*.py"), *package.glob("strategies/**/*.py")]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("prefill", "extend"):
                owner = ast.unparse(node.value)
                checked = owner in ("model_calls", *heads) or path.name == "model_calls.py"
                assert checked, (path.name, owner)
