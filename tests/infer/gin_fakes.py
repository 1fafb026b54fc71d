"""Functions that the gin files of tests import."""

from infer_fakes import draw

import gin
from decoding_jax.infer import Item


@gin.configurable
def lanes(count=3):
    return count


def draw_lanes(model, prompt, key, *, stop):
    return draw(model, prompt, key, stop=stop, lanes=lanes())


def words():
    return [Item("one"), Item("two")]
