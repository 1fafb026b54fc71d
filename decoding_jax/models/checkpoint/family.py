"""A family of decoder-only networks as data: tables of settings and tensors, read and written."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flax import traverse_util

from decoding_jax.models.bart import BartConfig
from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    CONFIG,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.params import (
    ONE_DEVICE,
    Layout,
    Rows,
    View,
    Weight,
    abstract,
    read_model,
)
from decoding_jax.models.checkpoint.position_settings import (
    GROWTH,
    layer_types,
    max_positions_of,
    read_window,
    rotary_of,
    settings_of_scaling,
)
from decoding_jax.models.decoder import DecoderConfig
from decoding_jax.models.gemma4 import Gemma4Config
from decoding_jax.models.llama import Llama, LlamaConfig
from decoding_jax.models.t5 import T5Config

REQUIRED: Any = object()

# Older files contain the rotary frequencies.
IGNORED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"

BLOCKS = "num_nextn_predict_layers"
"""The setting for the number of blocks of multi-token prediction."""


class Key(NamedTuple):
    """A setting of ``config.json`` that is a number, a switch or an activation of the network.

    Attributes:
      fields: the names of the fields of the config that have its value, with spaces between them.
      default: its value where it is absent or null, ``REQUIRED`` where it has to be there, or a
        function of the other settings. Numbers of heads and their sizes that are null follow from
        the other settings in all families.
      power: the power of the setting that the fields have.
      choices: None, or the value of the fields for each value of the setting, which is a switch.
    """

    fields: str
    default: Any = REQUIRED
    power: int = 1
    choices: Mapping[bool, Any] | None = None

    def read(self, settings: Settings, name: str) -> Any:
        """The value of the fields."""
        field = self.fields.split()[0]
        is_null = name in settings.values and settings.values[name] is None
        default = _of(settings, _OF_NULL.get(field, self.default) if is_null else self.default)
        if field == "activation":
            return settings.one_of(name, ACTIVATIONS, default)
        if self.choices is not None:
            return self.choices[settings.get(name, bool, default)]
        if settings.values.get(name) is None and default is not REQUIRED:
            value = default
        elif _KINDS[field] is int:
            value = settings.size(name)
        else:
            value = settings.get(name, _KINDS[field])
        return value if self.power == 1 or value is None else value**self.power

    def write(self, config: Any) -> Any:
        """The value of the setting; of a power, without the error of its rounding."""
        field = self.fields.split()[0]
        value = getattr(config, field)
        if field == "activation":
            return ACTIVATIONS_BACK[value]
        if self.choices is not None:
            return next((x for x, choice in self.choices.items() if choice == value), None)
        if self.power == 1 or value is None:
            return value
        return float(f"{value ** (1 / self.power):.12g}")


def _of(settings: Settings, value: Any) -> Any:
    """A value, or that of a function of the settings."""
    return value(settings) if callable(value) else value


_NAMED = {"int": int, "float": float, "bool": bool}
_KINDS = {
    field.name: _NAMED[str(field.type).removesuffix(" | None")]
    for config in (LlamaConfig, BartConfig, Gemma4Config, T5Config)
    for field in dataclasses.fields(config)
    if str(field.type).removesuffix(" | None") in _NAMED
}
"""The types of the fields that are numbers and switches."""


def fields_of(keys: Mapping[str, Key], settings: Settings) -> dict[str, Any]:
    """The fields of a config that settings give."""
    found: dict[str, Any] = {}
    for name, key in keys.items():
        found |= dict.fromkeys(key.fields.split(), key.read(settings, name))
    return found


def settings_of(keys: Mapping[str, Key], config: Any) -> dict[str, Any]:
    """The settings that give the fields of a config."""
    return {name: key.write(config) for name, key in keys.items()}


def num_heads(settings: Settings) -> int:
    """The number of key-value heads where each query head has one."""
    return settings.size("num_attention_heads")


def head_dim(settings: Settings) -> int:
    """The size of a head where the heads share the width."""
    return settings.size("hidden_size") // settings.size("num_attention_heads")


_OF_NULL = {"num_kv_heads": num_heads, "head_dim": head_dim}

KEYS = {
    "vocab_size": Key("vocab_size"),
    "hidden_size": Key("emb_dim"),
    "num_hidden_layers": Key("num_layers"),
    "num_attention_heads": Key("num_heads"),
    "num_key_value_heads": Key("num_kv_heads", num_heads),
    "head_dim": Key("head_dim", head_dim),
    "intermediate_size": Key("mlp_dim"),
    "hidden_act": Key("activation", "silu"),
    "rms_norm_eps": Key("norm_epsilon", 1e-6),
    "tie_word_embeddings": Key("logits_via_embedding", False),
}
"""The settings of most families."""


def without(keys: Mapping[str, Key], *names: str) -> dict[str, Key]:
    """Settings without some of them."""
    return {name: key for name, key in keys.items() if name not in names}


ATTENTION_BIAS = {"attention_bias": Key("qkv_bias out_bias", False)}
MLP_BIAS = {"mlp_bias": Key("mlp_bias", False)}

NAMES = {
    "token_embedder": "model.embed_tokens",
    "final_norm": "model.norm",
    "logits_dense": "lm_head",
    "layers": "model.layers",
    "pre_attention_norm": "input_layernorm",
    "pre_mlp_norm": "post_attention_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "mlp/gate": "mlp.gate_proj",
    "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj",
}
"""The names of most families for the parts of a network, and for those of a layer."""


def _without_window(settings: Settings, num_layers: int) -> tuple[None, list[bool]]:
    return None, [True] * num_layers


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of networks.

    Attributes:
      model_type: its name in ``config.json``.
      architecture: the name of its class in ``transformers``.
      keys: its settings.
      fixed: the fields of the config that all networks of the family share.
      names: the names of tensors. Several parts of one name are rows of one tensor, in this order;
        a name with braces is that of each expert's tensor. A parameter's whole path, such as
        ``attention/sinks``, has a whole name, and several of one name its columns in turns.
      refused: settings that the network does not follow, with the value that they may have.
      theta: the base of the rotary frequencies where none is stated, or a function of settings.
      rotary: None, or the fraction of a head that is rotated where none is stated, or a function.
      growing: whether queries may grow with their positions.
      by_head: whether the rows of queries, keys and values in one tensor follow each other for each
        key-value head, and not for all heads together.
      window: returns the window, and which layers have it where ``layer_types`` does not say.
      more: returns the fields that follow from settings otherwise, given the other fields.
      more_settings: returns the settings of these fields.
      positions: the length of the longest text where none is stated, or None where one has to be.
      section: None, or the object of ``config.json`` that has the settings.
      renamed: as for ``Tensors.rename``.
      others: a pattern of the names of tensors of other networks in the same files.
      ignored: a pattern of the names of tensors that are not needed.
      model: the class of the model.
      config: the class of its config.
    """

    model_type: str
    architecture: str
    keys: Mapping[str, Key]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: NAMES)
    refused: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    theta: float | Callable[[Settings], float] = 10_000.0
    rotary: float | Callable[[Settings], float] | None = None
    growing: bool = False
    by_head: bool = False
    window: Callable[[Settings, int], tuple[Any, list[bool]]] | None = None
    more: Callable[[Settings, Mapping[str, Any]], dict[str, Any]] = lambda settings, fields: {}
    more_settings: Callable[[LlamaConfig], dict[str, Any]] = lambda config: {}
    positions: int | None = None
    section: str | None = None
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    others: str = r"(?!)"
    ignored: str = IGNORED
    model: type[Llama] = Llama
    config: type[LlamaConfig] = LlamaConfig

    def read(
        self, settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE
    ) -> Llama:
        """Reads the model of a directory, without blocks of multi-token prediction."""
        settings = settings if self.section is None else settings.section(self.section)
        config = self.config_of(settings, dtype)
        table, output = (f"{self.names[x]}.weight" for x in ("token_embedder", "logits_dense"))
        base = self.names["layers"].rpartition(".")[0]
        heads = rf"{re.escape(self.names['logits_dense'])}\..*|{self.others}"
        tensors.rename(self.renamed, f"{base}.", heads)
        self.prepare(tensors)
        tied = config.logits_via_embedding and tensors.tie(table, output)
        config = dataclasses.replace(config, logits_via_embedding=tied)
        model = read_model(self.model, config, self.table(config), tensors, layout)
        blocks = [rf"{re.escape(x)}\..*" for names in prediction_blocks(settings) for x in names]
        tensors.check_all_used("|".join([self.ignored, self.others, *blocks]))
        return model

    def prepare(self, tensors: Tensors) -> None:
        """Makes tensors of others, where files have another form than ``names``."""

    def config_of(self, settings: Settings, dtype: str) -> LlamaConfig:
        """The shape of the network that ``config.json`` describes.

        Raises:
          ValueError: for a setting that is not supported.
        """
        return _plain(self.config(**self.fields_of(settings), dtype=dtype))

    def fields_of(self, settings: Settings) -> dict[str, Any]:
        """The fields of the config that ``config.json`` describes; errors as for ``config_of``."""
        settings.refuse(**self.refused)
        fields = {**self.fixed, **fields_of(self.keys, settings)}
        fields.setdefault("head_dim", fields["emb_dim"] // fields["num_heads"])
        if self.rotary is None:
            settings.refuse(partial_rotary_factor=1.0)
        theta, fraction = _of(settings, self.theta), _of(settings, self.rotary)
        theta, scaling, fraction = rotary_of(settings, theta, fraction)
        if scaling is not None and scaling.query_growth and not self.growing:
            raise settings.error(GROWTH, scaling.query_growth, "none in this family")
        fields |= {"rope_theta": theta, "rope_scaling": scaling}
        if self.rotary is not None:
            turned = int(fields["head_dim"] * fraction)
            fields["rotary_dim"] = None if turned == fields["head_dim"] else turned
        if "max_positions" not in fields:
            fields["max_positions"] = max_positions_of(settings, scaling, self.positions)
        window = self.window or _without_window
        fields["window"], fields["window_pattern"] = read_window(
            settings, *window(settings, fields["num_layers"])
        )
        return fields | self.more(settings, fields)

    def settings_of(self, config: LlamaConfig) -> dict[str, Any]:
        """The contents of ``config.json`` for a network."""
        settings = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **settings_of(self.keys, config),
            "rope_theta": config.rope_theta,
            "rope_scaling": settings_of_scaling(config.rope_scaling),
            # Without these, ``transformers`` takes those of the published models.
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        if not any("max_positions" in key.fields for key in self.keys.values()):
            settings["max_position_embeddings"] = config.max_positions
        if self.rotary is not None:
            settings["partial_rotary_factor"] = rotated_fraction(config)
        if self.window is not None:
            # Layers without a window that any text reaches may still have positions of their own.
            own = config.window is None and config.local_rope_theta is not None
            window = config.max_positions if own else config.window
            pattern = (False,) if window is None else config.window_pattern
            settings["use_sliding_window"] = window is not None
            settings["sliding_window"] = window
            settings["layer_types"] = layer_types(pattern, config.num_layers)
        return settings | self.more_settings(config)

    def table(self, config: LlamaConfig) -> dict[str, Weight]:
        """The tensor of every parameter."""
        separate = dataclasses.replace(config, scan_layers=False)
        model = abstract(self.model, separate)  # type: ignore[arg-type]
        shapes = traverse_util.flatten_dict(model.params, sep="/")
        out = {}
        for path in shapes:
            own = re.sub(r"layers_\d+/", "", path, count=1)
            layer = path.removesuffix(own).replace("layers_", f"{self.names['layers']}.")
            weight = self._weight(own, shapes, config)
            out[path] = weight._replace(name=layer.replace("/", ".") + weight.name)
        return out

    def _weight(self, own: str, shapes: Mapping[str, Any], config: LlamaConfig) -> Weight:
        """The tensor of a parameter of the network, or of a layer, whose name lacks its number."""
        if own in self.names:  # all of its name, and columns in turns where parts share it
            parts = [x for x, name in self.names.items() if name == self.names[own]]
            if len(parts) == 1:
                return Weight(self.names[own])
            *rest, size = shapes[f"layers_0/{own}"].shape
            first, turns = parts.index(own), len(parts)
            view = View((*rest, turns * size), lambda tensor: tensor[..., first::turns])
            return Weight(self.names[own], view=view)
        part, leaf = own.rsplit("/", 1)
        sizes = {
            other: shapes[f"layers_0/{other}/{leaf}"].shape[-1]
            for other, name in self.names.items()
            if name == self.names[part] and f"layers_0/{other}/{leaf}" in shapes
        }
        groups = config.num_kv_heads if self.by_head and part.startswith("attention") else 1
        rows = None if len(sizes) < 2 else _rows(sizes, part, groups)
        name = f"{self.names[part]}.{'bias' if leaf == 'bias' else 'weight'}"
        count = config.num_experts if "{}" in name else None
        return Weight(name, leaf == "kernel", rows=rows, stacked=count)

    def check(self, config: LlamaConfig) -> None:
        """Refuses a network of which the settings of the family cannot say all.

        Raises:
          ValueError: for such a network, in one line with a field.
        """
        differences = self.differences(config)
        if differences:
            raise self.refusal(differences)

    def refusal(self, differences: Mapping[str, tuple[Any, Any]]) -> ValueError:
        """The error for what ``differences`` returns."""
        name, (expected, found) = next(iter(differences.items()))
        family = f"{self.model_type}, the nearest family of this layout"
        return ValueError(f"{name}: expected {expected} in {family}, got {found}")

    def differences(self, config: LlamaConfig) -> dict[str, tuple[Any, Any]]:
        """What the settings of the family cannot say of a network.

        Returns:
          For each such field, the value that would be read back, and that of the network.
        """
        written = Settings(Path(CONFIG), self.settings_of(config))
        found = _compared(self.config, self.config_of(written, config.dtype))
        given = _compared(self.config, config)
        return {name: (found[name], x) for name, x in given.items() if found[name] != x}


def _rows(sizes: Mapping[str, int], part: str, groups: int) -> Rows:
    """The rows of one of several parts that follow each other in each group of a tensor."""
    counts = {name: size // groups for name, size in sizes.items()}
    names = list(counts)
    first = sum(counts[name] for name in names[: names.index(part)])
    return Rows(groups, sum(counts.values()), first, first + counts[part])


def rotated_fraction(config: LlamaConfig) -> float:
    """The fraction of a head that is rotated, from which its dimensions are rounded down."""
    turned = config.rotary_dim or config.head_dim
    fraction = turned / config.head_dim
    exact = int(config.head_dim * fraction) == turned
    return fraction if exact else math.nextafter(fraction, 1)


def _plain(config: LlamaConfig) -> LlamaConfig:
    """A config without a window that no text reaches."""
    window, pattern = config.window, config.window_pattern
    longest, scaling = config.max_positions, config.rope_scaling
    if scaling is not None and scaling.kind == "longrope":  # with for_long_texts
        longest = max(longest, scaling.extended_positions)
    if window is not None and window < longest and any(pattern):
        return config
    pattern = (True,) if config.local_rope_theta is None else pattern
    return dataclasses.replace(config, window=None, window_pattern=pattern)


def _compared(kind: type[LlamaConfig], config: LlamaConfig) -> dict[str, Any]:
    """The fields of a config that files have, with patterns for all layers."""
    config = _plain(config)
    running = {field.name for field in dataclasses.fields(DecoderConfig)}
    values = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(kind)
        if field.name not in running
    }
    for name in ("window_pattern", "rotary_pattern"):
        values[name] = [values[name][i % len(values[name])] for i in range(config.num_layers)]
    values["query_scalar"] = float(config.query_scalar or config.head_dim)
    values["rotary_dim"] = config.rotary_dim or config.head_dim
    return values


def prediction_blocks(settings: Settings) -> list[tuple[str, str]]:
    """The names that the tensors of blocks of multi-token prediction begin with.

    Returns:
      For each block, the one of DeepSeek-V3, after the layers of the network, and that of MiMo.
    """
    count = settings.get(BLOCKS, int, 0)
    first = settings.size("num_hidden_layers") if count else 0
    return [(f"model.layers.{first + k}", f"model.mtp_layers.{k}") for k in range(count)]
