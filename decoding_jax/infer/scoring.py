"""Figures of every token of a record's outputs, by a pass of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array, LanguageModel, Prompt
from decoding_jax.batches import encode_batch
from decoding_jax.batches.decoder import memory_checked
from decoding_jax.batches.widths import rounded_length
from decoding_jax.infer.records import Record, plain
from decoding_jax.infer.settings import Settings
from decoding_jax.ops.jit import jit
from decoding_jax.sharding.meshes import to_host
from decoding_jax.text.inputs import vocabulary_size
from decoding_jax.text.token_scores import scores_by_chunks

_FIGURES = ("token_log_probs", "token_entropies")
_TOP = ("top_tokens", "top_log_probs")


class Scorer:
    """Adds figures of tokens to the outputs of records, as ``text.token_scores`` computes them.

    The sum of ``token_log_probs`` is ``log_prob``, up to the rounding of float32. The model reads
    each prompt and all of its outputs once more.

    Args:
      names: what is added: ``"token_log_probs"``, ``"token_entropies"``, or both, or neither.
      num_alternatives: if not 0, ``"top_tokens"`` and ``"top_log_probs"`` are added, each a list of
        as many for each token.
      model: an encoder-decoder, or a language model.
      batch_size: the number of records that are scored together.
      widths: the widths that inputs are padded to, in ascending order.

    Attributes:
      settings: the settings of the job that ask for these figures.
    """

    def __init__(
        self,
        names: Sequence[str],
        num_alternatives: int,
        model: Any,
        batch_size: int,
        widths: Sequence[int],
    ):
        self.settings: dict[str, Any] = {f"with_{name}": True for name in names}
        if num_alternatives:
            self.settings["with_top_tokens"] = num_alternatives
        self._names = [*names, *(_TOP if num_alternatives else ())]
        self._model = model
        self._batch_size = batch_size
        self._widths = widths
        wanted = self._names

        def score(model: LanguageModel, prompt: Prompt, tokens: Array, end: Array) -> dict:
            # What is not returned is not computed.
            scores = scores_by_chunks(model, prompt, tokens, end, num_alternatives=num_alternatives)
            found = {
                "token_log_probs": scores.log_prob,
                "token_entropies": scores.entropy,
                "top_tokens": scores.top_tokens,
                "top_log_probs": scores.top_log_probs,
            }
            return {name: found[name] for name in wanted}

        self._score = jit(score, ())

    @classmethod
    def wanted(cls, model: Any, settings: Settings, widths: Sequence[int]) -> Scorer | None:
        """The scorer of the figures that a job wants; None if it wants none.

        Raises:
          ValueError: if ``with_top_tokens`` is larger than the vocabulary.
        """
        names = [name for name in _FIGURES if getattr(settings, f"with_{name}")]
        size, count = vocabulary_size(model), settings.with_top_tokens
        if count > size:
            raise fields.error("with_top_tokens", f"a whole number from 0 to {size}", count)
        if not names and not count:
            return None
        return cls(names, count, model, settings.batch_size, widths)

    def add(
        self, records: Sequence[Record], ids: Mapping[int, list[int]], *, with_tokens: bool
    ) -> list[Record]:
        """Returns records with the figures in each output, whose ``tokens`` stay if that is wanted.

        ``ids`` has the tokens of the inputs of the records that have outputs, by their place.
        """
        of_width: dict[int, list[int]] = {}
        for i in ids:
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
        outputs = [[output["tokens"] for output in record["outputs"]] for record in records]
        lanes = max(map(len, outputs))
        length = max((len(tokens) for of_record in outputs for tokens in of_record), default=1)
        padding = self._batch_size - len(records)
        model, prompt = encode_batch(self._model, [*ids, *[ids[0]] * padding], width)
        # A few lengths, so that few programs are compiled.
        size = rounded_length(max(length, 1), prompt.tokens.shape[1], [model])
        tokens = np.zeros((self._batch_size, lanes, size), np.int32)
        for b, of_record in enumerate(outputs):
            for n, of_output in enumerate(of_record):
                tokens[b, n, : len(of_output)] = of_output
        with memory_checked(self._model, self._batch_size, width, spread=1):
            scores = self._score(model, prompt, jnp.asarray(tokens), jnp.int32(length))
            return to_host(scores)


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
                    made[name] = [plain(x) for x in of_record[n, :count]]
        outputs.append(made)
    return {**record, "outputs": outputs}
