"""Figures of every token of a record's outputs, by a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array, LanguageModel, Prompt
from decoding_jax.infer import memory
from decoding_jax.infer.records import Record, rounded
from decoding_jax.ops.jit import jit
from decoding_jax.ops.logits import log_softmax
from decoding_jax.text import Tokenizer, encode_batch

_CHUNK = 16  # tokens of a call, whose logits are in memory together


class TokenScores(NamedTuple):
    """Figures of tokens, each under the model's distribution before any transform.

    Attributes:
      log_prob: float32 ``[B, N, L]``, the log-probability of each token, in nats.
      entropy: float32 ``[B, N, L]``, the entropy of the distribution that each token is from, in
        nats.
    """

    log_prob: Array
    entropy: Array


class Scorer:
    """Adds ``token_log_probs`` and ``token_entropies`` to the outputs of records.

    The sum of ``token_log_probs`` is ``log_prob``, up to the rounding of float32. The model reads
    each prompt and all of its outputs once more, sixteen tokens a call.

    Args:
      names: ``"token_log_probs"``, ``"token_entropies"``, or both: what is added.
      model: a T5, or a language model.
      tokenizer: the tokenizer of the model.
      batch_size: the number of records that are scored together.
      widths: the widths that inputs are padded to, in ascending order.
    """

    def __init__(
        self,
        names: Sequence[str],
        model: Any,
        tokenizer: Tokenizer,
        batch_size: int,
        widths: Sequence[int],
    ):
        self._names = names
        self._model = model
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._widths = widths

        def score(model: LanguageModel, prompt: Prompt, tokens: Array) -> dict[str, Array]:
            # What is not returned is not computed.
            scores = token_scores(model, prompt, tokens)
            found = {"token_log_probs": scores.log_prob, "token_entropies": scores.entropy}
            return {name: found[name] for name in names}

        self._score = jit(score, ())

    def add(self, records: Sequence[Record], *, with_tokens: bool) -> list[Record]:
        """Returns the records of a shard with the figures in each output.

        Args:
          records: the records, whose outputs have ``tokens``.
          with_tokens: whether the tokens stay.
        """
        of_width: dict[int, list[int]] = {}
        ids = {}
        for i, record in enumerate(records):
            if record["outputs"]:
                ids[i] = self._tokenizer.encode(record["inputs"])
                width = min(w for w in self._widths if w >= len(ids[i]))
                of_width.setdefault(width, []).append(i)
        made = list(records)
        for width, members in of_width.items():
            for start in range(0, len(members), self._batch_size):
                batch = members[start : start + self._batch_size]
                scores = self._scores([records[i] for i in batch], [ids[i] for i in batch], width)
                for b, i in enumerate(batch):
                    of_record = {name: scores[name][b] for name in self._names}
                    made[i] = _with_scores(records[i], of_record, with_tokens)
        return made

    def _scores(
        self, records: Sequence[Record], ids: Sequence[list[int]], width: int
    ) -> dict[str, np.ndarray]:
        padding = self._batch_size - len(records)
        outputs = [[output["tokens"] for output in record["outputs"]] for record in records]
        lanes = max(map(len, outputs))
        length = max((len(tokens) for of_record in outputs for tokens in of_record), default=1)
        # A few lengths, so that few programs are compiled.
        length = max(_CHUNK, 1 << (max(length, 1) - 1).bit_length())
        tokens = np.zeros((self._batch_size, lanes, length), np.int32)
        for b, of_record in enumerate(outputs):
            for n, of_output in enumerate(of_record):
                tokens[b, n, : len(of_output)] = of_output
        model, prompt = encode_batch(self._model, [*ids, *[ids[0]] * padding], width)
        with memory.checked(self._model, self._batch_size, width, spread=1):
            return jax.device_get(self._score(model, prompt, jnp.asarray(tokens)))


def token_scores(model: LanguageModel, prompt: Prompt, tokens: Array) -> TokenScores:
    """Returns figures of each token after its prompt and the tokens before it.

    Args:
      model: a language model.
      prompt: B prompts.
      tokens: int32 ``[B, N, L]``: N sequences of new tokens for each prompt, L a multiple of 16.
        What follows the end of a sequence is scored like the rest.
    """
    rows, lanes, length = tokens.shape
    output, cache = model.prefill(prompt.tokens, prompt.length, lanes=lanes, slots=length)
    last = jnp.broadcast_to(output.logits, (rows, lanes, 1, output.logits.shape[-1]))

    def step(carry: tuple[Any, Array], start: Array) -> tuple[tuple[Any, Array], TokenScores]:
        cache, last = carry
        chunk = jax.lax.dynamic_slice_in_dim(tokens, start, _CHUNK, 2)
        output, cache = model.extend(cache, chunk, start)
        before = jnp.concatenate([last, output.logits[:, :, :-1]], 2).astype(jnp.float32)
        log_probs = log_softmax(before)
        prob = jnp.exp(log_probs)
        of_chunk = TokenScores(
            log_prob=jnp.take_along_axis(log_probs, chunk[..., None], 3)[..., 0],
            entropy=-jnp.where(prob > 0, prob * log_probs, 0.0).sum(-1),
        )
        return (cache, output.logits[:, :, -1:].astype(last.dtype)), of_chunk

    starts = jnp.arange(0, length, _CHUNK, dtype=jnp.int32)
    _, scores = jax.lax.scan(step, (cache, last), starts)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(rows, lanes, length), scores)


def _with_scores(record: Record, scores: dict[str, np.ndarray], with_tokens: bool) -> Record:
    outputs = []
    for n, output in enumerate(record["outputs"]):
        made = {}
        for key, value in output.items():
            if key != "tokens" or with_tokens:
                made[key] = value
            if key == "log_prob":
                count = len(output["tokens"])
                for name, of_record in scores.items():
                    made[name] = [rounded(float(x)) for x in of_record[n, :count]]
        outputs.append(made)
    return {**record, "outputs": outputs}
