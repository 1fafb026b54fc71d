"""Adapters of PEFT, merged into the tensors of a model while they are read.

An adapter of a linear layer with the weight W [out, in] is two matrices (Hu et al. 2021, "LoRA:
Low-Rank Adaptation of Large Language Models"): the layer becomes W + s B A, where s is alpha / r,
or alpha / sqrt(r) for a rank-stabilised one (Kalajdzievski 2023). With magnitudes m [out], each row
of that sum has its magnitude as its norm (Liu et al. 2024, "DoRA").
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding_jax.models.checkpoint.directory import (
    CONFIG,
    CheckpointError,
    Index,
    Settings,
    Tensors,
    with_beginning,
)
from decoding_jax.storage import StoragePath, model_path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_NAME = re.compile(
    r"base_model\.model\.(?P<module>.+)\."
    r"(?P<part>lora_A|lora_B|lora_magnitude_vector)(\.default)?(\.weight)?"
)
# Settings that the tensors follow from, or that training alone uses. Others have to be unset.
_TAKEN = frozenset(
    (
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config"),
        *("ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out"),
        *("inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform"),
        *("loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config"),
        *("megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern"),
        *("revision", "runtime_config", "target_modules", "task_type", "use_dora", "use_rslora"),
    )
)
# Initial weights that leave the model's own as they are.
_INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")


def base_and_adapter(
    directory: StoragePath, lora: StoragePath | None
) -> tuple[StoragePath, StoragePath | None]:
    """The directory of a model, and that of its adapter, which may name the model.

    Raises:
      CheckpointError: in one line, for an adapter that names no model that is here.
    """
    if lora is not None or (directory / CONFIG).is_file():
        return directory, lora
    if not (directory / ADAPTER_CONFIG).is_file():
        return directory, None
    path = directory / ADAPTER_CONFIG
    name = Settings(path).get("base_model_name_or_path", str, "")
    base = model_path("base_model_name_or_path", name) if name else None
    if base is None or not (base / CONFIG).is_file():
        raise CheckpointError(
            f"{path}: base_model_name_or_path: expected the directory of a model, got {name!r}; "
            f"load(directory, lora={str(directory)!r}) names it"
        )
    return base, directory


@dataclasses.dataclass(frozen=True)
class _Adapter:
    """The adapter of one linear layer.

    Attributes:
      down: float32 ``[r, in]``, A.
      up: float32 ``[out, r]``, s B.
      magnitude: None, or float32 ``[out]``.
      transposed: whether the tensor of the layer is ``[in, out]``.
    """

    down: np.ndarray
    up: np.ndarray
    magnitude: np.ndarray | None
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the layer's tensor."""
        shape = self.up.shape[0], self.down.shape[1]
        return shape[::-1] if self.transposed else shape

    def piece(self, base: Any, index: Index) -> np.ndarray:
        """A piece of the merged tensor; with magnitudes, all inputs of its outputs are read."""
        rows, columns = index[::-1] if self.transposed else index
        read = columns if self.magnitude is None else slice(None)
        stored = base[(read, rows)].T if self.transposed else base[(rows, read)]
        merged = np.asarray(stored, np.float32) + self.up[rows] @ self.down[:, read]
        if self.magnitude is not None:
            norms = np.linalg.norm(merged, axis=1)
            merged = (merged * (self.magnitude[rows] / norms)[:, None])[:, columns]
        return merged.T if self.transposed else merged


class _Merged:
    """A tensor with an adapter; a tuple of slices reads that part."""

    def __init__(self, base: Any, adapter: _Adapter):
        self._base, self._adapter = base, adapter

    def __getitem__(self, index: Index) -> np.ndarray:
        return self._adapter.piece(self._base, index)


class MergedTensors(Tensors):
    """The tensors of a directory with those of an adapter merged into them.

    Args:
      directory: the directory of the model.
      lora: that of the adapter.

    Raises:
      CheckpointError: in one line, for a file or a setting of the adapter that cannot be followed.
    """

    def __init__(self, directory: StoragePath, lora: StoragePath):
        super().__init__(directory)
        self._path = lora / ADAPTER_WEIGHTS
        self._adapters = _read(lora)
        self._merged: set[str] = set()

    def rename(self, changes: Mapping[str, str], base: str, heads: str) -> None:
        """See ``Tensors.rename``; an adapter's names are those of a whole model."""
        super().rename(changes, base, heads)
        adapters = self._adapters.items()
        self._adapters = {with_beginning(name, changes): adapter for name, adapter in adapters}

    def slices(self, name: str, shape: tuple[int, ...]) -> Any:
        """See ``Tensors.slices``."""
        found = super().slices(name, shape)
        if name not in self._adapters:
            return found
        adapter = self._adapters[name]
        if adapter.shape != shape:
            raise CheckpointError(
                f"{self._path}: {name}: expected an adapter of shape {shape}, got {adapter.shape}"
            )
        self._merged.add(name)
        return _Merged(found, adapter)

    def check_all_merged(self) -> None:
        """Raises an error for adapters of layers that the model does not have."""
        left = sorted(self._adapters.keys() - self._merged)
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            layer = left[0].removesuffix(".weight")
            raise CheckpointError(
                f"{self._path}: expected adapters of the model's linear layers, got one of "
                f"{layer}{more}"
            )


def _read(lora: StoragePath) -> dict[str, _Adapter]:
    """The adapters of a directory, by the names of the tensors that they change."""
    settings = Settings(lora / ADAPTER_CONFIG)
    if settings.get("peft_type", str) != "LORA":
        raise settings.error("peft_type", settings.values["peft_type"], "'LORA'")
    settings.refuse(bias="none")
    if (initial := settings.values.get("init_lora_weights")) not in _INITIAL:
        expected = "weights that leave those of the model as they are"
        raise settings.error("init_lora_weights", initial, expected)
    for key, value in settings.values.items():
        if key not in _TAKEN and value:
            raise settings.error(key, value, "no such setting, or none that is set")
    tensors = Tensors(lora, (ADAPTER_WEIGHTS,))
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name in tensors.names:
        found = _NAME.fullmatch(name)
        if found is None:
            raise CheckpointError(
                f"{lora / ADAPTER_WEIGHTS}: expected lora_A, lora_B and lora_magnitude_vector of "
                f"linear layers, got {name}"
            )
        array = np.asarray(tensors.read(name, tensors.shape(name)), np.float32)
        parts.setdefault(found["module"], {})[found["part"]] = array
    return {f"{module}.weight": _made(settings, module, of) for module, of in parts.items()}


def _made(settings: Settings, module: str, parts: Mapping[str, np.ndarray]) -> _Adapter:
    """The adapter of a layer, from its matrices."""
    use_dora = settings.get("use_dora", bool, False)
    expected = {"lora_A", "lora_B"} | ({"lora_magnitude_vector"} if use_dora else set())
    if parts.keys() != expected:
        raise CheckpointError(
            f"{settings.path.parent / ADAPTER_WEIGHTS}: expected {', '.join(sorted(expected))} of "
            f"{module}, got {', '.join(sorted(parts))}"
        )
    down, up = parts["lora_A"], parts["lora_B"]
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise CheckpointError(
            f"{settings.path.parent / ADAPTER_WEIGHTS}: {module}: expected lora_A [r, in] and "
            f"lora_B [out, r], got {down.shape} and {up.shape}"
        )
    alpha = _of_pattern(settings, "alpha_pattern", module)
    alpha = settings.get("lora_alpha", float) if alpha is None else alpha
    rank = len(down)
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora", bool, False) else rank)
    transposed = settings.get("fan_in_fan_out", bool, False)
    return _Adapter(down, scale * up, parts.get("lora_magnitude_vector"), transposed)


def _of_pattern(settings: Settings, key: str, module: str) -> float | None:
    """The value of the first pattern that the end of a layer's name matches, or None."""
    for pattern, value in settings.get(key, dict, {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return float(value)
    return None
