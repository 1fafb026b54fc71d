"""The same shapes in ``transformers`` on a CUDA device: static caches, compiled; beams without."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from decoding_jax.models.checkpoint.families import FAMILIES
from experiments.benchmarks.accelerator import models
from experiments.benchmarks.accelerator.measure import timed
from experiments.benchmarks.accelerator.settings import Setting

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"cache_implementation": "static"},
    "sample": {"cache_implementation": "static", "do_sample": True, "top_k": 0},
    "beam_search": {},
}
"""The settings of each strategy. Static caches do not take beams."""


def is_here() -> bool:
    """Whether ``transformers`` and PyTorch are installed, with a CUDA device for it."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return False
    import torch

    return torch.cuda.is_available()


@functools.lru_cache(maxsize=1)
def random_model(name: str, device: str) -> Any:
    """A network of random bfloat16 weights.

    Args:
      name: a name of ``models.CONFIGS``.
      device: a device of PyTorch.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig.from_dict(FAMILIES["llama"].settings_of(models.CONFIGS[name]))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def measure(setting: Setting, device: str = "cuda") -> dict[str, Any]:
    """The seconds of a setting, named as in ``measure.measure``.

    ``compile_s`` is those of the first two decodes, which compile, less what they take afterwards.
    """
    import torch

    # Otherwise another number of rows would make the program's shapes dynamic.
    torch.compiler.reset()
    call = _call(setting, device)
    began = time.perf_counter()
    call(setting.new_tokens)
    call(setting.new_tokens)
    compiling = time.perf_counter() - began
    row = timed(lambda: call(1), lambda: call(setting.new_tokens))
    rest = row.pop("rest_s")
    row["compile_s"] = max(compiling - 2 * (row["first_s"] + rest), 0.0)
    row["step_s"] = rest / (setting.new_tokens - 1)
    return row | {"transformers": metadata.version("transformers")}


def _call(setting: Setting, device: str) -> Callable[[int], object]:
    """Decodes a number of tokens of every row."""
    import torch

    model = random_model(setting.model, device)
    shape = (setting.rows, setting.prompt_length)
    generator = torch.Generator(device).manual_seed(1)
    inputs = torch.randint(0, model.config.vocab_size, shape, device=device, generator=generator)
    settings = {"do_sample": False, "num_beams": setting.lanes, **SETTINGS[setting.strategy]}

    def call(count: int) -> None:
        with torch.inference_mode():
            model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=count,
                min_new_tokens=count,
                pad_token_id=0,
                **settings,
            )
        if device == "cuda":
            torch.cuda.synchronize()

    return call
