"""Ways to draw N samples together, each exact by itself.

This library's are calls of ``arithmetic_sample``. Beside them are those of QuasiMoTTo (Li et al.
2026, "QuasiMoTTo: Quasi-Monte Carlo Test-Time Scaling", arXiv:2607.01179), written from the paper's
abstract and summaries of it, since no program of its authors was at hand. A uniform number chooses
a token by the inverse distribution function, and what is left of it, stretched to the unit
interval, chooses the next one. The first numbers of N samples are a shifted lattice or one number
in each of N strata; or every token has a number of its own, a coordinate of a scrambled Sobol
sequence. The number is a 64-bit integer here and is carried for 32 bits, after which fresh bits
follow.

The paper's bootstrap takes smaller sets out of a larger one: every K/N-th sample of a lattice of K,
one sample of each K/N adjacent strata, or N samples of Sobol's in sequence. Each is a set of the
same kind, so the mean over all of them is unbiased for pass@N. Several codes are lattices, too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

import decoding_jax
from decoding_jax import codes, fields
from decoding_jax.base import Array
from decoding_jax.codes import point_sets
from decoding_jax.loop import as_function
from decoding_jax.ops import random, uint64
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.token_by_token import TokenByToken
from experiments.papers.decoding import Decoder, keys_of
from experiments.papers.options import Options
from experiments.papers.records import Records


def strata(key: Array, num_samples: int) -> Array:
    """One uniform point in each of N equal cells, in order: uint32 ``[N, 2]``.

    The paper shuffles them, which changes no figure of a set.
    """
    widest = jnp.broadcast_to(uint64.from_int(2**64 // num_samples - 1), (num_samples, 2))
    inside = uint64.multiply_high(random.bits(key, (num_samples, 2)), widest)
    return uint64.add(jnp.asarray(point_sets.cells(num_samples)), inside)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Carried(TokenByToken):
    """Samples whose codes are carried after they are alone: QuasiMoTTo's lattice and strata."""

    num_samples: int = fields.count()
    points: str | codes.Points = fields.field(lambda _, x: x, static=True, default="lattice")

    draws: ClassVar[bool] = True

    @property
    def lanes(self) -> int:
        return self.num_samples

    def start(self, key: Array, batch_size: int) -> codes.Code:
        return codes.start(self.points, random.row_keys(key, batch_size), self.num_samples)

    def choose(self, chooser: codes.Code, logits: Array, step: Array) -> tuple[Array, codes.Code]:
        used_up = chooser.last[..., :1] == 0  # The interval has 2**32 points or fewer.
        offset = jnp.where(used_up, random.bits_at(chooser.keys, step), chooser.offset)
        last = jnp.where(used_up, np.uint32(0xFFFFFFFF), chooser.last)
        token, offset, last = codes.narrow(offset, last, logits, None, "id")
        return token, chooser._replace(offset=offset, last=last)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sobol(TokenByToken):
    """Samples of which every token has a coordinate of a scrambled Sobol sequence.

    The scrambling is Matousek's (1998): the digits of each coordinate are multiplied by a random
    lower triangular matrix, and shifted.
    """

    num_samples: int = fields.count()

    draws: ClassVar[bool] = True

    @property
    def lanes(self) -> int:
        return self.num_samples

    def start(self, key: Array, batch_size: int) -> Array:
        """The numbers of all tokens: uint32 ``[L, B, N, 2]``."""
        length, depth = self.max_new_tokens or 1, (self.num_samples - 1).bit_length()
        plain = qmc.Sobol(length, scramble=False).random(2**depth)[: self.num_samples]
        words = (plain.T * 2**32).astype(np.uint32)  # [L, N]
        shift_keys, column_keys = random.split(random.row_keys(key, batch_size))
        shift, columns = (
            jax.vmap(functools.partial(random.bits_at, random.lane_keys(keys, 1)))(
                jnp.arange(length * max(depth, 1), dtype=jnp.int32)
            )
            for keys in (shift_keys, column_keys)
        )  # [..., B, 1, 2]
        points = jnp.broadcast_to(shift[:length], (length, batch_size, self.num_samples, 2))
        for digit in range(depth):
            column = columns[digit::depth]
            leading = (column[..., 0] >> (digit + 1)) | np.uint32(1 << (31 - digit))
            has = jnp.asarray((words >> (31 - digit)) & 1)[:, None, :, None]
            points = points ^ (has * uint64.pack(leading, column[..., 1]))
        return points

    def choose(self, chooser: Array, logits: Array, step: Array) -> tuple[Array, Array]:
        return codes.draw(logits, chooser[step]), chooser


def by_embedding(embedding: np.ndarray) -> np.ndarray:
    """An order of the vocabulary in which neighbours have embeddings that are alike.

    The vocabulary is cut in two at the median of its first principal component, and so is each
    half, down to single tokens. Each direction points along that of the whole that was cut.

    Args:
      embedding: float ``[V, D]``.

    Returns:
      int32 ``[V]``, the ids in order.

    Example:
      >>> by_embedding(np.array([[5.0, 0.0], [0.0, 0.0], [4.9, 1.0], [0.1, 1.0]])).tolist()
      [1, 3, 2, 0]
    """

    def ordered(ids: np.ndarray, along: np.ndarray) -> list[np.ndarray]:
        rows = embedding[ids] - embedding[ids].mean(0)
        direction = np.linalg.svd(rows, full_matrices=False)[2][0]
        direction = direction * (1 if direction @ along >= 0 else -1)
        ids = ids[np.argsort(rows @ direction, kind="stable")]
        if len(ids) <= 2:
            return [ids]
        half = len(ids) // 2
        return ordered(ids[:half], direction) + ordered(ids[half:], direction)

    whole = np.arange(len(embedding), dtype=np.int32)
    return np.concatenate(ordered(whole, np.ones(embedding.shape[1])))


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordered(decoding_jax.ArithmeticSample):
    """The library's codes with the vocabulary in any fixed order.

    Attributes:
      ids: int32 ``[V]``, the tokens in order.
    """

    ids: Any = fields.field()

    def choose(self, chooser: codes.Code, logits: Array, step: Array) -> tuple[Array, codes.Code]:
        place, chooser = super().choose(chooser, jnp.take(logits, self.ids, axis=-1), step)
        return jnp.take(self.ids, place), chooser


carried, sobol, ordered = as_function(Carried), as_function(Sobol), as_function(Ordered)
LIBRARY = "lattice"
PEER = "QuasiMoTTo, lattice"
INDEPENDENT = functools.partial(decoding_jax.arithmetic_sample, points="iid")
SAMPLERS: dict[str, Callable[..., Any]] = {
    LIBRARY: decoding_jax.arithmetic_sample,
    "by probability": functools.partial(decoding_jax.arithmetic_sample, order="probability"),
    "several codes": functools.partial(
        decoding_jax.arithmetic_sample, order="probability", after="lattice"
    ),
    PEER: carried,
    "QuasiMoTTo, strata": functools.partial(carried, points=strata),
    "QuasiMoTTo, Sobol": sobol,
}
"""By name, ``(model, prompt, keys, num_samples=..., max_new_tokens=...) -> DecodeOutput``."""


def check(names: Sequence[str], counts: Sequence[int], lanes: int) -> None:
    """Raises ``ValueError`` unless ``names`` are samplers, the peer among them, and N divide."""
    if PEER not in names or not set(names) <= SAMPLERS.keys():
        known = ", ".join(SAMPLERS)
        raise ValueError(f"kinds: expected some of {known}, with {PEER}, got {list(names)}")
    for count in counts:
        if count < 1 or lanes % count or counts[-1] % count:
            raise ValueError(
                f"counts: expected divisors of the last and of lanes, {lanes}, got {count}"
            )


def settings_and_decoder(
    options: Options,
    kinds: Sequence[str],
    temperatures: Sequence[float],
    counts: Sequence[int],
    lanes: int,
) -> tuple[dict[str, Any], Decoder]:
    """The settings of an experiment with samplers, and the model with its inputs.

    Args:
      options: those of every experiment.
      kinds: names of ``SAMPLERS``, the peer among them.
      temperatures: of sampling.
      counts: the N, rising, divisors of the last and of ``lanes``.
      lanes: the number of samples of an input by each sampler.

    Raises:
      ValueError: for settings that are not as described.
    """
    check(kinds, counts, lanes)
    decoder = options.decoder()
    settings = options.described(
        samplers=list(kinds), temperatures=list(temperatures), counts=list(counts), lanes=lanes
    )
    return settings, decoder


def measured(
    options: Options,
    settings: Mapping[str, Any],
    measure: Callable[[int, float], Any],
    unit: str,
) -> dict[str, Any]:
    """What an experiment measures of every input at every temperature, by its name.

    Args:
      options, settings: as for ``opened``, and as it returns them.
      measure: from the number of an input and a temperature to JSON values.
      unit: what the names call an input.
    """
    work: dict[str, Callable[[], Any]] = {
        f"temperature {temperature:g}, {unit} {i}": functools.partial(measure, i, temperature)
        for temperature in settings["temperatures"]
        for i in range(settings["task"]["inputs"])
    }
    return Records(options.folder, settings).complete(work)


def texts(
    decoder: Decoder,
    number: int,
    name: str,
    size: int,
    calls: int,
    key: str,
    seed: int,
    **given: Any,
) -> list[list[str]]:
    """The texts of sets of samples of an input, in order.

    Args:
      decoder: the model and the inputs.
      number: of the input.
      name: of ``SAMPLERS``, or ``independent``.
      size: the number of samples of a set.
      calls: the number of sets.
      key: of what the random keys belong to, beside the sampler, the size and the input.
      seed: of all keys.
      given: settings of the sampler.
    """
    keys = keys_of(seed, f"{name} {size} {number} {key}", range(calls))
    sampler = functools.partial(SAMPLERS.get(name, INDEPENDENT), num_samples=size, **given)
    batch = decoder(sampler, [number] * calls, keys, places=calls)
    return [[completion.text for completion in row] for row in batch.completions]


def parts(name: str, size: int, count: int) -> np.ndarray:
    """Smaller sets within a set, of the same kind, which have no sample in common.

    Args:
      name: of ``SAMPLERS``, or ``independent``.
      size: K, the number of samples of the set.
      count: N, a divisor of K; any up to K for independent samples.

    Returns:
      int ``[K // N, N]``, the samples of each.

    Example:
      >>> parts(PEER, 4, 2).tolist(), parts("QuasiMoTTo, Sobol", 4, 2).tolist()
      ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    """
    if name in ("independent", "QuasiMoTTo, Sobol"):
        return np.arange(size // count * count).reshape(-1, count)
    return np.arange(size).reshape(count, -1).T


def dyadic(name: str, correct: np.ndarray, count: int) -> float:
    """The bootstrap of QuasiMoTTo: pass@N by smaller sets out of sets of K of the same kind.

    Args:
      name: of ``SAMPLERS``.
      correct: bool ``[R, K]``, the samples of R sets, in order.
      count: N, a divisor of K.

    Example:
      >>> dyadic(PEER, np.array([[True, True, False, False]]), 2)
      1.0
      >>> dyadic("QuasiMoTTo, strata", np.array([[True, False, False, False]]), 2)
      0.5
    """
    sets, size = correct.shape
    if name == "QuasiMoTTo, strata":  # All choices of one sample of each group.
        wrong = 1 - correct.reshape(sets, count, size // count).mean(-1)
        return float((1 - wrong.prod(-1)).mean())
    return float(correct[:, parts(name, size, count)].any(-1).mean())


def votes(name: str, answers: np.ndarray, right: np.ndarray, count: int) -> float:
    """How often a vote of N samples is right, by ``parts`` of sets of K.

    Of answers with as many votes as the winner, each counts its part.

    Args:
      name: of ``SAMPLERS``, or ``independent``.
      answers: int ``[R, K]``, those of the samples of R sets, in order.
      right: bool ``[A]``, of each answer.
      count: N, a divisor of K.

    Example:
      >>> answers = np.array([[0, 1, 0, 2]])
      >>> votes("independent", answers, np.array([True, False, False]), 4)
      1.0
      >>> votes("independent", answers, np.array([True, False, False]), 2)
      0.5
    """
    chosen = answers[:, parts(name, answers.shape[1], count)]
    found = (chosen[..., None] == np.arange(len(right))).sum(-2)
    winners = found == found.max(-1, keepdims=True)
    return float(((winners & right).sum(-1) / winners.sum(-1)).mean())
