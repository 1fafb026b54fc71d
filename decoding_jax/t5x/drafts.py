"""What drafts for a native model: a checkpoint of its own, the first layers, or any drafter."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax.base import LanguageModel
from decoding_jax.models import T5, BoundT5, T5Decoder, load_t5x
from decoding_jax.strategies.speculative.drafters import as_drafter, bind_to_inputs


@dataclasses.dataclass(frozen=True)
class DraftCheckpoint:
    """A draft model in a T5X checkpoint of its own.

    Attributes:
      directory: a checkpoint on a disk, or what holds several, of which the latest is read.
      config: the draft's ``network.T5Config`` (or ``TransformerConfig``) of T5X. None takes the
        shape of the arrays and all else from the target; its activations where the draft has as
        many gates, else those that ``from_t5x`` takes.
    """

    directory: str | None
    config: Any = None

    def load(self, target: Any, *, bidirectional_prompt: bool = False) -> T5 | T5Decoder:
        """Reads the draft.

        Args:
          target: the target's configuration of T5X.
          bidirectional_prompt: of a decoder; see ``T5DecoderConfig``.

        Raises:
          CheckpointError: as ``load_t5x``.
          ValueError: for no directory, for one elsewhere, or for a ``config`` that the arrays
            contradict.
        """
        if self.directory is None:
            raise ValueError(
                "directory: got None; takes a T5X checkpoint, DRAFT_CHECKPOINT_PATH in the gin "
                "files, unless DRAFTER is another drafter"
            )
        if "://" in str(self.directory):
            raise ValueError(f"directory: got {self.directory}; takes a folder on a disk")
        config = target if self.config is None else self.config
        activations = tuple(config.mlp_activations)
        model = load_t5x(
            self.directory,
            dtype=jnp.dtype(config.dtype).name,
            mlp_activations=None if self.config is None else activations,
            bidirectional_prompt=bidirectional_prompt,
            scan_axis=getattr(config, "param_scan_axis", 1),
        )
        if self.config is None:
            if len(activations) == len(model.config.mlp_activations):
                as_target: Any = dataclasses.replace(model.config, mlp_activations=activations)
                model = dataclasses.replace(model, config=as_target)
            return model
        for name in _SHAPE:
            said, found = getattr(config, name, None), getattr(model.config, name, None)
            if said != found:
                raise ValueError(
                    f"config: got {name}={said}; takes {found}, as the arrays of {self.directory}"
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
    """The target's own first layers as the draft: no checkpoint, and no memory.

    Attributes:
      num_layers: of the decoder, from 1 to the target's.
    """

    num_layers: int


def ready(drafter: Any, target: Any, *, bidirectional_prompt: bool = False) -> Any:
    """The drafter for a target of this T5X configuration, its checkpoint read.

    Raises:
      ValueError: for a draft of another vocabulary or another kind, more layers than there are, or
        anything that drafts nothing; and as ``DraftCheckpoint.load``.
    """
    if isinstance(drafter, DraftCheckpoint):
        drafter = drafter.load(target, bidirectional_prompt=bidirectional_prompt)
    if isinstance(drafter, EarlyExit):
        layers = getattr(target, "num_decoder_layers", None) or target.num_layers
        if not 1 <= drafter.num_layers <= layers:
            raise ValueError(
                f"num_layers: got {drafter.num_layers}; takes 1 to the target's {layers}"
            )
        return drafter
    if isinstance(drafter, T5) and not hasattr(target, "num_decoder_layers"):
        raise ValueError("drafter: got an encoder and a decoder; takes a decoder alone")
    size = getattr(getattr(drafter, "config", drafter), "vocab_size", target.vocab_size)
    if size != target.vocab_size:
        raise ValueError(
            f"drafter: got a vocabulary of {size}; takes the target's, {target.vocab_size}"
        )
    return drafter if isinstance(drafter, T5) else as_drafter(drafter)


def bind(drafter: Any, model: LanguageModel) -> Any:
    """The drafter for one batch of the target.

    Args:
      drafter: what ``ready`` returned. A drafter that uses encoder inputs, such as a T5 or a
        ``PromptLookup`` without a source, is bound to those of the target.
      model: the target. An encoder-decoder is bound to its inputs.
    """
    if isinstance(drafter, EarlyExit):
        return model.early_exit(drafter.num_layers)  # type: ignore[attr-defined]
    if isinstance(model, BoundT5):
        return bind_to_inputs(drafter, model.source, model.source_length)
    return drafter
