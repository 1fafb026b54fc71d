"""Drafts for native models: a checkpoint, the model's first layers, a head, or any drafter."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax.base import LanguageModel
from decoding_jax.models import T5, BoundT5, T5Decoder, load_t5x
from decoding_jax.models.checkpoint import DrafterDirectory
from decoding_jax.strategies.speculative.drafters import as_drafter, bind_to_inputs


@dataclasses.dataclass(frozen=True)
class DraftCheckpoint:
    """A draft model in a separate T5X checkpoint.

    Attributes:
      directory: a checkpoint, or a folder of checkpoints, whose latest is read; a path or
        a URL such as ``gs://bucket/draft``.
      config: T5X's ``network.T5Config`` (or ``TransformerConfig``) of the draft. With None, the
        arrays determine the shape and the target's configuration all other settings. The
        activations are the target's if the draft has as many gates, and otherwise the defaults of
        ``from_t5x``.
      weights: None, or ``"int8"`` or ``"int4"``, as in ``load``. The checkpoint may be that of
        the target.
    """

    directory: str | None
    config: Any = None
    weights: str | None = None

    def load(self, target: Any, *, bidirectional_prompt: bool = False) -> T5 | T5Decoder:
        """Reads the draft model.

        Args:
          target: T5X's configuration of the target.
          bidirectional_prompt: for a decoder-only draft; see ``T5DecoderConfig``.

        Raises:
          CheckpointError: as ``load_t5x``.
          ValueError: if there is no directory, or if the arrays contradict ``config``.
        """
        if self.directory is None:
            raise ValueError(
                "directory: expected a T5X checkpoint, DRAFT_CHECKPOINT_PATH in the gin files, "
                "unless DRAFTER is another drafter, got None"
            )
        config = target if self.config is None else self.config
        activations = tuple(config.mlp_activations)
        model = load_t5x(
            self.directory,
            dtype=jnp.dtype(config.dtype).name,
            mlp_activations=None if self.config is None else activations,
            bidirectional_prompt=bidirectional_prompt,
            scan_axis=getattr(config, "param_scan_axis", 1),
            weights=self.weights,
        )
        if self.config is None:
            if len(activations) == len(model.config.mlp_activations):
                as_target: Any = dataclasses.replace(model.config, mlp_activations=activations)
                model = dataclasses.replace(model, config=as_target)
            return model
        for name in _SHAPE:
            configured, found = getattr(config, name, None), getattr(model.config, name, None)
            if configured != found:
                raise ValueError(
                    f"config: expected {name}={found}, as the arrays of {self.directory}, got "
                    f"{configured}"
                )
        return model


_SHAPE = (
    "vocab_size",
    "emb_dim",
    "num_heads",
    "head_dim",
    "mlp_dim",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_layers",
    "logits_via_embedding",
)


@dataclasses.dataclass(frozen=True)
class EarlyExit:
    """The first layers of the target as the draft, which needs no further parameters.

    Attributes:
      num_layers: the number of decoder layers, from 1 to the target's.
    """

    num_layers: int


def ready(drafter: Any, target: Any, *, bidirectional_prompt: bool = False) -> Any:
    """Checks that a drafter fits a target, and reads its checkpoint if it has one.

    Args:
      drafter: a ``DraftCheckpoint``, an ``EarlyExit``, a head from ``load_drafter`` without a
        target, a model or a drafter.
      target: T5X's configuration of the target.
      bidirectional_prompt: as for ``DraftCheckpoint.load``.

    Returns:
      A drafter for ``bind``.

    Raises:
      ValueError: if the draft has another vocabulary or architecture than the target, if it has
        more layers, or if ``drafter`` is no drafter; and as ``DraftCheckpoint.load``.
    """
    if isinstance(drafter, DraftCheckpoint):
        drafter = drafter.load(target, bidirectional_prompt=bidirectional_prompt)
    if isinstance(drafter, EarlyExit):
        layers = getattr(target, "num_decoder_layers", None) or target.num_layers
        if not 1 <= drafter.num_layers <= layers:
            raise ValueError(
                f"num_layers: expected 1 to the target's {layers}, got {drafter.num_layers}"
            )
        return drafter
    if isinstance(drafter, DrafterDirectory):
        return drafter
    if isinstance(drafter, T5) and not hasattr(target, "num_decoder_layers"):
        raise ValueError("drafter: expected a decoder alone, got an encoder and a decoder")
    size = getattr(getattr(drafter, "config", drafter), "vocab_size", target.vocab_size)
    if size != target.vocab_size:
        raise ValueError(
            f"drafter: expected the target's vocabulary, {target.vocab_size}, got {size}"
        )
    return drafter if isinstance(drafter, T5) else as_drafter(drafter)


def bind(drafter: Any, model: LanguageModel) -> Any:
    """The drafter for one batch of the target.

    A head is read here and not by ``ready``, since it takes the embeddings of the target, whose
    parameters T5X gives for each batch.

    Args:
      drafter: from ``ready``. A drafter that uses encoder inputs, such as a T5 or a
        ``PromptLookup`` without a source, is bound to those of the target.
      model: the target. An encoder-decoder is bound to its inputs.

    Raises:
      CheckpointError: as ``load_drafter``, if a head does not fit the target.
    """
    if isinstance(drafter, DrafterDirectory):
        return drafter.read(model)
    if isinstance(drafter, EarlyExit):
        return model.early_exit(drafter.num_layers)  # type: ignore[attr-defined]
    if isinstance(model, BoundT5):
        return bind_to_inputs(drafter, model.source, model.source_length)
    return drafter
