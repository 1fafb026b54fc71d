"""T5X model classes that decode speculatively: the native classes with a drafter.

``predict_batch`` drafts several tokens and verifies them in one call of this library's network,
with T5X's parameters. Importing this module requires T5X.

The parameters of a draft are read once, when the model is constructed. They are not part of T5X's
train state, so the program that T5X compiles closes over them. ``docs/t5x.md`` describes the cost
and how to avoid it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t5x import models

from decoding_jax.base import LanguageModel, Prompt
from decoding_jax.t5x import decode_fns, drafts
from decoding_jax.t5x.decode_fns.call import NativeDecoder
from decoding_jax.t5x.decode_fns.speculative import SpeculativeDecoder
from decoding_jax.t5x.mesh import on_mesh
from decoding_jax.t5x.models.native import (
    NativeDecoderOnlyModel,
    NativeEncoderDecoderModel,
    as_native,
)


class SpeculativeEncoderDecoderModel(NativeEncoderDecoderModel):
    """``NativeEncoderDecoderModel`` with a draft for ``decode_fns.speculative_sample``.

    Args:
      module: T5X's network. It is used for training and scoring; its ``config`` also describes the
        native network.
      input_vocabulary: a ``seqio.Vocabulary``.
      output_vocabulary: a ``seqio.Vocabulary``.
      optimizer_def: T5X's.
      drafter: ``drafts.DraftCheckpoint``, ``drafts.EarlyExit``, ``PromptLookup`` or ``NextToken``
        of ``strategies.speculative``, a ``T5`` of this library, or your own drafter.
      decode_fn: any of ``decoding_jax.t5x.decode_fns``; only the default uses the drafter.
      **others: the further arguments of T5X's class.

    Raises:
      ValueError: if the draft does not fit the model or cannot be read.
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
        self._set_drafter(drafter)

    def _set_drafter(self, drafter: Any) -> None:
        self.drafter = drafts.ready(drafter, self.module.config)

    def _decoder(self, model: LanguageModel, prompt: Prompt) -> NativeDecoder:
        return SpeculativeDecoder(model, prompt, drafts.bind(on_mesh(self.drafter), model))


class SpeculativeDecoderOnlyModel(NativeDecoderOnlyModel):
    """``NativeDecoderOnlyModel`` with a draft for ``decode_fns.speculative_sample``.

    Args:
      module: T5X's network. It is used for training and scoring; its ``config`` also describes the
        native network.
      vocabulary: a ``seqio.Vocabulary``.
      optimizer_def: T5X's.
      drafter: as for ``SpeculativeEncoderDecoderModel``, with a ``T5Decoder`` instead of a ``T5``.
        A draft from a checkpoint has bidirectional attention in the prompt if the model has.
      decode_fn: any of ``decoding_jax.t5x.decode_fns``; only the default uses the drafter.
      **others: the further arguments of ``NativeDecoderOnlyModel``.

    Raises:
      ValueError: if the draft does not fit the model or cannot be read.
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
        self._set_drafter(drafter)

    def _set_drafter(self, drafter: Any) -> None:
        self.drafter = drafts.ready(
            drafter,
            self.module.config,
            bidirectional_prompt=self._inputs_bidirectional_attention,
        )

    def _decoder(self, model: LanguageModel, prompt: Prompt) -> NativeDecoder:
        return SpeculativeDecoder(model, prompt, drafts.bind(on_mesh(self.drafter), model))


def as_speculative(
    model: models.BaseTransformerModel,
    drafter: Any,
    num_decodes: int | None = None,
    return_all_decodes: bool | None = None,
) -> SpeculativeEncoderDecoderModel | SpeculativeDecoderOnlyModel:
    """Converts a T5X model, with all its settings, to the corresponding speculative class.

    Args:
      model: an instance of T5X's ``EncoderDecoderModel`` or ``DecoderOnlyModel``, whose
        ``decode_fn`` is ``decode_fns.speculative_sample``.
      drafter: as for the classes.
      num_decodes: the default of ``predict_batch``; None keeps that of ``model``.
      return_all_decodes: the default of ``predict_batch``; None keeps that of ``model``.

    Raises:
      ValueError: for an instance of another class, or for a draft that does not fit the model.
    """
    native = as_native(model, num_decodes, return_all_decodes)
    has_encoder = isinstance(native, NativeEncoderDecoderModel)
    cls = SpeculativeEncoderDecoderModel if has_encoder else SpeculativeDecoderOnlyModel
    speculative: Any = object.__new__(cls)
    vars(speculative).update(vars(native))
    speculative._set_drafter(drafter)
    return speculative
