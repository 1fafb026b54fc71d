"""T5X model classes that decode with this library's networks, on T5X's parameters.

They replace the corresponding classes of T5X, in gin or in Python. Training, scoring and
checkpoints remain T5X's. ``predict_batch`` runs any of ``decode_fns`` on the native network, whose
rows may be at different positions and whose cache is not moved between beams. The speculative
classes draft several tokens, and verify them in one call of the network.

The parameters of a draft are read once, when the model is constructed, and those of a head when a
batch is compiled. They are not part of T5X's train state, so the program that T5X compiles closes
over them. ``docs/t5x.md`` describes the cost and how to avoid it. Importing this module requires
T5X.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import jax.numpy as jnp
from t5x import models

from decoding_jax import fields
from decoding_jax.base import Array, LanguageModel, Prompt
from decoding_jax.models import T5, T5Decoder, from_t5x
from decoding_jax.t5x import decode_fns, drafts, mesh
from decoding_jax.t5x.decode_fns.calls import NativeDecoder
from decoding_jax.t5x.decode_fns.speculative import SpeculativeDecoder

__all__ = [
    "NativeDecoderOnlyModel",
    "NativeEncoderDecoderModel",
    "SpeculativeDecoderOnlyModel",
    "SpeculativeEncoderDecoderModel",
    "as_native",
    "as_speculative",
]


class _Native:
    """What the native classes share: they give a decode function a language model."""

    weights: str | None = None
    _decode_fn: Callable[..., Any]
    _default_decoder_params: models.DecoderParams
    output_vocabulary: Any

    def _decoder(self, model: LanguageModel, prompt: Prompt) -> NativeDecoder:
        """The decoder that the decode function is given instead of ``tokens_to_logits``."""
        return NativeDecoder(model, prompt)

    def _decode(
        self,
        inputs: Array,
        model: LanguageModel,
        prompt: Prompt,
        rng: Array | None,
        decoder_params: Mapping[str, Any] | None,
        num_decodes: int | None,
        return_all_decodes: bool | None,
    ) -> tuple[Array, Array]:
        """Decodes and scores: all of them, or the best of each row."""
        defaults, settings = self._default_decoder_params, dict(decoder_params or {})
        if rng is not None:
            if settings.get("decode_rng") is not None:
                raise ValueError(
                    "rng: expected a key here or in decoder_params['decode_rng'], got both"
                )
            settings["decode_rng"] = rng
        settings.setdefault("eos_id", self.output_vocabulary.eos_id or 1)
        decodes, scores = self._decode_fn(
            inputs=inputs,
            cache={},
            tokens_to_logits=self._decoder(model, prompt),
            num_decodes=defaults.num_decodes if num_decodes is None else num_decodes,
            cache_offset=0,
            **settings,
        )
        if return_all_decodes is None:
            return_all_decodes = defaults.return_all_decodes
        return (decodes, scores) if return_all_decodes else (decodes[:, -1], scores[:, -1])


class NativeEncoderDecoderModel(_Native, models.EncoderDecoderModel):
    """T5X's ``EncoderDecoderModel`` for the networks of ``examples/t5`` and ``scalable_t5``.

    Args:
      module: T5X's network. It is used for training and scoring; its ``config`` also describes the
        native network.
      input_vocabulary: a ``seqio.Vocabulary``.
      output_vocabulary: a ``seqio.Vocabulary``.
      optimizer_def: T5X's.
      decode_fn: any of ``decoding_jax.t5x.decode_fns``.
      weights: None, or ``"int8"`` or ``"int4"``, as in ``load``. The train state stays as it is;
        each batch rounds its parameters once, and its steps read the narrow ones.
      **others: the further arguments of T5X's class.
    """

    def __init__(
        self,
        module: Any,
        input_vocabulary: Any,
        output_vocabulary: Any,
        optimizer_def: Any,
        decode_fn: Callable[..., Any] = decode_fns.beam_search,
        weights: str | None = None,
        **others: Any,
    ):
        self.weights = weights
        super().__init__(
            module, input_vocabulary, output_vocabulary, optimizer_def, decode_fn, **others
        )

    def native(self, params: Mapping[str, Any]) -> T5:
        """The native network with these parameters."""
        model = _native(self.module.config, params, weights=self.weights)
        if not isinstance(model, T5):
            raise ValueError("module: expected an encoder and a decoder, got a decoder alone")
        return model

    @mesh.on_t5x_mesh
    def predict_batch_with_aux(
        self,
        params: Mapping[str, Any],
        batch: Mapping[str, Array],
        rng: Array | None = None,
        decoder_params: MutableMapping[str, Any] | None = None,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
        prompt_with_targets: bool = False,
    ) -> tuple[Array, Mapping[str, Array]]:
        """As T5X's method, on the native network; ``decoder_params`` is not modified."""
        source, target = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        target = target.astype(jnp.int32)
        if prompt_with_targets:
            target = jnp.where(target == self.output_vocabulary.eos_id, 0, target)
            prompt = Prompt(target, (target[:, 1:] != 0).sum(-1) + 1)
        else:
            target = jnp.zeros_like(target)
            prompt = Prompt(target[:, :1], jnp.ones(target.shape[0], jnp.int32))
        # A batch may contain rows of padding only.
        length = jnp.maximum((source > 0).sum(-1), 1)
        bound = self.native(params).bind(source.astype(jnp.int32), length)
        options = rng, decoder_params, num_decodes, return_all_decodes
        decodes, scores = self._decode(target, bound, prompt, *options)
        return decodes, {"scores": scores}


class NativeDecoderOnlyModel(_Native, models.DecoderOnlyModel):
    """T5X's ``DecoderOnlyModel`` for the network of ``examples/decoder_only``.

    Args:
      module: T5X's network. It is used for training and scoring; its ``config`` also describes the
        native network.
      vocabulary: a ``seqio.Vocabulary``.
      optimizer_def: T5X's.
      decode_fn: any of ``decoding_jax.t5x.decode_fns``.
      inputs_bidirectional_attention: whether the tokens of a prompt attend to each other.
      default_decoder_params: as for T5X's ``EncoderDecoderModel``.
      weights: as for ``NativeEncoderDecoderModel``.
      **others: the further arguments of T5X's class.
    """

    def __init__(
        self,
        module: Any,
        vocabulary: Any,
        optimizer_def: Any,
        decode_fn: Callable[..., Any] = decode_fns.temperature_sample,
        inputs_bidirectional_attention: bool = False,
        default_decoder_params: models.DecoderParams | None = None,
        weights: str | None = None,
        **others: Any,
    ):
        self.weights = weights
        self._default_decoder_params = default_decoder_params or models.DecoderParams()
        super().__init__(
            module, vocabulary, optimizer_def, decode_fn, inputs_bidirectional_attention, **others
        )

    def native(self, params: Mapping[str, Any]) -> T5Decoder:
        """The native network with these parameters."""
        model = _native(
            self.module.config,
            params,
            bidirectional_prompt=self._inputs_bidirectional_attention,
            weights=self.weights,
        )
        if not isinstance(model, T5Decoder):
            raise ValueError("module: expected a decoder alone, got an encoder and a decoder")
        return model

    @mesh.on_t5x_mesh
    def predict_batch_with_aux(
        self,
        params: Mapping[str, Any],
        batch: Mapping[str, Array],
        rng: Array | None = None,
        *,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
        decoder_params: MutableMapping[str, Any] | None = None,
    ) -> tuple[Array, Mapping[str, Array]]:
        """As T5X's method, on the native network; ``decoder_params`` is not modified."""
        if "decoder_causal_attention" not in batch:
            raise ValueError(
                "batch: expected decoder_causal_attention, which a task with inputs and targets "
                "has, got none"
            )
        inputs = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]
        inputs = inputs.astype(jnp.int32)
        prompt_length = (inputs[:, 1:] != 0).sum(-1)
        prompt = Prompt(inputs, prompt_length + 1)
        options = rng, decoder_params, num_decodes, return_all_decodes
        decodes, scores = self._decode(inputs, self.native(params), prompt, *options)
        return models.remove_prefix(decodes, prompt_length), {"scores": scores}


class _Speculative(_Native):
    """What the speculative classes share: a drafter."""

    module: Any
    drafter: Any

    def _set_drafter(self, drafter: Any) -> None:
        bidirectional = getattr(self, "_inputs_bidirectional_attention", False)
        self.drafter = drafts.ready(drafter, self.module.config, bidirectional_prompt=bidirectional)

    def _decoder(self, model: LanguageModel, prompt: Prompt) -> NativeDecoder:
        drafter = drafts.bind(mesh.on_mesh(self.drafter), model)
        return SpeculativeDecoder(model, prompt, drafter)


class SpeculativeEncoderDecoderModel(_Speculative, NativeEncoderDecoderModel):
    """``NativeEncoderDecoderModel`` with a draft for ``decode_fns.speculative_sample``.

    Args:
      module, input_vocabulary, output_vocabulary, optimizer_def, **others: as for
        ``NativeEncoderDecoderModel``.
      drafter: ``drafts.DraftCheckpoint``, ``drafts.EarlyExit``, ``PromptLookup`` or ``NextToken``
        of ``strategies.speculative``, a head from ``load_drafter`` without a target, a ``T5`` of
        this library, or your own drafter.
      decode_fn: any of ``decoding_jax.t5x.decode_fns``; only the default uses the drafter.

    Raises:
      ValueError: if the draft does not fit the model or cannot be read; of a head that does not
        fit, when a batch is compiled.
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


class SpeculativeDecoderOnlyModel(_Speculative, NativeDecoderOnlyModel):
    """``NativeDecoderOnlyModel`` with a draft for ``decode_fns.speculative_sample``.

    Args:
      module, vocabulary, optimizer_def, **others: as for ``NativeDecoderOnlyModel``.
      drafter: as for ``SpeculativeEncoderDecoderModel``, with a ``T5Decoder`` instead of a ``T5``.
        A draft from a checkpoint has bidirectional attention in the prompt if the model has.
      decode_fn: any of ``decoding_jax.t5x.decode_fns``; only the default uses the drafter.

    Raises:
      ValueError: if the draft does not fit the model or cannot be read; of a head that does not
        fit, when a batch is compiled.
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


def as_native(
    model: models.BaseTransformerModel,
    num_decodes: int | None = None,
    return_all_decodes: bool | None = None,
    weights: str | None = None,
) -> NativeEncoderDecoderModel | NativeDecoderOnlyModel:
    """Converts a T5X model, with all its settings, to the corresponding native class.

    Args:
      model: an instance of T5X's ``EncoderDecoderModel`` or ``DecoderOnlyModel``, whose
        ``decode_fn`` is one of ``decoding_jax.t5x.decode_fns``.
      num_decodes: the default of ``predict_batch``; None keeps that of ``model``.
      return_all_decodes: the default of ``predict_batch``; None keeps that of ``model``.
      weights: as for ``NativeEncoderDecoderModel``.

    Raises:
      ValueError: for an instance of another class.
    """
    for theirs, ours in (
        (models.EncoderDecoderModel, NativeEncoderDecoderModel),
        (models.DecoderOnlyModel, NativeDecoderOnlyModel),
    ):
        if isinstance(model, theirs):
            native: Any = object.__new__(ours)
            vars(native).update(vars(model))
            native.weights = weights
            defaults = getattr(model, "_default_decoder_params", models.DecoderParams())
            changes = {"num_decodes": num_decodes, "return_all_decodes": return_all_decodes}
            changes = {name: value for name, value in changes.items() if value is not None}
            native._default_decoder_params = dataclasses.replace(defaults, **changes)
            return native
    raise fields.error("model", "an EncoderDecoderModel or a DecoderOnlyModel", model)


def as_speculative(
    model: models.BaseTransformerModel,
    drafter: Any,
    num_decodes: int | None = None,
    return_all_decodes: bool | None = None,
    weights: str | None = None,
) -> SpeculativeEncoderDecoderModel | SpeculativeDecoderOnlyModel:
    """Converts a T5X model, with all its settings, to the corresponding speculative class.

    Args:
      model: an instance of T5X's ``EncoderDecoderModel`` or ``DecoderOnlyModel``, whose
        ``decode_fn`` is ``decode_fns.speculative_sample``.
      drafter: as for the classes.
      num_decodes: the default of ``predict_batch``; None keeps that of ``model``.
      return_all_decodes: the default of ``predict_batch``; None keeps that of ``model``.
      weights: as for ``NativeEncoderDecoderModel``.

    Raises:
      ValueError: for an instance of another class, or for a draft that does not fit the model.
    """
    native = as_native(model, num_decodes, return_all_decodes, weights)
    has_encoder = isinstance(native, NativeEncoderDecoderModel)
    cls = SpeculativeEncoderDecoderModel if has_encoder else SpeculativeDecoderOnlyModel
    speculative: Any = object.__new__(cls)
    vars(speculative).update(vars(native))
    speculative._set_drafter(drafter)
    return speculative


def _native(config: Any, params: Mapping[str, Any], **settings: Any) -> T5 | T5Decoder:
    return from_t5x(
        params,
        mlp_activations=tuple(config.mlp_activations),
        dtype=jnp.dtype(config.dtype).name,
        scan_axis=getattr(config, "param_scan_axis", 1),
        **settings,
    )
