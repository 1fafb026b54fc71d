"""Gin files in an order in which one of this library has no effect are refused.

Every file in ``gin/t5x`` imports this module, which registers a finalize hook with gin. T5X runs
the hooks once all files and bindings are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import gin.config as gin

from decoding_jax.gin_reach import MACRO, Config, reach
from decoding_jax.t5x import decode_fns

_MODEL = ("MODEL", MACRO)
_CLASSES = ("as_native", "as_speculative")


@gin.register_finalize_hook
def check(config: Config) -> None:
    """Sees that MODEL is made of what the files of ``gin/t5x`` set.

    Raises:
      ValueError: if a later file has put T5X's model class, or its decode function, in the place of
        this library's.
    """
    if _MODEL not in config:
        return
    used = reach(config, [_MODEL]).selectors
    for what, names in (("model class", _CLASSES), ("decode_fn", decode_fns.__all__)):
        bound = sorted({name for _, name in config if _is_one_of(name, names)})
        if bound and not used.intersection(bound):
            raise ValueError(
                f"gin: MODEL = {config[_MODEL]['value']!r} does not use {', '.join(bound)}; a "
                f"later file has replaced the {what}, so give the model's own gin file before "
                "those of decoding_jax"
            )


def _is_one_of(selector: str, names: Sequence[str]) -> bool:
    """Whether it is a configurable of this package with one of these names."""
    if selector == MACRO or selector.split(".")[-1] not in names:
        return False
    function = inspect.unwrap(gin.get_configurable(selector))
    return function.__module__.startswith(__package__)
