"""Examples of transforms, drafters, verifiers, strategies and families, which generic tests run.

An entry runs in every generic test of its kind, so that what is added here is tested everywhere.
CONTRIBUTING.md says what an entry needs. Drafters, verifiers and strategies are those of the
certificate, which is part of the package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from decoding_jax import Constraints, registry, transforms
from decoding_jax.models.gpt2 import GPT2, GPT2Config
from decoding_jax.models.llama import Llama, LlamaConfig
from decoding_jax.models.positions import RopeScaling
from decoding_jax.models.t5 import T5, T5Config
from decoding_jax.testing.certificate.strategies import DRAFTS, known

INF = np.inf
Settings = dict[str, Any]

# Transforms. An equation takes the logits ``[V]`` of one token in float64, the text before it, and
# the settings of its row.


def softmax(l):
    if l.max() == -INF:
        return np.zeros_like(l)
    e = np.exp(l - l.max())
    return e / e.sum()


def prefix_of_order(l, key, p, target):
    """Keeps tokens in ascending order of ``key``, then id, until their mass reaches the target."""
    out, mass = np.full(l.shape, -INF), 0.0
    for i in sorted((i for i in range(len(l)) if l[i] > -INF), key=lambda i: (key[i], i)):
        out[i] = l[i]
        mass += p[i]
        if mass >= target:
            break
    return out


def temperature(l, text, value):
    if value == 0:
        out = np.full(l.shape, -INF)
        if l.max() > -INF:
            out[np.argmax(l)] = 0
        return out
    return l / value


def top_k(l, text, k):
    return prefix_of_order(l, -l, np.ones(len(l)), k)


def top_p(l, text, p):
    return prefix_of_order(l, -l, softmax(l), p if p < 1 else INF)


def surprise(l):
    p = softmax(l)
    positive = p > 0
    surprises = -np.log(p, where=positive, out=np.full(l.shape, -INF))
    return surprises, -np.sum(p[positive] * np.log(p[positive]))


def typical(l, text, mass):
    s, h = surprise(l)
    return prefix_of_order(l, np.abs(s - h), softmax(l), mass if mass < 1 else INF)


def threshold(l, least):
    """Keeps tokens that reach ``least``, within the relative 4e-6 that the transforms state."""
    p = softmax(l)
    out = np.where(p >= least * (1 - 4e-6), l, -INF)
    out[np.argmax(l)] = l.max()
    return out


def min_p(l, text, p):
    return threshold(l, p * softmax(l).max())


def epsilon(l, text, epsilon):
    return threshold(l, epsilon)


def eta(l, text, epsilon):
    return threshold(l, min(epsilon, np.sqrt(epsilon) * np.exp(-surprise(l)[1])))


def top_n_sigma(l, text, n):
    finite = l[l > -INF]
    if not len(finite):
        return l
    return np.where(l >= l.max() - n * finite.std() * (1 + 4e-6), l, -INF)


def top_h(l, text, alpha):
    """Adds tokens in descending order while the entropy of what is kept is within its bound."""
    if alpha >= 1 or l.max() == -INF:
        return l
    out = np.full(l.shape, -INF)
    for i in sorted((i for i in range(len(l)) if l[i] > -INF), key=lambda i: (-l[i], i)):
        longer = out.copy()
        longer[i] = l[i]
        if out.max() > -INF and surprise(longer)[1] > alpha * surprise(l)[1] * (1 + 4e-6):
            break
        out = longer
    return out


def repetition_penalty(l, text, penalty):
    out = l.copy()
    for i in set(text):
        out[i] = l[i] / penalty if l[i] > 0 else l[i] * penalty
    return out


def presence_penalty(l, text, penalty):
    return l - penalty * np.array([i in text for i in range(len(l))])


def frequency_penalty(l, text, penalty):
    return l - penalty * np.array([text.count(i) for i in range(len(l))])


def no_repeat_ngram(l, text, n):
    seen = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
    if len(text) < n - 1:
        return l
    ending = tuple(text[len(text) - n + 1 :])
    return np.array([-INF if (*ending, i) in seen else x for i, x in enumerate(l)])


def banned_sequences(l, text, sequences):
    out = l.copy()
    for *beginning, last in sequences:
        start = len(text) - len(beginning)
        if start >= 0 and text[start:] == beginning:
            out[last] = -INF
    return out


def min_length(l, text, min_new_tokens, eos_ids):
    out = l.copy()
    if len(text) < min_new_tokens:
        out[[e for e in np.atleast_1d(eos_ids) if e >= 0]] = -INF
    return out


def only(l, token):
    return np.where(np.arange(len(l)) == token, 0.0, -INF)


def forced_first_token(l, text, token):
    return only(l, token) if not text and token >= 0 else l


def forced_last_token(l, text, token, max_new_tokens):
    return only(l, token) if len(text) == max_new_tokens - 1 and token >= 0 else l


def logit_bias(l, text, bias):
    return l + bias


def allowed_tokens(l, text, tokens):
    return np.array([x if i in tokens else -INF for i, x in enumerate(l)])


def keyed_bits(text, key, context, size):
    """The 64 bits of every token, high word first; None where the text is not marked."""
    text = [int(t) for t in text]
    ending = text[len(text) - context :]
    seen = [text[i : i + context] for i in range(len(text) - context)]
    if len(text) < context or ending in seen:
        return None
    words = np.uint32(divmod(key, 2**32) if isinstance(key, int) else key)
    secret = jax.random.wrap_key_data(words, impl="threefry2x32")
    for token in ending:
        secret = jax.random.fold_in(secret, token)
    folded = jax.vmap(jax.random.fold_in, (None, 0))(secret, np.arange(size))
    return np.asarray(jax.random.key_data(folded)).astype(np.float64)


def gumbel_watermark(l, text, key, context):
    bits = keyed_bits(text, key, context, len(l))
    if bits is None:
        return l
    variable = -np.log1p(-(bits[:, 0] * 2.0**-32 + bits[:, 1] * 2.0**-64))
    return np.where(np.arange(len(l)) == np.argmax(softmax(l) / variable), l, -INF)


def tournament_watermark(l, text, key, layers, context):
    """Each layer is the distribution of the winner of two, drawn independently."""
    bits = keyed_bits(text, key, context, len(l))
    if bits is None or l.max() == -INF:
        return l
    p = softmax(l)
    for layer in range(layers):
        g = bits[:, layer // 32] // 2.0 ** (layer % 32) % 2
        wins = np.where(g[:, None] == g, 0.5, g[:, None] > g)
        p = 2 * p * (wins @ p)
    return np.where(
        p > 0, np.log(np.maximum(p, 1e-300)) + np.log(np.exp(l - l.max()).sum()) + l.max(), -INF
    )


def thinking_budget(l, text, start, end, max_tokens, then=()):
    """Reads the text from its beginning; a part begins after each mark."""
    is_span, part = False, []
    for token in text:
        part.append(token)
        mark = list(end if is_span else start)
        if part[-len(mark) :] == mark:
            is_span, part = not is_span, []
    if not is_span or len(part) < max_tokens:
        return l
    begun = max(i for i in range(len(end)) if part[len(part) - i :] == list(end[:i]))
    forced = [*then, end[begun]][min(len(part) - max_tokens, len(then))]
    return np.where(np.arange(len(l)) == forced, 0, -INF)


def each(*values: Any) -> np.ndarray:
    """A setting with a value for each row or text."""
    return np.asarray(values)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Draws settings of eight rows, of which two thirds are neutral.

    Attributes:
      draw: the generator.
      vocab: V.
      length: L, the maximum number of new tokens.
    """

    draw: np.random.Generator
    vocab: int
    length: int

    def one_of(self, neutral: Any, values: Any, shape: Sequence[int] = ()) -> np.ndarray:
        """One value of ``values``, or the neutral one, for each row; ``shape`` follows [8]."""
        shape = (8, *shape)
        table = np.asarray(values)[self.draw.integers(0, len(values), shape)]
        dtype = np.float32 if table.dtype.kind == "f" else np.int32
        return np.where(self.draw.random(shape) < 2 / 3, neutral, table).astype(dtype)

    def between(self, low: float, high: float, neutral: float, *others: float) -> np.ndarray:
        """A number from ``low`` to ``high``, or one of the others."""
        return self.one_of(neutral, [*others, *self.draw.uniform(low, high, 9).tolist()])


@dataclasses.dataclass(frozen=True)
class TransformExample:
    """How a transform is tested.

    Attributes:
      equation: the function above that states it; None for one with tests of its own.
      cases: settings for 11 tokens, once with numbers and once with one value for each of three
        rows.
      two: two tuples of arguments for 5 tokens or more, which have to share a compiled program.
      per_text: settings for 7 tokens, with a value for each of five texts where there can be one.
      random: draws settings of eight rows for random chains.
      prompt: whether the prompt counts by default; None for a transform without
        ``include_prompt``.
      shared: the number of arrays of ``per_text`` that are for all texts.
    """

    equation: Callable[..., np.ndarray] | None
    cases: Sequence[Settings]
    two: tuple[tuple[Any, ...], tuple[Any, ...]] | None
    per_text: Settings
    random: Callable[[Numbers], Settings] | None = None
    prompt: bool | None = None
    shared: int = 0


def _of_one_number(
    equation: Callable[..., np.ndarray],
    name: str,
    number: float,
    rows: Sequence[float],
    two: tuple[float, float],
    texts: Sequence[float],
    random: Callable[[Numbers], Any],
    prompt: bool | None = None,
) -> TransformExample:
    """A transform whose one setting is a number, for all rows or for each.

    Args:
      equation: as in ``TransformExample``.
      name: the name of the setting.
      number: a number for all rows.
      rows: one for each of three rows.
      two: two numbers that share a program.
      texts: one for each of five texts.
      random: draws numbers of eight rows.
      prompt: as in ``TransformExample``.
    """
    return TransformExample(
        equation,
        cases=[{name: number}, {name: each(*rows)}],
        two=((two[0],), (two[1],)),
        per_text={name: each(*texts)},
        random=lambda numbers: {name: random(numbers)},
        prompt=prompt,
    )


def _random_sequences(numbers: Numbers) -> Settings:
    tokens = numbers.one_of(-1, range(numbers.vocab), (2, 2))
    some = (tokens[..., :-1] >= 0).any(-1)
    tokens[..., -1] = np.where(some, np.abs(tokens[..., -1]), -1)
    return {"sequences": tokens}


def _random_allowed(numbers: Numbers) -> Settings:
    allowed = np.argsort(numbers.draw.random((8, numbers.vocab)), -1).astype(np.int32)
    allowed[numbers.draw.random(8) < 0.3, numbers.vocab // 2 :] = -1
    return {"tokens": allowed}


ENDS = each([0, -1], [3, 0], [-1, -1], [1, 2], [-1, 5])
PHRASES = each([[-1, 3]], [[2, 4]], [[-1, -1]], [[-1, 5]], [[6, 6]])

TRANSFORMS: dict[str, TransformExample] = {
    "temperature": dataclasses.replace(
        _of_one_number(
            temperature,
            "value",
            number=0.7,
            rows=(0.0, 0.5, 3.0),
            two=(0, 0.3),
            texts=(0, 5, 0.5, 1, 2),
            random=lambda n: n.between(0.2, 3, 1.0, 0.0),
        ),
        cases=[{"value": 0.7}, {"value": 0}, {"value": each(0.0, 0.5, 3.0)}],
    ),
    "top_k": _of_one_number(
        top_k,
        "k",
        number=3,
        rows=(1, 4, 50),
        two=(3, 200),
        texts=(1, 2, 3, 4, 5),
        random=lambda n: n.one_of(n.vocab, range(1, n.vocab + 1)),
    ),
    "top_p": _of_one_number(
        top_p,
        "p",
        number=0.72,
        rows=(0.0, 0.61, 1.0),
        two=(1, 0.3),
        texts=(0.1, 0.9, 0.5, 1, 0),
        random=lambda n: n.between(0.05, 0.99, 1.0, 0.0),
    ),
    "typical": _of_one_number(
        typical,
        "mass",
        number=0.37,
        rows=(0.0, 0.43, 1.0),
        two=(1, 0.3),
        texts=(0.1, 0.9, 0.5, 1, 0.3),
        random=lambda n: n.between(0.05, 0.99, 1.0),
    ),
    "min_p": _of_one_number(
        min_p,
        "p",
        number=0.21,
        rows=(0.0, 0.61, 1.0),
        two=(1, 0.3),
        texts=(0, 0.1, 0.5, 0.2, 1),
        random=lambda n: n.between(0, 0.9, 0.0, 1.0),
    ),
    "epsilon": _of_one_number(
        epsilon,
        "epsilon",
        number=0.08,
        rows=(0.0, 0.13, 1.0),
        two=(0, 0.3),
        texts=(0, 0.1, 0.2, 0.05, 0.3),
        random=lambda n: n.between(0, 0.5, 0.0, 1.0),
    ),
    "eta": _of_one_number(
        eta,
        "epsilon",
        number=0.21,
        rows=(0.0, 0.13, 1.0),
        two=(0, 0.3),
        texts=(0.3, 0.1, 0, 0.05, 0.2),
        random=lambda n: n.between(0, 0.5, 0.0, 1.0),
    ),
    "top_n_sigma": _of_one_number(
        top_n_sigma,
        "n",
        number=1.1,
        rows=(0.0, 0.7, 5.0),
        two=(1, 0.3),
        texts=(0, 1, 0.5, 2, 3),
        random=lambda n: n.between(0, 3, 100.0, 0.0),
    ),
    "top_h": _of_one_number(
        top_h,
        "alpha",
        number=0.62,
        rows=(0.0, 0.43, 1.0),
        two=(1, 0.3),
        texts=(0.1, 0.9, 0.5, 1, 0),
        random=lambda n: n.between(0.05, 0.99, 1.0, 0.0),
    ),
    "repetition_penalty": _of_one_number(
        repetition_penalty,
        "penalty",
        number=1.3,
        rows=(0.5, 1.0, 1.7),
        two=(1, 1.5),
        texts=(1, 2, 0.5, 1.5, 3),
        random=lambda n: n.between(0.5, 2, 1.0),
        prompt=True,
    ),
    "presence_penalty": _of_one_number(
        presence_penalty,
        "penalty",
        number=0.6,
        rows=(0.5, 1.0, 1.7),
        two=(1, 1.5),
        texts=(0, 1, 2, -1, 0.5),
        random=lambda n: n.between(-1, 1, 0.0),
        prompt=False,
    ),
    "frequency_penalty": _of_one_number(
        frequency_penalty,
        "penalty",
        number=-0.6,
        rows=(0.5, 1.0, 1.7),
        two=(1, 1.5),
        texts=(0, 1, 2, -1, 0.5),
        random=lambda n: n.between(-1, 1, 0.0),
        prompt=False,
    ),
    "no_repeat_ngram": TransformExample(
        no_repeat_ngram,
        cases=[{"n": 1}, {"n": 2}, {"n": 3}, {"n": 12}],
        two=((4,), (4,)),
        per_text={"n": 2},
        random=lambda n: {"n": int(n.draw.integers(2, 4))},
        prompt=True,
    ),
    "banned_sequences": TransformExample(
        banned_sequences,
        cases=[{"sequences": ((7,), (1, 2), (0, 1, 2), (2, 2), (1, 1, 0), (0,) * 14)}],
        two=((((1, 2), (3,)),), (((4,), (2, 1)),)),
        per_text={"sequences": PHRASES},
        random=_random_sequences,
        prompt=True,
    ),
    "min_length": TransformExample(
        min_length,
        cases=[
            {"min_new_tokens": 3, "eos_ids": (2, 5)},
            {
                "min_new_tokens": each(0, 4, 6),
                "eos_ids": np.array([[1, -1], [2, 3], [-1, -1]], np.int32),
            },
        ],
        two=((3, (1, 2)), (5, (3, 4))),
        per_text={"min_new_tokens": each(1, 2, 0, 3, 2), "eos_ids": ENDS},
        random=lambda n: {
            "min_new_tokens": n.one_of(0, range(1, n.length)),
            "eos_ids": n.one_of(-1, range(n.vocab), (2,)),
        },
    ),
    "thinking_budget": TransformExample(
        thinking_budget,
        cases=[
            {"start": (1,), "end": (2, 0), "max_tokens": 1, "then": (0, 7)},
            {"start": (0, 1), "end": (1, 1, 2), "max_tokens": each(0, 1, 2)},
            {"start": (2,), "end": (2,), "max_tokens": each(1, 0, 2)},
        ],
        two=(((2, 1), (3,), 1), ((1, 0), (4,), 2)),
        per_text={"start": (2,), "end": (3, 4), "max_tokens": each(1, 2, 0, 3, 9), "then": (5,)},
        prompt=True,
        shared=3,
    ),
    "forced_first_token": TransformExample(
        forced_first_token,
        cases=[{"token": 4}, {"token": each(4, 5, -1)}],
        two=((3,), (4,)),
        per_text={"token": each(-1, 2, 3, -1, 5)},
        random=lambda n: {"token": n.one_of(-1, range(n.vocab))},
    ),
    "forced_last_token": TransformExample(
        forced_last_token,
        cases=[
            {"token": 4, "max_new_tokens": 6},
            {"token": each(4, 5, -1), "max_new_tokens": each(1, 4, 6)},
        ],
        two=((3, 5), (4, 2)),
        per_text={"token": each(1, 2, -1, 4, 5), "max_new_tokens": each(3, 4, 5, 2, 1)},
        random=lambda n: {
            "token": n.one_of(-1, range(n.vocab)),
            "max_new_tokens": np.full(8, n.length, np.int32),
        },
    ),
    "logit_bias": TransformExample(
        logit_bias,
        cases=[
            {"bias": np.linspace(-3, 3, 11).tolist()},
            {"bias": np.arange(33.0).reshape(3, -1)},
        ],
        two=(({3: 1, 4: 0.5},), ({4: -INF, 3: 2.5},)),
        per_text={"bias": np.random.default_rng(1).normal(size=(5, 7))},
        random=lambda n: {
            "bias": n.one_of(0.0, n.draw.uniform(-2, 2, 9).tolist(), (n.vocab,)),
        },
    ),
    "allowed_tokens": TransformExample(
        allowed_tokens,
        cases=[
            {"tokens": (0, 5, 9)},
            {"tokens": np.array([[0, 2], [5, -1], [-1, -1]], np.int32)},
        ],
        two=(((3, 4),), ((2, 1),)),
        per_text={"tokens": np.arange(35).reshape(5, 7) % 3 > 0},
        random=_random_allowed,
    ),
    "gumbel_watermark": TransformExample(
        gumbel_watermark,
        cases=[
            {"key": 2**40 + 3, "context": 1},
            {"key": np.array([[5, 6], [5, 7], [0, 1]], np.uint32), "context": 2},
        ],
        two=((3, 2), (2**33, 2)),
        per_text={"key": np.arange(10, dtype=np.uint32).reshape(5, 2)},
    ),
    "tournament_watermark": TransformExample(
        tournament_watermark,
        cases=[
            {"key": 2**40 + 3, "layers": 2, "context": 1},
            {"key": np.array([[5, 6], [5, 7], [0, 1]], np.uint32), "layers": 3, "context": 2},
        ],
        two=((3, 4, 2), (2**33, 4, 2)),
        per_text={"key": np.arange(10, dtype=np.uint32).reshape(5, 2)},
    ),
    "prefix_allowed_tokens": TransformExample(
        None,  # tests/transforms/test_prefix_allowed_tokens.py
        cases=[],
        two=None,
        per_text={
            "language": transforms.Trie.from_sequences([(1, 2), (3, 4, 5)], eos_ids=0),
            "start": each(0, 1, 0, 2, 0),
        },
        shared=5,
    ),
}


def made(name: str, settings: Mapping[str, Any] | None = None) -> Any:
    """The transform of an entry, by default with the arguments of its first ``two``."""
    function = getattr(transforms, name)
    if settings is not None:
        return function(**settings)
    two = TRANSFORMS[name].two
    assert two is not None, name
    return function(*two[0])


# Drafters, verifiers and strategies.

DRAFTERS = {name: draft for name, draft in DRAFTS.items() if draft.num_drafts == 1}
"""The drafters of the certificate: ``make(model)`` is one for a model."""

SMALL: dict[str, Settings] = {
    "beam_search": {"beam_size": 3},
    "best_first_search": {"budget": 9},
    "best_k_search": {"k": 2, "budget": 9},
    "constrained_beam_search": {"beam_size": 3, "constraints": Constraints(((2, 0),))},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2},
    "speculative_sample": {"num_draft_tokens": 2},
}


def _settings_of_strategies() -> dict[str, Settings]:
    found: dict[str, Settings] = {}
    for tested in known().values():
        required = registry.defaults_of(tested.function_name)
        samples = {"num_samples": 2} if "num_samples" in required else {}
        found.setdefault(tested.function_name, samples | tested.settings)
    return found | SMALL


STRATEGIES = _settings_of_strategies()
"""The settings that every strategy of the registry is called with, besides its limits.

They are those of the certificate, but for searches that are wide there.
"""


def arguments_of(name: str, drafter: Any, prompt: Any, key: Any) -> tuple[Any, ...]:
    """The arguments of a strategy after the model."""
    entry = registry.STRATEGIES[name]
    return (*[drafter] * entry.drafts, prompt, *[key] * entry.draws)


# Model families.


@dataclasses.dataclass(frozen=True)
class NetworkExample:
    """A tiny network, whose methods are checked against each other.

    Attributes:
      kind: its class.
      config: 64 tokens, a width of 32 and heads of 8, in one layer.
      encoder: whether it is bound to inputs.
    """

    kind: Any
    config: Any
    encoder: bool = False


NETWORKS = {
    "t5": NetworkExample(
        T5,
        T5Config(64, 32, 4, 8, 48, 1, 1, ("gelu", "linear"), num_buckets=8, max_distance=9),
        encoder=True,
    ),
    "gpt2": NetworkExample(
        GPT2, GPT2Config(64, 32, num_heads=4, mlp_dim=48, num_layers=1, max_positions=32)
    ),
    "llama": NetworkExample(
        Llama,
        LlamaConfig(
            64,
            32,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            mlp_dim=48,
            num_layers=1,
            max_positions=64,
            rope_scaling=RopeScaling("llama3", 8.0, original_max_positions=32),
            qkv_bias=True,
        ),
    ),
}

_T5 = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_LLAMA = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
_BART = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
}

_GEMMA2 = {
    **_LLAMA,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "query_pre_attn_scalar": 5,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
    "sliding_window": 3,
}
_GEMMA3 = {
    **_LLAMA,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "query_pre_attn_scalar": 5,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    },
}
_GEMMA4 = {
    **_LLAMA,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "global_head_dim": 8,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": 40,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "final_logit_softcapping": 5.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        },
    },
}

# Small networks of the families that are data, by the name of a fixture.
_GROUPED = {**_LLAMA, "num_key_value_heads": 2, "pad_token_id": None}
_PARTLY_ROTATED = {
    **_GROUPED,
    "hidden_size": 32,
    "rope_parameters": {**_LLAMA["rope_parameters"], "partial_rotary_factor": 0.5},
}
_LOCAL = {
    **_GROUPED,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"],
}
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("ArceeConfig", {**_GROUPED, "mlp_bias": True}),
    "bloom": (
        "BloomConfig",
        {"vocab_size": 40, "hidden_size": 24, "n_layer": 2, "n_head": 3, "seq_length": 64},
    ),
    "cohere": ("CohereConfig", {**_GROUPED, "logit_scale": 0.5}),
    "cohere2": ("Cohere2Config", {**_LOCAL, "logit_scale": 0.5}),
    "ernie4_5": ("Ernie4_5Config", {**_GROUPED, "head_dim": 6, "use_bias": True}),
    "exaone4": ("Exaone4Config", _LOCAL),
    "falcon": (
        "FalconConfig",
        {
            "vocab_size": 40,
            "hidden_size": 16,
            "ffn_hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
        },
    ),
    "gemma": ("GemmaConfig", {**_GROUPED, "head_dim": 6}),
    "glm": ("GlmConfig", {**_PARTLY_ROTATED, "head_dim": 8}),
    "glm4": ("Glm4Config", {**_PARTLY_ROTATED, "head_dim": 8}),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "vocab_size": 40,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 24,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 3,
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            **_LOCAL,
            "head_dim": 6,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.5,
            "rope_parameters": {**_YARN_ROPE, "original_max_position_embeddings": 32},
        },
    ),
    "gptj": (
        "GPTJConfig",
        {
            "vocab_size": 40,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "n_inner": 24,
            "n_positions": 64,
            "rotary_dim": 4,
        },
    ),
    "granite": (
        "GraniteConfig",
        {
            **_GROUPED,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.3,
            "logits_scaling": 0.6,
        },
    ),
    "ministral": ("MinistralConfig", {**_LOCAL, "head_dim": 6}),
    "ministral3": (
        "Ministral3Config",
        {
            **_GROUPED,
            "head_dim": 6,
            "rope_parameters": {
                **_YARN_ROPE,
                "original_max_position_embeddings": 4,
                "factor": 16.0,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "mixtral": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4, "sliding_window": 3}),
    "mpt": (
        "MptConfig",
        {
            "vocab_size": 40,
            "d_model": 24,
            "n_layers": 2,
            "n_heads": 3,
            "max_seq_len": 64,
            "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.4},
        },
    ),
    "nemotron": ("NemotronConfig", {**_PARTLY_ROTATED, "attention_bias": True}),
    "olmo": ("OlmoConfig", {**_GROUPED, "clip_qkv": 0.5}),
    "olmo2": ("Olmo2Config", _GROUPED),
    "olmo3": (
        "Olmo3Config",
        {
            **_LOCAL,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50.0},
            },
        },
    ),
    "opt": (
        "OPTConfig",
        {
            "vocab_size": 40,
            "hidden_size": 16,
            "ffn_dim": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "olmoe": ("OlmoeConfig", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 3}),
    "phi": ("PhiConfig", _PARTLY_ROTATED),
    "phi3": ("Phi3Config", {**_GROUPED, "sliding_window": 3}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {
            **_GROUPED,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 20,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "use_sliding_window": True,
            "sliding_window": 3,
        },
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            **_GROUPED,
            "head_dim": 6,
            "moe_intermediate_size": 24,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
    "seed_oss": ("SeedOssConfig", {**_GROUPED, "head_dim": 6, "attention_out_bias": True}),
    "smollm3": (
        "SmolLM3Config",
        {**_GROUPED, "no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 3},
    ),
    "stablelm": (
        "StableLmConfig",
        {**_PARTLY_ROTATED, "use_qkv_bias": True, "use_parallel_residual": True},
    ),
    "starcoder2": ("Starcoder2Config", {**_GROUPED, "sliding_window": 3}),
}

# By the name of a fixture: the class of its configuration in transformers, and settings for 40
# tokens.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **DATA,
    "t5": ("T5Config", {**_T5, "tie_word_embeddings": True, "feed_forward_proj": "relu"}),
    "t5_1_1": (
        "T5Config",
        {**_T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
    ),
    "mt5": (
        "MT5Config",
        {**_T5, "num_layers": 1, "num_heads": 2, "feed_forward_proj": "gated-gelu"},
    ),
    "byt5": (
        "T5Config",
        {
            **_T5,
            "tie_word_embeddings": False,
            "feed_forward_proj": "gated-gelu",
            "num_layers": 3,
            "num_decoder_layers": 1,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 7,
        },
    ),
    "umt5": ("UMT5Config", {**_T5, "num_decoder_layers": 1, "tie_word_embeddings": False}),
    "longt5": (
        "LongT5Config",
        {
            **_T5,
            "tie_word_embeddings": False,
            "feed_forward_proj": "gated-gelu",
            "encoder_attention_type": "transient-global",
            "local_radius": 2,
            "global_block_size": 4,
        },
    ),
    "switch": (
        "SwitchTransformersConfig",
        {
            **_T5,
            "num_decoder_layers": 2,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 2,
            "router_bias": True,
        },
    ),
    "bart": ("BartConfig", _BART),
    "blenderbot": ("BlenderbotConfig", {**_BART, "scale_embedding": True}),
    "mbart": ("MBartConfig", {**_BART, "scale_embedding": True, "decoder_start_token_id": 7}),
    "pegasus": ("PegasusConfig", {**_BART, "activation_function": "relu", "scale_embedding": True}),
    "marian": (
        "MarianConfig",
        {
            **_BART,
            "activation_function": "swish",
            "scale_embedding": True,
            "decoder_start_token_id": 39,
            "pad_token_id": 39,
        },
    ),
    "marian_separate": (
        "MarianConfig",
        {
            **_BART,
            "vocab_size": 44,
            "decoder_vocab_size": 40,
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
            "scale_embedding": True,
            "decoder_start_token_id": 39,
            "pad_token_id": 39,
        },
    ),
    "m2m_100": ("M2M100Config", _BART),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": 40,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 4,
            "n_inner": 24,
            "n_positions": 32,
        },
    ),
    "gemma2": ("Gemma2Config", _GEMMA2),
    "gemma3": ("Gemma3TextConfig", _GEMMA3),
    "gemma4": ("Gemma4TextConfig", _GEMMA4),
    "t5gemma": (
        "T5GemmaConfig",
        {
            "vocab_size": 40,
            "encoder": {**_GEMMA2, "hidden_size": 12, "num_attention_heads": 2},
            "decoder": {**_GEMMA2, "num_hidden_layers": 1},
        },
    ),
    "t5gemma2": (
        "T5Gemma2Config",
        {
            "image_token_index": 38,
            "encoder": {
                "text_config": {**_GEMMA3, "intermediate_size": 20},
                "vision_config": {
                    "hidden_size": 2,
                    "intermediate_size": 2,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 1,
                    "image_size": 2,
                    "patch_size": 2,
                },
                "mm_tokens_per_image": 1,
                "eoi_token_index": 39,
            },
            "decoder": {**_GEMMA3, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
        },
    ),
    "gpt_neox": (
        "GPTNeoXConfig",
        {
            "vocab_size": 40,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "llama2": ("LlamaConfig", {**_LLAMA, "num_hidden_layers": 1}),
    "llama3": (
        "LlamaConfig",
        {**_LLAMA, "num_key_value_heads": 2, "head_dim": 6, "rope_parameters": _LLAMA3_ROPE},
    ),
    "llama_yarn": (
        "LlamaConfig",
        {
            **_LLAMA,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
            "rope_parameters": _YARN_ROPE,
        },
    ),
    "smollm": (
        "LlamaConfig",
        {**_LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2Config", {**_LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 2}),
    "mistral": (
        "MistralConfig",
        {**_LLAMA, "num_hidden_layers": 2, "num_key_value_heads": 2, "sliding_window": 3},
    ),
    "qwen3": (
        "Qwen3Config",
        {**_LLAMA, "num_key_value_heads": 2, "head_dim": 6, "num_hidden_layers": 1},
    ),
}
