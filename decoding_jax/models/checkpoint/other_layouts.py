"""Directories that are no model directory, and the error that says what they are."""

from __future__ import annotations

from decoding_jax.models.checkpoint.directory import CONFIG, CheckpointError
from decoding_jax.storage import CloudPath, StoragePath

_SHARE = "expected the directory of a model in the layout of transformers"
# What a directory without config.json has, what it then is, and what to do; the first counts.
_LAYOUTS = (
    ("snapshots/*/config.json", "is a folder of the hub's cache; expected {found}"),
    ("models--*/snapshots/*/config.json", "is the hub's cache; expected {found}, or another there"),
    ("checkpoint-*/config.json", "has the checkpoints of a trainer; expected one, such as {found}"),
    ("*.gguf", "has {found}, which is GGUF; " + _SHARE + " that it was made of"),
    ("trainer_state.json", "is a trainer's checkpoint without config.json; copy that of the model"
     " that was trained into it"),
    ("params.json", "has {found}, of the layout of Llama's or Mistral's authors; " + _SHARE),
    ("*.msgpack", "has {found}, which is flax's; save the model as safetensors"),
    ("*.h5", "has {found}, which is TensorFlow's; save the model as safetensors"),
    ("*.onnx", "has {found}, which is ONNX; " + _SHARE),
    ("*/config.json", "has no config.json, but {found} has; expected that directory"),
    ("*.safetensors", "has {found} and no config.json, which says what network it is"),
)  # fmt: skip


def check_directory(path: StoragePath) -> None:
    """Raises an error for what is no directory."""
    if path.is_dir():
        return
    if path.name.endswith(".gguf"):
        raise CheckpointError(f"{path}: is GGUF; {_SHARE} that it was made of")
    if path.is_file():
        raise CheckpointError(f"{path}: is a file; expected its directory, {path.parent}")
    raise CheckpointError(f"{path}: no such directory")


def check_layout(directory: StoragePath) -> None:
    """Raises an error for a directory without ``config.json`` that is of another kind.

    Raises:
      CheckpointError: in one line, with what the directory is and what to do.
    """
    if isinstance(directory, CloudPath) or (directory / CONFIG).exists():
        return
    for pattern, what in _LAYOUTS:
        found = sorted(directory.glob(pattern))
        if not found:
            continue
        place = found[0].parent if found[0].name == CONFIG else found[0]
        raise CheckpointError(f"{directory}: {what.format(found=place)}")
