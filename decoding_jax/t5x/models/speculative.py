"""T5X model classes that speculate: the native ones, with a draft.

``predict_batch`` drafts several tokens and judges them in one call of this library's network, with
T5X's parameters. Importable only where T5X is.

A draft's parameters are read once, when the model is made. They are no part of T5X's train state,
so the program that T5X compiles closes over them: see ``docs/t5x.md`` for what that costs and how
it is avoided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t5x import models

from decoding_jax.base import LanguageModel, Prompt
from decoding_jax.t5x import decode_fns, drafts
from decoding_jax.t5x.decode_fns.call import NativeDecoder
from decoding_jax.t5x.decode_fns.speculative import SpeculativeDecoder
from decoding_jax.t5x.models.native import (
    NativeDecoderOnlyModel,
    NativeEncoderDecoderModel,
    as_native,
)


class SpeculativeEncoderDecoderModel(NativeEncoderDecoderModel):
    """``NativeEncoderDecoderModel`` with a draft for ``decode_fns.speculative_sample``.

    Args:
      module: T5X's network: it trains and scores, and its ``config`` says how to decode.
      input_vocabulary: a ``seqio.Vocabulary``.
      output_vocabulary: a ``seqio.Vocabulary``.
      optimizer_def: T5X's.
      drafter: what proposes tokens: ``drafts.DraftCheckpoint``, ``drafts.EarlyExit``,
        ``PromptLookup`` or ``NextToken`` of ``strategies.speculative``, a ``T5`` of this library,
        or a drafter of one's own.
      decode_fn: others than the default decode without the draft.
      **others: as T5X's class takes them.

    Raises:
      ValueError: in one line, for a draft that does not fit the model or cannot be read.
    """

    def __init__(
        self,
        module: Any,
        input_vocabulary: Any,
        output_vocabulary: Any,
        optimizer_def: Any,
        drafter: Any,
        decode_fn: Callable[..., Any] = decode_fns.speculative_sample,
        **others: Any,
    ):
        super().__init__(
            module, input_vocabulary, output_vocabulary, optimizer_def, decode_fn, **others
        )
        self._bring(drafter)

    def _bring(self, drafter: Any) -> None:
        self.drafter = drafts.ready(drafter, self.module.config)

    def _decoder(self, model: LanguageModel, prompt: Prompt) -> NativeDecoder:
        return SpeculativeDecoder(model, prompt, drafts.bind(self.drafter, model))


class SpeculativeDecoderOnlyModel(NativeDecoderOnlyModel):
    """``NativeDecoderOnlyModel`` with a draft for ``decode_fns.speculative_sample``.

    Args:
      module: T5X's network: it trains and scores, and its ``config`` says how to decode.
      vocabulary: a ``seqio.Vocabulary``.
      optimizer_def: T5X's.
      drafter: as ``SpeculativeEncoderDecoderModel`` takes it, but a ``T5Decoder`` for a ``T5``. A
        checkpoint's draft sees the tokens of a prompt as the model does.
      decode_fn: others than the default decode without the draft.
      **others: as ``NativeDecoderOnlyModel`` takes them.

    Raises:
      ValueError: in one line, for a draft that does not fit the model or cannot be read.
    """

    def __init__(
        self,
        module: Any,
        vocabulary: Any,
        optimizer_def: Any,
        drafter: Any,
        decode_fn: Callable[..., Any] = decode_fns.speculative_sample,
        **others: Any,
    ):
        super().__init__(module, vocabulary, optimizer_def, decode_fn, **others)
        self._bring(drafter)

    def _bring(self, drafter: Any) -> None:
        self.drafter = drafts.ready(
            drafter,
            self.module.config,
            bidirectional_prompt=self._inputs_bidirectional_attention,
        )

    def _decoder(self, model: LanguageModel, prompt: Prompt) -> NativeDecoder:
        return SpeculativeDecoder(model, prompt, drafts.bind(self.drafter, model))


def as_speculative(
    model: models.BaseTransformerModel,
    drafter: Any,
    num_decodes: int | None = None,
    return_all_decodes: bool | None = None,
) -> SpeculativeEncoderDecoderModel | SpeculativeDecoderOnlyModel:
    """A T5X model, with all its settings, as the class of its shape here.

    Args:
      model: of T5X's ``EncoderDecoderModel`` or ``DecoderOnlyModel``; its ``decode_fn`` is
        ``decode_fns.speculative_sample``.
      drafter: as the classes take it.
      num_decodes: what ``predict_batch`` takes by default; None leaves the model's own.
      return_all_decodes: likewise.

    Raises:
      ValueError: for another class, or a draft that does not fit.
    """
    native = as_native(model, num_decodes, return_all_decodes)
    encodes = isinstance(native, NativeEncoderDecoderModel)
    ours = SpeculativeEncoderDecoderModel if encodes else SpeculativeDecoderOnlyModel
    made: Any = object.__new__(ours)
    vars(made).update(vars(native))
    made._bring(drafter)
    return made
