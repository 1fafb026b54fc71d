"""Figures of every token of a record's outputs, by a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array, LanguageModel, Prompt
from decoding_jax.infer import memory
from decoding_jax.infer.arguments import check_top_tokens
from decoding_jax.infer.input_encoder import InputEncoder
from decoding_jax.infer.records import Record, plain
from decoding_jax.ops.jit import jit
from decoding_jax.ops.mesh import to_host
from decoding_jax.text import encode_batch
from decoding_jax.text.sizes import rounded_length
from decoding_jax.text.token_scores import token_scores

_TOP = ("top_tokens", "top_log_probs")


def make_scorer(
    model: Any,
    encode: InputEncoder,
    batch_size: int,
    widths: Sequence[int],
    *,
    with_token_log_probs: bool,
    with_token_entropies: bool,
    with_top_tokens: int,
) -> Scorer | None:
    """The scorer of the figures that are wanted; None if none is.

    Args:
      model, encode, batch_size, widths: as for ``Scorer``.
      with_token_log_probs, with_token_entropies, with_top_tokens: as for ``infer.run``.

    Raises:
      ValueError: if ``with_top_tokens`` is not a number from 0 to the size of the vocabulary.
    """
    wanted = {"token_log_probs": with_token_log_probs, "token_entropies": with_token_entropies}
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    num_alternatives = check_top_tokens(with_top_tokens, model)
    if not names and not num_alternatives:
        return None
    return Scorer(names, num_alternatives, model, encode, batch_size, widths)


class Scorer:
    """Adds figures of tokens to the outputs of records, as ``token_scores`` computes them.

    The sum of ``token_log_probs`` is ``log_prob``, up to the rounding of float32. The model reads
    each prompt and all of its outputs once more.

    Args:
      names: what is added: ``"token_log_probs"``, ``"token_entropies"``, or both, or neither.
      num_alternatives: if not 0, ``"top_tokens"`` and ``"top_log_probs"`` are added, each a list of
        as many for each token.
      model: an encoder-decoder, or a language model.
      encode: encodes inputs, as for the decoding.
      batch_size: the number of records that are scored together.
      widths: the widths that inputs are padded to, in ascending order.

    Attributes:
      settings: the settings of ``infer.run`` that ask for these figures.
    """

    def __init__(
        self,
        names: Sequence[str],
        num_alternatives: int,
        model: Any,
        encode: InputEncoder,
        batch_size: int,
        widths: Sequence[int],
    ):
        self.settings: dict[str, Any] = {f"with_{name}": True for name in names}
        if num_alternatives:
            self.settings["with_top_tokens"] = num_alternatives
        self._names = [*names, *(_TOP if num_alternatives else ())]
        self._model = model
        self._encode = encode
        self._batch_size = batch_size
        self._widths = widths
        wanted = self._names

        def score(model: LanguageModel, prompt: Prompt, tokens: Array, end: Array) -> dict:
            # What is not returned is not computed.
            scores = token_scores(model, prompt, tokens, end, num_alternatives=num_alternatives)
            found = {
                "token_log_probs": scores.log_prob,
                "token_entropies": scores.entropy,
                "top_tokens": scores.top_tokens,
                "top_log_probs": scores.top_log_probs,
            }
            return {name: found[name] for name in wanted}

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
                ids[i], _ = self._encode(record["inputs"])
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
        with memory.checked(self._model, self._batch_size, width, spread=1):
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
