"""Kernels that a directory holds as integers: the layouts of compressed-tensors, GPTQ and AWQ.

``quantization_config`` of ``config.json`` names the layout, or a file beside it that AutoGPTQ and
older versions of AutoAWQ write. The integers and scales of the files are those of the model, whose
activations stay in ``dtype``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.models.checkpoint.directory import CONFIG, CheckpointError, Settings, Tensors
from decoding_jax.models.quantized import QuantizedArray

METHODS = ("awq", "compressed-tensors", "gptq")
# Files with the settings of a layout, where config.json has none.
FILES = ("quantize_config.json", "quant_config.json")
# The integers of a word of AWQ are those of these columns, from the lowest bits to the highest.
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


class Packing(NamedTuple):
    """How the kernels of a directory are packed.

    Attributes:
      method: ``gptq``, ``awq``, ``pack-quantized`` or ``int-quantized``.
      bits: 4 or 8.
      group: the number of inputs that share a scale, or None for all of them.
      symmetric: whether 0 is the middle of the integers.
      path: the file that says so, for errors.
      offset: what is added to stored zero points: 1 in the first version of GPTQ's layout, else 0.
      weights: the names of the file with the tensors, besides the usual ones.
    """

    method: str
    bits: int
    group: int | None
    symmetric: bool
    path: Any
    offset: int = 0
    weights: tuple[str, ...] = ()

    def holds(self, tensors: Tensors, name: str) -> bool:
        """Whether a tensor of this name, such as ``lm_head.weight``, is packed."""
        if self.method == "int-quantized":
            return f"{name}_scale" in tensors
        return f"{name}_packed" in tensors or _part(name, "qweight") in tensors

    def check_bias(self, tensors: Tensors, kernel: str) -> None:
        """Takes the zeros that AutoGPTQ writes as the bias of a kernel without one.

        Raises:
          CheckpointError: if the file has another bias there, which no layer would add.
        """
        name = _part(kernel, "bias")
        if (
            self.method == "gptq"
            and name in tensors
            and tensors.read(name, tensors.shape(name)).any()
        ):
            raise CheckpointError(
                f"{self.path.parent}: {name}: expected zeros, since the layer has no bias in"
                f" {CONFIG}, got other numbers"
            )

    def abstract(self, shape: tuple[int, ...], dtype: str) -> QuantizedArray:
        """The shapes of a kernel ``[D, F]``.

        Raises:
          CheckpointError: if groups do not divide D, or for a kernel of more axes.
        """
        group = self.group or shape[0]
        if len(shape) != 2 or shape[0] % group:
            raise CheckpointError(
                f"{self.path}: quantization_config: expected kernels of two axes with inputs in"
                f" groups of {group}, got one of shape {shape}"
            )
        counts = (shape[0] // group, shape[1])
        integers = jnp.int4 if self.bits == 4 else jnp.int8
        made: Any = jax.ShapeDtypeStruct
        zero = None if self.symmetric else made(counts, jnp.int16)
        return QuantizedArray(made(shape, integers), made(counts, jnp.float32), zero, dtype)

    def read(self, tensors: Tensors, name: str, kernel: QuantizedArray) -> QuantizedArray:
        """The kernel of the tensor ``name``, as arrays of NumPy.

        Args:
          tensors: the tensors of the directory.
          name: such as ``model.layers.0.mlp.up_proj.weight``.
          kernel: from ``abstract``.
        """
        middle, counts = 2 ** (self.bits - 1), kernel.scale.shape
        zero: Any = None
        if self.method in ("gptq", "awq"):
            packed = tensors.integers(_part(name, "qweight"))
            zeros = self._zeros(tensors, _part(name, "qzeros"))
            scale = tensors.read(_part(name, "scales"), counts)
            if self.method == "gptq":
                values, zero = self._unpacked(packed.T).T, self._unpacked(zeros)
                self._check_order(tensors, _part(name, "g_idx"), kernel)
            else:
                values, zero = (self._in_columns(self._unpacked(x)) for x in (packed, zeros))
        elif self.method == "pack-quantized":
            values = self._unpacked(tensors.integers(f"{name}_packed")).T
            values = values[: kernel.shape[0]]
            scale = tensors.read(f"{name}_scale", counts[::-1]).T
            tensors.integers(f"{name}_shape")
        else:
            values = tensors.integers(name).T.astype(np.int32) + middle
            scale = tensors.read(f"{name}_scale", counts[::-1]).T
        if values.shape != kernel.shape or (zero is not None and zero.shape != counts):
            raise CheckpointError(
                f"{self.path}: {name}: expected integers for {kernel.shape}, got {values.shape}"
            )
        zero = None if zero is None else (zero - middle).astype(np.int16)  # 8 bits may hold 128
        if self.symmetric and zero is not None:
            if zero.any():
                raise CheckpointError(
                    f"{self.path}: quantization_config: expected zeros in the middle with sym ="
                    f" True, got others in {name}"
                )
            zero = None
        integers: Any = kernel.values.dtype
        values = (values - middle).astype(integers)
        scale = scale.astype(np.float32)
        return QuantizedArray(values, scale, zero, kernel.dtype)  # type: ignore[arg-type]

    def _zeros(self, tensors: Tensors, name: str) -> np.ndarray:
        """The words of zero points.

        The first version of GPTQ's layout stores each zero point less 1, and the writers subtract
        within whole words, in which a zero point of 0 borrows from the next one. So the sum is that
        of words too, as in GPTQModel.
        """
        if name not in tensors:
            raise CheckpointError(
                f"{self.path}: quantization_config: expected zero points, which the layout"
                f" {self.method} has with zero_point = False too, got none for {name}"
            )
        ones = sum(self.offset << shift for shift in range(0, 32, self.bits))
        words = tensors.integers(name).astype(np.int32).view(np.uint32)
        return (words + np.uint32(ones)).view(np.int32)

    def _unpacked(self, words: np.ndarray) -> np.ndarray:
        """The integers from 0 of each row of 32-bit words, the lowest bits first."""
        shifts = np.arange(0, 32, self.bits, dtype=np.uint32)
        parts = (words.astype(np.int32).view(np.uint32)[..., None] >> shifts) & (2**self.bits - 1)
        return parts.reshape(words.shape[0], -1).astype(np.int32)

    def _in_columns(self, integers: np.ndarray) -> np.ndarray:
        order = np.argsort(_AWQ_COLUMNS)
        return integers.reshape(len(integers), -1, 8)[..., order].reshape(integers.shape)

    def _check_order(self, tensors: Tensors, name: str, kernel: QuantizedArray) -> None:
        if name not in tensors:
            return
        size = kernel.shape[0]
        if (tensors.integers(name) != np.arange(size) // (self.group or size)).any():
            raise CheckpointError(
                f"{self.path}: quantization_config: expected inputs in the order of their groups"
                f" (desc_act = False, or static_groups), got another order in {name}"
            )


def _part(name: str, part: str) -> str:
    return f"{name.removesuffix('weight')}{part}"


def packing_of(settings: Settings) -> Packing | None:
    """The packing of a directory, or None where its weights are floats.

    Raises:
      CheckpointError: for a method or a setting that is not supported.
    """
    config = settings.section("quantization_config", "compression_config")
    files = (settings.path.parent / name for name in FILES)
    if not config.values and (path := next((p for p in files if p.is_file()), None)) is not None:
        config = Settings(path)
    if not config.values:
        return None
    # AutoAWQ writes its own names into its file.
    values = {_NAMES.get(name, name): value for name, value in config.values.items()}
    config = Settings(config.path, values)
    by_default = "compressed-tensors"
    if config.path != settings.path:
        by_default = "awq" if "version" in values else "gptq"
    method = config.get("quant_method", str, by_default)
    if method == "mxfp4":  # floats, which the family widens
        return None
    if method not in METHODS:
        raise config.error(
            "quantization_config.quant_method", method, "one of " + ", ".join(METHODS)
        )
    if method == "compressed-tensors":
        return _compressed(config)
    return _gptq_or_awq(config, method)


_NAMES = {"q_group_size": "group_size", "w_bit": "bits"}


def _gptq_or_awq(config: Settings, method: str) -> Packing:
    group, bits = config.get("group_size", int, 128), _bits(config, "bits")
    name, by_default = ("checkpoint_format", "gptq") if method == "gptq" else ("version", "gemm")
    form = config.get(name, str, config.get("format", str, by_default)).lower()
    symmetric, offset = False, 0
    weights: tuple[str, ...] = ()
    if method == "gptq":
        if form not in ("gptq", "gptq_v2"):
            raise config.error(f"quantization_config.{name}", form, "gptq or gptq_v2")
        config.refuse(is_marlin_format=False)
        symmetric, offset = config.get("sym", bool, False), int(form == "gptq")
        base = config.get("model_file_base_name", str, f"gptq_model-{bits}bit-{group}g")
        weights = (f"{base}.safetensors",)
    else:
        if form != "gemm":
            raise config.error(f"quantization_config.{name}", form, "gemm")
        config.refuse(bits=4)
    return Packing(method, bits, _group(group), symmetric, config.path, offset, weights)


def _compressed(config: Settings) -> Packing:
    formats = ("pack-quantized", "int-quantized")
    form = config.one_of("format", dict(zip(formats, formats, strict=True)), "")
    groups = config.get("config_groups", dict)
    if len(groups) != 1:
        raise config.error("quantization_config.config_groups", sorted(groups), "one group")
    (first,) = groups.values()
    weights: Mapping[str, Any] = (first if isinstance(first, dict) else {}).get("weights") or {}
    scheme = Settings(config.path, weights)
    scheme.refuse(type="int", symmetric=True, dynamic=False)
    order = scheme.values.get("actorder")
    if order not in (None, False, "weight", "static"):  # the latter two leave inputs in their order
        expected = "none, weight or static, which leave the inputs of a group together,"
        raise scheme.error("quantization_config: weights.actorder", order, expected)
    strategy = scheme.get("strategy", str)
    if strategy not in ("channel", "group"):
        raise scheme.error("quantization_config: weights.strategy", strategy, "channel or group")
    group = scheme.get("group_size", int) if strategy == "group" else -1
    return Packing(form, _bits(scheme, "num_bits"), _group(group), True, config.path)


def _bits(config: Settings, key: str) -> int:
    bits = config.get(key, int)
    if bits not in (4, 8):
        raise config.error(f"quantization_config.{key}", bits, "4 or 8")
    return bits


def _group(size: int) -> int | None:
    return size if size > 0 else None
