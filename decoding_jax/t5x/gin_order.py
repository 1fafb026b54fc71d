"""Refuses gin files in an order in which a file of this library has no effect.

Every file in ``gin/t5x`` imports this module, which registers a finalize hook with gin. T5X runs
the hooks after all files and bindings have been read.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import gin.config as gin

from decoding_jax.gin_config import MACRO, Config, reach
from decoding_jax.t5x import decode_fns

_MODEL = ("MODEL", MACRO)
_CLASSES = ("as_native", "as_speculative")


@gin.register_finalize_hook
def check(config: Config) -> None:
    """Checks that MODEL uses the classes and functions that the files of ``gin/t5x`` set.

    Raises:
      ValueError: if a later file has replaced the model class or the decode function of this
        library by T5X's.
    """
    if _MODEL not in config:
        return
    used = reach(config, [_MODEL]).selectors
    for setting, names in (("model class", _CLASSES), ("decode_fn", decode_fns.__all__)):
        bound = sorted({name for _, name in config if _is_one_of(name, names)})
        if bound and not used.intersection(bound):
            raise ValueError(
                f"gin: MODEL = {config[_MODEL]['value']!r} does not use {', '.join(bound)}; a "
                f"later file has replaced the {setting}, so give the model's own gin file before "
                "those of decoding_jax"
            )


def _is_one_of(selector: str, names: Sequence[str]) -> bool:
    """Whether the selector is a configurable of this package with one of these names."""
    if selector == MACRO or selector.split(".")[-1] not in names:
        return False
    function = inspect.unwrap(gin.get_configurable(selector))
    return function.__module__.startswith(__package__)
