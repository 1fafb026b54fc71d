"""Drafters in directories: heads that are trained for one target."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from decoding_jax import fields
from decoding_jax.models.checkpoint import dflash, eagle, gemma4_assistant, multi_token
from decoding_jax.models.checkpoint.directory import CONFIG, CheckpointError, Settings, Tensors
from decoding_jax.models.shared_prefix import SharedPrefixModel
from decoding_jax.storage import StoragePath, model_path

_KINDS = (eagle, dflash, gemma4_assistant, multi_token)
_EMBEDDED = pathlib.Path(__file__).parent.parent / "embedded"


@dataclasses.dataclass(frozen=True)
class DrafterDirectory:
    """A drafter that is not read yet: ``generate`` and the batch job read it for their model."""

    directory: StoragePath
    settings: tuple[tuple[str, Any], ...]

    def read(self, target: Any) -> Any:
        """The drafter for a target; see ``load_drafter``."""
        return load_drafter(self.directory, target, **dict(self.settings))


def load_drafter(
    directory: str | StoragePath,
    target: Any = None,
    *,
    dtype: str | None = None,
    greedy: bool = False,
    min_confidence: float = 0.0,
) -> Any:
    """Reads a head of EAGLE-3 or DFlash, an assistant, or blocks of multi-token prediction.

    Args:
      directory: a directory with ``config.json`` and ``*.safetensors``: a head of EAGLE-3 in the
        layout of its authors, of SpecForge or of ``speculators``; one of DFlash in the same
        layouts; an assistant of Gemma 4; or blocks in the layout of DeepSeek-V3 or MiMo, in the
        target's own directory (``num_nextn_predict_layers``). Or its URL, as for ``load_model``; or
        the name of an embedded head, ``python-code-eagle``, over which a directory has precedence.
      target: the model that the head was trained for, from ``load``, with or without its tokenizer.
        The head has the target's embeddings where the files have none, and lies on its mesh. A head
        of EAGLE-3 also has encoder-decoders as targets, and reads their decoder's states. With
        None, ``generate``, ``stream`` and the batch job read the head for the model that they are
        given.
      dtype: ``"float32"`` or ``"bfloat16"``; by default that of the target.
      greedy, min_confidence: as in ``ModelDrafter``.

    Returns:
      An ``Eagle``, ``DFlash``, ``Assistant`` or ``MultiTokenPrediction``; without a target, an
      object for ``drafter=``.

    Raises:
      CheckpointError: in one line, for files as in ``load_model``, for a head of another kind, and
        for one of a target of another width, vocabulary, number of layers or size of heads.
      ValueError: for a target that is no model of ``decoding_jax.models``, or another ``dtype``.
    """
    if dtype not in (None, "float32", "bfloat16"):
        raise fields.error("dtype", "float32 or bfloat16", dtype)
    settings = {"greedy": greedy, "min_confidence": min_confidence}
    path = _path_of(directory)
    kind, file = _read_kind(path)
    if target is None:
        return DrafterDirectory(path, (("dtype", dtype), *settings.items()))
    target = target[0] if isinstance(target, tuple) else target
    if isinstance(target, SharedPrefixModel):
        target = target.model
    if not isinstance(target, eagle.Target):
        raise fields.error("target", "a model of decoding_jax.models", type(target).__name__)
    drafter = kind.read(file, Tensors(path), target, dtype or target.config.dtype)
    return dataclasses.replace(drafter, **settings)


def _read_kind(path: StoragePath) -> tuple[Any, Settings]:
    """The module that reads a directory, and its settings.

    Raises:
      CheckpointError: for a directory that does not exist or has no drafter.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such directory")
    file = Settings(path / CONFIG)
    kind = next((kind for kind in _KINDS if kind.is_head(file)), None)
    if kind is None and file.values.get("model_type") == "qwen3_next":
        raise CheckpointError(
            f"{file.path}: model_type: the blocks of Qwen3-Next (mtp.*) are not read, since its "
            "models are not"
        )
    if kind is None:
        named = file.values.get("speculators_model_type", file.values.get("architectures"))
        raise CheckpointError(
            f"{file.path}: expected a head of EAGLE-3 (with draft_vocab_size) or of DFlash (with "
            "dflash_config), an assistant of Gemma 4 (model_type gemma4_assistant), or blocks of "
            "multi-token prediction (with num_nextn_predict_layers), "
            f"got {named!r}; load reads a draft model"
        )
    return kind, file


def holds_drafter(directory: str | StoragePath, target: str | StoragePath) -> bool:
    """Whether ``load_drafter`` reads what is in a directory, and not ``load_model``.

    A whole model with blocks of multi-token prediction is a draft model like any other, unless it
    is the target itself.
    """
    path = _path_of(directory)
    if not (path / CONFIG).is_file():
        return False
    file = Settings(path / CONFIG)
    kind = next((kind for kind in _KINDS if kind.is_head(file)), None)
    if kind is not multi_token or path == model_path("directory", target):
        return kind is not None
    return not multi_token.is_whole_model(Tensors(path))


def _path_of(directory: str | StoragePath) -> StoragePath:
    """The directory of a head, which may be an embedded one."""
    path = model_path("directory", directory)
    found = _EMBEDDED / str(directory)
    return found if (found / CONFIG).is_file() and not path.is_dir() else path
