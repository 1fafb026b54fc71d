"""A small network that follows T5X's contract: one token per row, a cache written by addition.

It does not need T5X. ``cache_index`` is a scalar, or a vector after a prefill; layers are scanned
or not. A stale slot that is not cleared gets the sum of two keys, which gives wrong logits.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.pytrees import pytree

HEADS, DEPTH, LAYERS = 2, 4, 2
WIDTH = HEADS * DEPTH


@dataclasses.dataclass(frozen=True)
class FakeNetwork:
    """Causal attention with a bias for each pair of positions."""

    vocab_size: int = 7
    length: int = 12
    scanned: bool = False
    sharpness: float = 1.5

    @property
    def offset(self) -> int:
        return int(self.scanned)

    def weights(self) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(5)
        shapes = {
            "embed": (self.vocab_size, WIDTH),
            "qkv": (LAYERS, 3, WIDTH, WIDTH),
            "bias": (HEADS, self.length, self.length),
            "out": (WIDTH, self.vocab_size),
        }
        return {k: draw.normal(size=s).astype(np.float32) for k, s in shapes.items()}

    def empty(self, rows: int, vector: bool = False) -> dict[str, Any]:
        """An empty cache."""
        layers = (LAYERS,) if self.scanned else ()
        keys = jnp.zeros((*layers, rows, HEADS, DEPTH, self.length))
        layer = {
            "cached_key": keys,
            "cached_value": keys,
            "cache_index": jnp.zeros((*layers, rows) if vector else layers, jnp.int32),
        }
        bias = {"relpos_bias": {"cached_bias": jnp.asarray(self.weights()["bias"])[None]}}
        if self.scanned:
            return {"decoder": {"layers": {"self_attention": layer}, **bias}}
        layers_of = {f"layers_{i}": {"self_attention": dict(layer)} for i in range(LAYERS)}
        return {"decoder": {**layers_of, **bias}}

    def prefilled(self, inputs: np.ndarray, initial_index: np.ndarray) -> dict[str, Any]:
        """A cache with a vector index that holds ``inputs[:, :initial_index]``."""
        cache = self.empty(len(inputs), vector=True)
        step = jax.jit(self)
        for i in range(int(initial_index.max())):
            state = FakeState(jnp.full(len(inputs), i), inputs, inputs[:, i : i + 1], cache)
            cache = step(state)[1]

        def cut(path: Any, leaf: Any) -> Any:
            if path[-1].key == "cache_index":
                return jnp.broadcast_to(initial_index, leaf.shape).astype(jnp.int32)
            if path[-1].key == "cached_bias":
                return leaf
            slots = jnp.arange(self.length).reshape((1,) * (leaf.ndim - 1) + (-1,))
            rows = jnp.reshape(initial_index, (*(1,) * self.offset, -1, 1, 1, 1))
            return jnp.where(slots < rows, leaf, 0.0)

        return jax.tree_util.tree_map_with_path(cut, cache)

    def __call__(self, state: Any) -> tuple[Any, dict[str, Any]]:
        """``tokens_to_logits``."""
        w = self.weights()
        token = state.cur_token[:, 0]
        x = jax.nn.one_hot(token, self.vocab_size) @ w["embed"]
        decoder = state.cache["decoder"]
        layers = []
        for i in range(LAYERS):
            if self.scanned:
                cache = jax.tree.map(lambda a, i=i: a[i], decoder["layers"]["self_attention"])
            else:
                cache = decoder[f"layers_{i}"]["self_attention"]
            x, cache = self._layer(x, cache, w["qkv"][i], decoder["relpos_bias"]["cached_bias"])
            layers.append(cache)
        new = dict(decoder)
        if self.scanned:
            stacked = jax.tree.map(lambda *a: jnp.stack(a), *layers)
            new["layers"] = {"self_attention": stacked}
        else:
            new |= {f"layers_{i}": {"self_attention": c} for i, c in enumerate(layers)}
        return self.sharpness * (x @ w["out"]), {"decoder": new}

    def _layer(self, x: Any, cache: Any, qkv: Any, bias: Any) -> tuple[Any, Any]:
        rows = x.shape[0]
        if cache["cached_key"].shape[0] != rows:
            raise ValueError(f"cache of {cache['cached_key'].shape[0]} rows for {rows} tokens")
        query, key, value = (
            (x @ qkv[j]).reshape(rows, HEADS, DEPTH) / np.sqrt(WIDTH) for j in range(3)
        )
        index = jnp.broadcast_to(cache["cache_index"], (rows,))
        slot = jax.nn.one_hot(index, self.length)[:, None, None]
        keys = cache["cached_key"] + key[..., None] * slot
        values = cache["cached_value"] + value[..., None] * slot
        scores = jnp.einsum("rhd,rhdl->rhl", query, keys)
        scores += jnp.moveaxis(jnp.take(bias[0], index, axis=1, mode="clip"), 1, 0)
        seen = jnp.arange(self.length)[None, None] <= index[:, None, None]
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e10))
        mixed = jnp.einsum("rhl,rhdl->rhd", weights, values).reshape(rows, WIDTH)
        new = {"cached_key": keys, "cached_value": values, "cache_index": cache["cache_index"] + 1}
        return jnp.tanh(x + mixed), new

    def path_logits(self, path: np.ndarray) -> np.ndarray:
        """The logits after each token of a text ``[n]``, computed without a cache."""
        w = self.weights()
        x = w["embed"][path]
        n = len(path)
        for i in range(LAYERS):
            query, key, value = (
                (x @ w["qkv"][i, j]).reshape(n, HEADS, DEPTH) / np.sqrt(WIDTH) for j in range(3)
            )
            scores = np.einsum("qhd,khd->hqk", query, key) + w["bias"][:, :n, :n]
            scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            x = np.tanh(x + np.einsum("hqk,khd->qhd", weights, value).reshape(n, WIDTH))
        return self.sharpness * (x @ w["out"])


@pytree
@dataclasses.dataclass
class FakeState:
    """T5X's ``DecodingState``."""

    cur_index: Any
    sequences: Any
    cur_token: Any
    cache: Any
